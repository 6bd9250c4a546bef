"""A MariaDB server of our own: found, initialised, configured, started, asked and stopped.

It listens on a unix socket in a directory that only its own user can enter, never on TCP. Data, redo log,
system tablespace (with the doublewrite buffer) and binary log each have a directory of their own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import MissingError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import Account, run
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.onhost.jobs.server import DatabaseServer
from ztune.onhost.jobs.settings import by_name, check_names, check_values
from ztune.packages import install_command

START_SECONDS = 120.0
"""How long it may take to start on an ordinary machine; ``patience`` multiplies it."""

_SOCKET = "mariadb.sock"
_FOLDERS = ("/usr/sbin", "/usr/libexec", "/usr/local/libexec", "/usr/local/sbin")

OWNED = by_name(
    {
        "it is reached by its own socket only": "port bind_address socket skip_networking",
        "the layout's datasets and the workload's parameters say where files lie": """
            datadir innodb_data_home_dir innodb_log_group_home_dir innodb_undo_directory
            innodb_data_file_path aria_log_dir_path log_bin log_bin_basename log_bin_index tmpdir
            innodb_tmpdir""",
        "the workload decides it": "log_error pid_file user basedir plugin_dir",
        "the workload's parameter 'threads' decides it": "max_connections",
        "the load writes": "innodb_read_only read_only",
        "a crash must fail the trial": "innodb_force_recovery",
    }
)
"""Settings that a layout may not change, and why."""

_SWITCH = ("on", "off", "1", "0", "true", "false")
WORDS = {
    **dict.fromkeys(("innodb_file_per_table", "innodb_use_native_aio", "innodb_adaptive_flushing"), _SWITCH),
    **dict.fromkeys(("innodb_adaptive_hash_index", "innodb_random_read_ahead"), _SWITCH),
    "innodb_doublewrite": (*_SWITCH, "fast"),
    "innodb_flush_log_at_trx_commit": ("0", "1", "2", "3"),
    "innodb_flush_method": (
        *("fsync", "O_DSYNC", "littlesync", "nosync", "O_DIRECT", "O_DIRECT_NO_FSYNC"),
        *("0", "1", "2", "3", "4", "5"),
    ),
    "innodb_flush_neighbors": ("0", "1", "2"),
    "binlog_format": ("row", "statement", "mixed", "0", "1", "2"),
}
"""Settings that take one of some words, of those that layouts are about (MariaDB's manual, Server System
Variables)."""

_COMMON = (
    *("innodb_page_size", "innodb_doublewrite", "innodb_flush_method", "innodb_use_native_aio"),
    *("innodb_flush_log_at_trx_commit", "sync_binlog", "innodb_log_file_size", "innodb_buffer_pool_size"),
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """MariaDB's programs, and its version."""

    server: Path
    install: Path
    client: Path
    version: str
    """Such as ``10.11.19``."""


def find_binaries(*, patience: float = 1.0) -> Binaries:
    """Return the MariaDB to use: what is on ``PATH`` or where systems keep servers.

    Raises:
        MissingError: a program is missing; the text names the command that brings it.
    """
    found = {name: _find(name) for name in ("mariadbd", "mariadb-install-db", "mariadb")}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise MissingError(
            f"MariaDB's {', '.join(missing)} was not found; install it with `{install_command('mariadb')}`"
        )
    server, install, client = (Path(str(path)) for path in found.values())
    version = software.version_of(
        [server, "--no-defaults", "--version"], r"Ver (\d+[\d.]*)", patience=patience
    )
    return Binaries(server, install, client, version)


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([*os.get_exec_path(), *_FOLDERS]))


def check_settings(
    binaries: Binaries, account: Account, settings: Mapping[str, str], *, patience: float = 1.0
) -> None:
    """Refuse settings that this MariaDB doesn't have, or that are not a layout's to choose.

    Values that are not in ``WORDS`` are the server's to judge: it refuses to start with a wrong one and says
    which.

    Raises:
        InputError: the sentence names the first such setting, and one like it where there is one.
    """
    if not settings:
        return
    check_values(settings, WORDS, OWNED)
    # As root it would refuse, even to be asked.
    user = [f"--user={account.name}"] if account.switch else []
    said = software.said_by(
        [binaries.server, "--no-defaults", *user, "--verbose", "--help"], patience=patience
    )
    # The table at the end: one line per setting, its name with dashes first.
    named = re.findall(r"^([a-z][a-z0-9-]+)(?:\s|$)", said, re.MULTILINE)
    known = sorted({name.replace("-", "_") for name in named})
    check_names(f"MariaDB {binaries.version}", settings, known, _COMMON)


@dataclass(frozen=True, slots=True)
class Directories:
    """Where the server's files lie."""

    data: Path
    redo: Path
    system: Path
    """The system tablespace: undo, and the doublewrite buffer."""
    binlog: Path | None


class MariadbServer(DatabaseServer):
    """One server: its files in ``Directories``, its log, home and socket in a work directory."""

    def __init__(
        self,
        binaries: Binaries,
        workdir: WorkDir,
        home: Path,
        account: Account,
        directories: Directories,
        *,
        patience: float = 1.0,
    ) -> None:
        """Make the directory of its socket; nothing is started.

        ``binaries``: which MariaDB; ``directories``: where its files go, those above them exist; else as
        ``DatabaseServer``.
        """
        super().__init__("MariaDB", workdir, home, account, _SOCKET, patience=patience)
        self.binaries = binaries
        self.directories = directories

    @property
    def _config(self) -> Path:
        return self.home / "my.cnf"

    def configure(self, settings: Mapping[str, str]) -> None:
        """Write the configuration that the next start uses."""
        where = self.directories
        fixed = {
            "datadir": str(where.data),
            "innodb_data_home_dir": str(where.system),
            "innodb_log_group_home_dir": str(where.redo),
            "aria_log_dir_path": str(where.data),
            "tmpdir": str(self.home),
            "socket": str(self.socket),
            "pid_file": str(self.home / "mariadb.pid"),
            # Its own directory for plugins stays; nothing listens on TCP.
            "skip_networking": "1",
            "log_warnings": "1",
            "performance_schema": "0",
            "loose_feedback": "OFF",
        }
        if "innodb_buffer_pool_size" in settings:
            # Else it reserves addresses for a pool of 8 TiB, and does not start where there are fewer.
            fixed["loose_innodb_buffer_pool_size_max"] = settings["innodb_buffer_pool_size"]
        if where.binlog is not None:
            fixed |= {"log_bin": str(where.binlog / "binlog"), "server_id": "1"}
        lines = ["# Written by ztune.", "[mysqld]"]
        lines += [f"{name} = {value}" for name, value in {**settings, **fixed}.items()]
        places.write(self._config, "\n".join(lines) + "\n", mode=0o644)

    def initialise(self) -> None:
        """Make the system tables, with the configuration as it is now.

        Raises:
            ZtuneError: it failed; the sentence holds its last lines.
        """
        for path in (self.directories.data, self.directories.redo, self.directories.system):
            path.mkdir(mode=0o700, exist_ok=True)
            places.mend(path, 0o700, self.account)
        run(
            [
                self.binaries.install,
                f"--defaults-file={self._config}",
                f"--datadir={self.directories.data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ],
            what="mariadb-install-db",
            account=self.account,
            cwd=self.home,
            seconds=300 * self.patience,
        )

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            InputError: it didn't come up; the sentence ends with the last lines of its log.
        """
        if self.directories.binlog is not None:
            self.directories.binlog.mkdir(mode=0o700, exist_ok=True)
            places.mend(self.directories.binlog, 0o700, self.account)
        self._server.start(
            [self.binaries.server, f"--defaults-file={self._config}"],
            cwd=self.directories.data,
            ready=self._ready,
            seconds=START_SECONDS,
        )

    def _ready(self) -> bool:
        # It makes the socket last, when it listens.
        return self.socket.exists() and "ready for connections" in self._log_text()

    def _log_text(self) -> str:
        try:
            return own_directory.read_plain(self.log)
        except OSError:
            return ""

    def sql(self, statements: str, *, database: str = "", seconds: float = 600.0) -> list[list[str]]:
        """Run SQL and return the rows as text, one list per row."""
        argv: list[str | Path] = [
            self.binaries.client,
            "--no-defaults",
            f"--socket={self.socket}",
            "--user=root",
            "--batch",
            "--skip-column-names",
            *([database] if database else []),
        ]
        out = self.run_client(argv, "mariadb", stdin=statements, seconds=seconds)
        return [line.split("\t") for line in out.split("\n")] if out else []
