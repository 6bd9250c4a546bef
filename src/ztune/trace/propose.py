"""Roles for files that no rule knows, from what the files do. docs/roles.md says what each role means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ztune.databases.rules import RoleRule
from ztune.trace.figures import GroupSummary
from ztune.trace.manifest import TraceFile
from ztune.trace.reader import Trace
from ztune.trace.roles import known_as, left_out_as_asked
from ztune.trace.schema import Op
from ztune.units import format_size

if TYPE_CHECKING:
    from ztune.trace.order import FileOrder

LEAST_BYTES = 64 << 10
"""Moved by files of one kind in all; less may be a lock, a number of a process or a setting."""
IN_SEQUENCE = 0.8
"""Of the calls: from this share on files are taken as written, or read, from front to back."""
IN_PLACE = 0.1
"""Of the written bytes: from this share on files are taken as overwritten."""
SYNCED = 0.5
"""Of the writes: from this share on they are taken as synced as they come, as those of a log are."""
SMALL = 16 << 10
"""Bytes: writes of a log, unless it is synced, are smaller than this on average."""
APPENDED = 5
"""Writes of each file: a log that is not synced has as many, and a small file written at once has fewer."""
LEFT_OUT = 0.05
"""Of all bytes that were read and written: files of one kind without a role that moved so much are named."""
PROPOSED = "proposed-roles"
"""Code of a trace's warning that roles were told from what the files do."""
_NAMED = 3  # kinds of files that a sentence names


@dataclass(frozen=True)
class RoleProposal:
    """Files of one directory whose names differ in numbers alone, and what they do.

    ``role``: what they have; ``proposed``: what they should have, None where they show too little.
    ``known_as``: the well-known layout whose rule says the role, or that they have none; "" where none does.
    ``by_use``: whether they have the role from what they do, as far as the trace says so.
    """

    glob: str
    files: int
    role: str | None
    proposed: str | None
    why: str
    known_as: str
    read: int
    """Bytes; so for ``written``."""
    written: int
    syncs: int
    by_use: bool

    @property
    def rule(self) -> str:
        """The rule that gives the files the proposed role."""
        return f"{self.glob}={self.proposed}"


def proposals(trace: Trace) -> list[RoleProposal]:
    """Return all files of ``trace`` that have events, by kind, those first that moved most bytes.

    A role is proposed for those that have none and that no rule of well-known layouts leaves out. Raises
    InputError if the trace is damaged.
    """
    # Here, as what is known of kinds of files takes neither NumPy nor Polars.
    from ztune.trace.order import orders
    from ztune.trace.summary import summarise

    rules = left_out_as_asked(trace.manifest)
    entries: dict[str, list[TraceFile]] = {}  # several that had a name one after the other
    for file in trace.manifest.files:
        entries.setdefault(file.path, []).append(file)
    kinds: dict[tuple[str, str | None, bool], list[GroupSummary]] = {}
    every = summarise(trace).files
    in_order = [file for one in every if one.writes.sequential for file in entries[one.name]]
    used = orders(trace, {file.id: file.size_start for file in in_order})
    taken = any(warning.code == PROPOSED for warning in trace.manifest.warnings)
    for group in every:
        left_out = group.role is None and rules.knows(group.name)
        kinds.setdefault((kind_of(group.name), group.role, left_out), []).append(group)
    found = [
        _proposal(
            glob,
            role,
            left_out,
            groups,
            [file for name in dict.fromkeys(g.name for g in groups) for file in entries[name]],
            used,
            taken,
        )
        for (glob, role, left_out), groups in kinds.items()
    ]
    return sorted(found, key=lambda one: -(one.read + one.written))


def as_rules(found: Sequence[RoleProposal]) -> list[RoleRule]:
    """Return the rules that give files without a role the one proposed."""
    return [RoleRule.parse(one.rule) for one in found if one.role is None and one.proposed is not None]


def without_role(trace: Trace) -> str:
    """Return, as a sentence, which files without a role moved much, though no rule says that they have none;
    "" where there are none, and where no file has a role. Raises InputError if the trace is damaged.
    """
    import numpy as np  # here, as elsewhere: the command line's help takes no NumPy

    every, rules = trace.manifest.files, left_out_as_asked(trace.manifest)
    lone = [i for i, file in enumerate(every) if file.role is None and not rules.knows(file.path)]
    if not lone or all(file.role is None for file in every):
        return ""
    moved = np.zeros(len(every))
    for part in trace.parts("op", "file", "size"):
        calls = np.isin(part["op"], (Op.READ, Op.WRITE, Op.COPY))
        moved += np.bincount(part["file"][calls], weights=part["size"][calls], minlength=len(every))
    bytes_by_path: dict[str, float] = {}
    for i in lone:
        bytes_by_path[every[i].path] = bytes_by_path.get(every[i].path, 0.0) + float(moved[i])
    named, share = unknown_kinds(bytes_by_path, float(moved.sum()))
    if not named:
        return ""
    return (
        f"Left out: {named}, with {share:.0%} of the recorded bytes. No rule knows "
        f"them, so they have no role, and nothing here is about them; `ztune trace roles` proposes one."
    )


def unknown_kinds(moved: Mapping[str, float], whole: float) -> tuple[str, float]:
    """Return the kinds of files that moved much, as a list in words, and their share of ``whole``.

    ``moved``: the bytes of files that no rule knows, by path; ``whole``: those of all files. "" and 0 where
    no kind moved much.
    """
    kinds: dict[str, float] = {}
    for path, size in moved.items():
        kinds[kind_of(path)] = kinds.get(kind_of(path), 0.0) + size
    least = max(LEAST_BYTES, LEFT_OUT * whole)
    found = sorted((glob for glob, n in kinds.items() if n >= least), key=lambda glob: -kinds[glob])
    if not found:
        return "", 0.0
    more = f" and {len(found) - _NAMED} more kinds of files" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more, sum(kinds[glob] for glob in found) / whole


def kind_of(path: str) -> str:
    """Return the glob of the files that are named like the one at ``path`` but for numbers."""
    folder, _, name = path.removesuffix(" (deleted)").rpartition("/")
    quoted = re.sub(r"([*?\[\]\\])", r"\\\1", f"{folder}/")
    # Digits, and what is hexadecimal and long.
    return quoted + re.sub(r"[0-9A-Fa-f]{8,}|[0-9]+", "*", re.sub(r"([*?\[\]\\])", r"\\\1", name))


def _proposal(
    glob: str,
    role: str | None,
    left_out: bool,
    groups: Sequence[GroupSummary],
    files: Sequence[TraceFile],
    used: Mapping[int, FileOrder],
    taken: bool,
) -> RoleProposal:
    proposed, why = _by_use(groups, files, [used[file.id] for file in files if file.id in used])
    if left_out:
        proposed, why = None, "no file of a database"
    known = _known_as(groups[0].name, role, left_out)
    return RoleProposal(
        glob=glob,
        files=len(groups),
        role=role,
        proposed=proposed if role is None else None,
        why=why,
        known_as=known,
        read=sum(g.reads.bytes for g in groups),
        written=sum(g.writes.bytes for g in groups),
        syncs=sum(g.syncs for g in groups),
        by_use=taken and not known and role is not None and role == proposed,
    )


def _known_as(path: str, role: str | None, left_out: bool) -> str:
    found = known_as(path)
    return found[0] if found is not None and found[1] == role and (role or left_out) else ""


def _by_use(
    groups: Sequence[GroupSummary], files: Sequence[TraceFile], used: Sequence[FileOrder]
) -> tuple[str | None, str]:
    """Return the role of files by what they do, and that in words. ``used``: those written in order."""
    writes, reads = sum(g.writes.count for g in groups), sum(g.reads.count for g in groups)
    written, read = sum(g.writes.bytes for g in groups), sum(g.reads.bytes for g in groups)
    syncs = sum(g.syncs for g in groups)
    if written + read < LEAST_BYTES:
        return None, "too little to tell"
    reads_on = sum(g.reads.count * g.reads.sequential for g in groups) / reads if reads else 0.0
    if not writes:
        if reads_on >= IN_SEQUENCE:
            return "source", "read from front to back, not written"
        return "data", f"read in pieces of {about(read / reads)}, here and there, not written"
    # The first write of a new file goes on from nothing. Of three in order two follow one.
    names = {g.name for g in groups if g.writes.count}
    begun = sum(file.created and file.path in names for file in files)
    writes_on = (begun + sum(g.writes.count * g.writes.sequential for g in groups)) / writes
    over = sum(g.overwritten_bytes for g in groups) / written if written else 0.0
    synced = sum(g.sync_writes for g in groups) / writes
    each = written / writes
    if all(file.created and file.deleted for file in files):
        return "temp", "made and removed again"
    if writes_on >= IN_SEQUENCE:
        if any(one.written_here_and_there for one in used):
            return "data", "written from front to back, and also here and there"
        # A file that is written and then synced once is no log, however few its writes are.
        if synced >= SYNCED and syncs + sum(g.sync_writes for g in groups if not g.syncs) > 2 * len(groups):
            if any(one.then_read_here_and_there for one in used):
                return "data", "written from front to back, then read here and there"
            return "wal", f"written from front to back in pieces of {about(each)}, {syncs:,} syncs"
        if over >= IN_PLACE:
            return "data", f"written over from front to back, in pieces of {about(each)}"
        if not reads and each < SMALL and writes >= APPENDED * len(groups):
            return "wal", f"appended in pieces of {about(each)}, not read"
        if reads:
            return "data", "written once, from front to back, and read"
        return "backup", "written once, from front to back, not read"
    if over >= IN_PLACE:
        return "data", f"overwritten in place, in pieces of {about(each)}"
    return "data", f"written here and there, in pieces of {about(each)}"


def about(size: float) -> str:
    """Return the power of two next below a mean size."""
    return format_size(1 << (int(size).bit_length() - 1)) if size >= 1 else "0"
