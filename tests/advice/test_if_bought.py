"""The recommendation is for the hardware that is there; what other hardware would bring stands beside it."""

from __future__ import annotations

import random
from typing import Any

import evidence as ev
import pytest
from measured_trials import result

from ztune.advice.model import Purchase, Recommendation
from ztune.advice.recommend import recommend
from ztune.analysis.standing import standing
from ztune.analysis.verdict import outcome
from ztune.errors import InputError
from ztune.runs.options import TrialOptions
from ztune.runs.stopping import judge
from ztune.store.records import Run, Trial
from ztune.study.layout import parse_layout, with_settings

BASE = parse_layout(ev.base_layout())
Changes = dict[str, str]


def trials(*entries: tuple[Changes, float]) -> list[Trial]:
    """Return replays of layouts given as changes to the base, which comes first, with their seconds."""

    def measure(seconds: float) -> dict[str, Any]:
        return {
            "model": {
                "modelled_s": seconds, "busy_s_max": seconds, "thread_wait_s_max": seconds / 2,
                "trace_s": 100.0,
            },
            "space": {"allocated": 1e9, "logical": 2e9},
            "physical": {"write_bytes": 1e9},
        }  # fmt: skip

    return [
        ev.trial(with_settings(BASE, changes, ev.name_of(changes)), n, measure(seconds), baseline=n == 1)
        for n, (changes, seconds) in enumerate(entries, start=1)
    ]


ENTRIES: list[tuple[Changes, float]] = [
    ({}, 100),
    ({"data.recordsize": "8K"}, 60),
    ({"slog": "nvme"}, 30),
    ({"data.recordsize": "8K", "slog": "nvme"}, 12),
    ({"arc": "1G"}, 70),
    ({"arc": "1G", "slog": "nvme"}, 20),
]


def recommended(have: Changes | None = None, of: list[tuple[Changes, float]] = ENTRIES) -> Recommendation:
    return recommend(ev.run(options={"have": have or {}}), trials(*of), manifest=ev.manifest())


def bought(r: Recommendation) -> dict[str, Purchase]:
    return {",".join(f"{k}={v}" for k, v in p.hardware.items()): p for p in r.if_bought}


def disk_work(p: Purchase) -> float | None:
    return next(h.side.ratio for h in p.headlines if h.name == "disk work")


def test_what_has_to_be_bought_is_no_part_of_the_first_answer() -> None:
    r = recommended()
    assert r.layout_name == "data.recordsize=8K"
    assert [row.layout for row in r.ranking] == ["data.recordsize=8K", "base"]
    assert {row.layout for row in r.to_buy} == {c[0] and ev.name_of(c[0]) for c in ENTRIES[2:]}
    assert all(row.rank is None and row.to_buy and not row.recommended for row in r.to_buy)
    assert not any(row.to_buy for row in r.ranking)
    assert "nvme" not in r.verdict and "slog" not in " ".join(r.confidence.reasons)


def test_each_is_shown_on_the_recommended_layout_where_it_was_tried_there() -> None:
    found = bought(recommended())
    assert set(found) == {"slog=nvme", "arc=1G", "arc=1G,slog=nvme"}
    slog = found["slog=nvme"]
    assert (slog.layout, slog.differs, disk_work(slog)) == ("data.recordsize=8K, slog=nvme", {}, 0.2)
    assert slog.trials == [4] and slog.sentence.startswith("slog=nvme: disk work ×0.20; waiting")
    arc = found["arc=1G"]
    assert (arc.layout, arc.beside, arc.differs) == ("arc=1G", "base", {})
    assert disk_work(arc) == 0.7
    assert arc.sentence.startswith("arc=1G (beside base, not the recommended layout): disk work ×0.70; ")


def test_without_a_pair_the_best_that_has_it_is_shown_with_what_else_it_changes() -> None:
    entries = [*ENTRIES[:2], ({"slog": "nvme", "data.compression": "zstd-3"}, 40.0)]
    (slog,) = recommended(of=entries).if_bought
    assert (slog.beside, slog.differs) == (
        "data.recordsize=8K",
        {"data.compression": "zstd-3", "data.recordsize": "128K"},
    )
    assert disk_work(slog) == pytest.approx(40 / 60)
    also = "data.compression=zstd-3, data.recordsize=128K"
    assert f"slog=nvme (tried with {also}, not with the recommended layout): disk" in slog.sentence


@pytest.mark.parametrize(
    ("have", "layout", "left"),
    [
        ({"slog": "nvme"}, "data.recordsize=8K, slog=nvme", {"arc=1G"}),
        ({"arc": "4G"}, "data.recordsize=8K", {"slog=nvme"}),
        ({"slog": "nvme", "arc": "1G"}, "data.recordsize=8K, slog=nvme", set()),
        ({"slog": "ssd-sata"}, "data.recordsize=8K", {"slog=nvme", "arc=1G", "arc=1G,slog=nvme"}),
    ],
)
def test_what_the_user_has_counts_as_his(have: Changes, layout: str, left: set[str]) -> None:
    r = recommended(have)
    assert r.layout_name == layout
    assert set(bought(r)) == left


def test_a_weak_layout_is_set_apart_whatever_it_takes() -> None:
    r = recommended(of=[*ENTRIES[:2], ({"slog": "nvme", "data.sync": "disabled", "wal.sync": "disabled"}, 1)])
    assert r.to_buy == [] and r.if_bought == []
    (row,) = r.set_apart
    assert row.to_buy == {"slog": "nvme"}


def test_where_only_hardware_has_a_result_it_says_what_to_add() -> None:
    found = trials(*ENTRIES[:1], *ENTRIES[2:3])
    found[0] = type(found[0])(**{**vars(found[0]), "status": "failed", "result": None, "error": "no room"})
    with pytest.raises(InputError, match=r"base layout leaves unused \(slog=nvme\).*add --have slog=nvme"):
        recommend(ev.run(), found)


def measured(seconds: dict[str, float], **run: Any) -> tuple[Run, list[Trial]]:
    """Return a run of five blocks: base, 8K, log device and both, by their seconds for an operation."""
    changes = {"base": {}, "8K": {"data.recordsize": "8K"}, "log": {"slog": "nvme"}}
    changes["both"] = {**changes["8K"], **changes["log"]}
    dice, out = random.Random(5), list[Trial]()
    for block in range(1, 6):
        for name, of in changes.items():
            made = ev.trial(with_settings(BASE, of, name), len(out) + 1, {}, baseline=name == "base")
            measure = result(seconds[name] * (1 + dice.gauss(0, 0.002)))
            out.append(type(made)(**{**vars(made), "block": block, "result": measure}))
    usual = {"target": {"kind": "mount", "name": "mount"}, "options": {"resolution": 0.02, "blocks": [3, 8]}}
    job = {"workload": "postgres-oltp", "params": {}}
    of_run = ev.run(kind="run", trace_path="", job=job, **{**usual, **run})
    found = judge(of_run, out, TrialOptions())
    assert found is not None
    decided = outcome(*found, "settled", {t.arm: t.layout_name for t in out})
    return type(of_run)(**{**vars(of_run), "outcome": decided}), out


SECONDS = {"base": 0.020, "8K": 0.012, "log": 0.010, "both": 0.006}


def test_a_measured_run_is_decided_among_what_is_there() -> None:
    run, of = measured(SECONDS)
    assert run.outcome["leader_name"] == "both"
    now = standing(run, of)
    assert now.chosen is not None and now.chosen.name == "8K" == now.outcome["leader_name"]
    assert [p.result.name for p in now.ranked] == ["8K", "base"]
    assert {p.result.name for p in now.to_buy} == {"log", "both"}
    r = recommend(run, of)
    assert r.layout_name == "8K"
    (slog,) = r.if_bought
    throughput = next(h for h in slog.headlines if h.name == "throughput").side
    assert (slog.layout, slog.differs) == ("both", {})
    assert throughput.ratio == pytest.approx(2.0, rel=0.02)
    assert throughput.low is not None and throughput.high is not None
    assert throughput.low < 2.0 < throughput.high


def test_what_ran_on_disks_of_the_users_own_is_there() -> None:
    place = {"disks": {"tank": {"data": ["/dev/sda"], "log": ["/dev/nvme0n1"]}}}
    run, of = measured(SECONDS, target={"kind": "local", "name": "local", "place": place})
    assert recommend(run, of).layout_name == "both"
    run, of = measured(SECONDS, target={"kind": "local", "name": "local", "place": {"files": "/srv"}})
    assert recommend(run, of).layout_name == "8K"


def test_with_have_a_measured_run_keeps_its_own_decision() -> None:
    run, of = measured(SECONDS, options={"resolution": 0.02, "blocks": [3, 8], **ev.WITH_LOG})
    now = standing(run, of)
    assert now.outcome == run.outcome and now.chosen is not None and now.chosen.name == "both"


def test_a_run_of_nothing_but_hardware_keeps_the_base() -> None:
    run, of = measured(SECONDS)
    of = [t for t in of if t.layout_name in {"base", "log"}]
    r = recommend(run, of)
    assert r.layout_name == "base" and [p.layout for p in r.if_bought] == ["log"]


def test_the_figures_of_a_measured_run_have_one_name_each() -> None:
    run, of = measured(SECONDS)
    names = [(h.name, h.side.metric) for h in recommend(run, of).headlines]
    assert names[0] == ("throughput", "time")
    throughput = recommend(run, of).headlines[0].side
    assert throughput.here == pytest.approx(1 / 0.020, rel=0.02)
    assert throughput.other == pytest.approx(1 / 0.012, rel=0.02)
    assert throughput.ratio == pytest.approx(0.020 / 0.012, rel=0.02)
    assert all(name != "throughput" for name, _ in names[1:])


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ({"kind": "mount", "name": "mount"}, "mount, modelled disks"),
        ({"kind": "mount", "name": "mount", "disks": "instant"}, "mount"),
        ({"kind": "ssh", "name": "ssh://db7"}, "ssh://db7"),
    ],
)
def test_where_it_was_measured_is_said(target: dict[str, str], place: str) -> None:
    assert recommend(*measured(SECONDS, target=target)).subject.place == place
