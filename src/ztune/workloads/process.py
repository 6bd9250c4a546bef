"""Supervision of other programs: who they run as, that they end with us, and what they said when they
failed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from ztune.errors import MissingError, ZtuneError

LAST_LINES = 8


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a database runs as."""

    name: str
    uid: int
    gid: int
    switch: bool
    """Whether it is another user than ours, so that root must hand over files and switch."""

    @property
    def owner(self) -> tuple[int, int] | None:
        """The uid and gid to hand files over to; ``None`` when they are ours already."""
        return (self.uid, self.gid) if self.switch else None

    @property
    def popen_args(self) -> dict[str, Any]:
        """Arguments that make ``subprocess`` run a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    @classmethod
    def for_database(cls, preferred: str) -> Account:
        """Return ourselves, or, when we are root, the system user ``preferred`` or else ``nobody``.

        PostgreSQL refuses to run as root, and no database should.
        """
        uid = os.geteuid()
        if uid != 0:
            try:
                name = pwd.getpwuid(uid).pw_name
            except KeyError:
                name = str(uid)
            return cls(name, uid, os.getegid(), switch=False)
        for name in (preferred, "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(name, entry.pw_uid, entry.pw_gid, switch=True)
        raise MissingError(
            f"a database must not run as root, and there is neither a user {preferred!r} nor 'nobody'"
        )


@dataclass(slots=True)
class Program:
    """A child process in a session of its own: a terminal's Ctrl-C reaches us, and we end it in order."""

    popen: subprocess.Popen[bytes]
    what: str
    log: Path | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str | Path],
        *,
        what: str,
        account: Account,
        cwd: Path,
        env: dict[str, str] | None = None,
        log: Path | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> Program:
        """Start ``argv`` as ``account``.

        Args:
            argv: the program and its arguments.
            what: how messages call it.
            account: who it runs as.
            cwd: where it stands.
            env: added to a minimal environment; ours is not handed down.
            log: where its output goes, unless ``stdout`` or ``stderr`` say otherwise.
            stdin: as for ``subprocess``.
            stdout: as for ``subprocess``.
            stderr: as for ``subprocess``.
            death_signal: what the kernel sends it if ztune dies without a chance to clean up.

        Raises:
            MissingError: the program isn't there or that user may not run it.
        """
        command = [str(part) for part in argv]
        setpriv = shutil.which("setpriv")
        # The kernel sends it when the *thread* that started the child ends, so only the main thread will do.
        if setpriv and threading.current_thread() is threading.main_thread():
            command = [setpriv, "--pdeathsig", death_signal.name.removeprefix("SIG"), *command]
        base = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "HOME": str(cwd),
        }
        sink: IO[bytes] | None = None
        try:
            if log is not None:
                sink = log.open("ab")
            if not os.access(command[-len(argv)], os.X_OK):
                raise MissingError(f"{what}: {argv[0]} is not a program that can be run")
            popen: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                cwd=cwd,
                env={**base, **(env or {})},
                stdin=stdin,
                stdout=stdout if stdout is not None else (sink or subprocess.DEVNULL),
                stderr=stderr if stderr is not None else (sink or subprocess.DEVNULL),
                start_new_session=True,
                **account.popen_args,
            )
        except OSError as error:
            raise MissingError(
                f"{what}: user {account.name} can't run {argv[0]} in {cwd}: {error.strerror or error}"
            ) from None
        finally:
            if sink is not None:
                sink.close()
        return cls(popen, what, log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def how_it_ended(self) -> str:
        """Say how the process ended, in words."""
        code = self.popen.returncode
        if code is None:
            return "is still running"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for it to end; return whether it did."""
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, steps: Iterable[tuple[signal.Signals, float]]) -> None:
        """Send each signal and wait its seconds, until the process has ended; kill it with its descendants
        at last.
        """
        for number, seconds in steps:
            if not self.alive():
                return
            self.popen.send_signal(number)
            if self.wait(seconds):
                return
        self.kill()

    def kill(self) -> None:
        """Kill the process, its group and its descendants, and wait until they are gone."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self.pid).children(recursive=True) if self.alive() else []
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.popen.wait()
        psutil.wait_procs(family, timeout=10)


def last_lines(path: Path | None, count: int = LAST_LINES) -> str:
    """Return the last lines of a log, joined by `` | ``, for the end of an error's sentence."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])


def run(
    argv: Sequence[str | Path],
    *,
    what: str,
    account: Account,
    cwd: Path,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    seconds: float = 600.0,
    on_line: Callable[[str], None] | None = None,
    watch: Callable[[], None] | None = None,
) -> str:
    """Run a client program to its end and return its standard output.

    It is killed, with its whole process group, when anything goes wrong here, Ctrl-C included.

    Args:
        argv: the program and its arguments.
        what: how messages call it, such as ``pgbench``.
        account: who it runs as.
        cwd: where it stands.
        env: added to a minimal environment.
        stdin: text for its standard input.
        seconds: the most it may take.
        on_line: called with each line of standard output and standard error as it comes.
        watch: called several times a second; raises to end the program, as when the server behind it died.

    Raises:
        ZtuneError: it failed (the sentence holds its last lines) or took too long.
        MissingError: it isn't there.
    """
    out: list[str] = []
    err: list[str] = []
    program = Program.start(
        argv,
        what=what,
        account=account,
        cwd=cwd,
        env=env,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        pipes = program.popen
        assert pipes.stdout is not None and pipes.stderr is not None
        threads = [
            threading.Thread(target=_collect, args=(pipes.stdout, out, on_line), daemon=True),
            threading.Thread(target=_collect, args=(pipes.stderr, err, on_line), daemon=True),
        ]
        if stdin is not None:
            assert pipes.stdin is not None
            threads.append(threading.Thread(target=_feed, args=(pipes.stdin, stdin.encode()), daemon=True))
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        while not program.wait(0.2):
            if watch is not None:
                watch()
            if time.monotonic() > deadline:
                raise ZtuneError(f"{what} did not end within {seconds:.0f} s")
        for thread in threads:
            thread.join(timeout=10)
    finally:
        program.kill()
    if program.popen.returncode != 0:
        if watch is not None:
            watch()
        said = " | ".join([line for line in err if line][-LAST_LINES:]) or " | ".join(out[-LAST_LINES:])
        raise ZtuneError(f"{what} {program.how_it_ended()}: {said or 'it said nothing'}")
    return "\n".join(out)


def _collect(pipe: IO[bytes], into: list[str], on_line: Callable[[str], None] | None) -> None:
    with pipe:
        for raw in pipe:
            line = raw.decode("utf-8", errors="replace").rstrip("\n")
            into.append(line)
            if on_line is not None:
                on_line(line)


def _feed(pipe: IO[bytes], data: bytes) -> None:
    # A program that ends early closes its end; how it ended tells why.
    with contextlib.suppress(OSError), pipe:
        pipe.write(data)
