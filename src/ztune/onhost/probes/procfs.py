"""Reads ``/proc``: disks, processors, and processes with their descendants."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ztune.onhost.host.process import Identity, children, parse_io
from ztune.onhost.probes import kstat
from ztune.onhost.probes.probe import HELPERS

SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk's own are."""
_TICKS = os.sysconf("SC_CLK_TCK")
Number = tuple[int, int]
"""Major and minor number of a block device."""


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Counters of one block device since boot (Documentation/admin-guide/iostats.rst)."""

    reads: int = 0
    read_merges: int = 0
    read_bytes: int = 0
    read_ms: int = 0
    writes: int = 0
    """Includes requests that only flush; no bytes belong to those."""
    write_merges: int = 0
    write_bytes: int = 0
    write_ms: int = 0
    busy_ms: int = 0
    """Time with at least one request under way."""
    queue_ms: int = 0
    """Sum over all requests of the time that each was under way or waited."""
    discards: int = 0
    discard_bytes: int = 0
    flushes: int | None = None
    """None before Linux 5.5, and for partitions, whose flushes only the whole disk counts."""
    flush_ms: int | None = None

    def since(self, before: DiskCounters) -> DiskCounters:
        """Return what happened since ``before``."""
        values: dict[str, int | None] = {}
        for f in fields(self):
            now, then = getattr(self, f.name), getattr(before, f.name)
            values[f.name] = None if now is None or then is None else now - then
        return DiskCounters(**values)  # type: ignore[arg-type]


def parse_diskstats(text: str) -> dict[Number, DiskCounters]:
    """Return the counters of every device in ``/proc/diskstats``: 11, 15 or 17 of them by kernel."""
    found: dict[Number, DiskCounters] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14:
            continue
        major, minor = int(words[0]), int(words[1])
        n = [int(word) for word in words[3:]] + [0] * 4
        flushes: int | None = None
        flush_ms: int | None = None
        if len(words) >= 20:
            flushes, flush_ms = n[15], n[16]
        if len(words) < 18:
            n[11:15] = [0] * 4
        found[major, minor] = DiskCounters(
            reads=n[0],
            read_merges=n[1],
            read_bytes=n[2] * SECTOR,
            read_ms=n[3],
            writes=n[4],
            write_merges=n[5],
            write_bytes=n[6] * SECTOR,
            write_ms=n[7],
            busy_ms=n[9],
            queue_ms=n[10],
            discards=n[11],
            discard_bytes=n[13] * SECTOR,
            flushes=flushes,
            flush_ms=flush_ms,
        )
    return found


def diskstats() -> dict[Number, DiskCounters]:
    """Return the counters of every block device now."""
    return parse_diskstats(Path("/proc/diskstats").read_text(encoding="ascii"))


def whole_disk(number: Number) -> Number:
    """Return the disk that a partition is on; a disk is its own."""
    folder = Path(f"/sys/dev/block/{number[0]}:{number[1]}")
    if not (folder / "partition").exists():
        return number
    try:
        major, _, minor = (folder.resolve().parent / "dev").read_text(encoding="ascii").strip().partition(":")
        return int(major), int(minor)
    except (OSError, ValueError):
        return number


@dataclass(frozen=True, slots=True)
class HostCounters:
    """The whole host since boot: seconds of all processors together, and counts."""

    user_s: float
    """nice included"""
    system_s: float
    """interrupts included"""
    idle_s: float
    """waiting for I/O included"""
    iowait_s: float
    steal_s: float
    context_switches: int
    forks: int

    def since(self, before: HostCounters) -> dict[str, float | int]:
        """Return what happened since ``before``."""
        return {f.name: round(getattr(self, f.name) - getattr(before, f.name), 3) for f in fields(self)}


def parse_stat(text: str) -> HostCounters:
    """Return the sums in ``/proc/stat``."""
    cpu = [0] * 8
    counts = {"ctxt": 0, "processes": 0}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == "cpu":
            cpu = [int(word) for word in words[1:9]] + [0] * (9 - len(words))
        elif len(words) == 2 and words[0] in counts:
            counts[words[0]] = int(words[1])
    user, nice, system, idle, iowait, irq, softirq, steal = (ticks / _TICKS for ticks in cpu[:8])
    return HostCounters(
        user + nice, system + irq + softirq, idle + iowait, iowait, steal, counts["ctxt"], counts["processes"]
    )


def host() -> HostCounters:
    """Return the host's sums now."""
    return parse_stat(Path("/proc/stat").read_text(encoding="ascii"))


@dataclass(frozen=True, slots=True)
class ProcessTime:
    """One process, its threads together; ``_ended`` is of children that ended and were waited for."""

    pid: int
    parent: int
    name: str
    started: int
    """Clock ticks since boot: with the pid it names one process for good."""
    user_s: float
    system_s: float
    user_ended_s: float
    system_ended_s: float
    major_faults: int
    """Pages that it had to wait for until they were read from disk; those of ended children too."""


def parse_pid_stat(text: str) -> ProcessTime:
    """Return the times and faults in ``/proc/PID/stat``. Raises ValueError when it is cut."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    f = tail.split()
    if len(f) < 20:
        raise ValueError("/proc/PID/stat is cut")
    utime, stime, cutime, cstime = (int(f[i]) / _TICKS for i in (11, 12, 13, 14))
    faults = int(f[9]) + int(f[10])
    return ProcessTime(int(pid), int(f[1]), name, int(f[19]), utime, stime, cutime, cstime, faults)


def _living(pids: Iterable[int]) -> Iterator[ProcessTime]:
    """Yield those of ``pids`` that live."""
    for pid in pids:
        try:
            found = parse_pid_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
        except (OSError, ValueError):
            continue
        yield found


def major_faults(roots: Iterable[int]) -> int:
    """Return the major page faults of ``roots`` and their descendants so far, ended children included."""
    return sum(process.major_faults for process in _living(descendants(roots)))


def parse_switches(text: str) -> tuple[int, int]:
    """Return the voluntary and other context switches in ``/proc/PID/task/TID/status``."""
    found = [0, 0]
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            found[0] = int(value)
        elif name == "nonvoluntary_ctxt_switches":
            found[1] = int(value)
    return found[0], found[1]


def parse_schedstat(text: str) -> tuple[int, int]:
    """Return ns on a processor and ns of waiting for one, from ``/proc/PID/task/TID/schedstat``."""
    words = text.split()
    return (int(words[0]), int(words[1])) if len(words) >= 2 else (0, 0)


def descendants(roots: Iterable[int]) -> list[int]:
    """Return ``roots`` and all that descends from them and lives, without probes' own helpers."""
    found: dict[int, None] = {}
    todo = [pid for pid in roots if Path(f"/proc/{pid}").exists()]
    known: dict[int, list[Identity]] | None = None
    while todo:
        pid = todo.pop()
        if pid in found or pid in HELPERS:
            continue
        found[pid] = None
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                text = (task / "children").read_text(encoding="ascii")
                todo += [int(word) for word in text.split()]
        except FileNotFoundError:
            if not Path(f"/proc/{pid}").exists():
                continue
            # A kernel without CONFIG_PROC_CHILDREN: ask every process for its parent, once.
            known = known if known is not None else children()
            todo += [child.pid for child in known.get(pid, [])]
        except OSError:
            continue
    return list(found)


@dataclass(frozen=True, slots=True)
class JobCounters:
    """Sums over a job's processes that live, with what ended below them."""

    processes: int
    user_s: float
    system_s: float
    io: dict[str, int] | None
    """None where ``/proc/PID/io`` may not be read."""

    def times_since(self, before: JobCounters) -> tuple[float, float] | None:
        """Return the seconds, user and system, since ``before``; None where processes ended unseen."""
        user, system = self.user_s - before.user_s, self.system_s - before.system_s
        return (round(user, 3), round(system, 3)) if min(user, system) >= -0.02 else None

    def io_since(self, before: JobCounters) -> dict[str, int] | None:
        """Return ``io`` since ``before``; None where either may not be read."""
        return None if before.io is None or self.io is None else kstat.difference(before.io, self.io)

    def calls_since(self, before: JobCounters) -> dict[str, Any] | None:
        """Return the calls and bytes read and written since ``before``, as the result's ``logical``."""
        change = self.io_since(before)
        if change is None or not self.processes:
            return None
        return {
            "reads": change.get("syscr", 0),
            "read_bytes": change.get("rchar", 0),
            "writes": change.get("syscw", 0),
            "write_bytes": change.get("wchar", 0),
            "source": "processes",
        }


def job(roots: Iterable[int]) -> JobCounters:
    """Return the sums over ``roots`` and their descendants now.

    A process that ended is in its parent's sums once the parent waited for it: the kernel adds both its time
    and its I/O there. One whose parent ignores its end, or ended before it, is lost.
    """
    user = system = 0.0
    io: dict[str, int] | None = {}
    pids = descendants(roots)
    for stat in _living(pids):
        user += stat.user_s + stat.user_ended_s
        system += stat.system_s + stat.system_ended_s
        try:
            for name, value in parse_io(Path(f"/proc/{stat.pid}/io").read_text(encoding="ascii")).items():
                if io is not None:
                    io[name] = io.get(name, 0) + value
        except PermissionError:
            io = None
        except OSError:
            continue
    return JobCounters(len(pids), user, system, io)


Task = tuple[int, int]
"""A thread's id and the clock tick it started at."""


@dataclass(frozen=True, slots=True)
class Switches:
    """One thread since it started."""

    voluntary: int
    involuntary: int
    ran_ns: int
    waited_ns: int
    """Ready to run, but no processor was free."""


def tasks(pids: Iterable[int]) -> dict[Task, Switches]:
    """Return the scheduler's counts of every thread of ``pids`` that lives."""
    found: dict[Task, Switches] = {}
    for pid in pids:
        try:
            folders = list(Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            continue
        for folder in folders:
            try:
                started = parse_pid_stat((folder / "stat").read_text(errors="replace")).started
                voluntary, other = parse_switches((folder / "status").read_text(errors="replace"))
            except (OSError, ValueError):
                continue
            try:
                ran, waited = parse_schedstat((folder / "schedstat").read_text(encoding="ascii"))
            except OSError:
                ran = waited = 0
            found[int(folder.name), started] = Switches(voluntary, other, ran, waited)
    return found


_SHOWN = 40  # characters of a process's own title


def called(pid: int, name: str) -> str:
    """Return what a process calls itself: ``name``, or with a title of the form that PostgreSQL, sshd and
    nginx give theirs, ``NAME: title``. One that names a connection, which changes with each statement, is
    ``NAME: session``.
    """
    try:
        told = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return name
    head, colon, title = told.partition(": ")
    if not colon or head != name:
        return name
    title = " ".join(title.split())
    return f"{name}: session" if "[" in title or "(" in title else f"{name}: {title[:_SHOWN]}"


@dataclass(frozen=True, slots=True)
class ProcessCounters:
    """One process with its threads, from its start to when it was last seen."""

    pid: int
    parent: int
    name: str
    user_s: float
    system_s: float
    io: dict[str, int]
    """``/proc/PID/io``, with that of its children that ended and were waited for; empty where it may not be
    read."""


def processes(pids: Iterable[int]) -> dict[Task, ProcessCounters]:
    """Return the counters of each of ``pids`` that lives."""
    found: dict[Task, ProcessCounters] = {}
    for stat in _living(pids):
        try:
            io = parse_io(Path(f"/proc/{stat.pid}/io").read_text(encoding="ascii"))
        except OSError:
            io = {}
        found[stat.pid, stat.started] = ProcessCounters(
            stat.pid, stat.parent, called(stat.pid, stat.name), stat.user_s, stat.system_s, io
        )
    return found


_QUEUE = re.compile(r"(?:[.-]|(?<=q))\d+$")


def parse_interrupts(text: str) -> dict[str, int]:
    """Return source → interrupts of all processors since boot, from ``/proc/interrupts``.

    A device's queues are one source (``nvme0q``), as are other lines of one name.
    """
    lines = text.splitlines()
    processors = len(lines[0].split()) if lines else 0
    found: dict[str, int] = {}
    for line in lines[1:]:
        key, _, rest = line.partition(":")
        words = rest.split()
        counts = [int(word) for word in words[:processors] if word.isdecimal()]
        said = words[len(counts) :]
        if key.strip().isdecimal():
            # Controller, its own number with the trigger, the trigger alone on some machines, the device.
            said = [word for word in said[2:] if word not in ("Edge", "Level")]
        name = _QUEUE.sub("", " ".join(said)) or key.strip()
        found[name] = found.get(name, 0) + sum(counts)
    return found


def interrupts() -> dict[str, dict[str, int]]:
    """Return the whole machine's interrupts and software interrupts since boot, by source."""
    return {
        "interrupts": parse_interrupts(Path("/proc/interrupts").read_text(errors="replace")),
        "softirqs": parse_softirqs(Path("/proc/softirqs").read_text(errors="replace")),
    }


def parse_softirqs(text: str) -> dict[str, int]:
    """Return kind → software interrupts of all processors since boot, from ``/proc/softirqs``."""
    found: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        key, _, rest = line.partition(":")
        found[key.strip()] = sum(int(word) for word in rest.split() if word.isdecimal())
    return found


_ZFS_THREADS = (
    *("z_", "txg_", "dp_", "dbu_", "dbuf_", "arc_", "l2arc_", "spl_", "zvol", "metaslab_", "mmp", "spa_"),
    *("vdev_", "zthr_", "raidz_", "zil_"),
)


def is_zfs_thread(name: str) -> bool:
    """Whether a kernel thread of this name is of ZFS."""
    return name.startswith(_ZFS_THREADS)


def zfs_threads() -> float:
    """Return the seconds of processor time of ZFS's kernel threads that live."""
    threads = (thread for thread in _living(descendants([2])) if is_zfs_thread(thread.name))
    return sum((thread.user_s + thread.system_s for thread in threads), 0.0)
