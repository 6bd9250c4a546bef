"""What a database must be able to do for a crash test, and which ones can."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ztune.crash.ledger import Found, Transaction
from ztune.errors import InputError
from ztune.onhost.host.workdir import WorkDir

NOTE = 120
"""How many characters of a transaction's text its two accounts keep."""
# Workload → the class that runs its database here.
_KNOWN = {
    "postgres-oltp": "ztune.databases.postgresql.crash:Postgres",
    "sqlite": "ztune.databases.sqlite.crash:Sqlite",
    "valkey": "ztune.databases.valkey.crash:Valkey",
}


class Client(Protocol):
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


class Database(Protocol):
    """One database, on directories that a power cut may take away and bring back."""

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

    def client(self) -> Client:
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


def database_of(workload: str) -> type[Database]:
    """Return the class for ``workload``.

    Raises:
        InputError: crash tests can't run it.
    """
    if workload not in _KNOWN:
        raise InputError(f"crash tests run the databases of {', '.join(_KNOWN)}, not of {workload!r}")
    module, _, name = _KNOWN[workload].partition(":")
    found: type[Database] = getattr(importlib.import_module(module), name)
    return found
