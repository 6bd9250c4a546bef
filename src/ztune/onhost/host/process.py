"""Supervision of other programs: who they run as, that they end with us, and what they said when they
failed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import own_directory

LAST_LINES = 8
_PF_EXITING = 0x4  # include/linux/sched.h
_WHY = re.compile(r"\b(PANIC|FATAL|ERROR)\b")
LINE_LENGTH = 300
"""Characters of each line of a program that end up in a sentence."""
KILL_SECONDS = 30.0
"""How long a process that was sent SIGKILL may take to go."""
MARK = "ZTUNE_TRIAL_MARK"
"""Environment variable of what a trial starts: the trial's token, by which its programs are known again."""
PATIENCE = "ZTUNE_PATIENCE"
"""Environment variable: how many times slower than usual this machine may be."""


def patience_of(value: float | None = None, environ: Mapping[str, str] = os.environ) -> float:
    """Return the factor for every time limit: ``value``, else ``$ZTUNE_PATIENCE``, else 1.

    Raises:
        InputError: it is no number of at least 1.
    """
    found: object = value if value is not None else environ.get(PATIENCE, "1")
    try:
        factor = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        factor = 0.0
    if not 1.0 <= factor <= 10_000.0:
        where = PATIENCE if value is None else "patience"
        raise InputError(f"{where} is {found!r}; it takes a number from 1 to 10000")
    return factor


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


def ends_with_us(number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the words before a command that have the kernel send it ``number`` when we end, however that is.

    It does so when the *thread* that started the command ends, so only the main thread can ask for it.
    """
    setpriv = shutil.which("setpriv")
    main = threading.current_thread() is threading.main_thread()
    return [setpriv, "--pdeathsig", number.name.removeprefix("SIG")] if setpriv and main else []


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
        command = [*ends_with_us(death_signal), *map(str, argv)]
        base = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "HOME": str(cwd),
        }
        mark = {MARK: os.environ[MARK]} if MARK in os.environ else {}
        sink: IO[bytes] | None = None
        try:
            if log is not None:
                # Where it lies the account may write, too: a link of its making would be written through.
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                sink = os.fdopen(own_directory.open_plain(log, flags, 0o644), "ab")
            if not os.access(command[-len(argv)], os.X_OK):
                raise MissingError(f"{what}: {argv[0]} is not a program that can be run")
            popen: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                cwd=cwd,
                env={**base, **(env or {}), **mark},
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
            return f"was ended by {signal_name(-code)}"
        return f"ended with exit code {code}"

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for it to end; return whether it did."""
        return ends_within(self.popen, seconds)

    def stop(self, steps: Iterable[tuple[signal.Signals, float]]) -> int | None:
        """Send each signal and wait its seconds, until the process has ended; kill it with its descendants
        at last.

        Returns:
            Which of ``steps`` ended it, from 0; ``None`` if it had to be killed.
        """
        for index, (number, seconds) in enumerate(steps):
            if not self.alive():
                return index
            self.popen.send_signal(number)
            if self.wait(seconds):
                return index
        self.kill()
        return None

    def kill(self, seconds: float = KILL_SECONDS) -> None:
        """Kill the process, its group and its descendants, and wait until they are gone.

        Raises:
            ZtuneError: it is still there after ``seconds``: it waits in the kernel, as for a suspended pool.
        """
        family = descendants(self.pid) if self.alive() else []
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        for child in family:
            child.kill()
        deadline = time.monotonic() + seconds
        while not (self.wait(0.05) and not any(child.alive() for child in family)):
            if time.monotonic() > deadline:
                raise ZtuneError(
                    f"{self.what}: process {self.pid} or a child of it outlived SIGKILL by {seconds:.0f} s; "
                    "it waits in the kernel, most likely for a disk that does not answer"
                )
            time.sleep(0.05)


_POLL_MOST_S = 86_400.0
"""The kernel takes no more than 2^31 ms."""


def ends_within(process: subprocess.Popen[Any], seconds: float) -> bool:
    """Wait at most ``seconds`` for ``process`` to end; return whether it did.

    The kernel says so at once, where ``Popen.wait`` looks no more than twenty times a second.
    """
    deadline = time.monotonic() + seconds
    if process.poll() is not None:
        return True
    # Not every kernel has it, nor every system.
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll(min(max(0.0, seconds), _POLL_MOST_S) * 1000)
        finally:
            os.close(descriptor)
    try:
        # One that is traced has ended before its parent may know.
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def end_group(process: subprocess.Popen[Any], grace_s: float = 0.0) -> None:
    """End a process that leads a group of its own and all of that group; return when it is gone.

    It is asked to end first if it has ``grace_s`` seconds for that.
    """
    if grace_s and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        ends_within(process, grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that can't be mistaken for another one that was given its number later."""

    pid: int
    ticks: int
    """When it started, in clock ticks since the machine did: field 22 of proc(5)'s ``stat``."""

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of ``pid``; ``None`` if there is no such process."""
        fields = _stat(pid)
        return cls(pid, int(fields[19])) if fields else None

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        fields = _stat(self.pid)
        return bool(fields) and int(fields[19]) == self.ticks and fields[0] not in "ZX"

    def exiting(self) -> bool:
        """Whether it is on its way out: nothing tells any more what it was."""
        fields = _stat(self.pid)
        return bool(fields) and int(fields[19]) == self.ticks and bool(int(fields[6]) & _PF_EXITING)

    def kill(self) -> None:
        """Send SIGKILL if it is still the same process."""
        # Held before the look: a number that is given away meanwhile is not hit.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            held = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(held, signal.SIGKILL)
            finally:
                os.close(held)


def signal_name(number: int) -> str:
    """Return what a signal is called, such as "SIGKILL"; "signal 40" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third (state) on; none if there is no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name, in brackets, may hold anything; the fields begin after the last bracket.
    return text.rpartition(")")[2].split()


def user_of(pid: int) -> int | None:
    """Return the number of the user that a process runs as; None when it is gone.

    None too where its real, effective and saved users differ: one of them is not who started it. The owner of
    its folder in /proc does not say: that is root for every process that hides its memory.
    """
    found = _users_of(pid)
    return found[0] if len(set(found)) == 1 else None


def _users_of(pid: int) -> list[int]:
    """Return the real, effective, saved and file system's user of a process; none when it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def real_user_of(pid: int) -> int | None:
    """Return the number of the user who started a process, as whom a setuid program does not run; None when
    it is gone."""
    found = _users_of(pid)
    return found[0] if found else None


def is_marked(pid: int, token: str) -> bool:
    """Whether a process was started with the mark of the trial ``token`` in its environment."""
    try:
        return f"{MARK}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def all_pids() -> list[int]:
    """Return the numbers of all processes that we can see."""
    try:
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    except OSError:
        return []


def descendants(pid: int) -> list[Identity]:
    """Return the children of ``pid`` and theirs, as they are now."""
    known = children()
    found: list[Identity] = []
    queue = [pid]
    while queue:
        for child in known.get(queue.pop(), []):
            found.append(child)
            queue.append(child.pid)
    return found


def children() -> dict[int, list[Identity]]:
    """Return the children of every process that has some, as they are now."""
    found: dict[int, list[Identity]] = {}
    for pid in all_pids():
        fields = _stat(pid)
        if fields:
            found.setdefault(int(fields[1]), []).append(Identity(pid, int(fields[19])))
    return found


def parse_io(text: str) -> dict[str, int]:
    """Return ``/proc/PID/io``: rchar, wchar (bytes of calls), syscr, syscw (calls), read_bytes, write_bytes
    (bytes that reached the block layer for it; ZFS counts them too, as 512 bytes or whole blocks).
    """
    lines = (line.partition(":") for line in text.splitlines())
    return {name: int(value) for name, colon, value in lines if colon}


def io_of(pids: Iterable[int]) -> dict[str, int]:
    """Return the sums of ``parse_io`` over ``pids`` and their descendants.

    A parent's numbers contain those of children that have ended, so differences are right as long as ``pids``
    live.
    """
    sums: dict[str, int] = {}
    seen: set[int] = set()
    for pid in pids:
        seen |= {pid, *(child.pid for child in descendants(pid))}
    for pid in seen:
        try:
            text = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
        except OSError:
            continue
        for name, value in parse_io(text).items():
            sums[name] = sums.get(name, 0) + value
    return sums


def last_lines(path: Path | None, count: int = LAST_LINES) -> str:
    """Return the last lines of a log, joined by `` | ``, for the end of an error's sentence."""
    return ending(log_tail(path).split("\n"), count)


def log_tail(path: Path | None) -> str:
    """Return the last 64 KiB of a log, or nothing if it can't be read."""
    if path is None:
        return ""
    try:
        # The account may have put a link or a FIFO there: nobody else's file is to end up in a sentence.
        with os.fdopen(own_directory.open_plain(path, os.O_RDONLY), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65536))
            return file.read(65536).decode("utf-8", errors="replace")
    except (OSError, own_directory.NotOursError):
        return ""


def ending(lines: Iterable[str], count: int = LAST_LINES) -> str:
    """Return the last of ``lines`` that say something, joined by `` | ``, as a terminal would show them.

    A progress line that was written over shows what came last; a statement that a client repeats is cut.
    """
    shown = [line.rstrip("\r").rpartition("\r")[2].strip() for line in lines]
    cut = [line if len(line) <= LINE_LENGTH else f"{line[:LINE_LENGTH]} …" for line in shown if line]
    last, before = cut[-count:], cut[:-count]
    # A server says why it dies, and then goes on at length about how.
    if not any(_WHY.search(line) for line in last):
        last = [line for line in before if _WHY.search(line)][-1:] + last
    return " | ".join(last)


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
            # A client ends when its server goes, a moment before the server has gone.
            for _ in range(10):
                watch()
                time.sleep(0.1)
        said = ending(err) or ending(out) or "it said nothing"
        raise ZtuneError(f"{what} {program.how_it_ended()}: {said}")
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
