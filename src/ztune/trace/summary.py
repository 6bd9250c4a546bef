"""What a trace shows: sizes, sync, sequence, overwriting, alignment, working set, rates; by role and by file.

Polars counts the events, by file and by role. The definitions are in docs/trace-format.md ("What
`ztune trace show` computes") and in ``GroupSummary``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from ztune.errors import InputError
from ztune.onhost.words import ROLES
from ztune.trace.manifest import Manifest, TraceFile
from ztune.trace.reader import Trace
from ztune.trace.schema import Flag, Op, Via

NO_ROLE = "none"  # the name under which files without a role are shown
ALIGNMENTS = (512, 4096, 8192)
PAGE = 4096  # bytes; unit of the working set
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

_OP, _SIZE, _STOP = pl.col("op"), pl.col("size"), pl.col("stop")
_READ, _WRITE = _OP == Op.READ, _OP == Op.WRITE
_SYNC = _OP.is_in([int(Op.FSYNC), int(Op.FDATASYNC), int(Op.MSYNC)])
_CUT = _OP.is_in([int(Op.TRUNCATE), int(Op.CREATE)])
_ALLOCATES = (_OP == Op.FALLOCATE) & (pl.col("flags") & int(Flag.KEEP_SIZE | Flag.PUNCH) == 0)
_SYNCED = _WRITE & (
    (pl.col("flags") & int(Flag.SYNC | Flag.DSYNC) != 0) | (pl.col("until_sync") <= SYNC_WITHIN_NS)
)
_KINDS = {"read": _READ, "write": _WRITE}
# Which call it was: 1 where it named the offset, and twice ``via``. It lies in the flags, whose last is
# POSITIONED, with ``via`` put above it: so there is no further column to sort.
_CALL = pl.col("flags") // int(Flag.POSITIONED)
_FLAGS = 2 * int(Flag.POSITIONED)
_ASKED = _OP + 16 * _CALL  # with the operation below it, whose codes are less than 16


def _seen(events: pl.DataFrame, entries: Sequence[TraceFile]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the events on files, sorted by file, then time; and the times of syncs of everything.

    Each event has its file's role, where the one of its kind before it on the file stopped, the file's size
    just before it (from that at the start, writes, copies, allocations that extend it, and truncations), and
    the time until the next sync that concerns its file.
    """
    if events["size"].cast(pl.Float64).sum() > _LARGEST:
        raise InputError("the trace's sizes are larger than any file system allows")
    files = pl.DataFrame(
        {
            "file": [entry.id for entry in entries],
            "role": [entry.role or NO_ROLE for entry in entries],
            "size_start": [entry.size_start for entry in entries],
        },
        schema={"file": pl.Int32, "role": pl.Enum([*ROLES, NO_ROLE]), "size_start": pl.Int64},
    )
    everything = events.filter((pl.col("file") < 0) & (_OP == Op.SYNC)).select(global_sync="t")
    seen = (
        events.lazy()
        .join(files.lazy(), on="file", maintain_order="left")
        .join_asof(everything.lazy(), left_on="t", right_on="global_sync", strategy="forward")
        .sort("file", maintain_order=True)
        .with_columns(stop=pl.col("offset") + _SIZE)
        .with_columns(
            grown_to=pl.when(_OP == Op.CREATE)
            .then(0)
            .when(_OP == Op.TRUNCATE)
            .then(_SIZE)
            .when(_WRITE | (_OP == Op.COPY) | _ALLOCATES)
            .then(_STOP)
            .otherwise(-1),
            # In a segment a file only grows: it begins with the file, or with a cut.
            segment=_CUT.cum_sum().over("file"),
            continued=_STOP.shift().over("file", "op"),
            file_sync=pl.when(_SYNC).then("t").fill_null(strategy="backward").over("file"),
        )
        .with_columns(
            size_then=pl.max_horizontal(
                pl.col("grown_to").cum_max().shift().over("file", "segment"),
                pl.when(pl.col("segment") == 0).then("size_start"),
            ),
            until_sync=pl.min_horizontal("file_sync", "global_sync") - pl.col("t"),
        )
    )
    return seen.collect(), everything


def _totals(alignments: Sequence[int]) -> list[pl.Expr]:
    found = [
        _SYNCED.sum().alias("sync_writes"),
        _SIZE.filter(_SYNCED).sum().alias("sync_write_bytes"),
        (pl.col("size_then") - pl.col("offset")).clip(0, _SIZE).filter(_WRITE).sum().alias("overwritten"),
        _SYNC.sum().alias("syncs"),
    ]
    for kind, chosen in _KINDS.items():
        found += [
            chosen.sum().alias(f"{kind}_count"),
            _SIZE.filter(chosen).sum().alias(f"{kind}_bytes"),
            (chosen & (pl.col("offset") == pl.col("continued"))).sum().alias(f"{kind}_sequential"),
        ]
        for to in alignments:
            aligned = chosen & (pl.col("offset") % to == 0) & (_SIZE % to == 0)
            found.append(aligned.sum().alias(f"{kind}_{to}"))
    return found


def _pages(seen: pl.DataFrame) -> pl.LazyFrame:
    """Return how many different pages of each file were read, written, and either."""

    def beyond(*among: str) -> pl.Expr:
        """How many pages each touches that none does whose place is before it."""
        covered = pl.col("last").cum_max().shift().over("file", *among)
        return (pl.col("last") - pl.max_horizontal("first", covered)).clip(0)

    return (
        seen.lazy()
        .filter((_READ | _WRITE) & (_SIZE > 0))
        .select("file", "op", first=pl.col("offset") // PAGE, last=(_STOP - 1) // PAGE + 1)
        # Most places are used again and again: the longest of each says it all.
        .group_by("file", "op", "first")
        .agg(pl.col("last").max())
        .sort("file", "first")
        .with_columns(of_kind=beyond("op"), of_any=beyond())
        .group_by("file")
        .agg(
            pl.col("of_any").sum().alias("pages"),
            *(pl.col("of_kind").filter(one).sum().alias(f"{kind}_pages") for kind, one in _KINDS.items()),
        )
    )


def _counted(seen: pl.DataFrame, alignments: Sequence[int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what adds up of each file: its totals, and how many events it has of each call and size."""
    events = seen.lazy()
    totals = events.group_by("role", "file").agg(_totals(alignments)).join(_pages(seen), "file", "left")
    sizes = events.group_by("role", "file", "size", asked=_ASKED).agg(n=pl.len())
    return totals.fill_null(0).collect(), sizes.collect()


class _Counts:
    """What was counted, by ``key``: "role" or "file"."""

    def __init__(
        self,
        seen: pl.DataFrame,
        counted: tuple[pl.DataFrame, pl.DataFrame],
        key: str,
        alignments: Sequence[int],
        calls: Mapping[int, str],
    ) -> None:
        totals, sizes = counted
        self._alignments = alignments
        self._calls = calls
        self._totals = _by(totals.group_by(key).agg(pl.exclude("role", "file").sum()), key)
        took = pl.col("dur")
        quantiles = (took.quantile(share, "linear").alias(f"p{share}") for share in (0.5, 0.9, 0.99))
        syncs = seen.lazy().filter(_SYNC).group_by(key)
        self._syncs = _by(
            syncs.agg(took.mean().alias("mean"), *quantiles, took.max().alias("max")).collect(), key
        )
        self._sizes: dict[str | int, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
        for one, asked, size, n in (
            sizes.group_by(key, "asked", "size").agg(pl.col("n").sum()).sort("size").iter_rows()
        ):
            self._sizes[one].setdefault(asked, []).append((size, n))

    def busiest(self) -> list[str | int]:
        """Return the keys, those first that moved the most bytes."""
        moved = {one: total["read_bytes"] + total["write_bytes"] for one, total in self._totals.items()}
        return sorted(moved, key=lambda one: (-moved[one], one))

    def group(
        self, one: str | int, name: str, entries: list[TraceFile], page_size: int | None
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
            sync_latency_ms=_latencies(total["syncs"], self._syncs.get(one)),
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

    def _transfers(self, one: str | int, kind: str, op: Op) -> Transfers:
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


def _by(found: pl.DataFrame, key: str) -> dict[str | int, dict[str, Any]]:
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
    read = pl.DataFrame(trace.table(["t", "dur", "op", "via", "flags", "file", "offset", "size"]))
    flags = pl.col("flags") % _FLAGS + pl.col("via").cast(pl.UInt16) * _FLAGS
    events = read.with_columns(flags=flags).drop("via")
    seen, everything = _seen(events, manifest.files)
    counted = _counted(seen, alignments)
    calls = _calls(manifest)
    by_role, by_file = (_Counts(seen, counted, key, alignments, calls) for key in ("role", "file"))

    def page_size(entry: TraceFile) -> int | None:
        return manifest.page_size.get(entry.role) if entry.role is not None else None

    length = max(manifest.duration_ns, int(events["t"][-1]) + 1 if len(events) else 0, 1)
    bin_s, rates = _rates(length, seen, list(of_role))
    busiest = [manifest.files[int(one)] for one in by_file.busiest()[:files]]
    return Summary(
        name=trace.name,
        manifest=manifest,
        roles=[by_role.group(name, name, of, page_size(of[0])) for name, of in of_role.items()],
        files=[by_file.group(entry.id, entry.path, [entry], page_size(entry)) for entry in busiest],
        global_syncs=len(everything),
        bin_s=bin_s,
        rates=rates,
    )


def _calls(manifest: Manifest) -> dict[int, str]:
    """Return ``_CALL`` → the name of the call, with {} for read or write."""
    plain = "{0}" if manifest.version >= 3 else "{0} or p{0}"  # older traces don't tell them apart
    names = {Via.SYSCALL: (plain, "p{0}"), Via.AIO: ("aio",) * 2, Via.URING: ("io_uring",) * 2}
    return {2 * via + positioned: both[positioned] for via, both in names.items() for positioned in (0, 1)}


def _rates(length: int, seen: pl.DataFrame, names: list[str]) -> tuple[float, dict[str, Rates]]:
    """Return the seconds of a bin and the rates of the roles ``names``; ``length``: of the trace, ns."""
    width = 1_000_000_000
    while (bins := -(-length // width)) > MOST_BINS:
        width *= 2
    rates = {name: Rates(*([0] * bins for _ in range(5))) for name in names}
    counted = seen.lazy().group_by("role", bin=pl.col("t") // width).agg(
        reads=_READ.sum(),
        read_bytes=_SIZE.filter(_READ).sum(),
        writes=_WRITE.sum(),
        write_bytes=_SIZE.filter(_WRITE).sum(),
        syncs=_SYNC.sum(),
    )  # fmt: skip
    for row in counted.collect().iter_rows(named=True):
        for name in ("reads", "read_bytes", "writes", "write_bytes", "syncs"):
            getattr(rates[row["role"]], name)[row["bin"]] = row[name]
    return width / 1e9, rates


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _latencies(count: int, of: Mapping[str, float] | None) -> Latencies | None:
    if of is None:
        return None
    values = (of[name] for name in ("mean", "p0.5", "p0.9", "p0.99", "max"))
    return Latencies(count, *(round(float(value) / 1e6, 4) for value in values))
