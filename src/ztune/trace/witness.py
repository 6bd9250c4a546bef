"""What a trace says against the promise that nothing acknowledged is lost: operations without a sync.

A database that keeps the promise syncs its log before it acknowledges. One sync may stand for many
operations, those of all clients that wait for it, but not for more than there are clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ztune.onhost.declared import KNOWN, TOGETHER, Declared
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.units import counted, plural

KEY = "witness"
"""Where a run's ``outcome`` keeps what its trace showed."""
LEAST = 1000
"""Fewer operations, or writes of the log, contradict nothing: a database may begin with a few of its own."""
# What the operations of ztune's own workloads are called where each is acknowledged by itself.
_COMMITS = ("transaction", "operation")
_CLIENTS = ("clients", "threads")
# What a trace with these warnings lacks may be syncs, or written without a call.
_BLIND = ("shared-mmap", "dropped", "no-uring", "uring-unseen", "odd-lines")


@dataclass(frozen=True)
class Witness:
    """What a trace shows of acknowledgments.

    ``operations``: those that the workload counted, 0 where it did not; ``unit`` is what it calls them.
    ``writes``: calls that wrote to the log, or to data where there is no log. ``syncs``: calls that waited
    for the disk, writes to files opened with O_SYNC or O_DSYNC among them.
    """

    operations: int
    unit: str
    clients: int
    writes: int
    log: bool
    syncs: int

    def against(self, declared: Declared | None) -> str:
        """Return how the trace contradicts that nothing acknowledged is lost; empty if it doesn't.

        ``declared``: of the database; None of one that ztune knows.
        """
        declared = declared or KNOWN
        most = declared.together
        if most is None and declared.known and self.unit not in _COMMITS:
            most = 0  # rows of an import, I/Os of fio: nobody acknowledges them one by one
        elif most is None:
            most = max(TOGETHER, 2 * self.clients)
        # What wrote nothing needs no sync: a read is acknowledged too.
        acknowledged = min(self.operations, self.writes)
        syncs = counted(self.syncs, "sync")
        if most and acknowledged >= LEAST and acknowledged > most * self.syncs:
            return (
                f"the trace contradicts it: {self.operations:,} {plural(self.unit)} were acknowledged and "
                f"{self.writes:,} writes made with {syncs}"
            )
        if self.log and self.writes >= LEAST and not self.syncs:
            return f"the trace contradicts it: {self.writes:,} writes of the log, and nothing was ever synced"
        return ""


def kept(trace: Trace) -> dict[str, Any]:
    """Return what a run of ``trace`` keeps in its ``outcome``, for `of_run`. Raises InputError."""
    found = witness(trace)
    return {KEY: None if found is None else asdict(found)}


def of_run(outcome: Mapping[str, Any], trace: Trace | None) -> Witness | None:
    """Return what the ``outcome`` of a run has kept; of a run that kept nothing, what its ``trace`` shows.

    Raises InputError where the trace has to be read, and is damaged.
    """
    if KEY in outcome:
        return None if outcome[KEY] is None else Witness(**outcome[KEY])
    return None if trace is None else witness(trace)


def witness(trace: Trace) -> Witness | None:
    """Return what ``trace`` shows; None where part of it may not have been seen. Raises InputError."""
    import numpy as np  # here, as what a run has kept takes no NumPy

    from ztune.trace.syncs import synced

    manifest = trace.manifest
    if manifest.dropped or any(w.code in _BLIND for w in manifest.warnings):
        return None
    info = manifest.workload
    result, params = (info.result, info.parameters) if info is not None else ({}, {})
    roles = np.array([f.role or "" for f in manifest.files] + [""])  # the last is what -1 indexes
    log = "wal" in roles
    of_role = np.isin(roles, ["wal"] if log else ["data", "index"])
    written = syncs = 0
    for part in trace.parts("op", "flags", "file"):
        written += int(np.count_nonzero((part["op"] == Op.WRITE) & of_role[part["file"]]))
        syncs += int(np.count_nonzero(synced(part)))
    return Witness(
        operations=_count(result.get("operations")),
        unit=str(result.get("unit") or "operation"),
        clients=max((_count(params.get(name)) for name in _CLIENTS), default=0),
        writes=written,
        log=log,
        syncs=syncs,
    )


def _count(value: object) -> int:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63
    return int(value) if known else 0  # type: ignore[call-overload]
