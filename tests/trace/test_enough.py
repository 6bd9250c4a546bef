"""How much a trace has of each role, and the sentences where that is too little."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_traces import make_trace

from ztune.errors import InputError
from ztune.trace.enough import LEAST_BYTES, LEAST_CALLS, LEAST_COMMITS, Recorded, lacking, recorded, summed
from ztune.trace.manifest import Manifest
from ztune.trace.reader import Trace
from ztune.trace.witness import witness


def of(trace: Trace, **changes: object) -> Manifest:
    return trace.manifest.model_copy(update=changes)


def test_calls_and_commits_are_counted_by_role(tmp_path: Path) -> None:
    found = recorded(make_trace(tmp_path / "t.trace", writes=30))
    assert (found["data"].calls, found["data"].commits, found["data"].log) == (30, 0, False)
    assert (found["wal"].calls, found["wal"].commits, found["wal"].log) == (30, 30, True)
    assert found["data"].bytes == 30 * 8192


def test_without_a_log_what_is_synced_is_one(tmp_path: Path) -> None:
    found = recorded(make_trace(tmp_path / "t.trace", roles=("temp", "data"), writes=30))
    assert found["data"].log and not found["temp"].log


def test_one_commit_and_a_dozen_writes_are_too_little(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.trace", writes=12)
    manifest = of(trace, pids=[1])
    one = Recorded("wal", calls=12, bytes=12 * 8192, commits=1, log=True)
    assert one.lacks(manifest) == (
        "Not enough was recorded of wal: 1 commit (advice on a log takes 100) and 12 reads and writes "
        "(advice on record sizes takes 100, or 12.5 MiB); record longer (--seconds 20)."
    )
    assert one.lacks(manifest, log=False).startswith("Not enough was recorded of wal: 12 reads and writes")
    assert one.lacks(manifest, log=False, sizes=False) == ""
    # A command has its own end; without a single commit nobody knows how long.
    assert one.lacks(of(trace, command=["x"])).endswith("; give it more to do.")
    assert Recorded("wal", 200, 1 << 20, 0, True).lacks(manifest).endswith("(--seconds), while it is used.")
    assert len(lacking(trace)) == 2


@pytest.mark.parametrize(
    ("calls", "moved", "enough"),
    [
        (LEAST_CALLS, 0, True),
        (LEAST_CALLS - 1, 0, False),
        (3, LEAST_BYTES, True),
        (3, LEAST_BYTES - 1, False),
    ],
)
def test_a_hundred_calls_or_as_many_records(calls: int, moved: int, enough: bool) -> None:
    assert Recorded("backup", calls, moved, 0, False).sizes is enough


def test_roles_of_one_dataset_count_together() -> None:
    both = summed([Recorded("data", 60, 1, 40, False), Recorded("wal", 60, 2, LEAST_COMMITS - 40, True)])
    assert (both.role, both.sizes, both.commit, both.log) == ("data and wal", True, True, True)


def test_a_trace_that_has_enough_lacks_nothing(trace: Trace) -> None:
    assert lacking(trace) == []


def test_a_trace_is_counted_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_trace(tmp_path / "whole.trace", writes=30)
    monkeypatch.setattr("ztune.trace.writer.ROW_GROUP", 7)
    parts = make_trace(tmp_path / "parts.trace", writes=30)
    assert len(list(parts.parts("op"))) > 5
    assert recorded(parts) == recorded(whole) and witness(parts) == witness(whole)


def test_a_damaged_part_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ztune.trace.writer.ROW_GROUP", 7)
    trace = make_trace(tmp_path / "t.trace", writes=30)
    trace.manifest = of(trace, files=trace.manifest.files[:1])
    with pytest.raises(InputError, match=r"file is not one of the 1 files \(row \d+: 1\)"):
        recorded(trace)
