"""``postgres-backup`` and ``postgres-restore``: a PostgreSQL is copied away whole, or filled from a dump."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ztune.databases.postgresql.onhost.archive import Bystanders, WalArchive
from ztune.databases.postgresql.onhost.oltp import PostgresOltp
from ztune.errors import MissingError
from ztune.onhost.host.process import run
from ztune.onhost.jobs import filler
from ztune.onhost.jobs.job import Check, JobBase, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.launcher import LaunchedJob
from ztune.units import parse_size

_DAY = 86_400.0
_TABLES = ("accounts", "branches", "history", "tellers")


class _PostgresCopy(LaunchedJob, PostgresOltp):
    """The filled database of ``postgres-oltp``, beside a directory that a client of PostgreSQL reads or
    writes.
    """

    OTHER: ClassVar[str]
    """The role of that directory."""

    def clients(self) -> tuple[str, ...]:
        """Return the programs of PostgreSQL that it needs, the one that is measured first."""
        raise NotImplementedError

    def check(self) -> str:
        """Return the version that would run.

        Raises:
            MissingError: a program is missing.
            InputError: ``database`` has a setting that PostgreSQL has not, or that isn't the layout's.
        """
        version = super().check()
        assert self._binaries is not None
        for name in self.clients():
            if not os.access(self._binaries[name], os.X_OK):
                raise MissingError(f"{self.name}: there is no {name} beside {self._binaries['postgres']}")
        return version

    @property
    def other(self) -> Path:
        """The directory of the backup or the dump; there is one after ``prepare``."""
        return self.role_paths()[self.OTHER]

    def settings(self) -> dict[str, str]:
        """Return what goes into the configuration, overridden by the layout's settings."""
        return {
            "shared_buffers": f"{parse_size(self.params['shared_buffers']) // 1024}kB",
            "max_wal_size": "256MB",
            "fsync": "on",
            "synchronous_commit": "on",
            **self.database,
        }

    def expected_bytes(self) -> dict[str, int]:
        """Return the size of table and index with what every new cluster has, and of the WAL at most."""
        return {"data": self.scale * filler.BYTES_PER_SCALE + (24 << 20), "wal": 256 << 20}

    def _command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def _rows(self) -> dict[str, int]:
        """Return the rows of each table, as they are filled."""
        found = (self.scale * filler.ROWS_PER_SCALE, self.scale, 0, 10 * self.scale)
        return dict(zip(_TABLES, found, strict=True))

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server, and the shell that waits for the word to run the client."""
        server = self.server
        server.configure(self.settings())
        server.start()
        self.launch(self.clients()[0], self._command(), "client.log", server.client_env)
        progress("start the server", 1.0)

    def _watch(self) -> None:
        """Raise ``ZtuneError`` if the client could wait for ever."""
        self.server.watch()

    def _run_client(self, progress: ProgressFn, step: str) -> float:
        """Run the client to its end; return the seconds that it took."""
        launcher = self.launcher

        def tick(_gone: float) -> None:
            self._watch()
            progress(step, 0.0)

        spent, _ = launcher.run(_DAY * self.patience, tick)
        self.server.watch()
        launcher.must_have_ended_well()
        progress(step, 1.0)
        return spent

    def role_paths(self) -> dict[str, Path]:
        """Return the directory of each role: of temporary files these make none that matter."""
        return JobBase.role_paths(self)

    def page_sizes(self) -> dict[str, int]:
        """Return PostgreSQL's page size, for data and for WAL."""
        return {role: size for role, size in super().page_sizes().items() if role != "temp"}


class PostgresBackup(_PostgresCopy):
    """``pg_basebackup`` or ``pg_dump`` of a filled database into a directory of its own, and the log that
    others write meanwhile into an archive.
    """

    name: ClassVar[str] = "postgres-backup"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal", "backup", "archive")
    OTHER: ClassVar[str] = "backup"

    def _set_up(self) -> None:
        super()._set_up()
        self._archive: WalArchive | None = None

    @property
    def archives(self) -> bool:
        """Whether the log is archived: beside a dump it would be of no use."""
        return bool(self.params["archive"]) and self.params["method"] == "basebackup"

    def roles(self) -> tuple[str, ...]:
        """Return the roles whose directories ``prepare`` needs."""
        return self.ROLES if self.archives else self.ROLES[:-1]

    def clients(self) -> tuple[str, ...]:
        """Return the programs that the method needs, the one that is measured first."""
        if self.params["method"] == "basebackup":
            return ("pg_basebackup", "pg_verifybackup", *(("pg_waldump",) if self.archives else ()))
        return ("pg_dump", "pg_restore")

    def lay_out(self) -> None:
        """Note where server and archive are to be; the cluster itself is made by ``load``."""
        super().lay_out()
        if self.archives:
            self._archive = WalArchive(self.server, self._paths["archive"])

    def settings(self) -> dict[str, str]:
        """Return what goes into the configuration, overridden by the layout's settings."""
        # The load left out what a backup of a running server needs.
        return {
            "wal_level": "replica",
            "max_wal_senders": "4",
            **(self._archive.settings() if self._archive is not None else {}),
            **super().settings(),
        }

    @property
    def _target(self) -> Path:
        return self.other / ("base" if self.params["method"] == "basebackup" else "database.dump")

    def _command(self) -> Sequence[str | Path]:
        program = self.server.binaries[self.clients()[0]]
        if self.params["method"] == "basebackup":
            return [
                program,
                f"--pgdata={self._target}",
                "--checkpoint=fast",
                # With an archive the backup ends when the log that it needs is there.
                f"--wal-method={'none' if self.archives else 'stream'}",
                "--no-password",
            ]
        level = self.params["compress"]
        return [program, "--format=custom", f"--compress={level}", f"--file={self._target}", "postgres"]

    def _watch(self) -> None:
        """Raise ``ZtuneError`` if the client could wait for ever."""
        if self._archive is not None:
            self._archive.watch()
        else:
            super()._watch()

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server, and the shell that waits for the word to run the client."""
        super().start(progress)
        if self._archive is not None:
            self._archive.begin()

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Make the backup and wait until it is on the disk, and the log in the archive."""
        # A dump holds the rows of one moment, which nobody may blur.
        busy = self.params["method"] == "basebackup"
        rate = float(self.params["rate"]) / self.dilation if busy else 0.0
        assert self.workdir is not None
        others: Bystanders | None = None
        if rate:
            log = self.workdir.path / "bystanders.log"
            others = self.begin(Bystanders(self.server, rate, int(self.params["seed"]), log))
        seconds = self._run_client(progress, "make the backup")
        details: dict[str, Any] = {}
        if others is not None:
            self.finish(others)
            details["transactions_meanwhile"] = int(self.server.value("SELECT count(*) FROM pgbench_history"))
        if self._archive is not None:
            progress("archive the rest of the log", 0.0)
            details["closing_seconds"] = round(self._archive.finish() / self.dilation, 3)
            details["segments_archived"] = len(self._archive.held)
            details["archive_bytes"] = sum(path.stat().st_size for path in self._archive.held)
        held = sum(path.stat().st_size for path in self.other.rglob("*") if path.is_file())
        return WorkloadResult(
            seconds=seconds,
            operations=sum(self._rows().values()),
            unit="row",
            latency_ms={},
            offered_per_second=None if self.params.get("rate") else 0.0,
            details={
                "backup_bytes": held,
                "bytes_per_second": held / seconds * self.dilation,
                **details,
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        A base backup's files have the checksums of its manifest, and the log that it needs can be read
        (``pg_verifybackup``); the archive holds every segment that was finished; a dump holds every row.

        Raises:
            ZtuneError: a check does not hold.
        """
        server = self.server
        if self.params["method"] == "basebackup":
            archive = self._archive
            log = f"--wal-directory={archive.folder}" if archive is not None else "--no-parse-wal"
            said = run(
                [server.binaries["pg_verifybackup"], log, self._target],
                what="pg_verifybackup",
                account=server.account,
                cwd=server.home,
                seconds=_DAY * self.patience,
            )
            size = server.value("SELECT sum(pg_database_size(oid)) FROM pg_database")
            enough = result.details["backup_bytes"] >= 0.9 * int(size)
            checks = [
                Check("pg_verifybackup", "backup successfully verified", said.strip()),
                Check("the backup holds the database", "yes", "yes" if enough else "no"),
                *(archive.checks() if archive is not None else ()),
            ]
        else:
            checks = [
                Check(f"rows of pgbench_{table} in the dump", count, self._dumped(f"pgbench_{table}"))
                for table, count in self._rows().items()
            ]
        return replace(result, checks=tuple(checks)).require_ok(self.name)

    def _dumped(self, table: str) -> int:
        """Return how many rows of ``table`` are in the dump: lines between COPY and the end mark."""
        restore = self.server.binaries["pg_restore"]
        script = (
            'set -e; "$1" --data-only --table="$2" --file=- "$3" | '
            "awk '/^COPY /{on=1;next} /^\\\\\\.$/{on=0} on{n++} END{print n+0}'"
        )
        said = run(
            ["/bin/sh", "-c", script, "sh", restore, table, self._target],
            what="pg_restore",
            account=self.server.account,
            cwd=self.server.home,
            seconds=_DAY * self.patience,
        )
        return int(said)


class PostgresRestore(_PostgresCopy):
    """``pg_restore`` of a compressed dump into an empty database."""

    name: ClassVar[str] = "postgres-restore"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal", "source")
    OTHER: ClassVar[str] = "source"

    def clients(self) -> tuple[str, ...]:
        """Return the programs that it needs, the one that is measured first."""
        return ("pg_restore", "pg_dump")

    @property
    def _dump(self) -> Path:
        return self.other / "database.dump"

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Fill a database, dump it, and empty it again."""
        super().load(lambda step, done: progress(step, 0.7 * done))
        server = self.server
        server.start()
        server.client(
            "pg_dump",
            "--format=custom",
            f"--compress={self.params['compress']}",
            f"--file={self._dump}",
            "postgres",
            seconds=_DAY,
        )
        names = ", ".join(f"pgbench_{table}" for table in _TABLES)
        server.sql(f"DROP TABLE {names}; CHECKPOINT;")
        server.stop()
        progress("dump it", 1.0)

    def settings(self) -> dict[str, str]:
        """Return what goes into the configuration, overridden by the layout's settings."""
        return {"maintenance_work_mem": "64MB", "autovacuum": "off", **super().settings()}

    def _command(self) -> Sequence[str | Path]:
        return [
            self.server.binaries["pg_restore"],
            "--exit-on-error",
            f"--jobs={self.params['jobs']}",
            "--dbname=postgres",
            self._dump,
        ]

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Restore the dump; a checkpoint ends it, so that everything is in the data files."""
        seconds = self._run_client(progress, "restore the dump")
        began = time.monotonic()
        self.server.sql("CHECKPOINT;", seconds=_DAY)
        seconds += time.monotonic() - began
        return WorkloadResult(
            seconds=seconds,
            operations=sum(self._rows().values()),
            unit="row",
            latency_ms={},
            offered_per_second=0.0,
            details={"dump_bytes": self._dump.stat().st_size},
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        Each table has the rows that were dumped, the keys are back, and no page has a wrong checksum.

        Raises:
            ZtuneError: a check does not hold.
        """
        counts = ", ".join(f"(SELECT count(*) FROM pgbench_{table})" for table in _TABLES)
        [[*found, keys, bad]] = self.server.sql(
            f"SELECT {counts}, (SELECT count(*) FROM pg_constraint WHERE contype = 'p'"
            " AND conrelid::regclass::text LIKE 'pgbench%'),"
            " (SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database)"
        )
        checks = [
            Check(f"rows of pgbench_{table}", count, int(got))
            for (table, count), got in zip(self._rows().items(), found, strict=True)
        ]
        checks += [Check("primary keys", 3, int(keys)), Check("pages with a wrong checksum", 0, int(bad))]
        return replace(result, checks=tuple(checks)).require_ok(self.name)
