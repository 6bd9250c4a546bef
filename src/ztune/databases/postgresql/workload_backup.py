"""``postgres-backup`` and ``postgres-restore``: what can be asked of them."""

from __future__ import annotations

from typing import Literal

from ztune.databases import workload as base
from ztune.databases.memory import OptionalSize
from ztune.databases.postgresql.onhost import backup as postgres_backup
from ztune.databases.workload import Seed, Size, arc_param, param


class _FilledParameters(base.Parameters):
    """What both have: the database."""

    scale: int = param(25, ge=1, le=20_000, unit="× 100,000 rows")
    """Size of the database. 25 gives about 370 MiB."""
    size: OptionalSize = "0"
    """Size of the database instead of `scale`, rounded up to whole units of scale. 0: `scale` counts."""
    arc: Size = arc_param()
    content: Literal["text", "blank"] = "text"
    """What the rows hold, as in `postgres-oltp`; `text` compresses as real tables do."""
    shared_buffers: Size = param("32M", ge=128 * 1024)
    """PostgreSQL's own cache."""
    seed: Seed = 1
    """Decides the rows."""
    compress: int = param(6, ge=0, le=9)
    """Level of gzip in the dump, pg_dump's default; 0 leaves compressing to the file system."""


class BackupParameters(_FilledParameters):
    """The parameters of ``postgres-backup``."""

    method: Literal["basebackup", "dump"] = "basebackup"
    """`basebackup` copies the server's files (pg_basebackup), `dump` writes the rows as one archive
    (pg_dump), compressed as `compress` says."""
    archive: bool = True
    """Archive the WAL, as for point-in-time recovery: each finished segment is copied into the role
    `archive`, and a base backup needs what lies there. `off`: the backup takes the WAL that it needs along,
    and there is no such role. A dump needs none."""
    rate: float = param(20.0, ge=0, unit="transactions/s")
    """Transactions of others (pgbench's TPC-B-like) that become due per second while a base backup is made:
    without them there is hardly any WAL. 0: nobody else works."""


class RestoreParameters(_FilledParameters):
    """The parameters of ``postgres-restore``."""

    jobs: int = param(2, ge=1, le=64, unit="connections")
    """Tables and indexes restored at the same time."""


class PostgresBackup(base.JobWorkload):
    """pg_basebackup or pg_dump of a filled PostgreSQL."""

    name = "postgres-backup"
    summary = "a backup of a PostgreSQL of our own (pg_basebackup or pg_dump)"
    Parameters = BackupParameters
    job_class = postgres_backup.PostgresBackup
    durability = base.KNOWN
    needs = ("postgresql",)


class PostgresRestore(base.JobWorkload):
    """pg_restore of a compressed dump."""

    name = "postgres-restore"
    summary = "a compressed dump restored into a PostgreSQL of our own (pg_restore)"
    Parameters = RestoreParameters
    job_class = postgres_backup.PostgresRestore
    durability = base.KNOWN
    needs = ("postgresql",)
