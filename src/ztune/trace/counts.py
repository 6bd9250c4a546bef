"""Counts a trace's events file by file, in vectorised passes.

Events are sorted by file and cut, between files, into blocks of about a million. That bounds the memory, and
blocks are counted side by side, as numpy lets go of the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.trace.reader import Columns
from ztune.trace.schema import Flag, Op

PAGE = 4096  # bytes; unit of the working set
_PAGE_BITS = 12
# A sync within this time finds a write still in the open or a quiescing transaction group, so the write goes
# through the intent log: the default of zfs_txg_timeout (zfs(4)).
SYNC_WITHIN_NS = 5_000_000_000
SYNCS = (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)
BUCKETS = 65  # of sizes: 0 for size 0, else 1 + floor(log2(size))
KINDS = 16  # room for the codes of Op
_BLOCK = 1 << 20  # events

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FileTransfers:
    """Reads, or writes, of each file; arrays over the files, those of sizes over files and buckets."""

    count: Ints
    bytes: Ints
    sizes: Ints
    size_bytes: Ints
    sequential: Ints
    pages: Ints
    aligned: dict[int, Ints]


@dataclass(frozen=True)
class FileCounts:
    """Arrays over the files; ``ztune.trace.summary.Group`` says what each counts."""

    events: Ints
    kinds: Ints  # files × KINDS
    reads: FileTransfers
    writes: FileTransfers
    pages: Ints
    sync_writes: Ints
    sync_write_bytes: Ints
    overwritten: Ints
    sync_durations: Ints  # ns, of all files in turn; those of file i from sync_start[i] to sync_start[i + 1]
    sync_start: Ints
    global_syncs: int


@dataclass(frozen=True)
class _Block:
    """The events of files 0 to n - 1 (numbered within the block), sorted by file, then time."""

    n: int
    size_start: Ints
    file: Ints
    op: npt.NDArray[np.uint8]
    t: Ints
    dur: Ints
    offset: Ints
    size: Ints
    flags: npt.NDArray[np.uint16]


def count_files(size_start: Ints, columns: Columns, alignments: Sequence[int]) -> FileCounts:
    """Count the events in ``columns`` of files whose sizes at the start were ``size_start`` bytes.

    ``columns`` are t, dur, op, flags, file, offset, size, sorted by t. Raises InputError if offsets or bytes
    are beyond what 64 bits can add up.
    """
    n = len(size_start)
    file, op = columns["file"], columns["op"]
    if float(columns["size"].sum(dtype=np.float64)) > 2.0**62:
        raise InputError("the trace's sizes are larger than any file system allows")
    everywhere = columns["t"][(file < 0) & (op == Op.SYNC)]
    # 16-bit keys are sorted by radix, which is quick.
    order = np.argsort(file.astype(np.int16) if n < 2**15 else file, kind="stable")
    order = order[int(np.count_nonzero(file < 0)) :]
    ends = np.r_[0, np.cumsum(sum_by(file[file >= 0], None, n))]  # of the events of the files before the i-th

    def block(first: int, last: int) -> FileCounts:
        rows = order[ends[first] : ends[last]]
        return _count(
            _Block(
                n=last - first,
                size_start=size_start[first:last],
                file=columns["file"][rows].astype(np.int64) - first,
                **{name: columns[name][rows] for name in ("op", "t", "dur", "offset", "size", "flags")},
            ),
            everywhere,
            alignments,
        )

    # The first file of each block: where the running number of events passes a multiple of _BLOCK.
    cuts = np.flatnonzero(np.diff(ends[:-1] // _BLOCK)) + 1
    edges = [0, *cuts.tolist(), n]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return _join(list(pool.map(block, edges[:-1], edges[1:])), len(everywhere))


def _join(blocks: list[FileCounts], global_syncs: int) -> FileCounts:
    def joined(get: Callable[[FileCounts], Ints]) -> Ints:
        whole: Ints = np.concatenate([get(block) for block in blocks])
        return whole

    def transfers(get: Callable[[FileCounts], FileTransfers]) -> FileTransfers:
        return FileTransfers(
            count=joined(lambda block: get(block).count),
            bytes=joined(lambda block: get(block).bytes),
            sizes=joined(lambda block: get(block).sizes),
            size_bytes=joined(lambda block: get(block).size_bytes),
            sequential=joined(lambda block: get(block).sequential),
            pages=joined(lambda block: get(block).pages),
            aligned={
                to: np.concatenate([get(block).aligned[to] for block in blocks])
                for to in get(blocks[0]).aligned
            },
        )

    kinds = joined(lambda block: block.kinds)
    return FileCounts(
        events=joined(lambda block: block.events),
        kinds=kinds,
        reads=transfers(lambda block: block.reads),
        writes=transfers(lambda block: block.writes),
        pages=joined(lambda block: block.pages),
        sync_writes=joined(lambda block: block.sync_writes),
        sync_write_bytes=joined(lambda block: block.sync_write_bytes),
        overwritten=joined(lambda block: block.overwritten),
        sync_durations=joined(lambda block: block.sync_durations),
        sync_start=_starts(kinds),
        global_syncs=global_syncs,
    )


def _starts(kinds: Ints) -> Ints:
    starts: Ints = np.r_[0, np.cumsum(kinds[:, list(SYNCS)].sum(axis=1))]
    return starts


def _count(block: _Block, everywhere: Ints, alignments: Sequence[int]) -> FileCounts:
    file, n = block.file, block.n
    kinds = sum_by(file * KINDS + block.op, None, KINDS * n).reshape(-1, KINDS)
    reads, writes = block.op == Op.READ, block.op == Op.WRITE
    base = _page_base(block, reads | writes)
    read_counts, read_runs = _transfers(block, reads, base, alignments)
    write_counts, write_runs = _transfers(block, writes, base, alignments)
    is_sync = np.isin(block.op, SYNCS)
    synced = np.flatnonzero(writes & _synced(block, is_sync, everywhere))
    return FileCounts(
        events=kinds.sum(axis=1),
        kinds=kinds,
        reads=read_counts,
        writes=write_counts,
        pages=_union(_merge(read_runs, write_runs), n),
        sync_writes=sum_by(file[synced], None, n),
        sync_write_bytes=sum_by(file[synced], block.size[synced], n),
        overwritten=_overwritten(block, writes),
        sync_durations=block.dur[is_sync],
        sync_start=_starts(kinds),
        global_syncs=0,
    )


def _transfers(
    block: _Block, mask: Bools, base: Ints, alignments: Sequence[int]
) -> tuple[FileTransfers, _Runs]:
    rows = np.flatnonzero(mask)
    n = block.n
    file, offset, size = block.file[rows], block.offset[rows], block.size[rows]
    end = offset + size
    follows = np.zeros(len(rows), np.bool_)
    follows[1:] = (file[1:] == file[:-1]) & (offset[1:] == end[:-1])
    bucket = file * BUCKETS + np.frexp(size.astype(np.float64))[1]  # the exponent is 1 + floor(log2(size))
    here = base[file]
    first, last = here + (offset >> _PAGE_BITS), here + ((end - 1) >> _PAGE_BITS) + 1
    last = np.where(size == 0, first, last)  # nothing moved, no page touched
    order = np.argsort(first)
    runs = (first[order], last[order], file[order])
    counts = FileTransfers(
        count=sum_by(file, None, n),
        bytes=sum_by(file, size, n),
        sizes=sum_by(bucket, None, BUCKETS * n).reshape(-1, BUCKETS),
        size_bytes=sum_by(bucket, size, BUCKETS * n).reshape(-1, BUCKETS),
        sequential=sum_by(file[follows], None, n),
        pages=_union(runs, n),
        aligned={
            to: sum_by(file[_multiples(offset, to) & _multiples(size, to)], None, n) for to in alignments
        },
    )
    return counts, runs


def _page_base(block: _Block, chosen: Bools) -> Ints:
    """Return where each file's pages start in one numbering of the pages of all the block's files."""
    ends = np.zeros(block.n, np.int64)
    if len(block.file):
        begins = np.flatnonzero(np.r_[True, block.file[1:] != block.file[:-1]])
        pages = np.where(chosen, (block.offset + block.size) >> _PAGE_BITS, 0) + 1
        ends[block.file[begins]] = np.maximum.reduceat(pages, begins)
    if float(ends.sum(dtype=np.float64)) > 2.0**62:
        raise InputError("the trace's offsets are larger than any file system allows")
    base: Ints = np.cumsum(ends) - ends
    return base


def _synced(block: _Block, is_sync: Bools, everywhere: Ints) -> Bools:
    """Say of each event whether its file is open for sync, or a sync of the file comes soon."""
    n = len(block.file)
    soon: Bools = (block.flags & int(Flag.SYNC | Flag.DSYNC)) != 0
    if is_sync.any():
        place = np.where(is_sync, np.arange(n), n - 1)
        following = np.minimum.accumulate(place[::-1])[::-1]  # n - 1 also stands for "none"
        soon |= (
            is_sync[following]
            & (block.file[following] == block.file)
            & (block.t[following] - block.t <= SYNC_WITHIN_NS)
        )
    if len(everywhere):
        index = np.searchsorted(everywhere, block.t)
        after = everywhere[np.minimum(index, len(everywhere) - 1)]
        soon |= (index < len(everywhere)) & (after - block.t <= SYNC_WITHIN_NS)
    return soon


def _overwritten(block: _Block, writes: Bools) -> Ints:
    """Return the bytes written below the file's size at that time, per file.

    The size follows from that at the start, writes, copies, allocations that extend, and truncations.
    """
    cuts = (block.op == Op.TRUNCATE) | (block.op == Op.CREATE)
    extends = (block.op == Op.FALLOCATE) & ((block.flags & int(Flag.KEEP_SIZE | Flag.PUNCH)) == 0)
    rows = np.flatnonzero(writes | cuts | extends | (block.op == Op.COPY))
    if not len(rows):
        return np.zeros(block.n, np.int64)
    file, cut, offset, size = block.file[rows], cuts[rows], block.offset[rows], block.size[rows]
    end = np.where(cut, np.where(block.op[rows] == Op.CREATE, 0, size), offset + size)
    # A segment is a time in which a file only grows: it begins with the file or with a cut.
    begins = cut | np.r_[True, file[1:] != file[:-1]]
    segment = np.cumsum(begins) - 1
    initial = np.where(cut, end, block.size_start[file])[begins]
    after = running_maximum(np.maximum(end, initial[segment]), segment)
    before = np.r_[0, after[:-1]]
    before[begins] = initial
    replaced = np.clip(before - offset, 0, size)
    replaced[~writes[rows]] = 0
    return sum_by(file, replaced, block.n)


def _multiples(values: Ints, of: int) -> Bools:
    # Division is slow; most alignments are powers of two.
    rest = values & (of - 1) if of & (of - 1) == 0 else values % of
    multiples: Bools = rest == 0
    return multiples


def sum_by(key: npt.NDArray[np.integer], values: Ints | None, length: int) -> Ints:
    """Return how often each key below ``length`` occurs, or the sum of its ``values`` (exact to 2^53)."""
    counted: Ints = np.bincount(key, values, minlength=length).astype(np.int64)
    return counted


def running_maximum(values: Ints, segment: Ints) -> Ints:
    """Return the running maximum of ``values`` (not negative), begun anew in each segment (0, 1, 2 ...)."""
    step = int(values.max()) + 1
    if step * (int(segment[-1]) + 1) < 2**62:
        lifted: Ints = np.maximum.accumulate(values + segment * step) - segment * step
        return lifted
    # Sizes so large that they leave no room for the segment's number: their ranks do.
    sizes, rank = np.unique(values, return_inverse=True)
    ranks = np.maximum.accumulate(rank + segment * len(sizes)) - segment * len(sizes)
    best: Ints = sizes[ranks]
    return best


_Runs = tuple[Ints, Ints, Ints]  # start and end page, file; sorted by start


def _merge(a: _Runs, b: _Runs) -> _Runs:
    start, end, file = (np.concatenate(pair) for pair in zip(a, b, strict=True))
    order = np.argsort(start, kind="stable")  # two sorted halves: merged in linear time
    return start[order], end[order], file[order]


def _union(runs: _Runs, n: int) -> Ints:
    """Return the number of different pages in ``runs``, per file."""
    start, end, file = runs
    if not len(start):
        return np.zeros(n, np.int64)
    seen = np.r_[0, np.maximum.accumulate(end)[:-1]]
    return sum_by(file, np.maximum(end - np.maximum(start, seen), 0), n)
