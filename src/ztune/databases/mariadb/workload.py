"""``mariadb-oltp``: what can be asked of it. ``ztune.databases.mariadb.onhost.oltp`` does it."""

from __future__ import annotations

from typing import Literal

from ztune.databases import workload as base
from ztune.databases.mariadb.onhost import oltp as mariadb_oltp
from ztune.databases.memory import DatabaseSize
from ztune.databases.workload import PowerOfTwo, Seed, Size, arc_param, busy_param, param


class MariadbParameters(base.Parameters):
    """The parameters of ``mariadb-oltp``."""

    size: DatabaseSize = "uncached"
    """Size of table and index."""
    arc: Size = arc_param()
    threads: int = param(8, ge=1, le=1000, unit="connections")
    """Clients that work at the same time."""
    seconds: int = param(30, ge=1, le=86_400, unit="s")
    """How long the recorded load lasts."""
    rate: float = param(10.0, ge=0, unit="transactions/s")
    """Transactions that become due per second, in all, a pace that a 7200 rpm disk keeps; sysbench draws the
    times between them. 0: each client starts the next when the last is done."""
    busy: int = busy_param()
    warmup: int = param(3, ge=0, le=3600, unit="s")
    """The same load, as fast as it goes, for this long before the recorded part."""
    distribution: Literal["uniform", "gaussian", "special", "pareto", "zipfian"] = "uniform"
    """Which rows are met how often, in sysbench's words. `uniform` is the least that a cache can help."""
    page_size: PowerOfTwo = param("16K", ge=4096, le=65536)
    """InnoDB's page size: 4, 8, 16, 32 or 64 KiB."""
    buffer_pool: Size = param("32M", ge=24 << 20)
    """InnoDB's own cache. Small beside the database, so that its reads reach the file system."""
    redo_size: Size = param("16M", ge=4 << 20)
    """Size of the redo log, which is written round and round. Before it is full, changed pages must be in the
    data files."""
    doublewrite: bool = True
    """Write each page twice, to the doublewrite buffer first. It protects against torn pages; `off` is safe
    only on a file system that never tears one: on ZFS with a recordsize of at least the page size."""
    doublewrite_on: Literal["data", "wal"] = "data"
    """Role of the system tablespace, `ibdata1`, which holds the doublewrite buffer and undo."""
    binlog: Literal["wal", "data", "off"] = "wal"
    """Role of the binary log, synced at each commit; or `off` for none."""
    flush_method: Literal["fsync", "O_DSYNC", "littlesync", "nosync", "O_DIRECT", "O_DIRECT_NO_FSYNC"] = (
        "O_DIRECT"
    )
    """How InnoDB opens and syncs its files. `O_DIRECT` is its default; OpenZFS takes no notice of it before
    2.3. `nosync` and `littlesync` give up durability."""
    native_aio: bool = True
    """The kernel's asynchronous I/O. On ZFS it is synchronous underneath; a recorder sees it with eBPF
    only."""
    final_flush: bool = True
    """End the recorded part when every changed page has been written, as it would be sooner or later on a
    server that runs on."""
    seed: Seed = 1
    """Decides the rows and the random keys of the load."""


class MariadbOltp(base.JobWorkload):
    """sysbench on a private MariaDB: data, redo log, doublewrite and binary log each placeable."""

    name = "mariadb-oltp"
    summary = "short transactions on a MariaDB of our own (sysbench, 2:1 read:write)"
    Parameters = MariadbParameters
    job_class = mariadb_oltp.MariadbOltp
    durability = base.KNOWN
    needs = ("mariadb", "sysbench")
