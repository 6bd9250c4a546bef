"""``postgres-oltp``: what can be asked of it. ``ztune.databases.postgresql.onhost.oltp`` does it."""

from __future__ import annotations

from typing import Literal

from ztune.databases import workload as base
from ztune.databases.memory import OptionalSize
from ztune.databases.postgresql.onhost import oltp as postgres_oltp
from ztune.databases.postgresql.onhost.server import SEGMENT_SIZE
from ztune.databases.workload import Seed, Size, arc_param, busy_param, param


class OltpParameters(base.Parameters):
    """The parameters of ``postgres-oltp``."""

    scale: int = param(25, ge=1, le=20_000, unit="× 100,000 rows")
    """Size of the database. 25 gives about 370 MiB of table and index: several times an ARC of 64 MiB, so
    that reads reach the disk."""
    size: OptionalSize = "0"
    """Size of the database instead of `scale`, rounded up to whole units of scale. 0: `scale` counts."""
    arc: Size = arc_param()
    content: Literal["text", "blank"] = "text"
    """What the rows hold. `text` is words and identifiers that compress about 2:1 with lz4, as real tables
    do; `blank` is pgbench's own filling, which compresses about 10:1 and flatters every compressed layout."""
    script: Literal["tpcb", "mix21"] = "tpcb"
    """What a transaction does. `tpcb` is pgbench's TPC-B-like script: three updates, an insert, one read.
    `mix21` reads twice for every write: four reads by key, one update, one insert."""
    clients: int = param(8, ge=1, le=1000, unit="connections")
    """Clients that work at the same time."""
    seconds: int = param(30, ge=1, le=86_400, unit="s")
    """How long the recorded load lasts."""
    rate: float = param(20.0, ge=0, unit="transactions/s")
    """Transactions that become due per second, in all: with a fixed rate the same work is recorded on a fast
    and on a slow machine; a 7200 rpm disk keeps 20. 0: each client starts the next when the last is done, so
    the load is as high as this machine allows."""
    busy: int = busy_param()
    warmup: int = param(3, ge=0, le=3600, unit="s")
    """The same load, as fast as it goes, for this long before the recorded part, so that PostgreSQL's cache
    is as in use."""
    seed: Seed = 1
    """Decides the rows and the random keys of the load."""
    shared_buffers: Size = param("32M", ge=128 * 1024)
    """PostgreSQL's own cache. Small beside the database, so that its reads reach the file system."""
    checkpoint_timeout: int = param(30, ge=30, le=86_400, unit="s")
    """Longest time between checkpoints. 30 s is the least that PostgreSQL takes; in a short run it is
    `max_wal_size` that brings checkpoints about."""
    max_wal_size: Size = param("64M", ge=2 * SEGMENT_SIZE)
    """A checkpoint begins when about half of this has been written to the WAL since the last one. Checkpoints
    write changed pages to the data files, sync them, and make the next change of every page go to the WAL in
    full. With PostgreSQL's default of 1 GB a run of 30 s would hold none; 64 MiB gives one about every 12 s
    at 200 transactions/s."""
    final_checkpoint: bool = True
    """End the recorded part with a checkpoint, so that every page the load changed is written within the
    trace, as it would be sooner or later on a server that runs on."""
    full_page_writes: bool = True
    """Write a whole page to the WAL at its first change after a checkpoint. It protects against torn pages;
    `off` is safe only on a file system that never tears one: on ZFS with a recordsize of at least the page
    size, and not for tools that rely on it (pg_rewind, base backups)."""
    wal_recycle: bool = True
    """Rename old WAL segments for reuse instead of making new ones. Saves nothing on a copy-on-write file
    system, and overwriting an old segment may have to read it first."""
    wal_init_zero: bool = True
    """Fill new WAL segments with zeros before use. On a copy-on-write file system this reserves nothing."""
    wal_compression: Literal["off", "pglz", "lz4", "zstd"] = "off"
    """How PostgreSQL compresses whole pages in the WAL. `lz4` and `zstd` need PostgreSQL 15."""


class PostgresOltp(base.JobWorkload):
    """pgbench on a private PostgreSQL: data and WAL in directories of their own, rows that compress as real
    ones.
    """

    name = "postgres-oltp"
    summary = "short transactions on a PostgreSQL of our own (pgbench: TPC-B-like or 2:1 read:write)"
    Parameters = OltpParameters
    needs = ("postgresql",)
    job_class = postgres_oltp.PostgresOltp
    durability = base.KNOWN
