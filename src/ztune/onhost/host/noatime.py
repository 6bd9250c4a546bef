"""Reads files and folders without changing their access times.

To read is to write where ``atime`` is on: the access time of what is read changes, and with it the dataset.
The kernel leaves it as it is for the owner and root (open(2), O_NOATIME); others read as any program does.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_file(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open for reading, and return the descriptor. Raises OSError.

    ``flags``: further ones of open(2), such as O_NOFOLLOW. A FIFO or device does not make it wait.
    """
    wanted = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags
    try:
        return os.open(path, wanted | os.O_NOATIME)
    except PermissionError:
        return os.open(path, wanted)


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open a regular file for reading, and return the descriptor; others may have named or put it there.

    ``flags``: with O_NOFOLLOW a link is no regular file.

    Raises:
        OSError: it can't be opened, is a device, FIFO or directory, or one of the kernel's own files; or a
            link to it is of somebody to whom it does not belong.
    """
    # Not opened yet: to open a device, such as a watchdog, may do something.
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    try:
        found, link, own = os.fstat(seen), os.lstat(path), f"/proc/self/fd/{seen}"
        if not stat.S_ISREG(found.st_mode) or str(Path(own).readlink()).startswith(("/proc/", "/sys/")):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid(), found.st_uid):
            raise OSError(errno.ELOOP, "it is a link to another user's file", os.fspath(path))
        return open_file(own)
    finally:
        os.close(seen)


def beginning(path: str | os.PathLike[str], size: int) -> bytes:
    """Return the first ``size`` bytes of a regular file, fewer if it is shorter.

    Raises:
        OSError: it can't be opened, as ``open_regular`` does, or read.
    """
    fd = open_regular(path)
    try:
        parts = []
        while size > 0 and (part := os.read(fd, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def part(path: str | os.PathLike[str], offset: int, size: int, flags: int = os.O_NOFOLLOW) -> bytes:
    """Return ``size`` bytes of a file from ``offset``, fewer at its end; none where it can't be read.

    What is no regular file any more is not opened, nor with the default ``flags`` what has become a symbolic
    link; 0: as ``open_regular`` has it.
    """
    try:
        fd = open_regular(path, flags)
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
