"""Roles for files that no rule knows, from what an observation counted of them.

The same as a trace's (``ztune.trace.propose``), where sums tell it. They don't tell whether a file was made
or removed, nor in which order calls were beyond that one went on from the last: where that decides, nothing
is proposed.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ztune.databases.database import in_place
from ztune.databases.rules import quoted
from ztune.observe.model import Group, ObservedTransfers
from ztune.trace.propose import (
    APPENDED,
    IN_PLACE,
    IN_SEQUENCE,
    LEAST_BYTES,
    SMALL,
    about,
    kinds_of,
)
from ztune.trace.roles import LEAST_COPY, LOG_SYNCS, RoleRules, known_as
from ztune.trace.view import size

# Filesystem Hierarchy Standard 3.0: of the system, and no database's.
_SYSTEM = re.compile(
    r"/(?:etc|bin|sbin|lib\w*|boot|dev|proc|sys|run|usr/(?:bin|sbin|lib\w*|include|share)"
    r"|usr/local/(?:bin|lib\w*))/"
)
_SYNC_S = 5.0  # a write that is synced within so long is a synced one, as in a trace
_STRAY = 0.05  # of the calls: as many may be out of order, or reads, and it is a log all the same
_MOST = 4  # proposals in a sentence


@dataclass(frozen=True)
class ObservedProposal:
    """What files of one kind should be, and why, in words."""

    glob: str
    role: str
    why: str
    moved: int

    @property
    def option(self) -> str:
        """What gives them the role."""
        return f"--role {shlex.quote(f'{self.glob}={self.role}')}"


def of_system(path: str) -> bool:
    """Say whether a file is the operating system's, such as /etc/group: no database's."""
    return _SYSTEM.match(path) is not None


def proposals(groups: Iterable[Group], seconds: float | None) -> list[ObservedProposal]:
    """Return roles for the files of an observation of ``seconds`` that have none, the busiest first."""
    rules = RoleRules()
    lone = [
        one
        for one in groups
        if one.kind == "file" and one.role is None and not of_system(one.name) and not rules.knows(one.name)
    ]
    globs, kinds = kinds_of(one.name for one in lone), dict[str, list[Group]]()
    for one in lone:
        kinds.setdefault(globs[one.name], []).append(one)
    out = []
    for glob, files in kinds.items():
        role, why = _by_use(files, seconds)
        if role is not None:
            out.append(ObservedProposal(glob, role, why, sum(map(moved, files))))
    return sorted(out, key=lambda one: -one.moved)


def sentence(found: Sequence[ObservedProposal]) -> str:
    """Return what is proposed, for people; "" for nothing."""
    if not found:
        return ""
    said = "; ".join(f"{one.option} ({one.why})" for one in found[:_MOST])
    more = f"; and {len(found) - _MOST} more kinds of files" if len(found) > _MOST else ""
    return f"By what they did: {said}{more}."


def copies(groups: Iterable[Group]) -> list[ObservedProposal]:
    """Return the folders whose files are named like a database's own and look like a backup of it, the
    largest first: below them nothing was read, nor written but from front to back.
    """
    used: dict[str, list[Group]] = {}
    for one in groups:
        if one.kind != "file" or one.role is None or not moved(one):
            continue
        known = known_as(one.name)
        if known is not None and known[0] in in_place() and known[1] == one.role:
            used.setdefault(one.name.rpartition("/")[0], []).append(one)
    live = {
        f"{above}/"
        for folder, files in used.items()
        if not all(map(_once, files))
        for above in itertools.accumulate(folder.split("/"), "{}/{}".format)
    }
    tops: dict[str, list[Group]] = {}
    for folder, files in used.items():
        above = itertools.accumulate(folder.split("/"), "{}/{}".format)
        top = next((one for one in above if one and f"{one}/" not in live), None)
        if top is not None:
            tops.setdefault(top, []).extend(files)
    out = []
    for top, files in tops.items():
        role = "archive" if all(one.role == "wal" for one in files) else "backup"
        why = f"{size(whole := sum(map(moved, files)))} written from front to back, and not read"
        if whole >= LEAST_COPY:
            out.append(ObservedProposal(f"{quoted(top)}/**", role, why, whole))
    return sorted(out, key=lambda one: -one.moved)


def _once(file: Group) -> bool:
    """Say whether a file was not read, and written as one of a copy is."""
    if file.reads.calls:
        return False
    if file.role == "wal":
        return file.syncs.calls <= LOG_SYNCS and not file.writes.synced
    writes, size = file.writes, file.writes.bytes or 0
    if writes.sequential is None or writes.overwritten is None:
        return False
    return writes.sequential + 1 >= IN_SEQUENCE * writes.calls and writes.overwritten < IN_PLACE * size


def moved(group: Group) -> int:
    """Return the bytes that were read and written."""
    return (group.reads.bytes or 0) + (group.writes.bytes or 0)


def _sum(parts: Iterable[ObservedTransfers], name: str) -> int | None:
    values = [getattr(part, name) for part in parts if part.calls]
    return None if None in values else sum(values)


def _by_use(files: Sequence[Group], seconds: float | None) -> tuple[str | None, str]:
    """Return the role of files by what they do, None where sums don't tell; and that in words."""
    read, written = [f.reads for f in files], [f.writes for f in files]
    reads, writes = sum(p.calls for p in read), sum(p.calls for p in written)
    if sum(map(moved, files)) < LEAST_BYTES:
        return None, "too little to tell"
    reads_on, writes_on = _sum(read, "sequential"), _sum(written, "sequential")
    over = _sum(written, "overwritten")
    if reads_on is None or writes_on is None or over is None:
        return None, "not seen in order"
    if not writes:
        if reads_on >= IN_SEQUENCE * reads:
            return "source", "read from front to back, not written"
        return "data", f"read in pieces of {about((_sum(read, 'bytes') or 0) / reads)}, here and there"
    size = _sum(written, "bytes") or 0
    pieces = about(size / writes)
    begun = len(files)  # first writes of files, which go on from nothing if these are new
    if writes_on + begun < IN_SEQUENCE * writes:
        how = "overwritten in place" if over >= IN_PLACE * size else "written here and there"
        return "data", f"{how}, in pieces of {pieces}"
    if writes_on < IN_SEQUENCE * writes:
        return None, "whether it was new is not known"
    syncs, synced = sum(f.syncs.calls for f in files), _sum(written, "synced") or 0
    often = bool(seconds) and syncs * _SYNC_S >= (seconds or 0.0)
    strays = writes - writes_on - begun
    if (often or 2 * synced >= writes) and syncs + synced > 2 * len(files):
        if over >= IN_PLACE * size and strays > _STRAY * writes:
            return None, "whether it is written here and there is not known"
        if reads - reads_on > _STRAY * writes:
            return None, "whether it is read after it was written is not known"
        return "wal", f"written from front to back in pieces of {pieces}, {syncs + synced:,} syncs"
    if over >= IN_PLACE * size:
        return "data", f"written over from front to back, in pieces of {pieces}"
    if not reads and size < SMALL * writes and writes >= APPENDED * len(files):
        return "wal", f"appended in pieces of {pieces}, not read"
    return None, "whether it was made or removed is not known"
