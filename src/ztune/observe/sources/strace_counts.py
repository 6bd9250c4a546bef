"""The table that ``strace -c`` prints at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ztune.observe.sources import figures
from ztune.observe.sources.source import Source

_TITLE = re.compile(r"(?=.*\bsyscall\b)(?=.*\bcalls\b)(?:% time|[\w/]+)(?:\s+(?:% time|[\w/]+))+\s*")
_RULE = re.compile(r"-{4,}(?:\s+-{4,})+\s*")
_NAME = re.compile(r"[a-z_]\w*(?:\(2\))?|syscall_0x[0-9a-f]+")


def is_title(line: str) -> bool:
    """True if this is the title line of a table of calls."""
    return _TITLE.fullmatch(line) is not None


class StraceCounts:
    """Reads it."""

    name = "strace-c"
    what = "the table of strace -c"

    def recognise(self, head: str) -> bool:
        """True if a title and the rule below it are there."""
        lines = head.splitlines()
        return any(
            is_title(line) and after < len(lines) and _RULE.fullmatch(lines[after])
            for after, line in enumerate(lines, start=1)
        )

    def read(self, source: Source) -> None:
        """Add the calls."""
        lines = iter(source.lines())
        for line in lines:
            if is_title(line):
                _table(source, _columns(line), lines)


def _columns(title: str) -> list[str]:
    return title.replace("% time", "%time").split()


def _table(source: Source, columns: list[str], lines: Iterator[str]) -> None:
    """Read one table; where its ``total`` is missing it is cut."""
    rules = odd = 0
    timed = False
    for line in lines:
        if _RULE.fullmatch(line):
            rules += 1
            continue
        words = line.split()
        if not words:
            continue
        if rules >= 2 and "total" in words:
            break
        values = None if source.unended else _values(columns, words)
        if values is None:
            odd += 1
            continue
        name, calls, seconds, errors = values
        timed |= seconds is not None
        source.into.call(name, calls, seconds, errors)
    else:
        source.limit("the table of strace -c is cut: its total is missing.")
    if odd:
        source.limit(f"{odd} lines of the table of strace -c are cut or not understood and were left out.")
    if timed:
        source.limit(
            "seconds of strace -c are processor time within the calls, "
            "or the time that passed if it ran with -w: the table does not say which."
        )


def _values(columns: list[str], words: Iterable[str]) -> tuple[str, int, float | None, int | None] | None:
    """Return name, calls, seconds, errors of a row; the column of errors may be empty."""
    row = list(words)
    if len(row) == len(columns) - 1 and "errors" in columns:
        row.insert(columns.index("errors"), "0")
    if len(row) != len(columns):
        return None
    of = dict(zip(columns, row, strict=True))
    calls, errors = figures.count(of["calls"]), figures.count(of["errors"]) if "errors" in of else None
    seconds = figures.decimal(of["seconds"]) if "seconds" in of else None
    if (
        calls is None
        or calls < 0
        or (errors or 0) < 0
        or (seconds or 0) < 0
        or not _NAME.fullmatch(of["syscall"])
    ):
        return None
    return of["syscall"], calls, seconds, errors
