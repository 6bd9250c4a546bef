"""Settings of MariaDB and MySQL: over the socket with their own client; else from option files.

Source of names: MariaDB's Server System Variables, and MySQL's InnoDB Startup Options. ``SHOW GLOBAL
VARIABLES`` needs no right. The client reads the option files of a caller who asks as itself, as it always
does, and of an account that was named; root's asks as the server's account, and reads none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host.zfs import which
from ztune.onhost.look.reading import (
    Asker,
    Configuration,
    Instance,
    ObservedDatabase,
    Process,
    ask,
    asked_or_read,
    from_files,
    listening_sockets,
    require_socket,
    size,
    text_of,
)

SETTINGS: Final = (
    *("innodb_page_size", "innodb_doublewrite", "innodb_use_atomic_writes", "innodb_checksum_algorithm"),
    *("innodb_flush_method", "innodb_flush_log_at_trx_commit", "innodb_flush_log_at_timeout"),
    *("innodb_data_file_buffering", "innodb_data_file_write_through", "innodb_log_file_buffering"),
    *("innodb_log_file_write_through", "innodb_log_file_mmap"),
    *("innodb_log_file_size", "innodb_log_files_in_group", "innodb_log_buffer_size"),
    *("innodb_log_write_ahead_size", "innodb_redo_log_capacity", "innodb_undo_tablespaces"),
    *("innodb_buffer_pool_size", "innodb_io_capacity", "innodb_io_capacity_max", "innodb_flush_neighbors"),
    *("innodb_flush_sync", "innodb_read_ahead_threshold", "innodb_random_read_ahead"),
    *("innodb_read_io_threads", "innodb_write_io_threads", "innodb_use_native_aio", "innodb_use_fdatasync"),
    *("innodb_file_per_table", "innodb_compression_algorithm", "innodb_compression_default"),
    *("innodb_extend_and_initialize", "innodb_fill_factor", "innodb_change_buffering"),
    *("innodb_data_home_dir", "innodb_log_group_home_dir", "innodb_undo_directory"),
    "innodb_temp_data_file_path",
    *("innodb_doublewrite_dir", "innodb_doublewrite_pages", "datadir", "tmpdir", "log_bin"),
    *("log_bin_basename", "sync_binlog", "binlog_format", "binlog_cache_size", "max_binlog_size"),
    *("sync_relay_log", "aria_pagecache_buffer_size", "aria_block_size", "key_buffer_size"),
    *("tmp_table_size", "max_heap_table_size", "default_storage_engine", "rocksdb_use_direct_reads"),
)
"""All that is read: none holds a secret."""
_SWITCHES = frozenset(
    (
        *("innodb_doublewrite", "innodb_use_atomic_writes", "innodb_file_per_table", "innodb_flush_sync"),
        *("innodb_use_native_aio", "innodb_use_fdatasync", "innodb_random_read_ahead"),
        *("innodb_data_file_buffering", "innodb_data_file_write_through", "innodb_log_file_buffering"),
        *("innodb_log_file_write_through", "innodb_log_file_mmap", "innodb_extend_and_initialize"),
    )
)
_SIZES = re.compile(r".*_(size|capacity_bytes)|innodb_redo_log_capacity")
_GROUPS = re.compile(r"mysqld(-[\d.]+)?|mariadbd?(-[\d.]+)?|mariadbd?|server")
_DEFAULTS = ("/etc/my.cnf", "/etc/mysql/my.cnf")


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield the servers among the processes, and data folders."""
    for process in processes:
        if process.program in ("mariadbd", "mysqld", "mariadbd-safe", "mysqld_safe"):
            given = process.option("--datadir", "-h")
            # The server works in its data folder.
            place = process.folder if process.program in ("mariadbd", "mysqld") else None
            if place is None and given:
                place = Path(given)
            if place is not None:
                yield Instance(place, process)
    for folder in folders:
        if (folder / "ibdata1").is_file() and (folder / "mysql").is_dir():
            yield Instance(folder)


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the settings of one server. Nothing fails: what can't be read is in ``unknown``."""
    read_files = partial(_by_files, instance)
    if instance.process is None:
        return read_files("no server process was given")
    server = instance.process
    sockets = listening_sockets(server.pid)
    given = server.option("--socket", "-S")
    if given and Path(given) not in sockets:
        sockets.append(instance.place / given)
    silent = "it listens on no socket that can be seen"
    return asked_or_read(sockets, user, server, partial(_by_socket, server), read_files, silent)


def _kind(version: str) -> Literal["mariadb", "mysql"]:
    return "mariadb" if "mariadb" in version.lower() else "mysql"


def _by_socket(server: Process, socket: Path, by: Asker) -> ObservedDatabase:
    require_socket(socket, server.uid, by)
    client = next((c for c in ("mariadb", "mysql") if which(c)), None)
    if client is None:
        raise MissingError("neither the client mariadb nor mysql is installed")
    names = ", ".join(f"'{name}'" for name in (*SETTINGS, "version"))
    out = ask(
        [client, *(() if by.trusting else ("--no-defaults",))]  # that one has to be the first
        # A server may ask for any file of who asks it, and is given none.
        + ["--local-infile=0", "--batch", "--skip-column-names", "--connect-timeout=5"]
        + [f"--socket={socket}", "--protocol=socket"]
        + [f"--execute=SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"]
        + ([f"--user={by.name}"] if by.name else []),
        {},
        by,
    )
    settings = {}
    for line in out.splitlines():
        name, tab, value = line.partition("\t")
        if tab:
            settings[name.lower()] = value
    version = settings.pop("version", "")
    # Each release of each of the two has some of them only; what is not there is not unknown.
    return ObservedDatabase(
        kind=_kind(version),
        version=version or None,
        where=str(socket),
        asked_as=by.shown,
        settings=settings,
    )


def parse_options(path: Path, whole: Configuration | None = None) -> dict[str, str]:
    """Return the server's settings in an option file and in what it includes; the last of a name counts.

    Only those of ``SETTINGS``, sizes in bytes. ``whole``: what includes it. Raises ZtuneError when the file
    can't be read.
    """
    whole = whole or Configuration()
    found: dict[str, str] = {}
    ours = False
    for raw in whole.text(path).splitlines():
        line = raw.strip()
        if line.startswith("!include"):
            word, _, place = line.partition(" ")
            files = [Path(place.strip())] if word == "!include" else sorted(Path(place.strip()).glob("*.cnf"))
            found |= whole.included(files, parse_options)
        elif line.startswith("["):
            ours = _GROUPS.fullmatch(line.strip("[]").strip()) is not None
        elif ours and line and line[0] not in "#;":
            found |= _option(line)
    return found


def _option(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    name = name.strip().lower().replace("-", "_").removeprefix("loose_")
    value = re.split(r"\s#", value, maxsplit=1)[0].strip().strip("'\"")
    if not equals:
        value = "ON"
        if name.startswith(("skip_", "disable_")):
            name, value = name.partition("_")[2], "OFF"
    if name not in SETTINGS:
        return {}
    if name in _SWITCHES:
        value = {"1": "ON", "TRUE": "ON", "YES": "ON", "0": "OFF", "FALSE": "OFF"}.get(
            value.upper(), value.upper()
        )
    return {name: size(value) if _SIZES.fullmatch(name) else value}


def _by_files(instance: Instance, why: str) -> ObservedDatabase:
    settings: dict[str, str] = {}
    argv: tuple[str, ...] = ()
    version = ""
    paths = [Path(p) for p in _DEFAULTS]
    kind: Literal["mariadb", "mysql"] = "mysql"
    if instance.process is not None:
        argv = instance.process.argv[1:]
        one, more = (instance.process.option(f"--defaults{end}") for end in ("-file", "-extra-file"))
        paths = [Path(one)] if one else paths + ([Path(more)] if more else [])
        paths = [] if "--no-defaults" in argv else paths
        kind = "mariadb" if instance.process.program.startswith("mariadb") else "mysql"
    for name in ("mariadb_upgrade_info", "mysql_upgrade_info", "mysql_upgrade_history"):
        with suppress(ZtuneError):
            version = version or text_of(instance.place / name).split("\n")[0].strip("\0 ")
    if "mariadb" in version.lower() or (instance.place / "aria_log_control").exists():
        kind = "mariadb"
    problems = [why]
    for path in paths:
        if path.exists():
            try:
                settings |= parse_options(path)
            except ZtuneError as error:
                problems.append(str(error))
    for word in argv:
        if word.startswith("--"):
            settings |= _option(word[2:])
    reason = f"the server could not be asked ({'; '.join(problems)}), and its option files do not set it"
    version = version if version[:1].isdigit() else ""
    return from_files(kind, instance, settings, SETTINGS, reason, version)
