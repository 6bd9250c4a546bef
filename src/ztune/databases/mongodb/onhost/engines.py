"""What ``mongo-restore`` asks of the database that it restores into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ztune.databases.mongodb.onhost.documents import DocumentFacts
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.job import Check

FLUSH_SECONDS = 0.1
"""How often the log is flushed where nobody waits for it: mongod's default (storage.journal)."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    seconds: float
    """From its beginning to its end, a last checkpoint not included."""
    documents: int
    """As whoever restored them counted them."""
    latency_ms: dict[str, float] = field(default_factory=dict)
    """Of a batch, from the end of the one before."""


class StorageEngine(Protocol):
    """A database of our own, made anew for each trial."""

    user: str
    """The system user that it runs as when ztune is root."""

    def check(self) -> str:
        """Return what would run, and its version.

        Raises:
            MissingError: a program is missing.
            InputError: a setting isn't one that it has.
        """
        ...

    def prepare(self, workdir: WorkDir, account: Account, paths: Mapping[str, Path]) -> None:
        """Note where things are; put programs where the account can read them. Nothing is started."""
        ...

    def start(self, archive: Path) -> None:
        """Make an empty database and start what will restore ``archive``.

        Raises:
            InputError: it didn't come up, or not with these settings.
        """
        ...

    def pids(self) -> list[int]:
        """Return the processes that do the I/O."""
        ...

    def restore(self, wanted: DocumentFacts, limit: float, tick: Callable[[float], None]) -> Restored:
        """Restore, within ``limit`` s times the patience; ``tick`` is told the share done."""
        ...

    def checkpoint(self, limit: float) -> float:
        """Write what is still in memory, sync it, and return the seconds that took."""
        ...

    def counts(self) -> dict[str, int]:
        """Return what the database itself counted since it was started."""
        ...

    def prove(self, wanted: DocumentFacts, limit: float) -> list[Check]:
        """Return checks that the very documents are in the database, read back from it."""
        ...

    def stop(self) -> None:
        """Shut down in order; raises ZtuneError if it had to be killed."""
        ...

    def kill(self) -> None:
        """End everything at once."""
        ...
