"""What was in the recorded host's caches when a recording began, told from how long its first reads took.

A recording of a server that runs begins in the middle: what it had read before is not known, so a replay
would begin with an empty ARC, and read from the disk what the server had in memory. The recording shows that,
though. A read that took no disk's time found its data in a cache, and where nothing recorded had read or
written it before, it lay there from the beginning. Of what is written first, or asked to be read ahead,
nothing is known: of that as large a part is taken for cached as of what is read first, in the same role.

The cache there may have been larger than the ARC of a layout. What is read again is in each ARC that has room
for all that is read as often; of what is read once an ARC has as large a part as it is of the host's cache,
or of the files where these are smaller. So each block has an ARC from which on it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.onhost.words import ROLES
from ztune.trace.manifest import COLD, Manifest
from ztune.trace.reader import Columns, Trace
from ztune.trace.regions import MOVED, hashed
from ztune.trace.schema import Flag, Op, Via
from ztune.trace.zfs_records import Records

Ints: TypeAlias = "npt.NDArray[np.int64]"

HIT_NS = 50_000
"""A read that took less, and a nanosecond for each of its bytes, had its data from memory. A page from
Linux's cache takes 1 to 5 µs, the fastest flash 60 and more. Of a file on ZFS it may take as much longer as
it takes to decompress the records that it touches, which a miss has to do as well. So some hits are taken for
misses, and hardly a miss for a hit."""
AHEAD_NS = 2_000_000_000
"""Blocks of a file that are first read one after the other, in less time than this, may have been read ahead.
So such a row counts as its first read does, but not where more than ``ROW_SLOW`` of it was slow."""
ROW_SLOW = 0.2
"""A process that has to wait for a processor takes long for a hit too: of a row that was cached, some."""
BLOCK = 4096
BLOCKS = 1 << 22
"""At most so many blocks are told apart, so that it takes no more than some 0.5 GiB of memory: of more,
those of every second MiB, drawn at random, and so on."""
LARGEST = 16 << 20
"""A call that is larger is a copy of a file, or a dump: of a file nothing is told from then on."""
LARGEST_FILE = 1 << 50
"""As the engine's."""
MOST_ROW = 1 << 20
_AT_A_TIME = 1 << 20
_FAST, _SLOW, _NOT_TOLD, _KNOWN = range(4)
_NUMBER_BITS = 38  # of a block in its file, of the largest one
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class CachedRanges:
    """What was cached, what the largest ARC alone has first. ``file``: its number in the manifest; ``offset``
    and ``size`` in bytes; ``arc``: the bytes of ARC from which on it is there."""

    file: Ints
    offset: Ints
    size: Ints
    arc: Ints

    def __len__(self) -> int:
        return len(self.file)


@dataclass(frozen=True)
class _Calls:
    """Calls on what was there at the beginning. ``size``: bytes up to the file's end then; ``kind``: whether
    they were fast or slow reads, writes, or known to have been before; ``t``: when, ns."""

    file: Ints
    offset: Ints
    size: Ints
    kind: Ints
    reads: Ints
    t: Ints

    def __len__(self) -> int:
        return len(self.file)

    def at(self, rows: npt.NDArray[np.intp]) -> _Calls:
        """Return those at some places."""
        return _Calls(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Blocks:
    """Blocks that were used, sorted. ``key``: of a file's number and the block's; ``kind``: how it was used
    first; ``t``: when, ns; ``reads``: how often it was read, and ``last``: when at last, or -1."""

    key: Ints
    kind: Ints
    t: Ints
    reads: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.key)

    def thinned(self, of: int) -> _Blocks:
        """Return those of one MiB in ``of``, a power of two."""
        regions = hashed((self.key // (MOST_ROW // BLOCK)).astype(np.uint64))
        kept = (regions >> np.uint64(32)) & np.uint64(of - 1) == 0
        return _Blocks(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))


def cached(trace: Trace) -> CachedRanges | None:
    """Return what was in caches when ``trace`` began; None where that is known, as it is of what was recorded
    from a server's start. Raises InputError if the trace is damaged.
    """
    manifest = trace.manifest
    if all(warning.code != COLD for warning in manifest.warnings):
        return None
    sizes = np.array(
        [*(one.size_start if _may_be_cached(one.role) else 0 for one in manifest.files), 0], np.int64
    )
    ended = np.full(len(sizes), _NEVER)  # by file: when it is no more what it was
    until = manifest.windows[1].t if len(manifest.windows) > 1 else _NEVER  # later what came between is there
    records = Records.of(manifest)
    own_times = manifest.recorder.name != "strace"  # of requests of io_submit: else that of their submission
    several = [_Blocks(*(np.empty(0, np.int64) for _ in range(5)))]
    of = 1
    for part in trace.parts("t", "dur", "op", "via", "flags", "file", "file2", "offset", "size"):
        _end(ended, part, sizes)
        calls = _calls(part, sizes, ended, until, records, own_times)
        blocks = np.cumsum(calls.size // BLOCK + 2)
        cuts = np.searchsorted(blocks, np.arange(_AT_A_TIME, blocks[-1:].sum(), _AT_A_TIME))
        for some in np.split(np.arange(len(calls)), cuts):
            several.append(_used(calls.at(some)).thinned(of))
            if sum(map(len, several[1:])) > len(several[0]):
                several = [_joined(several)]
            while len(several[0]) > BLOCKS:
                of *= 2
                several = [one.thinned(of) for one in several]
    used = _joined(several)
    at = _in_cache(used, manifest)
    # A scan in small pieces reads a block several times too, but at once.
    again = np.where(used.last - used.t > AHEAD_NS, used.reads, 0)
    return _needs(used.key[at], again[at], sizes, manifest, of)


def _may_be_cached(role: str | None) -> bool:
    return role is not None and role != "wal"  # a log goes through a cache, and is hardly read from it


def _end(ended: Ints, part: Columns, sizes: Ints) -> None:
    """Note from when on nothing is told of a file: it is cut, or read or written in large pieces."""
    op, size, file, t = part["op"], part["size"].astype(np.int64), part["file"], part["t"]
    cut = (op == Op.TRUNCATE) & (size < sizes[file])
    large = np.isin(op, (Op.READ, Op.WRITE, Op.COPY)) & (size > LARGEST)
    np.minimum.at(ended, file[cut | large], t[cut | large])
    copied = op == Op.COPY
    np.minimum.at(ended, part["file2"][copied], t[copied])


def _calls(part: Columns, sizes: Ints, ended: Ints, until: int, records: Records, own_times: bool) -> _Calls:
    """Return the calls of a part of a trace that use what was there at its beginning."""
    op, size, offset, file = part["op"], part["size"].astype(np.int64), part["offset"], part["file"]
    end = np.minimum(offset + np.minimum(size, LARGEST_FILE), np.minimum(sizes[file], LARGEST_FILE))
    moved = np.isin(op, MOVED) & (part["t"] < np.minimum(ended[file], until))
    row = np.flatnonzero(moved & (offset >= 0) & (end > offset))
    reads = op[row] == Op.READ
    decompressing = records.decompressing_ns(file[row], offset[row], (end - offset)[row])
    fast = reads & (part["dur"][row] < HIT_NS + size[row] + decompressing)
    fast &= (part["flags"][row] & int(Flag.DIRECT)) == 0
    if not own_times:
        fast &= part["via"][row] != Via.AIO
    kind = np.select([fast, reads, op[row] == Op.WARM], [_FAST, _SLOW, _KNOWN], _NOT_TOLD)
    return _Calls(
        file[row].astype(np.int64),
        offset[row],
        (end - offset)[row],
        kind,
        reads.astype(np.int64),
        part["t"][row],
    )


def _used(calls: _Calls) -> _Blocks:
    """Return the blocks that calls use."""
    first = calls.offset // BLOCK
    count = (calls.offset + calls.size - 1) // BLOCK - first + 1
    which = np.repeat(np.arange(len(calls)), count)
    number = first[which] + np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    key, at, back = np.unique(
        (calls.file[which] << _NUMBER_BITS) + number, return_index=True, return_inverse=True
    )
    reads = np.bincount(back, calls.reads[which], minlength=len(key)).astype(np.int64)
    last = np.full(len(key), -1)
    np.maximum.at(last, back, np.where(calls.reads[which] > 0, calls.t[which], -1))
    return _Blocks(key, calls.kind[which[at]], calls.t[which[at]], reads, last)


def _joined(several: Sequence[_Blocks]) -> _Blocks:
    """Return the blocks of all, each of which came after the one before."""
    key, at = np.unique(np.concatenate([one.key for one in several]), return_index=True)
    kind, t = (np.concatenate([getattr(one, name) for one in several])[at] for name in ("kind", "t"))
    reads, last = np.zeros(len(key), np.int64), np.full(len(key), -1)
    for one in several:
        place = np.searchsorted(key, one.key)
        reads[place] += one.reads
        last[place] = np.maximum(last[place], one.last)
    return _Blocks(key, kind, t, reads, last)


def _in_cache(used: _Blocks, manifest: Manifest) -> npt.NDArray[np.intp]:
    """Return which of the blocks, by their places, were in a cache from the beginning."""
    key, kind = used.key, used.kind
    if not len(used):
        return np.empty(0, np.intp)
    read = (kind == _FAST) | (kind == _SLOW)
    passed = np.diff(used.t)
    follows = (np.diff(key) == 1) & (passed >= 0) & (passed < AHEAD_NS) & read[1:] & read[:-1]
    begins = np.flatnonzero(np.r_[True, ~follows])
    length = np.diff(np.r_[begins, len(key)])
    slow = np.add.reduceat((kind == _SLOW).astype(np.int64), begins) > ROW_SLOW * length
    found = np.repeat((kind[begins] == _FAST) & ~slow, length)
    fast = found.copy()
    roles = np.array([ROLES.index(one.role) if one.role is not None else -1 for one in manifest.files])
    role = roles[key >> _NUMBER_BITS]
    drawn = hashed(used.t.astype(np.uint64)) / 2.0**64  # all blocks of a write together
    for number in range(len(ROLES)):
        mine = role == number
        part = float((fast & mine).sum()) / max(float((read & mine).sum()), 1.0)
        found |= mine & (kind == _NOT_TOLD) & (drawn < part)
    return np.flatnonzero(found)


def _needs(key: Ints, again: Ints, sizes: Ints, manifest: Manifest, of: int) -> CachedRanges:
    """Return the ranges of blocks, of which one in ``of`` is told apart: one for those of a file that follow
    each other and are read ``again`` as often; 0 for once."""
    if not len(key):
        return CachedRanges(*(np.empty(0, np.int64) for _ in range(4)))
    together = (np.diff(key) == 1) & (again[1:] == again[:-1]) & (key[1:] % (MOST_ROW // BLOCK) != 0)
    begins = np.flatnonzero(np.r_[True, ~together])
    file = key[begins] >> _NUMBER_BITS
    offset = (key[begins] & ((1 << _NUMBER_BITS) - 1)) * BLOCK
    size = np.minimum(np.diff(np.r_[begins, len(key)]) * BLOCK, sizes[file] - offset)
    stands_for = np.array(
        [manifest.sample.of if one.sampled and manifest.sample is not None else 1 for one in manifest.files]
    )
    times = again[begins]
    order = np.lexsort((hashed(key[begins].astype(np.uint64)), -times))  # what is read most first
    bytes_ = (size * stands_for[file] * of)[order].astype(np.float64)
    so_far = np.cumsum(bytes_)
    is_hot = times[order] > 0
    hot = float(bytes_[is_hot].sum())
    once = max(float(bytes_[~is_hot].sum()), 1.0)
    there = max(_host_cache(manifest) - hot, once)
    arc = np.where(is_hot, so_far, hot + (so_far - hot) / once * there).astype(np.int64)
    order, arc = order[::-1], arc[::-1]
    return CachedRanges(file[order], offset[order], size[order], arc)


def _host_cache(manifest: Manifest) -> int:
    """Return how large the recorded host's cache was at most, bytes: its ARC's limit, else its memory; or all
    files where these are smaller, or it is not known."""
    files = sum(one.size_start for one in manifest.files if _may_be_cached(one.role))
    held = manifest.environment.get("arc_max") or manifest.environment.get("memory")
    return min(files, held) if isinstance(held, int) and held > 0 else files
