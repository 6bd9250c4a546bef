"""WiredTiger without MongoDB, in a program of ours (``wiredtiger_client.py``).

Its Python binding comes out of SecantusDB's package, which ``ztune setup`` fetches; nothing else of that is
used. The program opens no port and is the database: what it reads and writes is what WiredTiger does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ztune.databases.mongodb.onhost import bson, dumps, wiredtiger_client
from ztune.databases.mongodb.onhost.documents import DocumentFacts
from ztune.databases.mongodb.onhost.engines import FLUSH_SECONDS, Restored, StorageEngine
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost import latency
from ztune.onhost.host.process import Account, last_lines
from ztune.onhost.jobs import software
from ztune.onhost.jobs.conversation import Client, text_of
from ztune.onhost.jobs.job import Check

ENGINE = "WiredTiger 11.2"
PACKAGE, VERSION = "secantusdb", "0.7.0b3"
SOFTWARE = f"{PACKAGE}-{VERSION}"
COMPRESSORS = ("none", "lz4", "zlib")
"""Those that are built in."""
TAG = (
    "import platform, sys; print(f'{sys.implementation.cache_tag}-{platform.machine()}' "
    "if sys.platform == 'linux' else '')"
)
"""Prints, in a Python, what a binding must be made for, such as ``cpython-311-x86_64``."""
_OPEN_SECONDS = 120.0
# As MongoDB has them; the rest of what it sets is WiredTiger's default, or follows from settings.
# But the log grows as it is written: by default each file of it is allocated whole (fallocate), which on ZFS
# allocates nothing and leaves a length that a replay of the trace would take for content.
_CONNECTION = (
    "config_base=false,session_max=100,statistics=(fast),eviction=(threads_min=4,threads_max=4),"
    "file_extend=(log=0)"
)
# Fields of WiredTiger's statistics → how results call them.
_COUNTS = {
    "log_bytes_written": "log_bytes",
    "log_sync": "log_syncs",
    "txn_checkpoint": "checkpoints",
    "block_byte_write": "data_bytes_written",
    "block_write": "data_writes",
    "block_byte_read": "data_bytes_read",
}


class WiredTiger(StorageEngine):
    """A WiredTiger database of our own."""

    user = "nobody"

    _found: tuple[str, Path] | None = None

    def check(self) -> str:
        """Return the version.

        Raises:
            MissingError: it was not fetched, or for no Python that the database's user can run.
            InputError: a compressor isn't built in.
        """
        for name in ("block_compressor", "log.compressor"):
            if self.settings[name] not in COMPRESSORS:
                raise InputError(
                    f"{name} is {self.settings[name]!r}, which {ENGINE} has not built in here; "
                    f"it is one of {', '.join(COMPRESSORS)}"
                )
        if self._found is None:
            self._found = find(self.job.patience)
        return f"{ENGINE} (no MongoDB)"

    def prepare(self) -> None:
        """Put the binding and our program where the account can read them."""
        assert self._found is not None and self.job.workdir is not None
        binding = self._found[1]
        files = sorted(path for path in binding.rglob("*") if path.is_file())
        program = software.lend(files, "program", self.job.workdir, self.job.account, top=binding)
        inner = program / "ztune/databases/mongodb/onhost"
        inner.mkdir(parents=True)
        for module in (bson, dumps, wiredtiger_client):
            name = module.__name__.rpartition(".")[2]
            (inner / f"{name}.py").write_text(text_of(module), encoding="utf-8")
            (inner / f"{name}.py").chmod(0o644)
        for path in (inner, *inner.parents[:3]):
            path.chmod(0o755)

    def connection(self) -> str:
        """Return WiredTiger's configuration of the connection."""
        settings = self.settings
        return (
            f"{_CONNECTION},cache_size={settings['cache_size']},"
            f"checkpoint=(wait={max(1, round(int(settings['checkpoint.wait']) * self.job.dilation))}),"
            f'log=(enabled={settings["log.enabled"]},path="{self.job.role_paths()["wal"]}",'
            f"compressor={settings['log.compressor']},file_max={settings['log.file_max']},"
            f"prealloc={settings['log.prealloc']})"
        )

    def tables(self) -> tuple[str, str]:
        """Return WiredTiger's configurations of a collection's table and of its index, as MongoDB has them
        but for the settings.
        """
        pages = ("leaf_page_max", "internal_page_max", "allocation_size", "memory_page_max")
        chosen = ",".join(f"{name}={self.settings[name]}" for name in pages if name in self.settings)
        compressor = f"block_compressor={self.settings['block_compressor']}"
        collection = f"key_format=q,value_format=u,split_pct=90,leaf_value_max=64MB,{compressor},{chosen}"
        return collection, "key_format=u,value_format=u,prefix_compression=true,leaf_page_max=16KB"

    def start(self, archive: Path) -> None:
        """Start the program and make the database."""
        assert self.job.workdir is not None and self._found is not None
        self._archive, home = archive, self.job.home
        client = Client(
            [self._found[0], "-s", "-B", "-m", wiredtiger_client.__name__],
            what=ENGINE,
            account=self.job.account,
            home=home,
            log=home / "wiredtiger.log",
            patience=self.job.patience,
            env={"PYTHONPATH": str(self.job.workdir.path / "program")},
            fatal="WT_PANIC",
        )
        self.job.begin(client)
        collection, index = self.tables()
        try:
            found = client.do(
                "open",
                {"home": str(self.job.role_paths()["data"]), "config": self.connection(),
                 "collection": collection, "index": index},
                seconds=_OPEN_SECONDS,
            )  # fmt: skip
        except ZtuneError as error:
            # What it dislikes stands in its log only.
            raise InputError(f"{error}; its log ends: {last_lines(client.log, 2)}") from None
        if not f"WiredTiger {found['version']}".startswith(ENGINE):
            raise ZtuneError(f"WiredTiger is {found['version']}, but should be {ENGINE.split()[1]}")

    def _running(self) -> Client:
        return self.job.running(Client)

    def restore(self, wanted: DocumentFacts, limit: float, tick: Callable[[float], None]) -> Restored:
        """Restore."""
        logged = self.settings["log.enabled"] == "true"
        arguments = {
            "archive": str(self._archive),
            "batch": self.batch,
            "total": wanted.documents,
            "sync": logged and self.settings["sync"] == "on",
            "flush_seconds": FLUSH_SECONDS * self.job.dilation if logged else 0,
        }
        client = self._running()
        found = client.do("restore", arguments, seconds=limit, on_progress=tick)
        times = latency.summary(sorted(found["batch_us"]), 1000)
        return Restored(found["seconds"], found["documents"], times)

    def checkpoint(self, limit: float) -> float:
        """Write a checkpoint and return its seconds."""
        return float(self._running().do("checkpoint", seconds=limit)["seconds"])

    def counts(self) -> dict[str, int]:
        """Return WiredTiger's own counts."""
        found = self._running().do("statistics", {"names": list(_COUNTS)})
        return {_COUNTS[name]: value for name, value in found.items()}

    def prove(self, wanted: DocumentFacts, limit: float) -> list[Check]:
        """Return checks of a database that was closed, opened again, and found sound by WiredTiger."""
        found = self._running().do("verify", seconds=limit)
        return [
            Check("documents in the database", wanted.documents, found["documents"]),
            Check("sum over all documents", wanted.crc_sum, found["crc_sum"]),
            Check("entries of the index", wanted.documents, found["entries"]),
            Check("sum over the index, by the documents", found["wanted"], found["linked"]),
        ]


def find(patience: float) -> tuple[str, Path]:
    """Return a Python that the database's user can run, and the directory of the binding made for it.

    Raises:
        MissingError: there is no such pair; the sentence names the command that brings it.
    """
    account = Account.for_database(WiredTiger.user)
    folder = software.directory() / SOFTWARE
    for python, tag in software.pythons(TAG, account, patience=patience):
        if (folder / tag).is_dir():
            return python, folder / tag
    raise MissingError(
        f"neither mongod with mongorestore nor {ENGINE} ({PACKAGE} {VERSION}) was found; fetch the latter "
        "with `ztune setup mongo-restore`"
    )
