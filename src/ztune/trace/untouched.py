"""Files of a database that nothing touched while it was recorded: they take space all the same."""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ztune.onhost.host import noatime
from ztune.trace.manifest import FileName, Manifest, TraceFile, Warning_
from ztune.trace.roles import RoleRules
from ztune.units import counted

_CODE = "untouched"  # of the warning that some are missing
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


def missing(found: UntouchedFiles) -> list[Warning_]:
    """Return the warning that some of these files are not in the trace, if so."""
    if not found.left_out and not found.cut:
        return []
    left = [counted(found.left_out, "smaller one")] if found.left_out else []
    left += ["what is in folders that could not be looked at in time"] if found.cut else []
    return [
        Warning_(
            code=_CODE,
            message=f"Of the files that nothing touched while recording {len(found.files):,} are in the "
            f"trace, to count their space; missing: {' and '.join(left)}.",
            count=found.left_out,
        )
    ]


def with_more(
    manifest: Manifest, before: UntouchedFiles, rules: RoleRules, paths: Sequence[Path], most: int = MOST
) -> Manifest:
    """Return ``manifest`` with the files too that nothing touched and that ``rules`` know: those of the kinds
    whose roles were told from what others of them do, which no rule knew when the recording ended.

    ``before``: those that are in it; ``paths``: the folders that were asked for.
    """
    known = {name.path for file in manifest.files for name in file.names} | {f.path for f in manifest.files}
    folders = paths or {Path(f.path).parent for f in manifest.files if rules.knows(f.path) and not f.deleted}

    def wanted(path: str) -> bool:
        return path not in known and rules.role(path) is not None

    found = find_untouched(folders, wanted, deep=bool(paths), most=most)
    inodes = {file.ino for file in manifest.files if not file.deleted}
    more = [one for one in found.files if one.ino not in inodes]  # the same one by another name
    files = [
        TraceFile(
            id=id_,
            path=one.path,
            names=[FileName(t=0, path=one.path)],
            dev=one.dev,
            ino=one.ino,
            size_start=one.size,
            size_end=one.size,
        )
        for id_, one in enumerate(more, start=len(manifest.files))
    ]
    both = UntouchedFiles((*before.files, *more), before.left_out + found.left_out, before.cut or found.cut)
    others = [warning for warning in manifest.warnings if warning.code != _CODE]
    return manifest.model_copy(
        update={"files": [*manifest.files, *files], "warnings": [*others, *missing(both)]}
    )
