"""Other roles for the files of a trace, without recording again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ztune import files, paths
from ztune.databases.rules import RoleRule
from ztune.errors import InputError, unwritten
from ztune.onhost.host import shared_files
from ztune.onhost.words import ROLES
from ztune.trace import rights
from ztune.trace.manifest import (
    DEFAULT_RATIO,
    EVENTS_FILE,
    MANIFEST,
    Compressibility,
    Manifest,
    TraceFile,
    Warning_,
    write_synced,
)
from ztune.trace.propose import COPIED, PROPOSED, RoleProposal, as_rules, rest
from ztune.trace.reader import Trace
from ztune.trace.roles import AS_ASKED, RoleRules, asked_out
from ztune.trace.schema import VERSION
from ztune.units import listed

_MOST = 4  # kinds of files that a sentence names
_SEED = 1  # as where traces are recorded

Say = Callable[[str], None]


def with_roles(
    trace: Trace,
    rules: Sequence[RoleRule],
    note: str = "",
    say: Say = lambda _: None,
    *,
    kept_notes: bool = False,
) -> Manifest:
    """Return the manifest of ``trace`` with the roles that ``rules`` give; files that none matches keep
    theirs. ``note``: a warning that the trace keeps of it; ``kept_notes``: beside what it said before.

    How the files of a role compress is measured anew where that changed and they are still there, else what
    was measured of the files' earlier role stands for it. Raises InputError where a rule matches no file.
    """
    manifest = trace.manifest
    given = RoleRules(rules, builtin=False)
    for rule in rules:
        if not any(rule.matches(_path(file)) for file in manifest.files):
            raise InputError(
                f"no file of {trace.path} matches {rule.glob!r}; "
                f"`ztune trace files {shlex.quote(str(trace.path))}` lists them"
            )
    now = [
        file.model_copy(update={"role": given.role(_path(file))}) if given.knows(_path(file)) else file
        for file in manifest.files
    ]
    before, after = _by_role(manifest.files), _by_role(now)
    changed = [role for role, ids in after.items() if ids != before.get(role)]
    kept = [role for role in after if role not in changed]
    # Of an unchanged role what is there is of the very same files.
    measured = [entry for entry in manifest.compressibility if entry.role in kept]
    samples = [sample for sample in manifest.samples if sample.role in kept]
    if changed:
        # Here, as a trace whose files keep their roles takes no NumPy.
        from ztune.trace.compressibility import TOUCHED, sample_files, with_embedded
        from ztune.trace.touched import TouchedBlocks

        say("measuring how the files compress")
        wanted = {f.path: str(f.role) for f in now if f.role in changed and f.size_end > 0}
        touched = TouchedBlocks(now, TOUCHED, _SEED)
        for part in trace.parts("t", "op", "file", "offset", "size"):
            touched.add(part)
        found, _ = sample_files(wanted, seed=_SEED, touched=touched.by_role())
        now = with_embedded(now)
        for role in changed:
            measured += [entry for entry in found if entry.role == role] or _stand_in(manifest, now, role)
    warnings = [w for w in manifest.warnings if kept_notes or w.code != PROPOSED]
    if note:
        warnings.append(Warning_(code=PROPOSED, message=note))
    out = [*(manifest.environment.get(AS_ASKED) or []), *asked_out(rules)]
    return manifest.model_copy(
        update={
            "environment": {**manifest.environment, **({AS_ASKED: list(dict.fromkeys(out))} if out else {})},
            # What is written has its keys. Before 3 `pwrite` was not told from `write`, which stays so.
            "version": VERSION if manifest.version >= 3 else manifest.version,
            "files": now,
            "compressibility": sorted(measured, key=lambda entry: ROLES.index(entry.role)),
            "samples": samples,
            "page_size": {role: size for role, size in manifest.page_size.items() if role in after},
            "warnings": warnings,
        }
    )


def unmeasured(manifest: Manifest) -> str:
    """Return, for people, of which roles nobody measured how the files compress; "" where there is none."""
    roles = _by_role([file for file in manifest.files if file.size_end > 0])
    unknown = sorted((role for role in roles if not manifest.compresses(role)), key=ROLES.index)
    if not unknown:
        return ""
    return (
        f"How well the files of role {listed(unknown)} compress could not be measured: they are gone, "
        "can't be read, or hold zeros alone. "
        f"Replays write content that lz4 compresses {DEFAULT_RATIO:g}:1; "
        "a role that is given while its files are there has theirs."
    )


def sentence(found: Sequence[RoleProposal]) -> str:
    """Return, for a trace's warnings, which roles of ``found`` were taken."""
    taken = [one for one in found if one.role is None and one.proposed]
    copies = [f"{one.glob} {one.proposed} ({one.why})" for one in taken if one.why == COPIED]
    by_use = [
        f"{one.glob} {one.proposed} ({one.why})" for one in taken if not one.known_as and one.why != COPIED
    ]
    by_rule = [f"{one.glob} {one.proposed} (rule: {one.known_as})" for one in taken if one.known_as]
    said = []
    if copies:
        said.append(
            f"Files named like a database's own are a backup by what was done to them: {_some(copies)}."
        )
    if by_use:
        said.append(f"Roles were told from what the files do, since no rule knows them: {_some(by_use)}.")
    if by_rule:
        said.append(f"Rules know files that had no role, or another, in the recording: {_some(by_rule)}.")
    return f"{' '.join(said)} `ztune trace roles` shows and changes them."


def _some(kinds: Sequence[str]) -> str:
    return "; ".join(kinds[:_MOST]) + (f"; and {len(kinds) - _MOST} more kinds" if len(kinds) > _MOST else "")


def not_given(
    found: Sequence[RoleProposal], given: Sequence[RoleRule], entries: Sequence[TraceFile]
) -> list[RoleProposal]:
    """Return those kinds of ``found`` of which the user's rules ``given`` do not know all files."""
    theirs = RoleRules(given, builtin=False)
    left = [_path(entry) for entry in entries if not theirs.knows(_path(entry))]

    def is_left(one: RoleProposal) -> bool:
        rule = RoleRule.parse(one.rule)  # once for all files: of a mail store these are many
        return any(rule.matches(path) for path in left)

    return [one for one in found if one.proposed is None or is_left(one)]


def told_unasked(trace: Trace, given: Sequence[RoleRule] = ()) -> tuple[Trace, str]:
    """Return ``trace`` with roles for the `rest` of its files, beside it, and a sentence that says so: a
    screening of a part of a database must not look like one of all. Without a rest: the trace, and "".

    ``given``: the user's rules, which go first. Raises InputError where it can't be read or written.
    """
    if any(rule.role is None for rule in given):
        return trace, ""
    found = not_given(rest(trace), given, trace.manifest.files)
    if not found:
        return trace, ""
    note, rules = sentence(found), as_rules(found)
    # Named by what is asked: how live files compress changes, and a run of this trace is to be resumed.
    asked = hashlib.sha256(
        "\n".join([trace.sha, *(f"{r.glob}={r.role}" for r in rules)]).encode()
    ).hexdigest()
    path = _beside(trace, asked)
    if path.exists():
        return Trace.open(path), note
    return beside(trace, with_roles(trace, rules, note, kept_notes=True), path), note


def check_changeable(trace: Trace) -> None:
    """Raise InputError where `change` can't write ``trace``: before the work whose result it writes.

    Root writes into no trace that somebody else can change: its manifest may be a link by then.
    """
    rights.require_closed(
        trace.path,
        "change it as the user whose it is, or a copy in a folder of root's; "
        "`ztune screen --role` takes other roles and leaves it as it is",
    )
    try:
        files.check(trace.path / MANIFEST)
    except InputError as error:
        if os.geteuid() in (0, trace.path.stat().st_uid):
            raise
        raise InputError(
            f"{error}; the trace is {rights.owner(trace.path)}'s: {rights.remedy(trace.path)}, and "
            "`ztune screen --role` takes other roles and leaves it as it is"
        ) from None


def change(trace: Trace, manifest: Manifest) -> Trace:
    """Give ``trace`` the ``manifest`` that `with_roles` made of its own; return it, opened anew.

    Runs of the trace as it was can't be resumed then. Raises InputError where it can't be written.
    """
    check_changeable(trace)
    files.write(trace.path / MANIFEST, manifest.to_json())
    left = {sample.file for sample in manifest.samples}
    for sample in trace.manifest.samples:
        if sample.file not in left:
            with contextlib.suppress(OSError):  # of no use, but no harm either
                (trace.path / sample.file).unlink()
    return Trace.open(trace.path)


def beside(trace: Trace, manifest: Manifest, path: Path | None = None) -> Trace:
    """Return a trace of the same events with ``manifest``, kept in the state directory; ``trace`` stays.

    The same roles give the same trace, at ``path`` where it is given. Raises InputError where it can't be
    written.
    """
    text = manifest.to_json()
    if path is None:
        path = _beside(trace, hashlib.sha256(text.encode()).hexdigest())
    if not path.exists():
        try:
            with shared_files.replacing(path) as partial:
                partial.mkdir(mode=0o700)
                _linked(trace.path / EVENTS_FILE, partial / EVENTS_FILE)
                for sample in manifest.samples:
                    (partial / sample.file).parent.mkdir(exist_ok=True)
                    _linked(trace.path / sample.file, partial / sample.file)
                write_synced(partial / MANIFEST, text)
        except OSError as error:
            raise unwritten(path, error) from None
    return Trace.open(path)


def _beside(trace: Trace, sha: str) -> Path:
    return paths.traces() / f"{trace.name}-roles-{sha[:12]}.trace"


def _linked(source: Path, target: Path) -> None:
    """Have the same file at ``target``: it never changes, so that it need not be there twice."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _path(file: TraceFile) -> str:
    return file.path.removesuffix(" (deleted)")


def _by_role(entries: Sequence[TraceFile]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for file in entries:
        if file.role is not None:
            found.setdefault(file.role, set()).add(file.id)
    return found


def _stand_in(manifest: Manifest, entries: Sequence[TraceFile], role: str) -> list[Compressibility]:
    """Return what was measured of the role that most bytes of ``role`` had before, as that of ``role``."""
    sizes: dict[str, int] = {}
    for was, entry in zip(manifest.files, entries, strict=True):
        if entry.role == role and was.role is not None:
            sizes[was.role] = sizes.get(was.role, 0) + max(was.size_start, was.size_end)
    if not sizes:
        return []
    most = max(sizes, key=lambda name: sizes[name])
    return [e.model_copy(update={"role": role}) for e in manifest.compressibility if e.role == most]
