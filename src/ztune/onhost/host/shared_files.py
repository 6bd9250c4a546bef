"""Files of ours that several processes of ours use: one at a time, and never half of one.

Only in directories that nobody else can write. What the user names is written by ``ztune.files``.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ztune.errors import naming

_PARTIAL = ".partial"
_LOCK = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(
    path: Path, *, shared: bool = False, wait: bool = True, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the lock ``path``, made if missing, within the body. Its holder may remove it.

    ``shared``: with others who share it. ``waiting`` is called if it can't be had at once. Raises
    BlockingIOError then, unless we ``wait``.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        # A store that the user named may lie where somebody else can put a link: it would be emptied.
        with os.fdopen(os.open(path, _LOCK, 0o666), "w") as file:
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                waiting()
                fcntl.flock(file, how)
            # Whoever had it before us may have removed the file after we opened it.
            if _lies_at(file.fileno(), path):
                yield
                return


def _lies_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def lock_of(path: Path) -> Path:
    """Return the lock that says whether ``path`` is in use; it lies beside it."""
    return path.with_name(f"{path.name}.lock")


@contextmanager
def temporary(folder: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Yield a name of its own in ``folder``: the file or folder made there goes at the end of the body.

    What a process that was killed left is removed by ``remove_left``. A lock says whether it lives, and not
    its number: a process of another container or host has none here. Raises OSError.
    """
    path = folder / f"{prefix}{secrets.token_hex(6)}{suffix}"
    with locked(lock_of(path)):
        try:
            yield path
        finally:
            _remove_with_lock(path)


def left(folder: Path, prefix: str = ".", suffix: str = _PARTIAL) -> list[Path]:
    """Return what ``remove_left`` would remove."""
    found = []
    for lock in sorted(_locks(folder, prefix, suffix)):
        # Not made where it was removed just now.
        with contextlib.suppress(OSError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(lock.with_suffix(""))
    return found


def remove_left(folder: Path, prefix: str = ".", suffix: str = _PARTIAL) -> None:
    """Remove what processes that were killed left of ``temporary`` ones; by default of ``replacing``."""
    for lock in _locks(folder, prefix, suffix):
        # Held, or not ours: another user may have put a link there.
        with contextlib.suppress(OSError), locked(lock, wait=False):
            _remove_with_lock(lock.with_suffix(""))


def _locks(folder: Path, prefix: str, suffix: str) -> Iterator[Path]:
    return folder.glob(f"{glob.escape(prefix)}*{glob.escape(suffix)}.lock")


def _remove_with_lock(path: Path) -> None:
    # The lock goes last: what can't be removed now is left for the next.
    with contextlib.suppress(OSError):
        remove(path)
        lock_of(path).unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path``: the file or folder made there in the body becomes ``path`` at its end.

    On an error it is removed, and ``path`` is as it was. What a process that was killed left is removed by
    the next one. Raises OSError.
    """
    remove_left(path.parent, f".{path.name}.")
    with partial(path.parent, path.name) as made:
        with naming(path):
            yield made
        made.rename(path)


def partial(folder: Path, name: str) -> AbstractContextManager[Path]:
    """Return a ``temporary`` in which what is to be ``name`` is made."""
    return temporary(folder, f".{name}.", _PARTIAL)


def remove(path: Path) -> None:
    """Remove a file or folder of ours if it is there; a link goes itself. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
