"""The figures that a trace's summary has, as data. docs/trace-format.md defines each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ztune.trace.manifest import Manifest

NO_ROLE = "none"  # the name under which files without a role are shown
ALIGNMENTS = (512, 4096, 8192)
PAGE = 4096
"""Bytes; unit of the working set."""


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
