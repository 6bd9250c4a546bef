"""What processes have mapped, from /proc."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ztune.onhost.probes import procfs


@dataclass(frozen=True)
class MappedFile:
    """A file that a process had mapped, and shared, when recording began."""

    pid: int
    path: str
    dev: int
    ino: int
    size: int  # of the file, bytes
    length: int  # of the mapping, bytes
    writable: bool = True


class SharedMapping(NamedTuple):
    """A line of /proc/PID/maps about a shared mapping of a file."""

    begin: int
    length: int
    offset: int
    writable: bool
    dev: int
    ino: int
    path: str


def shared_mappings(pid: int) -> list[SharedMapping]:
    """Return the shared mappings of files that a process has now; none if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][3] == "s" and fields[5].startswith("/"):
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            dev = os.makedev(*(int(part, 16) for part in fields[3].split(":")))
            writable, offset, ino = fields[1][1] == "w", int(fields[2], 16), int(fields[4])
            found.append(SharedMapping(begin, end - begin, offset, writable, dev, ino, fields[5]))
    return found


def mapped_files(pid: int) -> list[MappedFile]:
    """Return the shared mappings of files that a process and its descendants have now."""
    found = []
    for process in procfs.descendants([pid]):
        for of in shared_mappings(process):
            with contextlib.suppress(OSError, ValueError):  # "(deleted)", or memory with a name
                status = Path(of.path).stat()
                if stat.S_ISREG(status.st_mode) and status.st_ino == of.ino:
                    size = status.st_size
                    found.append(MappedFile(process, of.path, of.dev, of.ino, size, of.length, of.writable))
    return found
