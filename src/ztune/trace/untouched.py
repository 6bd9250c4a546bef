"""Files of a database that nothing touched while it was recorded: they take space all the same."""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ztune.onhost.host import noatime

MOST = 1 << 15
"""Files that are taken, the largest first: a trace has each with its names in a file of JSON."""
SECONDS = 10.0
"""To look for them: of millions of files the listing takes longer than the recording."""


@dataclass(frozen=True, order=True)
class UntouchedFile:
    """A file that is there."""

    size: int
    path: str
    dev: int
    ino: int


@dataclass(frozen=True)
class UntouchedFiles:
    """Those that are taken, and whether and how many more there are."""

    files: tuple[UntouchedFile, ...]
    left_out: int = 0
    cut: bool = False
    """Not all folders were looked at: it took too long."""


def find_untouched(
    folders: Iterable[Path],
    wanted: Callable[[str], bool],
    *,
    deep: bool,
    most: int = MOST,
    seconds: float = SECONDS,
) -> UntouchedFiles:
    """Return the regular files with something in them in ``folders``, or with ``deep`` anywhere below these,
    whose real path is ``wanted``: the largest ``most``, of what is found in ``seconds``.

    Symbolic links are not followed, and what can't be read is passed over.
    """
    until, count = time.monotonic() + seconds, 0
    largest: list[UntouchedFile] = []
    seen: set[str] = set()
    todo = [os.path.realpath(folder) for folder in folders]
    cut = False
    while todo and not cut:
        folder = todo.pop()
        if folder in seen:
            continue
        seen.add(folder)
        with contextlib.suppress(OSError), noatime.entries(folder) as entries:
            for entry in entries:
                if cut := time.monotonic() > until:
                    break
                path = f"{folder.rstrip('/')}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    todo += [path] if deep else []
                elif wanted(path) and (found := _found(path, entry)) is not None:
                    count += 1
                    (heapq.heappush if len(largest) < most else heapq.heappushpop)(largest, found)
    files = sorted(largest, key=lambda file: file.path)
    return UntouchedFiles(tuple(files), count - len(files), cut)


def _found(path: str, entry: os.DirEntry[str]) -> UntouchedFile | None:
    try:
        known = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(known.st_mode) or known.st_size == 0:
        return None
    return UntouchedFile(known.st_size, path, known.st_dev, known.st_ino)
