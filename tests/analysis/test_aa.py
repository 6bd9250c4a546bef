"""bench/aa.py: two equal layouts come out as no difference, two unequal ones don't."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from measured_trials import layout, run, trials

from ztune.errors import ZtuneError


@pytest.fixture
def aa(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "aa.py"
    monkeypatch.syspath_prepend(str(path.parent))  # for what scripts share
    spec = importlib.util.spec_from_file_location("bench_aa", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BASE = (layout("base"), {"written": 40_000.0})


def test_a_against_a(aa: ModuleType) -> None:
    found = aa.judge(run(), trials([BASE], 20, spread=0.03, twin=True))
    assert {"time per op", "written per op", "disk I/Os per op"} <= {r["measure"] for r in found}
    assert all(r["no_difference"] >= 95 for r in found), found
    assert all(r["equal"] + r["open"] == r["no_difference"] for r in found)


def test_a_target_that_treats_equal_layouts_unequally_fails(aa: ModuleType) -> None:
    by = {r["measure"]: r for r in aa.judge(run(), trials([BASE], 12, spread=0.02, twin=True))}
    assert by["time per op"]["whole"] != "resolved"
    base = trials([BASE], 12, spread=0.02, drift=0.0, twin=True)
    second = trials([(BASE[0], {**BASE[1], "seconds": 0.0115})], 12, spread=0.02, drift=0.0, seed=2)
    biased = [
        replace(second[t.block - 1], number=t.number, twin=1, is_baseline=False) if t.twin else t
        for t in base
    ]
    by = {r["measure"]: r for r in aa.judge(run(), biased)}
    assert by["time per op"]["whole"] == "resolved"
    assert by["written per op"]["whole"] != "resolved" and by["written per op"]["no_difference"] >= 95


def test_another_run_is_refused(aa: ModuleType) -> None:
    with pytest.raises(ZtuneError, match="is no A/A run"):
        aa.judge(run(), trials([BASE, (layout("8K", data__recordsize="8K"), {})], 3))


def test_its_exit_code(aa: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    assert aa.main(["nobody"]) == 2
    monkeypatch.setattr(aa, "judge", lambda *_: [{
        "measure": "m", "blocks": 9, "no_difference": 94, "equal": 90, "open": 4, "of": 100,
        "whole": "open", "spread": 0.1, "ratio": 1.0
    }])  # fmt: skip
    monkeypatch.setattr(aa.Store, "run", lambda *_: replace(run()))
    monkeypatch.setattr(aa.Store, "trials", lambda *_: [])
    assert aa.main(["x"]) == 1
