"""An observation: one JSON document that the live observer and the readers of other tools' output make.

The report and the findings take it and nothing else. Whatever was not seen is empty or None, and
``limits`` says why in a sentence; nothing is ever guessed. All times are nanoseconds or, where named
``seconds``, seconds; all sizes bytes. A histogram (``Buckets``) maps the lower bound of a power-of-two
bucket to a count: 0 holds zeros, 4096 holds 4096 to 8191.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ztune.onhost.look.reading import ObservedDatabase

FORMAT: Final = "ztune-observation"
VERSION: Final = 1

PIECE_S = 0.2
"""Seconds for which calls are counted at a time, where they are for a part of it; recorder/observer.c."""
Buckets = dict[int, int]
"""Lower bound of a power-of-two bucket → count."""


class Part(BaseModel):
    """A piece of an observation: nothing unknown in it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ObservedTransfers(Part):
    """Reads or writes. None and empty: the source does not tell."""

    calls: int = 0
    bytes: int | None = None
    sizes: Buckets = {}
    """By bytes that were moved."""
    latency: Buckets = {}
    """By ns that a call took."""
    latency_total: int | None = None
    """ns of all calls together."""
    sequential: int | None = None
    """Calls that began where the last of the same kind on the same file ended."""
    aligned: int | None = None
    """Calls whose offset and size are both multiples of the dataset's recordsize; of 4096 without ZFS."""
    overwritten: int | None = None
    """Bytes written below the file's size at that time; the others extended the file."""
    synced: int | None = None
    """Writes through a descriptor with O_SYNC or O_DSYNC."""
    direct: int | None = None
    """Calls through a descriptor with O_DIRECT."""


class Syncs(Part):
    """fsync, fdatasync and their like."""

    calls: int = 0
    latency: Buckets = {}
    """By ns."""
    latency_total: int | None = None


class Group(Part):
    """What was seen of one role, file, kind of call, or device.

    ``kind`` role: all files of a role; file: one file; call: one system call of one role (``name`` is
    "pwrite64"); device: physical I/O on a disk or vdev. The same I/O is in a role, its files and its
    calls: never add kinds up.
    """

    kind: Literal["role", "file", "call", "device"]
    name: str
    """The role ("none" for files without), the path, the call, or the device."""
    role: str | None = None
    dataset: str | None = None
    pool: str | None = None
    filesystem: str | None = None
    """Type of the file system that the files are on ("zfs", "ext4"); None: not known, or several."""
    reads: ObservedTransfers = ObservedTransfers()
    writes: ObservedTransfers = ObservedTransfers()
    syncs: Syncs = Syncs()


class ObservedCall(Part):
    """A system call by name, over all observed processes."""

    name: str
    calls: int
    seconds: float | None = None
    errors: int | None = None
    latency: Buckets = {}
    """By ns."""


class Series(Part):
    """Values over time: ``t`` seconds since the observation began, and as many in each column.

    A column's name ends in its unit: ``_s``, ``_bytes``, ``_per_s``, ``_share`` (0 to 1), ``_count``.
    """

    t: list[float]
    columns: dict[str, list[float]]
    whole: dict[str, float] = {}
    """The columns over the whole window at once: exact where a mean of the points would not be."""

    @model_validator(mode="after")
    def _as_long(self) -> Series:
        for name, values in self.columns.items():
            if len(values) != len(self.t):
                raise ValueError(f"{name} has {len(values)} values at {len(self.t)} times")
        return self


class ObservedDisk(Part):
    """A block device over the whole window, from the kernel's counters."""

    name: str
    pool: str | None = None
    rotational: bool | None = None
    logical_sector: int | None = None
    physical_sector: int | None = None
    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    read_seconds: float | None = None
    """Sum of the times of all reads; divided by ``reads`` the mean wait and service."""
    write_seconds: float | None = None
    flushes: int | None = None
    flush_seconds: float | None = None
    busy_share: float | None = None
    """Share of the window in which it had something to do."""
    mean_queue: float | None = None


class ObservedValue(Part):
    """A property's value as ``zfs get -p`` gives it, and where it is from: local, default, inherited from
    X, -."""

    value: str
    source: str = "-"


class ObservedDataset(Part):
    """A file system or volume."""

    name: str
    pool: str
    type: str = "filesystem"
    mountpoint: str | None = None
    roles: tuple[str, ...] = ()
    """Those of the files that were seen in it."""
    properties: dict[str, ObservedValue] = {}


class ObservedVdev(Part):
    """One top-level vdev."""

    name: str
    """ "raidz1-0", "mirror-1", "sda"."""
    kind: str
    """disk, file, mirror, raidz1 to 3, draid1 to 3."""
    role: Literal["data", "log", "cache", "special", "dedup", "spare"] = "data"
    ashift: int | None = Field(default=None, ge=0, le=63)
    size: int | None = None
    allocated: int | None = None
    fragmentation: int | None = None
    """Per cent, as ``zpool list -v`` gives it."""
    disks: tuple[str, ...] = ()
    """Names of block devices, as in ``Disk.name``, or paths of files."""


class ObservedPool(Part):
    """A pool, its vdevs, and its histograms over the window."""

    name: str
    properties: dict[str, ObservedValue] = {}
    vdevs: tuple[ObservedVdev, ...] = ()
    request_sizes: dict[str, Buckets] = {}
    """``zpool iostat -r``: "sync_read_ind", "async_write_agg" … → I/Os by bytes."""
    latencies: dict[str, Buckets] = {}
    """``zpool iostat -w``: "total_read", "disk_write", "syncq_write" … → I/Os by ns."""
    txgs: list[dict[str, float]] = []
    """The last transaction groups of the window: dirty_bytes, write_bytes, open_s, quiesce_s, wait_s,
    sync_s."""


class ObservedZfs(Part):
    """OpenZFS on the host: what the observed files live on, and its counters."""

    version: str
    pools: tuple[ObservedPool, ...] = ()
    datasets: tuple[ObservedDataset, ...] = ()
    counters: dict[str, dict[str, int]] = {}
    """kstat ("arcstats", "zil", "dmu_tx", "zfetchstats", "l2arc" is within arcstats) → counter → growth in
    the window."""
    gauges: dict[str, dict[str, int]] = {}
    """kstat → value at the end, for those that are no counters: "arcstats": size, c, c_min, c_max, …"""
    tunables: dict[str, str] = {}
    """Module parameters that were read."""


class Compressed(Part):
    """How sampled blocks of a role compress at one record size with one algorithm."""

    recordsize: int
    algorithm: str
    blocks: int
    ratio: float
    """Logical bytes / compressed bytes, before rounding."""
    stored_ratio: float
    """Logical bytes / bytes allocated, after rounding to sectors and parity, and after ZFS's own rule that
    a block which does not save enough is stored as it is."""
    low: float
    high: float
    """95 % bootstrap interval of ``stored_ratio`` over the sampled blocks."""


class ObservedFiles(Part):
    """The files of a role, as they are on disk."""

    role: str
    count: int
    bytes: int
    allocated: int
    """512 × st_blocks."""
    sizes: Buckets = {}
    """Files by size."""
    sparse: int = 0
    """Files with holes."""
    hole_bytes: int = 0
    record_sizes: Buckets = {}
    """On ZFS: files of more than one record by st_blksize, which there is the record size that the file was
    begun with. Exact sizes, not buckets."""
    preallocated: int = 0
    """Files whose names or pattern say that the database allocates them in full before use (WAL segments
    …)."""
    compressed: tuple[Compressed, ...] = ()
    sector: int | None = None
    """Bytes that ``stored_ratio`` was rounded to."""
    parity: str | None = None
    """The layout that padding was counted for: "raidz2 of 6"; None: none."""


class Observation(Part):
    """Everything."""

    format: Literal["ztune-observation"] = FORMAT
    version: Literal[1] = VERSION
    ztune: str
    source: Literal["live", "files"]
    subject: str
    """What was observed, in words: "process 1234 (postgres) and its 12 children"; "dtrace output
    writes.txt"."""
    host: str | None = None
    kernel: str | None = None
    platform: str | None = None
    """linux, freebsd, illumos, macos."""
    begun: str | None = None
    """ISO 8601, UTC."""
    seconds: float | None = Field(default=None, ge=0)
    """Length of the window; None where a file does not tell."""
    counted_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the window in which calls were counted; ``groups`` and ``calls`` are estimates for all."""
    groups: tuple[Group, ...] = ()
    calls: tuple[ObservedCall, ...] = ()
    context_switches: dict[str, int] = {}
    """ "voluntary" and "involuntary", of the observed processes."""
    interrupts: dict[str, int] = {}
    """By source, in the window."""
    cpu_seconds: float | None = None
    """Of the observed processes, user and system."""
    series: dict[str, Series] = {}
    """ "cpu", "memory", "disk:sda", "arc", "zil", "role:data" …"""
    disks: tuple[ObservedDisk, ...] = ()
    zfs: ObservedZfs | None = None
    files: tuple[ObservedFiles, ...] = ()
    databases: tuple[ObservedDatabase, ...] = ()
    own_cpu_seconds: float | None = Field(default=None)
    """What observing itself cost."""
    limits: tuple[str, ...] = ()
    """What is not known, and why: a sentence each."""

    def to_json(self) -> dict[str, Any]:
        r"""Return it as JSON values; but for format and version, what equals its default is left out.

        JSON is UTF-8: bytes of a file's name that are not are written out (``\xe9``).
        """
        return {
            "format": self.format,
            "version": self.version,
            **_utf8(self.model_dump(mode="json", exclude_defaults=True)),
        }

    def of_kind(self, kind: str) -> list[Group]:
        """Return the groups of one kind."""
        return [group for group in self.groups if group.kind == kind]


def _utf8(value: Any) -> Any:
    """Return ``value`` without the half characters by which Python holds bytes that are not UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_utf8(key): _utf8(one) for key, one in value.items()}
    return [_utf8(one) for one in value] if isinstance(value, list) else value
