"""Measured runs: what is read from results, ranked, contrasted, and compared with screening."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_trials import layout, result, run, trials

from ztune.analysis.basis import limits
from ztune.analysis.contrast import two_factor
from ztune.analysis.effects import from_baseline
from ztune.analysis.metrics import MEASURED
from ztune.analysis.predicted import compare, spearman
from ztune.analysis.results import collect
from ztune.analysis.standing import standing
from ztune.analysis.verdict import goals, outcome
from ztune.analysis.why import explain, sentence
from ztune.runs import stopping
from ztune.runs.options import TrialOptions
from ztune.store.records import Trial
from ztune.study import Objective

BASE = (layout("base"), {"written": 40_000.0, "ios": 6.0})
SMALL = (layout("8K", data__recordsize="8K"), {"written": 20_000.0, "ios": 4.0, "seconds": 0.005})


def judged(found: list[Trial], **fields: object) -> object:
    first = run(**fields)
    answer = stopping.judge(first, found, TrialOptions())
    assert answer is not None
    names = {t.arm: t.layout_name for t in found}
    return replace(first, outcome=outcome(*answer, "settled", names))


def test_measures_are_per_operation_of_the_job() -> None:
    found = {k: m.read(result(seconds=0.01, written=20_000, operations=500)) for k, m in MEASURED.items()}
    assert found["time"] == pytest.approx(0.01) and found["per_second"] == pytest.approx(100)
    assert found["written"] == pytest.approx(20_000) and found["written_all"] == pytest.approx(1e7)
    assert found["ios"] == pytest.approx(3) and found["flushes"] == 1
    assert found["amplification"] == pytest.approx(20 / 11)
    assert found["space"] == 300e6 and found["cpu"] == pytest.approx(2 / 500)
    assert found["busy"] == pytest.approx(0.003)  # of the busiest disk
    assert found["log_write"] == pytest.approx(0.02) and found["log_sync"] == pytest.approx(2.0)
    assert found["log_writes"] == 1.5 and found["log_syncs"] == 0.5
    # This job does not say what was asked of it; only a mount has a program whose processor time is known
    # apart, and which times commits; and this database does not count waits for its log.
    missing = [key for key, value in found.items() if value is None]
    calls = [f"commit_{p}" for p in ("p50", "p95", "p99")] + ["read_ms", "read_p50", "read_p95", "read_p99"]
    assert missing == ["offered", "mount_cpu", "commit", *calls, "log_waits"]
    mount = result()
    mount["measure"]["zil"] |= {"commits": 8, "commit_s": 0.02}
    assert MEASURED["commit"].read(mount) == pytest.approx(2.5)
    mount["measure"] |= {"sync_latency_ms": {"p95": 7.5}, "read_latency_ms": {"count": 0}}
    assert MEASURED["commit_p95"].read(mount) == 7.5 and MEASURED["read_p95"].read(mount) is None
    slow = {**result(), "environment": {"dilation": 10}}
    assert MEASURED["busy"].read(slow) == pytest.approx(0.0003)


@pytest.mark.parametrize(
    ("log", "known"),
    [
        ({}, {}),
        ({"writes": 20.0, "syncs": 10.0}, {"log_writes": 0.02, "log_syncs": 0.01}),  # counted, not timed
        (  # open_datasync: no syncs, so no time of one
            {"writes": 20.0, "write_s": 0.1, "syncs": 0.0, "sync_s": 0.0},
            {"log_write": 5.0, "log_writes": 0.02, "log_syncs": 0.0},
        ),
    ],
)
def test_what_a_database_does_not_say_of_its_log_is_absent_and_never_zero(
    log: dict[str, float], known: dict[str, float]
) -> None:
    some = result()
    some["job"]["log"] = log
    read = {k: m.read(some) for k, m in MEASURED.items() if k.startswith("log_")}
    assert {k: v for k, v in read.items() if v is not None} == pytest.approx(known)


def test_a_result_that_lacks_something_lacks_only_that() -> None:
    empty = {
        k: m.read({"job": {"operations": 0}, "measure": {"seconds": 3, "logical": None}})
        for k, m in MEASURED.items()
    }
    assert set(empty.values()) == {None}
    some = result()
    some["measure"]["logical"] = None
    assert MEASURED["amplification"].read(some) is None and MEASURED["written"].read(some) is not None


def test_layouts_are_compared_within_blocks() -> None:
    found = collect(trials([BASE, SMALL], 5, spread=0.001, drift=0.5))
    base, small = found.layouts
    assert found.baseline is base and (len(base.trials), found.blocks, found.pending) == (5, 5, 0)
    ratio = small.against["time"]
    # The blocks differ by half; their ratios don't.
    assert ratio.mean == pytest.approx(0.5, rel=0.01) and ratio.high - ratio.low < 0.01
    assert small.estimates["time"].low is not None
    assert base.against == {}


def test_other_versions_of_openzfs_are_not_mixed() -> None:
    all_ = trials([BASE, SMALL], 3)
    all_[-1] = replace(all_[-1], openzfs_version="2.1.11")
    found = collect(all_)
    assert found.openzfs == "2.3.2" and len(found.layouts[1].trials) == 2
    assert "2.1.11" in found.failed[0].reason


def test_twins_of_an_aa_run_are_apart() -> None:
    found = collect(trials([BASE], 4, twin=True))
    assert [c.name for c in found.layouts] == ["base", "base (again)"]
    assert (
        found.layouts[0].baseline
        and not found.layouts[1].baseline
        and found.layouts[1].against["time"].n == 4
    )


def test_what_orders_layouts() -> None:
    cells = collect(trials([BASE, SMALL], 2)).layouts
    assert goals(run(), cells) == ("time", "space", "written")
    # Emulated seconds are nobody's: operations and bytes first.
    assert goals(run(target={"name": "lab", "accel": "tcg"}), cells)[:3] == ("ios", "bytes", "time")
    assert goals(run(objective=Objective(minimise=("written",))), cells) == ("written",)


def test_the_order_and_the_advice() -> None:
    found = trials([BASE, SMALL], 5)
    now = standing(judged(found), found)  # type: ignore[arg-type]
    assert [(p.rank, p.result.name, p.standing) for p in now.places] == [
        (1, "8K", "leader"),
        (2, "base", "worse"),
    ]
    chosen = now.chosen
    assert chosen is not None and chosen.name == "8K" and now.caution() is None


def test_what_is_not_better_for_sure_is_not_advised() -> None:
    found = trials(
        [BASE, (layout("same", data__recordsize="64K"), {**BASE[1], "seconds": 0.0099})], 4, spread=0.2
    )
    now = standing(judged(found), found)  # type: ignore[arg-type]
    chosen = now.chosen
    assert chosen is not None and chosen.baseline


def test_a_weaker_durability_class_does_not_compete() -> None:
    fast = (layout("unsafe", data__sync="disabled", wal__sync="disabled"), {"seconds": 0.001})
    found = trials([BASE, SMALL, fast], 4)
    now = standing(judged(found), found)  # type: ignore[arg-type]
    assert now.run.outcome["leader_name"] == "8K"
    assert [(p.rank, p.result.name) for p in now.places] == [(1, "8K"), (2, "base"), (None, "unsafe")]


def test_emulated_seconds_come_with_a_warning() -> None:
    found = trials([BASE, SMALL], 4)
    now = standing(judged(found, target={"name": "lab", "kind": "lab", "accel": "tcg"}), found)  # type: ignore[arg-type]
    assert now.basis == "emulated" and now.minimise[0] == "ios"
    assert "do not choose by the times" in (now.caution() or "")


def test_pairs_start_at_the_baselines_value() -> None:
    (pair,) = from_baseline(collect(trials([SMALL, BASE], 4, spread=0.001)).layouts)
    # SMALL is the baseline here
    assert (pair.factor, pair.before, pair.after) == ("data.recordsize", "8K", "128K")
    ratio = pair.paired("time")
    assert ratio is not None and ratio.mean == pytest.approx(2.0, rel=0.01)
    (back,) = from_baseline(collect(trials([BASE, SMALL], 4, spread=0.001)).layouts)
    ratio = back.paired("written")
    assert (back.before, back.after) == ("128K", "8K")
    assert ratio is not None and ratio.mean == pytest.approx(0.5, rel=0.01)


def test_two_factors_that_help_only_together() -> None:
    both = {"data__recordsize": "8K", "data__compression": "zstd"}
    square = [
        (layout("base"), {"written": 100.0}),
        (layout("a", data__recordsize="8K"), {"written": 90.0}),
        (layout("b", data__compression="zstd"), {"written": 80.0}),
        (layout("ab", **both), {"written": 36.0}),
    ]
    found = two_factor(collect(trials(square, 5, spread=0.002)).layouts, "written")
    assert len(found) == 1 and found[0].base.name == "base" and found[0].both.name == "ab"
    # 36 · 100 / (90 · 80) = 0.5: half of what the two do alone.
    assert found[0].ratio.mean == pytest.approx(0.5, rel=0.02) and found[0].ratio.high < 1
    assert two_factor(collect(trials(square[:3], 5)).layouts, "written") == []


def test_predicted_against_measured() -> None:
    found = trials(
        [BASE, SMALL, (layout("16K", data__recordsize="16K"), {"written": 30_000.0, "seconds": 0.007})],
        4,
        spread=0.001,
    )
    screened = [
        replace(
            t, block=0, engine_version="1", status="ok",
            result={"measure": {"model": {"modelled_s": s}, "physical": {"write_bytes": w},
                                "space": {"allocated": 1e9}}},
        )
        for t, s, w in zip(found[:3], (100.0, 60.0, 55.0), (4e9, 2.2e9, 3e9), strict=True)
    ]  # fmt: skip
    by = {c.measure: c for c in compare(collect(found).layouts, screened)}
    written = by["written"]
    assert written.spearman == pytest.approx(1.0) and written.worst == pytest.approx(0.1, abs=0.01)
    assert by["time"].spearman == pytest.approx(0.5)  # the last two the wrong way round
    assert compare(collect(found).layouts, screened[1:]) == []  # no common baseline
    paced = [
        replace(t, result={**t.result, "job": {**t.result["job"], "offered_per_second": 100}})
        for t in found
        if t.result
    ]
    assert {c.measure for c in compare(collect(paced).layouts, screened)} == {*by} - {"time"}


def test_spearman() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # With ties, ranks 1.5 1.5 3 against 1 2 3: 1.5 / √(1.5 · 2).
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(1.5 / (1.5 * 2) ** 0.5)
    assert spearman([1, 2], [1, 2]) is None and spearman([1, 1, 1], [1, 2, 3]) is None


def test_why_bytes_are_written() -> None:
    (cell,) = collect(trials([BASE], 3, spread=0.0)).layouts
    why = explain(cell)
    assert why is not None and why.zil is not None and why.rest is not None
    assert why.zil + why.rest == pytest.approx(why.written)
    assert why.by_class["log"] == pytest.approx(4000) and why.hit_share == pytest.approx(0.9)
    text = sentence(cell, "transaction")
    assert "39.1 KiB written per transaction: 7.81 KiB at once by the ZIL" in text and "×3.64 of it" in text


def test_where_a_run_was_says_what_its_seconds_leave_out() -> None:
    lab, host = run(), run(target={"name": "local", "kind": "local", "accel": "none"})
    assert limits(host) is None
    assert "virtual machine" in str(limits(lab))
    mount = run(target={"name": "mount", "kind": "mount", "accel": "none", "disks": "profile"})
    assert "modelled after a profile" in str(limits(mount)) and "busy" not in str(limits(mount))
    instant = run(target={**mount.target, "disks": "instant"})
    assert "no disk is waited for" in str(limits(instant))
    done = trials([(layout("base"), {})], 2, drift=0, spread=0)
    for trial in done:
        assert trial.result is not None
        # Ten seconds on two processors, of which the mount took four and all together sixteen.
        cpu = {"mount_user_s": 3.0, "mount_system_s": 1.0, "host": {"user_s": 12.0, "system_s": 4.0}}
        trial.result["measure"]["cpu"].update(cpu)
        trial.result["environment"] = {"cpus": 2}
    said = str(limits(mount, collect(done).layouts))
    assert "The processors were 80% busy; ZFS and FUSE in the mount took 20% of them." in said
    assert MEASURED["mount_cpu"].read(done[0].result or {}) == pytest.approx(4 / 1000)
