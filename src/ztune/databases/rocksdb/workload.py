"""``rocksdb``: what can be asked of it. ``ztune.databases.rocksdb.onhost.random_keys`` does it."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.memory import DatabaseSize
from ztune.databases.rocksdb.onhost import random_keys as rocksdb
from ztune.databases.workload import Seed, Size, arc_param, param


class RocksdbParameters(base.Parameters):
    """The parameters of ``rocksdb``."""

    size: DatabaseSize = "uncached"
    """Keys and values before any compression."""
    arc: Size = arc_param()
    mix: Literal["mixed", "update", "overwrite"] = "mixed"
    """What the load does with random keys: `mixed` reads one or writes one, `update` reads and writes each,
    `overwrite` only writes."""
    read_share: int = param(67, ge=1, le=99, unit="%")
    """Share of reads with `mix=mixed`: 67 is two reads for each write."""
    rate: float = param(50.0, ge=0, unit="operations/s")
    """Operations that become due per second, in all. A 7200 rpm disk keeps this pace; at one that the disk
    can't keep, the counts of a replay don't hold. 0: each thread starts the next when the last is done."""
    operations: int = param(6000, ge=1, le=10**10)
    """How many operations, of all threads together: the same work is recorded on a fast and on a slow
    machine."""
    seconds: int = param(0, ge=0, le=86_400, unit="s")
    """Go on for this long instead. 0: `operations` counts."""
    threads: int = param(4, ge=1, le=256, unit="threads")
    """Threads that work at the same time."""
    sync: bool = True
    """Wait for the disk at each write. RocksDB's own default is off: a power cut then loses the last
    seconds."""
    value_size: Size = param(400, ge=1, le=1 << 20)
    """Size of a value."""
    compressible: float = param(0.5, gt=0, le=1)
    """To which share of its size lz4 shrinks values in records of 128 KiB, from 0.25: 0.5 is 2:1, as with
    real ones. 1 is noise, which no data is."""
    compression: Literal["none", "snappy", "lz4", "zstd", "zlib"] = "snappy"
    """How RocksDB compresses its blocks. snappy is its default; ZFS can hardly shrink such blocks further."""
    cache: Size = param("8M", ge=1 << 20)
    """RocksDB's block cache. Small beside the database, so that its reads reach the file system."""
    write_buffer: Size = param("128K", ge=64 * 1024)
    """Writes collect in memory and in the log up to this size, then become a table. RocksDB's default is 64
    MiB, which a short load doesn't fill; small ones bring flushes and compactions into it."""
    direct_io: bool = False
    """Direct I/O for reads, flushes and compactions. OpenZFS takes no notice of it before 2.3."""
    seed: Seed = 1
    """Decides the values and the random keys."""

    @model_validator(mode="after")
    def _each_has_work(self) -> RocksdbParameters:
        if not self.seconds and self.operations < self.threads:
            raise ValueError(f"{self.operations} operations are too few for {self.threads} threads")
        return self


class Rocksdb(base.JobWorkload):
    """Reads and writes of random keys in RocksDB: tables and log in directories of their own."""

    name = "rocksdb"
    summary = "RocksDB: reads and writes of random keys, each write synced to the log"
    Parameters = RocksdbParameters
    job_class = rocksdb.Rocksdb
    durability = base.KNOWN
    needs = ("rocksdb",)
