"""A PostgreSQL server of our own: found, initialised, configured, started, watched and stopped.

It listens on a unix socket in a directory that only its own user can enter, never on TCP, and keeps data and
WAL in two directories, so that each can be given its own dataset. What is neither (socket, log, its home)
stays in the work directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import Account, descendants, run
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.onhost.jobs.server import DatabaseServer
from ztune.onhost.jobs.settings import by_name, check_names, check_values
from ztune.packages import install_command

PAGE_SIZE = 8192
"""Bytes in a page: fixed when PostgreSQL is built (``--with-blocksize``), 8 KiB in every distribution's
packages.
"""
SEGMENT_SIZE = 16 << 20
"""Bytes in a WAL segment: initdb's default (``--wal-segsize``), which nearly every installation keeps."""

_NEEDED = ("postgres", "initdb", "psql", "pgbench")
_SUPERUSER = "ztune"
_PORT = 5432  # Only a part of the socket's name: there is no TCP.
_SOCKET_NAME = f".s.PGSQL.{_PORT}.lock"
START_SECONDS = 60.0
STOP_SECONDS = 60.0
"""Time limits on an ordinary machine; ``patience`` multiplies them."""

OWNED = by_name(
    {
        "it is reached by its own socket only": "listen_addresses port unix_socket_directories "
        "unix_socket_permissions unix_socket_group",
        "the layout's datasets say where files lie": "data_directory",
        "the workload makes it": "hba_file ident_file config_file external_pid_file",
        "its log is read for errors": "logging_collector log_destination log_checkpoints",
        "the workload's parameter 'clients' decides it": "max_connections",
        "a crash must fail the trial": "restart_after_crash",
        "the workload says whether the log is archived, and where": "archive_mode archive_command "
        "archive_library",
        "it is fixed when PostgreSQL is built": "block_size wal_block_size segment_size",
        "it is fixed when the cluster is made": "wal_segment_size",
        "the workload makes its cluster with checksums": "data_checksums",
    }
)
"""Settings that a layout may not change, and why."""

_SWITCH = ("on", "off", "true", "false", "yes", "no", "1", "0")
WORDS = {
    **dict.fromkeys(("fsync", "full_page_writes", "wal_recycle", "wal_init_zero", "wal_log_hints"), _SWITCH),
    **dict.fromkeys(("autovacuum", "jit", "track_io_timing", "track_wal_io_timing"), _SWITCH),
    "synchronous_commit": (*_SWITCH, "local", "remote_write", "remote_apply"),
    "wal_compression": (*_SWITCH, "pglz", "lz4", "zstd"),
    "wal_level": ("minimal", "replica", "logical"),
    "wal_sync_method": ("fdatasync", "fsync", "fsync_writethrough", "open_datasync", "open_sync"),
    "huge_pages": (*_SWITCH, "try"),
}
"""Settings that take one of some words, of those that layouts are about (PostgreSQL's manual, Server
Configuration)."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The directory that holds PostgreSQL's programs, and their version."""

    directory: Path
    version: str
    """Such as ``15.18``."""

    def __getitem__(self, name: str) -> Path:
        """Return the path of one program."""
        return self.directory / name

    @property
    def major(self) -> int:
        """Major version: 15 for 15.18."""
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]  # `find_binaries` made sure.


def find_binaries(
    environ: Mapping[str, str] = os.environ,
    roots: tuple[Path, ...] = (Path("/usr/lib/postgresql"), Path("/usr")),
    *,
    patience: float = 1.0,
) -> Binaries:
    """Return the PostgreSQL to use: ``$ZTUNE_PG_BINDIR``, else the newest under ``roots``, else the one
    on ``PATH``.

    Debian keeps versions in ``/usr/lib/postgresql/N/bin``, the PostgreSQL project's RPMs in
    ``/usr/pgsql-N/bin``.

    Raises:
        InputError: ``$ZTUNE_PG_BINDIR`` is set to a directory that lacks a program.
        MissingError: there is none; the text names the command that installs it.
    """
    chosen = environ.get("ZTUNE_PG_BINDIR")
    if chosen:
        lacking = [name for name in _NEEDED if not os.access(Path(chosen) / name, os.X_OK)]
        if lacking:
            raise InputError(
                f"ZTUNE_PG_BINDIR={chosen}: there is no program {lacking[0]!r} in that directory"
            )
        return _with_version(Path(chosen), patience)
    places = [
        path
        for root in roots
        for pattern in ("[0-9]*/bin", "pgsql-[0-9]*/bin")
        for path in root.glob(pattern)
    ]
    places.sort(key=lambda path: float(re.search(r"[\d.]+$", path.parent.name)[0]), reverse=True)  # type: ignore[index]
    on_path = shutil.which("postgres", path=environ.get("PATH"))
    if on_path:
        places.append(Path(on_path).resolve().parent)
    for place in places:
        if all(os.access(place / name, os.X_OK) for name in _NEEDED):
            return _with_version(place, patience)
    raise MissingError(
        f"PostgreSQL's server programs ({', '.join(_NEEDED)}) were not found; "
        f"install them with `{install_command('postgresql')}`, or set ZTUNE_PG_BINDIR to their directory"
    )


def _with_version(directory: Path, patience: float) -> Binaries:
    version = software.version_of([directory / "postgres", "--version"], r"(\d+[\w.]*)", patience=patience)
    return Binaries(directory, version)


def check_settings(binaries: Binaries, settings: Mapping[str, str], *, patience: float = 1.0) -> None:
    """Refuse settings that this PostgreSQL doesn't have, or that are not a layout's to choose.

    Values that are not in ``WORDS`` are the server's to judge: it refuses to start with a wrong one and says
    which.

    Raises:
        InputError: the sentence names the first such setting, and one like it where there is one.
    """
    if not settings:
        return
    check_values(settings, WORDS, OWNED)
    # One line per setting that may stand in postgresql.conf, its name first.
    said = software.said_by([binaries["postgres"], "--describe-config"], patience=patience)
    known = [line.partition("\t")[0] for line in said.splitlines()]
    check_names(f"PostgreSQL {binaries.version}", settings, known, _COMMON)


_COMMON = (
    *("full_page_writes", "wal_recycle", "wal_init_zero", "wal_compression", "synchronous_commit"),
    *("checkpoint_timeout", "max_wal_size", "shared_buffers"),
)


def _shared_memory(pid: int) -> list[Callable[[], None]]:
    """Return what removes each System V and POSIX segment that the process or one of its children has
    mapped.
    """
    lines: list[str] = []
    for each in (pid, *(child.pid for child in descendants(pid))):
        with contextlib.suppress(OSError):
            lines += Path(f"/proc/{each}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    found: dict[str, Callable[[], None]] = {}
    for line in lines:
        # Address, rights, offset, device, inode, name; for a System V segment the inode is its number.
        fields = line.split(None, 5)
        name = fields[5] if len(fields) == 6 else ""
        if name.startswith("/SYSV"):
            found[name] = partial(_remove_segment, fields[4])
        elif name.startswith("/dev/shm/PostgreSQL."):
            found[name] = partial(Path(name).unlink, missing_ok=True)
    return list(found.values())


def _remove_segment(number: str) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["ipcrm", "-m", number], stderr=subprocess.DEVNULL, timeout=30)


class PostgresServer(DatabaseServer):
    """One server: its files in ``data`` and ``wal``, its log, home and socket in a work directory."""

    def __init__(
        self,
        binaries: Binaries,
        workdir: WorkDir,
        home: Path,
        account: Account,
        *,
        data: Path,
        wal: Path,
        patience: float = 1.0,
    ) -> None:
        """Make the directory of its socket; nothing is started.

        ``binaries``: which PostgreSQL; ``data`` and ``wal``: directories of the account's for the cluster and
        its WAL; else as ``DatabaseServer``.
        """
        # SIGQUIT is PostgreSQL's immediate shutdown: it takes its children along.
        quit_, socket = signal.SIGQUIT, _SOCKET_NAME
        super().__init__("PostgreSQL", workdir, home, account, socket, death_signal=quit_, patience=patience)
        self.binaries = binaries
        self.data = data
        self.wal = wal

    def initialise(self) -> None:
        """Make an empty cluster: data checksums on, UTF-8, WAL in a directory of its own.

        Raises:
            ZtuneError: initdb failed.
        """
        run(
            [
                self.binaries["initdb"],
                f"--pgdata={self.data}",
                f"--waldir={self.wal}",
                f"--username={_SUPERUSER}",
                # Nobody but the server's own user can reach the socket.
                "--auth=trust",
                "--encoding=UTF8",
                # Sort order of the C locale: the same on every machine, so that a seed gives the same data.
                "--no-locale",
                "--data-checksums",
                "--no-sync",
                "--no-instructions",
            ],
            what="initdb",
            account=self.account,
            cwd=self.home,
            seconds=120 * self.patience,
        )
        places.write(self.data / "postgresql.conf", "\ninclude 'ztune.conf'\n", append=True)

    def adopt(self) -> None:
        """Look at a cluster whose files were copied, and set the link to the WAL anew.

        Owners and modes are left to be set.

        Raises:
            ZtuneError: there is no cluster of this PostgreSQL's major version there, or it was not shut down.
        """
        try:
            version = own_directory.read_plain(self.data / "PG_VERSION", 64).strip()
        except OSError:
            raise ZtuneError(f"{self.data}: there is no PostgreSQL cluster to take over") from None
        if version != str(self.binaries.major):
            raise ZtuneError(
                f"{self.data}: the cluster is PostgreSQL {version}'s, "
                f"which {self.binaries.version} can't open; load it anew"
            )
        if (self.data / "postmaster.pid").exists():
            raise ZtuneError(f"{self.data}: the cluster was copied while a server ran on it; load it anew")
        if not any(self.wal.iterdir()):
            raise ZtuneError(f"{self.wal}: the WAL that belongs to the cluster is missing; load it anew")
        link = self.data / "pg_wal"
        if link.is_symlink():
            link.unlink()
        elif link.exists():
            raise ZtuneError(f"{link}: it should be a link to the WAL's directory; load the cluster anew")
        link.symlink_to(self.wal)

    def configure(self, settings: Mapping[str, str | int | bool]) -> None:
        """Write the settings that the next start uses; sizes carry their unit, as ``64MB``."""
        fixed: dict[str, str | int | bool] = {
            "listen_addresses": "",
            "port": _PORT,
            "unix_socket_directories": str(self.socket_dir),
            "unix_socket_permissions": "0700",
            "logging_collector": False,
            "log_checkpoints": True,
            "restart_after_crash": False,
        }
        lines = ["# Written by ztune."]
        for name, value in {**fixed, **settings}.items():
            text = ("on" if value else "off") if isinstance(value, bool) else str(value)
            lines.append(f"{name} = '{text.replace(chr(39), chr(39) * 2)}'")
        path = self.data / "ztune.conf"
        places.lend(path, "\n".join(lines) + "\n", self.account)

    def start(self, leave_after: float | None = None) -> None:
        """Start the server and wait until it accepts connections, but no longer than ``leave_after`` seconds.

        Raises:
            InputError: it didn't come up; the sentence ends with the last lines of its log.
        """
        self._server.start(
            [self.binaries["postgres"], "-D", self.data],
            cwd=self.data,
            ready=self._ready,
            seconds=START_SECONDS,
            leave_after=leave_after,
        )

    def _ready(self) -> bool:
        # The eighth line of postmaster.pid is the server's own word on its state.
        try:
            lines = own_directory.read_plain(self.data / "postmaster.pid").splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready" and lines[0].strip() == str(self.pid)

    def stop(self) -> None:
        """Shut down in order: SIGINT, PostgreSQL's fast shutdown, which ends with a checkpoint. When that
        takes too long, SIGQUIT, then SIGKILL.

        Raises:
            ZtuneError: it had died before, or had to be forced: its files are as after a crash.
        """
        self._server.stop(signal.SIGINT, STOP_SECONDS, "stopped by an immediate shutdown")

    def cut(self) -> None:
        """End every process of the server at once, as a power cut does, and remove the memory they shared.

        That memory is found by the data directory's device and inode. After a cut the directory may be on
        another device, so the next server would not know it for its own, and leave it.
        """
        shared = _shared_memory(self.pid) if self.running else []
        super().cut()
        for remove in shared:
            remove()

    @property
    def client_env(self) -> dict[str, str]:
        """The environment in which one of PostgreSQL's clients finds the server."""
        return {
            "PGHOST": str(self.socket_dir),
            "PGPORT": str(_PORT),
            "PGUSER": _SUPERUSER,
            "PGDATABASE": "postgres",
            "PGAPPNAME": "ztune",
        }

    def client(
        self,
        name: str,
        *args: str | Path,
        stdin: str | None = None,
        seconds: float = 600.0,
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        """Run one of PostgreSQL's client programs against the server; return its standard output.

        It may take ``seconds`` times ``patience``.

        Raises:
            ZtuneError: it failed, or the server died meanwhile.
        """
        return self.run_client(
            [self.binaries[name], *args],
            name,
            env=self.client_env,
            stdin=stdin,
            seconds=seconds,
            on_line=on_line,
        )

    def sql(
        self, statements: str, *, seconds: float = 600.0, on_line: Callable[[str], None] | None = None
    ) -> list[list[str]]:
        """Run SQL and return the rows as text, one list per row."""
        out = self.client(
            "psql",
            "--no-psqlrc",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--field-separator=\t",
            "--set=ON_ERROR_STOP=1",
            "--file=-",
            stdin=statements,
            seconds=seconds,
            on_line=on_line,
        )
        return [line.split("\t") for line in out.split("\n")] if out else []

    def value(self, query: str) -> str:
        """Return the one value that ``query`` yields, as text; NULL and nothing are empty."""
        rows = self.sql(query)
        return rows[0][0] if rows else ""
