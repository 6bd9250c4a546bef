"""The share of the recorded pace that a replay kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ztune.places.replay import pace
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


def test_an_older_engine_s_result_stays_as_it_is() -> None:
    result: dict[str, Any] = {"measure": {"model": {"trace_s": 10.0}}}
    pace(result, trace({}))
    assert "pace" not in result["measure"]["model"]
