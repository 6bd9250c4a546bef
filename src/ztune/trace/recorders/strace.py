"""The strace recorder, for where eBPF is not allowed: same events, at a great cost to the processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.probes import procfs
from ztune.trace.manifest import Warning_
from ztune.trace.recorders.processes import shared_mappings
from ztune.trace.recorders.recorder import Harvest, Start
from ztune.trace.recorders.strace_parser import CALLS, Parser, Row, RunningSystem
from ztune.trace.schema import Flag, Op
from ztune.units import counted

if TYPE_CHECKING:
    from ztune.trace.spool import Part, Rows

OLDEST = (5, 6)  # --absolute-timestamps, --syscall-times
BATCH = 1 << 14  # events kept before they are written
PIPE_BYTES = 1 << 20
ATTACH_SECONDS = 30.0
F_SETPIPE_SZ = 1031

_OPTIONS = [
    *["-f", "-I2", "-y", "-xx", "-s", "0", "-a1", "-X", "raw"],
    *["--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns", "-e", "signal=none"],
    *["-e", "abbrev=execve,execveat", "-e", "trace=" + ",".join("?" + call for call in CALLS)],
]


def problem() -> str | None:
    """Return why strace can't be used here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed (apt install strace)"
    done = subprocess.run(["strace", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.(\d+)", done.stdout)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return f"strace is older than {OLDEST[0]}.{OLDEST[1]}"
    return None


class StraceSession:
    """One run of strace, and what it says read along."""

    def __init__(self, start: Start) -> None:
        # Here, as whether strace can record is asked without NumPy and Arrow.
        from ztune.trace.spool import Spool
        from ztune.trace.writer import EVENT_DTYPE

        self.started_unix_ns = time.time_ns()
        self._begun = time.monotonic_ns()
        self._start = start
        self._rows: list[Row] = []
        self._event = EVENT_DTYPE
        self._out = Spool(start.folder / "events.raw", EVENT_DTYPE)
        self._full = 0  # when it was, ns since recording began
        self._error: Exception | None = None
        self._live = RunningSystem()
        self._parser = Parser(start.table, self.started_unix_ns, self._add, self._live, str(Path.cwd()))
        self._lock = threading.Lock()  # of the parser
        self._attached: set[int] = set()
        self._complaints: list[str] = []
        self._uring_before = False
        self._late: dict[int, int] = {}
        self._targets = sorted({*start.pids, *procfs.descendants(start.pids)} - {os.getpid()})
        # Not an inherited pipe: what outlives the command would keep it open.
        self._fifo = start.folder / "strace.fifo"
        try:
            os.mkfifo(self._fifo, 0o600)
            self._hold = os.open(self._fifo, os.O_RDWR | os.O_CLOEXEC)  # no end of file before we close it
        except OSError as error:
            self._out.close()
            raise InputError(f"can't make {self._fifo}: {error.strerror}") from None
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._hold, F_SETPIPE_SZ, PIPE_BYTES)
        command = ["strace", *_OPTIONS, "-o", os.fspath(self._fifo)]
        if start.command:
            # Without --seccomp-bpf: with it strace kills at its end what it traces, and can't let go of it.
            command += ["--", *start.command]
        else:
            command += [f"--attach={pid}" for pid in self._targets]
        try:
            self._process = subprocess.Popen(
                command,
                start_new_session=True,
                stderr=None if start.command else subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except BaseException:
            os.close(self._hold)
            self._out.close()
            raise
        lines = os.open(self._fifo, os.O_RDONLY | os.O_CLOEXEC)
        self._lines = os.fdopen(lines, "r", buffering=1 << 16, encoding="ascii", errors="replace")
        self._reader = threading.Thread(target=self._read, name="strace", daemon=True)

    def kept(self) -> None:
        """Nothing: which file a descriptor stood for is known to this process alone."""

    @property
    def child(self) -> int | None:
        """The process id of the command, if one was started and has begun."""
        return self._parser.first_tid if self._start.command else None

    @property
    def program(self) -> int | None:
        """None: under strace calls take many times as long."""
        return None

    def begin(self) -> None:
        """Wait until strace is attached, and take down the descriptors and mappings there are."""
        if not self._start.command:
            watcher = threading.Thread(target=self._watch, name="strace messages", daemon=True)
            watcher.start()
            deadline = time.monotonic() + ATTACH_SECONDS
            while not self._attached.issuperset(self._start.pids):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._refuse()
                time.sleep(0.01)
            for pid in self._targets:
                self._take_down(pid)
        self._reader.start()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; True once the command or the processes ended."""
        deadline = time.monotonic() + seconds
        while True:
            self._check()
            ended = self._process.poll() is not None
            if self._full and not self._start.command:
                return True
            if ended or (self.child is not None and self.child in self._parser.exits):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(0.05, left))

    def stop(self) -> Harvest:
        """Detach strace and read the rest."""
        duration = time.monotonic_ns() - self._begun
        own_end = self._process.poll() is not None
        if not own_end:
            self._process.terminate()
        status = self._process.wait()
        self._release()
        self._reader.join()
        self._check()
        with self._lock:
            self._write()
        self._close()
        self._check()
        self._late = self._parser.late_sizes()
        for number, late in self._late.items():
            if (entry := self._start.table.numbered(number)) is not None:
                entry.size_start -= late
        exit_status = None
        if self._start.command:  # strace ends as the command did, unless it was told to end
            exit_status = status if own_end else self._parser.exits.get(self.child or 0)
        return Harvest(
            parts=[partial(self._put_right, part) for part in self._out.parts()],
            duration_ns=self._full or duration,
            full=bool(self._full),
            exit_status=exit_status,
            warnings=self._warnings(),
            detail="strace -f",
        )

    def abort(self) -> None:
        """End strace, and the command that it started."""
        if self._process.poll() is None:
            if (child := self.child) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._release()
        if self._reader.is_alive():
            self._reader.join(5)
        self._close()

    def _release(self) -> None:
        """Let the reader come to the end of strace's lines."""
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # closing flushes; the disk may be full, which was said already
            self._out.close()
        if not self._reader.is_alive():
            self._lines.close()

    def _check(self) -> None:
        if isinstance(error := self._error, OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InputError("can't record: no space left on the disk that the trace is written to")
            raise InputError(f"can't record: {error.strerror}")
        if error is not None:
            said = f"{type(error).__name__}: {error}"
            raise ZtuneError(f"can't record: what strace says was not read on, a fault in ztune: {said}")

    def _warnings(self) -> list[Warning_]:
        warnings = []
        if self._parser.uring or self._uring_before:
            warnings.append(
                Warning_(
                    code="uring-unseen",
                    message=(
                        "io_uring was used, which strace can't see: "
                        "its reads and writes are missing. Record with eBPF."
                    ),
                    count=max(1, self._parser.uring),
                )
            )
        if odd := self._parser.odd_lines:
            warnings.append(
                Warning_(
                    code="odd-lines",
                    message=(
                        f"{counted(odd, 'line')} of strace {'is' if odd == 1 else 'are'} left out: "
                        f"{'it was' if odd == 1 else 'they were'} not understood."
                    ),
                    count=odd,
                )
            )
        return warnings

    def _refuse(self) -> None:
        self._process.terminate()
        self._process.wait()
        text = "; ".join(self._complaints[:2]) or "it did not attach in time"
        if "not permitted" in text:
            raise MissingError(
                f"strace may not look at the processes ({text}): run it as the same user with"
                " kernel.yama.ptrace_scope=0, or as root (CAP_SYS_PTRACE)"
            )
        if "No such process" in text:
            raise InputError(f"can't record: {text}")
        raise ZtuneError(f"strace failed: {text}")

    def _watch(self) -> None:
        """Read strace's messages; each new thread makes one, so they must be read all the time."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"Process (\d+) attached", line):
                self._attached.add(int(found[1]))
            elif "detached" not in line and len(self._complaints) < 10:
                self._complaints.append(line.strip().removeprefix("strace: "))

    def _take_down(self, pid: int) -> None:
        """Enter what a process had open, and mapped, when it was attached."""
        try:
            links = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return
        for link in links:
            try:
                target = str(link.readlink())
                regular = stat.S_ISREG(link.stat().st_mode)
            except OSError:
                continue
            self._uring_before |= "io_uring" in target
            known = self._live.descriptor(pid, int(link.name)) if regular else None
            if known is not None and not target.endswith(" (deleted)"):
                self._parser.descriptor(pid, int(link.name), target, *known)
        for of in shared_mappings(pid):
            self._parser.mapping(pid, of.begin, of.length, of.path, of.offset)

    def _read(self) -> None:
        try:
            for line in self._lines:
                with self._lock:
                    self._parser.line(line.rstrip("\n"))
        except Exception as error:
            self._error = error
            # Unread lines would stop strace, and with it the processes.
            for _ in self._lines:
                pass

    def _add(self, row: Row) -> None:
        if self._full:
            return
        self._rows.append(row)
        if len(self._rows) >= BATCH:
            self._write()

    def _write(self) -> None:
        import numpy as np  # see ``__init__``

        if self._rows and self._error is None:
            try:
                self._out.add(np.array([(*row, 0, 0) for row in self._rows], self._event))
                self._out.flush()
            except OSError as error:
                self._error = error
            if 0 < self._start.max_bytes < self._out.bytes:
                self._full = time.monotonic_ns() - self._begun
        self._rows = []

    def _put_right(self, part: Part) -> Rows:
        """Return the events of ``part``, with appends where they were by the files' true sizes."""
        rows = part()
        for number, late in self._late.items():
            wrong = (rows["file"] == number) & (rows["op"] == Op.WRITE) & (rows["flags"] & Flag.APPEND > 0)
            rows["offset"][wrong] -= late
        return rows

    def fill(self) -> None:
        """Record nothing more, as at ``Start.max_bytes``: a command goes on."""
        with self._lock:
            self._full = self._full or time.monotonic_ns() - self._begun

    def pause(self) -> None:
        """Not possible: the processes would go on being stopped at each call."""
        raise NotImplementedError

    def resume(self) -> None:
        """Not possible."""
        raise NotImplementedError
