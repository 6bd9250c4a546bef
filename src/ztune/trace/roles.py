"""Tells which role a file plays from its path: the user's rules, then those of well-known layouts.

A rule is ``GLOB=ROLE``; a role of ``-`` says that the file plays none (and is left out of replay). Later
rules override earlier ones, and the user's override those built in (``layouts.toml``).
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

from ztune.errors import InputError
from ztune.onhost.words import ROLES

NO_ROLE = "-"
_DELETED = " (deleted)"  # what /proc/PID/fd appends to the name of a removed file


@dataclass(frozen=True)
class RoleRule:
    """One glob and the role of the files it matches (None: no role)."""

    glob: str
    role: str | None
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> RoleRule:
        """Return the rule written as ``GLOB=ROLE``; raises InputError."""
        glob, separator, role = text.rpartition("=")
        if not separator or not glob:
            raise InputError(
                f"the role rule {text!r} should be GLOB=ROLE, for example '/srv/pg/pg_wal/**=wal'"
            )
        if role != NO_ROLE and role not in ROLES:
            raise InputError(
                f"the role rule {text!r} names no known role: {role!r} should be one of {', '.join(ROLES)},"
                f" or {NO_ROLE} for none"
            )
        return cls(glob, None if role == NO_ROLE else role, _compile(glob, text))


class RoleRules:
    """An ordered set of rules."""

    def __init__(self, rules: Sequence[RoleRule], *, builtin: bool = True) -> None:
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
        path = path.removesuffix(_DELETED)
        for rule in self._reversed:
            if rule.pattern.fullmatch(path):
                return rule.role
        return None


def _compile(glob: str, rule: str) -> re.Pattern[str]:
    """Translate a glob; ``\\`` quotes the next character."""
    out, i = [], 0
    if not glob.startswith(("/", "**")):
        out.append("(?:.*/)?")
    while i < len(glob):
        char = glob[i]
        if glob.startswith("**/", i) and (i == 0 or glob[i - 1] == "/"):
            out.append("(?:.*/)?")
            i += 3
        elif glob.startswith("**", i):
            out.append(".*")
            i += 2
        elif char == "*":
            out.append("[^/]*")
            i += 1
        elif char == "?":
            out.append("[^/]")
            i += 1
        elif char == "\\" and i + 1 < len(glob):
            out.append(re.escape(glob[i + 1]))
            i += 2
        elif char == "[":
            end = glob.find("]", i + 2)
            if end < 0:
                raise InputError(f"the role rule {rule!r} has a [ without its ]")
            inner = glob[i + 1 : end]
            negated = inner[:1] in ("!", "^")
            # "--" too: Python keeps it for a set difference to come.
            inner = re.sub(r"([\\\[\]^&~|]|(?<=-)-)", r"\\\1", inner[negated:])
            out.append(f"[{'^/' if negated else ''}{inner}]")
            i = end + 1
        else:
            out.append(re.escape(char))
            i += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        raise InputError(f"the role rule {rule!r} has a set that can't be read ({error.msg})") from None


@dataclass(frozen=True)
class KnownLayout:
    """One database's well-known files, with the documentation that names them."""

    name: str
    source: str
    rules: tuple[RoleRule, ...]


@functools.cache
def known_layouts() -> tuple[KnownLayout, ...]:
    """Return the built-in table, in order of precedence from weak to strong."""
    text = resources.files("ztune.trace").joinpath("layouts.toml").read_text("utf-8")
    return tuple(
        KnownLayout(entry["name"], entry["source"], tuple(RoleRule.parse(rule) for rule in entry["rules"]))
        for entry in tomllib.loads(text)["layout"]
    )


def databases_of(paths: Iterable[str]) -> Iterator[str]:
    """Give for each of ``paths`` that is a well-known layout's the layout's name."""
    # A later layout overrides an earlier one.
    backwards = [
        (layout.name, rule) for layout in reversed(known_layouts()) for rule in reversed(layout.rules)
    ]
    for path in paths:
        whole = path.removesuffix(_DELETED)
        name = next((name for name, rule in backwards if rule.pattern.fullmatch(whole)), None)
        if name is not None:
            yield name


@functools.cache
def _builtin() -> tuple[RoleRule, ...]:
    return tuple(rule for layout in known_layouts() for rule in layout.rules)
