"""The ssh target: trials on another host, through the user's own OpenSSH client and configuration.

The host needs python3, OpenZFS and the database; nothing of ours is installed. One connection is shared by
all commands (a control socket in a private directory), and never asks for anything.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from ztune import paths, temporary
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import own_directory, shared_files
from ztune.onhost.host.process import signal_name
from ztune.places.channel import STATE, Channel, Lost, ProcessChannel
from ztune.places.placing import Placing
from ztune.places.users_host import UsersHost
from ztune.temporary import Temporary

CONNECT_S = 20
_OWN = re.compile(r"[0-9a-f]{32}")
"""How a connection's directory there is called. Chance alone tells them apart: many clients may have one host
name, one account and one number of a process, such as containers of one image."""
# After a minute without an answer the connection counts as lost; the trial there sees the end of its input.
_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
_LOST = 255  # ssh's own exit code
PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(20, 10, -1)))
# Prints user id, whether sudo works quietly, and the first Python that is new enough (or the version of the
# one
# that is not).
_PROBE = """
id -u
sudo -n true 2>/dev/null && echo sudo || echo plain
old=
for p in {pythons}; do
  command -v $p >/dev/null 2>&1 || continue
  v=$($p -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  if $p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    command -v $p; exit 0
  fi
  [ -n "$old" ] || old=$v
done
echo "-$old"
"""

# Puts the file that follows on standard input where nobody else could have written, by the rules of
# own_directory.py, whose text comes first. "look" says whether it is there already. "drop" removes the
# directory with all that is in it, unless a program in it still runs: its end may have to be read from there;
# it says whether it is gone.
_PUT = """
import os, sys, types
from pathlib import Path
folder, name, step, size, rules = *sys.argv[1:4], *map(int, sys.argv[4:])
errors, own = types.ModuleType("ztune.errors"), types.ModuleType("own_directory")
errors.InputError = type("InputError", (Exception,), {})
sys.modules.update({"ztune": types.ModuleType("ztune"), "ztune.errors": errors, "own_directory": own})
exec(compile(sys.stdin.buffer.read(rules), "own_directory", "exec"), own.__dict__)
def runs():
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if entry.isdigit() and os.fsencode(folder + "/") in file.read():
                    return True
        except OSError:
            pass
    return False
try:
    if step == "drop":
        if not runs():
            try:
                with own.OwnDirectory.open(own.real(Path(folder))) as here:
                    here.clear()
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            print("gone", flush=True)
            os.rmdir(os.path.dirname(folder))
        sys.exit()
    with own.OwnDirectory.open(own.real(Path(folder)), make=own.PRIVATE) as here:
        if step == "look":
            found = here.look(name)
            if found is not None:
                own.require_file(here.path / name, found)
                print("there" if found.st_size == size else "other")
        else:
            part = f"{name}.{os.getpid()}.part"
            with os.fdopen(here.open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(sys.stdin.buffer.read(size))
            os.rename(part, name, src_dir_fd=here.fd, dst_dir_fd=here.fd)
            print("there")
except (OSError, errors.InputError) as error:
    sys.exit(str(error))
"""


def parse_url(url: str) -> tuple[str, str, int | None]:
    """Return the host, the destination for ssh (``user@host``) and the port of a URL such as
    ``ssh://user@host:22`` or ``ssh://alias``. Raises InputError.
    """
    port: int | None
    try:
        parts = urlsplit(url)
        port, user = parts.port, parts.username or ""
        host = parts.netloc.rpartition("@")[2].partition(":")[0] if "[" not in url else parts.hostname or ""
    except ValueError:  # a bracket without its other, a port that is no number
        parts, port, user, host = urlsplit(""), None, "", ""
    plain = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]{0,254}")  # no name is longer: RFC 1035, 2.3.4
    if (
        parts.scheme != "ssh"
        or not plain.fullmatch(host)
        or (user and not plain.fullmatch(user))
        or parts.path not in {"", "/"}
    ):
        raise InputError(f'"{url}" is not a host; write ssh://HOST, ssh://USER@HOST or ssh://USER@HOST:PORT')
    return host, f"{user}@{host}" if user else host, port


def _is_lost(code: int) -> bool:
    """Whether the exit code of a client says that the connection is gone: its own, or that a signal ended it,
    which is none of the command's at its other end.
    """
    return code == _LOST or code < 0


class Ssh(UsersHost):
    """A host that OpenSSH knows."""

    kind = "ssh"

    def __init__(self, url: str, placing: Placing, *, state: str = STATE) -> None:
        """Take a URL such as ``ssh://user@host:22`` or ``ssh://alias``. Raises InputError."""
        host, self._destination, self._port = parse_url(url)
        super().__init__(url.rstrip("/"), host, placing, state)
        self._sockets: Temporary | None = None
        self._python = ""
        self._home = ""
        self._there: set[str] = set()
        self._own = ""
        """The directory there of this connection's files, below the one of all connections; empty: none."""
        self._lives = contextlib.ExitStack()
        """Has the lock by which others here know that this connection goes on."""

    # --- up and down

    def __enter__(self) -> Self:
        """Connect and find Python and root. Raises MissingError, InputError with one sentence."""
        if shutil.which("ssh") is None:
            raise MissingError("the OpenSSH client `ssh` is not installed; install openssh-client")
        # Short: a socket's path takes about 100 bytes.
        self._sockets = Temporary.make(temporary.CONNECTION, temporary.runtime())
        try:
            self._probe()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the shared connection."""
        if self._sockets is None:
            return
        if self._own:
            with contextlib.suppress(ZtuneError, OSError):
                if self._drop(self._own):
                    _lock(self._own).unlink(missing_ok=True)
            self._lives.close()
            self._own = ""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [*self._ssh(), "-O", "exit", self._destination],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False,
            )  # fmt: skip
        self._sockets.remove()
        self._sockets = None
        self._about = None
        self._there.clear()

    def _ssh(self) -> list[str]:
        assert self._sockets is not None
        words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", *_ALIVE]
        words += [
            "-o",
            "ControlMaster=auto",
            "-o",
            f"ControlPath={self._sockets.path}/%C",
            "-o",
            "ControlPersist=60",
        ]
        return [*words, *(["-p", str(self._port)] if self._port else [])]

    def _run(
        self, script: str, stdin: bytes = b"", timeout: float = 120.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a shell script there. Raises Lost with ssh's own words if it can't be reached."""
        try:
            done = subprocess.run(
                [*self._ssh(), self._destination, "sh -c " + shlex.quote(script)],
                input=stdin, capture_output=True, timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Lost(f"{self.where} did not answer within {timeout:.0f} s") from None
        if _is_lost(done.returncode):
            raise Lost(self._why(done.returncode, done.stderr.decode(errors="replace")))
        return done

    def _why(self, code: int, said_: str) -> str:
        if code < 0:
            return f"the connection to {self.where} was lost: ssh was ended by {signal_name(-code)}"
        lines = [line.strip() for line in said_.splitlines() if line.strip()]
        # Warnings come first, the reason last.
        reason = lines[-1].removeprefix("ssh: ") if lines else "the connection was lost"
        return f"{self.where} can't be reached by ssh: {reason}"

    def _probe(self) -> None:
        done = self._run(_PROBE.format(pythons=" ".join(PYTHONS)))
        lines = done.stdout.decode(errors="replace").split("\n")
        # A login shell may print a greeting before.
        found = [line.strip() for line in lines if line.strip()][-3:]
        if len(found) < 3 or not found[0].isdigit():
            raise InputError(f"{self.where} answers with no POSIX shell; ztune needs sh and python3 there")
        user, sudo, python = found
        if python.startswith("-"):
            if python == "-":
                raise MissingError(f"{self.where} has no python3; install python3, 3.11 or newer, there")
            raise MissingError(f"{self.where} has Python {python[1:]}; trials need 3.11 or newer there")
        if user != "0" and sudo != "sudo":
            raise MissingError(
                f"trials need root: on {self.where} log in as root, or allow sudo without a password there"
            )
        self._before = () if user == "0" else ("sudo", "-n", "--")
        self._python = python
        said = self._run('printf "%s\\n" "$HOME"; ls -1 "$HOME/.cache/ztune" 2>/dev/null').stdout
        home, *before = said.decode(errors="replace").split("\n")
        self._home = home.strip() or "/tmp"
        for name in filter(_OWN.fullmatch, before):
            self._drop_dead(name)

    def _drop_dead(self, name: str) -> None:
        """Remove a directory there if it is of a connection that was begun with this state directory, and is
        over. Raises Lost.
        """
        with contextlib.suppress(InputError, OSError):
            lock = _lock(name)
            # One that goes on has it; of another client's there is none.
            if lock.is_file():
                with shared_files.locked(lock, wait=False):
                    if self._drop(name):
                        lock.unlink(missing_ok=True)

    def _begin(self) -> None:
        """Choose the directory there, and note here that it is ours."""
        self._own = secrets.token_hex(16)
        # Where nothing can be noted, on a full disk, it is of nobody that others know: it stays if we are
        # killed.
        with contextlib.suppress(InputError, OSError):
            self._lives.enter_context(shared_files.locked(_lock(self._own)))

    def _drop(self, name: str) -> bool:
        """Remove a directory of a connection of ours that is over; return whether it is gone. Raises Lost."""
        rules = Path(own_directory.__file__).read_bytes()
        folder = f"{self._home}/.cache/ztune/{name}"
        command = shlex.join([self._python, "-c", _PUT, folder, "-", "drop", "0", str(len(rules))])
        done = self._run(f"cd / && {command}", rules, timeout=30.0)
        return "gone" in done.stdout.decode(errors="replace").split()

    # --- a place

    def put(self, local: Path) -> str:
        """Copy a file there; its name holds the hash of its content, so that one of that name is the same.

        It will be run as root, so it goes where only the user that we log in as, or root, can write. It is
        removed at the end of the connection; what a client that was killed left, by the next connection with
        the same state directory.
        """
        if not self._own:
            self._begin()
        folder = f"{self._home}/.cache/ztune/{self._own}"
        path = f"{folder}/{local.name}"
        if path in self._there:
            return path
        data = local.read_bytes()
        rules = Path(own_directory.__file__).read_bytes()
        words = [self._python, "-c", _PUT, folder, local.name]
        for step, sent in (("look", b""), ("write", data)):
            command = shlex.join([*words, step, str(len(data)), str(len(rules))])
            done = self._run(f"umask 077; cd / && {command}", rules + sent)
            said_ = done.stdout.decode(errors="replace").strip()
            if done.returncode != 0:
                words_ = done.stderr.decode(errors="replace").strip().splitlines()
                raise ZtuneError(
                    f"the trial program can't be copied to {self.where}:{path}: "
                    f"{words_[-1] if words_ else 'no reason given'}"
                )
            if said_.endswith("there"):
                break
        self._there.add(path)
        return path

    def open(self, argv: list[str]) -> Channel:
        """Start a command there as root."""
        words = [self._python, *argv[1:]] if argv[0] == "python3" else argv
        # sudo and login shells of plain users leave out where zpool is.
        command = shlex.join(
            [
                *self._before,
                "env",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                *words,
            ]
        )

        def lost(code: int, said_: str) -> str | None:
            return self._why(code, said_) if _is_lost(code) else None

        return ProcessChannel([*self._ssh(), self._destination, command], lost=lost)


def _lock(name: str) -> Path:
    """Return the lock of the connection whose directory there is called ``name``."""
    return paths.below(paths.home(), "connections", own_directory.PRIVATE) / f"{name}.lock"
