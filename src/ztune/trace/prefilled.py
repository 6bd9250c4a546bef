"""Which writes of a log are room made ahead: zeros, that is, which compress to nothing.

PostgreSQL writes a new segment whole before it is used (``wal_init_zero``), as InnoDB does a new redo log.
The trace shows it: once made, the file is written from start to end, in a row and with no sync in between,
and then again from further in front.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ztune.trace.reader import Columns
from ztune.trace.schema import Op

LEAST = 1 << 20
"""Bytes: less may be a log's own first writes."""
MOST_WRITES = 4096
"""A log that is written in a row for longer is written as it is used."""


@dataclass
class _Log:
    """A log that was made in the trace, as long as it may be one that is filled first."""

    end: int = 0
    filled: bool = False
    places: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class Prefilled:
    """Told part by part of a trace; ``logs`` says of each file whether it is a log."""

    def __init__(self, logs: npt.NDArray[np.bool_]) -> None:
        self._logs = logs
        self._rows = 0
        self._made: dict[int, _Log] = {}
        self._places: list[int] = []
        self._sizes: list[int] = []

    def add(self, columns: Columns, rows: npt.NDArray[np.int64]) -> None:
        """Take the next part's ``rows``."""
        op, file = columns["op"][rows], columns["file"][rows]
        made = np.unique(file[(op == Op.CREATE) & self._logs[file]])
        if len(made) or self._made:
            watched = np.isin(file, [*self._made, *made.tolist()])
            for index in np.flatnonzero(watched).tolist():
                row = rows[index]
                self._take(
                    int(file[index]), int(op[index]), int(columns["offset"][row]), int(columns["size"][row]),
                    self._rows + index,
                )  # fmt: skip
        self._rows += len(rows)

    def _take(self, file: int, op: int, offset: int, size: int, place: int) -> None:
        if op == Op.CREATE:
            self._made[file] = _Log()
        log = self._made.get(file)
        if log is None:
            return
        if op in (Op.FSYNC, Op.FDATASYNC):
            log.filled = True
        if op != Op.WRITE:
            return
        if not log.filled and offset == log.end and len(log.places) < MOST_WRITES:
            log.end += size
            log.places.append(place)
            log.sizes.append(size)
            return
        if offset < log.end and log.end >= LEAST:
            self._places += log.places
            self._sizes += log.sizes
        del self._made[file]

    def found(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the places of such writes, counted over the rows of all parts, and their bytes."""
        return np.array(self._places, np.int64), np.array(self._sizes, np.int64)
