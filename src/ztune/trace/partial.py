"""The folder of a trace that is being written: who writes it holds its lock."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from ztune.errors import InputError
from ztune.trace.manifest import PARTIAL


def partial_of(path: Path) -> Path:
    """Return the folder in which the trace ``path`` is written."""
    return path.with_name(path.name + PARTIAL)


def locked(partial: Path) -> int | None:
    """Return a descriptor of ``partial`` with a lock that says it is being written, and ends with this
    process; None on a file system that has no locks. Raises InputError where another process has it.
    """
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(f"{partial} is being recorded just now") from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def unlock(lock: int | None) -> None:
    """Give back what ``locked`` returned."""
    if lock is not None:
        os.close(lock)


def discard(folder: Path) -> None:
    """Remove what a recording left when it was cut: the partial trace, or the trace recovered of it.

    Raises InputError if it is being recorded just now, or can't be removed.
    """
    try:
        lock = locked(folder)
        try:
            shutil.rmtree(folder)
        finally:
            unlock(lock)
    except OSError as error:
        raise InputError(f"{folder} can't be removed: {error.strerror}") from None
