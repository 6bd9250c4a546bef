"""What processors hold back, as a recommendation, a terminal and a report say it."""

from __future__ import annotations

from typing import Any

import evidence as ev
import pytest
from rich.console import Console

from ztune.advice.model import Recommendation
from ztune.advice.recommend import recommend
from ztune.report import html, terminal
from ztune.report.predictions import ACCURACY, predicted_load
from ztune.study import Layout

LOG = "slog=nvme"


def recommended(cpu: dict[str, float]) -> Recommendation:
    """Return the recommendation of base and a log device, with their processor times."""

    def measure(layout: Layout) -> dict[str, Any]:
        return {**ev.toy_measure(layout), "cpu_s": cpu[layout.name]}

    layouts = [x for x in ev.layouts() if x.name in {"base", LOG}]
    return recommend(ev.run(options=ev.WITH_LOG), ev.trials(layouts, measure), manifest=ev.manifest())


def test_the_base_is_kept_and_what_is_held_back_is_named() -> None:
    assert recommended({"base": 5.0, LOG: 5.0}).layout_name == LOG
    kept = recommended({"base": 5.0, LOG: 900.0})
    assert kept.layout_name == "base"
    assert kept.verdict == (
        f"Keep the base layout (base): what has less modelled time is held back, as the ranking says ({LOG})."
    )
    note = kept.ranking[-1].note
    assert note == (
        "900 s of processor time for 106 s of modelled time, 17 min of both together; base needs 191 s"
    )
    console = Console(width=300)
    with console.capture() as shown:
        console.print(terminal.ranking(kept))
    assert f"held back: {LOG}: {note}" in shown.get()


def test_where_processors_limit_what_is_recommended_it_says_so() -> None:
    said = " ".join(recommended({"base": 5.0, LOG: 5.0}).confidence.reasons)
    assert "Processors" not in said
    reasons = recommended({"base": 2000.0, LOG: 1900.0}).confidence.reasons
    (reason,) = [r for r in reasons if r.startswith("Processors limit this layout more than its disks")]
    assert "base layout: 33 min of processor time" in reason and "`ztune run --from`" in reason


def test_the_rule_of_the_report_names_both() -> None:
    rule = html.rule(recommended({"base": 5.0, LOG: 5.0}))
    assert "more than twice its share of those after it" in rule
    assert rule.endswith("not first what processors hold back")


def test_the_throughput_of_a_job_without_a_rate_is_predicted_as_a_multiple_of_the_base_s() -> None:
    def measure(layout: Layout) -> dict[str, Any]:
        found = ev.toy_measure(layout)
        return {**found, "model": {**found["model"], "speed": 0.4 if layout.name == "base" else 0.6}}

    layouts = [x for x in ev.layouts() if x.name in {"base", LOG}]
    r = recommend(ev.run(options=ev.WITH_LOG), ev.trials(layouts, measure))
    found = predicted_load(r)
    assert found is not None and found.heads[0] == "throughput" and ACCURACY in found.meaning
    assert {row.layout: cells[0] for row, cells in found.rows} == {"base": "×1.00", LOG: "×1.50"}


@pytest.mark.parametrize("told", [False, True])
def test_what_an_operation_takes_is_predicted_where_each_has_a_sync(told: bool) -> None:
    took = {"operation_latency_ms": {"count": 500, "p50": 4.0, "p99": 9.0}} if told else {}

    def measure(layout: Layout) -> dict[str, Any]:
        found = ev.toy_measure(layout)
        return {**found, "model": {**found["model"], "speed": 0.4, **took}}

    layouts = [x for x in ev.layouts() if x.name in {"base", LOG}]
    found = predicted_load(recommend(ev.run(options=ev.WITH_LOG), ev.trials(layouts, measure)))
    assert found is not None and (found.heads[1] == "operation p50") is told
    assert ("is not predicted" in found.meaning) is not told
    if told:
        assert all(cells[1:3] == ("4.00 ms", "9.00 ms") for _, cells in found.rows)
        # 80 columns: the place, a layout's name, and two between each.
        assert 1 + 16 + sum(2 + max(len(head), len("9.00 ms")) for head in found.heads) + 2 <= 80


def test_the_ranking_says_the_predicted_pace_beside_what_was_recorded() -> None:
    def measure(layout: Layout) -> dict[str, Any]:
        found = ev.toy_measure(layout)
        return {**found, "model": {**found["model"], "pace": 1.0 if layout.name == "base" else 0.25}}

    def shown(result: dict[str, Any]) -> str:
        manifest = ev.manifest()
        assert manifest.workload is not None
        workload = manifest.workload.model_copy(update={"result": result})
        of_job = manifest.model_copy(update={"workload": workload})
        layouts = [x for x in ev.layouts() if x.name in {"base", LOG}]
        options = ev.run(options=ev.WITH_LOG)
        console = Console(width=100)
        with console.capture() as text:
            console.print(terminal.ranking(recommend(options, ev.trials(layouts, measure), manifest=of_job)))
        return text.get()

    text = shown({"operations": 800, "per_second": 40.0, "unit": "transaction"})
    assert "Predicted for the recorded load" in text and "transactions/s" in text
    # A job without a rate of its own may go faster than it did.
    assert "≥ 40.0" in text and "10.0" in text and "may go faster" in text
    text = shown({"operations": 800, "per_second": 40.0, "offered_per_second": 40.0, "unit": "transaction"})
    assert "≥" not in text
    assert "of its pace" in shown({}) and "25%" in shown({})
