"""``mongo-restore``: a gzip archive of documents, restored into a database that is empty.

By ``mongorestore`` into ``mongod`` where both are on the PATH, else into WiredTiger, MongoDB's storage
engine, without MongoDB.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

from ztune.databases.mongodb.onhost import documents, mongod
from ztune.databases.mongodb.onhost.engines import StorageEngine
from ztune.databases.mongodb.onhost.wiredtiger import WiredTiger
from ztune.errors import ZtuneError
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.server import DatabaseServer, ServerJob
from ztune.onhost.jobs.settings import check as check_settings
from ztune.units import parse_size

ARCHIVE = "documents.bson.gz"
_FACTS = "documents.json"

# What a layout may set, in WiredTiger's words, with the values that are allowed; none: a whole number, of
# bytes or seconds. `sync` is ours: whether a batch is acknowledged when it is in the log on the disk.
SETTINGS: dict[str, tuple[str, ...]] = {
    "block_compressor": ("none", "snappy", "lz4", "zlib", "zstd"),
    "leaf_page_max": (),
    "internal_page_max": (),
    "allocation_size": (),
    "memory_page_max": (),
    "cache_size": (),
    "log.enabled": ("true", "false"),
    "log.compressor": ("none", "snappy", "lz4", "zlib", "zstd"),
    "log.file_max": (),
    "log.prealloc": ("true", "false"),
    "checkpoint.wait": (),
    "sync": ("on", "off"),
}
_OWNED = {"log.path": "the role wal says where the log lies"}


class MongoRestore(ServerJob[DatabaseServer]):
    """A dump of documents becomes a database."""

    name: ClassVar[str] = "mongo-restore"
    ROLES: ClassVar[tuple[str, ...]] = ("source", "data", "wal")

    def _set_up(self) -> None:
        super()._set_up()
        self.input: documents.DocumentFacts | None = None
        """What is in the archive; known after ``load`` or ``adopt``."""
        self._version = ""
        self._engine: StorageEngine | None = None

    def settings(self) -> dict[str, str]:
        """Return the database's settings: the parameters, overridden by the layout's."""
        params = self.params
        # MongoDB compresses with snappy unless told otherwise; WiredTiger here has lz4, which is its like.
        usual = "snappy" if self._kind() == "mongod" else "lz4"
        given = str(params["block_compressor"])
        return {
            "block_compressor": usual if given == "default" else given,
            "leaf_page_max": str(parse_size(params["leaf_page"])),
            "cache_size": str(parse_size(params["cache"])),
            "log.enabled": "true",
            "log.compressor": usual,
            "log.file_max": str(100 << 20),
            "log.prealloc": "true",
            "checkpoint.wait": str(params["checkpoint_every"]),
            "sync": "on" if params["sync"] else "off",
            **{name: value.lower() for name, value in self.database.items()},
        }

    def _kind(self) -> str:
        asked = str(self.params["engine"])
        return asked if asked != "auto" else "mongod" if mongod.is_here() else "wiredtiger"

    @property
    def engine(self) -> StorageEngine:
        """The database."""
        if self._engine is None:
            self._engine = (mongod.Mongod if self._kind() == "mongod" else WiredTiger)(self)
        return self._engine

    def check_settings(self) -> None:
        """Refuse settings that aren't the database's or not the layout's."""
        check_settings("WiredTiger", self.database, SETTINGS, _OWNED)

    def check(self) -> str:
        """Return the database and its version.

        Raises:
            MissingError: there is no database, or the input isn't here.
            InputError: a setting in ``database`` is unknown here, not the layout's to set, or not to be had.
        """
        if not self._version:
            self.check_settings()
            version, self.user = self.engine.check(), self.engine.user
            documents.check(str(self.params["input"]), str(self.params["file"]))
            self._version = version
        return self._version

    def lay_out(self) -> None:
        """Put the database's programs where the account can read them."""
        self.engine.prepare()

    @property
    def _archive(self) -> Path:
        return self.role_paths()["source"] / ARCHIVE

    @property
    def _note(self) -> Path:
        return self._archive.with_name(_FACTS)

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the archive, and note what is in it."""
        params, step = self.params, "write the archive"
        archive = self._archive
        self.input = documents.write(
            str(params["input"]), archive, int(params["documents"]), int(params["seed"]), str(params["file"]),
            lambda done: progress(step, done),
        )  # fmt: skip
        places.mend(archive, 0o600, self.account)
        self.write_note(self._note, self.input)
        progress(step, 1.0)

    def take_over(self) -> None:
        """Read what is known of the archive."""
        self.input = self.read_note(self._note, documents.DocumentFacts, "archive")

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start an empty database, and what will restore into it."""
        if not self.pids():
            progress("start the database", 0.0)
            self._facts()
            self.engine.start(self._archive)
        progress("start the database", 1.0)

    def _facts(self) -> documents.DocumentFacts:
        if self.input is None:
            raise ZtuneError(f"{self.name}: load comes before this step")
        return self.input

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes each role will hold; of an archive of one's own nothing is known."""
        if self.params["input"] == "file":
            return {}
        size = int(self.params["documents"]) * BYTES_PER_DOCUMENT[str(self.params["input"])]
        # The log is kept until a checkpoint.
        return {"source": size // 3, "data": size * 5 // 4, "wal": size * 5 // 4}

    def _limit(self) -> float:
        """Return the seconds that work on all documents may take: 100 a second, on a very slow disk."""
        return 600.0 + self._facts().documents / 100

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Restore the archive. ``verify`` proves it."""
        wanted, step = self._facts(), "restore the archive"
        if not self.pids():
            raise ZtuneError(f"{self.name}: start comes before this step")
        progress(step, 0.0)
        done = self.engine.restore(wanted, self._limit(), lambda share: progress(step, share))
        closing = self.engine.checkpoint(self._limit()) if self.params["final_checkpoint"] else 0.0
        progress(step, 1.0)
        return WorkloadResult(
            seconds=done.seconds + closing,
            operations=done.documents,
            unit="document",
            latency_ms=done.latency_ms,
            offered_per_second=0.0,
            details={
                "closing_seconds": round(closing / self.dilation, 3),
                **self.engine.counts(),
                "input": {**asdict(wanted), "kind": str(self.params["input"])},
                "settings": self.settings(),
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks: what was put in is what is read back.

        Raises:
            ZtuneError: a check does not hold.
        """
        wanted = self._facts()
        checks = (
            Check("documents restored", wanted.documents, result.operations),
            *self.engine.prove(wanted, self._limit()),
        )
        return replace(result, checks=checks).require_ok(self.name)


BYTES_PER_DOCUMENT = {"wordnet": 400, "debian": 930}
"""Unpacked: measured over 200,000 of each."""
