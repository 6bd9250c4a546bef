"""The eBPF recorder: runs ``ztune-recorder`` (recorder/, C) and reads what it wrote."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.trace.manifest import RecordedWindow, Warning_
from ztune.trace.recorders.file_records import file_records
from ztune.trace.recorders.files import Call, FileTable, Mounts
from ztune.trace.recorders.kernel import RECORDER, HelperProcess
from ztune.trace.recorders.recorder import Harvest, Start
from ztune.trace.regions import Tally
from ztune.trace.schema import Op
from ztune.trace.spool import Part, Rows, from_members
from ztune.trace.writer import EVENT_DTYPE

# struct zt_event in recorder/records.h.
EVENT = np.dtype(
    [
        *[("t", "u8"), ("dur", "u8"), ("offset", "i8"), ("size", "i8")],
        *[("file", "u4"), ("file2", "u4"), ("pid", "u4"), ("tid", "u4")],
        *[
            ("flags", "u2"),
            ("op", "u1"),
            ("via", "u1"),
            ("since_sync", "u4"),
            ("waited", "u4"),
            ("pad", "u4"),
        ],
    ]
)
# struct zt_frame; what may follow it is of enum zt_frame_kind.
FRAME = np.dtype([("kind", "u4"), ("rows", "u4"), ("bytes", "u4"), ("magic", "u4")])
MAGIC = 0x6D72665A
EVENTS, BEGIN, END = 1, 2, 3
TALLY = np.dtype(
    [
        ("id", "u4"),  # ahead of struct zt_tally
        *[("ino", "u8"), ("reads", "u8"), ("read_bytes", "u8"), ("writes", "u8"), ("write_bytes", "u8")],
        *[("syncs", "u8"), ("in_order", "u8"), ("begin", "i8"), ("end", "i8"), ("size", "i8")],
        *[("sampled", "u4"), ("pad", "u4")],
    ]
)
CREATED, CALL = 2, 3  # of enum zt_file_kind
LINK = 101  # ZT_LINK
RENAME_EXCHANGE = 2  # linux/fs.h
SAW = {"functions": "functions of the system calls", "tracepoints": "tracepoints sys_enter, sys_exit"}
"""By what ``ztune-recorder`` says that it is attached to."""
START_SECONDS = 300.0  # loading takes a second or two; under emulation, on a busy host, minutes


class EbpfSession:
    """One run of ``ztune-recorder``.

    It sees system calls and io_uring requests in the kernel, at a small cost to the processes recorded.
    """

    def __init__(self, start: Start) -> None:
        self.started_unix_ns = 0
        self._start = start
        self._uring = False
        self._attached = ""
        self._mounts = Mounts()
        self._mounts.read()
        for pid in start.pids:
            self._mounts.read(pid)
        self._child: int | None = None
        self._monotonic = 0
        self._done: dict[str, Any] | None = None
        self._looked_at = 0  # bytes of files.raw
        options = ["--out", os.fspath(start.folder)]
        if os.getpid() not in start.pids:
            options += ["--exclude", str(os.getpid())]
        for pid in start.pids:
            options += ["--pid", str(pid)]
        if start.ring_bytes:
            options += ["--ring-bytes", str(start.ring_bytes)]
        if start.max_bytes:
            options += ["--max-bytes", str(start.max_bytes)]
        if start.sample > 1:
            options += ["--sample", str(start.sample)]
        if start.command:
            options += ["--", *start.command]
        self._helper = HelperProcess(RECORDER, "record", *options)

    def kept(self) -> dict[str, Any]:
        """Return what `recovered` needs beside the recorder's files."""
        return {"uring": self._uring, "attached": self._attached, "mounts": self._mounts.texts}

    @property
    def child(self) -> int | None:
        """The process id of the command, if one was started."""
        return self._child

    @property
    def program(self) -> int | None:
        """The process id of ``ztune-recorder``."""
        return self._helper.process.pid

    def begin(self) -> None:
        """Load the eBPF programs, mark the processes or start the command: wait until it records."""
        deadline = time.monotonic() + START_SECONDS
        while not self._monotonic:
            message = self._listen(deadline - time.monotonic())
            if message is None:
                raise ZtuneError("ztune-recorder did not start in time")
            if message["state"] == "recording":
                self._monotonic, self.started_unix_ns = message["monotonic"], message["unix"]
                self._child = message["child"] or None
                self._uring, self._attached = bool(message["uring"]), str(message["attached"])

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; True once the command or the processes ended."""
        if self._start.sample > 1 and self._done is None:
            self._say_what_may_be_sampled()
        if self._done is None and (message := self._listen(seconds)) is not None:
            self._done = message
        return self._done is not None

    def fill(self) -> None:
        """Record nothing more, as at ``Start.max_bytes``: a command goes on."""
        self._helper.tell("full")

    def pause(self) -> None:
        """End a window: record calls on names alone."""
        self._turn("pause", "paused")

    def resume(self) -> None:
        """Begin the next window."""
        self._turn("resume", "resumed")

    def _turn(self, word: str, answer: str) -> None:
        self._helper.tell(word)
        while self._done is None:
            message = self._listen(None)
            if message is not None and message["state"] == answer:
                return
            self._done = message

    def _say_what_may_be_sampled(self) -> None:
        """Tell the recorder which of the files seen since the last time are no logs by their role.

        It hands them over once a second. Until it knows, it records all of a file.
        """
        with contextlib.suppress(FileNotFoundError), (self._start.folder / "files.raw").open("rb") as file:
            file.seek(self._looked_at)
            end = 0
            for one in file_records(file.read(), self._mounts):
                end = one.end
                if one.of["kind"] != CALL and self._start.may_sample(one.path):
                    self._helper.tell(f"sample {one.of['id']}")
            self._looked_at += end

    def stop(self) -> Harvest:
        """End the recording and enter what was seen into the table."""
        self._helper.hang_up()
        while self._done is None:
            self._done = self._listen(None)
        self._helper.process.wait()
        self._helper.kill()
        self._mounts.read()
        raw = _Raw(self._start.folder, self._mounts, self._uring, self._attached)
        raw.read_files(self._start.table)
        return Harvest(
            parts=raw.parts,
            duration_ns=raw.duration_ns,
            dropped=self._done["dropped"],
            exit_status=os.waitstatus_to_exitcode(self._done["wait"])
            if self._done["why"] == "command"
            else None,
            warnings=raw.warnings(),
            detail=raw.detail(),
            full=bool(self._done["full"]),
            windows=raw.windows,
            tallies=raw.tallies() if self._start.sample > 1 else None,
            waits=True,
        )

    def abort(self) -> None:
        """End the recorder, and the command that it started."""
        if self._child is not None and self._helper.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGTERM)
        self._helper.kill()

    def _listen(self, seconds: float | None) -> dict[str, Any] | None:
        """Return the recorder's next message, or None if none comes in time. Raises what it complains of."""
        heard = self._helper.hear(seconds)
        if heard is None:
            return None
        message = heard[0]
        if message["state"] == "error":
            text = message["message"]
            if message["code"] in ("no-btf", "permission", "kernel"):
                raise MissingError(f"can't record with eBPF: {text}")
            raise InputError(f"can't record: {text}")
        return message


class _Raw:
    """What ``ztune-recorder`` wrote in ``folder``. Raises InputError if it is not that."""

    def __init__(self, folder: Path, mounts: Mounts, uring: bool, attached: str) -> None:
        self._folder = folder
        self._mounts = mounts
        self._uring = uring
        self._attached = attached
        self._frames: list[tuple[int, int, int]] = []  # place, bytes, rows
        self._folders: dict[str, str] = {}
        edges: list[tuple[int, int, int]] = []  # BEGIN or END, and when it was
        for kind, place, size, rows in _frames(folder / "events.raw"):
            if kind == EVENTS:
                self._frames.append((place, size, rows))
            else:
                when = np.fromfile(folder / "events.raw", "u8", 2, offset=place).tolist()
                edges.append((kind, *when))
        if not edges:
            raise InputError(f"{folder / 'events.raw'} has no beginning")
        begins = [edge for edge in edges if edge[0] == BEGIN]
        ends = [monotonic for kind, monotonic, _ in edges if kind == END]
        self._begins = np.array([monotonic for _, monotonic, _ in begins], np.int64)
        if len(ends) < len(begins):  # it was cut: it ends with its last event
            parts = (self._read(*frame) for frame in self._frames)
            last = max((int((rows["t"] + rows["dur"]).max()) for rows in parts), default=0)
            ends.append(max(last, int(self._begins[-1])))
        self._lengths = np.array(ends, np.int64) - self._begins
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])  # of windows, in the trace's time
        self.duration_ns = int(self._lengths.sum())
        self.windows = [
            RecordedWindow(t=t, duration_ns=length, started_unix_ns=unix)
            for t, length, (_, _, unix) in zip(
                self._starts.tolist(), self._lengths.tolist(), begins, strict=True
            )
        ]
        self.parts: Sequence[Part] = [partial(self._part, *frame) for frame in self._frames]

    def tallies(self) -> dict[int, Tally]:
        """Return what was done to each file, by its number."""
        records = np.fromfile(self._folder / "tallies.raw", TALLY)
        return {
            int(one["id"]): Tally(
                reads=int(one["reads"]),
                read_bytes=int(one["read_bytes"]),
                writes=int(one["writes"]),
                write_bytes=int(one["write_bytes"]),
                syncs=int(one["syncs"]),
                in_order=int(one["in_order"]),
                size=int(one["size"]),
                sampled=bool(one["sampled"]),
            )
            for one in records
        }

    def _time(self, monotonic: Any) -> Any:
        """Return the trace's time of CLOCK_MONOTONIC: what is between windows is where the next begins."""
        window = np.maximum(np.searchsorted(self._begins, monotonic, side="right") - 1, 0)
        within = np.clip(monotonic - self._begins[window], 0, self._lengths[window])
        return self._starts[window] + within

    def warnings(self) -> list[Warning_]:
        """Return what it could not see."""
        if self._uring:
            return []
        message = "This kernel does not let io_uring requests be seen; they are missing."
        return [Warning_(code="no-uring", message=message)]

    def detail(self) -> str:
        """Return how it saw the rest."""
        return SAW[self._attached] + (", io_uring" if self._uring else "")

    def _read(self, place: int, size: int, rows: int) -> npt.NDArray[np.void]:
        with (self._folder / "events.raw").open("rb") as file:
            file.seek(place)
            try:
                return from_members(zlib.decompress(file.read(size)), EVENT, rows)
            except (zlib.error, ValueError):
                raise _damaged(Path(file.name)) from None

    def _part(self, place: int, size: int, count: int) -> Rows:
        part = self._read(place, size, count)
        rows = np.empty(len(part), EVENT_DTYPE)
        for name in EVENT_DTYPE.names or ():
            if name != "t":
                rows[name] = part[name]
        t = part["t"].astype(np.int64)
        rows["t"] = self._time(t)
        # A length "to the end" may be given as the greatest number.
        room = np.iinfo(np.int64).max - np.maximum(rows["offset"], 0)
        rows["size"] = np.clip(rows["size"], 0, room)
        if len(self.windows) == 1:
            return rows
        there: Rows = rows[(rows["op"] != Op.CREATE) | self._in_window(t)]
        return there

    def _in_window(self, monotonic: Any) -> Any:
        window = np.searchsorted(self._begins, monotonic, side="right") - 1
        return (window >= 0) & (monotonic - self._begins[window] <= self._lengths[window])

    def read_files(self, table: FileTable) -> None:
        """Enter the files and the calls on names into ``table``."""
        data = (self._folder / "files.raw").read_bytes()
        halves: dict[int, str] = {}
        for record, device, path, user, _ in file_records(data, self._mounts):
            t = int(self._time(record["t"]))
            between = not self._in_window(record["t"])
            if record["kind"] != CALL:
                # What was made between windows was there when the next began.
                size, created = max(record["size"], 0), record["kind"] == CREATED and not between
                table.seen(
                    record["id"], t, path, device, record["ino"], size, links=record["links"], created=created
                )
                continue
            name = self._named(path, user)
            op, tid = record["op"], record["tid"]
            call = Call(t, record["dur"], record["pid"], tid, between)
            if op == Op.TRUNCATE:
                table.truncate(call, name, record["size"])
            elif op == Op.UNLINK:
                table.unlink(call, name)
            elif record["part"] == 0:
                halves[tid] = name
            elif (old := halves.pop(tid, None)) is not None:
                if op == LINK:
                    table.link(call, old, name)
                else:
                    table.rename(call, old, name, exchange=bool(record["size"] & RENAME_EXCHANGE))

    def _named(self, path: str, user: str) -> str:
        """Return the name of a file as files seen by their descriptors have it. ``user``: what a call named;
        ``path``: the folder that it counts from.
        """
        folder, _, name = (user if user.startswith("/") else f"{path}/{user}").rpartition("/")
        if folder not in self._folders:
            real = os.path.realpath(folder or "/")
            # A link leads to what the process sees there, as a name from the root does.
            told = user.startswith("/") or real != os.path.normpath(folder)
            self._folders[folder] = self._mounts.usual(real) if told else real
        return f"{self._folders[folder].rstrip('/')}/{name}"


def recovered(folder: Path, kept: dict[str, Any], table: FileTable) -> Harvest:
    """Return what is in ``folder`` of a recording that was cut; ``kept``: what its session's ``kept`` gave.

    It ends with its last event. Raises KeyError, TypeError, OSError where it is not such a recording.
    """
    mounts = Mounts()
    for index, text in enumerate(kept["mounts"]):
        mounts.add(text, theirs=index > 0)
    # Recordings of before the functions were used say nothing of it.
    raw = _Raw(folder, mounts, bool(kept["uring"]), kept.get("attached", "tracepoints"))
    raw.read_files(table)
    tallies = raw.tallies() if (folder / "tallies.raw").exists() else None
    return Harvest(
        raw.parts,
        raw.duration_ns,
        warnings=raw.warnings(),
        detail=raw.detail(),
        windows=raw.windows,
        tallies=tallies,
        waits=True,
    )


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged, or was recorded by another version of ztune")


def _frames(path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, place, bytes and rows of what the frames of ``path`` hold. Raises InputError."""
    end = path.stat().st_size
    with path.open("rb") as file:
        place = 0
        while place + FRAME.itemsize <= end:
            file.seek(place)
            kind, rows, size, magic = np.frombuffer(file.read(FRAME.itemsize), FRAME)[0].tolist()
            if magic != MAGIC:
                raise _damaged(path)
            place += FRAME.itemsize
            if place + size > end:
                return  # the end of a recording that was cut
            yield kind, place, size, rows
            place += size
