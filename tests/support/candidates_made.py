"""Layouts with estimates made up: no trial, only what ranking reads."""

from __future__ import annotations

import evidence as ev

from ztune.analysis.results import LayoutResult
from ztune.analysis.stats import Estimate
from ztune.study import DurabilityClass
from ztune.study.layout import parse_layout

BASE = parse_layout(ev.base_layout())


def candidate(
    name: str,
    time: float,
    space: float = 100.0,
    written: float = 100.0,
    settings: dict[str, str] | None = None,
) -> LayoutResult:
    values = {"modelled_s": time, "allocated": space, "written": written}
    return LayoutResult(
        name=name,
        hash=name,
        layout=BASE,
        settings=settings or {},
        durability=DurabilityClass.NOTHING,
        durability_reasons=(),
        baseline=name == "base",
        trials=(1,),
        estimates={k: Estimate(1, v) for k, v in values.items()},
        measure={},
    )
