"""Copies of sparse files: by reference where the file system can (XFS, Btrfs), else of what is in them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_FICLONE = 0x40049409
"""ioctl_ficlone(2)."""
_PIECE = 64 << 20


def copy(source: Path, target: Path) -> None:
    """Copy a regular file to ``target``, which must be missing; holes stay holes. Raises OSError."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    into = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
    try:
        of = os.open(source, os.O_RDONLY | flags)
        try:
            try:
                fcntl.ioctl(into, _FICLONE, of)
            except OSError:
                _copy_data(of, into)
        finally:
            os.close(of)
    finally:
        os.close(into)


def _copy_data(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        while start < end:
            # Not copy_file_range(), which refuses two file systems of different kinds.
            done = os.sendfile(target, source, start, min(_PIECE, end - start))
            if not done:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            start += done
