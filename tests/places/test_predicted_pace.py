"""The share of the recorded pace that a replay kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ztune.places.replay import pace, speed, unpaced
from ztune.trace.reader import Trace


def trace(details: dict[str, float] | None) -> Trace:
    """Return what of a trace is asked: its job's details; None: of no job of ztune's."""
    workload = None if details is None else SimpleNamespace(result={"details": details})
    return cast(Trace, SimpleNamespace(manifest=SimpleNamespace(workload=workload)))


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        (None, 0.6),
        ({}, 0.6),
        # The last 2 of 10 s are a checkpoint, which a slow disk is late with: the job's own time kept all.
        ({"closing_seconds": 2.0}, 1.0),
        ({"closing_seconds": 99.0}, 1.0),
    ],
)
def test_what_a_job_does_when_it_closes_is_not_its_pace(
    details: dict[str, float] | None, kept: float
) -> None:
    shares = [1.02] * 79 + [0.6] * 21
    result: dict[str, Any] = {"measure": {"model": {"kept": shares, "trace_s": 10.0}}}
    pace(result, trace(details))
    assert result["measure"]["model"]["pace"] == kept


def test_a_job_that_commits_late_has_a_pace() -> None:
    """One that reads for all of its 10 s, and longer on slower disks, before it writes."""
    result: dict[str, Any] = {
        "measure": {"model": {"kept": [0.0] * 100, "trace_s": 10.0, "elapsed_s": 250.0}}
    }
    pace(result, trace({}))
    assert result["measure"]["model"]["pace"] == 0.04


def test_an_older_engine_s_result_stays_as_it_is() -> None:
    result: dict[str, Any] = {"measure": {"model": {"trace_s": 10.0}}}
    pace(result, trace({}))
    assert "pace" not in result["measure"]["model"]


@pytest.mark.parametrize(
    ("result", "known"),
    [(None, False), ({}, False), ({"offered_per_second": 40.0}, False), ({"offered_per_second": 0.0}, True)],
)
def test_a_job_is_unpaced_where_it_says_so(result: dict[str, float] | None, known: bool) -> None:
    workload = None if result is None else SimpleNamespace(result=result)
    assert unpaced(cast(Trace, SimpleNamespace(manifest=SimpleNamespace(workload=workload)))) is known


def test_a_closed_replay_s_speed_is_by_when_most_commits_had_ended() -> None:
    result: dict[str, Any] = {"measure": {"model": {"most_s": 2.0, "most_recorded_s": 8.0}}}
    speed(result)
    assert result["measure"]["model"]["speed"] == 4.0
    older: dict[str, Any] = {"measure": {"model": {}}}
    speed(older)
    assert "speed" not in older["measure"]["model"]
