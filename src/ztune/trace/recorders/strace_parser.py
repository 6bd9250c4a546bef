"""Turns strace's lines into events: a small model of each process's descriptors, positions and folder.

What the kernel knows and strace does not say is followed here: which descriptors share one open file
(dup, fork, threads), where its position is, how long a file is (for O_APPEND). See docs/recording.md for what
that can't know.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ztune.trace.recorders.files import Call, FileTable
from ztune.trace.recorders.recorder import MMAP_READ
from ztune.trace.schema import Flag, Op, Via

# The calls that strace must show.
# fmt: off
EVENT_CALLS = [
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2",
    "pwritev2", "fsync", "fdatasync", "sync_file_range", "sync", "syncfs", "msync", "ftruncate",
    "truncate", "fallocate", "open", "openat", "openat2", "creat", "rename", "renameat", "renameat2",
    "unlink", "unlinkat", "link", "linkat", "copy_file_range", "sendfile", "splice", "mmap",
    "fadvise64", "readahead", "io_submit", "io_uring_setup",
]
MOST_AHEAD = 128 << 20
"""OpenZFS begins to read no more for one call (dmu_prefetch_max), whatever is asked for."""
# Needed only to know descriptors and positions.
HELP_CALLS = [
    "lseek", "dup", "dup2", "dup3", "fcntl", "close", "close_range", "chdir", "fchdir", "clone",
    "clone3", "fork", "vfork", "execve", "execveat", "ioctl",
]
# fmt: on
CALLS = (*EVENT_CALLS, *HELP_CALLS)


O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_CLOEXEC = os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_CLOEXEC
O_TMPFILE_BIT = 0o20000000  # __O_TMPFILE
CLONE_FILES, CLONE_THREAD = 0x400, 0x10000
F_DUPFD, F_SETFD, F_SETFL, F_DUPFD_CLOEXEC = 0, 2, 4, 1030
RWF_DSYNC, RWF_SYNC, RWF_APPEND = 2, 4, 16
AT_REMOVEDIR, RENAME_EXCHANGE = 0x200, 2
CLOSE_RANGE_CLOEXEC = 4
MAP_SHARED, MAP_SHARED_VALIDATE, MAP_ANONYMOUS, PROT_WRITE, MS_SYNC = 1, 3, 0x20, 2, 4
# A file's time of birth comes from a clock that stands still between ticks (10 ms at most).
TICK_NS = 10_000_000

_LINE = re.compile(r"(\d+) +(\d+)\.(\d{9}) (\w+)\((.*)\) += (.*) <(\d+)\.(\d{9})>$")
_UNFINISHED = re.compile(r"(\d+) +(\d+)\.(\d{9}) (\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +(\d+)\.(\d{9}) <\.\.\. (\w+) resumed>(.*)\) += (.*) <(\d+)\.(\d{9})>$")
_GONE = re.compile(r"(\d+) +\d+\.\d{9} \+\+\+ (?:exited with (\d+)|killed by (\w+)|(superseded))")
_DETACHED = "<detached ...>"  # of a call that was under way when strace let the process go
_FD = re.compile(r"(-?\d+)(?:<([^>]*)>(\(deleted\))?)?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_CLONE_FLAGS = re.compile(r"flags=(0x[0-9a-f]+|\d+)")
_AIO = {
    "opcode": re.compile(r"aio_lio_opcode=(\w+)"),
    "fd": re.compile(r"aio_fildes=(-?\d+(?:<[^>]*>(?:\(deleted\))?)?)"),
    "bytes": re.compile(r"aio_nbytes=(\d+)"),
    "offset": re.compile(r"aio_offset=(-?\d+)"),
    "rwf": re.compile(r"aio_rw_flags=(\w+)"),
    "iov": re.compile(r"iov_len=(\d+)"),
}
_AIO_OPS = {0: Op.READ, 1: Op.WRITE, 2: Op.FSYNC, 3: Op.FDATASYNC, 7: Op.READ, 8: Op.WRITE}

_NO_FILES = ("/proc/", "/sys/", "/memfd:", "/SYSV")  # pseudo file systems, memory with a name
Row = tuple[int, int, int, int, int, int, int, int, int, int, int]  # the columns of EVENTS that it can tell


class FoundFile(NamedTuple):
    """What a look at a file says."""

    dev: int
    ino: int
    size: int
    links: int
    born_ns: int  # time of birth, Unix ns; 0: the file system does not keep it
    regular: bool


class RunningSystem:
    """Looks at the running system. Tests put something else in its place."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def look(self, path: str) -> FoundFile | None:
        """Return what ``path`` is now, or None if it is gone."""
        try:
            status = Path(path).stat()
        except (OSError, ValueError):
            return None
        regular = stat.S_ISREG(status.st_mode)
        born = self._born(path) if regular else 0
        if born is None:  # gone between the two calls
            return None
        return FoundFile(status.st_dev, status.st_ino, status.st_size, status.st_nlink, born, regular)

    def folder(self, pid: int) -> str:
        """Return the working folder of a process, or / if it is gone."""
        try:
            return str(Path(f"/proc/{pid}/cwd").readlink())
        except OSError:
            return "/"

    def group(self, tid: int) -> tuple[int, int]:
        """Return the process of a thread and its parent's, or (tid, 0) if it is gone."""
        try:
            values = _fields(f"/proc/{tid}/status")
        except OSError:
            return tid, 0
        return int(values["Tgid"]), int(values["PPid"])

    def descriptor(self, pid: int, fd: int) -> tuple[int, int] | None:
        """Return position and flags of a descriptor, or None if it is gone."""
        try:
            values = _fields(f"/proc/{pid}/fdinfo/{fd}")
        except OSError:
            return None
        return int(values["pos"]), int(values["flags"], 8)

    def _born(self, path: str) -> int | None:
        # struct statx (linux/stat.h): stx_mask at 0, stx_btime at 80 (seconds s64, nanoseconds u32).
        buffer = ctypes.create_string_buffer(256)
        want = 0x800  # STATX_BTIME
        if self._libc.statx(-100, os.fsencode(path), 0, want, buffer) != 0:
            return None if ctypes.get_errno() == errno.ENOENT else 0
        if not int.from_bytes(buffer.raw[0:4], "little") & want:
            return 0
        return int.from_bytes(buffer.raw[80:88], "little", signed=True) * 10**9 + int.from_bytes(
            buffer.raw[88:92], "little"
        )


def _fields(path: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(path).read_text().splitlines() if ":\t" in line)


@dataclass
class Open:
    """An open file description: what descriptors made by dup and fork have in common."""

    number: int  # of the file; 0: none of interest
    shown: str = ""  # as strace shows its path
    position: int = 0
    flags: int = 0  # O_...


@dataclass
class TracedProcess:
    """What the threads of a process share."""

    pid: int
    folder: str
    fds: dict[int, Open] = field(default_factory=dict)
    cloexec: set[int] = field(default_factory=set)
    maps: list[tuple[int, int, int, int]] = field(default_factory=list)  # from, to, file number, file offset

    def copy(self, pid: int) -> TracedProcess:
        """Return the child's, after fork: its own table, but the same open files."""
        return TracedProcess(pid, self.folder, dict(self.fds), set(self.cloexec), list(self.maps))


def decode(shown: str) -> str:
    r"""Return the path that strace wrote as ``\x2f\x74...``."""
    return os.fsdecode(bytes.fromhex(shown.replace("\\x", "")))


class Parser:
    """Takes strace's lines in order; gives rows to ``emit``, files and names to ``table``."""

    def __init__(
        self,
        table: FileTable,
        started_ns: int,
        emit: Callable[[Row], None],
        live: RunningSystem,
        folder: str = "/",
    ) -> None:
        self.first_tid: int | None = None  # of the command, if strace started it
        self.exits: dict[int, int] = {}  # thread → exit status, or minus the signal
        self.uring = 0  # calls of io_uring_setup
        self.odd_lines = 0  # that are not understood
        self._table = table
        self._started = started_ns
        self._emit = emit
        self._live = live
        self._folder = folder
        self._threads: dict[int, TracedProcess] = {}
        self._begun: dict[int, tuple[int, str, str]] = {}  # thread → start, call, arguments so far
        self._sizes: dict[int, int] = {}
        self._appended: dict[int, int] = {}  # file → bytes
        self._cut: set[int] = set()  # files that were truncated
        self._last = 0
        self._handlers = {
            name: handler for name in CALLS if (handler := getattr(self, "_on_" + name, None)) is not None
        }

    def line(self, line: str) -> None:
        """Take one line, without its end."""
        if found := _LINE.match(line):
            tid, seconds, ns, name, arguments, result, took, took_ns = found.groups()
            t = int(seconds) * 10**9 + int(ns)
            self._call(int(tid), t, int(took) * 10**9 + int(took_ns), name, arguments, result)
        elif found := _UNFINISHED.match(line):
            tid, seconds, ns, name, arguments = found.groups()
            self._begun[int(tid)] = int(seconds) * 10**9 + int(ns), name, arguments
            self._process(int(tid))
        elif found := _RESUMED.match(line):
            tid, _, _, name, arguments, result, took, took_ns = found.groups()
            t, begun_name, before = self._begun.pop(int(tid), (0, "", ""))
            if begun_name == name:
                self._call(int(tid), t, int(took) * 10**9 + int(took_ns), name, before + arguments, result)
        elif found := _GONE.match(line):
            tid, status, killed, superseded = found.groups()
            self._begun.pop(int(tid), None)
            if not superseded:
                self._threads.pop(int(tid), None)
                self.exits[int(tid)] = int(status) if status else -_signal_number(killed)
        elif " --- " not in line and " = ? " not in line and not line.endswith(("= ?", _DETACHED)):
            self.odd_lines += 1

    def descriptor(self, pid: int, fd: int, path: str, position: int, flags: int) -> None:
        """Enter a descriptor that a process had before."""
        process = self._process(pid)
        opened = Open(self._number(path), position=position, flags=flags)
        opened.shown = "".join(f"\\x{byte:02x}" for byte in os.fsencode(path))
        process.fds[fd] = opened

    def mapping(self, pid: int, begin: int, length: int, path: str, offset: int) -> None:
        """Enter a shared mapping that a process had before."""
        if number := self._number(path):
            self._process(pid).maps.append((begin, begin + length, number, offset))

    def late_sizes(self) -> dict[int, int]:
        """Return, for files that were appended to, by how many bytes their first size was seen too late.

        strace shows an open a moment after it happened; the size read then may hold what the next calls
        appended. The sizes at the end tell. To be called when all lines were taken.
        """
        late = {}
        for number, appended in self._appended.items():
            entry = self._table.numbered(number)
            if number in self._cut or entry is None or entry.created or entry.deleted:
                continue
            found = self._live.look(entry.path)
            if (
                found is not None
                and found.ino == entry.ino
                and 0 < self._sizes[number] - found.size <= appended
            ):
                late[number] = self._sizes[number] - found.size
        return late

    def _call(self, tid: int, t: int, dur: int, name: str, arguments: str, result: str) -> None:
        handler = self._handlers.get(name)
        if handler is None:
            return
        if self.first_tid is None:
            self.first_tid = tid
        text = result.split(" ", 1)[0]
        if text.startswith("-") or text == "?":
            return
        value = int(text.split("<", 1)[0], 0)
        handler(_Context(self._process(tid), tid, max(0, t - self._started), dur, arguments, value, text))

    def _process(self, tid: int) -> TracedProcess:
        process = self._threads.get(tid)
        if process is None:
            process = self._threads[tid] = self._adopt(tid)
        return process

    def _adopt(self, tid: int) -> TracedProcess:
        """Find out about a thread whose birth was not seen yet, or is under way."""
        births = [
            (t, parent, flags)
            for parent, (t, name, arguments) in self._begun.items()
            if name in ("clone", "clone3", "fork", "vfork") and (flags := _clone_flags(arguments)) is not None
        ]
        pid, parent_pid = self._live.group(tid)
        for _, parent, flags in sorted(births, reverse=True):
            mother = self._threads.get(parent)
            if mother is not None and (len(births) == 1 or mother.pid in (pid, parent_pid)):
                return self._born(mother, tid, flags)
        if pid in self._threads and pid != tid:
            return self._threads[pid]
        folder = self._folder if not self._threads and self.first_tid is None else self._live.folder(tid)
        return TracedProcess(pid, folder)

    @staticmethod
    def _born(mother: TracedProcess, tid: int, flags: int) -> TracedProcess:
        if flags & CLONE_FILES:
            return mother
        return mother.copy(mother.pid if flags & CLONE_THREAD else tid)

    # ---- files ----

    def _number(self, path: str, links: int | None = None) -> int:
        """Return the number of the regular file at ``path``, entering it if it is new; 0 if not regular."""
        entry = self._table.named(path)
        if entry is not None and entry.number:
            return entry.number
        found = self._live.look(path)
        if not path.startswith("/") or path.startswith(_NO_FILES) or (found and not found.regular):
            return 0
        if found is not None and self._table.knows(found.dev, found.ino):
            found = None  # another file has the name by now
        number = self._last + 1
        if found is None:
            if path.startswith("/dev/"):
                return 0
            found = FoundFile(0, 0, 0, 1, 0, True)
        self._last = number
        self._table.seen(
            number, 0, path, found.dev, found.ino, found.size, links=found.links if links is None else links
        )
        self._sizes[number] = found.size
        return number

    def _create(self, c: _Context, path: str) -> int:
        found = self._live.look(path) or FoundFile(0, 0, 0, 1, 0, True)
        if not found.regular:
            return 0
        self._last += 1
        self._table.seen(self._last, c.t, path, found.dev, found.ino, 0, created=True)
        self._sizes[self._last] = 0
        return self._last

    def _file(self, c: _Context, text: str, *, moved: bool = False) -> Open | None:
        """Return the open file that ``text`` (``3<path>``) stands for, if it is a regular file."""
        found = _FD.match(text)
        if found is None:
            return None
        fd, shown, deleted = int(found[1]), found[2], found[3]
        opened = c.process.fds.get(fd)
        if opened is not None and (shown == opened.shown or deleted):
            return opened if opened.number else None
        if not shown:
            return None
        path = decode(shown)
        if opened is not None and opened.number:
            entry = self._table.named(path)
            if entry is not None and entry.number == opened.number:
                opened.shown = shown  # renamed
                return opened
        number = self._number(path, 0 if deleted else None)
        live = self._live.descriptor(c.process.pid, fd) if number else None
        opened = Open(number, shown, *(live or (0, 0)))
        if live is not None and moved:
            opened.position = max(0, opened.position - c.value)  # it has moved on already
        c.process.fds[fd] = opened
        return opened if number else None

    def _row(self, c: _Context, op: int, opened: Open, offset: int, size: int, flags: int = 0) -> None:
        flags |= _flags(opened.flags)
        self._put(c, op, Via.SYSCALL, flags, opened.number, 0, offset, size)

    def _put(
        self, c: _Context, op: int, via: Via, flags: int, file: int, file2: int, offset: int, size: int
    ) -> None:
        self._emit((c.t, c.dur, c.process.pid, c.tid, op, via, flags, file, file2, offset, size))

    def _transfer(self, c: _Context, op: Op, offset: int = -1, rwf: int = 0) -> None:
        opened = self._file(c, c.arguments, moved=offset < 0)
        if opened is None:
            return
        append = op == Op.WRITE and bool(opened.flags & O_APPEND or rwf & RWF_APPEND)
        if append:
            self._appended[opened.number] = self._appended.get(opened.number, 0) + c.value
        begin = self._sizes[opened.number] if append else opened.position if offset < 0 else offset
        if offset < 0:
            opened.position = begin + c.value
        positioned = 0 if offset < 0 else Flag.POSITIONED
        self._row(c, op, opened, begin, c.value, _rwf_flags(rwf) | positioned)
        if op == Op.WRITE:
            self._grow(opened.number, begin + c.value)

    def _resize(self, number: int, size: int) -> None:
        self._sizes[number] = size
        self._cut.add(number)

    def _grow(self, number: int, size: int) -> None:
        if size > self._sizes[number]:
            self._sizes[number] = size

    # ---- calls, by name ----

    def _on_read(self, c: _Context) -> None:
        self._transfer(c, Op.READ)

    def _on_write(self, c: _Context) -> None:
        self._transfer(c, Op.WRITE)

    _on_readv, _on_writev = _on_read, _on_write

    def _on_pread64(self, c: _Context) -> None:
        self._transfer(c, Op.READ, int(c.arguments.rsplit(", ", 1)[1]))

    def _on_pwrite64(self, c: _Context) -> None:
        self._transfer(c, Op.WRITE, int(c.arguments.rsplit(", ", 1)[1]))

    _on_preadv, _on_pwritev = _on_pread64, _on_pwrite64

    def _on_preadv2(self, c: _Context) -> None:
        _, offset, flags = c.arguments.rsplit(", ", 2)
        self._transfer(c, Op.READ, int(offset), int(flags, 0))

    def _on_pwritev2(self, c: _Context) -> None:
        _, offset, flags = c.arguments.rsplit(", ", 2)
        self._transfer(c, Op.WRITE, int(offset), int(flags, 0))

    def _on_fsync(self, c: _Context) -> None:
        if opened := self._file(c, c.arguments):
            self._row(c, Op.FSYNC, opened, -1, 0)

    def _on_fdatasync(self, c: _Context) -> None:
        if opened := self._file(c, c.arguments):
            self._row(c, Op.FDATASYNC, opened, -1, 0)

    def _on_sync_file_range(self, c: _Context) -> None:
        fd, offset, size, _ = c.split()
        if opened := self._file(c, fd):
            self._row(c, Op.SYNC_RANGE, opened, int(offset), int(size))

    def _on_fadvise64(self, c: _Context) -> None:
        fd, offset, size, advice = c.split()
        if int(advice, 0) == os.POSIX_FADV_WILLNEED:
            self._read_ahead(c, fd, int(offset), int(size))

    def _on_readahead(self, c: _Context) -> None:
        fd, offset, size = c.split()
        self._read_ahead(c, fd, int(offset), int(size))

    def _read_ahead(self, c: _Context, fd: str, offset: int, size: int) -> None:
        """Note what is asked to be read ahead, as far as the file goes; 0 bytes mean up to its end."""
        opened = self._file(c, fd)
        there = min(self._sizes[opened.number] - offset, MOST_AHEAD) if opened else 0
        if opened and offset >= 0 and there > 0:
            self._row(c, Op.READ_AHEAD, opened, offset, min(size, there) if size > 0 else there)

    def _on_sync(self, c: _Context) -> None:
        self._emit((c.t, c.dur, c.process.pid, c.tid, Op.SYNC, Via.SYSCALL, 0, 0, 0, -1, 0))

    _on_syncfs = _on_sync

    def _on_ftruncate(self, c: _Context) -> None:
        fd, size = c.split()
        if opened := self._file(c, fd):
            self._row(c, Op.TRUNCATE, opened, -1, int(size))
            self._resize(opened.number, int(size))

    def _on_truncate(self, c: _Context) -> None:
        path, size = c.split()
        self._table.truncate(c.call, c.path(path), int(size))
        entry = self._table.named(c.path(path))
        if entry is not None and entry.number:
            self._resize(entry.number, int(size))

    def _on_fallocate(self, c: _Context) -> None:
        fd, mode, offset, size = c.split()
        if opened := self._file(c, fd):
            self._row(c, Op.FALLOCATE, opened, int(offset), int(size), _fallocate_flags(int(mode, 0)))
            if not int(mode, 0) & 1:
                self._grow(opened.number, int(offset) + int(size))

    def _on_openat(self, c: _Context) -> None:
        self._opened(c, int(c.split()[2], 0))

    def _on_open(self, c: _Context) -> None:
        self._opened(c, int(c.split()[1], 0))

    def _on_creat(self, c: _Context) -> None:
        self._opened(c, O_CREAT | O_TRUNC)

    def _on_openat2(self, c: _Context) -> None:
        found = re.search(r"flags=(\w+)", c.arguments)
        self._opened(c, int(found[1], 0) if found else 0)

    def _opened(self, c: _Context, flags: int) -> None:
        found = _FD.match(c.result)
        if found is None or not found[2]:
            return
        path = decode(found[2])
        created = bool(flags & O_TMPFILE_BIT) or self._was_created(c, path, flags)
        number = self._create(c, path) if created else self._number(path, 0 if found[3] else None)
        opened = Open(number, found[2], 0, flags)
        c.process.fds[c.value] = opened
        (c.process.cloexec.add if flags & O_CLOEXEC else c.process.cloexec.discard)(c.value)
        if not number:
            return
        if created:
            self._row(c, Op.CREATE, opened, -1, 0)
        elif flags & O_TRUNC:
            self._row(c, Op.TRUNCATE, opened, -1, 0)
            self._resize(number, 0)

    def _was_created(self, c: _Context, path: str, flags: int) -> bool:
        """Say whether an open that may create did: strace shows the file only, not whether it was there."""
        if not flags & O_CREAT:
            return False
        if flags & O_EXCL:
            return True
        entry = self._table.named(path)
        if entry is not None and entry.number:
            return False
        found = self._live.look(path)
        if found is None:  # gone again, or renamed: files that live so shortly were made for it
            return True
        return found.born_ns >= self._started + c.t - TICK_NS if found.born_ns else False

    def _on_rename(self, c: _Context) -> None:
        old, new, flags = c.two_paths()
        self._table.rename(c.call, old, new, exchange=bool(flags & RENAME_EXCHANGE))

    _on_renameat = _on_renameat2 = _on_rename

    def _on_unlink(self, c: _Context) -> None:
        self._table.unlink(c.call, c.path(c.arguments))

    def _on_unlinkat(self, c: _Context) -> None:
        fd, path, flags = c.split()
        if not int(flags, 0) & AT_REMOVEDIR:
            self._table.unlink(c.call, c.path(path, fd))

    def _on_link(self, c: _Context) -> None:
        old, new, _ = c.two_paths()
        self._table.link(c.call, old, new)

    _on_linkat = _on_link

    def _on_copy_file_range(self, c: _Context) -> None:
        source, source_offset, target, target_offset, _, _ = c.split()
        self._copy(c, source, source_offset, target, target_offset)

    _on_splice = _on_copy_file_range

    def _on_sendfile(self, c: _Context) -> None:
        target, source, source_offset, _ = c.split()
        self._copy(c, source, source_offset, target, "NULL")

    def _copy(self, c: _Context, source: str, source_offset: str, target: str, target_offset: str) -> None:
        read, written = self._file(c, source), self._file(c, target)
        from_, to = self._place(c, read, source_offset), self._place(c, written, target_offset)
        if written is not None:
            op, other = (Op.COPY, read.number) if read else (Op.WRITE, 0)
            self._put(c, op, Via.SYSCALL, _flags(written.flags), written.number, other, to, c.value)
            self._grow(written.number, to + c.value)
        elif read is not None:
            self._row(c, Op.READ, read, from_, c.value)

    @staticmethod
    def _place(c: _Context, opened: Open | None, offset: str) -> int:
        """Return where a transfer began, and move the position if it was used."""
        if offset != "NULL":
            return int(offset.split("]", 1)[0].lstrip("["))
        if opened is None:
            return -1
        opened.position += c.value
        return opened.position - c.value

    def _on_mmap(self, c: _Context) -> None:
        _, length, protection, flags, fd, offset = c.split()
        kind = int(flags, 0)
        if kind & 0xF not in (MAP_SHARED, MAP_SHARED_VALIDATE) or kind & MAP_ANONYMOUS:
            return
        if opened := self._file(c, fd):
            op = Op.MMAP if int(protection, 0) & PROT_WRITE else MMAP_READ
            self._row(c, op, opened, int(offset, 0), int(length))
            c.process.maps.append((c.value, c.value + int(length), opened.number, int(offset, 0)))

    def _on_msync(self, c: _Context) -> None:
        address_text, length, flags = c.split()
        address = int(address_text, 0)
        if int(flags, 0) & MS_SYNC:
            for begin, end, number, offset in reversed(c.process.maps):
                if begin <= address < end:
                    self._row(c, Op.MSYNC, Open(number), address - begin + offset, int(length))
                    break

    def _on_io_submit(self, c: _Context) -> None:
        for part in c.arguments.split("{aio_")[1 : c.value + 1]:
            values = {
                name: found[1] for name, pattern in _AIO.items() if (found := pattern.search("aio_" + part))
            }
            op = _AIO_OPS.get(int(values["opcode"], 0)) if "opcode" in values else None
            opened = self._file(c, values["fd"]) if op and "fd" in values else None
            if op is None or opened is None:
                continue
            size, offset, rwf = 0, -1, int(values.get("rwf", "0"), 0)
            if op in (Op.READ, Op.WRITE):
                pieces = [int(n) for n in _AIO["iov"].findall(part)]
                size, offset = sum(pieces) or int(values.get("bytes", "0")), int(values.get("offset", "0"))
                if op == Op.WRITE:
                    if opened.flags & O_APPEND or rwf & RWF_APPEND:
                        offset = self._sizes[opened.number]
                    self._grow(opened.number, offset + size)
            flags = _flags(opened.flags) | _rwf_flags(rwf)
            self._put(c, op, Via.AIO, flags, opened.number, 0, offset, size)

    def _on_io_uring_setup(self, _: _Context) -> None:
        self.uring += 1

    def _on_lseek(self, c: _Context) -> None:
        if opened := self._file(c, c.arguments):
            opened.position = c.value

    def _on_dup(self, c: _Context) -> None:
        self._duplicate(c, cloexec=False)

    _on_dup2 = _on_dup

    def _on_dup3(self, c: _Context) -> None:
        self._duplicate(c, cloexec=bool(int(c.split()[2], 0) & O_CLOEXEC))

    def _duplicate(self, c: _Context, *, cloexec: bool) -> None:
        found = _FD.match(c.arguments)
        if found is None or int(found[1]) == c.value:
            return
        self._file(c, c.arguments)
        if (opened := c.process.fds.get(int(found[1]))) is not None:
            c.process.fds[c.value] = opened
            (c.process.cloexec.add if cloexec else c.process.cloexec.discard)(c.value)

    def _on_fcntl(self, c: _Context) -> None:
        fd_text, what, *rest = c.arguments.split(", ", 2)
        found, kind = _FD.match(fd_text), int(what, 0)
        if found is None:
            return
        fd = int(found[1])
        if kind in (F_DUPFD, F_DUPFD_CLOEXEC):
            self._duplicate(c, cloexec=kind == F_DUPFD_CLOEXEC)
        elif kind == F_SETFD and rest:
            (c.process.cloexec.add if int(rest[0], 0) & 1 else c.process.cloexec.discard)(fd)
        elif kind == F_SETFL and rest and (opened := self._file(c, fd_text)):
            opened.flags = int(rest[0], 0)

    def _on_ioctl(self, c: _Context) -> None:
        fd_text, what, *_ = c.arguments.split(", ", 2)
        found = _FD.match(fd_text)
        if found is not None and what in ("0x5450", "0x5451"):  # FIONCLEX, FIOCLEX
            (c.process.cloexec.add if what == "0x5451" else c.process.cloexec.discard)(int(found[1]))

    def _on_close(self, c: _Context) -> None:
        if found := _FD.match(c.arguments):
            c.process.fds.pop(int(found[1]), None)
            c.process.cloexec.discard(int(found[1]))

    def _on_close_range(self, c: _Context) -> None:
        first, last, flags = (int(_FD.match(text)[1] if "<" in text else text, 0) for text in c.split())  # type: ignore[index]
        for fd in [fd for fd in c.process.fds if first <= fd <= last]:
            if flags & CLOSE_RANGE_CLOEXEC:
                c.process.cloexec.add(fd)
            else:
                del c.process.fds[fd]
                c.process.cloexec.discard(fd)

    def _on_chdir(self, c: _Context) -> None:
        c.process.folder = os.path.realpath(c.path(c.arguments))

    def _on_fchdir(self, c: _Context) -> None:
        if (found := _FD.match(c.arguments)) and found[2]:
            c.process.folder = decode(found[2])

    def _on_clone(self, c: _Context) -> None:
        flags = _clone_flags(c.arguments)
        known = self._threads.get(c.value)
        if known is None or known.pid not in (c.value, c.process.pid):
            self._threads[c.value] = self._born(c.process, c.value, flags or 0)

    _on_clone3 = _on_fork = _on_vfork = _on_clone

    def _on_execve(self, c: _Context) -> None:
        process = c.process.copy(c.process.pid)
        for fd in process.cloexec:
            process.fds.pop(fd, None)
        process.cloexec.clear()
        process.maps.clear()
        self._threads[c.tid] = process

    _on_execveat = _on_execve


class _Context(NamedTuple):
    """A call that ended well."""

    process: TracedProcess
    tid: int
    t: int
    dur: int
    arguments: str
    value: int
    result: str

    @property
    def call(self) -> Call:
        return Call(self.t, self.dur, self.process.pid, self.tid)

    def split(self) -> list[str]:
        """Return the arguments; only for calls whose arguments hold no commas of their own."""
        return self.arguments.split(", ")

    def path(self, text: str, fd: str | None = None) -> str:
        """Return the absolute path of a string argument, relative to a descriptor or the working folder."""
        found = _STRING.search(text)
        path = decode(found[1]) if found else ""
        if path.startswith("/"):
            return path
        base = _FD.match(fd) if fd else None
        folder = decode(base[2]) if base and base[2] else self.process.folder
        return f"{folder.rstrip('/')}/{path}"

    def two_paths(self) -> tuple[str, str, int]:
        """Return the two paths of a call on names, each perhaps behind its descriptor, and the flags."""
        parts = self.split()
        if len(parts) == 2:
            return self.path(parts[0]), self.path(parts[1]), 0
        old_fd, old, new_fd, new, *flags = parts
        return self.path(old, old_fd), self.path(new, new_fd), int(flags[0], 0) if flags else 0


def _clone_flags(arguments: str) -> int | None:
    found = _CLONE_FLAGS.search(arguments)
    return int(found[1], 0) if found else (0 if not arguments.strip() else None)


def _flags(o: int) -> int:
    flags = Flag.SYNC if o & os.O_SYNC == os.O_SYNC else Flag.DSYNC if o & os.O_DSYNC else Flag(0)
    if o & os.O_DIRECT:
        flags |= Flag.DIRECT
    if o & os.O_APPEND:
        flags |= Flag.APPEND
    return int(flags)


def _rwf_flags(rwf: int) -> int:
    return (
        (Flag.SYNC if rwf & RWF_SYNC else 0)
        | (Flag.DSYNC if rwf & RWF_DSYNC else 0)
        | (Flag.APPEND if rwf & RWF_APPEND else 0)
    )


def _fallocate_flags(mode: int) -> int:
    return (
        (Flag.KEEP_SIZE if mode & 1 else 0)
        | (Flag.PUNCH if mode & 2 else 0)
        | (Flag.ZERO if mode & 0x10 else 0)
    )


def _signal_number(name: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        return int(name.removeprefix("SIGRT_")) + 34 if name.startswith("SIGRT_") else 0
