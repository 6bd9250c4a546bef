"""A percentile is printed where enough calls have one, everywhere by one rule; JSON keeps value and count."""

from __future__ import annotations

from typing import Any

import evidence as ev
import measured_trials as made
import pytest

from ztune.advice.model import Recommendation
from ztune.advice.recommend import recommend
from ztune.analysis.contrast import two_factor
from ztune.analysis.results import collect
from ztune.onhost.latency import tells
from ztune.report import charts
from ztune.report.predictions import predicted_load
from ztune.store.records import Trial
from ztune.study.layout import parse_layout, with_settings


@pytest.mark.parametrize(
    ("count", "share", "enough"),
    [
        (100, 0.99, True),
        (99, 0.99, False),
        (10, 0.9, True),
        (9, 0.9, False),
        (1000, 0.999, True),
        (1, 0.5, False),
    ],
)
def test_one_call_lies_beyond_a_quantile(count: int, share: float, enough: bool) -> None:
    assert tells(count, share) is enough


def recommended(model: dict[str, Any]) -> Recommendation:
    """Of one replay, with this beside what each model has."""
    measure = {
        "model": {"modelled_s": 1.0, "trace_s": 9.0, **model},
        "space": {"allocated": 1.0},
        "physical": {"write_bytes": 1.0},
    }
    return recommend(ev.run(), [ev.trial(parse_layout(ev.base_layout()), 1, measure, baseline=True)])


@pytest.mark.parametrize(("syncs", "shown"), [(5, "–"), (100, "7.00 ms")])
def test_what_replays_predict(syncs: int, shown: str) -> None:
    times = {"count": syncs, "p50": 3.0, "p99": 7.0}
    found = recommended({"pace": 0.5, "sync_latency_ms": times})
    table = predicted_load(found)
    assert table is not None
    assert table.rows[0][1][1:] == ("3.00 ms", shown, "–")
    row = found.ranking[0]
    assert row.values["sync_p99"] == 7.0
    assert row.few_calls == ({"sync_p99": 5} if syncs == 5 else {})


def test_what_replays_predict_of_operations() -> None:
    times = {"count": 20, "p50": 3.0, "p99": 7.0}
    table = predicted_load(recommended({"speed": 0.5, "operation_latency_ms": times}))
    assert table is not None and table.rows[0][1][1:3] == ("3.00 ms", "–")


@pytest.mark.parametrize(("syncs", "told"), [(5, False), (100, True)])
def test_what_a_setting_does_to_a_percentile(syncs: int, told: bool) -> None:
    def trial(number: int, recordsize: str, p99: float) -> Trial:
        times = {"count": syncs, "p50": 3.0, "p99": p99}
        return ev.trial(
            with_settings(parse_layout(ev.base_layout()), {"data.recordsize": recordsize}, recordsize),
            number,
            {
                "model": {"modelled_s": float(number), "trace_s": 9.0, "sync_latency_ms": times},
                "space": {"allocated": 1.0},
                "physical": {"write_bytes": 1.0},
            },
            baseline=number == 1,
        )

    found = recommend(ev.run(), [trial(1, "128K", 4.0), trial(2, "16K", 8.0)])
    assert [("sync_p99" in row.ratios) for row in found.effects] == [told]


@pytest.mark.parametrize(("operations", "told"), [(50, False), (100, True)])
def test_what_blocks_measured(operations: int, told: bool) -> None:
    changes: list[dict[str, str]] = [{}, {"data__recordsize": "16K"}, {"data__compression": "off"}]
    square = [*changes, changes[1] | changes[2]]
    layouts = [(made.layout(str(i), **one), {"operations": operations}) for i, one in enumerate(square)]
    cells = collect(made.trials(layouts, 3, spread=0)).layouts
    assert bool(charts.dots(cells, "p99", None)) is told
    assert charts.dots(cells, "time", None)
    assert len(two_factor(cells, "p99")) == told
