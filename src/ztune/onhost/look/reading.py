"""What the readers of databases' settings share: processes, folders, clients, and ways to write a size."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host import noatime
from ztune.onhost.host.zfs import last_words, which

CLIENT_SECONDS: Final = 15.0
MOST_FOLDERS: Final = 2000
"""Folders below a root that are looked into for a database's marks."""
LARGEST_FILE: Final = 16 << 20
"""Bytes of a configuration file that are read."""
Way = TypeVar("Way")


@dataclass(frozen=True, kw_only=True)
class ObservedDatabase:
    """What a database says of its own settings."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # where observations are read

    kind: str
    """One of those that the databases' facts declare, such as "postgresql"."""
    version: str | None = None
    where: str
    """The socket, port or directory that it was read from."""
    asked_as: str | None = None
    """Account that the server was asked as over its socket; None: it was not asked, files were read."""
    settings: dict[str, str] = field(default_factory=dict)
    """Setting → value, as the database names it; sizes in bytes as plain numbers."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Setting → why it could not be read."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as far as it may be looked at."""

    pid: int
    program: str
    """Name of its executable, or what it calls itself."""
    argv: tuple[str, ...]
    folder: Path | None
    """Its working directory."""
    executable: Path | None

    def option(self, *names: str) -> str | None:
        """Return the value of the last of ``names`` among its arguments: "--x=1", "--x 1", "-x 1"."""
        found = None
        for i, word in enumerate(self.argv[1:], start=1):
            name, equals, value = word.partition("=")
            if name in names:
                if equals:
                    found = value
                elif i + 1 < len(self.argv):
                    found = self.argv[i + 1]
            else:
                for short in names:
                    # "-D/srv/db"
                    if len(short) == 2 and word.startswith(short) and not word.startswith("--"):
                        found = word[2:]
        return found


@dataclass(frozen=True, slots=True)
class Instance:
    """One database that was found, to be read."""

    place: Path
    """Its data folder, configuration file or own file: two with the same place are one."""
    process: Process | None = None


def process(pid: int) -> Process | None:
    """Return what may be known of a process; None when it is gone."""
    base = Path(f"/proc/{pid}")
    try:
        argv = tuple((base / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0"))
        program = (base / "comm").read_text(errors="replace").strip()
    except OSError:
        return None
    folder = executable = None
    with suppress(OSError):
        folder = (base / "cwd").readlink()
    with suppress(OSError):
        executable = Path(str((base / "exe").readlink()).removesuffix(" (deleted)"))
        program = executable.name
    return Process(pid, program, argv, folder, executable)


def working_in(folders: Iterable[Path], known: Container[int]) -> list[Process]:
    """Return the processes whose working folder, as a server's often is its data folder, is one of these."""
    wanted = {str(folder) for folder in folders} - {"/"}
    found = []
    for entry in Path("/proc").iterdir() if wanted else ():
        if entry.name.isdigit() and int(entry.name) not in known:
            with suppress(OSError):
                if str((entry / "cwd").readlink()) in wanted and (one := process(int(entry.name))):
                    found.append(one)
    return found


def open_files(pid: int) -> Iterator[Path]:
    """Yield the paths of the regular files that a process has open."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        with suppress(OSError):
            target = str(link.readlink())
            if target.startswith("/") and not target.endswith(" (deleted)"):
                yield Path(target)


def listening_sockets(pid: int) -> list[Path]:
    """Return the unix sockets in the file system on which a process listens."""
    own = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
                if match:
                    own.add(match[1])
    found = []
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/net/unix").read_text(errors="replace").splitlines()[1:]:
            fields = line.split(None, 7)
            # Flag __SO_ACCEPTCON: it accepts connections.
            if len(fields) == 8 and fields[6] in own and int(fields[3], 16) & 0x10000:
                found.append(Path(fields[7]))
    return [path for path in found if path.is_absolute()]


def folders(roots: Iterable[Path], above: int) -> list[Path]:
    """Return each root, ``above`` folders above it, and up to three levels of folders below it."""
    found: dict[Path, None] = {}
    for root in roots:
        with suppress(OSError):
            root = root.resolve()
            found.update(dict.fromkeys([root, *root.parents][: above + 1]))
            level = [root]
            for _ in range(3):
                level = [below for folder in level for below in _below(folder)]
                level = level[: max(0, MOST_FOLDERS - len(found))]
                found.update(dict.fromkeys(level))
    return list(found)


def _below(folder: Path) -> list[Path]:
    try:
        with noatime.entries(folder) as entries:
            return sorted(folder / e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def accounts(user: str | None, server: int | None) -> tuple[str | None, ...]:
    """Return the accounts to ask a server as, one after the other; None is the caller's own.

    ``user``: the one that was chosen: only it is tried. ``server``: its process. Root is seldom a role of a
    database, but the account that its server runs as nearly always is one, and known by the socket alone
    (peer, unix_socket); it may read the files anyway. So root asks as that first.
    """
    if user is not None:
        return (user,)
    if server is not None and os.geteuid() == 0:
        with suppress(OSError, KeyError):
            uid = Path(f"/proc/{server}").stat().st_uid
            if uid != 0:
                return (pwd.getpwuid(uid).pw_name, None)
    return (None,)


def own_account() -> str:
    """Return the name of the caller's account, or its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def asked_or_read(
    ways: Iterable[Way],
    user: str | None,
    server: int | None,
    asked: Callable[[Way, str | None], ObservedDatabase],
    read: Callable[[str], ObservedDatabase],
    silent: str,
) -> ObservedDatabase:
    """Return what a server answers by the first of ``ways`` and accounts that it answers, else what its files
    say.

    Args:
        ways: to the server, such as its sockets.
        user: the account that was chosen; ``accounts`` says which are tried without one.
        server: its process.
        asked: asks it by a way, as an account; raises ZtuneError where it gets no answer.
        read: reads the files instead; it is given the reasons why nothing answered.
        silent: the reason where there is no way.
    """
    problems = []
    for way in ways:
        for account in accounts(user, server):
            try:
                return asked(way, account)
            except ZtuneError as error:
                said = " ".join(str(error).split())
                problems.append(said if account is None else f"asked as {account}: {said}")
    return read("; ".join(problems) or silent)


def from_files(
    kind: str,
    instance: Instance,
    settings: Mapping[str, str],
    names: Iterable[str],
    reason: str,
    version: str | None = None,
) -> ObservedDatabase:
    """Return what was read without asking a server; those of ``names`` that it lacks are unknown
    for ``reason``.
    """
    return ObservedDatabase(
        kind=kind,
        version=version or None,
        where=str(instance.place),
        settings=dict(settings),
        unknown=unknown(names, settings, reason),
    )


def ask(argv: Sequence[str], environment: Mapping[str, str | None], user: str | None = None) -> str:
    """Run a database's client and return what it prints. It can't ask for anything: it has no terminal.

    ``environment``: besides the caller's own; None takes a variable away. ``user``: the account of the
    operating system to run as, which only root can; its client reads that account's own files, not the
    caller's.

    Raises:
        MissingError: no such program, or no right to be ``user``.
        ZtuneError: it failed; with its last words.
    """
    path = which(argv[0])
    if path is None:
        raise MissingError(f"the client {argv[0]} is not installed")
    try:
        home = {} if user is None else {"HOME": pwd.getpwnam(user).pw_dir, "USER": user, "LOGNAME": user}
        done = subprocess.run(
            [path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CLIENT_SECONDS,
            env={
                k: v for k, v in {**os.environ, "LC_ALL": "C", **home, **environment}.items() if v is not None
            },
            user=user,
            group=None if user is None else _group(user),
            extra_groups=None if user is None else [],
            cwd="/",
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise ZtuneError(f"{Path(argv[0]).name} did not answer within {CLIENT_SECONDS:.0f} s") from None
    except (OSError, LookupError) as error:
        raise MissingError(f"{Path(argv[0]).name} can't be run as {user}: {error}") from None
    if done.returncode != 0:
        said = last_words(done.stderr.decode(errors="replace"))
        name = Path(argv[0]).name
        raise ZtuneError(f"{name}: {said.removeprefix(f'{name}: ') or f'exit code {done.returncode}'}")
    return done.stdout.decode(errors="replace")


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def text_of(path: Path) -> str:
    """Return the text of a configuration file. Raises ZtuneError when it can't be read."""
    try:
        return noatime.beginning(path, LARGEST_FILE).decode(errors="replace")
    except OSError as error:
        raise ZtuneError(f"{path}: {error.strerror}") from None


_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(?:i?[bB])?")


def size(text: str, unit: int = 1) -> str:
    """Return a size as plain bytes: "16MB" → "16777216", "8" of kB → "8192"; as it is if it is none.

    ``unit``: bytes that a number without a letter counts in. Negative numbers stay: they mean "automatic".
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return text
    number, letter = float(match[1]), match[2].upper()
    if number < 0:
        return match[1]
    scale = 1024 ** (" KMGT".index(letter)) if letter else unit
    return str(int(number * scale))


def wanted(names: Mapping[str, int | None], given: Mapping[str, str]) -> dict[str, str]:
    """Return what is ``given`` of these names, sizes as plain bytes.

    ``names``: name → bytes that a number without a unit counts in; None where it is no size.
    """
    units = {name: names[name] for name in given if name in names}
    return {name: given[name] if unit is None else size(given[name], unit) for name, unit in units.items()}


def ldif(text: str) -> Iterator[dict[str, list[str]]]:
    """Yield the entries of an LDIF file (RFC 2849): attribute in lower case → values; "dn" among them.

    Values in base64 are left out: no setting that matters here needs it.
    """
    entry: dict[str, list[str]] = {}
    for line in [*text.replace("\r\n", "\n").replace("\n ", "").split("\n"), ""]:
        if not line.strip():
            if entry:
                yield entry
            entry = {}
        elif not line.startswith("#"):
            name, colon, value = line.partition(":")
            if colon and not value.startswith((":", "<")):
                entry.setdefault(name.lower(), []).append(value.strip())


def unknown(names: Iterable[str], known: Iterable[str], reason: str) -> dict[str, str]:
    """Return the names that are not known, each with the reason."""
    have = set(known)
    return {name: reason for name in names if name not in have}
