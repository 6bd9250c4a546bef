"""What a trace shows: sizes, sync, sequence, overwriting, alignment, working set, rates; by role and by file.

The events are counted a part at a time, by NumPy where their order matters and by Polars where it does not;
so a trace of any length takes about the same memory. The definitions are in docs/trace-format.md ("What
`ztune trace show` computes") and in ``GroupSummary``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ztune.errors import InputError
from ztune.onhost.words import ROLES
from ztune.trace.manifest import EVENTS_FILE, Manifest, TraceFile
from ztune.trace.pages import READ, WRITTEN, Pages
from ztune.trace.reader import Columns, Trace
from ztune.trace.schema import Flag, Op, Via

NO_ROLE = "none"  # the name under which files without a role are shown
ALIGNMENTS = (512, 4096, 8192)
# A sync within this time finds a write still in the open or a quiescing transaction group, so the write goes
# through the intent log: the default of zfs_txg_timeout (zfs(4)).
SYNC_WITHIN_NS = 5_000_000_000
MOST_BINS = 4096  # the bins of the rates double from 1 s until they are no more


@dataclass(frozen=True)
class CallSizes:
    """Sizes of the reads or writes that were asked for by one call."""

    count: int
    bytes: int
    mean: float  # bytes
    stdev: float  # bytes; of all these calls, not of a sample
    sizes: dict[int, int]  # as in ``Transfers``


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
    mean: float  # bytes
    stdev: float  # bytes; of all calls, not of a sample
    by_call: dict[str, CallSizes]  # "write", "pwrite", "aio", "io_uring": those that occur, most calls first


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
class GroupSummary:
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
    file_sizes: dict[int, int]  # as ``Transfers.sizes``, of the files that were there at the end
    file_size_bytes: dict[int, int]  # the same buckets → bytes

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
    roles: list[GroupSummary]  # in the order of ROLES, then "none"; only those with files or events
    files: list[GroupSummary]  # the files with events, most bytes moved first
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


def _group_json(group: GroupSummary) -> dict[str, Any]:
    return {
        **asdict(group),
        "sync_share": round(group.sync_share, 6),
        "overwrite_share": round(group.overwrite_share, 6),
    }


_LARGEST = 2.0**62  # bytes in all; so that nothing that is added up is beyond 64 bits
_SECOND = 1_000_000_000  # ns
_BLOCK = 1 << 16  # events at a time, of which all that is made of them stays in the processor's cache
_NEVER = np.iinfo(np.int64).max

_OP, _SIZE, _N = pl.col("op"), pl.col("size"), pl.col("n")
_KINDS = {"read": Op.READ, "write": Op.WRITE}
_SYNCS = [int(op) for op in (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)]
_IS_SYNC = np.isin(np.arange(256), _SYNCS)
_IS_CUT = np.isin(np.arange(256), (Op.TRUNCATE, Op.CREATE))
_IS_CHANGE = _IS_SYNC | _IS_CUT | np.isin(np.arange(256), (Op.WRITE, Op.COPY, Op.FALLOCATE))
# How a call was made, as one number. From its lowest bit on: the operation; the call, which is 1 where it
# named the offset, and twice ``via``; whether it was open for synchronous writes; which alignments fit.
_CALL, _DIRECTLY, _FITS = 4, 7, 8
# Syncs that took about as long: a square root is never less for more, and at 10 ms these lie 0.2 ms apart.
_ABOUT = pl.col("dur").cast(pl.Float64).sqrt().cast(pl.Int64)
_SHARES = (0.5, 0.9, 0.99)
_ROLES = (*ROLES, NO_ROLE)
_SYNCHRONOUS = ("sync_writes", "sync_write_bytes")


class _Sum:
    """Rows by ``keys``: their other columns are added up, and of ``most`` the greatest is kept."""

    def __init__(self, *keys: str, most: str = "") -> None:
        self._keys = keys
        self._most = [most] if most else []
        self._frames: list[pl.DataFrame] = []
        self._rows = self._summed = 0

    def add(self, frame: pl.DataFrame) -> None:
        self._frames.append(frame)
        self._rows += len(frame)
        if self._rows > 2 * self._summed + (1 << 16):
            self.total()

    def total(self) -> pl.DataFrame:
        """Return a row for each of the keys there are, sorted by them."""
        grouped = pl.concat(self._frames).group_by(self._keys)
        found = grouped.agg(pl.exclude(*self._keys, *self._most).sum(), *map(pl.max, self._most))
        self._frames = [found.sort(self._keys)]
        self._rows = self._summed = len(found)
        return self._frames[0]


class _Tally:
    """What is counted of the files ``entries``, part by part of their events.

    What one part leaves to the next is little: where the last call on each file stopped, how large it is, and
    the writes of the last 5 s, since a sync may come yet.
    """

    def __init__(self, entries: Sequence[TraceFile], alignments: Sequence[int]) -> None:
        self._alignments = alignments
        # The last is what -1, no file, indexes.
        self._roles = np.array([_ROLES.index(entry.role or NO_ROLE) for entry in entries] + [0], np.int64)
        self._size = np.array([entry.size_start for entry in entries], np.int64)
        self._stops = {kind: np.full(len(entries), -1) for kind in _KINDS}
        self._waiting: Columns = {name: np.empty(0, np.int64) for name in ("t", "file", "size")}
        self._last_global = np.empty(0, np.int64)
        self._moved = 0.0
        self._others = ThreadPoolExecutor(2)
        self._under_way: dict[str, Future[None]] = {}
        self.pages = Pages([max(entry.size_start, entry.size_end) for entry in entries])
        self.end = 0  # ns
        self.global_syncs = 0
        names = (*_SYNCHRONOUS, "overwritten", *(f"{kind}_sequential" for kind in _KINDS))
        self.of_file = {name: np.zeros(len(entries), np.int64) for name in names}
        self.sizes = _Sum("file", "how", "size")
        self.rates = _Sum("second", "role", "op")
        self.syncs = _Sum("file", "about", most="longest")

    def add(self, part: Columns) -> None:
        """Count the events of ``part``, which come after those before. Raises InputError."""
        self._moved += float(part["size"].sum(dtype=np.float64))
        if self._moved > _LARGEST:
            raise InputError("the trace's sizes are larger than any file system allows")
        self.end = int(part["t"][-1]) + 1 if len(part["t"]) else self.end
        everything = part["t"][(part["op"] == Op.SYNC) & (part["file"] < 0)]
        self.global_syncs += len(everything)
        if len(everything):
            part = _rows(part, part["file"] >= 0)
        self._beside(self._count, part)
        globally = np.r_[self._last_global, everything]
        self._last_global = globally[-1:]
        op = part["op"]
        reads = _by_file(part, op == Op.READ, "file", "offset", "size")
        self._continue("read", reads)
        changes = _by_file(part, _IS_CHANGE[op], "t", "op", "flags", "file", "offset", "size")
        writes = changes["op"] == Op.WRITE
        written = _rows({name: changes[name] for name in reads}, writes)
        self._continue("write", written)
        if len(changes["t"]):
            self._overwrite(changes, writes)
        self._sync(changes, writes, globally)
        self._beside(self._note, reads, written)

    def _beside(self, count: Callable[..., None], *parts: Columns) -> None:
        """Have ``count`` run beside what follows, once it is done with the ``parts`` of before."""
        if (before := self._under_way.get(count.__name__)) is not None:
            before.result()
        self._under_way[count.__name__] = self._others.submit(count, *parts)

    def finish(self) -> None:
        """Wait until all is counted."""
        for one in self._under_way.values():
            one.result()
        self._others.shutdown()

    def _note(self, reads: Columns, writes: Columns) -> None:
        self.pages.add(READ, *reads.values())
        self.pages.add(WRITTEN, *writes.values())

    def _count(self, part: Columns) -> None:
        """Count what needs no order: events of a kind and size, and of a second; how long syncs took."""
        how = np.empty(len(part["op"]), np.uint32)
        for begin in range(0, len(how), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            flags, offset = part["flags"][block], part["offset"][block]
            positioned = (flags & int(Flag.POSITIONED)) != 0
            directly = (flags & int(Flag.SYNC | Flag.DSYNC)) != 0
            mine = part["op"][block].astype(np.uint32)
            mine |= (part["via"][block].astype(np.uint32) * 2 + positioned) << _CALL
            mine |= directly.astype(np.uint32) << _DIRECTLY
            for bit, to in enumerate(self._alignments, _FITS):
                over = offset & (to - 1) if to & (to - 1) == 0 else offset % to
                mine |= (over == 0).astype(np.uint32) << bit
            how[block] = mine
        named = {name: part[name] for name in ("t", "dur", "op", "file", "size")}
        events = pl.DataFrame({**named, "how": how, "role": self._roles[part["file"]]}).lazy()
        syncs = events.filter(_OP.is_in(_SYNCS)).group_by("file", about=_ABOUT)
        took = pl.col("dur").cast(pl.Float64)
        sizes, rates, about = pl.collect_all(
            [
                events.group_by("file", "how", "size").agg(n=pl.len().cast(pl.Int64)),
                events.filter(_OP.is_in([*_KINDS.values(), *_SYNCS]))
                .group_by("role", "op", second=pl.col("t") // _SECOND)
                .agg(n=pl.len().cast(pl.Int64), bytes=_SIZE.sum()),
                syncs.agg(n=pl.len().cast(pl.Int64), took=took.sum(), longest=pl.col("dur").max()),
            ],
            engine="streaming",
        )
        self.sizes.add(sizes)
        self.rates.add(rates)
        self.syncs.add(about)

    def _continue(self, kind: str, calls: Columns) -> None:
        """Count the ``calls`` of a kind that start where the last one on the file stopped."""
        file, offset = calls["file"], calls["offset"]
        if not len(file):
            return
        first, last = _ends(file)
        stop = offset + calls["size"]
        before = np.empty_like(stop)
        before[1:] = stop[:-1]
        before[first] = self._stops[kind][file[first]]
        self._stops[kind][file[last]] = stop[last]
        self.of_file[f"{kind}_sequential"] += np.bincount(file[before == offset], minlength=len(self._size))

    def _overwrite(self, changes: Columns, writes: npt.NDArray[np.bool_]) -> None:
        """Count what was written below the size that the file had just then, and keep up with the size.

        That is its size at the start and what writes, copies, allocations and truncations made of it.
        """
        file, op, offset, size = (changes[name] for name in ("file", "op", "offset", "size"))
        grown_to = offset + size
        grown_to[op == Op.CREATE] = 0
        cuts = op == Op.TRUNCATE
        grown_to[cuts] = size[cuts]
        keeps = (op == Op.FALLOCATE) & ((changes["flags"] & int(Flag.KEEP_SIZE | Flag.PUNCH)) != 0)
        grown_to[_IS_SYNC[op] | keeps] = -1
        cut = _IS_CUT[op]
        first, _ = _ends(file)
        mine = file[first]
        resized = np.maximum.reduceat(grown_to, first) > self._size[mine]
        resized |= np.logical_or.reduceat(cut, first)
        overwritten = self.of_file["overwritten"]
        written = np.where(writes, size, 0)
        # Where a file stays as large as it is, all that is written to it is below its size.
        overwritten[mine[~resized]] += np.add.reduceat(written, first)[~resized]
        if not resized.any():
            return
        some = np.repeat(resized, np.diff(np.r_[first, len(file)]))
        changed = mine[resized]
        # In a segment a file only grows. It begins with a cut; the first is the size from before.
        events = pl.DataFrame(
            {
                "file": np.r_[changed, file[some]],
                "begins": np.r_[np.ones(len(changed), bool), cut[some]],
                "grown_to": np.r_[self._size[changed], grown_to[some]],
                "offset": np.r_[np.zeros(len(changed), np.int64), offset[some]],
                "written": np.r_[np.zeros(len(changed), np.int64), written[some]],
            }
        )
        found = (
            events.lazy()
            .sort("file", maintain_order=True)
            .with_columns(large=pl.col("grown_to").cum_max().over(pl.col("begins").cum_sum()))
            # What begins a segment writes nothing, so it does not matter what comes before it.
            .with_columns(below=pl.col("large").shift().fill_null(0) - pl.col("offset"))
            .group_by("file", maintain_order=True)
            .agg(over=pl.col("below").clip(0, pl.col("written")).sum(), large=pl.col("large").last())
            .collect()
        )  # fmt: skip
        overwritten[found["file"].to_numpy()] += found["over"].to_numpy()
        self._size[found["file"].to_numpy()] = found["large"].to_numpy()

    def _sync(self, changes: Columns, writes: npt.NDArray[np.bool_], globally: npt.NDArray[np.int64]) -> None:
        """Count the writes that a sync of their file, or one of everything, follows within 5 s.

        ``globally``: when everything was synced. Writes that are synchronous by themselves are not counted.
        """
        t, file, is_sync = changes["t"], changes["file"], _IS_SYNC[changes["op"]]
        # The place of the next sync at or after each; the last is none.
        places = np.where(is_sync, np.arange(len(t)), len(t))
        following = np.minimum.accumulate(places[::-1])[::-1]
        directly = (changes["flags"] & int(Flag.SYNC | Flag.DSYNC)) != 0
        mine = np.flatnonzero(writes & ~directly)
        if len(mine):
            following = following[mine]
            safe = np.minimum(following, len(t) - 1)
            until = np.where((following < len(t)) & (file[safe] == file[mine]), t[safe], _NEVER)
        else:
            until = np.empty(0, np.int64)
        begins = is_sync.nonzero()[0][::-1]
        next_sync = np.full(len(self._size), _NEVER)
        next_sync[file[begins]] = t[begins]  # the first of each file, as it comes last here
        waiting = self._waiting
        now = {name: np.concatenate([waiting[name], changes[name][mine]]) for name in waiting}
        until = np.concatenate([next_sync[waiting["file"]], until])
        if len(globally):
            until = np.minimum(until, np.r_[globally, _NEVER][np.searchsorted(globally, now["t"])])
        synced = until - now["t"] <= SYNC_WITHIN_NS
        np.add.at(self.of_file["sync_writes"], now["file"][synced], 1)
        np.add.at(self.of_file["sync_write_bytes"], now["file"][synced], now["size"][synced])
        self._waiting = _rows(now, ~synced & (now["t"] >= self.end - 1 - SYNC_WITHIN_NS))

    def totals(self) -> pl.DataFrame:
        """Return what adds up of each file that has events, with its role."""
        how = pl.col("how")
        op = how % (1 << _CALL)
        counts: list[pl.Expr] = []
        for kind, code in _KINDS.items():
            mine = op == int(code)
            counts += [
                _N.filter(mine).sum().alias(f"{kind}_count"),
                (_N * _SIZE).filter(mine).sum().alias(f"{kind}_bytes"),
            ]
            for bit, to in enumerate(self._alignments, _FITS):
                fits = mine & (how // (1 << bit) % 2 == 1) & (_SIZE % to == 0)
                counts.append(_N.filter(fits).sum().alias(f"{kind}_{to}"))
        directly = (op == int(Op.WRITE)) & (how // (1 << _DIRECTLY) % 2 == 1)
        found = (
            self.sizes.total()
            .lazy()
            .group_by("file")
            .agg(
                *counts,
                _N.filter(op.is_in(_SYNCS)).sum().alias("syncs"),
                _N.filter(directly).sum().alias("sync_writes"),
                (_N * _SIZE).filter(directly).sum().alias("sync_write_bytes"),
            )
            .sort("file")
            .collect()
        )
        file = found["file"].to_numpy()
        pages = self.pages.counts()
        more = {"pages": READ | WRITTEN, "read_pages": READ, "write_pages": WRITTEN}
        return found.with_columns(
            pl.Series("role", self._roles[file]),
            *(pl.Series(name, values[file]) for name, values in self.of_file.items() if name not in found),
            *((pl.col(name) + pl.Series(self.of_file[name][file])).alias(name) for name in _SYNCHRONOUS),
            *(pl.Series(name, pages[kinds][file]) for name, kinds in more.items()),
        )


def _rows(part: Columns, rows: npt.NDArray[Any]) -> Columns:
    return {name: values[rows] for name, values in part.items()}


def _by_file(part: Columns, rows: npt.NDArray[np.bool_], *names: str) -> Columns:
    """Return the columns ``names`` of ``rows`` sorted by file, those of a file in the order they had."""
    chosen = np.flatnonzero(rows)
    file = part["file"][chosen]
    if len(file) and file.max() < 1 << 16:
        file = file.astype(np.uint8 if file.max() < 1 << 8 else np.uint16)  # many times faster to sort
    chosen = chosen[np.argsort(file, kind="stable")]
    return {name: part[name][chosen] for name in names}


def _ends(file: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the places of the first and of the last row of each file; rows are sorted by it."""
    new = np.flatnonzero(file[1:] != file[:-1]) + 1
    return np.r_[0, new], np.r_[new, len(file)] - 1


class _Counts:
    """What was counted, by ``key``: "role" (a place in ``_ROLES``) or "file"."""

    def __init__(
        self,
        tally: _Tally,
        totals: pl.DataFrame,
        key: str,
        alignments: Sequence[int],
        calls: Mapping[int, str],
    ) -> None:
        self._alignments = alignments
        self._calls = calls
        self._totals = _by(totals.group_by(key).agg(pl.exclude("role", "file").sum()), key)
        self._sizes: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
        sizes = tally.sizes.total().lazy().join(totals.lazy().select("file", "role"), on="file")
        asked = pl.col("how") % (1 << _DIRECTLY)
        for one, call, size, n in (
            sizes.group_by(key, "size", asked=asked).agg(_N.sum())
            .select(key, "asked", "size", "n").sort("size").collect().iter_rows()
        ):  # fmt: skip
            self._sizes[one].setdefault(call, []).append((size, n))

    def busiest(self) -> list[int]:
        """Return the keys, those first that moved the most bytes."""
        moved = {one: total["read_bytes"] + total["write_bytes"] for one, total in self._totals.items()}
        return sorted(moved, key=lambda one: (-moved[one], one))

    def group(
        self,
        one: int,
        name: str,
        entries: list[TraceFile],
        page_size: int | None,
        latencies: Latencies | None,
    ) -> GroupSummary:
        """Return the counts of ``one``, the files ``entries``, as ``name``."""
        total, kinds = self._totals.get(one, defaultdict(int)), self._sizes[one]
        left: dict[int, list[int]] = defaultdict(list)
        for size in sorted(_size_end(entry) for entry in entries if not entry.deleted):
            left[_bucket(size)].append(size)
        return GroupSummary(
            name=name,
            role=entries[0].role,
            files=len(entries),
            size_start=sum(entry.size_start for entry in entries),
            size_end=sum(map(_size_end, entries)),
            file_sizes={low: len(sizes) for low, sizes in left.items()},
            file_size_bytes={low: sum(sizes) for low, sizes in left.items()},
            reads=self._transfers(one, "read", Op.READ),
            writes=self._transfers(one, "write", Op.WRITE),
            syncs=total["syncs"],
            sync_latency_ms=latencies,
            sync_writes=total["sync_writes"],
            sync_write_bytes=total["sync_write_bytes"],
            overwritten_bytes=total["overwritten"],
            pages=total["pages"],
            page_size=page_size,
            operations={
                op.name.lower(): sum(n for _, n in found)
                for op in Op
                if (found := [one for asked, sizes in kinds.items() if asked % 16 == op for one in sizes])
            },
        )

    def _transfers(self, one: int, kind: str, op: Op) -> Transfers:
        total = self._totals.get(one, defaultdict(int))
        count = total[f"{kind}_count"]
        found = {asked // 16: sizes for asked, sizes in self._sizes[one].items() if asked % 16 == op}
        together = sorted(size for sizes in found.values() for size in sizes)
        size_bytes: dict[int, int] = defaultdict(int)
        for size, n in together:
            size_bytes[_bucket(size)] += n * size
        everything = _sizes_of(together)
        by_call = [(self._calls[call].format(kind), _sizes_of(sizes)) for call, sizes in found.items()]
        return Transfers(
            count=count,
            bytes=total[f"{kind}_bytes"],
            sizes=everything.sizes,
            size_bytes=dict(size_bytes),
            sequential=_share(total[f"{kind}_sequential"], count),
            aligned={to: _share(total[f"{kind}_{to}"], count) for to in self._alignments},
            pages=total[f"{kind}_pages"],
            mean=everything.mean,
            stdev=everything.stdev,
            by_call=dict(sorted(by_call, key=lambda named: (-named[1].count, named[0]))),
        )


def _size_end(entry: TraceFile) -> int:
    return entry.size_end if entry.size_end >= 0 else entry.size_start


def _bucket(size: int) -> int:
    """Return the power of two that begins the bucket of ``size``; 0 for 0."""
    return 1 << (size.bit_length() - 1) if size else 0


def _sizes_of(counted: Iterable[tuple[int, int]]) -> CallSizes:
    """Return what ``counted`` comes to: sizes in bytes, smallest first, and how many calls had each."""
    sizes: dict[int, int] = defaultdict(int)
    count = total = squares = 0
    for size, n in counted:
        sizes[_bucket(size)] += n
        count, total, squares = count + n, total + n * size, squares + n * size * size
    if not count:
        return CallSizes(0, 0, 0.0, 0.0, {})
    # In whole numbers, which are exact however large they are.
    stdev = math.sqrt(count * squares - total * total) / count
    return CallSizes(count, total, round(total / count, 3), round(stdev, 3), dict(sizes))


def _by(found: pl.DataFrame, key: str) -> dict[int, dict[str, Any]]:
    return {row[key]: row for row in found.iter_rows(named=True)}


def summarise(trace: Trace, files: int | None = None) -> Summary:
    """Return the summary of ``trace``, with the ``files`` busiest files (default: all that have events).

    Raises InputError if the trace is damaged, or its sizes add up to more than 2^62.
    """
    manifest = trace.manifest
    alignments = sorted({*ALIGNMENTS, *manifest.page_size.values()})
    of_role: dict[str, list[TraceFile]] = {name: [] for name in (*ROLES, NO_ROLE)}
    for entry in manifest.files:
        of_role[entry.role or NO_ROLE].append(entry)
    of_role = {name: entries for name, entries in of_role.items() if entries}
    tally = _Tally(manifest.files, alignments)
    for part in trace.parts("t", "dur", "op", "via", "flags", "file", "offset", "size"):
        tally.add(part)
    tally.finish()
    totals = tally.totals()
    calls = _calls(manifest)
    by_role, by_file = (_Counts(tally, totals, key, alignments, calls) for key in ("role", "file"))
    busiest = [manifest.files[one] for one in by_file.busiest()[:files]]
    latencies = _latencies(trace, tally.syncs.total(), [entry.id for entry in busiest])

    def page_size(entry: TraceFile) -> int | None:
        return manifest.page_size.get(entry.role) if entry.role is not None else None

    bin_s, rates = _rates(max(manifest.duration_ns, tally.end, 1), tally.rates.total(), list(of_role))
    return Summary(
        name=trace.name,
        manifest=manifest,
        roles=[
            by_role.group(_ROLES.index(name), name, of, page_size(of[0]), latencies.get(_ROLES.index(name)))
            for name, of in of_role.items()
        ],
        files=[
            by_file.group(one.id, one.path, [one], page_size(one), latencies.get(len(_ROLES) + one.id))
            for one in busiest
        ],
        global_syncs=tally.global_syncs,
        bin_s=bin_s,
        rates=rates,
    )


def _calls(manifest: Manifest) -> dict[int, str]:
    """Return ``_CALL`` → the name of the call, with {} for read or write."""
    plain = "{0}" if manifest.version >= 3 else "{0} or p{0}"  # older traces don't tell them apart
    names = {Via.SYSCALL: (plain, "p{0}"), Via.AIO: ("aio",) * 2, Via.URING: ("io_uring",) * 2}
    return {2 * via + positioned: both[positioned] for via, both in names.items() for positioned in (0, 1)}


def _rates(length: int, counted: pl.DataFrame, names: list[str]) -> tuple[float, dict[str, Rates]]:
    """Return the seconds of a bin and the rates of the roles ``names``; ``length``: of the trace, ns."""
    width = 1
    while (bins := -(-length // (width * _SECOND))) > MOST_BINS:
        width *= 2
    rates = {name: Rates(*([0] * bins for _ in range(5))) for name in names}
    for second, role, op, n, size in counted.select("second", "role", "op", "n", "bytes").iter_rows():
        mine, place = rates[_ROLES[role]], second // width
        if op == Op.READ:
            mine.reads[place] += n
            mine.read_bytes[place] += size
        elif op == Op.WRITE:
            mine.writes[place] += n
            mine.write_bytes[place] += size
        else:
            mine.syncs[place] += n
    return float(width), rates


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _latencies(trace: Trace, about: pl.DataFrame, files: Sequence[int]) -> dict[int, Latencies]:
    """Return how long syncs took by role, a place in ``_ROLES``, and of ``files``, by their number beyond it.

    ``about``: how many of each file took about as long. That tells between which of them a quantile lies, so
    that only those have to be looked at one by one, however many there are.
    """
    if not len(about):
        return {}
    roles = [_ROLES.index(entry.role or NO_ROLE) for entry in trace.manifest.files]
    groups = pl.DataFrame(
        {
            "file": [*range(len(roles)), *files],
            "group": [*roles, *(len(_ROLES) + one for one in files)],
        },
        schema={"file": pl.Int32, "group": pl.Int64},
    )
    counted = (
        about.join(groups, on="file")
        .group_by("group", "about")
        .agg(_N.sum(), pl.col("took").sum(), pl.col("longest").max())
        .sort("group", "about")
    )
    found = {}
    for (group,), rows in counted.group_by("group", maintain_order=True):
        found[group] = _Quantiles(rows)
    wanted = pl.DataFrame(
        [(group, one) for group, quantiles in found.items() for one in quantiles.wanted()],
        schema={"group": pl.Int64, "about": pl.Int64},
        orient="row",
    )
    exactly = (
        pl.scan_parquet(trace.path / EVENTS_FILE, glob=False)
        .filter(_OP.is_in(_SYNCS))
        .select("file", "dur", about=_ABOUT)
        .join(groups.lazy(), on="file")
        .join(wanted.lazy(), on=["group", "about"], how="semi")
        .group_by("group", "about", "dur")
        .agg(n=pl.len())
        .sort("dur")
        .collect(engine="streaming")
    )
    for (group,), rows in exactly.group_by("group", maintain_order=True):
        found[group].look(rows)
    return {group: quantiles.latencies() for group, quantiles in found.items()}


class _Quantiles:
    """Quantiles of the syncs ``rows``: those that took about as long, shortest first."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows
        self._about, self._n = rows["about"].to_numpy(), rows["n"].to_numpy()
        self._until = np.cumsum(self._n)
        self._exactly: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}

    def wanted(self) -> set[int]:
        """Return which have to be looked at one by one."""
        ends = [math.floor(self._place(share)) for share in _SHARES]
        ends += [math.ceil(self._place(share)) for share in _SHARES]
        return {int(self._about[np.searchsorted(self._until, end, side="right")]) for end in ends}

    def look(self, rows: pl.DataFrame) -> None:
        """Take how often each time occurs in what was ``wanted``, shortest first."""
        for (about,), mine in rows.group_by("about"):
            self._exactly[int(about)] = mine["dur"].to_numpy(), np.cumsum(mine["n"].to_numpy())

    def latencies(self) -> Latencies:
        count = int(self._until[-1])
        quantiles = []
        for share in _SHARES:
            place = self._place(share)
            low, high = (self._at(end) for end in (math.floor(place), math.ceil(place)))
            quantiles.append(low + (high - low) * (place - math.floor(place)))
        mean = float(self._rows["took"].sum()) / count
        values = (mean, *quantiles, int(self._rows["longest"].to_numpy().max()))
        return Latencies(count, *(round(float(value) / 1e6, 4) for value in values))

    def _place(self, share: float) -> float:
        return (int(self._until[-1]) - 1) * share

    def _at(self, place: int) -> float:
        """Return the time in ns of the one that ``place`` others are before."""
        row = int(np.searchsorted(self._until, place, side="right"))
        times, until = self._exactly[int(self._about[row])]
        before = int(self._until[row] - self._n[row])
        return float(times[np.searchsorted(until, place - before, side="right")])
