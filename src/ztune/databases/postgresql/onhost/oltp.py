"""``postgres-oltp``: many short transactions on a PostgreSQL of our own."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ztune.databases.postgresql.onhost import pgbench
from ztune.databases.postgresql.onhost import time as postgres_time
from ztune.databases.postgresql.onhost.server import (
    OWNED,
    PAGE_SIZE,
    WORDS,
    Binaries,
    PostgresServer,
    check_settings,
    find_binaries,
)
from ztune.errors import ZtuneError
from ztune.onhost import latency
from ztune.onhost.jobs import busy, filler
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.server import ServerJob
from ztune.onhost.jobs.settings import check_values
from ztune.units import parse_size

_MIB = 1 << 20
_FILL_STEPS = 20
# Statistics are collected by the server's processes for themselves and published when these are idle; the
# checkpointer does it just after it has answered.
_PUBLISH_SECONDS = 0.1


def _on_off(value: bool) -> str:
    return "on" if value else "off"


def resolved_scale(size: int, scale: int) -> int:
    """Return pgbench's scale for a database of ``size`` bytes, rounded up; ``scale`` if ``size`` is 0."""
    return max(1, -(-size // filler.BYTES_PER_SCALE)) if size else scale


class PostgresOltp(ServerJob[PostgresServer]):
    """pgbench on a private PostgreSQL: data and WAL in directories of their own, rows that compress as real
    ones.
    """

    name: ClassVar[str] = "postgres-oltp"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal")
    LOADED: ClassVar[tuple[str, ...]] = ("scale", "size", "content", "seed")
    user = "postgres"

    def _set_up(self) -> None:
        super()._set_up()
        self.scale = resolved_scale(parse_size(self.params["size"]), int(self.params["scale"]))
        self._binaries: Binaries | None = None
        self._before: dict[str, Any] = {}

    def check_settings(self) -> None:
        """Refuse settings that aren't the layout's, or whose value is none of theirs."""
        check_values(self.database, WORDS, OWNED)

    def check(self) -> str:
        """Return the version that would run.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
            InputError: ``database`` has a setting that PostgreSQL has not, or that isn't the layout's.
        """
        if self._binaries is None:
            found = find_binaries(patience=self.patience)
            check_settings(found, self.database, patience=self.patience)
            self._binaries = found
        return f"PostgreSQL {self._binaries.version}"

    def lay_out(self) -> None:
        """Note where the server is to be; the cluster itself is made by ``load``."""
        assert self._binaries is not None and self.workdir is not None
        data, wal = self._paths["data"], self._paths["wal"]
        self._server = PostgresServer(
            self._binaries, self.workdir, self.home, self.account, data=data, wal=wal, patience=self.patience
        )

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Make and fill the database, without the brakes that only matter for survival, and shut it down in
        order.
        """
        server = self.server
        server.initialise()
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
        server.client("pgbench", "--initialize", "--init-steps=dt", f"--scale={self.scale}", "--quiet")
        rows = self.scale * filler.ROWS_PER_SCALE
        step = -(-rows // _FILL_STEPS)
        statements = [
            "BEGIN;",
            "TRUNCATE pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history;",
            (
                "INSERT INTO pgbench_branches (bid, bbalance)"
                f" SELECT n, 0 FROM generate_series(1, {self.scale}) n;"
            ),
            (
                "INSERT INTO pgbench_tellers (tid, bid, tbalance)"
                f" SELECT n, (n - 1) / 10 + 1, 0 FROM generate_series(1, {10 * self.scale}) AS n;"
            ),
        ]
        for first in range(1, rows + 1, step):
            last = min(rows, first + step - 1)
            select = filler.row_sql(self.params["content"], int(self.params["seed"]), first, last)
            statements += [
                f"INSERT INTO pgbench_accounts (aid, bid, abalance, filler) {select};",
                f"\\echo filled {last}",
            ]
        statements += ["COMMIT;", "SELECT 'rows', count(*) FROM pgbench_accounts;"]

        def note(line: str) -> None:
            word, _, number = line.partition(" ")
            if word == "filled":
                progress("fill the database", 0.9 * int(number) / rows)

        said = server.sql("\n".join(statements), seconds=60 + self.scale * 30, on_line=note)
        found = {row[0]: row[1] for row in said if len(row) == 2}
        if found.get("rows") != str(rows):
            raise ZtuneError(
                f"{self.name}: pgbench_accounts should have {rows} rows after the fill but has "
                f"{found.get('rows', 'none')}"
            )
        server.client("pgbench", "--initialize", "--init-steps=pv", "--quiet", seconds=60 + self.scale * 30)
        server.stop()
        progress("fill the database", 1.0)

    def take_over(self) -> None:
        """Look at a cluster that was copied; the link to its WAL is set anew."""
        self.server.adopt()

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server with the settings asked for, age its WAL, and warm it with the load itself."""
        server = self.server
        settings = postgres_time.slower(self.settings(), self.dilation)
        if settings["wal_compression"] == "pglz" and server.binaries.major < 15:
            settings["wal_compression"] = "on"  # What the one method was called before there was a choice.
        if server.binaries.major >= 14:
            # Two looks at the clock for each write of the log and each sync: nothing beside these.
            settings.setdefault("track_wal_io_timing", "on")
        server.configure(settings)
        server.start()
        warmup = round(int(self.params["warmup"]) * self.dilation)
        if warmup:
            server.sql(_AGE_WAL)
            # To fill the cache, however low the rate.
            self._pgbench(warmup, int(self.params["seed"]) + 1, 0.0, "warm up", progress, log=False)
        names = ", ".join(f"'{name}'" for name in settings)
        [*_, [counters], [history], [branches], [chosen]] = server.sql(
            f"{'' if warmup else _AGE_WAL} CHECKPOINT; SELECT pg_sleep({self._publish:g}) \\g /dev/null\n"
            f"{self._counters_sql()}; SELECT count(*) FROM pgbench_history;"
            " SELECT count(*) FROM pgbench_branches;"
            "SELECT json_object_agg(name, current_setting(name)) FROM pg_settings"
            f" WHERE name IN ({names});"
        )
        if int(branches) != self.scale:
            raise ZtuneError(
                f"{self.name}: the database has scale {branches}, not {self.scale}; load it anew"
            )
        self._before = json.loads(counters) | {"history": int(history), "settings": json.loads(chosen)}

    @property
    def _publish(self) -> float:
        return _PUBLISH_SECONDS * min(self.patience, 20.0)

    def settings(self) -> dict[str, str]:
        """Return what goes into the configuration: the parameters, overridden by the layout's settings."""
        params = self.params
        max_wal = f"{parse_size(params['max_wal_size']) // _MIB}MB"
        return {
            "shared_buffers": f"{parse_size(params['shared_buffers']) // 1024}kB",
            "max_connections": str(int(params["clients"]) + 20),
            "checkpoint_timeout": f"{params['checkpoint_timeout']}s",
            "max_wal_size": max_wal,
            # As many recycled segments are kept as are ever in use: PostgreSQL's steady state.
            "min_wal_size": self.database.get("max_wal_size", max_wal),
            "full_page_writes": _on_off(params["full_page_writes"]),
            "wal_recycle": _on_off(params["wal_recycle"]),
            "wal_init_zero": _on_off(params["wal_init_zero"]),
            "fsync": "on",
            "synchronous_commit": "on",
            "wal_compression": str(params["wal_compression"]),
            **self.database,
        }

    def expected_bytes(self) -> dict[str, int]:
        """Return the size of table and index with what every new cluster has, and of the WAL that is kept."""
        return {
            "data": self.scale * filler.BYTES_PER_SCALE + 24 * _MIB,
            "wal": parse_size(self.params["max_wal_size"]),
        }

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it; that reads the tables, so it has no place in the measured
        part.
        """
        seconds = max(1, round(int(self.params["seconds"]) * self.dilation))
        if not self._before:
            raise ZtuneError(f"{self.name}: start comes before this step")
        if self.params.get("busy"):
            return busy.result(self.calibrate(progress), "transaction")
        rate = float(self.params["rate"]) / self.dilation
        outcome, latencies = self._pgbench(
            seconds, int(self.params["seed"]), rate, "run the load", progress, log=True
        )
        began = time.monotonic()
        checkpoint = "CHECKPOINT;" if self.params["final_checkpoint"] else ""
        [[counters]] = self.server.sql(
            f"{checkpoint} SELECT pg_sleep({self._publish:g}) \\g /dev/null\n{self._counters_sql()};"
        )
        closing = time.monotonic() - began
        if outcome.transactions == 0:
            raise ZtuneError(f"{self.name}: no transaction was done in {seconds} s; allow it more time")
        after = json.loads(counters)
        # By pgbench's own clock, from the first transaction to the end of the last.
        spent = outcome.transactions / outcome.tps if outcome.tps else float(seconds)
        return WorkloadResult(
            seconds=spent,
            operations=outcome.transactions,
            unit="transaction",
            latency_ms=latency.summary(latencies),
            offered_per_second=rate,
            log=self._log(after),
            details={
                "tps": outcome.transactions / spent * self.dilation,
                "failed": outcome.failed,
                "latencies_logged": len(latencies),
                "closing_seconds": round(closing / self.dilation, 3),
                **self._differences(after, outcome.transactions),
                "database_bytes": after["database"],
                "scale": self.scale,
                "settings": self._before["settings"],
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        Every transaction leaves one row in ``pgbench_history``, with what it added to a balance: so the
        rows are as many as the transactions committed, the balances of these accounts add up (to read all
        others of a large database takes longer than the load), and no page had a wrong checksum.

        Raises:
            ZtuneError: a check does not hold.
        """
        [[rows, deltas, balances, bad]] = self.server.sql(
            "SELECT (SELECT count(*) FROM pgbench_history), (SELECT sum(delta) FROM pgbench_history),"
            " (SELECT sum(abalance) FROM pgbench_accounts WHERE aid IN (SELECT aid FROM pgbench_history)),"
            " (SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database)"
        )
        checks = (
            Check("rows added to pgbench_history", result.operations, int(rows) - self._before["history"]),
            Check("sum of pgbench_accounts.abalance", int(deltas or 0), int(balances)),
            Check("pages with a wrong checksum", 0, int(bad)),
        )
        return replace(result, checks=checks).require_ok(self.name)

    def calibrate(self, progress: ProgressFn = no_progress) -> busy.Calibration:
        """Find the rate that keeps the processors as busy as ``busy`` says; it is the load's from then on."""

        def drive(rate: float, nth: int) -> tuple[int, float]:
            outcome, _ = self._pgbench(
                max(1, round(busy.STEP_SECONDS * self.dilation)),
                int(self.params["seed"]) + 2 + nth,
                rate / self.dilation,
                f"find the rate, step {nth + 1}",
                progress,
                log=False,
            )
            return outcome.transactions, (outcome.tps or 0.0) * self.dilation

        found = busy.find(float(self.params["busy"]) / 100, drive, busy.BusyProcessors())
        self.params |= {"rate": found.rate, "busy": 0}
        return found

    def recount(self) -> None:
        """Begin to count anew: for another ``run`` on the same server."""
        [[counters], [history]] = self.server.sql(
            f"{self._counters_sql()}; SELECT count(*) FROM pgbench_history;"
        )
        self._before |= json.loads(counters) | {"history": int(history)}

    def _counters_sql(self) -> str:
        """Return the SELECT of one JSON object: the server's own counters, as far as its version has them."""
        major = self.server.binaries.major
        parts = {
            "lsn": "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint",
            "database": "pg_database_size(current_database())",
            "bgwriter": "(SELECT row_to_json(b) FROM pg_stat_bgwriter AS b)",
            "blocks": "(SELECT json_build_object('read', blks_read, 'hit', blks_hit)"
            " FROM pg_stat_database WHERE datname = current_database())",
        }
        if major >= 14:
            parts["wal"] = "(SELECT row_to_json(w) FROM pg_stat_wal AS w)"
        if 14 <= major < 18:
            parts["log"] = _LOG.format(
                "wal_write", "wal_write_time", "wal_sync", "wal_sync_time", "pg_stat_wal"
            )
        elif major >= 18:
            # Filling new segments is the context "init": no write of the log before 18 either.
            parts["log"] = _LOG.format(
                "sum(writes)", "sum(write_time)", "sum(fsyncs)", "sum(fsync_time)",
                "pg_stat_io WHERE object = 'wal' AND context = 'normal'",
            )  # fmt: skip
        if major >= 16:
            # Writes by who made them: the checkpointer, the background writer, or a session that needed room.
            parts["io"] = (
                "(SELECT json_object_agg(backend_type, n) FROM (SELECT backend_type, sum(writes) AS n"
                " FROM pg_stat_io WHERE object = 'relation' GROUP BY 1) AS i)"
            )
        if major >= 17:
            parts["checkpointer"] = "(SELECT row_to_json(c) FROM pg_stat_checkpointer AS c)"
        fields = ", ".join(f"'{name}', {text}" for name, text in parts.items())
        return f"SELECT json_build_object({fields})"

    def _differences(self, after: dict[str, Any], transactions: int) -> dict[str, Any]:
        """Return what the server counted since ``start``, under names that hold for every version."""

        def grown(group: str, *names: str) -> int | None:
            old, new = self._before.get(group) or {}, after.get(group) or {}
            found = [name for name in names if name in new]
            return sum(int(new[name] or 0) - int(old.get(name) or 0) for name in found) if found else None

        wal = after["lsn"] - self._before["lsn"]
        found: dict[str, Any] = {
            # By the log's own position: exact, and there in every version.
            "wal_bytes": wal,
            "wal_bytes_per_transaction": round(wal / transactions, 1),
            "wal_records": grown("wal", "wal_records"),
            "wal_full_page_images": grown("wal", "wal_fpi"),
            "wal_buffers_full": grown("wal", "wal_buffers_full"),
            "wal_writes": grown("log", "writes"),
            "wal_syncs": grown("log", "syncs"),
            "pages_read": grown("blocks", "read"),
            "pages_hit": grown("blocks", "hit"),
            "pages_by_bgwriter": grown("bgwriter", "buffers_clean"),
            # Since 17 only pg_stat_io tells who wrote a page.
            "pages_by_sessions": grown("bgwriter", "buffers_backend")
            if "buffers_backend" in (after["bgwriter"] or {})
            else grown("io", "client backend"),
        }
        if "checkpointer" in after:
            found["checkpoints"] = grown("checkpointer", "num_timed", "num_requested")
            found["checkpoint_pages"] = grown("checkpointer", "buffers_written")
        else:
            found["checkpoints"] = grown("bgwriter", "checkpoints_timed", "checkpoints_req")
            found["checkpoint_pages"] = grown("bgwriter", "buffers_checkpoint")
        return {name: value for name, value in found.items() if value is not None}

    def _log(self, after: dict[str, Any]) -> dict[str, float]:
        """Return what the server counted of its log's writes since ``start``; since version 14."""
        old, new = self._before.get("log"), after.get("log")
        if not old or not new:
            return {}
        found = {name: float(new[name] or 0) - float(old[name] or 0) for name in new}
        if self._before["settings"].get("track_wal_io_timing") != "on":
            return {name: found[name] for name in ("writes", "syncs")}
        times = {f"{kind}_s": found[f"{kind}_ms"] / 1e3 for kind in ("write", "sync")}
        return {"writes": found["writes"], "syncs": found["syncs"], **times}

    def _pgbench(
        self, seconds: int, seed: int, rate: float, step: str, progress: ProgressFn, *, log: bool
    ) -> tuple[pgbench.PgbenchReport, list[float]]:
        params, server = self.params, self.server
        clients = int(params["clients"])
        prefix = server.home / "latency"
        args: list[str | Path] = [
            # Without this pgbench empties pgbench_history, our proof.
            "--no-vacuum",
            "--protocol=prepared",
            f"--client={clients}",
            f"--jobs={min(clients, os.cpu_count() or 1)}",
            f"--time={seconds}",
            f"--random-seed={seed}",
            "--progress=1",
        ]
        if params["script"] == "tpcb":
            args.append("--builtin=tpcb-like")
        else:
            script = server.home / f"{params['script']}.sql"
            places.write(script, pgbench.MIX21, mode=0o644)
            args += [f"--file={script}", f"--define=scale={self.scale}"]
        if rate:
            args.append(f"--rate={rate:g}")
        if log:
            args += ["--log", f"--log-prefix={prefix}"]
            share = pgbench.sampling_rate(seconds)
            if share < 1:
                args.append(f"--sampling-rate={share:.6f}")

        def note(line: str) -> None:
            gone = pgbench.parse_progress(line)
            if gone is not None:
                progress(step, min(1.0, gone / seconds))

        # Patience is for what surrounds the load; the load itself takes its time by the clock.
        text = server.client("pgbench", *args, seconds=seconds / self.patience + 120, on_line=note)
        progress(step, 1.0)
        logs = list(server.home.glob("latency.*"))
        latencies = pgbench.read_latencies(logs)
        for path in logs:
            path.unlink()
        return pgbench.parse_output(text), latencies

    def role_paths(self) -> dict[str, Path]:
        """Return the directories of data, WAL and temporary files (which lie below data)."""
        paths = super().role_paths()
        return {**paths, "temp": paths["data"] / "base" / "pgsql_tmp"}

    def page_sizes(self) -> dict[str, int]:
        """Return PostgreSQL's page size, for data and for WAL."""
        return {"data": PAGE_SIZE, "wal": PAGE_SIZE, "temp": PAGE_SIZE}


_LOG = "(SELECT json_build_object('writes', {}, 'write_ms', {}, 'syncs', {}, 'sync_ms', {}) FROM {})"
"""Writes and syncs of the log, counted and timed, by whom they are counted."""

# Goes through as many segments as are kept, so that the load meets recycled ones, as on a server in use. On a
# new cluster every segment would first be made and filled with zeros: twice the WAL writes, which a server
# that has run for an hour doesn't have. Without recycling each segment is new in use as well.
# The old segments hold a log's content, as after that hour: what is not overwritten of a record compresses
# with it. Rows stand for it, as most of a log is pages of rows.
_AGE_WAL = """
DO $$
DECLARE
  content text;
  bytes bigint := (SELECT setting::bigint * 1048576 FROM pg_settings WHERE name = 'max_wal_size');
BEGIN
  IF current_setting('wal_recycle')::bool THEN
    SELECT string_agg(a::text, '') INTO content FROM pgbench_accounts a WHERE aid <= 8000;
    FOR n IN 1..bytes / length(content) + 1 LOOP
      PERFORM pg_logical_emit_message(false, 'ztune', content);
    END LOOP;
  END IF;
END $$;
CHECKPOINT;
"""
