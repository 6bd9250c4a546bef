"""The record size that a histogram of write sizes asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ztune.units import format_size

SMALLEST = 8 << 10
"""Two sectors of 4 KiB: below it no block can be compressed into fewer sectors."""
LARGEST = 1 << 20
"""The largest record that needs no thought about memory (zfs_max_recordsize before OpenZFS 2.2)."""
CANDIDATES = tuple(1 << power for power in range(13, 21))
PER_RECORD = 4 << 10
"""Bytes charged for each record beside its data: one sector of 4 KiB for its share of the tree of block
pointers, which a copy-on-write file system writes anew with the record."""
TINY = 512
"""Writes below the smallest sector are counters, headers and flags. They share a record with the writes
around them and go to disk with those, once in a transaction group."""


@dataclass(frozen=True)
class Fit:
    """What the sizes of writes say about a record size."""

    recordsize: int
    """Bytes."""
    size: int
    """Bytes: the size that half of the written bytes come in writes of at least."""
    share: float
    """Of the written bytes, in writes of at least half of ``recordsize``."""
    calls: int
    """Writes that were counted: of at least ``TINY`` bytes."""
    tiny: float
    """Share of the calls that were below ``TINY`` bytes."""
    below: float | None
    """What the next smaller record size moves, as a multiple of ``recordsize``; None: it is the smallest."""
    above: float | None
    """The same of the next larger one."""


def moved(sizes: Mapping[int, int], recordsize: int) -> int:
    """Return the bytes that the file system moves when each write of a histogram goes to disk on its own.

    The sum over all writes of at least ``TINY`` bytes of ceil(size / recordsize) × (recordsize +
    ``PER_RECORD``): a write that is smaller than a record rewrites all of it, one that is larger writes
    several, each with its block pointer.
    """
    return sum(
        calls * ceil(size / recordsize) * (recordsize + PER_RECORD)
        for size, calls in sizes.items()
        if size >= TINY
    )


def fit(sizes: Mapping[int, int]) -> Fit | None:
    """Return the record size for writes of these ``sizes`` (lower bound of the bucket → calls), or None.

    It is the candidate that has to move the fewest bytes (``moved``); of equal ones the largest. Neither of
    the plain weightings would do. Counting calls, one byte wins in files with a small header per write: in
    the OrientDB import, three of four writes to the WAL are single bytes. Counting bytes, the few large
    writes of a doublewrite buffer outweigh the many pages that are written after it in random order. The
    cost weighs both: a call costs what it makes the file system move. It takes each write to be placed at
    random and aligned to its size; where writes follow each other, records are filled before they go to
    disk, and a larger record costs nothing.

    The lower bound of a bucket stands for the size, which is exact for the powers of two that databases
    write. None where nothing of at least ``TINY`` bytes was written.
    """
    counted = {size: calls for size, calls in sizes.items() if size >= TINY and calls > 0}
    if not counted:
        return None
    costs = {candidate: moved(counted, candidate) for candidate in CANDIDATES}
    best = min(CANDIDATES, key=lambda candidate: (costs[candidate], -candidate))
    total = sum(size * calls for size, calls in sizes.items())  # the tiny ones too: they may be most
    return Fit(
        recordsize=best,
        size=typical(counted),
        share=sum(size * calls for size, calls in counted.items() if size * 2 >= best) / total,
        calls=sum(counted.values()),
        tiny=1 - sum(counted.values()) / sum(sizes.values()),
        below=costs[best >> 1] / costs[best] if best > SMALLEST else None,
        above=costs[best << 1] / costs[best] if best < LARGEST else None,
    )


def typical(sizes: Mapping[int, int]) -> int:
    """Return the size that half of all bytes come in calls of at least, 0 where there are no bytes."""
    total = sum(size * calls for size, calls in sizes.items())
    reached = 0
    for size in sorted(sizes, reverse=True):
        reached += size * sizes[size]
        if reached * 2 >= total:
            return size
    return 0


def in_words(sizes: Mapping[int, int]) -> str:
    """Return the two sizes that most calls have and the one that most bytes have: "1 × 5260, 64K × 1819"."""
    if not sizes:
        return ""
    chosen = set(sorted(sizes, key=lambda size: -sizes[size])[:2])
    chosen.add(max(sizes, key=lambda size: size * sizes[size]))
    return ", ".join(f"{format_size(size)} × {sizes[size]}" for size in sorted(chosen))
