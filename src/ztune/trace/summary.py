"""What a trace shows: sizes, sync, sequence, overwriting, alignment, working set, rates; by role and by file.

Events are counted per file (counts.py) and added up by role. The definitions are in
docs/trace-format.md ("What `ztune trace show` computes") and in ``GroupSummary``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.onhost.words import ROLES, Role
from ztune.trace.counts import SYNCS, Bools, FileCounts, FileTransfers, Ints, count_files, sum_by
from ztune.trace.manifest import Manifest
from ztune.trace.reader import Columns, Trace
from ztune.trace.schema import Op

NO_ROLE = "none"  # the name under which files without a role are shown
ALIGNMENTS = (512, 4096, 8192)
MOST_BINS = 4096  # the bins of the rates double from 1 s until they are no more


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
    size_start = np.array([file.size_start for file in manifest.files], np.int64)
    counts = count_files(size_start, columns, sorted({*ALIGNMENTS, *manifest.page_size.values()}))
    bin_s, rates = _rates(manifest, columns, role_of, names)
    busiest = np.argsort(-(counts.reads.bytes + counts.writes.bytes), kind="stable")
    busiest = busiest[counts.events[busiest] > 0][:files]
    return Summary(
        name=trace.name,
        manifest=manifest,
        roles=[
            _group(counts, manifest, name, manifest.files[ids_of[name][0]].role, ids_of[name])
            for name in names
        ],
        files=[
            _group(counts, manifest, manifest.files[i].path, manifest.files[i].role, [i])
            for i in busiest.tolist()
        ],
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
        return sum_by(key[mask], None if values is None else values[mask], bins * len(names))

    reads, writes, syncs = op == Op.READ, op == Op.WRITE, np.isin(op, SYNCS)
    series = [per_bin(reads), per_bin(reads, size), per_bin(writes), per_bin(writes, size), per_bin(syncs)]
    return width / 1e9, {
        name: Rates(*(one[index * bins : (index + 1) * bins].tolist() for one in series))
        for index, name in enumerate(names)
    }


def _group(
    counts: FileCounts, manifest: Manifest, name: str, role: Role | None, ids: Sequence[int]
) -> GroupSummary:
    """Return the sums over the files ``ids``."""
    chosen = np.array(ids)
    files = [manifest.files[i] for i in ids]
    kinds = counts.kinds[chosen].sum(axis=0)
    durations = [counts.sync_durations[counts.sync_start[i] : counts.sync_start[i + 1]] for i in ids]
    return GroupSummary(
        name=name,
        role=role,
        files=len(ids),
        size_start=sum(file.size_start for file in files),
        size_end=sum(file.size_end if file.size_end >= 0 else file.size_start for file in files),
        reads=_transfers(counts.reads, chosen),
        writes=_transfers(counts.writes, chosen),
        syncs=int(kinds[list(SYNCS)].sum()),
        sync_latency_ms=_latencies(np.concatenate(durations)),
        sync_writes=int(counts.sync_writes[chosen].sum()),
        sync_write_bytes=int(counts.sync_write_bytes[chosen].sum()),
        overwritten_bytes=int(counts.overwritten[chosen].sum()),
        pages=int(counts.pages[chosen].sum()),
        page_size=manifest.page_size.get(role) if role is not None else None,
        operations={op.name.lower(): int(kinds[op]) for op in Op if kinds[op]},
    )


def _transfers(counts: FileTransfers, chosen: npt.NDArray[np.intp]) -> Transfers:
    count = int(counts.count[chosen].sum())

    def by_size(table: Ints) -> dict[int, int]:
        values = table[chosen].sum(axis=0)
        return {1 << (b - 1) if b else 0: int(values[b]) for b in np.flatnonzero(sizes).tolist()}

    sizes = counts.sizes[chosen].sum(axis=0)
    return Transfers(
        count=count,
        bytes=int(counts.bytes[chosen].sum()),
        sizes=by_size(counts.sizes),
        size_bytes=by_size(counts.size_bytes),
        sequential=_share(int(counts.sequential[chosen].sum()), count),
        aligned={to: _share(int(aligned[chosen].sum()), count) for to, aligned in counts.aligned.items()},
        pages=int(counts.pages[chosen].sum()),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _latencies(durations: Ints) -> Latencies | None:
    if not len(durations):
        return None
    p50, p90, p99 = np.percentile(durations, (50, 90, 99))
    values = (durations.mean(), p50, p90, p99, durations.max())
    return Latencies(len(durations), *(round(float(value) / 1e6, 4) for value in values))
