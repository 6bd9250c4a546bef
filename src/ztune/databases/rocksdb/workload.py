"""``rocksdb``: what can be asked of it. ``ztune.databases.rocksdb.onhost.random_keys`` does it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.memory import DatabaseSize
from ztune.databases.rocksdb.onhost import random_keys as rocksdb
from ztune.databases.workload import Size, arc_param, param
from ztune.onhost.jobs.job import Job


class RocksdbParameters(base.Parameters):
    """The parameters of ``rocksdb``."""

    size: DatabaseSize = param(
        "uncached",
        unit="bytes",
        meaning="Keys and values before any compression: `cached` (half of `arc`), `uncached` (six times "
        "`arc`), any multiple such as `2.5x`, or a size such as `256M`.",
    )
    arc: Size = arc_param()
    mix: Literal["mixed", "update", "overwrite"] = param(
        "mixed",
        meaning="What the load does with random keys: `mixed` reads one or writes one, `update` reads and "
        "writes each, `overwrite` only writes.",
    )
    read_share: int = param(
        67, ge=1, le=99, unit="%", meaning="Share of reads with `mix=mixed`: 67 is two reads for each write."
    )
    rate: float = param(
        50.0,
        ge=0,
        unit="operations/s",
        meaning=(
            "Operations that become due per second, in all. A 7200 rpm disk keeps this pace; "
            "at one that the disk can't keep, the counts of a replay don't hold. "
            "0: each thread starts the next when the last is done."
        ),
    )
    operations: int = param(
        6000,
        ge=1,
        le=10**10,
        meaning=(
            "How many operations, of all threads together: "
            "the same work is recorded on a fast and on a slow machine."
        ),
    )
    seconds: int = param(
        0, ge=0, le=86_400, unit="s", meaning="Go on for this long instead. 0: `operations` counts."
    )
    threads: int = param(4, ge=1, le=256, unit="threads", meaning="Threads that work at the same time.")
    sync: bool = param(
        True,
        meaning=(
            "Wait for the disk at each write. RocksDB's own default is off: "
            "a power cut then loses the last seconds."
        ),
    )
    value_size: Size = param(
        400, ge=1, le=1 << 20, unit="bytes", meaning="Size of a value.", validate_default=True
    )
    compressible: float = param(
        0.5,
        gt=0,
        le=1,
        meaning="To which share of its size lz4 shrinks values in records of 128 KiB, from 0.25: 0.5 is "
        "2:1, as with real ones. 1 is noise, which no data is.",
    )
    compression: Literal["none", "snappy", "lz4", "zstd", "zlib"] = param(
        "snappy",
        meaning=(
            "How RocksDB compresses its blocks. snappy is its default; "
            "ZFS can hardly shrink such blocks further."
        ),
    )
    cache: Size = param(
        "8M",
        ge=1 << 20,
        unit="bytes",
        meaning="RocksDB's block cache. Small beside the database, so that its reads reach the file system.",
        validate_default=True,
    )
    write_buffer: Size = param(
        "128K",
        ge=64 * 1024,
        unit="bytes",
        meaning=(
            "Writes collect in memory and in the log up to this size, then become a table. RocksDB's default "
            "is 64 MiB, which a short load doesn't fill; small ones bring flushes and compactions into it."
        ),
        validate_default=True,
    )
    direct_io: bool = param(
        False,
        meaning="Direct I/O for reads, flushes and compactions. OpenZFS takes no notice of it before 2.3.",
    )
    seed: int = param(1, ge=0, le=2**30 - 1, meaning="Decides the values and the random keys.")

    @model_validator(mode="after")
    def _each_has_work(self) -> RocksdbParameters:
        if not self.seconds and self.operations < self.threads:
            raise ValueError(f"{self.operations} operations are too few for {self.threads} threads")
        return self


class Rocksdb(base.JobWorkload):
    """Reads and writes of random keys in RocksDB: tables and log in directories of their own."""

    name: ClassVar[str] = "rocksdb"
    summary: ClassVar[str] = "RocksDB: reads and writes of random keys, each write synced to the log"
    Parameters: ClassVar[type[base.Parameters]] = RocksdbParameters
    job_class: ClassVar[type[Job]] = rocksdb.Rocksdb
    durability: ClassVar[base.Declared] = base.KNOWN
    needs: ClassVar[tuple[str, ...]] = ("rocksdb",)
