"""Valkey and Redis in a crash test: a connection for each client; their own program checks the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ztune.databases import crash_test as base
from ztune.databases.crash_test import NOTE, Found, FoundAccount, FoundEntry, Transaction
from ztune.databases.valkey.onhost.client import Connection, RefusedError, Reply
from ztune.databases.valkey.onhost.key_value import Valkey as Job
from ztune.databases.valkey.onhost.server import ValkeyServer
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import filler

_AT_ONCE = 500
_ACCOUNT = ("balance", "version", "last", "note")
_Command = tuple[str | int | bytes, ...]


class Session(base.Session):
    """One connection."""

    def __init__(self, server: ValkeyServer, *, logged: bool) -> None:
        self._server, self._logged = server, logged
        self.connection = server.connect()

    def commit(self, transaction: Transaction) -> bool:
        """Do one transaction; whether it was acknowledged."""
        t = transaction
        row = f"{t.source}:{t.target}:{t.delta}:{t.payload}:{t.checksum}"
        commands: list[_Command] = [("MULTI",), ("SET", f"ledger:{t.client}:{t.number}", row)]
        for id_, delta in t.changes:
            key = f"account:{id_}"
            commands += [
                ("HINCRBY", key, "balance", delta),
                ("HINCRBY", key, "version", 1),
                ("HSET", key, "last", f"{t.client}:{t.number}", "note", t.payload[:NOTE]),
            ]
        try:
            done = self.connection.all([*commands, ("EXEC",)])[-1]
        except (OSError, RefusedError) as error:
            self._said = str(error)
            return False
        return isinstance(done, list) and not any(isinstance(one, RefusedError) for one in done)

    def checkpoint(self) -> bool:
        """Have all keys written anew: into the append-only file or, where there is none, into a snapshot."""
        return self.answered(lambda: self._server.write_out(log=self._logged))

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


class Valkey(base.TestedServer[Session, ValkeyServer]):
    """The database of ``valkey``."""

    workload = "valkey"
    job_class = Job

    def __init__(self, params: Mapping[str, Any], settings: Mapping[str, str], *, clients: int) -> None:
        """Take the settings; nothing is started."""
        super().__init__(params, settings, clients=clients)
        log = (f"{self.job.binaries.check_aof.name} of the append-only file",) if self.job.logged else ()
        self.checks: tuple[str, ...] = (*log, "every key read")

    def prepare(self, workdir: WorkDir, given: Mapping[str, Path]) -> None:
        """Take the directory."""
        self.job.prepare(workdir, given)
        self._server = self.job.server
        self.server.configure(self.settings)

    def load(self, accounts: int) -> None:
        """Make the accounts."""
        self.server.start()
        with self.server.connect() as connection:
            _each(
                connection,
                (
                    (
                        "HSET", f"account:{n}", "balance", 0, "version", 0, "last", "0:0",
                        "note", f"{filler.PHRASES[n % len(filler.PHRASES)]} {n}",
                    )
                    for n in range(1, accounts + 1)
                ),
            )  # fmt: skip
        self.server.write_out(log=self.job.logged)
        self.server.stop()

    def start(self, seconds: float | None = None) -> None:
        """Start the server, which reads its files."""
        self.close_sessions()  # with a server that has ended
        self.server.start(leave_after=seconds)

    def client(self) -> Session:
        """Connect."""
        session = Session(self.server, logged=self.job.logged)
        self.sessions.append(session)
        return session

    def read(self) -> Found:
        """Return all keys, and what the program that checks the append-only file says."""
        found = Found()
        try:
            with self.server.connect() as connection:
                texts = _read_ledger(connection, found)
                _read_accounts(connection, found, texts)
        except (OSError, RefusedError, ValueError) as error:
            return Found(complaints=[f"the keys can't be read: {error}"])
        if self.job.logged:
            said = self.server.check_aof()
            found.complaints += [] if said == "valid" else [said]
        return found


def _each(connection: Connection, commands: Iterable[_Command]) -> list[Reply]:
    """Return the answers to many commands, some hundreds of which go at once."""
    todo = list(commands)
    return [
        answer
        for first in range(0, len(todo), _AT_ONCE)
        for answer in connection.all(todo[first : first + _AT_ONCE])
    ]


def _keys(connection: Connection, pattern: str) -> list[str]:
    found = connection.do("KEYS", pattern)
    assert isinstance(found, list)
    return [key.decode() for key in found]


def _read_ledger(connection: Connection, found: Found) -> dict[str, tuple[str, int, int]]:
    """Fill in the entries; return each one's note, source and target by client and number."""
    texts = {}
    keys = _keys(connection, "ledger:*")
    for key, row in zip(keys, _each(connection, (("GET", key) for key in keys)), strict=True):
        assert isinstance(row, bytes)
        _, client, number = key.split(":")
        source, target, delta, payload, checksum = row.decode(errors="replace").split(":")
        t = Transaction(int(client), int(number), int(source), int(target), int(delta), payload)
        found.entries.append(
            FoundEntry(t.client, t.number, t.source, t.target, t.delta, t.checksum == checksum)
        )
        texts[f"{client}:{number}"] = (payload[:NOTE], t.source, t.target)
    return texts


def _read_accounts(connection: Connection, found: Found, texts: Mapping[str, tuple[str, int, int]]) -> None:
    keys = _keys(connection, "account:*")
    for key, row in zip(keys, _each(connection, (("HMGET", key, *_ACCOUNT) for key in keys)), strict=True):
        assert isinstance(row, list)
        balance, version, last, note = (b"" if one is None else bytes(one) for one in row)
        id_ = int(key.split(":")[1])
        text, source, target = texts.get(last.decode(), ("", 0, 0))
        fits = int(version) == 0 or (note.decode() == text and id_ in (source, target))
        found.accounts.append(FoundAccount(id_, int(balance), int(version), fits))
