"""Who writes what another one reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_builder import MS, build, files

from ztune.trace.copies import copies
from ztune.trace.ops import PAUSES, export_ops, read_ops
from ztune.trace.reader import Trace
from ztune.trace.schema import Op

SERVER, CLIENT, OTHER = 10, 20, 30
FILES = files(
    ("/db/table", "data", 64 << 20), ("/backup/table", "backup", 0), ("/db/other", "data", 64 << 20)
)
PIECE = 1 << 20


def recording(folder: Path, *, others: int = 0, shrinks: int = 1, late: int = 0) -> Trace:
    """32 MiB are read, and written ``late`` pieces later, ``shrinks`` times smaller; ``others`` read too."""
    events = []
    for i in range(32 + late):
        read = {"op": Op.READ, "size": PIECE, "t": 10 * i * MS}
        if i < 32:
            events.append({**read, "tid": SERVER, "file": 0, "offset": i * PIECE})
        events += [{**read, "tid": OTHER + k, "file": 2, "offset": i * PIECE} for k in range(others)]
        if i >= late:
            at, size = (i - late) * PIECE // shrinks, PIECE // shrinks
            row = {"op": Op.WRITE, "tid": CLIENT, "file": 1, "offset": at, "size": size}
            events.append({**row, "t": (10 * i + 5) * MS})
    events.append({"op": Op.FSYNC, "tid": CLIENT, "file": 1, "t": 1000 * MS})
    return build(folder / "copy.trace", events, FILES, duration_ns=1001 * MS)


@pytest.mark.parametrize("shrinks", [1, 3])
def test_who_writes_what_another_reads_is_one_thread_with_it(tmp_path: Path, shrinks: int) -> None:
    trace = recording(tmp_path, shrinks=shrinks)
    assert copies(trace) == {CLIENT: SERVER}
    info = export_ops(trace, tmp_path / "ops.bin")
    records = read_ops(tmp_path / "ops.bin")[1]
    assert info.threads == 1 and set(records["thread"]) == {0}
    assert (records["flags"] & PAUSES).all() and np.all(np.diff(records["t"]) >= 0)


@pytest.mark.parametrize("how", [{"others": 1}, {"late": 16}])
def test_where_it_is_not_known_whose_bytes_are_whose_threads_stay_apart(
    tmp_path: Path, how: dict[str, int]
) -> None:
    trace = recording(tmp_path, **how)
    assert copies(trace) == {}
    export_ops(trace, tmp_path / "ops.bin")
    records = read_ops(tmp_path / "ops.bin")[1]
    assert len(set(records["thread"])) >= 2 and not (records["flags"] & PAUSES).any()


def test_without_a_copy_nothing_is_looked_for(tmp_path: Path) -> None:
    events = [{"op": Op.READ, "tid": SERVER, "file": 0, "offset": 0, "size": 64 << 20, "t": MS}]
    assert copies(build(tmp_path / "a.trace", events, FILES[:1])) == {}


@pytest.mark.parametrize("size", [8192, 3 << 20])
def test_where_little_is_moved_nothing_is_told_of_a_copy(tmp_path: Path, size: int) -> None:
    row = {"op": Op.READ, "tid": SERVER, "file": 0, "offset": 0, "size": size, "t": MS}
    dump = {"op": Op.WRITE, "tid": CLIENT, "file": 1, "offset": 0, "size": size, "t": 2 * MS}
    trace = build(tmp_path / "a.trace", [row, dump], FILES)
    assert copies(trace) == {}
    # An old dump beside the database, which nothing touches.
    assert copies(build(tmp_path / "b.trace", [row], FILES)) == {}
