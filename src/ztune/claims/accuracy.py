"""What a replay can tell apart: how far its ratio of two layouts may be off.

From the table "Databases of 8 GB" of docs/accuracy.md, whose other side is a mount; flushes from "Screening
against the lab", space from "Replay, mount and lab side by side": predicted / measured of each two layouts of
a table, and the share within which nine in ten of these ratios are right, rounded up. A test computes them
again.
"""

from __future__ import annotations

from ztune.analysis.metrics import MEASURED, REPLAYED, Metric

BYTES = 0.28
"""A replay's content goes by what lay there, and PostgreSQL's new pages compress better: with lz4 and large
records up to 30 % too many. Of the layouts without these it is 0.11."""
READS = 0.03
WRITES = 0.17
FLUSHES = 0.36
SPACE = 0.08
TIME = 0.17
"""Of a flash disk; of a hard disk half of it. Latencies are held against a mount's in too few layouts for a
figure of their own."""

_SMALLEST = {
    "written": BYTES, "read": READS, "write_ops": WRITES, "read_ops": READS, "flushes": FLUSHES,
    "allocated": SPACE, "modelled_s": TIME, "busy_s": TIME, "sync_p50": TIME, "sync_p99": TIME,
}  # fmt: skip


def replayed(metric: str) -> Metric | None:
    """Return what a replay has in the place of a trial's ``metric``; None where it has nothing.

    Of processor time it has ZFS's work on data alone, which is no measure of the whole job's.
    """
    found = MEASURED[metric]
    key = found.predicted or next(iter(found.asked), "")
    return None if key == "cpu" else REPLAYED.get(key)


_LATENCIES = ("sync_p50", "sync_p99")
_TIMES = (*_LATENCIES, "modelled_s", "busy_s")


def unheld(metric: Metric, *, flash: bool) -> bool:
    """Return whether nobody has held such figures against a real disk: times of ``flash``, and latencies."""
    return metric.key in (_TIMES if flash else _LATENCIES)


def smallest(metric: Metric) -> float:
    """Return the smallest difference that a replay's ``metric`` shows, a share."""
    return _SMALLEST[metric.key]
