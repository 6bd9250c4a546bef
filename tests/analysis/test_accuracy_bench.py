"""bench/accuracy.py: measured runs are held against a screening of the same layouts, or it says why not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import evidence as ev
import pytest

from ztune.analysis.results import LayoutResult, collect
from ztune.errors import ZtuneError
from ztune.study.layout import parse_layout


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "accuracy.py"
    monkeypatch.syspath_prepend(str(path.parent))  # for what scripts share
    spec = importlib.util.spec_from_file_location("bench_accuracy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_accuracy", module)  # which its dataclasses look for
    spec.loader.exec_module(module)
    return module


def results(size: str | None) -> list[LayoutResult]:
    raw = ev.base_layout()
    if size is not None:
        raw["pool"][0]["vdev"][0]["size"] = size
    return list(collect(ev.trials([parse_layout(raw)])).layouts)


def test_layouts_that_differ_in_what_no_name_says_are_not_passed_over(accuracy: ModuleType) -> None:
    accuracy.check_same(["a"], "b", results("4T"), results("4T"))
    accuracy.check_same(["a"], "b", [], results("4T"))  # all trials were left out, which is said
    with pytest.raises(ZtuneError) as refused:
        accuracy.check_same(["a"], "b", results(None), results("4T"))
    assert str(refused.value).startswith(
        'run a and screening b have no layout in common: their "base" differs in pool; screen by the study'
    )
