"""Which regions of which files a recording by sample has: ``recorder/recorder.bpf.c`` leaves out the others.

While it is recorded nobody knows how often a region will be used, so there are no strata of regions that are
used alike, as ``sampling.py`` has them: of each N regions that follow each other one is taken, which one by a
hash of inode and place (SHARDS, FAST '15). So a sample has an Nth of each file, and the same regions in each
window and each recording of a database.

What is whole: logs, by their role or by what is done to them, and the smallest files. Which these are is
known at the end only. The kernel leaves out nothing but what can't be whole any more: of files larger than
all that may be small together, that are no logs by their role nor, after some calls, by what was done to
them. What else a file of the sample has too much of is left out when the trace is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.trace import rate
from ztune.trace.manifest import Counted
from ztune.trace.schema import Op

REGION = rate.REGION
"""Bytes of a region: as in recorder/records.h."""
WHOLE_BYTES = 8 << 20
"""The smallest files of a sample are whole up to so many bytes together: a tenth of the least ARC."""
LOG_WRITES = 16  # fewer say nothing of a file
LOG_IN_ORDER = 0.9
LOG_SYNCED = 1 / 8  # syncs for each write
MOVED = (Op.READ, Op.WRITE, Op.COPY, Op.WARM, Op.READ_AHEAD)

Bools: TypeAlias = "npt.NDArray[np.bool_]"
_LOOKED_AT = 8  # regions of one call; longer ones are in every sample, as in the kernel


@dataclass(frozen=True)
class Tally:
    """What was done to a file in the recording. ``size``: how far anything was read or written, bytes.
    ``sampled``: whether the kernel left out regions of it."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0
    syncs: int = 0
    in_order: int = 0
    size: int = 0
    sampled: bool = False

    def counted(self) -> Counted:
        """Return what of it is told in a trace."""
        return Counted(
            reads=self.reads,
            read_bytes=self.read_bytes,
            writes=self.writes,
            write_bytes=self.write_bytes,
            syncs=self.syncs,
        )

    @property
    def like_a_log(self) -> bool:
        """Whether it was written in order and synced again and again."""
        in_order = self.in_order >= LOG_IN_ORDER * (self.writes - 1)
        return self.writes >= LOG_WRITES and in_order and self.syncs >= LOG_SYNCED * self.writes


def taken(ino: int, regions: npt.NDArray[np.uint64], of: int) -> Bools:
    """Return which ``regions``, counted from 0, of the file with inode ``ino`` are in the sample 1/``of``."""
    with np.errstate(over="ignore"):
        x = hashed(regions // np.uint64(of) + np.uint64(_turned(ino)))
    found: Bools = (x >> np.uint64(32)) % np.uint64(of) == regions % np.uint64(of)
    return found


def hashed(number: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return hashes of numbers: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = number * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return found


def _turned(ino: int) -> int:
    """Return the inode number with its halves changed: the lower one is where region numbers have none."""
    return ((ino << 32) ^ (ino >> 32)) & (2**64 - 1)


def kept(rows: npt.NDArray[np.void], inodes: Mapping[int, int], of: int) -> Bools:
    """Return which events the sample 1/``of`` has; ``inodes``: of the files that are sampled, by number.

    A call that is in any region of the sample is there as a whole.
    """
    found = np.ones(len(rows), bool)
    placed = np.isin(rows["op"], (*MOVED, Op.SYNC_RANGE)) & (rows["offset"] >= 0)
    for number, ino in inodes.items():
        mine = np.flatnonzero(placed & (rows["file"] == number))
        if not len(mine):
            continue
        first = rows["offset"][mine] // REGION
        last = np.maximum(rows["offset"][mine] + rows["size"][mine] - 1, rows["offset"][mine]) // REGION
        has = last - first >= _LOOKED_AT
        for step in range(min(int((last - first).max()) + 1, _LOOKED_AT)):
            has |= (first + step <= last) & taken(ino, (first + step).astype(np.uint64), of)
        found[mine] = has
    return found


def sampled_files(sizes: Mapping[int, int], tallies: Mapping[int, Tally], logs: set[int]) -> set[int]:
    """Return which of the files ``sizes`` (bytes) are sampled; ``logs``: those that are by their role.

    ``tallies``: of those that anything was done to.
    """
    left_out = {number for number, tally in tallies.items() if tally.sampled}
    like_logs = {number for number, tally in tallies.items() if tally.like_a_log}
    return left_out | large({n: size for n, size in sizes.items() if n not in logs | like_logs | left_out})


def large(sizes: Mapping[int, int]) -> set[int]:
    """Return which of the files ``sizes`` (bytes) are not among the smallest, which are always whole."""
    room = WHOLE_BYTES
    found = set()
    for size, number in sorted((size, number) for number, size in sizes.items()):
        room -= size
        if room < 0:
            found.add(number)
    return found
