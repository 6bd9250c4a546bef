"""Speaks with ``ztune-observer`` (recorder/, C), which adds up file I/O in the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ztune.errors import MissingError, ZtuneError
from ztune.observe.subjects import ObservedSubject, record_sizes
from ztune.trace.recorders import kernel
from ztune.trace.recorders.ebpf import FILE
from ztune.trace.recorders.files import Mounts, is_storage

PROGRAM = kernel.OBSERVER.program.name
START_SECONDS = 300.0  # loading takes a third of a second; under emulation, on a busy host, a minute
ANSWER_SECONDS = 300.0

# recorder/totals.h
SIZES, LATENCIES = 34, 44
PARTS = ("files", "totals", "spent", "pids")  # in the order in which they are sent
READS, WRITES, SYNCS, MAPPED_WRITABLE, MAPPED = range(5)
TOTALS = np.dtype(
    [
        *[("file", "u4"), ("call", "u2"), ("what", "u2"), ("cpu", "u4"), ("pad", "u4")],
        *[("ns", "u8"), ("bytes", "u8"), ("sequential", "u8"), ("aligned", "u8"), ("overwritten", "u8")],
        *[("synced", "u8"), ("direct", "u8"), ("sizes", "u8", SIZES), ("latency", "u8", LATENCIES)],
    ]
)
SPENT = np.dtype(
    [("number", "u4"), ("pad", "u4"), ("ns", "u8"), ("errors", "u8"), ("latency", "u8", LATENCIES)]
)


class Unfit(ZtuneError):
    """This kernel can't be observed with eBPF; the text says why."""


@dataclass(frozen=True)
class SeenFile:
    """A file at first sight."""

    path: str
    device: int
    """st_dev."""
    inode: int
    size: int
    """Bytes, before the call that showed it."""


@dataclass
class KernelReading:
    """What the kernel has added up since observing began."""

    message: dict[str, Any]
    """The observer's own numbers; recorder/observer.c."""
    totals: npt.NDArray[np.void]
    spent: npt.NDArray[np.void]
    pids: tuple[int, ...]
    """Of observed processes that live."""
    files: dict[int, SeenFile] = field(default_factory=dict)
    """By number in ``totals``."""


class ObserverSession:
    """One run of ``ztune-observer``."""

    def __init__(self, subject: ObservedSubject) -> None:
        """Start it and wait until it observes.

        Raises Unfit where the kernel can't do it, MissingError without the program or the rights.
        """
        self.uring = True
        self.timed = True
        """Whether the time that the programs take in the kernel is known."""
        self._files: dict[int, SeenFile] = {}
        self._mounts = Mounts()
        self._mounts.read()
        self._told = set(subject.pids)
        for pid in subject.pids:
            self._mounts.read(pid)  # a process in a container sees others
        if reason := kernel.untyped():
            raise Unfit(reason)
        self._start(kernel.OBSERVER.path(), subject)
        try:
            self._begin(subject)
        except BaseException:
            self.abort()
            raise

    def _start(self, path: Path, subject: ObservedSubject) -> None:
        status_read, status_write = os.pipe()
        control_read, self._control = os.pipe()
        self._status = os.fdopen(status_read, "rb", buffering=0)
        command = [os.fspath(path), "run", "--status", str(status_write), "--control", str(control_read)]
        if subject.by_files:
            command += ["--everyone", *(["--below"] if subject.roots else [])]
        try:
            # A session of its own: Ctrl-C is for us, and we tell it to end. It ends too when we are gone, as
            # the control pipe is closed then.
            self._process = subprocess.Popen(
                command,
                pass_fds=(status_write, control_read),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            self._status.close()
            os.close(self._control)
            raise MissingError(f"can't run {path}: {error.strerror}") from None
        finally:
            os.close(status_write)
            os.close(control_read)
        self._text = b""
        self._asked = 0

    def _begin(self, subject: ObservedSubject) -> None:
        self._tell(
            f"exclude {os.getpid()}",
            *(f"record {device} {size}" for device, size in record_sizes().items()),
            *(f"device {device}" for device in subject.devices),
            *(f"root {root.device} {root.inode}" for root in subject.roots),
            *(f"pid {pid}" for pid in subject.pids),
            "go",
        )
        message, _ = self._answer(time.monotonic() + START_SECONDS)
        self.uring, self.timed = bool(message["uring"]), bool(message["timed"])

    @property
    def helper(self) -> int:
        """The process id of ``ztune-observer``."""
        return self._process.pid

    def follow(self, pids: Iterable[int]) -> None:
        """Observe these processes too, from now on; those known already are no matter."""
        new = [pid for pid in pids if pid not in self._told]
        self._told.update(new)
        for pid in new:
            self._mounts.read(pid)
        self._tell(*(f"pid {pid}" for pid in new))

    def read(self) -> KernelReading:
        """Return what was seen so far."""
        return self._read("read")

    def end(self) -> KernelReading:
        """Stop observing and return what was seen."""
        try:
            reading = self._read("end")
            self._process.wait(ANSWER_SECONDS)
        finally:
            self.abort()
        return reading

    def abort(self) -> None:
        """End the observer, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._status.close()
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def _tell(self, *lines: str) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        # One that ended has said why: it is heard next.
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._control, data) :]

    def _read(self, ask: Literal["read", "end"]) -> KernelReading:
        self._tell(ask)
        self._asked += 1
        while True:
            # An interruption may have left an answer unread: it tells of files as well, once.
            message, parts = self._answer(time.monotonic() + ANSWER_SECONDS)
            self._asked -= 1
            self._mounts.read()
            self._enter(parts["files"])
            if self._asked <= 0:
                break
        return KernelReading(
            message,
            np.frombuffer(parts["totals"], TOTALS),
            np.frombuffer(parts["spent"], SPENT),
            tuple(int(pid) for pid in np.frombuffer(parts["pids"], "u4")),
            self._files,
        )

    def _answer(self, deadline: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the next message and what belongs to it. Raises what it complains of.

        Nothing is taken from the buffer before all is there, so that an interruption does no harm.
        """
        while b"\n" not in self._text:
            self._more(deadline)
        end = self._text.index(b"\n") + 1
        message: dict[str, Any] = json.loads(self._text[:end])
        if message["state"] == "error":
            raise self._complaint(message)
        edges = [end]
        for name in PARTS:
            edges.append(edges[-1] + int(message.get(name, 0)))
        while len(self._text) < edges[-1]:
            self._more(deadline)
        parts = {name: self._text[a:b] for name, a, b in zip(PARTS, edges, edges[1:], strict=False)}
        self._text = self._text[edges[-1] :]
        return message, parts

    def _complaint(self, message: dict[str, Any]) -> ZtuneError:
        if message["code"] == "permission":
            return MissingError(
                "the kernel does not let this user observe: run as root, or with the capabilities CAP_BPF "
                "and CAP_PERFMON (and CAP_SYS_PTRACE for what /proc tells of other users' processes)"
            )
        if message["code"] in ("no-btf", "kernel"):
            return Unfit(str(message["message"]))
        return ZtuneError(f"{PROGRAM}: {message['message']}")

    def _more(self, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self._status], [], [], left)[0]:
            raise ZtuneError(f"{PROGRAM} did not answer in time")
        part = self._status.read(1 << 20)
        if not part:
            raise ZtuneError(f"{PROGRAM} ended unexpectedly (status {self._process.wait()})")
        self._text += part

    def _enter(self, data: bytes) -> None:
        place = 0
        while place + FILE.itemsize <= len(data):
            record = np.frombuffer(data, FILE, 1, place)[0]
            place += FILE.itemsize
            names = data[place : place + int(record["path_bytes"])]
            place += len(names)
            device = os.makedev(int(record["dev"]) >> 20, int(record["dev"]) & 0xFFFFF)
            inside = "/" + "/".join(os.fsdecode(name) for name in reversed(names.split(b"\0")[:-1]))
            path = self._mounts.absolute(device, inside)
            self._files[int(record["id"])] = SeenFile(
                path, device, int(record["ino"]), max(0, int(record["size"]))
            )


def wanted(file: SeenFile) -> bool:
    """Say whether a file holds data, or is memory shared by way of a file name."""
    return is_storage(file.path)
