"""What two jobs lose to each other: counted where it can be told, and no more said than is known."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import evidence as ev
import pytest

from ztune.advice.recommend import recommend
from ztune.analysis.neighbours import measured, rows
from ztune.analysis.standing import standing
from ztune.output import Console
from ztune.report import brief, terminal
from ztune.report.neighbours import measured_cells, measured_table
from ztune.store.records import Trial
from ztune.study.layout import parse_layout, with_settings

BASE = parse_layout(ev.base_layout())
SMALL = with_settings(BASE, {"data.recordsize": "8K"}, "8K")


Syncs = dict[str, tuple[int, float]]
"""By dataset: how many, and their mean in ms."""


def measure(
    seconds: float, work: dict[str, int], syncs: tuple[int, float], told: Syncs | None = None
) -> dict[str, Any]:
    by_dataset = [
        {
            "name": name,
            "sync_latency_ms": {"count": n, "mean": mean},
            "read_latency_ms": {"count": 0, "mean": 0.0},
        }
        for name, (n, mean) in (told or {}).items()
    ]
    return {
        "model": {
            **({"by_dataset": by_dataset} if by_dataset else {}),
            "modelled_s": seconds,
            "trace_s": 60.0,
            "sync_latency_ms": {"count": syncs[0], "mean": syncs[1]},
            "read_latency_ms": {"count": 100, "mean": 2.0},
        },
        "space": {"allocated": 1e9, "logical": 2e9},
        "physical": {"write_bytes": 1e9},
        "by_dataset": [
            {"name": name, "reads": n, "read_bytes": 4096 * n, "writes": 1, "write_bytes": 0, "zil_bytes": 8}
            for name, n in work.items()
        ],
    }


def trials(
    together: float, small: float | None, theirs: tuple[int, float] = (0, 0.0), told: Syncs | None = None
) -> list[Trial]:
    """Return trials of two layouts; ``together`` and ``small``: seconds of both jobs on each. ``told``: what
    the engine tells of the syncs of both."""
    out: list[Trial] = []

    def add(layout: Any, condition: str, found: dict[str, Any] | None) -> None:
        number = len(out) + 1
        base = layout is BASE and not condition
        status = "failed" if found is None else "ok"
        error = "the pool is full" if found is None else None
        one = ev.trial(layout, number, found, status, error=error, baseline=base)
        out.append(replace(one, target=f"replay, {condition}" if condition else "replay"))

    both = (100 + theirs[0], 9.0)
    for layout, alone, seconds in ((BASE, 20.0, together), (SMALL, 10.0, small)):
        add(layout, "", measure(alone, {"tank/data": 50}, (100, 3.0)))
        work = {"tank/data": 70, "tank/ztune-neighbour-data": 30}
        add(layout, "both", None if seconds is None else measure(seconds, work, both, told))
        add(layout, "neighbour", measure(5.0, {"tank/ztune-neighbour-data": 20}, theirs))
    return out


def test_each_job_has_its_own_work_and_both_their_sum() -> None:
    run = replace(ev.run(), options={"beside": {"name": "backup"}})
    found = trials(40.0, 30.0)
    mine, other, both = rows(standing(run, found), found)[:3]
    assert [row.job for row in (mine, other, both)][1:] == ["backup", "both"]
    assert (mine.ios.alone, mine.ios.beside) == (51, 71)
    assert (other.ios.alone, other.ios.beside, both.ios.alone, both.ios.beside) == (21, 31, 72, 102)
    assert mine.moved.alone == 50 * 4096 + 8
    assert (both.seconds.alone, both.seconds.beside, mine.seconds.beside) == (25.0, 40.0, None)


def test_each_job_has_its_own_latencies() -> None:
    told = {"tank/data": (80, 4.0), "tank/wal": (20, 9.0), "tank/ztune-neighbour-data": (100, 13.0)}
    found = trials(40.0, 30.0, (100, 1.0), told)
    mine, other, both = rows(standing(ev.run(), found), found)[:3]
    # Those of its datasets that it works on; nobody moved a byte on the log's.
    assert (mine.sync.alone, mine.sync.beside) == (3.0, 4.0)
    assert (other.sync.alone, other.sync.beside) == (1.0, 13.0)
    assert both.sync.alone == pytest.approx((100 * 3.0 + 100) / 200) and both.sync.beside == 9.0
    # Calls that it does not make beside the other have no latency there.
    assert (mine.read.alone, mine.read.beside) == (2.0, None)


def test_results_of_an_older_engine_tell_no_latency_beside_another_job() -> None:
    found = trials(40.0, 30.0)
    mine, other, both = rows(standing(ev.run(), found), found)[:3]
    assert (mine.sync.alone, mine.sync.beside) == (3.0, None)
    assert (other.sync.alone, other.sync.beside) == (None, None)
    assert both.sync.beside == 9.0


@pytest.mark.parametrize(
    ("together", "small", "said"),
    [
        (40.0, 30.0, "The choice does not change beside backup: the order of the best 2 is the same; 8K"),
        (25.0, 30.0, "The choice changes beside backup: base is better with 25.0 s for both; 8K comes to 30"),
        (25.0, None, "Whether the choice holds beside backup is not known. 8K has no result there: the pool"),
    ],
)
def test_whether_the_choice_holds_is_said(together: float, small: float | None, said: str) -> None:
    run = replace(ev.run(), options={"beside": {"name": "backup"}})
    r = recommend(run, trials(together, small))
    assert len(r.neighbour) == 1 and r.neighbour[0].startswith(said), r.neighbour
    # Another job is another question: it ranks nothing.
    assert r.layout_name == "8K" and len(r.ranking) == 2 and not r.failed
    shown = brief.of(r).neighbour
    assert shown is not None and shown.text == r.neighbour[0]
    assert not any(text.startswith("Another job on the same pool") for text in r.not_tested)


def test_a_rival_without_a_result_is_named() -> None:
    found = trials(40.0, 30.0)
    third = with_settings(BASE, {"data.recordsize": "16K"}, "16K")
    found.append(ev.trial(third, len(found) + 1, measure(12.0, {"tank/data": 50}, (100, 3.0))))
    lost = ev.trial(third, len(found) + 1, None, "failed", error="the pool is full")
    found.append(replace(lost, target="replay, both"))
    run = replace(ev.run(), options={"beside": {"name": "backup"}})
    [said] = recommend(run, found).neighbour
    assert said.startswith("The choice does not change beside backup")
    assert said.endswith("16K has no result there: the pool is full.")


def test_without_a_neighbour_nothing_is_said_of_one() -> None:
    alone = [t for t in trials(40.0, 30.0) if not t.condition]
    r = recommend(ev.run(), alone)
    assert r.neighbour == [] and r.beside == []
    assert any(text.startswith("Another job on the same pool") for text in r.not_tested)
    assert "beside" not in str(terminal.ranking(r))


def ran(number: int, block: int, condition: str, job: dict[str, Any]) -> Trial:
    one = ev.trial(BASE, number, {"seconds": 1.0}, baseline=not condition)
    target = f"mount, {condition}" if condition else "mount"
    return replace(one, target=target, block=block, result={"job": job})


def test_what_was_measured_is_paired_within_blocks() -> None:
    def job(rate: float, mean: float, **details: Any) -> dict[str, Any]:
        latency = {"mean": mean} if mean else {}
        return {"per_second": rate, "latency_ms": latency, "seconds": 100 / rate, "details": details}

    found: list[Trial] = []
    for block, alone in ((1, 100.0), (2, 50.0)):
        found.append(ran(len(found) + 1, block, "", job(alone, 2.0)))
        found.append(ran(len(found) + 1, block, "neighbour", job(10.0, 0.0)))
        both = job(alone / 2, 8.0, together_s=9.0, neighbour=job(5.0, 0.0))
        found.append(ran(len(found) + 1, block, "both", both))
    found.append(ran(len(found) + 1, 3, "", job(1000.0, 1.0)))  # a block that was cut
    run = replace(ev.run(), kind="run", job={"workload": "oltp", "beside": "oltp"})
    rows_ = measured(run, found)
    figures = {(row.job, row.figure): row for row in rows_}
    # A load of a given length has no duration to lose; a backup has.
    assert sorted(figures) == [
        ("oltp (1)", "latency_mean"), ("oltp (1)", "per_second"),
        ("oltp (2)", "per_second"), ("oltp (2)", "seconds"),
    ]  # fmt: skip
    mine, theirs = figures["oltp (1)", "per_second"], figures["oltp (2)", "seconds"]
    assert mine.ratio is not None and theirs.ratio is not None
    assert mine.ratio.mean == pytest.approx(0.5) and mine.ratio.n == 2
    assert theirs.ratio.mean == pytest.approx(2.0) and (theirs.alone, theirs.beside) == (10.0, 20.0)
    assert mine.together_s == 9.0 and figures["oltp (1)", "latency_mean"].beside == 8.0
    assert measured(replace(run, job={"workload": "oltp"}), found) == []


@pytest.mark.parametrize(("operations", "few", "shown"), [(99, 99, "–"), (100, None, "8.00 ms")])
def test_a_p99_of_too_few_operations_is_not_printed(operations: int, few: int | None, shown: str) -> None:
    def job(p99: float, **details: Any) -> dict[str, Any]:
        return {"per_second": 9.0, "latency_ms": {"p99": p99}, "operations": operations, "details": details}

    found = [
        ran(1, 1, "", job(4.0)),
        ran(2, 1, "neighbour", job(3.0)),
        ran(3, 1, "both", job(8.0, together_s=9.0, neighbour=job(6.0))),
    ]
    run = replace(ev.run(), kind="run", job={"workload": "oltp", "beside": "oltp"})
    row = next(row for row in measured(run, found) if (row.job, row.figure) == ("oltp (1)", "latency_p99"))
    assert (row.alone, row.beside, row.few_calls) == (4.0, 8.0, few)
    console = Console(width=40, file=(out := io.StringIO()))
    console.print(*measured_table([row]))
    assert f"alone {'–' if few else '4.00 ms'}, together {shown}" in " ".join(out.getvalue().split())
    called, *cells = measured_cells(row)
    assert called == "p99 latency" and cells[1] == shown and (cells[2] == "–") is (few is not None)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (50.0, 0.0)])
def test_a_job_that_does_nothing_beside_the_other_is_said_to(rates: tuple[float, float]) -> None:
    def job(rate: float, **details: Any) -> dict[str, Any]:
        return {"per_second": rate, "details": details}

    found: list[Trial] = []
    for block, rate in enumerate(rates, 1):
        found.append(ran(len(found) + 1, block, "", job(100.0)))
        found.append(ran(len(found) + 1, block, "neighbour", job(9.0)))
        both = job(rate, together_s=9.0, neighbour=job(9.0))
        found.append(ran(len(found) + 1, block, "both", both))
    run = replace(ev.run(), kind="run", job={"workload": "oltp", "beside": "backup"})
    row = next(row for row in measured(run, found) if row.job == "oltp")
    assert (row.alone, row.beside, row.ratio) == (100.0, sum(rates) / 2, None)
    assert measured_cells(row)[1:] == ("100", "25.0" if any(rates) else "0.00", "–")
