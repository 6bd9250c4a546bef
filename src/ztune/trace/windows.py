"""Several times of a day in one trace: when they are, and what changed between them without being seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ztune.trace.manifest import TraceFile
from ztune.trace.schema import Op

if TYPE_CHECKING:
    from ztune.trace.spool import Rows

_GROWS = (Op.WRITE, Op.COPY, Op.FALLOCATE)


@dataclass(frozen=True)
class Schedule:
    """A window begins each ``every_s`` seconds, the first at once, and lasts ``for_s``; shorter than that."""

    every_s: float
    for_s: float

    def at(self, passed_s: float) -> tuple[bool, float]:
        """Return whether a window is open ``passed_s`` seconds after the beginning, and in how many seconds
        that changes."""
        within = passed_s % self.every_s
        is_open = within < self.for_s
        return is_open, (self.for_s if is_open else self.every_s) - within


def with_growth(files: list[TraceFile], parts: Iterable[Rows]) -> list[TraceFile]:
    """Return ``files`` with as large a size at the start as what was read of them asks for.

    A file that grew between two windows was read where it had not been written, as far as was seen. A replay
    loads what was there at the start, so that this is there. ``parts``: events with the files' numbers.
    """
    import numpy as np  # here, as elsewhere: the command line's help takes no NumPy

    needed = np.array([file.size_start for file in files], np.int64)
    grown = needed.copy()
    for part in parts:
        rows = part[part["file"] >= 0]
        rows = rows[np.argsort(rows["file"], kind="stable")]  # a file's stay in the order of time
        numbers, begins = np.unique(rows["file"], return_index=True)
        for number, mine in zip(numbers.tolist(), np.split(rows, begins[1:]), strict=False):
            end = mine["offset"] + mine["size"]
            written = np.where(np.isin(mine["op"], _GROWS), end, 0)
            cut = mine["op"] == Op.TRUNCATE
            written[cut] = mine["size"][cut]
            so_far = np.maximum(np.maximum.accumulate(written), grown[number])
            beyond = np.isin(mine["op"], (Op.READ, Op.WARM)) & (end > so_far)
            if beyond.any():
                needed[number] = max(needed[number], int(end[beyond].max()))
            grown[number] = max(int(so_far[-1]), int(needed[number]))
    return [
        file.model_copy(update={"size_start": size}) if size > file.size_start else file
        for file, size in zip(files, needed.tolist(), strict=True)
    ]
