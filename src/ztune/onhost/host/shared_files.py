"""Files of ours that several processes of ours use: one at a time, and never half of one.

Only in directories that nobody else can write. What the user names is written by ``ztune.files``.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ztune.errors import naming


@contextmanager
def locked(
    path: Path, *, shared: bool = False, wait: bool = True, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the lock ``path``, made if missing, within the body.

    ``shared``: with others who share it. ``waiting`` is called once if it can't be had at once. Raises
    BlockingIOError then, unless we ``wait``.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with path.open("w") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            waiting()
            fcntl.flock(file, how)
        yield


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path``: the file or folder made there in the body becomes ``path`` at its end.

    On an error it is removed, and ``path`` is as it was. What a process that was killed left is removed by
    the next one. Raises OSError.
    """
    remove_left(path.parent, path.name)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    remove(partial)
    try:
        with naming(path):
            yield partial
        partial.rename(path)
    finally:
        remove(partial)


def remove_left(folder: Path, name: str | None = None) -> None:
    """Remove what processes that were killed left of files for ``replacing``, default of any name."""
    for left in folder.glob(f".{'*' if name is None else glob.escape(name)}.*.partial"):
        if not Path("/proc", left.name.split(".")[-2]).exists():
            remove(left)


def remove(path: Path) -> None:
    """Remove a file or folder of ours if it is there; a link goes itself. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
