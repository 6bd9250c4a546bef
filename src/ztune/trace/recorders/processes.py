"""What processes have mapped, from /proc."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ztune.onhost.probes import procfs


@dataclass(frozen=True)
class MappedFile:
    """A file that a process had mapped, shared and writable, when recording began."""

    pid: int
    path: str
    dev: int
    ino: int
    size: int  # of the file, bytes
    length: int  # of the mapping, bytes


def mapped_files(pid: int) -> list[MappedFile]:
    """Return the shared writable mappings of files that a process and its descendants have now."""
    found = []
    for process in procfs.descendants([pid]):
        try:
            lines = Path(f"/proc/{process}/maps").read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            continue
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) < 6 or fields[1][1] != "w" or fields[1][3] != "s" or not fields[5].startswith("/"):
                continue
            try:
                status = Path(fields[5]).stat()
            except (OSError, ValueError):  # "(deleted)", or memory with a name
                continue
            if stat.S_ISREG(status.st_mode) and status.st_ino == int(fields[4]):
                begin, end = (int(part, 16) for part in fields[0].split("-"))
                major, minor = (int(part, 16) for part in fields[3].split(":"))
                dev = os.makedev(major, minor)
                found.append(MappedFile(process, fields[5], dev, status.st_ino, status.st_size, end - begin))
    return found
