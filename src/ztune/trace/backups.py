"""Which files of a recording are a backup that a tool makes, though they are named like the database's own.

pg_basebackup, mariadb-backup, pg_receivewal, `cp` and rsync write a database's files anew, under their names.
Such a tool writes each file once, from front to back, and nobody reads it; a server reads its files, writes
pages over, or syncs its log again and again. So whoever writes files that are all of the first kind, and
shares them with nobody who does else, makes a copy.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.databases.database import in_place
from ztune.databases.rules import quoted
from ztune.trace.manifest import TraceFile
from ztune.trace.reader import Trace
from ztune.trace.roles import LEAST_COPY, LOG_SYNCS, Present, known_as, names_in
from ztune.trace.schema import Op

Ints: TypeAlias = "npt.NDArray[np.integer[Any]]"

_IN_ORDER = 0.95  # of a file's bytes; mariadb-backup writes a page again that changed meanwhile


@dataclass(frozen=True)
class Copied:
    """Files of one folder, and of those below it, that a tool writes as a copy."""

    glob: str
    role: str
    files: frozenset[int]
    """Their ids."""
    written: int
    """Bytes."""
    syncs: int


def copies(trace: Trace) -> list[Copied]:
    """Return the copies of databases in ``trace``, as folders; none of a recording of ztune's own.

    Raises InputError if the trace is damaged.
    """
    manifest = trace.manifest
    if manifest.workload is not None:
        return []
    present = Present(names_in(manifest))
    known = {
        file.id: file
        for file in manifest.files
        if (rule := known_as(file.path, present)) is not None and rule[1] is not None
        if rule[0] in in_place() and file.role == rule[1]
    }
    if not any(file.created for file in known.values()):
        return []  # most recordings have none
    used = _Used(manifest.files)
    for part in trace.parts("op", "file", "pid", "offset", "size"):
        used.add(part["op"], part["file"], part["pid"], part["offset"], part["size"])
    groups = [group for group in used.together(known) if used.is_copy(group, known)]
    data = [group for group in groups if any(known[one].role != "wal" for one in group)]
    tops = [os.path.commonpath([_folder(known[one]) for one in group]) for group in data]
    found: dict[tuple[str, str, str], set[int]] = {}
    for group in groups:
        for one in group:
            folder = _folder(known[one])
            top = next((top for top in tops if f"{folder}/".startswith(f"{top}/")), None)
            key = (folder, "*", "archive") if top is None else (top, "**", "backup")
            found.setdefault(key, set()).add(one)
    return [
        Copied(
            f"{quoted(folder)}/{names}",
            role,
            frozenset(ids),
            sum(int(used.written[one]) for one in ids),
            sum(int(used.syncs[one]) for one in ids),
        )
        for (folder, names, role), ids in found.items()
        if sum(int(used.written[one]) for one in ids) >= LEAST_COPY
        # A folder that has others' files too is no copy's alone, and the rule would be of these as well.
        if not any(f"{_folder(known[one])}/".startswith(f"{folder}/") for one in used.others(ids, known))
    ]


def _folder(file: TraceFile) -> str:
    return file.path.removesuffix(" (deleted)").rpartition("/")[0]


class _Used:
    """What was done to each file, and by which processes."""

    def __init__(self, files: Sequence[TraceFile]) -> None:
        self.reads, self.syncs, self.written, self.back = np.zeros((4, len(files)), np.int64)
        """``back``: of the bytes written, those before the end that the file had by then."""
        self._top = np.array([file.size_start for file in files], np.int64)
        self._writers: set[tuple[int, int]] = set()

    def add(self, op: Ints, file: Ints, pid: Ints, offset: Ints, size: Ints) -> None:
        """Count the next calls, which are in order of time."""
        length = len(self.reads)
        for chosen, total in (
            (np.isin(op, (Op.READ, Op.MMAP)), self.reads),
            (np.isin(op, (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)), self.syncs),
        ):
            total += np.bincount(file[chosen & (file >= 0)], minlength=length)
        rows = np.flatnonzero(np.isin(op, (Op.WRITE, Op.COPY)) & (file >= 0))
        rows = rows[np.argsort(file[rows], kind="stable")]
        who, begin, moved = file[rows], np.maximum(offset[rows], 0), size[rows]
        np.add.at(self.written, who, moved)
        self._writers.update(zip(pid[rows].tolist(), who.tolist(), strict=True))
        ends = begin + moved
        bounds = np.flatnonzero(np.diff(who, prepend=-1, append=-1))
        for low, high in itertools.pairwise(bounds):
            one = int(who[low])
            before = np.maximum.accumulate(np.concatenate([self._top[one : one + 1], ends[low:high]]))
            self.back[one] += int(moved[low:high][begin[low:high] < before[:-1]].sum())
            self._top[one] = before[-1]

    def together(self, known: Mapping[int, TraceFile]) -> list[frozenset[int]]:
        """Return the files of ``known`` that were written, those together that the same processes write."""
        group: dict[int, int] = {}  # file or process (below 0) → another of its group

        def first(one: int) -> int:
            while group.setdefault(one, one) != one:
                one = group[one]
            return one

        for pid, file in self._writers:
            if file in known:
                group[first(file)] = first(-1 - pid)
        found: dict[int, set[int]] = {}
        for one in list(group):
            if one >= 0:
                found.setdefault(first(one), set()).add(one)
        return [frozenset(ids) for ids in found.values()]

    def is_copy(self, group: frozenset[int], known: Mapping[int, TraceFile]) -> bool:
        """Say whether all files of ``group`` were written once, or written further."""
        if not any(known[one].created for one in group):
            return False
        # One that a tool receives when recording begins has its zeros by then.
        if sum(known[one].role == "wal" and not known[one].created for one in group) > 1:
            return False
        for one in group:
            if self.reads[one]:
                return False
            # Of a log that a tool receives each file is filled with zeros first.
            if known[one].role == "wal":
                if self.syncs[one] > LOG_SYNCS:
                    return False
            elif self.back[one] > (1 - _IN_ORDER) * self.written[one]:
                return False
        return True

    def others(self, ids: set[int], known: Mapping[int, TraceFile]) -> list[int]:
        """Return the files of ``known`` that were read or written and are not among ``ids``."""
        return [one for one in known if self.reads[one] + self.written[one] and one not in ids]
