"""Jobs with a rate: what was asked for and what was done says who kept up, and latency which of them is
best."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measured_trials import layout, run, trials

from ztune.analysis.pace import pace
from ztune.analysis.resolve import decide
from ztune.analysis.results import LayoutResult, collect
from ztune.analysis.standing import Standing, standing
from ztune.analysis.verdict import goals, judge, outcome, sentence
from ztune.output import Console, Text
from ztune.report import measured as report
from ztune.store.records import Run, Trial

Numbers = Mapping[str, float]
BASE, LOG = layout("base"), layout("log device", slog="nvme")
SMALL, ODD = layout("8K", data__recordsize="8K"), layout("1M", data__recordsize="1M")
# All do 1,000 a second, as they were asked to; a log device halves what each waits.
KEPT: Numbers = {"seconds": 0.001, "latency": 11.7, "offered": 1000.0}
QUICK: Numbers = {**KEPT, "latency": 5.4}
LATE: Numbers = {**KEPT, "seconds": 1 / 412, "latency": 2.0}  # fio's latency knows no queue before a late I/O


def cells(*arms: tuple[Any, Numbers], blocks: int = 3, **noise: float) -> tuple[LayoutResult, ...]:
    return collect(trials(arms, blocks, **{"spread": 0.003, "drift": 0.0, **noise})).layouts  # type: ignore[arg-type]


def decided(found: list[Trial], **fields: Any) -> tuple[Run, Standing]:
    first = run(**fields)
    answer = judge(first, collect(found), 0.02, 6)
    assert answer is not None
    names = {t.arm: t.layout_name for t in found}
    made = replace(first, outcome=outcome(*answer, "settled", names))
    return made, standing(made, found)


def test_where_all_keep_the_pace_latency_decides() -> None:
    found = trials([(BASE, KEPT), (LOG, QUICK)], 4, spread=0.003, drift=0.0)
    made, now = decided(found)
    assert made.outcome["measure"] == "latency" and made.outcome["verdict"] == "resolved"
    assert [(p.rank, p.result.name, p.standing) for p in now.places] == [
        (1, "log device", "leader"),
        (2, "base", "worse"),
    ]
    # The mean decides; beside it, its p99.
    assert now.columns(3) == ["latency", "p99", "space"]


def test_a_ratio_is_whole_at_80_columns() -> None:
    cells = ["12", "0.0153 ms", "0.00042 (0.000045 … 0.00128)"]
    line = report.Line(1, "data.recordsize=8K", True, Text("  not resolved"), "last-seconds", cells)
    console = Console(width=80, file=(out := io.StringIO()))
    console.print(report.places(["runs", "mean latency", "to baseline"], [line]))
    text = out.getvalue()
    assert "0.00128)" in text and "0.00042" in text and "◀ recommended" in " ".join(text.split())


def test_parameters_that_the_job_does_not_use_say_nothing() -> None:
    # A fio job file: rate_iops of the parameters is its default, the file's own rate is 53.
    job = {"workload": "fio", "name": "fio", "params": {"rate_iops": 1000, "job_text": "[log]\n"}}
    slow = {**KEPT, "seconds": 1 / 53, "offered": 53.0}
    found = trials([(BASE, slow), (LOG, {**slow, "latency": 5.4})], 4, spread=0.003, drift=0.0)
    made, now = decided(found, job=job)
    assert made.outcome["measure"] == "latency" and now.first is not None and now.first.name == "log device"
    # postgres-backup: its rate is that of bystanders, its operations are rows, and none has a latency of its
    # own.
    rows = trials([(BASE, {}), (LOG, {"seconds": 0.005})], 3)
    for trial in rows:
        assert trial.result is not None
        trial.result["job"]["latency_ms"] = {}
    backup = {"workload": "postgres-backup", "name": "postgres-backup", "params": {"rate": 50}}
    assert goals(run(job=backup), collect(rows).layouts)[0] == "time"


def test_one_that_falls_behind_is_set_apart_and_does_not_decide_for_the_others() -> None:
    found = trials([(BASE, KEPT), (ODD, LATE), (LOG, QUICK), (SMALL, {**KEPT, "latency": 7.9})], 4,
                   spread=0.003, drift=0.0)  # fmt: skip
    made, now = decided(found)
    assert made.outcome["measure"] == "latency" and made.outcome["verdict"] == "resolved"
    assert [(p.result.name, p.standing, p.lag) for p in now.places] == [
        ("log device", "leader", ""),
        ("8K", "worse", ""),
        ("base", "worse", ""),
        ("1M", "worse", "falls behind: 412 of 1,000/s"),
    ]
    assert now.places[-1].to_leader is None
    assert sentence(made.outcome, 0.02).endswith("; 1M can't keep the pace of the job")
    assert report.to_json(made, found)["layouts"][-1]["behind"] == "falls behind: 412 of 1,000/s"


def test_a_baseline_that_falls_behind_is_worse_than_what_keeps_up() -> None:
    _, now = decided(trials([(BASE, LATE), (LOG, QUICK)], 4, spread=0.003, drift=0.0))
    assert [p.result.name for p in now.places] == ["log device", "base"]
    chosen = now.chosen
    assert chosen is not None and chosen.name == "log device"


def test_where_nobody_keeps_up_the_job_goes_as_fast_as_it_can() -> None:
    found = cells((BASE, LATE), (LOG, {**LATE, "seconds": 1 / 700}))
    assert pace(found) is None and goals(run(), found)[0] == "time"
    assert pace(cells((BASE, {"offered": 0.0}), (LOG, {"offered": 0.0}))) is None


def test_where_nothing_was_said_equal_rates_say_it() -> None:
    old = {"seconds": 0.0187, "latency": 11.7}
    found = cells((BASE, old), (LOG, {"seconds": 0.0188, "latency": 5.4}), spread=0.0)
    shown = pace(found)
    assert shown is not None and not shown.behind and goals(run(), found)[0] == "latency"
    assert pace(cells((BASE, old), (LOG, {**old, "seconds": 0.0193}), spread=0.0)) is None
    assert pace(cells((BASE, old), spread=0.0)) is None
    # Equal rates of a job without latencies, such as an import, are no pace: its disks don't matter.
    bare = [replace(one, values={k: v for k, v in one.values.items() if k != "latency"}) for one in found]
    assert pace(bare) is None


def test_a_run_that_was_decided_by_time_is_decided_again() -> None:
    found = trials([(BASE, {"seconds": 0.0187, "latency": 11.7}), (LOG, {"seconds": 0.0188, "latency": 5.4})],
    4,
                   spread=0.001, drift=0.0)  # fmt: skip
    base = found[0].arm
    stored = {"measure": "time", "label": "time per op", "reason": "blocks", "verdict": "equal", "leader":
    base,
              "leader_name": "base", "blocks": 4, "needed": None, "level": 0.99, "others": []}  # fmt: skip
    now = standing(run(outcome=stored), found)
    assert now.first is not None and now.first.name == "log device"
    assert now.outcome["measure"] == "latency" and now.outcome["reason"] == "blocks"


@pytest.mark.parametrize("arrived", [0.94, 0.90])
def test_a_random_schedule_is_not_taken_for_falling_behind(arrived: float) -> None:
    # Of 400 transactions 360 became due: two standard deviations, the same under every layout.
    row = {"seconds": 1 / (20 * arrived), "operations": 400 * arrived, "offered": 20.0, "latency": 9.0}
    found = cells((BASE, row), (LOG, {**row, "latency": 4.0}), spread=0.0)
    shown = pace(found)
    assert shown is not None and not shown.behind
    # Where one layout did them all, 92 % of them are too few.
    found = cells((BASE, {**row, "seconds": 1 / 18.4}), (LOG, {**row, "seconds": 1 / 20}), spread=0.0)
    shown = pace(found)
    assert shown is not None and shown.behind == {found[0].arm}


def test_falling_behind_must_be_known_as_well_as_any_difference() -> None:
    kept = {"a": {1: 5.0, 2: 5.1, 3: 4.9}}
    sure = decide(kept, looks=6, behind={"late": {1: 0.43, 2: 0.44, 3: 0.42}})
    assert sure is not None and sure.verdict == "resolved" and sure.others[0].behind
    # Once the host was busy: two blocks below, one above, says nothing yet.
    unsure = decide(kept, looks=6, behind={"late": {1: 0.8, 2: 0.99, 3: 1.04}})
    assert unsure is not None and unsure.open == ("late",) and unsure.needed is not None


def test_a_layout_against_itself_shows_no_difference() -> None:
    wrong = 0
    for seed in range(40):
        found = trials([(BASE, KEPT)], 5, spread=0.05, drift=0.0, seed=seed, twin=True)
        answer = judge(run(), collect(found), 0.02, 6)
        assert answer is not None and answer[0] == "latency"
        wrong += any(o.standing == "worse" for o in answer[1].others)
    assert wrong <= 2  # 5 % of 40


def test_a_recorded_run_of_a_job_file() -> None:
    # As measured: a log device halves the latency, a layout of 1M without caching does 78 of 85 a second.
    stored = json.loads((Path(__file__).parent / "data" / "fio-paced.json").read_text())
    layouts = {
        "base": BASE,
        "log device": LOG,
        "8K, log device": layout("8K, log device", data__recordsize="8K", slog="nvme"),
        "no caching": ODD,
    }
    arms = [layouts[one["layout"]] for one in stored["trials"]]
    found = [
        replace(made, block=one["block"], result=one["result"], is_baseline=lay is BASE)
        for lay, one, made in zip(
            arms, stored["trials"], (trials([(a, {})], 1)[0] for a in arms), strict=True
        )
    ]
    # No parameter says it: rate_iops is 1000, and not used.
    assert stored["params"]["rate_iops"] == 1000
    made, now = decided(found, job={"workload": "fio", "name": "fio", "params": stored["params"]})
    assert made.outcome["measure"] == "latency" and made.outcome["leader_name"] == "log device"
    assert [p.result.name for p in now.places] == ["log device", "8K, log device", "base", "1M"]
    assert [p.lag for p in now.places] == ["", "", "", "falls behind: 78.0 of 85.0/s"]
    # Runs of an older ztune don't say what was asked for; then one that lags leaves time per operation.
    for trial in found:
        assert trial.result is not None
        del trial.result["job"]["offered_per_second"]
    kept = [t for t in found if t.layout_name != "1M"]
    assert (
        goals(run(), collect(kept).layouts)[0] == "latency"
        and goals(run(), collect(found).layouts)[0] == "time"
    )


def test_names_of_layouts_that_hold_commas_are_told_apart() -> None:
    names = ("a=1", "a=1, b=2", "c=3", "d=4", "e=5")
    open_ = [{"name": name, "standing": "open", "ratio": None} for name in names]
    found = {
        "label": "time per op", "leader_name": "base", "blocks": 3, "verdict": "open", "needed": None,
        "others": open_,
    }  # fmt: skip
    assert "base leads, but a=1 or a=1, b=2 or c=3 or 2 more may be as good" in sentence(found, 0.02)
