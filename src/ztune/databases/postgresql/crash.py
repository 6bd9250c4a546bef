"""PostgreSQL in a crash test: a psql for each client; pg_amcheck and a full scan with checksums as check."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ztune.databases import crash_test as base
from ztune.databases.crash_test import NOTE, SCHEMA, Found, FoundAccount, FoundEntry, Transaction
from ztune.databases.postgresql.onhost.oltp import PostgresOltp
from ztune.databases.postgresql.onhost.server import PostgresServer, find_binaries
from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host.process import Program, last_lines
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.filler import WORDS

_SCHEMA = f"""
CREATE EXTENSION amcheck;
{"; ".join(SCHEMA)};
INSERT INTO account SELECT n, 0, 0, 0, 0, rpad('{WORDS[0]} ' || n, {NOTE}, ' {WORDS[1]}')
  FROM generate_series(1, :accounts) n;
"""
# One line, so one message to the server: the answer comes after the commit.
_COMMIT = (
    "BEGIN\\; INSERT INTO ledger VALUES ({client}, {number}, {source}, {target}, {delta}, '{payload}',"
    " '{checksum}')\\; {updates} COMMIT;\n"
)
_UPDATE = (
    "UPDATE account SET balance = balance + ({delta}), version = version + 1, last_client = {client},"
    " last_number = {number}, note = '{note}' WHERE id = {id}\\;"
)
_READ_LEDGER = """
SELECT client, number, source, target, delta,
  md5(concat_ws(':', client, number, source, target, delta, payload)) = checksum FROM ledger;
"""
_READ_ACCOUNTS = f"""
SELECT id, balance, version, version = 0
  OR coalesce(note = substr(payload, 1, {NOTE}) AND id IN (source, target), false)
  FROM account LEFT JOIN ledger ON client = last_client AND number = last_number;
"""
# An index may hide what the table has lost, and the other way round: the reading takes the tables,
# pg_amcheck compares both.
_BY_SCAN = "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;"


class Session(base.Session):
    """A psql that is told one transaction at a time."""

    def __init__(self, server: PostgresServer, log: Path) -> None:
        self.log = log
        self.program = Program.start(
            [
                server.binaries["psql"],
                *("--no-psqlrc", "--quiet", "--no-align", "--tuples-only"),
                *("--set=ON_ERROR_STOP=1", "--file=-"),
            ],
            what="psql",
            account=server.account,
            cwd=server.home,
            env=server.client_env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            log=log,
        )

    def commit(self, transaction: Transaction) -> bool:
        """Do one transaction; whether it was acknowledged."""
        t = transaction
        updates = " ".join(
            _UPDATE.format(delta=delta, client=t.client, number=t.number, note=t.payload[:NOTE], id=id_)
            for id_, delta in t.changes
        )
        return self._ask(_COMMIT.format(**t.row, updates=updates), f"{t.client}/{t.number}")

    def checkpoint(self) -> bool:
        """Have the server make a checkpoint."""
        return self._ask("CHECKPOINT;\n", "checkpoint")

    def _ask(self, statement: str, mark: str) -> bool:
        pipes = self.program.popen
        assert pipes.stdin is not None and pipes.stdout is not None
        try:
            # psql ends at the first error, so it comes to the mark only when the statement was done.
            pipes.stdin.write(f"{statement}\\echo {mark}\n".encode())
            pipes.stdin.flush()
            return pipes.stdout.readline() == f"{mark}\n".encode()
        except (OSError, ValueError):
            return False

    def said(self) -> str:
        """Return its last words."""
        return last_lines(self.log) or "(nothing)"

    def close(self) -> None:
        """End it."""
        self.program.kill()
        with contextlib.suppress(OSError):
            assert self.program.popen.stdin is not None
            self.program.popen.stdin.close()


class Postgres(base.TestedServer[Session, PostgresServer]):
    """The database of ``postgres-oltp``."""

    workload = "postgres-oltp"
    job_class = PostgresOltp
    checks = ("pg_amcheck --heapallindexed", "a full scan with data checksums")

    def __init__(self, params: Mapping[str, Any], settings: Mapping[str, str], *, clients: int) -> None:
        """Take the settings; nothing is started."""
        super().__init__(params, settings, clients=clients)
        binaries = find_binaries(patience=self.job.patience)
        if not os.access(binaries["pg_amcheck"], os.X_OK):
            raise MissingError(
                f"pg_amcheck, which checks a cluster after each cut, is not in {binaries.directory}; "
                "PostgreSQL 14 and later bring it"
            )

    def prepare(self, workdir: WorkDir, places: Mapping[str, Path]) -> None:
        """Take the directories."""
        self.job.prepare(workdir, places)
        self._server = self.job.server

    def load(self, accounts: int) -> None:
        """Make the cluster and the tables."""
        self.server.initialise()
        self.server.configure(self.settings)
        self.server.start()
        self.server.sql(_SCHEMA.replace(":accounts", str(accounts)))
        self.server.stop()

    def start(self, seconds: float | None = None) -> None:
        """Start the server, which replays its WAL."""
        self.server.start(leave_after=seconds)

    def client(self) -> Session:
        """Start a psql."""
        session = Session(self.server, self.server.workdir.path / f"psql-{len(self.sessions) + 1}.log")
        session.log.unlink(missing_ok=True)
        self.sessions.append(session)
        return session

    def read(self) -> Found:
        """Return both tables, read in full, and what pg_amcheck says."""
        found = Found()
        try:
            for row in self.server.sql(_BY_SCAN + _READ_LEDGER + _READ_ACCOUNTS):
                right = row[-1] == "t"
                if len(row) == 6:
                    client, number, source, target, delta = map(int, row[:-1])
                    found.entries.append(FoundEntry(client, number, source, target, delta, right))
                else:
                    id_, balance, version = map(int, row[:-1])
                    found.accounts.append(FoundAccount(id_, balance, version, right))
        except ZtuneError as error:
            return Found(complaints=[f"the tables can't be read: {error}"])
        try:
            self.server.client("pg_amcheck", "--heapallindexed", "--database=postgres")
        except ZtuneError as error:
            found.complaints.append(str(error))
        return found

    def cut(self) -> None:
        """End server and clients at once."""
        super().cut()
        self.close_sessions()
