"""What a trace shows: sizes, sync, sequence, overwriting, alignment, working set, rates; by role and by file.

Everything is computed per file with vectorised passes over the events and then added up by role. The
definitions are in docs/trace-format.md ("What `ztune trace show` computes") and in ``Group``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.trace.manifest import Manifest
from ztune.trace.reader import Columns, Trace
from ztune.trace.schema import ROLES, Flag, Op

NO_ROLE = "none"  # the name under which files without a role are shown
PAGE = 4096  # bytes; unit of the working set
_PAGE_BITS = 12
ALIGNMENTS = (512, 4096, 8192)
# A sync within this time finds a write still in the open or a quiescing transaction group, so the write goes
# through the intent log: the default of zfs_txg_timeout (zfs(4)).
SYNC_WITHIN_NS = 5_000_000_000
MOST_BINS = 4096  # the bins of the rates double from 1 s until they are no more
_BUCKETS = 65  # 0 for size 0, else 1 + floor(log2(size))

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_SYNCS = (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)


@dataclass(frozen=True)
class Transfers:
    """Reads or writes of one role or file. Shares are of ``count``, and 0 if that is."""

    count: int
    bytes: int
    sizes: dict[int, int]  # lower bound of the power-of-two bucket in bytes (0 for empty) → count
    size_bytes: dict[int, int]  # the same buckets → bytes
    sequential: float  # start where the last one of the same kind on the same file ended
    aligned: dict[int, float]  # bytes → share whose offset and size both are multiples
    pages: int  # different 4 KiB pages touched

    @property
    def mean(self) -> float:
        """Mean size in bytes."""
        return self.bytes / self.count if self.count else 0.0


@dataclass(frozen=True)
class Latencies:
    """Recorded durations of syncs, in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Group:
    """One role (``files`` of them) or one file."""

    name: str  # role ("none" for files without) or path
    role: str | None
    files: int
    size_start: int  # bytes, when the trace began
    size_end: int  # bytes; files whose end is not known count with their size at the start
    reads: Transfers
    writes: Transfers
    syncs: int  # fsync, fdatasync, msync
    sync_latency_ms: Latencies | None
    sync_writes: int  # O_SYNC, O_DSYNC, or the file was synced within 5 s after the write began
    sync_write_bytes: int
    overwritten_bytes: int  # written below the file's size at that time
    pages: int  # different 4 KiB pages read or written
    page_size: int | None  # the database's, if the workload knows it
    operations: dict[str, int]  # name of the operation in lower case → count; all kinds that occur

    @property
    def sync_share(self) -> float:
        """Share of the writes that were synchronous."""
        return self.sync_writes / self.writes.count if self.writes.count else 0.0

    @property
    def overwrite_share(self) -> float:
        """Share of the written bytes that replaced bytes of the file."""
        return self.overwritten_bytes / self.writes.bytes if self.writes.bytes else 0.0


@dataclass(frozen=True)
class Rates:
    """Per bin of ``bin_s`` seconds since the trace began: what started in it, for one role."""

    reads: list[int]
    read_bytes: list[int]
    writes: list[int]
    write_bytes: list[int]
    syncs: list[int]


@dataclass(frozen=True)
class Summary:
    """What a trace shows."""

    name: str
    manifest: Manifest
    roles: list[Group]  # in the order of ROLES, then "none"; only those with files or events
    files: list[Group]  # the files with events, most bytes moved first
    bin_s: float
    rates: dict[str, Rates]  # by the name of the role
    global_syncs: int  # sync and syncfs calls, which concern all files

    def to_json(self, by: str = "role") -> dict[str, Any]:
        """Return everything as JSON-able data; ``by`` is "role", "file" or "both"."""
        about = self.manifest.model_dump(mode="json", exclude={"files", "parquet"})
        data: dict[str, Any] = {"trace": {"name": self.name, "files": len(self.manifest.files), **about}}
        if by in ("role", "both"):
            data["roles"] = [_group_json(group) for group in self.roles]
            data["global_syncs"] = self.global_syncs
            data["rates"] = {
                "bin_s": self.bin_s,
                "roles": {name: asdict(rates) for name, rates in self.rates.items()},
            }
        if by in ("file", "both"):
            data["files"] = [_group_json(group) for group in self.files]
        return data


def _group_json(group: Group) -> dict[str, Any]:
    return {
        **asdict(group),
        "sync_share": round(group.sync_share, 6),
        "overwrite_share": round(group.overwrite_share, 6),
    }


def summarise(trace: Trace, files: int | None = None) -> Summary:
    """Return the summary of ``trace``, with the ``files`` busiest files (default: all that have events).

    Raises InputError if the trace is damaged.
    """
    manifest = trace.manifest
    columns = trace.columns("t", "dur", "op", "flags", "file", "offset", "size")
    ids_of: dict[str, list[int]] = {}
    for file in manifest.files:
        ids_of.setdefault(file.role or NO_ROLE, []).append(file.id)
    names = [name for name in (*ROLES, NO_ROLE) if name in ids_of]
    role_of = np.array([names.index(file.role or NO_ROLE) for file in manifest.files], np.int64)
    counts = _Counts(manifest, columns)
    bin_s, rates = _rates(manifest, columns, role_of, names)
    busiest = np.argsort(-counts.moved, kind="stable")
    busiest = busiest[counts.events[busiest] > 0][:files]
    return Summary(
        name=trace.name,
        manifest=manifest,
        roles=[counts.group(name, None if name == NO_ROLE else name, ids_of[name]) for name in names],
        files=[counts.group(manifest.files[i].path, manifest.files[i].role, [int(i)]) for i in busiest],
        global_syncs=counts.global_syncs,
        bin_s=bin_s,
        rates=rates,
    )


def _rates(
    manifest: Manifest, columns: Columns, role_of: Ints, names: Sequence[str]
) -> tuple[float, dict[str, Rates]]:
    last = int(columns["t"][-1]) + 1 if len(columns["t"]) else 0
    length = max(manifest.duration_ns, last, 1)
    width = 1_000_000_000
    while (bins := -(-length // width)) > MOST_BINS:
        width *= 2
    has_file = columns["file"] >= 0
    # Sorted by time, so the bins' edges are found faster than each event's bin by division.
    edges = np.searchsorted(columns["t"], np.arange(1, bins, dtype=np.int64) * width)
    bin_of = np.repeat(np.arange(bins), np.diff(edges, prepend=0, append=len(columns["t"])))
    key = (role_of * bins)[columns["file"][has_file]] + bin_of[has_file]
    op, size = columns["op"][has_file], columns["size"][has_file]

    def per_bin(mask: Bools, values: Ints | None = None) -> Ints:
        return _sum_by(key[mask], None if values is None else values[mask], bins * len(names))

    reads, writes, syncs = op == Op.READ, op == Op.WRITE, np.isin(op, _SYNCS)
    series = [per_bin(reads), per_bin(reads, size), per_bin(writes), per_bin(writes, size), per_bin(syncs)]
    return width / 1e9, {
        name: Rates(*(one[index * bins : (index + 1) * bins].tolist() for one in series))
        for index, name in enumerate(names)
    }


class _Counts:
    """Per-file counts of everything that ``Group`` shows."""

    def __init__(self, manifest: Manifest, columns: Columns) -> None:
        self.manifest = manifest
        self.n = len(manifest.files)
        self.alignments = sorted({*ALIGNMENTS, *manifest.page_size.values()})
        file, op = columns["file"], columns["op"]
        everywhere = columns["t"][(file < 0) & (op == Op.SYNC)]
        self.global_syncs = len(everywhere)
        # From here on events are sorted by file, then time. 16-bit keys are sorted by radix, which is quick.
        order = np.argsort(file.astype(np.int16) if self.n < 2**15 else file, kind="stable")
        order = order[int(np.count_nonzero(file < 0)) :]
        self.file = file[order].astype(np.int64)
        self.op = op[order]
        self.t = columns["t"][order]
        self.offset = columns["offset"][order]
        self.size = columns["size"][order]
        self.flags = columns["flags"][order]

        self.events = _sum_by(self.file, None, self.n)
        self.kinds = _sum_by(self.file * 16 + self.op, None, 16 * self.n).reshape(-1, 16)
        reads, writes = self.op == Op.READ, self.op == Op.WRITE
        base = self._page_base(reads | writes)
        self.reads, self.writes = _KindCounts(self, reads, base), _KindCounts(self, writes, base)
        self.pages = _union(_merge(self.reads.runs, self.writes.runs), self.n)
        self.moved = self.reads.bytes + self.writes.bytes
        self.is_sync = np.isin(self.op, _SYNCS)
        synced = np.flatnonzero(writes & self._synced(everywhere))
        self.sync_writes = _sum_by(self.file[synced], None, self.n)
        self.sync_write_bytes = _sum_by(self.file[synced], self.size[synced], self.n)
        self.overwritten = self._overwritten(writes)
        # Durations of syncs, those of file i at sync_start[i] .. sync_start[i + 1].
        self.sync_dur = columns["dur"][order[self.is_sync]]
        self.sync_start = np.searchsorted(self.file[self.is_sync], np.arange(self.n + 1))

    def group(self, name: str, role: str | None, ids: list[int]) -> Group:
        """Return the sums over the files ``ids``."""
        chosen = np.array(ids)
        files = [self.manifest.files[i] for i in ids]
        kinds = self.kinds[chosen].sum(axis=0)
        durations = [self.sync_dur[self.sync_start[i] : self.sync_start[i + 1]] for i in ids]
        return Group(
            name=name,
            role=role,
            files=len(ids),
            size_start=sum(file.size_start for file in files),
            size_end=sum(file.size_end if file.size_end >= 0 else file.size_start for file in files),
            reads=self.reads.transfers(chosen),
            writes=self.writes.transfers(chosen),
            syncs=int(sum(kinds[op] for op in _SYNCS)),
            sync_latency_ms=_latencies(np.concatenate(durations)),
            sync_writes=int(self.sync_writes[chosen].sum()),
            sync_write_bytes=int(self.sync_write_bytes[chosen].sum()),
            overwritten_bytes=int(self.overwritten[chosen].sum()),
            pages=int(self.pages[chosen].sum()),
            page_size=self.manifest.page_size.get(role) if role is not None else None,  # type: ignore[call-overload]
            operations={op.name.lower(): int(kinds[op]) for op in Op if kinds[op]},
        )

    def _page_base(self, chosen: Bools) -> Ints:
        """Return where each file's pages start in one numbering of the pages of all files."""
        ends = np.zeros(self.n, np.int64)
        starts = np.searchsorted(self.file, np.flatnonzero(self.events))  # of the files that have events
        if len(starts):
            pages = np.where(chosen, (self.offset + self.size) >> _PAGE_BITS, 0) + 1
            ends[self.events > 0] = np.maximum.reduceat(pages, starts)
        if float(ends.sum(dtype=np.float64)) > 2.0**62:
            raise InputError("the trace's offsets are larger than any file system allows")
        base: Ints = np.cumsum(ends) - ends
        return base

    def _synced(self, everywhere: Ints) -> Bools:
        """Say of each event whether its file is open for sync, or a sync of the file comes soon."""
        n = len(self.file)
        soon: Bools = (self.flags & int(Flag.SYNC | Flag.DSYNC)) != 0
        if n and self.is_sync.any():
            place = np.where(self.is_sync, np.arange(n), n - 1)
            following = np.minimum.accumulate(place[::-1])[::-1]  # n - 1 also stands for "none"
            soon |= (
                self.is_sync[following]
                & (self.file[following] == self.file)
                & (self.t[following] - self.t <= SYNC_WITHIN_NS)
            )
        if len(everywhere):
            index = np.searchsorted(everywhere, self.t)
            after = everywhere[np.minimum(index, len(everywhere) - 1)]
            soon |= (index < len(everywhere)) & (after - self.t <= SYNC_WITHIN_NS)
        return soon

    def _overwritten(self, writes: Bools) -> Ints:
        """Return the bytes written below the file's size at that time, per file.

        The size follows from that at the start, writes, copies, allocations that extend, and truncations.
        """
        cuts = (self.op == Op.TRUNCATE) | (self.op == Op.CREATE)
        extends = (self.op == Op.FALLOCATE) & ((self.flags & int(Flag.KEEP_SIZE | Flag.PUNCH)) == 0)
        rows = np.flatnonzero(writes | cuts | extends | (self.op == Op.COPY))
        if not len(rows):
            return np.zeros(self.n, np.int64)
        file, cut, offset, size = self.file[rows], cuts[rows], self.offset[rows], self.size[rows]
        end = np.where(cut, np.where(self.op[rows] == Op.CREATE, 0, size), offset + size)
        # A segment is a time in which a file only grows: it begins with the file or with a cut.
        begins = cut | np.r_[True, file[1:] != file[:-1]]
        segment = np.cumsum(begins) - 1
        size_start = np.array([file.size_start for file in self.manifest.files], np.int64)
        initial = np.where(cut, end, size_start[file])[begins]
        after = _running_maximum(np.maximum(end, initial[segment]), segment)
        before = np.r_[0, after[:-1]]
        before[begins] = initial
        replaced = np.clip(before - offset, 0, size)
        replaced[~writes[rows]] = 0
        return _sum_by(file, replaced, self.n)


class _KindCounts:
    """Per-file counts of reads, or of writes."""

    def __init__(self, all_: _Counts, mask: Bools, base: Ints) -> None:
        rows = np.flatnonzero(mask)
        n = all_.n
        file, offset, size = all_.file[rows], all_.offset[rows], all_.size[rows]
        end = offset + size
        self.count = _sum_by(file, None, n)
        self.bytes = _sum_by(file, size, n)
        bucket = np.frexp(size.astype(np.float64))[1]  # 0 for 0, else 1 + floor(log2(size))
        self.sizes = _sum_by(file * _BUCKETS + bucket, None, _BUCKETS * n).reshape(-1, _BUCKETS)
        self.size_bytes = _sum_by(file * _BUCKETS + bucket, size, _BUCKETS * n).reshape(-1, _BUCKETS)
        follows = (
            np.r_[False, (file[1:] == file[:-1]) & (offset[1:] == end[:-1])] if len(rows) else mask[rows]
        )
        self.sequential = _sum_by(file[follows], None, n)
        self.aligned = {
            to: _sum_by(file[_multiples(offset, to) & _multiples(size, to)], None, n)
            for to in all_.alignments
        }
        here = base[file]
        first, last = here + (offset >> _PAGE_BITS), here + ((end - 1) >> _PAGE_BITS) + 1
        last = np.where(size == 0, first, last)  # nothing moved, no page touched
        order = np.argsort(first)
        self.runs = tuple(values[order] for values in (first, last, file))
        self.pages = _union(self.runs, n)

    def transfers(self, ids: npt.NDArray[np.int64]) -> Transfers:
        """Return the sums over the files ``ids``."""
        count = int(self.count[ids].sum())
        sizes, size_bytes = self.sizes[ids].sum(axis=0), self.size_bytes[ids].sum(axis=0)
        return Transfers(
            count=count,
            bytes=int(self.bytes[ids].sum()),
            sizes={1 << (b - 1) if b else 0: int(sizes[b]) for b in range(_BUCKETS) if sizes[b]},
            size_bytes={1 << (b - 1) if b else 0: int(size_bytes[b]) for b in range(_BUCKETS) if sizes[b]},
            sequential=_share(int(self.sequential[ids].sum()), count),
            aligned={to: _share(int(aligned[ids].sum()), count) for to, aligned in self.aligned.items()},
            pages=int(self.pages[ids].sum()),
        )


def _multiples(values: Ints, of: int) -> Bools:
    # Division is slow; most alignments are powers of two.
    rest = values & (of - 1) if of & (of - 1) == 0 else values % of
    multiples: Bools = rest == 0
    return multiples


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _sum_by(key: Ints, values: Ints | None, length: int) -> Ints:
    """Return how often each key occurs, or the sum of its ``values`` (exact below 2^53)."""
    counted: Ints = np.bincount(key, values, minlength=length).astype(np.int64)
    return counted


def _running_maximum(values: Ints, segment: Ints) -> Ints:
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


_Runs = tuple[Ints, ...]  # start and end page, file; sorted by start


def _merge(a: _Runs, b: _Runs) -> _Runs:
    joined = [np.concatenate(pair) for pair in zip(a, b, strict=True)]
    order = np.argsort(joined[0], kind="stable")  # two sorted halves: merged in linear time
    return tuple(values[order] for values in joined)


def _union(runs: _Runs, n: int) -> Ints:
    """Return the number of different pages in ``runs``, per file."""
    start, end, file = runs
    if not len(start):
        return np.zeros(n, np.int64)
    seen = np.r_[0, np.maximum.accumulate(end)[:-1]]
    return _sum_by(file, np.maximum(end - np.maximum(start, seen), 0), n)


def _latencies(durations: Ints) -> Latencies | None:
    if not len(durations):
        return None
    p50, p90, p99 = np.percentile(durations, (50, 90, 99))
    values = (durations.mean(), p50, p90, p99, durations.max())
    return Latencies(len(durations), *(round(float(value) / 1e6, 4) for value in values))
