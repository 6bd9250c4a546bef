"""The closed word lists of a study. Nothing here imports another part of ztune."""

from __future__ import annotations

from enum import StrEnum

# The roles a file can play; the same list as in the trace format (a test holds the two together).
ROLES = ("data", "wal", "temp", "index", "backup", "archive", "source")


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
METRICS: dict[str, tuple[tuple[str, ...], str]] = {
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
}
