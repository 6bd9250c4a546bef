"""MongoDB itself: ``mongorestore`` into a ``mongod`` of our own.

Its journal is a link in the database's directory to that of the role ``wal``: mongod has no option for it.
It listens on the loopback only. Not tried with a real one where ztune is developed.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from ztune.databases.mongodb.onhost import bson, dumps
from ztune.databases.mongodb.onhost.documents import DocumentFacts
from ztune.databases.mongodb.onhost.engines import Restored, StorageEngine
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import run
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.onhost.jobs.job import Check
from ztune.onhost.jobs.launcher import Launcher
from ztune.onhost.jobs.server import DatabaseServer

COMPRESSORS = ("none", "snappy", "zlib", "zstd")
BATCH = 1000
"""Documents that mongorestore sends at once."""
_TABLE = ("leaf_page_max", "internal_page_max", "allocation_size", "memory_page_max")
_KNOWN = (*_TABLE, "block_compressor", "cache_size", "log.compressor", "checkpoint.wait", "sync")
_START_SECONDS = 120.0
_STOP_SECONDS = 600.0
_OP_MSG = 2013
_DONE = re.compile(r"(\d+) document\(s\) restored successfully")


def is_here() -> bool:
    """Whether both programs are on the PATH."""
    return all(shutil.which(name) for name in ("mongod", "mongorestore"))


class MongodServer(DatabaseServer):
    """The server."""

    port = 0

    @property
    def listens(self) -> Path:
        """Its socket, which it names after its port."""
        return self.socket_dir / f"mongodb-{self.port}.sock"

    def start(self, command: Sequence[str | Path], ready: Callable[[], bool]) -> None:
        """Start it and wait until it is ``ready``. Raises InputError."""
        self._server.start(command, cwd=self.home, ready=ready, seconds=_START_SECONDS)

    def stop(self) -> None:
        """Shut it down in order, else kill it."""
        self._server.stop(signal.SIGTERM, _STOP_SECONDS, "killed")


class Mongod(StorageEngine):
    """A MongoDB of our own."""

    user = "mongodb"

    def check(self) -> str:
        """Return MongoDB's version.

        Raises:
            MissingError: a program is missing.
            InputError: a setting isn't one that mongod takes.
        """
        for name in ("mongod", "mongorestore", "mongodump"):
            if shutil.which(name) is None:
                raise MissingError(f"{name} was not found on the PATH; MongoDB has packages of it")
        for name in self.job.database:
            if name not in _KNOWN:
                raise InputError(f"database setting {name!r} is one that mongod has no option for")
        for name in ("block_compressor", "log.compressor"):
            if self.settings[name] not in COMPRESSORS:
                raise InputError(
                    f"{name} is {self.settings[name]!r}, which MongoDB does not have; "
                    f"it is one of {', '.join(COMPRESSORS)}"
                )
        if self.batch != BATCH:
            raise InputError(f"batch is {self.batch}, but mongorestore sends {BATCH} documents at once")
        version = software.version_of(
            ["mongod", "--version"], r"db version v(\S+)", patience=self.job.patience
        )
        return f"MongoDB {version}"

    @property
    def server(self) -> MongodServer:
        """The server; there is one after ``prepare``."""
        server = self.job.server
        assert isinstance(server, MongodServer)
        return server

    def prepare(self) -> None:
        """Note where the server is to be."""
        job = self.job
        assert job.workdir is not None
        socket_name = "mongodb-65535.sock"
        job.serve_with(
            MongodServer("mongod", job.workdir, job.home, job.account, socket_name, patience=job.patience)
        )

    def command(self, port: int) -> list[str]:
        """Return what starts the server."""
        settings = self.settings
        tables = ",".join(f"{name}={settings[name]}" for name in _TABLE if name in settings)
        return [
            "mongod",
            *("--dbpath", str(self.job.role_paths()["data"])),
            *("--bind_ip", "127.0.0.1", "--port", str(port)),
            *("--unixSocketPrefix", str(self.server.socket_dir)),
            *("--wiredTigerCollectionBlockCompressor", settings["block_compressor"]),
            *("--wiredTigerJournalCompressor", settings["log.compressor"]),
            *("--wiredTigerCollectionConfigString", tables),
            # In bytes; the option for it takes no less than 256 MB.
            *("--wiredTigerEngineConfigString", f"cache_size={settings['cache_size']}"),
            *("--syncdelay", str(max(1, round(int(settings["checkpoint.wait"]) * self.job.dilation)))),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        ]

    def restore_command(self, archive: Path) -> list[str]:
        """Return what restores ``archive``."""
        concern = json.dumps({"w": 1, "j": self.settings["sync"] == "on"})
        common = [
            "mongorestore",
            f"--uri={self._uri}",
            "--gzip",
            "--stopOnError",
            f"--writeConcern={concern}",
        ]
        if dumps.is_archive(archive):
            excluded = [f"--nsExclude={name}.*" for name in dumps.OWN_DATABASES]
            return [*common, *excluded, f"--archive={archive}"]
        return [*common, f"--db={dumps.DATABASE}", f"--collection={dumps.COLLECTION}", str(archive)]

    @property
    def _uri(self) -> str:
        return f"mongodb://{quote(str(self.server.listens), safe='')}/"

    def start(self, archive: Path) -> None:
        """Start the server, and the shell that waits for the word to run mongorestore."""
        job, paths = self.job, self.job.role_paths()
        assert job.workdir is not None
        journal = paths["data"] / "journal"
        journal.symlink_to(paths["wal"])
        places.mend(journal, None, job.account)
        self.server.port = _free_port()
        program, *arguments = self.command(self.server.port)
        self.server.start([_path(program), *arguments], self._answers)
        log = job.workdir.path / "mongorestore.log"
        launcher = Launcher("mongorestore", job.home, job.account, log=log, patience=job.patience)
        program, *arguments = self.restore_command(archive)
        job.begin(launcher).start([_path(program), *arguments])

    def _answers(self) -> bool:
        try:
            self._ask({"ping": 1}, 5.0)
        except (OSError, ZtuneError):
            return False
        return True

    def _ask(self, command: dict[str, int], seconds: float) -> None:
        """Give the server a command (OP_MSG of MongoDB's wire protocol); raises OSError, ZtuneError."""
        body = b"\0\0\0\0\0" + bson.encode({**command, "$db": "admin"})
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(seconds)
            line.connect(str(self.server.listens))
            line.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, _OP_MSG) + body)
            with line.makefile("rb") as answer:
                head = answer.read(16)
                reply = answer.read(int.from_bytes(head[:4], "little") - 16)[5:] if len(head) == 16 else b""
        if not reply or bson.field(reply, "ok") != (bson.DOUBLE, struct.pack("<d", 1.0)):
            said = bson.text(reply, "errmsg") if reply else "it said nothing"
            raise ZtuneError(f"mongod refused {next(iter(command))}: {said}")

    def restore(self, wanted: DocumentFacts, limit: float, tick: Callable[[float], None]) -> Restored:
        """Run mongorestore."""
        launcher, server = self.job.running(Launcher), self.server

        def watch(_gone: float) -> None:
            server.watch()
            tick(0.0)

        seconds, _ = launcher.run(limit * self.job.patience, watch)
        server.watch()
        said = own_directory.read_plain(launcher.log)
        match = _DONE.search(said)
        if launcher.exit_code() != 0 or match is None:
            raise ZtuneError(f"mongorestore ended with exit code {launcher.exit_code()}: {launcher.said()}")
        return Restored(seconds, int(match[1]))

    def checkpoint(self, limit: float) -> float:
        """Have the server write a checkpoint (its command ``fsync``) and return the seconds."""
        began = time.monotonic()
        try:
            self._ask({"fsync": 1}, limit * self.job.patience)
        except OSError as error:
            raise ZtuneError(f"mongod did not write a checkpoint: {error}") from None
        return time.monotonic() - began

    def counts(self) -> dict[str, int]:
        """Return nothing."""
        return {}

    def prove(self, wanted: DocumentFacts, limit: float) -> list[Check]:
        """Return checks of what mongodump reads back."""
        dumped = self.job.home / "verify.archive.gz"
        run(
            [_path("mongodump"), f"--uri={self._uri}", "--gzip", f"--archive={dumped}"],
            what="mongodump (reading the database back)",
            account=self.job.account,
            cwd=self.job.home,
            seconds=limit * self.job.patience,
        )
        found: dict[str, int] = {}
        total = 0
        try:
            for namespace, document in dumps.documents(dumped):
                found[namespace] = found.get(namespace, 0) + 1
                total += dumps.checksum(namespace, document)
        except dumps.DumpError as error:
            raise ZtuneError(f"what mongodump read back is no whole archive: {error}") from None
        finally:
            dumped.unlink(missing_ok=True)
        return [
            *(Check(f"documents in {name}", count, found.get(name, 0))
              for name, count in wanted.namespaces.items()),
            Check("collections", len(wanted.namespaces), len(found)),
            Check("sum over all documents", wanted.crc_sum, total),
        ]  # fmt: skip


def _path(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"{name} was not found on the PATH")
    return Path(found)


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])
