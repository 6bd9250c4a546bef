"""Settings of Valkey and Redis: over socket or port with their own client; else from a configuration file.

Source of names: ``valkey.conf``, whose names Redis shares. ``CONFIG GET`` and ``INFO server`` change nothing.
A password is never asked for: the client takes that of a caller who asks as itself (``REDISCLI_AUTH``), as
always; root has to name itself for that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host import noatime
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
    require_port,
    require_socket,
    size,
)

SETTINGS: Final = (
    *("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "aof-use-rdb-preamble", "aof-load-truncated"),
    *("aof-timestamp-enabled", "aof-rewrite-incremental-fsync", "auto-aof-rewrite-percentage"),
    *("auto-aof-rewrite-min-size", "appendfilename", "appenddirname", "save", "rdbcompression"),
    "rdbchecksum",
    *("rdb-save-incremental-fsync", "stop-writes-on-bgsave-error", "dbfilename", "dir"),
    *("maxmemory", "maxmemory-policy", "io-threads", "repl-diskless-sync", "repl-diskless-load"),
)
"""All that is read: none holds a secret."""
_SIZES = ("auto-aof-rewrite-min-size", "maxmemory")
# The server is a link to the program that checks snapshots, in Debian's packages.
_PROGRAMS = tuple(f"{name}-{what}" for name in ("valkey", "redis") for what in ("server", "check-rdb"))
_FILES = (
    *("/etc/valkey/valkey.conf", "/etc/redis/redis.conf", "/etc/valkey.conf", "/etc/redis.conf"),
    *("/usr/local/etc/valkey.conf", "/usr/local/etc/redis.conf"),
)
_SNAPSHOT, _AOF_DIRECTORY = "dump.rdb", "appendonlydir"
# What a server writes at the beginning of each snapshot and of each base of its log.
_WRITER = re.compile(rb"(valkey|redis)-ver.{1,2}?(\d+(?:\.\d+)+)", re.DOTALL)


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield the servers among the processes, and folders with a snapshot or an append-only file."""
    for process in processes:
        # It works in the folder of its files; its children, which write them anew, too.
        if process.program in _PROGRAMS and process.folder is not None:
            yield Instance(process.folder, process)
    for folder in folders:
        # Also what only looks like one by its name, such as another program's dump, has another beginning.
        if _bases(folder) or _writer(folder / _SNAPSHOT):
            yield Instance(folder)


def _bases(folder: Path) -> list[Path]:
    """Return the append-only file's bases, the newest last; the names say their order."""
    below = folder / _AOF_DIRECTORY
    names = [
        match for name in noatime.names(below) if (match := re.fullmatch(r".+\.(\d+)\.base\.(aof|rdb)", name))
    ]
    return [below / match[0] for match in sorted(names, key=lambda match: int(match[1]))]


def _writer(path: Path) -> tuple[str, str] | None:
    """Return who wrote a snapshot or a base, ``redis`` and ``7.0.15``; None where it does not say."""
    try:
        begin = noatime.beginning(path, 256)
    except OSError:
        return None
    match = _WRITER.search(begin) if begin.startswith((b"REDIS", b"VALKEY")) else None
    return (match[1].decode(), match[2].decode()) if match else None


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the settings of one server. Nothing fails: what can't be read is in ``unknown``."""
    read_files = partial(_by_files, instance)
    if instance.process is None:
        return read_files("no server process was given")
    server = instance.process
    addresses, asked = _addresses(server), partial(_by_client, server)
    silent = "it names no port and listens on no socket that can be seen"
    return asked_or_read(addresses, user, server, asked, read_files, silent)


def _addresses(process: Process) -> list[tuple[str, ...]]:
    """Return the client's arguments for each way to the server: its sockets, then its port."""
    found: list[tuple[str, ...]] = [("-s", str(path)) for path in listening_sockets(process.pid)]
    # "valkey-server 127.0.0.1:6379", "redis-server *:6379 [cluster]": what it calls itself, as one argument.
    for word in " ".join(process.argv).split()[1:]:
        # Not longer than any address: words may have 128 KiB, and be tried from each letter on.
        match = re.fullmatch(r"(\S{1,255}):([0-9]{1,5})", word)
        if match:
            host = "127.0.0.1" if match[1] in ("*", "0.0.0.0") else "::1" if match[1] == "::" else match[1]
            found.append(("-h", host.strip("[]"), "-p", match[2]))
    return found


def _by_client(server: Process, address: tuple[str, ...], by: Asker) -> ObservedDatabase:
    if address[0] == "-s":
        require_socket(Path(address[1]), server.uid, by)
    else:
        require_port(address[1], int(address[3]), server)
    client = next((c for c in ("valkey-cli", "redis-cli") if which(c)), None)
    if client is None:
        raise MissingError("neither the client valkey-cli nor redis-cli is installed")

    def answer(*words: str) -> list[str]:
        lines = ask([client, *address, *words], {}, by).splitlines()
        # Its exit code says nothing of a refused command.
        if lines and re.match(r"\(error\)|[A-Z]+ .*[a-z]", lines[0]):
            raise ZtuneError(f"{client}: {lines[0]}")
        return lines

    about = dict(line.split(":", 1) for line in answer("INFO", "server") if ":" in line)
    try:
        said = answer("CONFIG", "GET", *SETTINGS)
    except ZtuneError:
        # Before 7.0 it took one name.
        said = [line for name in SETTINGS for line in answer("CONFIG", "GET", name)]
    pairs = dict(zip(said[::2], said[1::2], strict=False))
    # Each release has some of them only; what is not there is not unknown.
    settings: dict[str, str] = {name: pairs[name] for name in SETTINGS if name in pairs}
    version = about.get("valkey_version")
    return ObservedDatabase(
        kind="valkey" if version else "redis",
        version=version or about.get("redis_version"),
        where=address[1] if address[0] == "-s" else f"{address[1]}:{address[3]}",
        asked_as=by.shown,
        settings=settings,
    )


def parse_options(path: Path, whole: Configuration | None = None) -> dict[str, str]:
    """Return the settings in a configuration file and in what it includes; the last of a name counts.

    Only those of ``SETTINGS``, sizes in bytes. ``whole``: what includes it. Raises ZtuneError when the file
    can't be read.
    """
    whole = whole or Configuration()
    found: dict[str, str] = {}
    for line in whole.text(path).splitlines():
        try:
            words = shlex.split(line, comments=line.lstrip().startswith("#"))
        except ValueError:  # a quote that is not closed
            continue
        name = words[0].lower() if words else ""
        if name == "include" and len(words) == 2:
            found |= whole.included([path.parent / words[1]], parse_options)
        elif name == "save" and found.get("save") and words[1:] != [""]:
            found["save"] += f" {' '.join(words[1:])}"  # a line for each point
        elif name in SETTINGS:
            value = " ".join(words[1:])
            found[name] = _bytes(value) if name in _SIZES else value
    return found


def _bytes(value: str) -> str:
    """Return a size as plain bytes: "64mb" counts in 1024, "64m" in 1000 (valkey.conf, Note on units)."""
    match = re.fullmatch(r"(\d+)([kmg])", value.lower())
    return str(int(match[1]) * 1000 ** (" kmg".index(match[2]))) if match else size(value)


def _by_files(instance: Instance, why: str) -> ObservedDatabase:
    settings: dict[str, str] = {}
    problems = [why]
    # Its command line may name one, before it has named itself anew.
    given = [
        Path(word) for word in (instance.process.argv[1:] if instance.process else ()) if word[:1] == "/"
    ]
    for path in [*given, *map(Path, _FILES)]:
        if not path.exists():
            continue
        try:
            found = parse_options(path)
        except ZtuneError as error:
            problems.append(str(error))
            continue
        if path in given or Path(found.get("dir", "")).resolve() == instance.place.resolve():
            settings = found
            break
    writer = next(
        filter(None, map(_writer, (*reversed(_bases(instance.place)), instance.place / _SNAPSHOT))), None
    )
    program = instance.process.program if instance.process else ""
    kind = "valkey" if program.startswith("valkey") or (writer and writer[0] == "valkey") else "redis"
    reason = f"the server could not be asked ({'; '.join(problems)}), and no configuration file of it sets it"
    return from_files(kind, instance, settings, SETTINGS, reason, writer[1] if writer else None)
