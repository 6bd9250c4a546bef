"""``sqlite``: what can be asked of it. ``ztune.databases.sqlite.onhost.transactions`` does it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.memory import DatabaseSize
from ztune.databases.sqlite.onhost import transactions as sqlite
from ztune.databases.workload import Seed, Size, arc_param, param


class SqliteParameters(base.Parameters):
    """The parameters of ``sqlite``."""

    size: DatabaseSize = "uncached"
    """Size of the database."""
    arc: Size = arc_param()
    page_size: Size = param("4K", ge=512, le=65536)
    """SQLite's page size: a power of two. Its own default is 4 KiB."""
    journal_mode: Literal["wal", "delete", "truncate", "persist"] = "wal"
    """How a transaction is made whole: `wal` appends changed pages to a log; the others copy the old pages to
    a rollback journal first and remove, truncate or overwrite it at each commit."""
    synchronous: Literal["off", "normal", "full", "extra"] = "full"
    """When SQLite waits for the disk. `full`: at each commit. `normal`: in WAL mode only at checkpoints, so a
    power cut loses the last commits; in the other modes one may damage the database. `off`: never; a power
    cut may destroy the database."""
    cache: Size = param("2M", ge=64 * 1024)
    """Page cache of each connection; 2 MB is SQLite's default."""
    mmap_size: Size = param(0, ge=0)
    """How much of the database is read through a mapping instead of read calls. A recorder does not see reads
    through mappings."""
    wal_autocheckpoint: int = param(1000, ge=1, le=1_000_000, unit="pages")
    """In WAL mode a checkpoint begins when the log has this many pages; 1000 is SQLite's default."""
    final_checkpoint: bool = True
    """In WAL mode end the recorded part with a checkpoint, so that every page the load changed is written
    within the trace."""
    clients: int = param(4, ge=1, le=200, unit="connections")
    """Clients that work at the same time, threads of one process. Writers wait for each other."""
    reads: int = param(4, ge=0, le=1000)
    """Reads of a random row by its key, before each transaction."""
    updates: int = param(1, ge=0, le=1000)
    """Random rows that a transaction changes."""
    inserts: int = param(1, ge=0, le=1000)
    """Rows that a transaction adds to a history with an index. With the defaults two are read for each that
    is written."""
    rate: float = param(15.0, ge=0, unit="transactions/s")
    """Transactions that become due per second, in all: a pace that a 7200 rpm disk keeps. 0: each client
    starts the next when the last is done."""
    seconds: int = param(60, ge=1, le=86_400, unit="s")
    """How long the recorded load lasts."""
    warmup: int = param(3, ge=0, le=3600, unit="s")
    """The same load, as fast as it goes, for this long before the recorded part, so that caches and log are
    as in use."""
    seed: Seed = 1
    """Decides the rows and the random keys of the load."""

    @model_validator(mode="after")
    def _does_something(self) -> SqliteParameters:
        if not self.reads + self.updates + self.inserts:
            raise ValueError("reads, updates and inserts are all 0, so there is nothing to do")
        return self


class Sqlite(base.JobWorkload):
    """Transactions on an SQLite database: WAL or rollback journal."""

    name = "sqlite"
    summary = "short transactions on an SQLite database, in WAL or rollback-journal mode"
    Parameters = SqliteParameters
    job_class = sqlite.Sqlite
    durability = base.KNOWN
    roles_together: ClassVar = {"wal": "SQLite keeps its log beside its database, so both have one dataset"}

    def declared(self) -> base.Declared:
        """Return what is declared, with the setting on which it depends what `synchronous` means."""
        return replace(self.durability, own={"journal_mode": self.params.journal_mode})
