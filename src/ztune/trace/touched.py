"""Where calls read and write files: some of these places, drawn at random, of each role.

How well files compress where a job works is another thing than how well all of them do: a log's old segments
are full of zeros or of other things, pages that are written over are those of another table than most, and
new ones are half empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.trace.manifest import TraceFile
from ztune.trace.schema import Op

MOST = 4096  # calls that are kept of those that read files of a role, and of those that write them
UNIT = 16 << 10  # bytes, a usual record: each that a call moves is as likely as any other


class TouchedPlaces:
    """Keeps places of those of a trace's ``files`` that have a role, from the events that it is given. The
    same ``seed`` and events give the same places.
    """

    def __init__(self, files: Sequence[TraceFile], seed: int) -> None:
        self._roles = sorted({file.role for file in files if file.role is not None})
        self._paths = [file.path for file in files]
        of_files = [-1 if file.role is None else self._roles.index(file.role) for file in files]
        self._role = np.array([*of_files, -1])  # the last one is that of no file, whose number is -1
        self._kept = {(role, op): _Kept() for role in self._roles for op in (Op.WRITE, Op.READ)}
        self._rng = np.random.default_rng(seed)

    def add(self, events: Mapping[str, Any] | npt.NDArray[np.void]) -> None:
        """Look at ``events``: arrays ``op``, ``file``, ``offset`` and ``size``, as in a trace."""
        op, size = events["op"], events["size"]
        moved = ((op == Op.WRITE) | (op == Op.READ)) & (size > 0) & (events["offset"] >= 0)
        file = np.asarray(events["file"])[moved]
        role, op, size = self._role[file], op[moved], size[moved].astype(np.int64)
        # The greatest of n numbers from 0 to 1 is as likely as one to the power of 1/n.
        drawn = self._rng.random(len(file)) ** (1 / np.ceil(size / UNIT))
        calls = np.stack([file.astype(np.int64), np.asarray(events["offset"])[moved], size], axis=1)
        for (name, kind), kept in self._kept.items():
            mine = (role == self._roles.index(name)) & (op == kind)
            if mine.any():
                kept.add(drawn[mine], calls[mine])

    def by_role(self) -> dict[str, list[tuple[str, int]]]:
        """Return (path, offset in bytes) of each role's places in random order: one written, one read, and
        so on, as long as there are both."""
        found: dict[str, list[tuple[str, int]]] = {}
        for role in self._roles:
            both = (self._kept[role, op].places(self._rng) for op in (Op.WRITE, Op.READ))
            turns = chain.from_iterable(zip_longest(*both))
            found[role] = [(self._paths[one[0]], one[1]) for one in turns if one is not None]
        return found


class _Kept:
    """Those of the calls that came for which the greatest numbers were drawn."""

    def __init__(self) -> None:
        self._drawn = np.empty(0)
        self._calls = np.empty((0, 3), np.int64)  # file, offset, size

    def add(self, drawn: npt.NDArray[np.float64], calls: npt.NDArray[np.int64]) -> None:
        if len(self._drawn) == MOST:
            better = drawn > self._drawn[-1]
            drawn, calls = drawn[better], calls[better]
        drawn = np.concatenate([self._drawn, drawn])
        # Greatest first, which is a random order of the calls.
        best = np.argsort(-drawn, kind="stable")[:MOST]
        self._drawn = drawn[best]
        self._calls = np.concatenate([self._calls, calls])[best]

    def places(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return a place of each call; and, where there are few calls, more of those that move much."""
        found: list[tuple[int, int]] = []
        calls = self._calls
        for turn in range(MOST):
            calls = calls[calls[:, 2] > turn * UNIT][: MOST - len(found)]
            if not len(calls):
                break
            offsets = calls[:, 1] + (rng.random(len(calls)) * calls[:, 2]).astype(np.int64)
            found += zip(calls[:, 0].tolist(), offsets.tolist(), strict=True)
        return found
