"""Roles for files that no rule knows, from what the files do. docs/roles.md says what each role means."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ztune.databases.rules import RoleRule, quoted
from ztune.trace.figures import GroupSummary
from ztune.trace.manifest import TraceFile
from ztune.trace.reader import Trace
from ztune.trace.roles import AS_ASKED, Present, known_as, left_out_as_asked, names_in
from ztune.trace.schema import Op
from ztune.units import format_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ztune.trace.order import FileOrder

    Floats = npt.NDArray[np.float64]

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
MANY = 5
"""Files of one kind, from which on one sync for each says that they are sorted runs."""
ONCE = 0.9
"""Of the files of a kind: so many have one sync, as the last ones' may come after the recording."""
PARTLY = 0.1
"""Of the written bytes, or of the syncs: where rules know some files, and kinds that none knows and that look
like a database's have more than this, their roles are told from use too. Below it a log of text or a spool of
an application's is likelier than the database's other half."""
LEFT_OUT = 0.05
"""Of all bytes that were read and written: files of one kind without a role that moved so much are named."""
ALIKE = 8
"""Folders whose names differ in numbers alone, from which on files in them that are named alike are one kind:
shards, tenants or mailboxes, each of which may do too little to tell."""
PROPOSED = "proposed-roles"
"""Code of a trace's warning that roles were told from what the files do."""
DUMPED = 8 << 20
"""Bytes of a new file that is synced once at most: from so many on it is a dump, not a log."""
COPIED = "a copy: written once, from front to back, and not read"
"""What is said of files that are named like a database's own, and are a backup of it."""
_NAMED = 3  # kinds of files that a sentence names


@dataclass(frozen=True)
class RoleProposal:
    """Files whose names differ in numbers alone, of one directory or of many such, and what they do.

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
    otherwise: tuple[str, str] | None = None
    """The well-known layout whose rule says another role than they have, and that role."""

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

    rules, present = left_out_as_asked(trace.manifest), Present(names_in(trace.manifest))
    entries: dict[str, list[TraceFile]] = {}  # several that had a name one after the other
    for file in trace.manifest.files:
        entries.setdefault(file.path, []).append(file)
    kinds: dict[tuple[str, str | None, bool], list[GroupSummary]] = {}
    every = summarise(trace).files
    globs = kinds_of(group.name for group in every)
    in_order = [file for one in every if one.writes.sequential for file in entries[one.name]]
    used = orders(trace, {file.id: file.size_start for file in in_order})
    told = [warning.message for warning in trace.manifest.warnings if warning.code == PROPOSED]
    for group in every:
        left_out = group.role is None and rules.leaves_out(group.name)
        kinds.setdefault((globs[group.name], group.role, left_out), []).append(group)
    found = [
        _proposal(
            glob,
            role,
            left_out,
            groups,
            [file for name in dict.fromkeys(g.name for g in groups) for file in entries[name]],
            used,
            told,
            present,
        )
        for (glob, role, left_out), groups in kinds.items()
    ]
    return sorted(found, key=lambda one: -(one.read + one.written))


def as_rules(found: Sequence[RoleProposal]) -> list[RoleRule]:
    """Return the rules that give files without a role the one proposed."""
    return [RoleRule.parse(one.rule) for one in found if one.role is None and one.proposed is not None]


def rest(trace: Trace, *, asked: bool = False) -> list[RoleProposal]:
    """Return the kinds of files that get a role unasked, though others have one: copies of a database, which
    are named like its own; those that a rule knows by
    now, also where they have another that was told from use; and where they matter (`PARTLY`) those that no
    rule knows and that look like a database's. None in a recording of ztune's own, whose roles are given, and
    where the user left files out, unless ``asked``: what they left out is known then.

    Raises InputError if the trace is damaged.
    """
    manifest = trace.manifest
    if manifest.workload is not None:
        return []
    if not asked and manifest.environment.get(AS_ASKED):
        return []
    return [*_copies(trace), *(_rest(trace) if _may_have_a_rest(trace) else [])]


def _copies(trace: Trace) -> list[RoleProposal]:
    from ztune.trace.backups import copies  # here, as elsewhere: it takes NumPy

    return [
        RoleProposal(
            glob=one.glob,
            files=len(one.files),
            role=None,
            proposed=one.role,
            why=COPIED,
            known_as="",
            read=0,
            written=one.written,
            syncs=one.syncs,
            by_use=False,
        )
        for one in copies(trace)
    ]


def _rest(trace: Trace) -> list[RoleProposal]:
    manifest = trace.manifest
    found = proposals(trace)
    told = [w.message for w in manifest.warnings if w.code == PROPOSED]
    mistaken = [
        replace(one, role=None, proposed=one.otherwise[1], known_as=one.otherwise[0])
        for one in found
        if one.otherwise and any(_told(one.glob, one.role, message) for message in told)
    ]
    ours = [one for one in found if one.role is not None]
    known = [one for one in found if one.role is None and one.proposed and one.known_as]
    known += mistaken
    if not ours and not known:
        return []
    folders = {one.glob.rpartition("/")[0] for one in (*ours, *known)}
    unknown = [one for one in found if one.role is None and one.proposed and not one.known_as]
    written = [one for one in unknown if _looks_like_a_databases(one)]
    folders |= {one.glob.rpartition("/")[0] for one in written}
    every = (*ours, *known, *written)
    if not (
        sum(one.written for one in written) > PARTLY * sum(one.written for one in every)
        or sum(one.syncs for one in written) > PARTLY * sum(one.syncs for one in every)
    ):
        return known
    beside = [one for one in unknown if not one.written and one.glob.rpartition("/")[0] in folders]
    taken = {id(one) for one in (*known, *written, *beside)}
    return [one for one in (*mistaken, *found) if id(one) in taken]


def _told(glob: str, role: str | None, message: str) -> bool:
    """Say whether a trace's warning tells the role of a kind from use, and not as a copy's."""
    said = f"{glob} {role} ("
    return said in message and f"{said}{COPIED}" not in message


def _told_as_copy(glob: str, role: str | None, told: Sequence[str]) -> bool:
    """Say whether a trace's warnings tell that files of a kind are a copy: in a folder above, or theirs."""
    folders = itertools.accumulate(glob.split("/")[:-1], "{}/{}".format)
    names = [f"{folder}/{ending} {role} ({COPIED}" for folder in folders for ending in ("*", "**")]
    return any(name in message for name in names for message in told)


def _may_have_a_rest(trace: Trace) -> bool:
    """Say whether to look closer: most recordings have none, and all calls of large ones take a while."""
    import numpy as np  # here, as elsewhere: the command line's help takes no NumPy

    manifest = trace.manifest
    rules, present = left_out_as_asked(manifest), Present(names_in(manifest))
    told = any(warning.code == PROPOSED for warning in manifest.warnings)
    for file in manifest.files:
        known = known_as(file.path, present)
        if known is not None and known[1] is not None and known[1] != file.role and (told or not file.role):
            return True
    alone = [file.role is None and not rules.leaves_out(file.path) for file in manifest.files]
    lone, role = np.array(alone, bool), np.array([file.role is not None for file in manifest.files], bool)
    if not lone.any() or not role.any():
        return False
    return any(float(done[lone].sum()) > PARTLY * float(done[lone | role].sum()) for done in _written(trace))


def _written(trace: Trace) -> tuple[Floats, Floats]:
    """Return for each file the bytes written, and the syncs."""
    import numpy as np

    length = len(trace.manifest.files)
    written, syncs = np.zeros(length), np.zeros(length)
    for part in trace.parts("op", "file", "size"):
        op, file = part["op"], part["file"]
        calls = op == Op.WRITE
        written += np.bincount(file[calls], weights=part["size"][calls], minlength=length)
        calls = np.isin(op, (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)) & (file >= 0)
        syncs += np.bincount(file[calls], minlength=length)
    return written, syncs


def _looks_like_a_databases(one: RoleProposal) -> bool:
    """Say so of what is written, but not of what may be a log of text, or a copy that somebody else makes."""
    return one.written > 0 and (one.syncs > 0 or one.proposed in ("data", "temp"))


def unknown_kinds(moved: Mapping[str, float], whole: float) -> tuple[str, float]:
    """Return the kinds of files that moved much, as a list in words, and their share of ``whole``.

    ``moved``: the bytes of files that no rule knows, by path; ``whole``: those of all files. "" and 0 where
    no kind moved much.
    """
    kinds: dict[str, float] = {}
    for path, glob in kinds_of(moved).items():
        kinds[glob] = kinds.get(glob, 0.0) + moved[path]
    least = max(LEAST_BYTES, LEFT_OUT * whole)
    found = sorted((glob for glob, n in kinds.items() if n >= least), key=lambda glob: -kinds[glob])
    if not found:
        return "", 0.0
    more = f" and {len(found) - _NAMED} more kinds of files" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more, sum(kinds[glob] for glob in found) / whole


def kinds_of(paths: Iterable[str]) -> dict[str, str]:
    """Return for each of ``paths`` the glob of its kind: the files that are named like it but for numbers, in
    its folder, or in all folders that are named like that one where these are `ALIKE` or more.
    """
    alike: dict[str, dict[str, list[str]]] = {}  # any numbers → its folder's → paths
    for path in dict.fromkeys(paths):
        folder, name = _split(path)
        key = f"{_any_number(folder)}/{_any_number(name)}"
        alike.setdefault(key, {}).setdefault(folder, []).append(path)
    return {
        path: f"{place}/{_any_number(_split(path)[1])}"
        for folders in alike.values()
        for folder, place in _places(list(folders)).items()
        for path in folders[folder]
    }


def _places(folders: Sequence[str]) -> dict[str, str]:
    """Return the glob of each of ``folders``, which differ in numbers alone: one for many."""
    if len(folders) < ALIKE:
        return {folder: quoted(folder) for folder in folders}
    parts = zip(*(folder.split("/") for folder in folders), strict=True)
    # A number that all have, as in /mnt/db7, is none that tells them apart.
    one = "/".join(quoted(part[0]) if len(set(part)) == 1 else _any_number(part[0]) for part in parts)
    return dict.fromkeys(folders, one)


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.removesuffix(" (deleted)").rpartition("/")
    return folder, name


def _any_number(text: str) -> str:
    """Return the glob of what is named like ``text`` but for digits, and what is hexadecimal and long."""
    return re.sub(r"[0-9A-Fa-f]{8,}|[0-9]+", "*", quoted(text))


def _proposal(
    glob: str,
    role: str | None,
    left_out: bool,
    groups: Sequence[GroupSummary],
    files: Sequence[TraceFile],
    used: Mapping[int, FileOrder],
    told: Sequence[str],
    present: Present,
) -> RoleProposal:
    proposed, why = _by_use(groups, files, [used[file.id] for file in files if file.id in used])
    if left_out:
        proposed, why = None, "no file of a database"
    known, otherwise = "", None
    if (rule := known_as(groups[0].name, present)) is not None:
        if rule[1] == role and (role or left_out):
            known = rule[0]
        elif role is None and not left_out:  # since the recording there is a rule
            known, proposed = rule
        elif rule[1] is not None:
            otherwise = (rule[0], rule[1])
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
        by_use=bool(told)
        and not known
        and role is not None
        and (role == proposed or _told_as_copy(glob, role, told)),
        otherwise=otherwise,
    )


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
    # Nobody waits until a file is on the disk that may be lost at a power cut.
    gone = all(file.created and file.deleted for file in files)
    if gone and not syncs and not synced:
        return "temp", "made and removed again"
    # What is written is seen at once through a mapping: so pages are read, and no log is.
    if any(g.operations.get("mmap") for g in groups):
        return "data", f"written in pieces of {about(each)}, and mapped into memory"
    if writes_on >= IN_SEQUENCE:
        if any(one.written_here_and_there for one in used):
            return "data", "written from front to back, and also here and there"
        # A file that is written and then synced once is no log, however few its writes are.
        if synced >= SYNCED and syncs + sum(g.sync_writes for g in groups if not g.syncs) > 2 * len(groups):
            if any(one.then_read_here_and_there for one in used):
                return "data", "written from front to back, then read here and there"
            return "wal", f"written from front to back in pieces of {about(each)}, {syncs:,} syncs"
        if gone and not reads and len(names) < len(groups):
            return "wal", f"written from front to back and synced, removed, and begun anew, {syncs:,} syncs"
        if over >= IN_PLACE:
            return "data", f"written over from front to back, in pieces of {about(each)}"
        if not reads and _runs(groups, files):
            return "data", f"{len(names):,} files, each written once and synced"
        new = all(file.created for file in files) and written >= DUMPED * len(names) and syncs <= len(names)
        if not reads and not new and each < SMALL and writes >= APPENDED * len(groups):
            return "wal", f"appended in pieces of {about(each)}, not read"
        if reads:
            return "data", "written once, from front to back, and read"
        return "backup", "written once, from front to back, not read"
    if over >= IN_PLACE:
        return "data", f"overwritten in place, in pieces of {about(each)}"
    return "data", f"written here and there, in pieces of {about(each)}"


def _runs(groups: Sequence[GroupSummary], files: Sequence[TraceFile]) -> bool:
    """Say whether many are new, synced once, and not written again: sorted runs, which may be read by mapping
    them. A log has a sync for each commit, not for each file.
    """
    written = [g for g in groups if g.writes.count]
    names = {g.name for g in written}
    return (
        len(names) >= MANY
        and all(file.created for file in files if file.path in names)
        and sum(g.syncs == 1 for g in written) >= ONCE * len(written)
    )


def about(size: float) -> str:
    """Return the power of two next below a mean size."""
    return format_size(1 << (int(size).bit_length() - 1)) if size >= 1 else "0"
