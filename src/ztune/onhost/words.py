"""The closed lists of words, for both sides of the trial program. Nothing here imports a part of ztune."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, get_args

Role = Literal["data", "wal", "temp", "index", "backup", "archive", "source"]
"""What a file is to its database."""
ROLES: tuple[str, ...] = get_args(Role)


class DurabilityClass(StrEnum):
    """What a power cut may lose under a layout, best class first.

    ``NOT_KNOWN``: nobody has declared what a setting of the database means. It may be as bad as the worst
    class, and is never ranked beside another; ``durability.Bar`` says what may be.
    """

    NOTHING = "nothing-acknowledged"
    LAST_SECONDS = "last-seconds"
    NOT_KNOWN = "not-known"
    CORRUPT = "corrupt"

    @property
    def rank(self) -> int:
        """0 for the best class, 3 for the worst: compare ranks, not words."""
        return list(DurabilityClass).index(self)


# What an objective may minimise → where the number stands in a trial's measure, and its unit.
OBJECTIVES: dict[str, tuple[tuple[str, ...], str]] = {
    "modelled_s": (("model", "modelled_s"), "s"),
    "allocated": (("space", "allocated"), "bytes"),
    "written": (("physical", "write_bytes"), "bytes"),
    "read": (("physical", "read_bytes"), "bytes"),
    "write_ops": (("physical", "writes"), "count"),
    "read_ops": (("physical", "reads"), "count"),
    "flushes": (("physical", "flushes"), "count"),
    "sync_p50": (("model", "sync_latency_ms", "p50"), "ms"),
    "sync_p99": (("model", "sync_latency_ms", "p99"), "ms"),
    "read_p99": (("model", "read_latency_ms", "p99"), "ms"),
    "busy_s": (("model", "busy_s_max"), "s"),
    "cpu": (("processor", "host", "seconds"), "s"),
}


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean "x"?' for the known word closest to ``word``, or the empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' Did you mean "{close[0]}"?' if close else ""
