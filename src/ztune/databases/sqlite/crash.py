"""SQLite in a crash test: a process for each client, its own integrity check for the check."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ztune.databases import crash_test as base
from ztune.databases.crash_test import NOTE, SCHEMA, Found, FoundAccount, FoundEntry, Transaction
from ztune.databases.sqlite import crash_client as sqlite_client
from ztune.databases.sqlite.onhost.transactions import Sqlite as Job
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import filler, software
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.conversation import Client, text_of

DATABASE = "ledger.db"
_MADE = ("page_size", "auto_vacuum", "journal_mode")
"""Settings that must be there when the database is made."""
_START_SECONDS = 120.0


class Session(base.Session):
    """One connection, in a process of its own."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def commit(self, transaction: Transaction) -> bool:
        """Do one transaction; whether it was acknowledged."""
        row = [*transaction.row.values()]
        return self.answered(lambda: self.client.do("commit", {"row": row}))

    def checkpoint(self) -> bool:
        """Bring the log into the database."""
        return self.answered(lambda: self.client.do("checkpoint", {}))

    def close(self) -> None:
        """End the process."""
        self.client.program.kill()


class Sqlite(base.Tested[Session]):
    """The database of ``sqlite``."""

    workload = "sqlite"
    job_class = Job
    checks = ("PRAGMA integrity_check", "a full scan")

    def __init__(self, params: Mapping[str, Any], settings: Mapping[str, str], *, clients: int) -> None:
        """Take the settings; nothing is started."""
        super().__init__(params, settings, clients=clients)
        self._user = Account.for_database("nobody")
        self.checkpoints = self.settings["journal_mode"] == "wal"
        found = software.pythons("import sqlite3; print(1)", self._user, patience=self.job.patience)
        python = next(found, None)
        if python is None:
            raise MissingError(f"there is no Python with sqlite3 that user {self._user.name!r} can run")
        self._python = python[0]
        self._home = Path()
        self._file = Path()

    def prepare(self, workdir: WorkDir, given: Mapping[str, Path]) -> None:
        """Take the directory."""
        if given["data"] != given["wal"]:
            raise InputError(
                "sqlite: the layout gives data and wal datasets of their own, but SQLite keeps its log "
                "beside its database; give one dataset both roles"
            )
        places.take("data", given["data"], workdir, self._user)
        self._home = workdir.sub("run", owner=self._user.owner)
        places.must_be_reachable((self._home, given["data"]), workdir, self._user, patience=self.job.patience)
        self._file = given["data"] / DATABASE
        places.lend(self._home / "client.py", text_of(sqlite_client), self._user)

    def load(self, accounts: int) -> None:
        """Make the database."""
        settings = self.settings
        session = self._session("load")
        try:
            session.client.do(
                "load",
                {
                    "path": str(self._file),
                    "pragmas": {name: settings[name] for name in _MADE if name in settings},
                    "schema": list(SCHEMA),
                    "accounts": accounts,
                    "notes": list(filler.PHRASES),
                },
            )
        finally:
            self.cut()

    def start(self, seconds: float | None = None) -> None:
        """Open the database and read of it, which recovers it."""
        until = None if seconds is None else time.monotonic() + seconds
        session = self._session("keeper")
        if until is None:
            self._open(session, _START_SECONDS)
            return
        # What went wrong within these moments will be seen when there is time for it.
        with contextlib.suppress(ZtuneError):
            self._open(session, (seconds or 0) / self.job.patience)
        time.sleep(max(0.0, until - time.monotonic()))

    def _open(self, session: Session, seconds: float) -> None:
        settings = {name: value for name, value in self.settings.items() if name not in _MADE[:2]}
        found = session.client.do(
            "open",
            {
                "path": str(self._file),
                "pragmas": settings,
                "busy_ms": round(60_000 * self.job.patience),
                "note": NOTE,
            },
            seconds=seconds,
        )
        mode = settings["journal_mode"]
        if found["settings"]["journal_mode"] != mode:
            raise ZtuneError(
                f"sqlite: journal_mode is {found['settings']['journal_mode']}, not {mode}, which was set"
            )

    def client(self) -> Session:
        """Start a process and connect."""
        session = self._session(f"client-{len(self.sessions)}")
        self._open(session, _START_SECONDS)
        return session

    def _session(self, name: str) -> Session:
        client = Client(
            [self._python, "-I", "-B", self._home / "client.py"],
            what="the SQLite client",
            account=self._user,
            home=self._home,
            log=self._home / f"{name}.log",
            patience=self.job.patience,
            env={"SQLITE_TMPDIR": str(self._home)},
        )
        session = Session(client)
        self.sessions.append(session)
        return session

    def read(self) -> Found:
        """Return both tables, and what integrity_check says."""
        try:
            answer = self.sessions[0].client.do("read")
        except ZtuneError as error:
            return Found(complaints=[f"the tables can't be read: {error}"])
        return Found(
            [FoundEntry(*row) for row in answer["entries"]],
            [FoundAccount(*row) for row in answer["accounts"]],
            [f"integrity_check: {text}" for text in answer["said"] if text != "ok"],
        )

    def watch(self) -> None:
        """Raise ZtuneError if the first connection died by itself."""
        program = self.sessions[0].client.program
        if not program.alive():
            raise ZtuneError(f"{program.what} {program.how_it_ended()} by itself")

    def cut(self) -> None:
        """End every process at once."""
        for session in self.sessions:
            session.client.program.popen.kill()
        self.close_sessions()

    def end(self) -> None:
        """End every process; all else lies in the work directory."""
        self.cut()
