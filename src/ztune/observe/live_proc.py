"""What ``/proc`` tells of processes, where the kernel can't be asked with eBPF."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from ztune.observe.subjects import ObservedSubject
from ztune.onhost.host import mounts
from ztune.onhost.host.process import all_pids, parse_io
from ztune.onhost.probes import procfs

LOST = (
    "Seen through /proc only: calls and bytes are sums over all that the processes read and wrote, sockets "
    "and pipes too; sizes, latencies, syncs, the time in system calls, and calls by file are not known."
)
LOST_CLOSED = (
    "Which files, roles and datasets there are is told by the files that were found open, every five seconds "
    "or rarer: what was opened and closed in between is missing."
)
LOST_ENDED = (
    "What a process did between the last look at /proc, once a second or rarer, and its end is not counted."
)
LOST_OPTIONS = "--sample and --calls are about calls that the kernel counts: they changed nothing."
LOST_FILES = (
    "The processes are those that were found with a file open there; "
    "their calls on other files are counted too."
)
LOST_RIGHTS = (
    "The reads and writes of other users' processes are not known: "
    "reading /proc/PID/io needs root or CAP_SYS_PTRACE."
)
_OPEN_EVERY = 5
"""Looks: of some hundred processes each look at what they have open takes a tenth of a second."""
_IO = ("syscr", "rchar", "syscw", "wchar")


@dataclass
class _Process:
    started: int
    cpu: float
    io: dict[str, int]
    tasks: dict[procfs.Task, procfs.Switches]


class ProcSession:
    """Looks at processes again and again."""

    def __init__(self, subject: ObservedSubject) -> None:
        self._subject = subject
        self._begun_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        self._first: dict[int, _Process] = {}
        self._last: dict[int, _Process] = {}
        self._before: list[tuple[_Process, _Process]] = []  # of processes whose ids were used again
        self.io_denied = False
        self._looks = 0
        self.open: dict[str, int] = {}
        """Path of a regular file that was found open → its st_dev."""
        self.look()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that were seen."""
        return tuple(self._last)

    def look(self) -> None:
        """Read the counters now."""
        for pid in self._members():
            now = self._read(pid)
            if now is None:
                continue
            if self._looks % _OPEN_EVERY == 0:
                self._note_open(pid)
            first = self._first.get(pid)
            if first is not None and first.started != now.started:
                self._before.append((first, self._last[pid]))
                first = None
            if first is None:
                # One that began after we did is ours from its beginning.
                young = now.started >= self._begun_ticks and not self._subject.by_files
                self._first[pid] = _Process(now.started, 0.0, {}, {}) if young else now
            self._last[pid] = now
        self._looks += 1

    def _members(self) -> list[int]:
        if not self._subject.by_files:
            return [pid for pid in procfs.descendants(self._subject.now()) if pid != os.getpid()]
        folders = [Path(folder) for folder in self._subject.folders]
        others = (pid for pid in all_pids() if pid != os.getpid())
        return [p for p in others if p in self._last or any(mounts.uses(p, folder) for folder in folders)]

    def _note_open(self, pid: int) -> None:
        folders = (
            [Path(folder) for folder in self._subject.folders] if self._subject.by_files else [Path("/")]
        )
        with contextlib.suppress(OSError):  # gone, or another user's
            for link in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = os.readlink(link.path)  # noqa: PTH115
                    if path in self.open or not any(Path(path).is_relative_to(one) for one in folders):
                        continue
                    theirs = os.stat(link.path)  # noqa: PTH116
                    # By this name another file, or none, is reached where it was deleted, or lies in mounts
                    # that only the process sees.
                    if stat.S_ISREG(theirs.st_mode) and os.path.samestat(theirs, Path(path).stat()):
                        self.open[path] = theirs.st_dev

    def _read(self, pid: int) -> _Process | None:
        try:
            stat = procfs.parse_pid_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
        except (OSError, ValueError):
            return None
        io: dict[str, int] = {}
        try:
            io = parse_io(Path(f"/proc/{pid}/io").read_text(encoding="ascii"))
        except PermissionError:
            self.io_denied = True
        except OSError:
            return None
        return _Process(stat.started, stat.user_s + stat.system_s, io, procfs.tasks([pid]))

    def _pairs(self) -> list[tuple[_Process, _Process]]:
        return [*self._before, *((self._first[pid], last) for pid, last in self._last.items())]

    def io(self) -> dict[str, int]:
        """Return syscr, rchar, syscw and wchar of the window: calls and bytes."""
        return {
            name: sum(last.io.get(name, 0) - first.io.get(name, 0) for first, last in self._pairs())
            for name in _IO
        }

    def cpu_seconds(self) -> float:
        """Return the seconds on a processor, to a clock tick a process."""
        return sum(last.cpu - first.cpu for first, last in self._pairs())

    def context_switches(self) -> dict[str, int]:
        """Return the switches of threads that lived at the last look."""
        found = {"voluntary": 0, "involuntary": 0}
        for first, last in self._pairs():
            for task, switches in last.tasks.items():
                then = first.tasks.get(task)
                found["voluntary"] += switches.voluntary - (then.voluntary if then else 0)
                found["involuntary"] += switches.involuntary - (then.involuntary if then else 0)
        return found
