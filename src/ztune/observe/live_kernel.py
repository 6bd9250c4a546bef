"""Speaks with ``ztune-observer`` (recorder/, C), which adds up file I/O in the kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ztune.errors import MissingError, ZtuneError
from ztune.observe.subjects import ObservedSubject, record_sizes
from ztune.onhost.host import noatime
from ztune.onhost.host.process import ends_within
from ztune.trace.recorders import kernel
from ztune.trace.recorders.file_records import file_records
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
SUMS = [name for name in TOTALS.names or () if name not in ("file", "call", "what", "cpu", "pad")]


class Unfit(ZtuneError):
    """This kernel can't be observed with eBPF; the text says why."""


@dataclass(frozen=True)
class SeenFile:
    """A file at first sight, and what it was called later."""

    path: str
    """The last that is known."""
    device: int
    """st_dev."""
    inode: int
    size: int
    """Bytes, before the call that showed it."""
    before: tuple[str, ...] = ()
    """Paths that it had earlier."""

    def renamed(self, path: str) -> SeenFile:
        """Return it under the name that it has now."""
        if path == self.path:
            return self
        return replace(self, path=path, before=(*self.before, self.path))


@dataclass
class KernelReading:
    """What the kernel has added up since observing began."""

    message: dict[str, Any]
    """The observer's own numbers; recorder/observer.c."""
    totals: npt.NDArray[np.void]
    """Where calls are counted for a part of the time, what that makes of all of it; ``spent`` too."""
    spent: npt.NDArray[np.void]
    pids: tuple[int, ...]
    """Of observed processes that live."""
    files: dict[int, SeenFile] = field(default_factory=dict)
    """By number in ``totals``."""
    counted_share: float = 1.0
    """In which part of the time calls were counted."""


class ObserverSession:
    """One run of ``ztune-observer``."""

    def __init__(self, subject: ObservedSubject, all_calls: bool = False, sample: int = 1) -> None:
        """Start it and wait until it observes. ``all_calls``, ``sample``: as ``LiveObservation`` has them.

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
        options = ["--everyone", *(["--below"] if subject.roots else [])] if subject.by_files else []
        options += ["--calls"] if all_calls else []
        options += ["--sample", str(sample)] if sample > 1 else []
        self._helper = kernel.HelperProcess(kernel.OBSERVER, "run", *options, stdin=subprocess.DEVNULL)
        self._asked = 0
        try:
            self._begin(subject)
        except BaseException:
            self.abort()
            raise

    def _begin(self, subject: ObservedSubject) -> None:
        self._helper.tell(
            f"exclude {os.getpid()}",
            *(f"record {device} {size}" for device, size in record_sizes().items()),
            *(f"device {device}" for device in subject.devices),
            *(f"root {root.device} {root.inode}" for root in subject.roots),
            *(f"pid {pid}" for pid in subject.pids),
            "go",
        )
        message, _ = self._answer(START_SECONDS)
        self.uring, self.timed = bool(message["uring"]), bool(message["timed"])

    @property
    def helper(self) -> int:
        """The process id of ``ztune-observer``."""
        return self._helper.process.pid

    def follow(self, pids: Iterable[int]) -> None:
        """Observe these processes too, from now on; those known already are no matter."""
        new = [pid for pid in pids if pid not in self._told]
        self._told.update(new)
        for pid in new:
            self._mounts.read(pid)
        self._helper.tell(*(f"pid {pid}" for pid in new))

    def read(self) -> KernelReading:
        """Return what was seen so far."""
        return self._read("read")

    def end(self) -> KernelReading:
        """Stop observing and return what was seen."""
        try:
            reading = self._read("end")
            self._files.update(renamed_since(self._files))
            ends_within(self._helper.process, ANSWER_SECONDS)
        finally:
            self.abort()
        return reading

    def abort(self) -> None:
        """End the observer, whatever it does."""
        self._helper.kill()

    def _read(self, ask: Literal["read", "end"]) -> KernelReading:
        self._helper.tell(ask)
        self._asked += 1
        while True:
            # An interruption may have left an answer unread: it tells of files as well, once.
            message, parts = self._answer(ANSWER_SECONDS)
            self._asked -= 1
            self._mounts.read()
            for record, device, path, _user, _end in file_records(parts["files"], self._mounts):
                number = record["id"]
                # Told of again, it has another name.
                seen = SeenFile(path, device, record["ino"], max(0, record["size"]))
                known = self._files.get(number)
                self._files[number] = seen if known is None else known.renamed(path)
            if self._asked <= 0:
                break
        share = min(1.0, max(1, message["watched_ns"]) / max(1, message["window_ns"]))
        return KernelReading(
            message,
            _times(np.frombuffer(parts["totals"], TOTALS), SUMS, 1 / share),
            _times(np.frombuffer(parts["spent"], SPENT), ("ns", "errors", "latency"), 1 / share),
            tuple(int(pid) for pid in np.frombuffer(parts["pids"], "u4")),
            self._files,
            share,
        )

    def _answer(self, seconds: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the next message and what belongs to it. Raises what it complains of."""
        heard = self._helper.hear(seconds, PARTS)
        if heard is None:
            raise ZtuneError(f"{PROGRAM} did not answer in time")
        if heard[0]["state"] == "error":
            raise self._complaint(heard[0])
        return heard

    def _complaint(self, message: dict[str, Any]) -> ZtuneError:
        if message["code"] == "permission":
            return MissingError(
                "the kernel does not let this user observe: run as root, or with the capabilities CAP_BPF "
                "and CAP_PERFMON (and CAP_SYS_PTRACE for what /proc tells of other users' processes)"
            )
        if message["code"] in ("no-btf", "kernel"):
            return Unfit(str(message["message"]))
        return ZtuneError(f"{PROGRAM}: {message['message']}")


def _times(rows: npt.NDArray[np.void], names: Iterable[str], times: float) -> npt.NDArray[np.void]:
    """Return the rows with the sums called ``names`` so many times as large."""
    if times == 1.0:
        return rows
    found = rows.copy()
    for name in names:
        found[name] = np.rint(rows[name] * times).astype(np.uint64)
    return found


def renamed_since(files: Mapping[int, SeenFile]) -> dict[int, SeenFile]:
    """Return those of ``files``, by number, that are called otherwise now, in the same folder.

    The kernel tells of another name at a file's next call; there may have been none. Of a file that is gone
    its inode may be another's, so one whose name is known to be of another file is left alone.
    """
    latest: dict[tuple[int, int], int] = {}
    for number, file in files.items():  # later ones have larger numbers
        key = file.device, file.inode
        latest[key] = max(number, latest.get(key, 0))
    taken = {file.path for file in files.values()}
    folders: dict[str, dict[int, int]] = {}
    for number in latest.values():
        file = files[number]
        if file.path.startswith("/") and is_storage(file.path) and not _leads_to(file.path, file.inode):
            folders.setdefault(file.path.rpartition("/")[0] + "/", {})[file.inode] = number
    found = {}
    for folder, wanted_there in folders.items():
        with suppress(OSError), noatime.entries(folder) as entries:
            for entry in entries:
                lost = wanted_there.get(entry.inode())
                path = folder + entry.name
                if lost is not None and path not in taken and entry.is_file(follow_symlinks=False):
                    found[lost] = files[lost].renamed(path)
    return found


def _leads_to(path: str, inode: int) -> bool:
    try:
        return os.lstat(path).st_ino == inode
    except OSError:
        return False


def wanted(file: SeenFile) -> bool:
    """Say whether a file holds data, or is memory shared by way of a file name."""
    return is_storage(file.path)
