"""The one view of a run that goes on: of replays many at a time, of real databases one by one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ztune import output
from ztune.cli import _live, _waiting
from ztune.cli._live import LiveView
from ztune.runs.options import ScreenOptions, TrialOptions
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import ready
from ztune.study.layout import with_settings


@pytest.fixture(autouse=True)
def at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live, "_REPLAYS_S", 0.0)
    monkeypatch.setattr(_live, "allowed_order", lambda _study, trials: [t for t in trials if t.ok])


def made(**fields: Any) -> tuple[Run, list[Trial]]:
    """Return a run with two trials: one that ended well, one that failed."""
    study = ready.find("sqlite")
    with Store.open() as store:
        run = store.create_run(
            study=study, environment={}, seed=1, **{"versions": {"openzfs": "2.3.2"}, **fields}
        )
        store.add_trial(run.id, study.layout, is_baseline=True, block=1)
        store.add_trial(run.id, with_settings(study.layout, {"data.recordsize": "8K"}, "8K"), block=1)
        first, second = store.trials(run.id)
        store.start_trial(first.id, {})
        store.start_trial(second.id, {})
        result = {"measure": {"model": {"modelled_s": 12.5}}}
        store.finish_trial(first.id, result=result, wall_s=1.0)
        store.finish_trial(second.id, error="no room", wall_s=1.0)
        return store.run(run.id), store.trials(run.id)


def replays() -> tuple[Run, list[Trial]]:
    return made(
        kind="screen", trace_path=Path("/t/day.trace"), trace_sha="0" * 64, options=ScreenOptions().to_json()
    )


def measured() -> tuple[Run, list[Trial]]:
    return made(
        kind="run", options=TrialOptions().to_json(), target={"name": "lab", "kind": "lab"},
        job={"workload": "sqlite", "name": "sqlite", "params": {}},
    )  # fmt: skip


@pytest.mark.parametrize("run_of", ["replays", "trials"])
def test_what_takes_long_has_few_lines_in_a_log(
    run_of: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slow replay of twelve minutes had fifty lines that said the same."""
    clock = [1000.0]
    monkeypatch.setattr(_live, "_REPLAYS_S", 15.0)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    run, trials = replays() if run_of == "replays" else measured()
    with LiveView() as view:
        view.begin(run, [], 1)
        view.trial(trials[0])
        for _ in range(3600):
            clock[0] += 1
            view.step(trials[0], "measure", "progress", 0.5, "")
        before = len(capsys.readouterr().err.splitlines())
        view.finished(trials[0], {})
        clock[0] += 31
        view.step(trials[1], "measure", "progress", 0.5, "")
    assert 10 < before < 20
    assert len(capsys.readouterr().err.splitlines()) >= 1  # what is new is said as soon as before


def test_replays_say_how_many_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    run, trials = replays()
    with LiveView() as view:
        view.begin(run, [], 2)
        view.round(0, 2, 30)
        for trial in trials:
            view.trial(trial)
        view.step(trials[0], "load", "progress", 0.5, "")
        view.finished(trials[0], {})
        view.judged(trials, None)
        view.step(trials[1], "measure", "progress", 0.5, "")
        view.finished(trials[1], {})
    lines, best = capsys.readouterr().err.splitlines(), "best so far: base, 12.5 s modelled"
    assert lines == [
        f"run {run.id}: day through OpenZFS 2.3.2, 2 at a time",
        "0 of 2 replays done, up to 30 may follow",
        f"1 of 2 replays done, up to 30 may follow; {best}; up to 15.2 s left",
        "trial 2, 8K failed: no room",
    ]


@pytest.mark.parametrize(
    ("waiting", "more", "said"),
    [(1, 0, ""), (40, 0, "20.0 s left in this round"), (1, 30, "up to 15.5 s left")],
)
def test_of_rounds_without_a_known_end_a_moment_is_not_said(waiting: int, more: int, said: str) -> None:
    run, trials = replays()
    with LiveView() as view:
        view.begin(run, [], 2)
        view.round(3, waiting + 1, more)
        view.trial(trials[0])
        view.finished(trials[0], {})
        assert view._left_of_all() == said


def test_trials_say_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    run, trials = measured()
    with LiveView() as view:
        view.begin(run, trials, 1)
        view.round(1, 2, 14)
        view.step(trials[0], "load", "progress", 0.25, "rows")  # once for all trials, before the first begins
        view.trial(trials[0])
        view.step(trials[0], "measure", "begin", 0.0, "")
        view.finished(trials[0], {})
    assert capsys.readouterr().err.splitlines() == [
        f"run {run.id}: sqlite on lab (OpenZFS 2.3.2, kernel ?), 2 layouts, 3 to 8 runs each",
        "  load 25%: rows, 2.75 s left",
        "trial 1, block 1: base",
        "  measure, 2.00 s left",
        "trial 1, base: done",
    ]


def test_what_a_trial_waits_for_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    run, trials = measured()
    view = LiveView()
    view.begin(run, trials, 1)
    view.round(1, 1, 0)
    view.trial(trials[0])
    view.step(trials[0], "", "wait", 0.0, "an earlier trial was cut; it is undone first")
    view.step(trials[0], "collect", "progress", 0.5, "")
    view.step(trials[0], "collect", "wait", 0.0, "zdb -L zt still runs, after 60 s of at most 1800")
    assert [line.rpartition(", ")[0] for line in capsys.readouterr().err.splitlines()[2:]] == [
        "  an earlier trial was cut; it is undone first",
        "  collect 50%",
        "  collect: zdb -L zt still runs, after 60 s of at most 1800",
    ]
    output.Console(width=150).print(view._view())
    assert "zdb -L zt still runs" in capsys.readouterr().out


def test_a_terminal_shows_the_trials_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    run, trials = replays()
    view = LiveView()
    view.begin(run, [], 2)
    view.round(0, 3, 30)
    for trial in trials:
        view.trial(trial)
    view.step(trials[1], "measure", "progress", 0.5, "")
    view.finished(trials[0], {})
    view.judged(trials, None)
    output.Console(width=100).print(view._view())
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("trial 2 8K measure ━")
    assert lines[1].startswith("1 done, 1 waiting in this round; ") and "up to 30 trials" in lines[1]
    assert lines[2] == "best so far: base, 12.5 s modelled"


def test_before_a_run_begins_it_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = threading.Event()
    monkeypatch.setattr(_waiting, "_MOMENT_S", 0.0)
    monkeypatch.setattr(output, "echo", lambda text, err: said.set() if text == "waiting for db7" else None)
    with LiveView() as view, view.waits("waiting for db7"):
        assert said.wait(60)
        view._waits = "waiting for db7"  # as on a terminal, whose view is drawn again and again
        output.Console(width=100).print(view._view())
    assert capsys.readouterr().out.strip() == "waiting for db7 …"
