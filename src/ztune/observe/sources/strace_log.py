"""A log of strace: ``strace -f -T``, with or without -y, -yy, -t, -tt, -ttt, -r.

The recorder's own parser (ztune.trace.recorders) reads what strace prints with the recorder's options; a log
that somebody has already made has others. Without -y the descriptors are followed from open to close here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from ztune.observe import histograms
from ztune.observe.model import ObservedTransfers, Syncs
from ztune.observe.sources.collect import READ_CALLS, SYNC_CALLS, WRITE_CALLS, add, count_call
from ztune.observe.sources.source import Source

_TIME = (
    r"(?:(?P<clock>\d\d:\d\d:\d\d(?:\.\d{1,9})?) +|(?P<unix>\d{9,10}(?:\.\d{1,9})?) +"
    r"| *(?P<since>\d{1,8}\.\d{1,9}) +)?"
    r"(?:\(\+ *\d+\.\d+\) +)?"
)
_START = re.compile(r"(?:\[pid +(?P<a>\d+)\] +|(?P<b>\d{1,8})(?!\.) +)?" + _TIME)
_CALL = re.compile(
    r"(?P<name>[a-z_]\w*)\((?P<args>.*)\)\s+= (?P<value>-?\d{1,19}|0x[0-9a-f]{1,16}|\?)(?!\w)(?P<rest>.*)"
)
_UNFINISHED = re.compile(r"(?P<name>[a-z_]\w*)\((?P<args>.*)<unfinished \.\.\.>")
_RESUMED = re.compile(r"<\.\.\. (?P<name>[a-z_]\w*) resumed>,? ?(?P<tail>.*)")
_TOOK = re.compile(r"<(\d{1,9}\.\d{1,9})>$")
_FD = re.compile(r"(-?\d{1,9})(?:<((?:[^<>\\]|\\.)*)(?:<[^<>]*>)?>)?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PRETENDED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))")
_TABLE = re.compile(r"% time +seconds +")
_EVENT = re.compile(r"(?:---|\+\+\+) ")
_STRACE = re.compile(r"strace: .*")

_OPENS: Final = frozenset({"open", "openat", "openat2", "creat"})
_FORKS: Final = frozenset({"clone", "clone3", "fork", "vfork"})
_UNCOUNTED: Final = frozenset(
    {"copy_file_range", "sendfile", "splice", "io_submit", "io_uring_enter", "process_vm_readv"}
)
_OFFSET_AT: Final = {"pread64": 3, "pwrite64": 3, "preadv": 3, "pwritev": 3, "preadv2": 3, "pwritev2": 3}
_BLOCK: Final = 4096  # what "aligned" means where the record size is not known


class _Place(NamedTuple):
    """A position in a file: ``offset`` from ``base``; base 0 is the file's beginning, others are unknown."""

    base: int
    offset: int


@dataclass
class _Open:
    """An open file that descriptors share."""

    path: str | None
    place: _Place
    flags: str | None
    """As the log shows them; None where it began before the file was opened."""


@dataclass
class _File:
    """What was seen of a file with one call."""

    reads: ObservedTransfers = field(default_factory=ObservedTransfers)
    writes: ObservedTransfers = field(default_factory=ObservedTransfers)
    syncs: Syncs = field(default_factory=Syncs)
    unknown_place: bool = False
    unknown_flags: bool = False


class StraceLog:
    """Reads it."""

    name = "strace"
    what = "logs of strace -f -T"

    def recognise(self, head: str) -> bool:
        """True if half of the first lines, or more, look like calls."""
        lines = [line for line in head.splitlines()[:200] if line.strip() and not _STRACE.match(line)]
        if (table := next((i for i, line in enumerate(lines) if _TABLE.match(line)), None)) is not None:
            lines = lines[:table]
        fitting = sum(_is_line(line) for line in lines)
        return fitting > 0 and 2 * fitting >= len(lines) and any(_calls(line) for line in lines)

    def read(self, source: Source) -> None:
        """Add files, calls and roles, and the table of calls."""
        reading = _Reading()
        for line in source.lines():
            reading.line(line, cut=source.unended)
        reading.enter(source)


def _rest(line: str) -> str:
    found = _START.match(line)
    return line[found.end() :] if found else line


def _calls(line: str) -> bool:
    rest = _rest(line)
    return bool(_CALL.fullmatch(rest) or _UNFINISHED.match(rest))


def _is_line(line: str) -> bool:
    rest = _rest(line)
    return _calls(line) or bool(_RESUMED.match(rest) or _EVENT.match(rest))


def _plain(text: str) -> str:
    """Undo strace's escapes."""

    def one(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        if found[2]:
            return chr(int(found[2], 8) & 0xFF)
        return {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f"}.get(found[3], found[3])

    if "\\" not in text:
        return text
    # Escapes are of bytes; together they may be UTF-8.
    plain = _PRETENDED.sub(one, text)
    try:
        return plain.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return plain


class _Reading:
    def __init__(self) -> None:
        self.tables: dict[int, dict[int, _Open]] = {}
        self.waiting: dict[tuple[int, str], str] = {}
        self.births: list[tuple[int, str]] = []  # parents and arguments of clones that have not ended
        self.files: dict[tuple[str, str], _File] = {}
        self.last: dict[tuple[str, str], _Place] = {}  # where the last call of a kind ended in a file
        self.calls: dict[str, Syncs] = {}
        self.errors: Counter[str] = Counter()
        self.uncounted: Counter[str] = Counter()
        self.unseen = 0  # transfers through descriptors that the log did not see opened
        self.odd = 0
        self.untimed = 0
        self.bases = 0
        self.first: float | None = None
        self.ends: float | None = None
        self.unix: float | None = None
        self.days = 0
        self.clock: float | None = None
        self.since = 0.0
        self.table = False

    # ---- lines ----

    def line(self, line: str, *, cut: bool) -> None:
        if not line.strip() or self.table or _STRACE.match(line):
            return
        if _TABLE.match(line):  # strace -C: the same calls once more
            self.table = True
            return
        start = _START.match(line)
        assert start is not None  # all of it is optional
        rest = line[start.end() :]
        task = int(start["a"] or start["b"] or 0)
        if _EVENT.match(rest):
            self._time(start)
            if "+++ exited" in rest or "+++ killed" in rest:
                self.tables.pop(task, None)
            return
        if found := _UNFINISHED.match(rest):
            self._time(start)
            self.waiting[task, found["name"]] = found["args"].rstrip()
            if found["name"] in _FORKS:
                self.births.append((task, found["args"]))
            return
        if resumed := _RESUMED.match(rest):
            begun = self.waiting.pop((task, resumed["name"]), None)
            if begun is None:
                self.odd += 1
                return
            rest = f"{resumed['name']}({begun}{resumed['tail']}"
        call = _CALL.fullmatch(rest)
        if call is None or (cut and not _TOOK.search(rest)):
            self.odd += 1
            return
        self._time(start)
        self._call(task, call)

    def _time(self, start: re.Match[str]) -> None:
        if start["unix"]:
            now = float(start["unix"])
            self.unix = now if self.unix is None else min(self.unix, now)
        elif start["clock"]:
            hours, minutes, seconds = start["clock"].split(":")
            now = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            if self.clock is not None and now < self.clock - 43200:
                self.days += 1  # midnight
            self.clock = now
            now += self.days * 86400
        elif start["since"]:
            self.since += float(start["since"])
            now = self.since
        else:
            return
        self.first = now if self.first is None else min(self.first, now)
        self.ends = now if self.ends is None else max(self.ends, now)

    # ---- calls ----

    def _call(self, task: int, call: re.Match[str]) -> None:
        name, arguments, rest = call["name"], call["args"], call["rest"]
        took = _TOOK.search(rest)
        ns = round(float(took[1]) * 1e9) if took else None
        if call["value"] == "?":
            return
        count_call(self.calls.setdefault(name, Syncs()), ns)
        self.untimed += ns is None
        value = int(call["value"], 16 if call["value"].startswith("0x") else 10)
        if value < 0:
            self.errors[name] += 1
            return
        table = self._table(task)
        if name in _OPENS:
            self._opened(table, name, arguments, value, rest)
        elif name in _FORKS:
            self._born(task, arguments, value)
        elif name == "close" and (fd := _fd(arguments)) is not None:
            table.pop(fd[0], None)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in arguments):
            if (fd := _fd(arguments)) is not None:
                table[value] = self._open(table, *fd)
        elif name in ("lseek", "_llseek") and (fd := _fd(arguments)) is not None:
            if name == "lseek":
                self._open(table, *fd).place = _Place(0, value)
        elif name in READ_CALLS or name in WRITE_CALLS:
            self._moved(table, name, arguments, value, ns)
        elif name in SYNC_CALLS:
            self._synced(table, name, arguments, ns)
        elif name in _UNCOUNTED:
            self.uncounted[name] += 1

    def _table(self, task: int) -> dict[int, _Open]:
        """Return a task's descriptors; a new task has those of a clone that is under way."""
        if task not in self.tables:
            if self.births:
                parent, arguments = self.births[-1]
                self._give(parent, arguments, task)
            else:
                self.tables[task] = {}
        return self.tables[task]

    def _give(self, parent: int, arguments: str, child: int) -> None:
        of = self.tables.setdefault(parent, {})
        self.tables[child] = of if "CLONE_FILES" in arguments else dict(of)

    def _born(self, parent: int, arguments: str, child: int) -> None:
        self.births = [birth for birth in self.births if birth[0] != parent]
        if child and child not in self.tables:
            self._give(parent, arguments, child)

    def _place(self) -> _Place:
        """Return a position that is not known."""
        self.bases += 1
        return _Place(self.bases, 0)

    def _open(self, table: dict[int, _Open], fd: int, path: str | None) -> _Open:
        """Return the open file of a descriptor, as -y names it or as it was opened."""
        known = table.get(fd)
        if known is None or (path is not None and known.path != path):
            known = table[fd] = _Open(path, self._place(), None)
        return known

    def _opened(self, table: dict[int, _Open], name: str, arguments: str, fd: int, rest: str) -> None:
        named = re.match(r"<((?:[^<>\\]|\\.)*)", rest)
        string = _STRING.search(arguments)
        path = _plain(named[1]) if named else _plain(string[1]) if string else None
        if path is not None and not path.startswith("/") and not named and name in ("openat", "openat2"):
            at = _FD.match(arguments)
            folder = _plain(at[2]) if at and at[2] else None
            if folder is None and at is not None and (opened := table.get(int(at[1]))) is not None:
                folder = opened.path
            if folder:
                path = f"{folder.rstrip('/')}/{path}"
        flags = arguments[string.end() :] if string else ""
        table[fd] = _Open(path, _Place(0, 0), flags if name != "creat" else "O_CREAT")
        if "O_APPEND" in flags and path is not None:
            table[fd].place = self.last.get(("write", path), self._place())

    def _moved(self, table: dict[int, _Open], name: str, arguments: str, size: int, ns: int | None) -> None:
        fd = _fd(arguments)
        if fd is None:
            self.odd += 1
            return
        opened = self._open(table, *fd)
        if opened.path is None:
            self.unseen += fd[0] > 2
            return
        if not _is_file(opened.path):
            return
        side = "read" if name in READ_CALLS else "write"
        key = (side, opened.path)
        if name in _OFFSET_AT:
            offset = _offset(name, arguments)
            if offset is None:
                self.odd += 1
                return
            begin = _Place(0, offset)
        elif side == "write" and opened.flags is not None and "O_APPEND" in opened.flags:
            begin = self.last.get(key, opened.place)
        else:
            begin = opened.place
        end = _Place(begin.base, begin.offset + size)
        if name not in _OFFSET_AT:
            opened.place = end
        seen = self.files.setdefault((opened.path, name), _File())
        sums = seen.reads if side == "read" else seen.writes
        sums.bytes = (sums.bytes or 0) + size
        add(sums.sizes, {histograms.bucket(size): 1})
        count_call(sums, ns)
        sums.sequential = (sums.sequential or 0) + (self.last.get(key) == begin)
        self.last[key] = end
        if begin.base == 0:
            sums.aligned = (sums.aligned or 0) + (
                size > 0 and begin.offset % _BLOCK == 0 and size % _BLOCK == 0
            )
        else:
            seen.unknown_place = True
        if opened.flags is None:
            seen.unknown_flags = True
        else:
            sums.direct = (sums.direct or 0) + ("O_DIRECT" in opened.flags)
            if side == "write":
                synced = "O_SYNC" in opened.flags or "O_DSYNC" in opened.flags
                sums.synced = (sums.synced or 0) + synced

    def _synced(self, table: dict[int, _Open], name: str, arguments: str, ns: int | None) -> None:
        if name in ("sync", "msync"):
            return
        fd = _fd(arguments)
        opened = self._open(table, *fd) if fd else None
        if opened is None or opened.path is None:
            self.unseen += 1
        elif _is_file(opened.path):
            count_call(self.files.setdefault((opened.path, name), _File()).syncs, ns)

    # ---- the end ----

    def enter(self, source: Source) -> None:
        for name, sums in self.calls.items():
            seconds = None if sums.latency_total is None else sums.latency_total / 1e9
            source.into.call(name, sums.calls, seconds, self.errors[name], sums.latency)
        for (path, name), seen in self.files.items():
            for side in (seen.reads, seen.writes):
                if seen.unknown_place:
                    side.aligned = None
                if seen.unknown_flags:
                    side.synced = side.direct = None
            source.into.enter(
                path=path,
                call=name,
                role=source.into.role(path),
                reads=seen.reads,
                writes=seen.writes,
                syncs=seen.syncs,
            )
        if self.first is not None and self.ends is not None:
            source.into.lasted(self.ends - self.first)
        if self.unix is not None and source.into.begun is None:
            source.into.begun = datetime.fromtimestamp(self.unix, UTC).isoformat()
        self._limits(source)

    def _limits(self, source: Source) -> None:
        if self.untimed:
            source.limit(f"{self.untimed} calls have no time: strace ran without -T.")
        if self.unseen:
            source.limit(
                f"{self.unseen} calls went through descriptors that the log did not see opened; "
                "strace -y names them. They are in the table of calls only."
            )
        if self.uncounted:
            names = ", ".join(f"{name} ({n})" for name, n in sorted(self.uncounted.items()))
            source.limit(f"what {names} moved is not counted.")
        if self.odd:
            source.limit(f"{self.odd} lines of strace are cut or not understood and were left out.")
        if self.files:
            source.limit(
                "strace slows each call down: its times are longer than without it. How many bytes "
                "overwrite what a file held is not known from a log; a call counts as aligned by 4096 bytes."
            )


def _fd(arguments: str) -> tuple[int, str | None] | None:
    """Return the descriptor that the first argument is, and the path that -y names."""
    found = _FD.match(arguments)
    return (int(found[1]), _plain(found[2]) if found[2] else None) if found else None


def _is_file(path: str) -> bool:
    """True for what can be a file on disk; -y shows pipes and sockets as pipe:[1], TCP:[…], anon_inode:…"""
    if path.startswith("/"):
        return not path.startswith(("/dev/", "/proc/", "/sys/", "/memfd:"))
    return not re.match(r"[\w-]+:(?:\[|/)|anon_inode:|[A-Z]+v?6?:\[", path)


def _offset(name: str, arguments: str) -> int | None:
    """Return the offset: the last argument, or the one before flags."""
    parts = arguments.rsplit(", ", 2 if name in ("preadv2", "pwritev2") else 1)
    text = parts[1] if len(parts) > 1 else ""
    return int(text) if re.fullmatch(r"\d{1,19}", text) else None
