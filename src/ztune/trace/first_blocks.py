"""Which blocks of a recording's files its first reads show to have been cached (``first_reads.py``)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.onhost.words import ROLES
from ztune.trace.manifest import COLD, FIRST_READS, Manifest, Warning_
from ztune.trace.reader import Columns, Trace
from ztune.trace.regions import hashed
from ztune.trace.schema import Flag, Op, Via
from ztune.trace.spool import Rows
from ztune.trace.warm_share import WHOLE, may_be_cached
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

Ints: TypeAlias = "npt.NDArray[np.int64]"

HIT_NS = 50_000
"""A read that took less, and a nanosecond for each of its bytes, had its data from memory. A page from
Linux's cache takes 1 to 5 µs, a record of 128 KiB from the ARC up to some 100, to decompress it; the fastest
flash takes 60 and more. So some hits are taken for misses, and hardly a miss for a hit."""
AHEAD_NS = 2_000_000_000
"""Blocks of a file that are first read one after the other, in less time than this, may have been read ahead.
So such a row counts as its first read does, but not where more than ``ROW_SLOW`` of it was slow."""
ROW_SLOW = 0.2
"""A process that has to wait for a processor takes long for a hit too: of a row that was cached, some."""
BLOCKS = 1 << 22
"""At most so many blocks are told apart, so that it takes no more than some 0.5 GiB of memory: where more are
used they are twice as large."""
LEAST_BLOCK = 4096
LARGEST = 16 << 20
"""A call that is larger is a copy of a file, or a dump, and no database's."""
MOST_ROW = 1 << 20
_AT_A_TIME = 1 << 20
_FAST, _SLOW, _WRITTEN = 0, 1, 2
_FILE = 40  # bits of a block's number


@dataclass
class _Calls:
    """Calls on files as they were at the beginning. ``size``: bytes up to the file's end then; ``kind``:
    whether they were fast or slow reads, or writes; ``t``: when, ns."""

    file: Ints
    offset: Ints
    size: Ints
    kind: Ints
    t: Ints

    def __len__(self) -> int:
        return len(self.file)

    def at(self, rows: npt.NDArray[np.intp]) -> _Calls:
        """Return those at some places."""
        return _Calls(*(values[rows] for values in (self.file, self.offset, self.size, self.kind, self.t)))


@dataclass
class _Blocks:
    """Blocks that were used, sorted. ``key``: of a file's number and the block's; ``kind``: how it was used
    first; ``t``: when, ns; ``uses``: how often."""

    key: Ints
    kind: Ints
    t: Ints
    uses: Ints

    def __len__(self) -> int:
        return len(self.key)


def cached(trace: Trace) -> Rows:
    """Return what was cached when ``trace`` began as operations that warm caches, what is used least first.

    ``dur`` is the rank, up to ``WHOLE``: the part of all of them, by bytes, that are used as much or more.
    """
    manifest = trace.manifest
    sizes = np.array(
        [*(one.size_start if may_be_cached(one.role) else 0 for one in manifest.files), 0], np.int64
    )
    told = manifest.recorder.name != "strace"
    several, block = [_Blocks(*(np.empty(0, np.int64) for _ in range(4)))], LEAST_BLOCK
    for part in trace.parts("t", "dur", "op", "via", "flags", "file", "offset", "size"):
        calls = _calls(part, sizes, told)
        blocks = np.cumsum(calls.size // block + 2)
        cuts = np.searchsorted(blocks, np.arange(_AT_A_TIME, blocks[-1:].sum(), _AT_A_TIME))
        for some in np.split(np.arange(len(calls)), cuts):
            several.append(_used(calls.at(some), block))
            if sum(map(len, several[1:])) > len(several[0]):
                used, block = _told_apart(_joined(several), block)
                several = [used]
    used, block = _told_apart(_joined(several), block)
    at = _in_cache(used, manifest)
    if not len(at):
        return np.empty(0, EVENT_DTYPE)
    return _ranked(used.key[at], used.uses[at], sizes, block)


def _calls(part: Columns, sizes: Ints, told: bool) -> _Calls:
    """Return the calls of a part of a trace that use what was there at its beginning. ``told``: requests of
    io_submit have their own times."""
    op, size, offset = part["op"], part["size"].astype(np.int64), part["offset"].astype(np.int64)
    end = np.minimum(offset + size, sizes[part["file"]])
    moved = np.isin(op, (Op.READ, Op.WRITE, Op.COPY)) & (size <= LARGEST)
    row = np.flatnonzero(moved & (offset >= 0) & (end > offset))
    reads = op[row] == Op.READ
    fast = reads & (part["dur"][row] < HIT_NS + size[row])
    fast &= (part["flags"][row] & int(Flag.DIRECT)) == 0
    if not told:
        fast &= part["via"][row] != Via.AIO
    kind = np.where(fast, _FAST, np.where(reads, _SLOW, _WRITTEN))
    file, t = part["file"][row].astype(np.int64), part["t"][row]
    return _Calls(file, offset[row], end[row] - offset[row], kind, t)


def _used(calls: _Calls, block: int) -> _Blocks:
    """Return the blocks that calls use."""
    first = calls.offset // block
    several = (calls.offset + calls.size - 1) // block - first + 1
    which = np.repeat(np.arange(len(calls)), several)
    number = first[which] + np.arange(len(which)) - np.repeat(np.cumsum(several) - several, several)
    key, at, uses = np.unique((calls.file[which] << _FILE) + number, return_index=True, return_counts=True)
    return _Blocks(key, calls.kind[which[at]], calls.t[which[at]], uses)


def _told_apart(used: _Blocks, block: int) -> tuple[_Blocks, int]:
    """Return ``used``, of ``block`` bytes each, as no more blocks than ``BLOCKS``, and their bytes."""
    while len(used) > BLOCKS:
        used, block = _coarser(used), 2 * block
    return used, block


def _coarser(used: _Blocks) -> _Blocks:
    """Return blocks that are twice as large."""
    order = np.lexsort((used.t, used.key >> 1))
    file, number = used.key[order] >> _FILE, (used.key[order] & ((1 << _FILE) - 1)) >> 1
    key, at = np.unique((file << _FILE) + number, return_index=True)
    uses = np.maximum.reduceat(used.uses[order], at)
    return _Blocks(key, used.kind[order][at], used.t[order][at], uses)


def _joined(several: Sequence[_Blocks]) -> _Blocks:
    """Return the blocks of all, each of which came after the one before."""
    key, at = np.unique(np.concatenate([one.key for one in several]), return_index=True)
    uses = np.zeros(len(key), np.int64)
    for one in several:
        uses[np.searchsorted(key, one.key)] += one.uses
    kind, t = (np.concatenate([getattr(one, name) for one in several])[at] for name in ("kind", "t"))
    return _Blocks(key, kind, t, uses)


def _in_cache(used: _Blocks, manifest: Manifest) -> npt.NDArray[np.intp]:
    """Return which of the blocks, by their places, were in a cache from the beginning."""
    key, kind = used.key, used.kind
    if not len(used):
        return np.empty(0, np.intp)
    passed = np.diff(used.t)
    follows = (np.diff(key) == 1) & (passed >= 0) & (passed < AHEAD_NS)
    follows &= (kind[1:] != _WRITTEN) & (kind[:-1] != _WRITTEN)
    begins = np.flatnonzero(np.r_[True, ~follows])
    length = np.diff(np.r_[begins, len(key)])
    slow = np.add.reduceat((kind == _SLOW).astype(np.int64), begins) > ROW_SLOW * length
    fast = np.repeat((kind[begins] == _FAST) & ~slow, length)
    roles = np.array([ROLES.index(one.role) if one.role is not None else -1 for one in manifest.files])
    role = roles[key >> _FILE]
    drawn = hashed(used.t.astype(np.uint64)) / 2.0**64  # all blocks of a write together
    found = fast.copy()
    for one in range(len(ROLES)):
        reads, writes = ((role == one) & (kind != _WRITTEN), (role == one) & (kind == _WRITTEN))
        part = float((fast & reads).sum()) / max(float(reads.sum()), 1.0)
        found |= writes & (drawn < part)
    return np.flatnonzero(found)


def _ranked(key: Ints, uses: Ints, sizes: Ints, block: int) -> Rows:
    """Return the operations for blocks: one for those of a file that follow each other and are used alike."""
    together = (np.diff(key) == 1) & (uses[1:] == uses[:-1]) & (key[1:] % max(MOST_ROW // block, 1) != 0)
    begins = np.flatnonzero(np.r_[True, ~together])
    rows = np.zeros(len(begins), EVENT_DTYPE)
    rows["op"], rows["file2"] = Op.WARM, -1
    rows["file"] = key[begins] >> _FILE
    rows["offset"] = (key[begins] & ((1 << _FILE) - 1)) * block
    rows["size"] = np.diff(np.r_[begins, len(key)]) * block
    rows["size"] = np.minimum(rows["size"], sizes[rows["file"]] - rows["offset"])
    chance = hashed(key[begins].astype(np.uint64))
    order = np.lexsort((chance, -uses[begins]))  # what is used most first
    rows = rows[order]
    so_far = np.cumsum(rows["size"].astype(np.int64))
    rows["dur"] = np.ceil(so_far * (WHOLE / so_far[-1])).astype(np.int64)
    return rows[::-1].copy()


def write(trace: Trace, warm: Rows, path: Path) -> None:
    """Write ``trace`` to ``path`` with the operations ``warm`` before all others. Raises OSError,
    InputError.
    """
    manifest = trace.manifest
    mib = float(warm["size"].sum(dtype=np.float64)) / 2**20
    said = Warning_(
        code=FIRST_READS,
        message="What the processes had read before the recording is told from its first reads: those that "
        f"took no disk's time show that {mib:,.1f} MiB of what it uses lay in caches.",
    )

    def rows() -> Iterator[Rows]:
        yield warm
        for part in trace.parts():
            one = np.empty(len(part["t"]), EVENT_DTYPE)
            for name, values in part.items():
                one[name] = values
            yield one

    with TraceWriter(path) as writer:
        for one in rows():
            writer.add_rows(one)
        for sample in manifest.samples:
            # Not linked: the writer closes its files to others.
            shutil.copyfile(trace.path / sample.file, writer.samples_dir / Path(sample.file).name)
        kept = manifest.model_dump(exclude={"format", "version", "ztune", "events", "parquet", "warnings"})
        writer.finish(**kept, warnings=[*(one for one in manifest.warnings if one.code != COLD), said])
