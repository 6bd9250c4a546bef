"""What a database's folder brings for crash tests: a class with the methods of ``TestedDatabase``.

The tester (``ztune.crash``) decides what is done and when the power fails. Each transaction moves an amount
between two accounts and leaves a row in a ledger; afterwards the database is asked for both, in full.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ztune.errors import ZtuneError
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.filler import WORDS
from ztune.onhost.jobs.job import JobBase
from ztune.onhost.jobs.server import DatabaseServer

SCHEMA = (
    (
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL, version INTEGER NOT NULL, "
        "last_client INTEGER NOT NULL, last_number INTEGER NOT NULL, note TEXT NOT NULL)"
    ),
    "CREATE INDEX account_note ON account (note)",
    (
        "CREATE TABLE ledger (client INTEGER, number INTEGER, source INTEGER NOT NULL, "
        "target INTEGER NOT NULL, delta BIGINT NOT NULL, payload TEXT NOT NULL, checksum TEXT NOT NULL, "
        "PRIMARY KEY (client, number))"
    ),
    "CREATE INDEX ledger_checksum ON ledger (checksum)",
)
"""The tables of a database that speaks SQL."""
NOTE = 120
"""How many characters of a transaction's text its two accounts keep."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of a client: a row for the ledger, and a change of two accounts."""

    client: int
    number: int
    """1 for the client's first."""
    source: int
    target: int
    delta: int
    payload: str
    """Words, so that nothing of it needs quoting."""

    @property
    def checksum(self) -> str:
        """The MD5 of all the rest, as the database computes it too."""
        text = ":".join(map(str, astuple(self)))
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    @property
    def row(self) -> dict[str, str | int]:
        """Its fields in order, the checksum last."""
        return {**asdict(self), "checksum": self.checksum}

    @property
    def changes(self) -> list[tuple[int, int]]:
        """Account and the change of its balance, for both, in the order of the accounts: two clients that
        change them so never wait for each other.
        """
        return sorted(((self.source, -self.delta), (self.target, self.delta)))

    @classmethod
    def make(cls, seed: str, client: int, number: int, accounts: int) -> Transaction:
        """Return the transaction that ``seed`` decides: two different accounts, 60 to 1,500 bytes of text."""
        digest = hashlib.shake_256(f"{seed}:{client}:{number}".encode()).digest(216)
        a, b, c, d = (int.from_bytes(digest[i : i + 4], "little") for i in (0, 4, 8, 12))
        source = a % accounts
        target = (source + 1 + b % (accounts - 1)) % accounts
        words = 10 + d % 190
        text = " ".join(WORDS[byte % len(WORDS)] for byte in digest[16 : 16 + words])
        return cls(client, number, source + 1, target + 1, 1 + c % 1000, text)


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """One row of the ledger as it was found."""

    client: int
    number: int
    source: int
    target: int
    delta: int
    whole: bool
    """Whether its checksum is right."""


@dataclass(frozen=True, slots=True)
class FoundAccount:
    """One account as it was found."""

    id: int
    balance: int
    version: int
    """How often it was changed."""
    fits: bool
    """Whether its note is that of the entry which it names as its last, and that entry names it."""


@dataclass(slots=True)
class Found:
    """All that a recovered database holds."""

    entries: list[FoundEntry] = field(default_factory=list)
    accounts: list[FoundAccount] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """What the database's own check says, or why it could not be read or started."""


class CrashClient(Protocol):
    """One connection."""

    def commit(self, transaction: Transaction) -> bool:
        """Do one transaction; whether the database answered that it is committed. Blocks."""
        ...

    def checkpoint(self) -> bool:
        """Have the database write what it has changed to its files; whether it answered. Blocks."""
        ...

    def said(self) -> str:
        """Return its last words, for the sentence about a client that ended by itself."""
        ...


class TestedDatabase(Protocol):
    """A database under test, on directories that a power cut may take away and bring back."""

    workload: ClassVar[str]
    checkpoints: bool
    """Whether it has such a thing."""
    checks: tuple[str, ...]
    """The database's own checks that ``read`` makes, in words."""

    def __init__(self, params: Mapping[str, Any], settings: Mapping[str, str], *, clients: int) -> None:
        """Take the workload's parameters and the layout's settings; nothing is started.

        Raises:
            InputError: a setting is not the database's, or not the layout's to set.
            MissingError: a program is missing.
        """
        ...

    @property
    def version(self) -> str:
        """Such as ``PostgreSQL 15.18``."""
        ...

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that need a directory."""
        ...

    @property
    def settings(self) -> dict[str, str]:
        """What it is set to, in its own words."""
        ...

    def prepare(self, workdir: WorkDir, places: Mapping[str, Path]) -> None:
        """Take the empty directories, by role; ``workdir`` is for what is no part of the database."""
        ...

    def load(self, accounts: int) -> None:
        """Make the tables, with accounts 1 to ``accounts``, and shut down in order."""
        ...

    def start(self, seconds: float | None = None) -> None:
        """Start, which recovers what a cut has left; with ``seconds``, return after so long, ready or not.

        Raises:
            ZtuneError: it does not start.
        """
        ...

    def client(self) -> CrashClient:
        """Connect."""
        ...

    def read(self) -> Found:
        """Return all that is there, and what its own checks say. Damage is no exception."""
        ...

    def watch(self) -> None:
        """Raise ZtuneError if it died by itself."""
        ...

    def cut(self) -> None:
        """End every process of it and of its clients at once, and what they shared in memory."""
        ...

    def end(self) -> None:
        """End every process, and remove what lies outside the work directory."""
        ...


class Session:
    """What the connections of most databases share: the last words are why something was not answered."""

    _said = ""

    def answered(self, ask: Callable[[], object]) -> bool:
        """Return whether ``ask`` ends without an error of the system or of ztune."""
        try:
            ask()
        except (OSError, ZtuneError) as error:
            self._said = str(error)
            return False
        return True

    def said(self) -> str:
        """Return its last words."""
        return self._said or "(nothing)"

    def close(self) -> None:
        """End the connection, and its process where it has one."""
        raise NotImplementedError


S = TypeVar("S", bound=Session)
D = TypeVar("D", bound=DatabaseServer)


class Tested(Generic[S]):
    """What databases under test share that a job of ztune's knows: versions, roles and settings."""

    workload: ClassVar[str]
    job_class: ClassVar[type[JobBase]]
    checkpoints = True

    def __init__(self, params: Mapping[str, Any], settings: Mapping[str, str], *, clients: int) -> None:
        """Take the settings; nothing is started."""
        self.job: Any = self.job_class({**params, "clients": clients}, settings)
        self.version: str = self.job.check()
        self.roles: tuple[str, ...] = self.job.roles()
        self.settings: dict[str, str] = self.job.settings()
        self.sessions: list[S] = []

    def close_sessions(self) -> None:
        """Close all that were made."""
        sessions, self.sessions = self.sessions, []
        for session in sessions:
            session.close()


class TestedServer(Tested[S], Generic[S, D]):
    """What databases share that are a server."""

    _server: D | None = None

    @property
    def server(self) -> D:
        """The server; there is one after ``prepare``."""
        assert self._server is not None
        return self._server

    def watch(self) -> None:
        """Raise ZtuneError if the server died by itself."""
        self.server.watch()

    def cut(self) -> None:
        """End the server and its children at once; its clients hear the end of their connections."""
        if self._server is not None:
            self._server.cut()

    def end(self) -> None:
        """End server and clients, and remove the socket's directory."""
        self.cut()
        if self._server is not None:
            self._server.kill()
        self.close_sessions()
