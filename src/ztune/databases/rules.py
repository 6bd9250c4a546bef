"""A rule that tells a file's role from its path: ``GLOB=ROLE``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ztune.errors import InputError
from ztune.onhost.words import ROLES

NO_ROLE = "-"


@dataclass(frozen=True)
class RoleRule:
    """One glob and the role of the files it matches (None: no role)."""

    glob: str
    role: str | None
    pattern: re.Pattern[str]
    literal: str
    """The longest text in each path that the glob matches: to look for it costs a tenth of a match."""

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
        return cls(glob, None if role == NO_ROLE else role, *_compiled(glob, text))

    def matches(self, path: str) -> bool:
        """Say whether the glob matches ``path``. Of many files each is held against hundreds of rules."""
        return self.literal in path and self.pattern.fullmatch(path) is not None


def compile_glob(glob: str, rule: str) -> re.Pattern[str]:
    """Translate a glob; ``\\`` quotes the next character. Raises InputError, which names ``rule``."""
    return _compiled(glob, rule)[0]


def _compiled(glob: str, rule: str) -> tuple[re.Pattern[str], str]:
    """Return the expression of a glob, and the longest text in it that stands for itself."""
    out: list[str] = []
    literals = [""]  # between what stands for others
    i = 0
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
            literals[-1] += glob[i + 1]
            i += 2
            continue
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
            literals[-1] += char
            i += 1
            continue
        literals.append("")
    try:
        return re.compile("".join(out), re.DOTALL), max(literals, key=len)
    except re.error as error:
        raise InputError(f"the role rule {rule!r} has a set that can't be read ({error.msg})") from None


def quoted(path: str) -> str:
    """Return the glob that ``path`` alone matches."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", path)
