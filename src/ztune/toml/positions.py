"""Where a key stands in a TOML text, so that errors can name the line."""

from __future__ import annotations

import re
from collections.abc import Sequence

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.|$|=)""")


def _key(text: str) -> tuple[tuple[str, ...], str] | None:
    """Split ``a."b.c" = rest`` into its parts and the rest after "="; the rest is "" for a bare key."""
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            return None
        parts.append(next(g for g in match.groups()[:3] if g is not None))
        at = match.end()
        if match[4] != ".":
            return tuple(parts), text[at:]


def positions(text: str) -> dict[Path, int]:
    """Return path → line (from 1) for each table header and key of a valid TOML text.

    Keys inside inline tables and the items of arrays have no line of their own: see ``line_of``.
    """
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    open_brackets = 0
    fence = ""  # the quotes of an open multi-line string
    for number, line in enumerate(text.splitlines(), start=1):
        if fence:
            fence = "" if fence in line else fence
            continue
        if open_brackets > 0:
            open_brackets += _balance(line)
            continue
        header = _HEADER.match(line)
        if header:
            split = _key(header[2])
            if split:
                table = _resolve(split[0], counts, new=header[1] == "[[")
                found.setdefault(table, number)
            continue
        split = _key(line)
        if split is None or "=" not in line:
            continue
        found.setdefault((*table, *split[0]), number)
        for quotes in ('"""', "'''"):
            if split[1].count(quotes) == 1:
                fence = quotes
        if not fence:
            open_brackets = max(0, _balance(split[1]))
    return found


def _resolve(parts: Sequence[str], counts: dict[Path, int], *, new: bool) -> Path:
    """Return the path of a table header; array tables met on the way mean their last element."""
    path: Path = ()
    for i, part in enumerate(parts):
        path = (*path, part)
        last = i == len(parts) - 1
        if last and new:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _balance(text: str) -> int:
    """Return how many brackets the text leaves open, strings and comments apart."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'', "", text).split("#")[0]
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")


def line_of(found: dict[Path, int], path: Path) -> int | None:
    """Return the line of ``path``; else of the first thing in it; else of what is around it."""
    inside = [line for known, line in found.items() if path and known[: len(path)] == path]
    if inside:
        return min(inside)
    for length in range(len(path), 0, -1):
        if path[:length] in found:
            return found[path[:length]]
    return None
