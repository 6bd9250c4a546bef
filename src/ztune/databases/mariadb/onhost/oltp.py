"""``mariadb-oltp``: sysbench's transactions, two reads for every write, on a MariaDB of our own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ztune.databases.mariadb.onhost import sysbench
from ztune.databases.mariadb.onhost.server import (
    OWNED,
    WORDS,
    Binaries,
    Directories,
    MariadbServer,
    check_settings,
    find_binaries,
)
from ztune.errors import ZtuneError
from ztune.onhost.jobs import busy, filler, software
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.server import ServerJob
from ztune.onhost.jobs.settings import check_values
from ztune.units import parse_size

DATABASE = "sbtest"
TABLE = "sbtest1"
BYTES_PER_ROW = 243
"""Of table and index: measured with pages of 16 KiB."""
_FILL_STEPS = 20
_FLUSH_SECONDS = 600.0
_COUNTERS = (
    *("Innodb_os_log_written", "Innodb_log_writes", "Innodb_os_log_fsyncs", "Innodb_data_fsyncs"),
    "Innodb_log_waits",
    *("Innodb_data_written", "Innodb_data_read", "Innodb_pages_written", "Innodb_pages_read"),
    *("Innodb_dblwr_pages_written", "Innodb_dblwr_writes", "Innodb_buffer_pool_wait_free", "Binlog_commits"),
)


_LOG = {"writes": "innodb_log_writes", "syncs": "innodb_os_log_fsyncs", "waits": "innodb_log_waits"}
"""The redo log's, as far as a version counts them. No version tells how long they took."""


class MariadbOltp(ServerJob[MariadbServer]):
    """sysbench on a private MariaDB: data, redo log, doublewrite and binary log in directories of their
    own.
    """

    name: ClassVar[str] = "mariadb-oltp"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal")
    LOADED: ClassVar[tuple[str, ...]] = (
        "size", "page_size", "redo_size", "doublewrite", "doublewrite_on", "binlog", "seed"
    )  # fmt: skip
    user = "mysql"

    def _set_up(self) -> None:
        super()._set_up()
        self.rows = max(1000, parse_size(self.params["size"]) // BYTES_PER_ROW)
        self._binaries: Binaries | None = None
        self._sysbench = Path()
        self._before: dict[str, int] = {}
        self._settings_seen: dict[str, str] = {}
        self._transactions = self._read = self._rolled_back = 0

    def check_settings(self) -> None:
        """Refuse settings that aren't the layout's, or whose value is none of theirs."""
        check_values(self.database, WORDS, OWNED)

    def check(self) -> str:
        """Return the versions that would run.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
            InputError: ``database`` has a setting that MariaDB has not, or that isn't the layout's.
        """
        if self._binaries is None:
            found = find_binaries(patience=self.patience)
            self._sysbench = software.program("sysbench", "sysbench", "sysbench")
            check_settings(found, self.account, self.database, patience=self.patience)
            self._binaries = found
        return f"MariaDB {self._binaries.version}"

    def lay_out(self) -> None:
        """Note where the server is to be; the database itself is made by ``load``."""
        assert self._binaries is not None and self.workdir is not None
        paths, binlog = self._paths, str(self.params["binlog"])
        directories = Directories(
            data=paths["data"] / "db",
            redo=paths["wal"] / "redo",
            system=paths[str(self.params["doublewrite_on"])] / "system",
            binlog=paths[binlog] / "binlog" if binlog != "off" else None,
        )
        self._server = MariadbServer(
            self._binaries, self.workdir, self.home, self.account, directories, patience=self.patience
        )

    @property
    def page_size(self) -> int:
        """Bytes in a page."""
        return parse_size(self.database.get("innodb_page_size", self.params["page_size"]).upper())

    def settings(self) -> dict[str, str]:
        """Return what goes into the configuration: the parameters, overridden by the layout's settings."""
        params = self.params
        settings = {
            "innodb_page_size": str(parse_size(params["page_size"])),
            "innodb_buffer_pool_size": str(parse_size(params["buffer_pool"])),
            "innodb_log_file_size": str(parse_size(params["redo_size"])),
            "innodb_doublewrite": "1" if params["doublewrite"] else "0",
            "innodb_flush_method": str(params["flush_method"]),
            "innodb_use_native_aio": "1" if params["native_aio"] else "0",
            "innodb_flush_log_at_trx_commit": "1",
            "sync_binlog": "1",
            "innodb_buffer_pool_dump_at_shutdown": "0",
            "innodb_buffer_pool_load_at_startup": "0",
            "max_connections": str(int(params["threads"]) + 20),
            **self.database,
        }
        if self.dilation != 1:
            # Everything that goes by the clock goes slower. Rates: pages per second; times: seconds.
            for name, usual, least in (("innodb_io_capacity", 200, 100),):
                settings[name] = str(max(least, round(int(settings.get(name, usual)) / self.dilation)))
            for name, usual in (("innodb_lock_wait_timeout", 50), ("innodb_flush_log_at_timeout", 1)):
                settings[name] = str(round(int(settings.get(name, usual)) * self.dilation))
        return settings

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Make and fill the database, without the brakes that only matter for survival, and shut it down in
        order.
        """
        server, step = self.server, "fill the database"
        fast = {
            **self.settings(),
            "innodb_flush_log_at_trx_commit": "0",
            "innodb_doublewrite": "0",
            "skip_log_bin": "1",
            "innodb_buffer_pool_size": "134217728",
        }
        server.configure(fast)
        server.initialise()
        # The binary log begins with the measured server: it names its files by their whole paths.
        self._without_binlog(fast)
        server.start()
        server.sql(
            f"CREATE DATABASE {DATABASE}; USE {DATABASE};"
            # As sysbench makes it.
            f"CREATE TABLE {TABLE} (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT 0 NOT NULL,"
            " c CHAR(120) DEFAULT '' NOT NULL, pad CHAR(60) DEFAULT '' NOT NULL, PRIMARY KEY (id))"
            " ENGINE = InnoDB CHARACTER SET latin1;"
        )
        part = -(-self.rows // _FILL_STEPS)
        for first in range(1, self.rows + 1, part):
            last = min(self.rows, first + part - 1)
            server.sql(
                f"INSERT INTO {TABLE} (id, k, c, pad) {self._rows_sql(first, last)};",
                database=DATABASE,
                seconds=120 + part / 500,
            )
            progress(step, 0.9 * last / self.rows)
        server.sql(
            f"CREATE INDEX k_1 ON {TABLE} (k); ANALYZE TABLE {TABLE};", database=DATABASE,
            seconds=120 + self.rows / 5000,
        )  # fmt: skip
        [[found, total]] = server.sql(f"SELECT count(*), sum(k) FROM {TABLE};", database=DATABASE)
        if (int(found), int(total)) != (self.rows, self._first_sum()):
            raise ZtuneError(
                f"{self.name}: {TABLE} should have {self.rows} rows after the fill but has {found}"
            )
        server.stop()
        progress(step, 1.0)

    def _without_binlog(self, settings: Mapping[str, str]) -> None:
        binlog = self.server.directories
        self.server.directories = replace(binlog, binlog=None)
        self.server.configure(settings)

    def _rows_sql(self, first: int, last: int) -> str:
        """Return the SELECT of rows that compress as real ones: phrases and identifiers from a hash of the
        key.
        """
        seed = int(self.params["seed"])
        phrases = ",".join(f"'{phrase}'" for phrase in filler.PHRASES)

        def phrase(n: int) -> str:
            return f"ELT(1 + CONV(SUBSTR(h, {2 * n + 1}, 2), 16, 10), {phrases})"

        c = ", ' ', ".join(phrase(n) for n in range(4))
        return (
            f"SELECT seq, {_K}, LEFT(CONCAT({c}, ' ', SUBSTR(h, 9, 18)), 120),"
            f" LEFT(CONCAT({phrase(13)}, ' ', {phrase(14)}, ' ', SUBSTR(MD5(h), 1, 14)), 60)"
            f" FROM (SELECT seq, MD5(CONCAT({seed}, ':', seq)) AS h FROM seq_{first}_to_{last}) AS hashes"
        ).replace("{rows}", str(self.rows))

    def _first_sum(self) -> int:
        """Return the sum of ``k`` over all rows as they were filled."""
        return sum(seq * _STRIDE % self.rows + 1 for seq in range(1, self.rows + 1))

    def take_over(self) -> None:
        """Look at a database that was copied."""
        where = self.server.directories
        parts = {
            "database": where.data / DATABASE,
            "system tablespace": where.system / "ibdata1",
            "redo log": where.redo / "ib_logfile0",
        }
        for what, path in parts.items():
            if not path.exists():
                raise ZtuneError(f"{path}: there is no {what} to take over; load it anew")

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server with the settings asked for, and warm it with the load itself."""
        server = self.server
        binlog = str(self.params["binlog"])
        if binlog != "off":
            server.directories = replace(server.directories, binlog=self._paths[binlog] / "binlog")
        settings = self.settings()
        server.configure(settings)
        server.start()
        self._transactions = 0
        [[found]] = server.sql(f"SELECT max(id) FROM {TABLE};", database=DATABASE)
        if found != str(self.rows):
            raise ZtuneError(f"{self.name}: the database has {found} rows, not {self.rows}; load it anew")
        names = ", ".join(f"'{name}'" for name in settings)
        said = server.sql(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names});")
        self._settings_seen = {row[0]: row[1] for row in said}
        warmup = round(int(self.params["warmup"]) * self.dilation)
        if warmup:
            self._sysbench_run(warmup, int(self.params["seed"]) + 1, 0.0, "warm up", progress)
        # What the warm-up has changed is written before the load begins.
        self._flush()
        self._before = self._counters()

    def expected_bytes(self) -> dict[str, int]:
        """Return the size of table and index with what every new database has, and of the logs."""
        return {
            "data": self.rows * BYTES_PER_ROW + (32 << 20),
            "wal": parse_size(self.params["redo_size"]) + (16 << 20),
        }

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it."""
        if not self._before:
            raise ZtuneError(f"{self.name}: start comes before this step")
        if self.params.get("busy"):
            self._read = self._rolled_back = 0
            found = self.calibrate(progress)
            return busy.result(found, "transaction", reads=self._read, rolled_back=self._rolled_back)
        seconds = max(1, round(int(self.params["seconds"]) * self.dilation))
        rate = float(self.params["rate"]) / self.dilation
        outcome = self._sysbench_run(seconds, int(self.params["seed"]), rate, "run the load", progress)
        closing = self._flush() if self.params["final_flush"] else 0.0
        if outcome.transactions == 0:
            raise ZtuneError(f"{self.name}: no transaction was done in {seconds} s; allow it more time")
        after = self._counters()
        counted = {name.lower(): after[name] - self._before[name] for name in after if name in self._before}
        return WorkloadResult(
            seconds=outcome.seconds,
            operations=outcome.transactions,
            unit="transaction",
            latency_ms=outcome.latency_ms,
            offered_per_second=sysbench.rate(rate),
            log={name: float(counted[status]) for name, status in _LOG.items() if status in counted},
            details={
                "tps": outcome.transactions / outcome.seconds * self.dilation,
                "reads": outcome.reads,
                "writes": outcome.writes,
                "rolled_back": outcome.errors,
                "closing_seconds": round(closing / self.dilation, 3),
                "redo_bytes_per_transaction": round(
                    counted.get("innodb_os_log_written", 0) / outcome.transactions, 1
                ),
                **counted,
                "settings": self._settings_seen,
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        Each transaction adds one to ``k`` of one row: so the sum of ``k`` has grown by as many as were
        committed. The mix is two reads for each write, no row is lost, and CHECK TABLE finds nothing.

        Raises:
            ZtuneError: a check does not hold.
        """
        done = result.operations + result.details["rolled_back"]
        [[rows, total], *checked] = self.server.sql(
            f"SELECT count(*), sum(k) FROM {TABLE}; CHECK TABLE {TABLE};",
            database=DATABASE,
            seconds=120 + self.rows / 2000,
        )
        reads = result.details["reads"]
        whole = sysbench.READS * result.operations
        checks = (
            Check("rows of sbtest1", self.rows, int(rows)),
            Check(
                "transactions committed, by the sum of k", self._transactions, int(total) - self._first_sum()
            ),
            # What was rolled back was read all the same.
            Check("reads", whole, whole if whole <= reads <= sysbench.READS * done else reads),
            Check("CHECK TABLE", "OK", " | ".join(row[-1] for row in checked)),
        )
        return replace(result, checks=checks).require_ok(self.name)

    def _flush(self) -> float:
        """Write every changed page, as a checkpoint does; return the seconds that it took."""
        server, began = self.server, time.monotonic()
        server.sql(
            "SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0; SET GLOBAL innodb_max_dirty_pages_pct = 0;"
        )
        limit = _FLUSH_SECONDS * self.patience
        while self._status("Innodb_buffer_pool_pages_dirty")["Innodb_buffer_pool_pages_dirty"] > 0:
            if time.monotonic() - began > limit:
                raise ZtuneError(f"{self.name}: changed pages were not written within {limit:.0f} s")
            time.sleep(0.1)
        spent = time.monotonic() - began
        server.sql("SET GLOBAL innodb_max_dirty_pages_pct = DEFAULT;")
        return spent

    def _counters(self) -> dict[str, int]:
        return self._status(*_COUNTERS)

    def _status(self, *names: str) -> dict[str, int]:
        listed = ", ".join(f"'{name}'" for name in names)
        said = self.server.sql(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({listed});")
        return {row[0]: int(row[1]) for row in said}

    def _sysbench_run(
        self, seconds: int, seed: int, rate: float, step: str, progress: ProgressFn
    ) -> sysbench.SysbenchReport:
        params, server = self.params, self.server
        argv: list[str | Path] = [
            self._sysbench,
            "oltp_read_write",
            "--db-driver=mysql",
            f"--mysql-socket={server.socket}",
            "--mysql-user=root",
            f"--mysql-db={DATABASE}",
            "--tables=1",
            f"--table-size={self.rows}",
            f"--threads={params['threads']}",
            f"--time={seconds}",
            "--events=0",
            f"--rand-seed={seed + 1}",
            f"--rand-type={params['distribution']}",
            "--report-interval=1",
            "--histogram=on",
            *sysbench.MIX,
        ]
        if rate:
            argv.append(f"--rate={sysbench.rate(rate)}")

        def note(line: str) -> None:
            gone = sysbench.parse_progress(line)
            if gone is not None:
                progress(step, min(1.0, gone / seconds))

        argv.append("run")
        text = server.run_client(argv, "sysbench", seconds=seconds / self.patience + 120, on_line=note)
        outcome = sysbench.parse(text)
        self._transactions += outcome.transactions
        self._read += outcome.reads
        self._rolled_back += outcome.errors
        progress(step, 1.0)
        return outcome

    def calibrate(self, progress: ProgressFn = no_progress) -> busy.Calibration:
        """Find the rate that keeps the processors as busy as ``busy`` says; it is the load's from then on."""

        def drive(rate: float, nth: int) -> tuple[int, float]:
            seconds = max(1, round(busy.STEP_SECONDS * self.dilation))
            seed, step = int(self.params["seed"]) + 2 + nth, f"find the rate, step {nth + 1}"
            outcome = self._sysbench_run(seconds, seed, rate / self.dilation, step, progress)
            return outcome.transactions, outcome.transactions / outcome.seconds * self.dilation

        asked = float(self.params["busy"]) / 100
        # sysbench takes whole numbers.
        found = busy.find(asked, drive, busy.BusyProcessors(), whole_numbers=True)
        self.params |= {"rate": found.rate, "busy": 0}
        return found

    def recount(self) -> None:
        """Begin to count anew: for another ``run`` on the same server."""
        self._before = self._counters()

    def stop(self) -> None:
        """Shut the server down in order."""
        self._before = {}
        super().stop()

    def page_sizes(self) -> dict[str, int]:
        """Return InnoDB's page size, for data."""
        return {"data": self.page_size}


# A step through the rows that meets places far from each other in the index, and the same sum everywhere.
_STRIDE = 2_654_435_761
_K = f"seq * {_STRIDE} MOD {{rows}} + 1"
