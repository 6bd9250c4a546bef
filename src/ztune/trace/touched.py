"""Which blocks of files calls read and write: some of them, drawn at random, of each role and record size.

How well files compress where a job works is another thing than how well all of them do: a log's old segments
are full of zeros or of other things, pages that are written over are those of another table than most, and
new ones are half empty. Nor are all that it touches alike: InnoDB reads pages of its tables, and writes those
of its undo log again and again, half empty. A disk is read once for a block, which a cache then has, and
takes what was written in each transaction group; that with O_DIRECT it is read each time, and that what is
synced goes to the log as well, is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.trace.compressibility import Places
from ztune.trace.manifest import READ, WRITTEN, TraceFile
from ztune.trace.regions import hashed
from ztune.trace.schema import TXG_NS, Op

SPREAD = 16  # blocks of a call that are looked at, at most; of a longer one they lie evenly over it
_NONE = np.iinfo(np.uint64).max


class TouchedBlocks:
    """Keeps blocks of those of a trace's ``files`` that have a role, from the events that it is given.

    ``sizes``: of the blocks, in bytes, and how many are kept of each role, of what is read and of what is
    written. A block is as likely to be kept as it comes from a disk or goes to one: once for all its reads,
    once for its writes of each ``TXG_NS``, where it may be several times. Those stay whose hash is least.
    The same ``seed`` and events give the same blocks.
    """

    def __init__(self, files: Sequence[TraceFile], sizes: Mapping[int, int], seed: int) -> None:
        self._roles = sorted({file.role for file in files if file.role is not None})
        self._paths = [file.path for file in files]
        of_files = [-1 if file.role is None else self._roles.index(file.role) for file in files]
        self._role = np.array([*of_files, -1])  # the last one is that of no file, whose number is -1
        self._kept = {
            how: {size: [_Least(most) for _ in self._roles] for size, most in sizes.items()}
            for how in (READ, WRITTEN)
        }
        self._seed = hashed(np.array(seed, np.uint64))

    def add(self, events: Mapping[str, Any] | npt.NDArray[np.void]) -> None:
        """Look at ``events``: arrays ``t``, ``op``, ``file``, ``offset`` and ``size``, as in a trace."""
        moved = (events["size"] > 0) & (events["offset"] >= 0)
        moved &= self._role[np.asarray(events["file"])] >= 0
        for how, op in ((READ, Op.READ), (WRITTEN, Op.WRITE)):
            chosen = moved & (events["op"] == op)
            file, begin, size, t = (
                np.asarray(events[name])[chosen].astype(np.int64) for name in ("file", "offset", "size", "t")
            )
            group = t // TXG_NS if how == WRITTEN else np.zeros_like(t)
            self._add(self._kept[how], file, begin, begin + size - 1, hashed(group.astype(np.uint64)))

    def _add(
        self,
        kept_by_size: Mapping[int, Sequence[_Least]],
        file: npt.NDArray[np.int64],
        begin: npt.NDArray[np.int64],
        end: npt.NDArray[np.int64],
        salt: npt.NDArray[np.uint64],
    ) -> None:
        for size, kept in kept_by_size.items():
            number, block = _blocks(begin // size, end // size)
            least = np.array([one.limit for one in kept])
            place = (file[number] << 42 ^ block).astype(np.uint64)
            drawn = hashed(place ^ salt[number] ^ self._seed)
            candidates = drawn < least[self._role[file[number]]]
            number, block, drawn = number[candidates], block[candidates], drawn[candidates]
            role = self._role[file[number]]
            for index in np.unique(role):
                mine = role == index
                kept[index].add(drawn[mine], file[number[mine]], block[mine])

    def by_role(self) -> Places:
        """Return the blocks of each role, by how they were touched and by their size, in random order."""
        return {
            role: {
                how: {
                    size: [(self._paths[file], block * size) for file, block in kept[index].blocks()]
                    for size, kept in by_size.items()
                }
                for how, by_size in self._kept.items()
            }
            for index, role in enumerate(self._roles)
        }


def _blocks(
    first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return blocks of calls that reach from ``first`` to ``last``, and of which call each is."""
    all_ = last - first + 1
    some = np.minimum(all_, SPREAD)
    number = np.repeat(np.arange(len(first)), some)
    turn = np.arange(len(number)) - np.repeat(np.cumsum(some) - some, some)
    return number, first[number] + turn * all_[number] // some[number]


class _Least:
    """The ``most`` blocks of those that came whose hash is least, each hash once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._drawn = np.empty(0, np.uint64)
        self._where = np.empty((0, 2), np.int64)  # file, block

    @property
    def limit(self) -> np.uint64:
        """What a block's hash must be below."""
        return self._drawn[-1] if len(self._drawn) == self._most else np.uint64(_NONE)

    def add(
        self, drawn: npt.NDArray[np.uint64], file: npt.NDArray[np.int64], block: npt.NDArray[np.int64]
    ) -> None:
        where = np.concatenate([self._where, np.stack([file, block], axis=1)])
        self._drawn, first = np.unique(np.concatenate([self._drawn, drawn]), return_index=True)
        self._drawn, self._where = self._drawn[: self._most], where[first[: self._most]]

    def blocks(self) -> list[tuple[int, int]]:
        return [(int(file), int(block)) for file, block in self._where]
