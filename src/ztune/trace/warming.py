"""What a database read and wrote before its recording began: so much of it as a cache may hold by then.

A server that has just started has read its catalogue and, if it was warmed, the pages of its load. On real
ZFS the ARC has these blocks when the job begins. A replay that began with an empty ARC would read them again
from the disks, and count that as the job's.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from ztune import temporary
from ztune.temporary import Temporary
from ztune.trace.recorders import choose
from ztune.trace.recorders.files import FileTable
from ztune.trace.recorders.recorder import RecorderSession, Start
from ztune.trace.schema import Flag, Op
from ztune.trace.spool import Rows
from ztune.trace.writer import EVENT_DTYPE


@dataclass(frozen=True)
class Warmth:
    """What was read and written, in order of time."""

    rows: Rows
    """Events as ``writer.EVENT_DTYPE``; ``file`` is an index of ``inodes``."""
    inodes: tuple[tuple[int, int], ...]
    """Device and inode of each file."""
    paths: tuple[str, ...]
    """The last name of each."""

    def still_there(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield path, device, inode and size of the files that are still there under that name."""
        for path, (dev, ino) in zip(self.paths, self.inodes, strict=True):
            with contextlib.suppress(OSError, ValueError):
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode) and found.st_ino == ino:
                    yield path, dev, ino, found.st_size

    def events(self, ids: Mapping[tuple[int, int], int]) -> Rows:
        """Return warming events for the files that ``ids`` has, inode → file id; the others are left out."""
        to_id = np.array([ids.get(inode, -1) for inode in self.inodes], np.int32)
        known = to_id[self.rows["file"]] >= 0 if len(to_id) else np.zeros(len(self.rows), bool)
        chosen = self.rows[known]
        events = np.zeros(len(chosen), EVENT_DTYPE)
        events["op"], events["file2"] = Op.WARM, -1
        events["file"] = to_id[chosen["file"]]
        events["offset"], events["size"] = chosen["offset"], chosen["size"]
        # What was written is taken to have gone through the cache, as parts of records do.
        events["flags"] = np.where(chosen["op"] == Op.READ, chosen["flags"] & int(Flag.DIRECT), 0)
        return events


class Warming:
    """Watches what this process and its descendants read and write, while the block runs.

    ::

        with Warming("auto") as warming:
            start_the_server()
        Recording(out, pids=…, warmth=warming.seen)

    ``seen`` is None if the recorder can't do that: strace would have to trace this very process.
    Raises InputError or MissingError as ``Recording`` does.
    """

    def __init__(self, recorder: str = "auto") -> None:
        self.seen: Warmth | None = None
        self._recorder = choose(recorder)[0]
        self._session: RecorderSession | None = None
        self._table = FileTable()

    def __enter__(self) -> Warming:
        if self._recorder.name == "ebpf":
            self._folder = Temporary.make(temporary.WARMING, temporary.disk())
            try:
                self._session = self._recorder.start(
                    Start(folder=self._folder.path, table=self._table, pids=[os.getpid()])
                )
            except BaseException:
                self._folder.remove()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        try:
            if kind is None:
                self.seen = self._harvest(self._session)
        finally:
            self._session.abort()
            self._folder.remove()

    def _harvest(self, session: RecorderSession) -> Warmth:
        found = []
        for rows in session.stop().rows():
            moved = ((rows["op"] == Op.READ) | (rows["op"] == Op.WRITE)) & (rows["size"] > 0)
            found.append(rows[moved & (rows["offset"] >= 0)])
        rows = np.concatenate(found) if found else np.zeros(0, EVENT_DTYPE)
        rows = rows[np.argsort(rows["t"], kind="stable")]
        numbers, index = np.unique(rows["file"], return_inverse=True)
        rows["file"] = index
        entries = [self._table.numbered(int(number)) for number in numbers]
        return Warmth(
            rows,
            tuple((0, 0) if entry is None else (entry.dev, entry.ino) for entry in entries),
            tuple("" if entry is None else entry.path for entry in entries),
        )
