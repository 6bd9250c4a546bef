"""The eBPF recorder: runs ``ztune-recorder`` (recorder/, C) and reads what it wrote."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.trace.manifest import Warning_
from ztune.trace.recorders.files import Call, FileTable, Mounts
from ztune.trace.recorders.kernel import RECORDER, HelperProcess, file_records
from ztune.trace.recorders.recorder import Harvest, Rows, Start
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE

# struct zt_event in recorder/records.h.
EVENT = np.dtype(
    [
        *[("t", "u8"), ("dur", "u8"), ("offset", "i8"), ("size", "i8")],
        *[("file", "u4"), ("file2", "u4"), ("pid", "u4"), ("tid", "u4")],
        *[("flags", "u2"), ("op", "u1"), ("via", "u1"), ("pad", "u4")],
    ]
)
CREATED, CALL = 2, 3  # of enum zt_file_kind
LINK = 101  # ZT_LINK
RENAME_EXCHANGE = 2  # linux/fs.h
CHUNK = 1 << 17  # events converted at a time
START_SECONDS = 60.0  # loading takes a quarter of a second; a busy host more


class EbpfSession:
    """One run of ``ztune-recorder``.

    It sees system calls and io_uring requests in the kernel, at a small cost to the processes recorded.
    """

    def __init__(self, start: Start) -> None:
        self.started_unix_ns = 0
        self._start = start
        self._uring = False
        self._mounts = Mounts()
        self._mounts.read()
        for pid in start.pids:
            self._mounts.read(pid)
        self._child: int | None = None
        self._monotonic = 0
        self._done: dict[str, Any] | None = None
        options = ["--out", os.fspath(start.folder)]
        if os.getpid() not in start.pids:
            options += ["--exclude", str(os.getpid())]
        for pid in start.pids:
            options += ["--pid", str(pid)]
        if start.ring_bytes:
            options += ["--ring-bytes", str(start.ring_bytes)]
        if start.command:
            options += ["--", *start.command]
        self._helper = HelperProcess(RECORDER, "record", *options)

    def kept(self) -> dict[str, Any]:
        """Return what `recovered` needs beside the recorder's files."""
        return {"monotonic": self._monotonic, "uring": self._uring, "mounts": self._mounts.texts}

    @property
    def child(self) -> int | None:
        """The process id of the command, if one was started."""
        return self._child

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
                self._uring = bool(message["uring"])

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; True once the command or the processes ended."""
        if self._done is None and (message := self._listen(seconds)) is not None:
            self._done = message
        return self._done is not None

    def stop(self) -> Harvest:
        """End the recording and enter what was seen into the table."""
        self._helper.hang_up()
        while self._done is None:
            self._done = self._listen(None)
        self._helper.process.wait()
        self._helper.kill()
        self._mounts.read()
        raw = _Raw(self._start.folder, self._monotonic, self._mounts, self._uring)
        raw.read_files(self._start.table)
        return Harvest(
            rows=raw.rows,
            duration_ns=max(0, self._done["ended"] - self._monotonic),
            dropped=self._done["dropped"],
            exit_status=os.waitstatus_to_exitcode(self._done["wait"])
            if self._done["why"] == "command"
            else None,
            warnings=raw.warnings(),
            detail=raw.detail(),
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
    """What ``ztune-recorder`` wrote in ``folder``, from ``monotonic`` on (ns of CLOCK_MONOTONIC)."""

    def __init__(self, folder: Path, monotonic: int, mounts: Mounts, uring: bool) -> None:
        self._folder = folder
        self._monotonic = monotonic
        self._mounts = mounts
        self._uring = uring

    def warnings(self) -> list[Warning_]:
        """Return what it could not see."""
        if self._uring:
            return []
        message = "This kernel does not let io_uring requests be seen; they are missing."
        return [Warning_(code="no-uring", message=message)]

    def detail(self) -> str:
        """Return how it saw the rest."""
        return "tracepoints sys_enter, sys_exit" + (", io_uring" if self._uring else "")

    def rows(self) -> Iterator[Rows]:
        """Yield the events, in the order in which they ended."""
        path = self._folder / "events.raw"
        if not path.stat().st_size:
            return
        for begin in range(0, path.stat().st_size // EVENT.itemsize, CHUNK):
            # Not mapped: all of it would count as our memory.
            part = np.fromfile(path, EVENT, CHUNK, offset=begin * EVENT.itemsize)
            rows = np.empty(len(part), EVENT_DTYPE)
            for name in EVENT_DTYPE.names or ():
                if name != "t":
                    rows[name] = part[name]
            rows["t"] = np.maximum(part["t"].astype(np.int64) - self._monotonic, 0)
            # A length "to the end" may be given as the greatest number.
            room = np.iinfo(np.int64).max - np.maximum(rows["offset"], 0)
            rows["size"] = np.clip(rows["size"], 0, room)
            yield rows

    def read_files(self, table: FileTable) -> None:
        """Enter the files and the calls on names into ``table``."""
        data = (self._folder / "files.raw").read_bytes()
        halves: dict[int, str] = {}
        for record, device, path, user in file_records(data, self._mounts):
            t = max(0, record["t"] - self._monotonic)
            if record["kind"] != CALL:
                size, created = max(record["size"], 0), record["kind"] == CREATED
                table.seen(
                    record["id"], t, path, device, record["ino"], size, links=record["links"], created=created
                )
                continue
            name = user if user.startswith("/") else f"{path}/{user}"
            op, tid = record["op"], record["tid"]
            call = Call(t, record["dur"], record["pid"], tid)
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


def recovered(folder: Path, kept: dict[str, Any], table: FileTable) -> Harvest:
    """Return what is in ``folder`` of a recording that was cut; ``kept``: what its session's ``kept`` gave.

    It ends with its last event. Raises KeyError, TypeError, OSError where it is not such a recording.
    """
    mounts = Mounts()
    for text in kept["mounts"]:
        mounts.add(text)
    raw = _Raw(folder, int(kept["monotonic"]), mounts, bool(kept["uring"]))
    raw.read_files(table)
    ended = (int((rows["t"] + rows["dur"]).max()) for rows in raw.rows() if len(rows))
    return Harvest(raw.rows, max(ended, default=0), warnings=raw.warnings(), detail=raw.detail())
