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
from ztune.databases.rules import NO_ROLE, RoleRule
from ztune.trace.manifest import Manifest

_DELETED = " (deleted)"  # what /proc/PID/fd appends to the name of a removed file


class RoleRules:
    """An ordered set of rules."""

    def __init__(self, rules: Sequence[RoleRule] = (), *, builtin: bool = True) -> None:
        self.rules = tuple(rules)
        self.builtin = builtin
        self._reversed = tuple(reversed((*_builtin(), *rules) if builtin else tuple(rules)))

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
            glob = re.sub(r"([*?\[\]\\])", r"\\\1", str(PurePosixPath(folder)))
            rules += [RoleRule.parse(f"{glob.rstrip('/')}/**={role}"), RoleRule.parse(f"{glob}={role}")]
        return cls(rules, builtin=builtin)

    def role(self, path: str) -> str | None:
        """Return the role of the file at ``path``, or None if no rule matches or the last match says none."""
        rule = self._match(path)
        return None if rule is None else rule.role

    def knows(self, path: str) -> bool:
        """Say whether a rule matches the file at ``path``, be it to say that it has no role."""
        return self._match(path) is not None

    def _match(self, path: str) -> RoleRule | None:
        path = path.removesuffix(_DELETED)
        return next((rule for rule in self._reversed if rule.pattern.fullmatch(path)), None)


AS_ASKED = "left_out"
"""Where a trace's ``environment`` keeps the globs of files that its user gave no role (``GLOB=-``)."""


def asked_out(rules: Iterable[RoleRule]) -> list[str]:
    """Return the globs of the ``rules`` that leave files out, as a trace keeps them."""
    return [rule.glob for rule in rules if rule.role is None]


def left_out_as_asked(manifest: Manifest) -> RoleRules:
    """Return the rules of well-known layouts, and those by which the user left files of the trace out."""
    globs = manifest.environment.get(AS_ASKED)
    known = [glob for glob in globs if isinstance(glob, str)] if isinstance(globs, list) else []
    return RoleRules.parse(f"{glob}={NO_ROLE}" for glob in known)


@dataclass(frozen=True)
class KnownLayout:
    """One database's well-known files, with the documentation that names them."""

    name: str
    source: str
    rules: tuple[RoleRule, ...]


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
        KnownLayout(files.name, files.source, files.parsed) for files in (*weakest, *between, *strongest)
    )


def databases_of(paths: Iterable[str]) -> Iterator[str]:
    """Give for each of ``paths`` that is a well-known layout's the layout's name."""
    yield from (found[0] for found in map(known_as, paths) if found is not None)


def databases_in(manifest: Manifest) -> list[Database]:
    """Return the databases that a recording is of, by their files: a live one says of itself nothing else."""
    return of_layouts(set(databases_of(file.path for file in manifest.files if file.role is not None)))


def known_as(path: str) -> tuple[str, str | None] | None:
    """Return the name of the well-known layout that the file at ``path`` belongs to, and its role there."""
    whole = path.removesuffix(_DELETED)
    return next(((name, rule.role) for name, rule in _backwards() if rule.pattern.fullmatch(whole)), None)


@functools.cache
def _backwards() -> tuple[tuple[str, RoleRule], ...]:
    """Layout and rule, of all; a later one overrides an earlier one, so that the first that matches tells."""
    return tuple(
        (layout.name, rule) for layout in reversed(known_layouts()) for rule in reversed(layout.rules)
    )


@functools.cache
def _builtin() -> tuple[RoleRule, ...]:
    return tuple(rule for layout in known_layouts() for rule in layout.rules)
