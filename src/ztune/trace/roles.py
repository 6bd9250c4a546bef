"""Tells which role a file plays from its path: the user's rules, then those of well-known layouts.

A rule is ``GLOB=ROLE``; a role of ``-`` says that the file plays none (and is left out of replay). Later
rules override earlier ones, and the user's override those of well-known layouts.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

from ztune.databases.database import Database, Files, every, of_layouts
from ztune.databases.rules import NO_ROLE, RoleRule, quoted
from ztune.trace.manifest import Manifest

_PATHS = 1 << 17  # of so many files it is kept what rules say of them

LEAST_COPY = 1 << 20
"""Bytes that a tool writes of a backup at least: less tells nothing."""
LOG_SYNCS = 4
"""Syncs of each file of a log that is a copy: pg_receivewal makes three, a server one for each commit."""

_DELETED = " (deleted)"  # what /proc/PID/fd appends to the name of a removed file


class RoleRules:
    """An ordered set of rules. ``present``: which databases' own files are at hand, where that is known."""

    def __init__(
        self, rules: Sequence[RoleRule] = (), *, builtin: bool = True, present: Present | None = None
    ) -> None:
        self.rules = tuple(rules)
        self.builtin = builtin
        self._reversed = tuple(reversed(self.rules))
        self._present = present

    @classmethod
    def parse(cls, texts: Iterable[str] = (), *, builtin: bool = True) -> RoleRules:
        """Return the rules written as ``GLOB=ROLE``, in the user's order; raises InputError.

        Globs: ``*`` within a name, ``**`` across folders, ``?``, ``[a-z]``. A glob without a leading ``/``
        matches at any depth. ``FOLDER/**`` matches everything below ``FOLDER``. With ``builtin`` the rules of
        well-known layouts apply where none of these matches.
        """
        return cls([RoleRule.parse(text) for text in texts], builtin=builtin)

    @classmethod
    def below(cls, folders: dict[str, str], *, builtin: bool = False) -> RoleRules:
        """Return rules that give all files below each folder its role; the deepest folder decides."""
        rules = []
        for folder, role in sorted(folders.items(), key=lambda item: len(PurePosixPath(item[0]).parts)):
            glob = quoted(str(PurePosixPath(folder)))
            rules += [RoleRule.parse(f"{glob.rstrip('/')}/**={role}"), RoleRule.parse(f"{glob}={role}")]
        return cls(rules, builtin=builtin)

    def among(self, paths: Iterable[str]) -> RoleRules:
        """Return these rules where the files at ``paths`` are at hand: they tell whose file a name is."""
        return RoleRules(self.rules, builtin=self.builtin, present=Present(paths)) if self.builtin else self

    def role(self, path: str) -> str | None:
        """Return the role of the file at ``path``, or None if no rule matches or the last match says none."""
        rule = self._match(path)
        return None if rule is None else rule.role

    def knows(self, path: str) -> bool:
        """Say whether a rule matches the file at ``path``, be it to say that it has no role."""
        return self._match(path) is not None

    def leaves_out(self, path: str) -> bool:
        """Say whether a rule says that the file at ``path`` has no role."""
        rule = self._match(path)
        return rule is not None and rule.role is None

    def _match(self, path: str) -> RoleRule | None:
        path = path.removesuffix(_DELETED)
        mine = next((rule for rule in self._reversed if rule.matches(path)), None)
        if mine is not None or not self.builtin:
            return mine
        found = _known(path, self._present)
        return None if found is None else found.rule


class Present:
    """Where the files are that only one well-known layout has: they say whose a name is that several use."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._names: dict[str, dict[str, list[str]]] = {}  # layout → folder → names of its anchors
        for path in paths:
            whole = path.removesuffix(_DELETED)
            for layout in _anchors(whole):
                folder, _, name = whole.rpartition("/")
                names = self._names.setdefault(layout, {}).setdefault(folder, [])
                names.append(name.rpartition(".")[0] or name)

    def fits(self, layout: KnownLayout, path: str) -> int:
        """Return 2 where nothing speaks against a file at ``path`` being the layout's, 1 where its own files
        are elsewhere, 0 where there are none, -1 where it is none of its.
        """
        if layout.anchor is None:
            return 2
        folder, _, name = path.rpartition("/")
        folders = self._names.get(layout.name, {})
        near = folders.get(folder, ())
        if layout.beside == "name":
            return 2 if any(name.startswith(f"{one}.") for one in near) else -1
        if near or layout.anchor.fullmatch(path):
            return 2
        return -1 if layout.beside else 1 if folders else 0


AS_ASKED = "left_out"
"""Where a trace's ``environment`` keeps the globs of files that its user gave no role (``GLOB=-``)."""


def asked_out(rules: Iterable[RoleRule]) -> list[str]:
    """Return the globs of the ``rules`` that leave files out, as a trace keeps them."""
    return [rule.glob for rule in rules if rule.role is None]


def left_out_as_asked(manifest: Manifest) -> RoleRules:
    """Return the rules of well-known layouts, and those by which the user left files of the trace out."""
    globs = manifest.environment.get(AS_ASKED)
    known = [glob for glob in globs if isinstance(glob, str)] if isinstance(globs, list) else []
    return RoleRules.parse(f"{glob}={NO_ROLE}" for glob in known).among(names_in(manifest))


@dataclass(frozen=True)
class KnownLayout:
    """One database's well-known files, with the documentation that names them."""

    name: str
    source: str
    rules: tuple[RoleRule, ...]
    anchor: re.Pattern[str] | None = None
    """What a file looks like that only it has; None: its rules need none."""
    beside: str = ""


@functools.cache
def known_layouts() -> tuple[KnownLayout, ...]:
    """Return the well-known layouts, in order of precedence from weak to strong.

    Those of databases stand in their folders (``databases/*/database.toml``), those of none in
    ``layouts.toml``. General endings are weakest, what is no database's file at all is strongest. Between
    them a layout that goes by folders overrides one that goes by endings, and a later name an earlier one.
    """
    general = tomllib.loads(resources.files("ztune.trace").joinpath("layouts.toml").read_text("utf-8"))
    theirs = [files for database in every() for files in database.facts.files]
    others = [Files.model_validate(entry) for entry in general["layout"]]
    between = sorted((*theirs, *others), key=lambda files: (files.strength == "folders", files.name))
    weakest, strongest = (
        [Files.model_validate(entry) for entry in general[key]] for key in ("weakest", "strongest")
    )
    return tuple(
        KnownLayout(files.name, files.source, files.parsed, files.anchor, files.beside)
        for files in (*weakest, *between, *strongest)
    )


def databases_of(paths: Iterable[str], present: Present) -> Iterator[str]:
    """Give for each of ``paths`` that is a well-known layout's the layout's name: a name that several
    databases use is taken for one's only where its own files are ``present``.
    """
    for path in paths:
        found = _known(path.removesuffix(_DELETED), present)
        if found is not None and found.sure:
            yield found.layout.name


def databases_in(manifest: Manifest) -> list[Database]:
    """Return the databases that a recording is of, by their files: a live one says of itself nothing else."""
    played = (file.path for file in manifest.files if file.role is not None)
    return of_layouts(set(databases_of(played, Present(names_in(manifest)))))


def database_in(manifest: Manifest) -> Database | None:
    """Return the database that a recording is of, by its files; None where these are of none or several."""
    found = databases_in(manifest)
    return found[0] if len(found) == 1 else None


def names_in(manifest: Manifest) -> list[str]:
    """Return the names that the files of a recording had."""
    return [name for file in manifest.files for name in {file.path, *(one.path for one in file.names)}]


def known_as(path: str, present: Present | None = None) -> tuple[str, str | None] | None:
    """Return the name of the well-known layout that the file at ``path`` belongs to, and its role there.

    In place of the name the rule's glob, where several have such names and its own files are not ``present``.
    """
    found = _known(path.removesuffix(_DELETED), present)
    return None if found is None else (found.layout.name if found.sure else found.rule.glob, found.rule.role)


def several_use(path: str) -> bool:
    """Say whether the file at ``path`` has a name that is a database's only where that has others beside."""
    whole = path.removesuffix(_DELETED)
    return any(rule.matches(whole) for layout in _anchored() for rule in layout.rules)


@dataclass(frozen=True)
class _Known:
    layout: KnownLayout
    rule: RoleRule
    sure: bool
    """Whether the file is taken for the layout's, or only its name is like one's."""


def _known(path: str, present: Present | None) -> _Known | None:
    """Return the rule of well-known layouts for the file at ``path``: of several the first whose own files
    are beside it, then elsewhere. Where it is not known what is present, all are taken to be there.
    """
    best, fits = None, -1
    here = Present([path]) if present is None else present
    for layout, rule in _matching(path):
        found = here.fits(layout, path)
        if present is None and found >= 0:
            found = 2
        if found > fits:
            best, fits = _Known(layout, rule, found > 0), found
        if fits == 2:
            break
    return best


@functools.lru_cache(maxsize=_PATHS)
def _matching(path: str) -> tuple[tuple[KnownLayout, RoleRule], ...]:
    """Return the rules that match the file at ``path``, strongest first.

    There are hundreds of rules, and a mail store has hundreds of thousands of paths that none matches; a
    command asks for each again and again.
    """
    return tuple(
        (layout, rule)
        for literal, layout, rule in _backwards()
        if literal in path and rule.pattern.fullmatch(path)
    )


@functools.lru_cache(maxsize=_PATHS)
def _anchors(path: str) -> tuple[str, ...]:
    """Return the names of the layouts that alone have such a file as that at ``path``."""
    return tuple(one.name for one in _anchored() if one.anchor is not None and one.anchor.fullmatch(path))


@functools.cache
def _anchored() -> tuple[KnownLayout, ...]:
    return tuple(layout for layout in known_layouts() if layout.anchor is not None)


@functools.cache
def _backwards() -> tuple[tuple[str, KnownLayout, RoleRule], ...]:
    """The text that a path must have, layout and rule, of all; a later one overrides an earlier one, so that
    the first that matches tells.
    """
    return tuple(
        (rule.literal, layout, rule)
        for layout in reversed(known_layouts())
        for rule in reversed(layout.rules)
    )
