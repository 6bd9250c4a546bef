"""What a replay can tell apart: how far its ratio of two layouts may be off.

From the table "Databases of 8 GB" of docs/accuracy-tables.md, whose other side is a mount; flushes and space
from "Flushes and space", how long a job takes from "Predicted throughput": predicted / measured of each two
layouts of a table, and the share within which nine in ten of these ratios are right, rounded up. A test
computes them again.
"""

from __future__ import annotations

from ztune.analysis.metrics import MEASURED, REPLAYED, Metric, Raw, number_at

BYTES = 0.09
READS = 0.06
WRITES = 0.22
"""The mount's processors are slower than a replay's, and decide what is written together."""
FLUSHES = 0.06
SPACE = 0.05
TIME = 0.10
"""Latencies are held against a mount's in too few layouts for a figure of their own."""
JOB = 0.19
"""Of jobs that go as fast as they can, on shaped disks of mounts."""

_SMALLEST = {
    "written": BYTES, "read": READS, "write_ops": WRITES, "read_ops": READS, "flushes": FLUSHES,
    "allocated": SPACE, "modelled_s": TIME, "busy_s": TIME, "sync_p50": TIME, "sync_p99": TIME,
    "job_s": JOB,
}  # fmt: skip


def _job_s(result: Raw) -> float | None:
    """Return by when a closed replay had done the last call of its job, in seconds; None of an open one."""
    model = ("measure", "model")
    return None if number_at(result, *model, "speed") is None else number_at(result, *model, "elapsed_s")


JOB_TIME = Metric("job_s", "predicted time of the job", "s", _job_s, clock=True)
"""How long a job takes that was recorded as fast as it could go: its own work between its calls, ZFS's work
on its data and its disks. Modelled time is I/O alone, which is a small part of such a job on fast disks."""


def replayed(metric: str, *, closed: bool = False) -> Metric | None:
    """Return what a replay has in the place of a trial's ``metric``; None where it has nothing.

    ``closed``: of a job that was recorded as fast as it could go. Of processor time a replay has ZFS's work
    on data alone, which is no measure of the whole job's.
    """
    if closed and metric == "time":
        return JOB_TIME
    found = MEASURED[metric]
    key = found.predicted or next(iter(found.asked), "")
    return None if key == "cpu" else REPLAYED.get(key)


_LATENCIES = ("sync_p50", "sync_p99")
_TIMES = (*_LATENCIES, "modelled_s", "busy_s", "job_s")


def unheld(metric: Metric, *, flash: bool) -> bool:
    """Return whether nobody has held such figures against a real disk: times of ``flash``, and latencies."""
    return metric.key in (_TIMES if flash else _LATENCIES)


def smallest(metric: Metric) -> float:
    """Return the smallest difference that a replay's ``metric`` shows, a share."""
    return _SMALLEST[metric.key]
