"""A Valkey or Redis server of our own: found, configured, started, asked and stopped.

It listens on a unix socket in a directory that only its own user can enter, never on TCP. All its files lie
in one file system: it writes each base of the append-only file in ``dir`` and moves it into ``appendonlydir``
with rename(2) (``src/aof.c``, ``backgroundRewriteDoneHandler``). Where that is a link to another dataset,
Valkey 8.0.1 and Redis 7.0.15 do not even start: "Invalid cross-device link".
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ztune.databases.valkey.onhost.client import Connection, RefusedError, Reply
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.onhost.jobs.server import DatabaseServer
from ztune.onhost.jobs.settings import by_name, check
from ztune.packages import install_command

START_SECONDS: Final = 120.0
"""How long it may take to read its files on an ordinary machine; ``patience`` multiplies it."""
NAMES: Final = ("valkey", "redis")
"""What its programs' names begin with; the first that is here is taken."""
AOF_DIRECTORY: Final = "appendonlydir"
MANIFEST: Final = f"{AOF_DIRECTORY}/appendonly.aof.manifest"
SNAPSHOT: Final = "dump.rdb"
_OLDEST = 7
"""The first major version with an append-only file of several parts."""
_SOCKET = "valkey.sock"

_SWITCH = ("yes", "no")
SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "appendonly": _SWITCH,
    "appendfsync": ("always", "everysec", "no"),
    "no-appendfsync-on-rewrite": _SWITCH,
    "aof-use-rdb-preamble": _SWITCH,
    "aof-load-truncated": _SWITCH,
    "aof-timestamp-enabled": _SWITCH,
    "aof-rewrite-incremental-fsync": _SWITCH,
    "auto-aof-rewrite-percentage": (),
    "auto-aof-rewrite-min-size": (),
    "rdbcompression": _SWITCH,
    "rdbchecksum": _SWITCH,
    "rdb-save-incremental-fsync": _SWITCH,
    "io-threads": (),
}
"""What a layout may choose, as ``valkey.conf`` calls it, and the words that each takes; none: a whole number.
``save`` comes on top: pairs of seconds and changes, or nothing.
"""
OWNED: Final = by_name(
    {
        "it is reached by its own socket only": "port tls-port bind unixsocket unixsocketperm requirepass",
        "the workload makes its directory, and the append-only file can't leave it": "dir dbfilename "
        "appendfilename appenddirname",
        "no key may leave the store during the load": "maxmemory maxmemory-policy",
    }
)
"""Settings that a layout may not change, and why."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one of the two."""

    name: str
    """``valkey`` or ``redis``."""
    server: Path
    check_aof: Path
    version: str
    """Such as ``8.0.1``."""

    @property
    def title(self) -> str:
        """Such as ``Valkey 8.0.1``."""
        return f"{self.name.capitalize()} {self.version}"


def find_binaries(wanted: str = "any", *, patience: float = 1.0) -> Binaries:
    """Return the programs to use: ``wanted`` is ``valkey``, ``redis``, or ``any`` for Valkey before Redis.

    The server is the same program as the one that checks snapshots; it does what the name says that it is
    called by. Debian has it under that other name in a package without a service.

    Raises:
        MissingError: there is none, or one that is too old; the text names the command that brings it.
    """
    hint = f"install it with `{install_command('valkey')}`"
    for name in NAMES if wanted == "any" else (wanted,):
        server = shutil.which(f"{name}-server") or shutil.which(f"{name}-check-rdb")
        check_aof = shutil.which(f"{name}-check-aof")
        if server is None or check_aof is None:
            continue
        version = software.version_of(
            [f"{name}-server", "--version"], r"\bv=(\d[\w.]*)", executable=server, patience=patience
        )
        if int(version.partition(".")[0]) < _OLDEST:
            raise MissingError(
                f"{server} is {name.capitalize()} {version}, whose append-only file is another; version "
                f"{_OLDEST}.0 or later is needed; {hint}"
            )
        return Binaries(name, Path(server), Path(check_aof), version)
    what = "neither Valkey nor Redis" if wanted == "any" else f"no {wanted.capitalize()}"
    raise MissingError(
        f"{what} was found on the PATH (the server and the program that checks its files); {hint}"
    )


def normal(settings: Mapping[str, str]) -> dict[str, str]:
    """Return ``settings`` with on and off, as a layout may write them, in the server's own words."""
    return {name: {"on": "yes", "off": "no"}.get(value.lower(), value) for name, value in settings.items()}


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings of a layout that aren't the server's or not the layout's.

    Raises:
        InputError: the sentence names the first such setting, and what would be right.
    """
    check("valkey", {n: v for n, v in settings.items() if n != "save"}, SETTINGS, OWNED)
    points = settings.get("save", "").split()
    if len(points) % 2 or not all(point.isdigit() and int(point) > 0 for point in points):
        raise InputError(
            f"database setting save is {settings['save']!r}; it takes pairs of seconds and changes, such as "
            "'3600 1 60 10000', or nothing"
        )


class ValkeyServer(DatabaseServer):
    """One server: its files in ``data``, its log, home and socket in a work directory."""

    def __init__(
        self,
        binaries: Binaries,
        workdir: WorkDir,
        home: Path,
        account: Account,
        data: Path,
        *,
        patience: float = 1.0,
    ) -> None:
        """Make the directory of its socket; nothing is started.

        ``binaries``: which one; ``data``: its directory, which is the account's; else as ``DatabaseServer``.
        """
        super().__init__(binaries.name.capitalize(), workdir, home, account, _SOCKET, patience=patience)
        self.binaries = binaries
        self.data = data
        self._program = self.home / f"{binaries.name}-server"
        if not self._program.is_symlink():
            self._program.symlink_to(binaries.server)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Write the configuration that the next start uses."""
        fixed = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data),
            "dbfilename": SNAPSHOT,
            "appenddirname": AOF_DIRECTORY,
            "daemonize": "no",
            "logfile": "",
            "maxmemory": "0",
        }
        lines = ["# Written by ztune."]
        lines += [
            f"{name} {_quoted(value)}" for name, value in {**settings, **fixed}.items() if name != "save"
        ]
        # Each of its pairs is a word of its own.
        lines.append(f"save {settings.get('save') or _quoted('')}")
        places.lend(self._config, "\n".join(lines) + "\n", self.account)

    @property
    def _config(self) -> Path:
        return self.home / "valkey.conf"

    def start(self, leave_after: float | None = None) -> None:
        """Start it and wait until it has read its files, but no longer than ``leave_after`` seconds.

        Raises:
            InputError: it didn't come up; the sentence ends with the last lines of its log.
        """
        self._server.start(
            [self._program, self._config],
            cwd=self.home,
            ready=self._ready,
            seconds=START_SECONDS,
            leave_after=leave_after,
        )

    def _ready(self) -> bool:
        try:
            with self.connect(seconds=5.0) as connection:
                return connection.do("PING") == b"PONG"
        except (OSError, RefusedError):
            return False  # it answers LOADING while it reads its files

    def connect(self, *, seconds: float = 600.0) -> Connection:
        """Return a connection; an answer may take ``seconds`` times ``patience``. Raises OSError."""
        return Connection(str(self.socket), seconds * self.patience)

    def ask(self, *words: str | int | bytes) -> Reply:
        """Return the answer to one command.

        Raises:
            ZtuneError: the server refused it, or has died.
        """
        try:
            with self.connect() as connection:
                return connection.do(*words)
        except (OSError, RefusedError) as error:
            self.watch()
            raise ZtuneError(f"{self._server.what} failed in {words[0]!r}: {error}") from None

    def info(self, section: str) -> dict[str, str]:
        """Return what INFO says of ``section``, by name. Raises ZtuneError as ``ask`` does."""
        said = self.ask("INFO", section)
        assert isinstance(said, bytes)
        pairs = (line.partition(":") for line in said.decode(errors="replace").splitlines())
        return {name: value for name, colon, value in pairs if colon}

    def write_out(self, *, log: bool, tick: float = 0.05) -> None:
        """Have it write all keys anew, into the append-only file or into the snapshot, and wait for the end.

        Raises:
            ZtuneError: it failed, or the server died.
        """
        kind = "aof" if log else "rdb"
        try:
            self.ask("BGREWRITEAOF" if log else "BGSAVE")
        except ZtuneError as error:
            if "in progress" not in str(error):
                raise
        status = self.at_rest(tick)[f"{kind}_last_bg{'rewrite' if log else 'save'}_status"]
        if status != "ok":
            raise ZtuneError(
                f"{self._server.what} could not write its files anew; its log ends: {self.said()}"
            )

    def at_rest(self, tick: float = 0.05) -> dict[str, str]:
        """Wait until no child writes files any more; return what the server says of them."""
        busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")
        while True:
            found = self.info("persistence")
            if all(found.get(name, "0") == "0" for name in busy):
                return found
            time.sleep(tick)

    def check_aof(self) -> str:
        """Return "valid", or what the checking program says of the append-only file."""
        try:
            self.run_client([self.binaries.check_aof, self.data / MANIFEST], self.binaries.check_aof.name)
        except ZtuneError as error:
            return str(error)
        return "valid"

    def kill(self) -> None:
        """End it at once with its children, which outlive it otherwise."""
        try:
            self.cut()
        finally:
            super().kill()


def _quoted(value: str) -> str:
    r"""Return a value as the configuration file has it: ``"a \"b\""``."""
    raw = os.fsencode(value)
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in raw) + '"'
