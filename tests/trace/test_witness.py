"""The trace as a witness: what was acknowledged without a sync contradicts the promise of durability."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ztune.onhost.declared import KNOWN, Declared
from ztune.trace.manifest import RecorderInfo, TraceFile, Warning_, WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.schema import Flag, Op
from ztune.trace.witness import Witness, kept, of_run, witness
from ztune.trace.writer import EVENT_DTYPE, TraceWriter


def seen(**changes: Any) -> Witness:
    return Witness(**{"operations": 5000, "unit": "transaction", "clients": 0, "writes": 9000, "log": True,
                      "syncs": 1, **changes})  # fmt: skip


def test_thousands_of_acknowledged_operations_with_one_sync() -> None:
    assert seen().against(KNOWN) == (
        "the trace contradicts it: 5,000 transactions were acknowledged and 9,000 writes made with 1 sync"
    )


@pytest.mark.parametrize(
    "changes, declared, contradicts",
    [
        ({"syncs": 5000}, KNOWN, False),
        ({"syncs": 50}, KNOWN, False),  # one for each hundred
        ({"syncs": 49}, KNOWN, True),
        ({"syncs": 10, "clients": 300}, KNOWN, False),  # all clients in one group
        ({"syncs": 8, "clients": 300}, KNOWN, True),
        ({"operations": 900}, KNOWN, False),
        ({"writes": 900}, KNOWN, False),  # they read
        ({"unit": "row"}, KNOWN, False),  # of one import
        ({"unit": "row"}, Declared(default=None), True),
        ({"unit": "row"}, Declared(together=0), False),
        ({}, Declared(together=6000), False),
        ({"operations": 0, "syncs": 0}, KNOWN, True),  # a log that is never synced
        ({"operations": 0, "syncs": 0, "log": False}, KNOWN, False),
        ({"operations": 0, "syncs": 1}, KNOWN, False),
    ],
)
def test_what_contradicts(changes: dict[str, Any], declared: Declared, contradicts: bool) -> None:
    assert bool(seen(**changes).against(declared)) == contradicts


def trace(path: Path, rows: Sequence[tuple[int, int, int]], **more: Any) -> Trace:
    """Return a trace of (op, flags, file) on a log, data and a file without a role."""
    roles = ("wal", "data", None)
    files = [TraceFile(id=i, path=f"/db/{i}", role=role) for i, role in enumerate(roles)]  # type: ignore[arg-type]
    events = np.zeros(len(rows), EVENT_DTYPE)
    for i, (op, flags, file) in enumerate(rows):
        events[i] = (i * 1000, 10, 1, 1, op, 0, flags, file, -1, 0 if op == Op.WRITE else -1, 512, 0, 0)
    with TraceWriter(path) as writer:
        writer.add_rows(events)
        writer.finish(duration_ns=10**9, recorder=RecorderInfo(name="synthetic"), files=files, **more)
    return Trace.open(path)


def test_what_a_trace_shows(tmp_path: Path) -> None:
    rows = [
        *[(Op.WRITE, 0, 0)] * 7,
        *[(Op.WRITE, int(Flag.DSYNC), 0)] * 2,
        *[(Op.WRITE, int(Flag.SYNC), 1), (Op.WRITE, 0, 1), (Op.WRITE, 0, 2)],
        *[(Op.FSYNC, 0, 0), (Op.FDATASYNC, 0, 1), (Op.MSYNC, 0, 1), (Op.SYNC, 0, -1), (Op.SYNC_RANGE, 0, 0)],
    ]
    info = WorkloadInfo(name="x", parameters={"clients": 8}, result={"operations": 12.0, "unit": "commit"})
    found = witness(trace(tmp_path / "a.trace", rows, workload=info))
    # Only the log's writes; one to a file that is open for sync waits too, sync_file_range promises nothing.
    assert found == Witness(operations=12, unit="commit", clients=8, writes=9, log=True, syncs=7)
    live = witness(trace(tmp_path / "b.trace", rows))
    assert live is not None and live.operations == 0 and live.clients == 0


@pytest.mark.parametrize("code", ["shared-mmap", "uring-unseen"])
def test_a_trace_that_did_not_see_all_is_no_witness(tmp_path: Path, code: str) -> None:
    warnings = [Warning_(code=code, message="Something was not seen.")]
    assert witness(trace(tmp_path / "a.trace", [(Op.WRITE, 0, 0)], warnings=warnings)) is None


def test_a_run_keeps_what_its_trace_showed(tmp_path: Path) -> None:
    shown = trace(tmp_path / "a.trace", [(Op.WRITE, 0, 0), (Op.FSYNC, 0, 0)])
    outcome = json.loads(json.dumps(kept(shown)))
    assert of_run(outcome, None) == of_run({}, shown) == witness(shown)
    assert witness(shown) is not None
    blind = trace(tmp_path / "b.trace", [], warnings=[Warning_(code="dropped", message="Lost.")])
    assert of_run(kept(blind), shown) is None and of_run({}, None) is None
