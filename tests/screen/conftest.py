from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_traces import make_trace

from ztune.trace.reader import Trace

STAND_IN = Path(__file__).with_name("stand_in_engine.py")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("ZTUNE_HOME", str(folder))
    return folder


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZTUNE_ENGINE", str(STAND_IN))
    monkeypatch.delenv("STAND_IN", raising=False)
    monkeypatch.delenv("STAND_IN_VERSION", raising=False)
    return STAND_IN


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return make_trace(tmp_path / "t.trace")
