"""``postgres-oltp``: many short transactions on a PostgreSQL of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ztune.errors import ZtuneError
from ztune.workloads import base, filler, pgbench
from ztune.workloads.base import Check, ProgressFn, Size, WorkloadResult, no_progress, param
from ztune.workloads.interrupt import uninterrupted
from ztune.workloads.postgres import PAGE_SIZE, SEGMENT_SIZE, Binaries, PostgresServer, find_binaries
from ztune.workloads.process import Account
from ztune.workloads.workdir import WorkDir

_MIB = 1 << 20
_FILL_STEPS = 20


class OltpParameters(base.Parameters):
    """The parameters of ``postgres-oltp``."""

    scale: int = param(
        25,
        ge=1,
        le=20_000,
        unit="× 100,000 rows",
        meaning="Size of the database. 25 gives about 370 MiB of table and index: several times an ARC of "
        "64 MiB, so that reads reach the disk.",
    )
    size: Size = param(
        0,
        ge=0,
        unit="bytes",
        meaning="Size of the database instead of `scale`, rounded up to whole units of scale. "
        "0: `scale` counts.",
    )
    content: Literal["text", "blank"] = param(
        "text",
        meaning="What the rows hold. `text` is words and identifiers that compress about 2:1 with lz4, as "
        "real tables do; `blank` is pgbench's own filling, which compresses about 10:1 and flatters"
        " every compressed layout.",
    )
    script: Literal["tpcb", "mix21"] = param(
        "tpcb",
        meaning="What a transaction does. `tpcb` is pgbench's TPC-B-like script: three updates, an insert, "
        "one read. `mix21` reads twice for every write: four reads by key, one update, one insert.",
    )
    clients: int = param(8, ge=1, le=1000, unit="connections", meaning="Clients that work at the same time.")
    seconds: int = param(30, ge=1, le=86_400, unit="s", meaning="How long the recorded load lasts.")
    rate: float = param(
        200.0,
        ge=0,
        unit="transactions/s",
        meaning="Transactions that become due per second, in all: with a fixed rate the same work is "
        "recorded on a fast and on a slow machine. 0: each client starts the next when the last is "
        "done, so the load is as high as this machine allows.",
    )
    warmup: int = param(
        3,
        ge=0,
        le=3600,
        unit="s",
        meaning="The same load, as fast as it goes, for so long before the recorded part, so that "
        "PostgreSQL's cache is as in use.",
    )
    seed: int = param(1, ge=0, le=2**30 - 1, meaning="Decides the rows and the random keys of the load.")
    shared_buffers: Size = param(
        "32M",
        ge=128 * 1024,
        unit="bytes",
        meaning="PostgreSQL's own cache. Small beside the database, so that its reads reach the file system.",
        validate_default=True,
    )
    checkpoint_timeout: int = param(
        30,
        ge=30,
        le=86_400,
        unit="s",
        meaning="Longest time between checkpoints. 30 s is the least that PostgreSQL takes; in a short run "
        "it is `max_wal_size` that brings checkpoints about.",
    )
    max_wal_size: Size = param(
        "64M",
        ge=2 * SEGMENT_SIZE,
        unit="bytes",
        meaning="A checkpoint begins when about half of this has been written to the WAL since the last "
        "one. Checkpoints write changed pages to the data files, sync them, and make the next "
        "change of every page go to the WAL in full. With PostgreSQL's default of 1 GB a run of 30 "
        "s would hold none; 64 MiB gives one about every 12 s at the default rate.",
        validate_default=True,
    )
    final_checkpoint: bool = param(
        True,
        meaning="End the recorded part with a checkpoint, so that every page the load changed is written "
        "within the trace, as it would be sooner or later on a server that runs on.",
    )
    full_page_writes: bool = param(
        True,
        meaning="Write a whole page to the WAL at its first change after a checkpoint. It protects against "
        "torn pages; `off` is safe only on a file system that never tears one: on ZFS with a "
        "recordsize of at least the page size, and not for tools that rely on it (pg_rewind, base "
        "backups).",
    )
    wal_recycle: bool = param(
        True,
        meaning="Rename old WAL segments for reuse instead of making new ones. Saves nothing on a "
        "copy-on-write file system, and overwriting an old segment may have to read it first.",
    )
    wal_init_zero: bool = param(
        True,
        meaning="Fill new WAL segments with zeros before use. On a copy-on-write file system this reserves "
        "nothing.",
    )
    wal_compression: Literal["off", "pglz", "lz4", "zstd"] = param(
        "off",
        meaning="How PostgreSQL compresses whole pages in the WAL. `lz4` and `zstd` need PostgreSQL 15.",
    )

    @property
    def resolved_scale(self) -> int:
        """The scale that counts: from ``size`` if that is given."""
        return max(1, -(-self.size // filler.BYTES_PER_SCALE)) if self.size else self.scale


class PostgresOltp:
    """pgbench on a private PostgreSQL: data and WAL in directories of their own, rows that compress as real
    ones.
    """

    name: ClassVar[str] = "postgres-oltp"
    summary: ClassVar[str] = (
        "short transactions on a PostgreSQL of our own (pgbench: TPC-B-like or 2:1 read:write)"
    )
    Parameters: ClassVar[type[base.Parameters]] = OltpParameters

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self.params: OltpParameters = OltpParameters.parse(self.name, values)
        self._binaries: Binaries | None = None
        self._server: PostgresServer | None = None
        self._workdir: WorkDir | None = None
        self._history_before = 0

    def check(self) -> str:
        """Return the version that would run; ``MissingError`` names the command that brings it."""
        Account.for_database("postgres")
        if self._binaries is None:
            self._binaries = find_binaries()
        return f"PostgreSQL {self._binaries.version}"

    @property
    def server(self) -> PostgresServer:
        """The server; there is one after ``prepare``."""
        if self._server is None:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return self._server

    def prepare(self, workdir: WorkDir) -> None:
        """Make an empty cluster below ``workdir``."""
        self.check()
        assert self._binaries is not None
        self._workdir = workdir
        self._server = PostgresServer(self._binaries, workdir, Account.for_database("postgres"))
        self._server.initialise()

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Fill the database, without the brakes that only matter for survival, and shut it down in order."""
        server = self.server
        server.configure(
            {
                # In a transaction that has just truncated the table this leaves rows out of the WAL
                # altogether.
                "wal_level": "minimal",
                "max_wal_senders": 0,
                "fsync": False,
                "synchronous_commit": False,
                "full_page_writes": False,
                "autovacuum": False,
                "shared_buffers": "128MB",
                "maintenance_work_mem": "256MB",
                "max_wal_size": "4GB",
            }
        )
        server.start()
        scale = self.params.resolved_scale
        server.client("pgbench", "--initialize", "--init-steps=dt", f"--scale={scale}", "--quiet")
        rows = scale * filler.ROWS_PER_SCALE
        step = -(-rows // _FILL_STEPS)
        statements = [
            "BEGIN;",
            "TRUNCATE pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history;",
            f"INSERT INTO pgbench_branches (bid, bbalance) SELECT n, 0 FROM generate_series(1, {scale}) n;",
            "INSERT INTO pgbench_tellers (tid, bid, tbalance)"
            f" SELECT n, (n - 1) / 10 + 1, 0 FROM generate_series(1, {10 * scale}) AS n;",
        ]
        for first in range(1, rows + 1, step):
            last = min(rows, first + step - 1)
            select = filler.row_sql(self.params.content, self.params.seed, first, last)
            statements += [
                f"INSERT INTO pgbench_accounts (aid, bid, abalance, filler) {select};",
                f"\\echo filled {last}",
            ]
        statements += ["COMMIT;"]

        def note(line: str) -> None:
            word, _, number = line.partition(" ")
            if word == "filled":
                progress("fill the database", 0.9 * int(number) / rows)

        server.sql("\n".join(statements), seconds=60 + scale * 30, on_line=note)
        server.client("pgbench", "--initialize", "--init-steps=pv", "--quiet", seconds=60 + scale * 30)
        found = int(server.value("SELECT count(*) FROM pgbench_accounts"))
        if found != rows:
            raise ZtuneError(
                f"{self.name}: pgbench_accounts should have {rows} rows after the fill but has {found}"
            )
        server.stop()
        progress("fill the database", 1.0)

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server with the settings asked for, age its WAL, and warm it with the load itself."""
        params, server = self.params, self.server
        server.configure(self._settings())
        server.start()
        if params.wal_recycle:
            self._age_wal()
        if params.warmup:
            self._pgbench(params.warmup, params.seed + 1, "warm up", progress, log=False)
        server.sql("CHECKPOINT;")
        self._history_before = self._history_rows()

    def _settings(self) -> dict[str, str | int | bool]:
        params = self.params
        compression: str = params.wal_compression
        if compression == "pglz" and self.server.binaries.major < 15:
            compression = "on"  # What the one method was called before there was a choice.
        return {
            "shared_buffers": f"{params.shared_buffers // 1024}kB",
            "max_connections": params.clients + 20,
            "checkpoint_timeout": f"{params.checkpoint_timeout}s",
            "max_wal_size": f"{params.max_wal_size // _MIB}MB",
            # As many recycled segments are kept as are ever in use: PostgreSQL's steady state.
            "min_wal_size": f"{params.max_wal_size // _MIB}MB",
            "full_page_writes": params.full_page_writes,
            "wal_recycle": params.wal_recycle,
            "wal_init_zero": params.wal_init_zero,
            "wal_compression": compression,
            "fsync": True,
            "synchronous_commit": True,
        }

    def _age_wal(self) -> None:
        """Go through as many segments as are kept, so that the load meets recycled ones, as on a server
        in use.

        On a new cluster every segment would first be made and filled with zeros: twice the WAL writes,
        which a server that has run for an hour doesn't have.
        """
        segments = self.params.max_wal_size // SEGMENT_SIZE
        switch = "SELECT pg_logical_emit_message(true, 'ztune', 'age'); SELECT pg_switch_wal();\n"
        self.server.sql(switch * segments + "CHECKPOINT;")

    def pids(self) -> list[int]:
        """Return the postmaster's pid."""
        return [self.server.pid]

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it; that reads the tables, so it has no place in the recorded
        part.
        """
        params, server = self.params, self.server
        before = self._counters()
        outcome, latencies = self._pgbench(params.seconds, params.seed, "run the load", progress, log=True)
        if params.final_checkpoint:
            server.sql("CHECKPOINT;")
        after = self._counters()
        if outcome.transactions == 0:
            raise ZtuneError(
                f"{self.name}: no transaction was done in {params.seconds} s; allow it more time"
            )
        return WorkloadResult(
            seconds=params.seconds,
            operations=outcome.transactions,
            unit="transaction",
            latency_ms=pgbench.latency_summary(latencies),
            details={
                "tps": outcome.transactions / params.seconds,
                "failed": outcome.failed,
                "latencies_logged": int(latencies.size),
                "wal_bytes": after["wal"] - before["wal"],
                "checkpoints": after["checkpoints"] - before["checkpoints"],
                "checkpoint_pages": after["pages"] - before["pages"],
                "database_bytes": after["database"],
                "scale": params.resolved_scale,
            },
        )

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        Every transaction leaves one row in ``pgbench_history``, with what it added to a balance: so the
        rows are as many as the transactions committed, the balances add up, and no page had a wrong
        checksum.

        Raises:
            ZtuneError: a check does not hold.
        """
        server = self.server
        rows = self._history_rows() - self._history_before
        sums = "SELECT (SELECT sum(delta) FROM pgbench_history), (SELECT sum(abalance) FROM pgbench_accounts)"
        [(deltas, balances)] = server.sql(sums)
        bad = int(server.value("SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database"))
        checks = (
            Check("rows added to pgbench_history", result.operations, rows),
            Check("sum of pgbench_accounts.abalance", int(deltas), int(balances)),
            Check("pages with a wrong checksum", 0, bad),
        )
        return replace(result, checks=checks).require_ok(self.name)

    def _history_rows(self) -> int:
        return int(self.server.value("SELECT count(*) FROM pgbench_history"))

    def _counters(self) -> dict[str, int]:
        # Checkpoint counters moved to a view of their own in 17.
        source = (
            "SELECT num_timed + num_requested, buffers_written FROM pg_stat_checkpointer"
            if self.server.binaries.major >= 17
            else "SELECT checkpoints_timed + checkpoints_req, buffers_checkpoint FROM pg_stat_bgwriter"
        )
        others = "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, pg_database_size(current_database())"
        [(checkpoints, pages, wal, database)] = self.server.sql(f"SELECT c.*, {others} FROM ({source}) AS c")
        return {
            "checkpoints": int(checkpoints),
            "pages": int(pages),
            "wal": int(wal),
            "database": int(database),
        }

    def _pgbench(
        self, seconds: int, seed: int, step: str, progress: ProgressFn, *, log: bool
    ) -> tuple[pgbench.Outcome, Any]:
        params, server = self.params, self.server
        prefix = server.home / "latency"
        args: list[str | Path] = [
            # Without this pgbench empties pgbench_history, our proof.
            "--no-vacuum",
            "--protocol=prepared",
            f"--client={params.clients}",
            f"--jobs={min(params.clients, os.cpu_count() or 1)}",
            f"--time={seconds}",
            f"--random-seed={seed}",
            "--progress=1",
        ]
        if params.script == "tpcb":
            args.append("--builtin=tpcb-like")
        else:
            script = server.home / f"{params.script}.sql"
            script.write_text(pgbench.MIX21, encoding="utf-8")
            args += [f"--file={script}", f"--define=scale={params.resolved_scale}"]
        if params.rate and log:
            # The warm-up (without a log) is to fill the cache, however low the rate.
            args.append(f"--rate={params.rate:g}")
        if log:
            args += ["--log", f"--log-prefix={prefix}"]
            share = pgbench.sampling_rate(seconds)
            if share < 1:
                args.append(f"--sampling-rate={share:.6f}")

        def note(line: str) -> None:
            gone = pgbench.parse_progress(line)
            if gone is not None:
                progress(step, min(1.0, gone / seconds))

        text = server.client("pgbench", *args, seconds=seconds + 120, on_line=note)
        progress(step, 1.0)
        logs = list(server.home.glob("latency.*"))
        latencies = pgbench.read_latencies(logs)
        for path in logs:
            path.unlink()
        return pgbench.parse_output(text), latencies

    def stop(self) -> None:
        """Shut the server down in order."""
        if self._server is not None:
            self._server.stop()

    def cleanup(self) -> None:
        """End the server at once and remove the work directory."""
        with uninterrupted():
            try:
                if self._server is not None:
                    self._server.kill()
            finally:
                if self._workdir is not None:
                    self._workdir.remove()

    def role_paths(self) -> dict[str, Path]:
        """Return the directories of data, WAL and temporary files (which lie below data)."""
        server = self.server
        return {"data": server.data, "wal": server.wal, "temp": server.data / "base" / "pgsql_tmp"}

    def page_sizes(self) -> dict[str, int]:
        """Return PostgreSQL's page size, for data and for WAL."""
        return {"data": PAGE_SIZE, "wal": PAGE_SIZE, "temp": PAGE_SIZE}

    def info(self, result: WorkloadResult | None = None) -> dict[str, Any]:
        """Return name, resolved parameters, result and version, as JSON."""
        return {
            "name": self.name,
            "parameters": self.params.resolved(),
            "result": result.to_json() if result is not None else {},
            "version": self.check(),
        }
