"""Reads files and folders without changing their access times.

To read is to write where ``atime`` is on: the access time of what is read changes, and with it the dataset.
The kernel leaves it as it is for the owner and root (open(2), O_NOATIME); others read as any program does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def open_file(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open for reading, and return the descriptor. Raises OSError.

    ``flags``: further ones of open(2), such as O_NOFOLLOW. A FIFO or device does not make it wait.
    """
    wanted = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags
    try:
        return os.open(path, wanted | os.O_NOATIME)
    except PermissionError:
        return os.open(path, wanted)


def beginning(path: str | os.PathLike[str], size: int) -> bytes:
    """Return the first ``size`` bytes of a file, fewer if it is shorter. Raises OSError."""
    fd = open_file(path)
    try:
        parts = []
        while size > 0 and (part := os.read(fd, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def part(path: str | os.PathLike[str], offset: int, size: int) -> bytes:
    """Return ``size`` bytes of a file from ``offset``, fewer at its end; none where it can't be read.

    What has become a symbolic link is not read.
    """
    try:
        fd = open_file(path, os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, offset)
    except OSError:
        return b""
    finally:
        os.close(fd)


@contextmanager
def entries(folder: str | os.PathLike[str]) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Give what is in a folder, with names for paths. Raises OSError.

    Entries can be asked (``stat``, ``is_dir``) within the ``with`` statement only.
    """
    fd = open_file(folder, os.O_DIRECTORY)
    try:
        with os.scandir(fd) as found:
            yield found
    finally:
        os.close(fd)


def names(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names in a folder, in order; none where it can't be read."""
    try:
        with entries(folder) as found:
            return sorted(entry.name for entry in found)
    except OSError:
        return []
