"""Events: how often progress is told."""

from __future__ import annotations

import io
import time

import pytest

from ztune.onhost import events


def test_a_clock_that_is_put_back_silences_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is silent for hours is taken for stuck."""
    out = io.StringIO()
    told = events.Events(out)
    monkeypatch.setattr(events, "PROGRESS_SECONDS", 0.05)
    told.step("measure", "begin")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    for _ in range(3):
        time.sleep(0.06)
        told.step("measure", "progress", 0.5)
        told.step("measure", "progress", 0.5)
    assert out.getvalue().count('"progress"') == 3
