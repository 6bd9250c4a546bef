"""PostgreSQL's settings: over its socket with psql; else from its configuration files and pg_control.

Source of names and units: PostgreSQL's documentation, Server Configuration, and its view pg_settings. The
session is read-only, and needs no more rights than any role has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from ztune.databases.postgresql.onhost import control
from ztune.errors import ZtuneError
from ztune.onhost.look.reading import (
    Asker,
    Configuration,
    Instance,
    ObservedDatabase,
    Process,
    ask,
    asked_or_read,
    from_files,
    require_socket,
    text_of,
    unknown,
    wanted,
)
from ztune.units import whole

_8K, _K, _M = 8192, 1024, 1 << 20
SETTINGS: Final[dict[str, int | None]] = {
    # What the files are made of; can't be changed in a running server.
    **{"block_size": 1, "wal_block_size": 1, "segment_size": _8K, "wal_segment_size": 1},
    "data_checksums": None,
    # Log.
    **{"fsync": None, "full_page_writes": None, "synchronous_commit": None, "wal_sync_method": None},
    **{"wal_level": None, "wal_compression": None, "wal_log_hints": None, "wal_recycle": None},
    **{"wal_init_zero": None, "wal_buffers": _8K, "wal_writer_delay": None, "wal_writer_flush_after": _8K},
    **{"wal_skip_threshold": _K, "commit_delay": None, "commit_siblings": None, "archive_mode": None},
    **{"max_wal_size": _M, "min_wal_size": _M, "wal_keep_size": _M, "checkpoint_timeout": None},
    **{"checkpoint_completion_target": None, "checkpoint_flush_after": _8K},
    # Memory.
    **{"shared_buffers": _8K, "effective_cache_size": _8K, "work_mem": _K, "maintenance_work_mem": _K},
    **{"temp_buffers": _8K, "huge_pages": None},
    # Reads, writes and where they go.
    **{"bgwriter_flush_after": _8K, "backend_flush_after": _8K, "bgwriter_delay": None},
    **{"effective_io_concurrency": None, "maintenance_io_concurrency": None, "io_combine_limit": _8K},
    **{"io_method": None, "debug_io_direct": None, "io_direct": None, "random_page_cost": None},
    **{"seq_page_cost": None, "temp_tablespaces": None, "default_tablespace": None},
    **{"default_toast_compression": None, "autovacuum": None, "track_io_timing": None},
    **{"file_copy_method": None, "recovery_init_sync_method": None},
}
"""All that is read → bytes that a number without a unit counts in; None where it is no size."""

_SINCE = {
    **{"wal_recycle": 12, "wal_init_zero": 12, "wal_skip_threshold": 13, "wal_keep_size": 13},
    **{"maintenance_io_concurrency": 13, "default_toast_compression": 14, "recovery_init_sync_method": 14},
    **{"io_direct": 16, "debug_io_direct": 16, "io_combine_limit": 17, "io_method": 18},
    "file_copy_method": 18,
}
_SEPARATOR = "\x1f"
_LINE = re.compile(r"\s*([A-Za-z_][\w.]*)(?:\s*=\s*|\s+)('(?:[^']|'')*'|[^\s#']+)")


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield the clusters that the processes serve or that are in the folders."""
    for process in processes:
        if process.program in ("postgres", "postmaster"):
            # Every process of a cluster works in its data folder.
            place = process.folder or process.option("-D")
            if place:
                yield Instance(Path(place), process)
    for folder in folders:
        if (folder / "PG_VERSION").is_file() and (folder / "global").is_dir():
            yield Instance(folder)


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the settings of one cluster. Nothing fails: what can't be read is in ``unknown``."""
    version = ""
    with suppress(ZtuneError):
        version = text_of(instance.place / "PG_VERSION").strip()
    # No more than it should be: it is shown, and the folder is somebody's.
    version = version if re.fullmatch(r"[0-9]+(\.[0-9]+)?", version) else ""
    read_files = partial(_by_files, instance, version)
    try:
        way = (*_socket(instance), version)
    except ZtuneError as error:
        return read_files(" ".join(str(error).split()))
    return asked_or_read([way], user, instance.process, partial(_by_socket, instance), read_files, "")


def _names(version: str) -> list[str]:
    major = re.match(r"\d+", version)
    return [n for n in SETTINGS if major is None or int(major[0]) >= _SINCE.get(n, 0)]


def _socket(instance: Instance) -> tuple[str, str]:
    """Return the folder of a running server's socket, and its port. Raises ZtuneError."""
    # postmaster.pid: pid, data folder, start, port, folder of the socket …
    lines = [line.strip() for line in text_of(instance.place / "postmaster.pid").splitlines()]
    if len(lines) < 5 or not lines[4] or not re.fullmatch(r"[0-9]{1,5}", lines[3]):
        raise ZtuneError(f"{instance.place}/postmaster.pid names no socket")
    if not re.fullmatch(r"[0-9]{1,10}", lines[0]) or not Path(f"/proc/{lines[0]}").exists():
        raise ZtuneError("the server is not running")
    # psql takes what has another beginning for a host, and what is after a comma for a further one.
    if not lines[4].startswith("/") or "," in lines[4]:
        raise ZtuneError(f"{instance.place}/postmaster.pid names no socket in a folder")
    return lines[4], lines[3]


def _user(instance: Instance) -> int | None:
    """Return whose the server is: the process's that was observed, else the data folder's."""
    if instance.process is not None:
        return instance.process.uid
    with suppress(OSError):
        return instance.place.stat().st_uid
    return None


def _by_socket(instance: Instance, way: tuple[str, str, str], by: Asker) -> ObservedDatabase:
    host, port, version = way
    require_socket(Path(host, f".s.PGSQL.{port}"), _user(instance), by)
    names = ", ".join(f"'{name}'" for name in [*SETTINGS, "server_version"])
    query = f"SELECT name, setting, coalesce(unit, '') FROM pg_settings WHERE name IN ({names})"
    out = ask(
        [
            *("psql", "-X", "-A", "-t", "-w", "-q", "-F", _SEPARATOR),
            *("-h", host, "-p", port, "-d", "postgres", "-c", query),
        ],
        {
            "PGOPTIONS": "-c default_transaction_read_only=on -c statement_timeout=10000",
            "PGCONNECT_TIMEOUT": "5",
            "PGAPPNAME": "ztune observe",
            # What is in the caller's environment must not lead elsewhere.
            "PGHOSTADDR": None,
            "PGSERVICE": None,
            **({"PGUSER": by.name} if by.name else {}),
            # Known by the socket, or not at all. PGREQUIREAUTH: from version 16 on.
            **({} if by.trusting else {"PGPASSFILE": "/dev/null", "PGREQUIREAUTH": "none"}),
        },
        by,
    )
    settings: dict[str, str] = {}
    for line in out.splitlines():
        fields = line.split(_SEPARATOR)
        if len(fields) == 3:
            settings[fields[0]] = value_of(fields[1], fields[2])
    said = settings.pop("server_version", version)
    return ObservedDatabase(
        kind="postgresql",
        version=said or None,
        where=f"{host}/.s.PGSQL.{port}",
        asked_as=by.shown,
        settings=settings,
        unknown=unknown(_names(said), settings, "the server does not know it, or not show it to this role"),
    )


def value_of(setting: str, unit: str) -> str:
    """Return a value of pg_settings: sizes in bytes, others with their unit: ("16", "8kB") → "131072"."""
    match = re.fullmatch(r"(\d*)(B|kB|MB|GB|TB)", unit)
    if match is None:
        return f"{setting}{unit}"
    number = whole(setting)
    if number is None:
        return setting  # -1: automatic
    return str(number * int(match[1] or 1) * 1024 ** ("B", "kB", "MB", "GB", "TB").index(match[2]))


def parse_conf(path: Path, whole: Configuration | None = None) -> dict[str, str]:
    """Return the settings in a postgresql.conf and in what it includes; the last of a name counts.

    Only those of ``SETTINGS``. ``whole``: what includes it. Raises ZtuneError when the file can't be read.
    """
    whole = whole or Configuration()
    found: dict[str, str] = {}
    for line in whole.text(path).splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, value = match[1].lower(), match[2]
        if value.startswith("'"):
            value = value[1:-1].replace("''", "'")
        if name in ("include", "include_if_exists", "include_dir"):
            place = path.parent / value
            files = sorted(place.glob("*.conf")) if name == "include_dir" else [place]
            found |= whole.included(files, parse_conf)
        else:
            found |= wanted(SETTINGS, {name: value})
    return found


def _given(words: Sequence[str]) -> dict[str, str]:
    """Return what is set on a server's command line: "-c name=value", "--name=value"."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        text = words[i + 1] if word == "-c" and i + 1 < len(words) else word
        text = text.removeprefix("-c") if not text.startswith("--") else text[2:]
        name, equals, value = text.partition("=")
        if equals:
            found[name.strip().replace("-", "_").lower()] = value
    return found


def _by_files(instance: Instance, version: str, why: str) -> ObservedDatabase:
    settings: dict[str, str] = {}
    problems = [why]
    given: dict[str, str] = {}
    with suppress(ZtuneError):
        # What the server was started with, each word in double quotes.
        given = _given(re.findall(r'"([^"]*)"', text_of(instance.place / "postmaster.opts")))
    main = Path(given.get("config_file", str(instance.place / "postgresql.conf")))
    if not main.exists():
        # Debian's place for it: /var/lib/postgresql/15/main → /etc/postgresql/15/main.
        main = Path("/etc/postgresql", *instance.place.parts[-2:], "postgresql.conf")
    for path in (main, instance.place / "postgresql.auto.conf"):
        try:
            settings |= parse_conf(path)
        except ZtuneError as error:
            problems.append(str(error))
    settings |= wanted(SETTINGS, given)
    with suppress(ZtuneError):
        settings |= control.read(instance.place)
    reason = f"the server could not be asked ({'; '.join(problems)}), and its configuration does not set it"
    return from_files("postgresql", instance, settings, _names(version), reason, version)
