"""The eBPF recorder: runs ``ztune-recorder`` (recorder/, C) and reads what it wrote."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.trace.manifest import Warning_
from ztune.trace.recorders.files import Call, FileTable, Mounts
from ztune.trace.recorders.kernel import RECORDER
from ztune.trace.recorders.recorder import Harvest, Rows, Start
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE

# struct zt_event and the header of struct zt_file in recorder/records.h.
EVENT = np.dtype(
    [
        *[("t", "u8"), ("dur", "u8"), ("offset", "i8"), ("size", "i8")],
        *[("file", "u4"), ("file2", "u4"), ("pid", "u4"), ("tid", "u4")],
        *[("flags", "u2"), ("op", "u1"), ("via", "u1"), ("pad", "u4")],
    ]
)
FILE = np.dtype(
    [
        *[("t", "u8"), ("dur", "u8"), ("ino", "u8"), ("size", "i8")],
        *[("id", "u4"), ("dev", "u4"), ("gen", "u4"), ("links", "u4"), ("pid", "u4"), ("tid", "u4")],
        *[("kind", "u1"), ("op", "u1"), ("part", "u1"), ("truncated", "u1")],
        *[("path_bytes", "u4"), ("user_bytes", "u4"), ("pad", "u4")],
    ]
)
SEEN, CREATED, CALL = 1, 2, 3  # enum zt_file_kind
LINK = 101  # ZT_LINK
RENAME_EXCHANGE = 2  # linux/fs.h
CHUNK = 1 << 20  # events converted at a time
START_SECONDS = 60.0  # loading takes a quarter of a second; a busy host more


class EbpfRecorder:
    """Sees system calls and io_uring requests in the kernel, at a small cost to the processes recorded."""

    name = "ebpf"

    def unavailable(self) -> str | None:
        """Return why eBPF recording can't work here, or None."""
        return RECORDER.problem()

    def start(self, start: Start) -> EbpfSession:
        """Load the eBPF programs, mark the processes or start the command, and return once recording."""
        session = EbpfSession(RECORDER.path(), start)
        try:
            session.begin()
        except BaseException:
            session.abort()
            raise
        return session


class EbpfSession:
    """One run of ``ztune-recorder``."""

    def __init__(self, path: Path, start: Start) -> None:
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
        status_read, status_write = os.pipe()
        control_read, self._control = os.pipe()
        command = [os.fspath(path), "record", "--out", os.fspath(start.folder)]
        command += [
            "--status",
            str(status_write),
            "--control",
            str(control_read),
        ]
        if os.getpid() not in start.pids:
            command += ["--exclude", str(os.getpid())]
        for pid in start.pids:
            command += ["--pid", str(pid)]
        if start.ring_bytes:
            command += ["--ring-bytes", str(start.ring_bytes)]
        if start.command:
            command += ["--", *start.command]
        self._status = os.fdopen(status_read, "rb", buffering=0)
        self._text = b""
        try:
            self._process = subprocess.Popen(
                command, pass_fds=(status_write, control_read), start_new_session=True
            )
        except OSError as error:
            self._close()
            raise MissingError(f"can't run {path}: {error.strerror}") from None
        finally:
            os.close(status_write)
            os.close(control_read)

    @property
    def child(self) -> int | None:
        """The process id of the command, if one was started."""
        return self._child

    def begin(self) -> None:
        """Wait until the recorder says that it records."""
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
        if self._control >= 0:
            os.close(self._control)
            self._control = -1
        while self._done is None:
            self._done = self._listen(None)
        self._process.wait()
        self._close()
        self._mounts.read()
        self._read_files(self._start.table)
        warnings = []
        if not self._uring:
            warnings.append(
                Warning_(
                    code="no-uring",
                    message="This kernel does not let io_uring requests be seen; they are missing.",
                )
            )
        return Harvest(
            rows=self._rows,
            duration_ns=max(0, self._done["ended"] - self._monotonic),
            dropped=self._done["dropped"],
            exit_status=os.waitstatus_to_exitcode(self._done["wait"])
            if self._done["why"] == "command"
            else None,
            warnings=warnings,
            detail="tracepoints sys_enter, sys_exit" + (", io_uring" if self._uring else ""),
        )

    def abort(self) -> None:
        """End the recorder, and the command that it started."""
        if self._process.poll() is None:
            if self._child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._child, signal.SIGTERM)
            self._process.kill()  # it ignores the gentler ones
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self._status.close()
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def _listen(self, seconds: float | None) -> dict[str, Any] | None:
        """Return the recorder's next message, or None if none comes in time. Raises what it complains of."""
        deadline = None if seconds is None else time.monotonic() + max(0.0, seconds)
        while b"\n" not in self._text:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._status], [], [], left)[0]:
                return None
            part = self._status.read(65536)
            if not part:
                raise ZtuneError(f"ztune-recorder ended unexpectedly (status {self._process.wait()})")
            self._text += part
        line, self._text = self._text.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        if message["state"] == "error":
            text = message["message"]
            if message["code"] in ("no-btf", "permission", "kernel"):
                raise MissingError(f"can't record with eBPF: {text}")
            raise InputError(f"can't record: {text}")
        return message

    def _rows(self) -> Iterator[Rows]:
        path = self._start.folder / "events.raw"
        if not path.stat().st_size:
            return
        raw = np.memmap(path, EVENT, "r")
        for begin in range(0, len(raw), CHUNK):
            part = raw[begin : begin + CHUNK]
            rows = np.empty(len(part), EVENT_DTYPE)
            for name in EVENT_DTYPE.names or ():
                if name != "t":
                    rows[name] = part[name]
            rows["t"] = np.maximum(part["t"].astype(np.int64) - self._monotonic, 0)
            # A length "to the end" may be given as the greatest number.
            room = np.iinfo(np.int64).max - np.maximum(rows["offset"], 0)
            rows["size"] = np.clip(rows["size"], 0, room)
            yield rows

    def _read_files(self, table: FileTable) -> None:
        data = (self._start.folder / "files.raw").read_bytes()
        place = 0
        halves: dict[int, str] = {}
        while place + FILE.itemsize <= len(data):
            record = np.frombuffer(data, FILE, 1, place)[0]
            place += FILE.itemsize
            names = data[place : place + int(record["path_bytes"])]
            place += len(names)
            user = data[place : place + int(record["user_bytes"])]
            place += len(user)
            t = max(0, int(record["t"]) - self._monotonic)
            dev = os.makedev(int(record["dev"]) >> 20, int(record["dev"]) & 0xFFFFF)
            inside = "/" + "/".join(os.fsdecode(name) for name in reversed(names.split(b"\0")[:-1]))
            path = self._mounts.absolute(dev, inside) if dev else ""
            kind = int(record["kind"])
            if kind != CALL:
                size, ino, links = int(record["size"]), int(record["ino"]), int(record["links"])
                table.seen(
                    int(record["id"]), t, path, dev, ino, max(size, 0), links=links, created=kind == CREATED
                )
                continue
            name = os.fsdecode(user.rstrip(b"\0"))
            name = name if name.startswith("/") else f"{path}/{name}"
            call = Call(t, int(record["dur"]), int(record["pid"]), int(record["tid"]))
            op, tid = int(record["op"]), int(record["tid"])
            if op == Op.TRUNCATE:
                table.truncate(call, name, int(record["size"]))
            elif op == Op.UNLINK:
                table.unlink(call, name)
            elif int(record["part"]) == 0:
                halves[tid] = name
            elif (old := halves.pop(tid, None)) is not None:
                if op == LINK:
                    table.link(call, old, name)
                else:
                    table.rename(call, old, name, exchange=bool(int(record["size"]) & RENAME_EXCHANGE))
