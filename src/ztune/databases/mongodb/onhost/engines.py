"""What ``mongo-restore`` asks of the database that it restores into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ztune.databases.mongodb.onhost.documents import DocumentFacts
from ztune.onhost.jobs.job import Check
from ztune.onhost.jobs.server import DatabaseServer, ServerJob

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


class StorageEngine:
    """A database of our own, made anew for each trial."""

    user: ClassVar[str]
    """The system user that it runs as when ztune is root."""

    def __init__(self, job: ServerJob[DatabaseServer]) -> None:
        """Take the job, which ends what is begun with it, and its settings (``restore.SETTINGS``)."""
        self.job = job
        self.settings = job.settings()
        self.batch = int(job.params["batch"])
        """How many documents are acknowledged together."""

    def check(self) -> str:
        """Return what would run, and its version.

        Raises:
            MissingError: a program is missing.
            InputError: a setting isn't one that it has.
        """
        raise NotImplementedError

    def prepare(self) -> None:
        """Put programs where the account can read them. Nothing is started."""
        raise NotImplementedError

    def start(self, archive: Path) -> None:
        """Make an empty database and start what will restore ``archive``.

        Raises:
            InputError: it didn't come up, or not with these settings.
        """
        raise NotImplementedError

    def restore(self, wanted: DocumentFacts, limit: float, tick: Callable[[float], None]) -> Restored:
        """Restore, within ``limit`` s times the patience; ``tick`` is told the share done."""
        raise NotImplementedError

    def checkpoint(self, limit: float) -> float:
        """Write what is still in memory, sync it, and return the seconds that took."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Return what the database itself counted since it was started."""
        raise NotImplementedError

    def prove(self, wanted: DocumentFacts, limit: float) -> list[Check]:
        """Return checks that the very documents are in the database, read back from it."""
        raise NotImplementedError
