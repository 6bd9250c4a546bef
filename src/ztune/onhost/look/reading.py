"""What the readers of databases' settings share: processes, folders, clients, and ways to write a size."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import selectors
import signal
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host import noatime, own_directory
from ztune.onhost.host.process import KILL_SECONDS, all_pids, user_of
from ztune.onhost.host.zfs import last_words, which
from ztune.units import DIGITS, format_size

CLIENT_SECONDS: Final = 15.0
CLIENT_BYTES: Final = 1 << 20
"""The most that a client may print, or complain of: a server that is any user's could answer without end."""
MOST_FOLDERS: Final = 2000
"""Folders below a root that are looked into for a database's marks."""
LARGEST_FILE: Final = 16 << 20
"""Bytes of a configuration file that are read, with all that it includes."""
MOST_INCLUDED: Final = 200
"""Files that a configuration file may include, and those in turn; lines that include none count as one."""
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}
"""Of a client that is told no password."""
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
    uid: int | None = None
    """The user that it runs as, in every respect; None: more than one, or not known."""

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
    return Process(pid, program, argv, folder, executable, user_of(pid))


def working_in(folders: Iterable[Path], known: Container[int]) -> list[Process]:
    """Return the processes whose working folder, as a server's often is its data folder, is one of these."""
    wanted = {str(folder) for folder in folders} - {"/"}
    found = []
    for pid in all_pids() if wanted else ():
        if pid not in known:
            with suppress(OSError):
                if str(Path(f"/proc/{pid}/cwd").readlink()) in wanted and (one := process(pid)):
                    found.append(one)
    return found


def is_elsewhere(one: Process, place: Path) -> bool:
    """Whether a process sees other files than this one, as in a container: other ones from / on, or in
    ``place``. False where that can't be told.

    A service of systemd often has mounts of its own, and sees the same.
    """
    for path in (Path("/"), place):
        with suppress(OSError):
            theirs = Path(f"/proc/{one.pid}/root{path}").stat()
            try:
                here = path.stat()
            except FileNotFoundError:
                return True
            if (theirs.st_dev, theirs.st_ino) != (here.st_dev, here.st_ino):
                return True
    return False


def may_serve(one: Process) -> bool:
    """Whether the data in the folder that a process works in may be its own: the folder is its user's, or
    that is root.

    Anybody's process may work in a folder such as /var/lib, and be called as a database.
    """
    with suppress(OSError):
        return one.uid == 0 or (one.folder is not None and one.folder.stat().st_uid == one.uid)
    return False


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


@dataclass(frozen=True, slots=True)
class Asker:
    """Who a server is asked as."""

    name: str | None
    """Account of the operating system, and role in the server; None: the caller's own."""
    trusting: bool
    """Its environment and the files in its home, with the passwords in them, are for the server: the caller
    said so, or it is the caller, who is not root.
    """

    @property
    def shown(self) -> str:
        """Its name."""
        return self.name or own_account()


def asker(user: str | None, server: Process | None) -> Asker:
    """Return who asks a server.

    Root is seldom a role of a database, but the account that its server runs as nearly always is one, and
    known by the socket alone (peer, unix_socket); it may read the files anyway. So root asks as that, and
    never as itself instead: any user's process can look like a server, and would be told root's password.

    Args:
        user: the account that was chosen; no other is tried.
        server: its process, as it was observed.

    Raises:
        ZtuneError: there is nobody to ask as.
    """
    if user is not None:
        return Asker(user, True)
    if os.geteuid() != 0:
        return Asker(None, True)
    if server is None:
        raise ZtuneError("no process of it was observed, as whose user root could ask")
    uid = server.uid
    if uid is None or user_of(server.pid) != uid:
        raise ZtuneError(f"process {server.pid} has ended, or runs as more than one user")
    if uid == 0:
        return Asker(None, False)
    try:
        return Asker(pwd.getpwuid(uid).pw_name, False)
    except KeyError:
        raise ZtuneError(f"user {uid}, as whom process {server.pid} runs, has no name on this host") from None


def require_socket(path: Path, uid: int | None, by: Asker) -> None:
    """Raise ZtuneError unless a socket was made by root or by ``uid``, as whom its server runs."""
    if not path.is_absolute():
        raise ZtuneError(f"{path} is no absolute path of a socket")
    try:
        found = path.stat()
        if os.geteuid() == 0 and by.name is None:
            # Root itself asks: nobody may put another one there meanwhile.
            with own_directory.parent_of(own_directory.real(path.parent) / path.name) as parent:
                if parent is None:
                    raise ZtuneError(f"{path} does not exist")
                found = os.stat(path.name, dir_fd=parent.fd, follow_symlinks=False)
    except OSError as error:
        raise ZtuneError(f"{path}: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ZtuneError(f"{path} is no socket")
    if uid is None or found.st_uid not in (0, uid):
        whose = "is not known" if uid is None else f"runs as user {uid}"
        raise ZtuneError(f"{path} belongs to user {found.st_uid}, and the server {whose}")


def require_port(host: str, port: int, server: Process) -> None:
    """Raise ZtuneError unless a port of this host is listened on by processes of the server's user and root
    alone, and the server is in this host's network.
    """
    uid = server.uid
    with suppress(OSError):
        if Path(f"/proc/{server.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink():
            raise ZtuneError(f"process {server.pid} is in another network, as in a container")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ZtuneError(f"{host} is no address, but a name") from None
    if not _is_here(address):
        raise ZtuneError(f"{host} is no address of this host")
    users = {user for found, user in _listeners(port) if found in (address, _ANY[address.version], _ANY[6])}
    if not users:
        raise ZtuneError(f"nothing listens on port {port} of {host}")
    if uid is None or not users <= {0, uid}:
        raise ZtuneError(f"another user than the server's listens on port {port} of {host}")


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_ANY: Final[dict[int, _Address]] = {4: ipaddress.IPv4Address(0), 6: ipaddress.IPv6Address(0)}


def _is_here(address: _Address) -> bool:
    # Only to an address of its own can a host bind.
    try:
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _listeners(port: int) -> Iterator[tuple[_Address, int]]:
    """Yield the addresses of this host whose ``port`` is listened on, and by whom."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                numbers, _, number = fields[1].partition(":")
                if fields[3] == "0A" and int(number, 16) == port:
                    words = (int(numbers[at : at + 8], 16) for at in range(0, len(numbers), 8))
                    found = ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words))
                    mapped = found.ipv4_mapped if found.version == 6 else None
                    yield mapped or found, int(fields[7])


def own_account() -> str:
    """Return the name of the caller's account, or its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def asked_or_read(
    ways: Iterable[Way],
    user: str | None,
    server: Process | None,
    asked: Callable[[Way, Asker], ObservedDatabase],
    read: Callable[[str], ObservedDatabase],
    silent: str,
) -> ObservedDatabase:
    """Return what a server answers by the first of ``ways`` that it answers, else what its files say.

    Args:
        ways: to the server, such as its sockets.
        user: the account that was chosen; ``asker`` says which asks without one.
        server: its process, as it was observed.
        asked: asks it by a way, as somebody; raises ZtuneError where it gets no answer.
        read: reads the files instead; it is given the reasons why nothing answered.
        silent: the reason where there is no way.
    """
    problems = []
    for way in ways:
        name = None
        try:
            by = asker(user, server)
            name = by.name
            return asked(way, by)
        except ZtuneError as error:
            said = " ".join(str(error).split())
            problems.append(said if name is None else f"asked as {name}: {said}")
    return read("; ".join(dict.fromkeys(problems)) or silent)


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


def ask(argv: Sequence[str], environment: Mapping[str, str | None], by: Asker) -> str:
    """Run a database's client and return what it prints. It can't ask for anything: it has no terminal.

    Args:
        argv: the client and its arguments; without options that keep it from files in ``/etc``.
        environment: beside what it has anyway: the caller's own where a caller who is trusting asks as
            itself, else a small one without a password; None takes a variable away.
        by: the account of the operating system to run as. Another one's client reads the files in that
            account's home if it is trusting, and none if not.

    Raises:
        MissingError: no such program, or no right to be that account.
        ZtuneError: it failed, with its last words; or it printed too much, or for too long, and was ended.
    """
    path = which(argv[0])
    if path is None:
        raise MissingError(f"the client {argv[0]} is not installed")
    try:
        account = None if by.name is None else pwd.getpwnam(by.name)
        own = account is None or account.pw_uid == os.geteuid()
        base = {**os.environ, "LC_ALL": "C"} if own and by.trusting else dict(_ENVIRONMENT)
        if account is not None and not own:
            base |= {"USER": account.pw_name, "LOGNAME": account.pw_name}
            base |= {"HOME": account.pw_dir} if by.trusting else {}
        client = subprocess.Popen(
            [path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={k: v for k, v in {**base, **environment}.items() if v is not None},
            user=None if account is None or own else account.pw_uid,
            group=None if account is None or own else account.pw_gid,
            extra_groups=None if account is None or own else [],
            cwd="/",
            start_new_session=True,
        )
    except (OSError, LookupError) as error:
        raise MissingError(f"{Path(argv[0]).name} can't be run as {by.shown}: {error}") from None
    name = Path(argv[0]).name
    code, out, complaints = _answer(client, name)
    if code != 0:
        said = last_words(complaints.decode(errors="replace"))
        raise ZtuneError(f"{name}: {said.removeprefix(f'{name}: ') or f'exit code {code}'}")
    return out.decode(errors="replace")


def _answer(client: subprocess.Popen[bytes], name: str) -> tuple[int, bytes, bytes]:
    """Return a client's exit code, what it printed and what it complained of.

    Raises ZtuneError where that has no end.
    """
    assert client.stdout is not None and client.stderr is not None
    said = {client.stdout: bytearray(), client.stderr: bytearray()}
    until = time.monotonic() + CLIENT_SECONDS
    late = ZtuneError(f"{name} did not answer within {CLIENT_SECONDS:.0f} s")
    try:
        with client.stdout, client.stderr, selectors.DefaultSelector() as ready:
            for pipe in said:
                ready.register(pipe, selectors.EVENT_READ)
            while ready.get_map():
                found = ready.select(max(0.0, until - time.monotonic()))
                for key, _ in found:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        ready.unregister(key.fileobj)
                    (text := said[key.fileobj]).extend(data)  # type: ignore[index]
                    if len(text) > CLIENT_BYTES:
                        raise ZtuneError(
                            f"{name} answered with more than {format_size(CLIENT_BYTES)}, and was ended"
                        )
                # One that prints for ever is late, too.
                if time.monotonic() >= until:
                    raise late
        try:
            code = client.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise late from None
        return code, bytes(said[client.stdout]), bytes(said[client.stderr])
    finally:
        if client.returncode is None:
            # With what it started: all of it is in the session that began with it.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(client.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                client.wait(KILL_SECONDS)


def text_of(path: Path, most: int = LARGEST_FILE) -> str:
    """Return the text of a configuration file.

    Raises ZtuneError when it can't be read, is no file, or has more than ``most`` bytes.
    """
    try:
        content = noatime.beginning(path, most + 1)
    except OSError as error:
        raise ZtuneError(f"{path}: {error.strerror}") from None
    if len(content) > most:
        raise ZtuneError(f"{path} is larger than {format_size(most)}, and was not read")
    return content.decode(errors="replace")


class EndlessError(ZtuneError):
    """A configuration includes more than a server's own does."""


@dataclass(slots=True)
class Configuration:
    """A configuration file and what it includes, read to an end.

    Any user's process can look like a server, and name a file that includes itself twice.
    """

    _files: int = MOST_INCLUDED
    _bytes: int = LARGEST_FILE

    def text(self, path: Path) -> str:
        """Return the text of one of its files. Raises ZtuneError, EndlessError."""
        text = text_of(path)
        self._bytes -= len(text)
        if self._bytes < 0:
            raise EndlessError(f"{path}: with what it includes it is larger than {format_size(LARGEST_FILE)}")
        return text

    def included(
        self, files: Iterable[Path], parse: Callable[[Path, Configuration], dict[str, str]]
    ) -> dict[str, str]:
        """Return what ``parse`` finds in the files that a line includes; the last of a name counts.

        Files that can't be read are passed over. Raises EndlessError.
        """
        found: dict[str, str] = {}
        self._files -= 1
        for number, file in enumerate(files):
            self._files -= number > 0
            if self._files < 0:
                raise EndlessError(f"{file} is included, and more than {MOST_INCLUDED} files before it")
            try:
                found |= parse(file, self)
            except EndlessError:
                raise
            except ZtuneError:
                continue
        return found


_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(?:i?[bB])?")


def size(text: str, unit: int = 1) -> str:
    """Return a size as plain bytes: "16MB" → "16777216", "8" of kB → "8192"; as it is if it is none.

    ``unit``: bytes that a number without a letter counts in. Negative numbers stay: they mean "automatic".
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return text
    if len(match[1]) > DIGITS:
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
