"""Settings of PostgreSQL that are times, for a machine on which everything goes slower."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ztune.errors import InputError

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
# Setting: the unit of a bare number, the largest value in it, and the default where it acts by itself.
# Source: the manual's chapters 20.4 to 20.6 (same from PostgreSQL 13 to 18).
_TIMES: dict[str, tuple[str, int, str]] = {
    "checkpoint_timeout": ("s", 86_400, "5min"),
    "wal_writer_delay": ("ms", 10_000, "200ms"),
    "bgwriter_delay": ("ms", 10_000, "200ms"),
    "autovacuum_naptime": ("s", 2_147_483, "1min"),
    "commit_delay": ("us", 100_000, ""),
}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d)?")


def slower(settings: Mapping[str, str], dilation: float) -> dict[str, str]:
    """Return ``settings`` with each time × ``dilation``, at most what PostgreSQL takes; unchanged for 1.

    The server's own defaults are added where it does something in such an interval. Raises InputError for a
    time that can't be read.
    """
    found = dict(settings)
    if dilation == 1:
        return found
    for name, (unit, most, default) in _TIMES.items():
        text = settings.get(name, default)
        if not text:
            continue
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"database: {name} = {text!r} is no time; write a number and us, ms, s, min, h or d"
            )
        value = float(match[1]) * _UNITS[match[2] or unit] / _UNITS[unit] * dilation
        found[name] = f"{min(most, round(value))}{unit}"
    return found
