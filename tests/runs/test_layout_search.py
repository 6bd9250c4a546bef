"""What a screening searches: the space of a study, what each layout came to, and when it stops."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from invoked import invoke
from synthetic_traces import STAND_IN, make_trace

from ztune.analysis.standing import standing
from ztune.errors import InputError
from ztune.places import engine as engines
from ztune.runs import screening
from ztune.runs.observer import Observer
from ztune.runs.options import ScreenOptions
from ztune.runs.refine import back_to_default
from ztune.runs.search import LayoutSearch, Stopped, ending_of, opening, stopped, values
from ztune.runs.space import first_round, meaning
from ztune.search.propose import STARTS, Proposal
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Study, generic
from ztune.study.hardware import bought
from ztune.study.layout import with_settings
from ztune.study.loader import resolve_profiles
from ztune.trace.reader import Trace


def study(**more: object) -> Study:
    made = generic.build({"data", "wal"})
    return Study.model_validate({**made.to_json(), **more})


def always(_: object) -> bool:
    return True


def test_the_space_is_what_can_be_set_on_the_bases_own_hardware() -> None:
    axes = {
        "data.recordsize": ["8K", "16K"],
        "data.sync": ["standard", "disabled"],
        "slog": ["none", "nvme"],
        "arc": ["32M", "64M", "1G"],
    }
    search = LayoutSearch(study(axes=axes, cross=[]), always)
    named = {axis.name: axis.size for axis in search.space.axes}
    assert named == {"data.recordsize": 3, "arc": 2}  # the base's own 128K is a value too
    assert search.beside == [("data.sync", "disabled"), ("slog", "nvme"), ("arc", "1G")]
    assert search.cells == 6
    base = search.study.layout
    assert all(not bought(base, search.layout(cell)) for cell in search.space.cells())


def test_sizes_have_an_order_and_words_have_none() -> None:
    search = LayoutSearch(study(), always)
    axes = {axis.name: axis for axis in search.space.axes}
    assert len(axes["data.recordsize"].positions) == 6
    assert not axes["data.compression"].positions and not axes["wal.logbias"].positions


def test_values_of_named_layouts_belong_to_the_space() -> None:
    more = [{"name": "huge", "set": {"data.recordsize": "4M"}}, {"name": "log", "set": {"slog": "nvme"}}]
    search = LayoutSearch(study(layouts=more), always)
    assert search.cell(with_settings(search.study.layout, {"data.recordsize": "4M"})) is not None
    assert search.cell(with_settings(search.study.layout, {"slog": "nvme"})) is None
    assert search.cell(with_settings(search.study.layout, {"data.copies": 2})) is None


def test_what_does_not_go_together_or_was_not_recorded_is_not_in_the_space() -> None:
    search = LayoutSearch(study(), lambda layout: layout.settings()["data.recordsize"] != "8K")
    assert search.cells == 576 * 5 // 6
    assert all(search.layout(c).settings()["data.recordsize"] != "8K" for c in search.space.cells())


def test_a_log_device_that_is_there_is_searched_without_direct_io() -> None:
    """With it a power cut would take what was synced: docs/durability.md, "What was found in OpenZFS"."""
    axes = {"slog": ["none", "nvme"], "data.direct": ["standard", "disabled"]}
    made = study(axes=axes, cross=[])
    asking = made.model_copy(update={"layout": dataclasses.replace(made.layout, direct=("data",))})
    for question, cells in ((made, 4), (asking, 3)):
        search = LayoutSearch(question, always, {"slog": "nvme"})
        assert {axis.name for axis in search.space.axes} == set(axes) and not search.beside
        assert len(search.space.cells()) == cells
    exposed = with_settings(asking.layout, {"slog": "nvme"})
    assert search.cell(exposed) is None
    assert search.cell(with_settings(exposed, {"data.direct": "disabled"})) is not None


def test_each_value_beside_the_space_is_tried_once_on_top() -> None:
    question = study(axes={**generic.build({"data", "wal"}).axes, "slog": ["nvme", "ssd-sata"]}, cross=[])
    search = LayoutSearch(question, always)
    chosen = with_settings(question.layout, {"data.recordsize": "16K"})
    found = search.on_top(chosen)
    assert [one.settings()["slog"] for one in found] == ["nvme", "ssd-sata"]
    assert all(one.settings()["data.recordsize"] == "16K" for one in found)


def test_base_and_named_layouts_come_first_and_leave_room_to_search() -> None:
    more = [{"name": f"n{i}", "set": {"data.copies": 2, "wal.recordsize": f"{16 << i}K"}} for i in range(6)]
    question = study(layouts=more)
    assert [one.name for one in opening(question, 32)] == ["base", *(f"n{i}" for i in range(6))]
    assert [one.name for one in opening(question, 6)] == ["base", "n0", "n1"]
    assert [one.name for one in opening(question, 1)] == ["base"]
    alone = study(layouts=more, axes={}, cross=[])
    assert len(opening(alone, 5)) == 5  # nothing to search: the budget is theirs


def test_a_study_that_crosses_all_of_its_axes_gets_its_grid() -> None:
    axes = {"data.recordsize": ["8K", "16K"], "data.compression": ["off", "zstd-3"]}
    grid = study(axes=axes, cross=[list(axes)])
    assert opening(grid, 20) == first_round(grid)
    assert len(opening(grid, 3)) == 1
    assert len(opening(study(), 38)) == 1  # of the generic study two axes of six are crossed


@pytest.fixture(scope="module")
def screened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Trial]]:
    folder = tmp_path_factory.mktemp("screened")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZTUNE_HOME", str(folder / "home"))
        patch.setenv("ZTUNE_ENGINE", str(STAND_IN))
        trace = make_trace(folder / "t.trace")
        with Store.open() as store:
            run = screening.start(store, trace, study(), engines.check(), ScreenOptions(budget=8, jobs=2))
            return run, store.trials(run.id)


def test_a_run_says_why_its_search_stopped(screened: tuple[Run, list[Trial]]) -> None:
    run, trials = screened
    end = stopped(run.outcome)
    assert end is not None
    assert (end.reason, end.tried, end.budget, end.cells, end.within) == ("budget", 8, 8, 576, 0.05)
    assert end.chance is not None and 0 < end.chance <= 1
    assert "8 of 576 layouts were searched" in end.sentence()
    # The log was varied too, not the data alone.
    searched = [t for t in trials if t.number <= 8]
    assert len({t.layout.settings()["wal.recordsize"] for t in searched}) > 1
    assert len({t.layout.settings()["wal.logbias"] for t in searched}) > 1
    assert not any(bought(trials[0].layout, t.layout) for t in searched)
    # What would have to be bought comes last, once.
    assert [bought(trials[0].layout, t.layout) for t in trials if t.number > 8][-1] == {"slog": "nvme"}


def test_pairs_are_of_the_layout_on_the_hardware_that_is_there(
    stand_in_engine: Path, trace: Trace, home: Path
) -> None:
    options = ScreenOptions(budget=12, jobs=2, have={"slog": "nvme"})
    with Store.open() as store:
        run = screening.start(store, trace, study(), engines.check(), options)
        trials = store.trials(run.id)
    chosen = standing(run, trials).chosen
    assert chosen is not None and chosen.settings["slog"] == "nvme"
    tried = {trial.layout_hash for trial in trials}
    assert {layout.hash for layout in back_to_default(run.resolved_study.layout, chosen.layout)} <= tried


def test_worth_is_the_first_metric_then_a_little_of_the_next(screened: tuple[Run, list[Trial]]) -> None:
    run, trials = screened

    def with_metrics(trial: Trial, seconds: float, allocated: float, cpu: float = 0.0) -> Trial:
        measure = {**trial.measure}
        measure["model"] = {**measure["model"], "modelled_s": seconds}
        measure["space"] = {**measure["space"], "allocated": allocated}
        measure["cpu_s"] = cpu
        return dataclasses.replace(trial, result={**(trial.result or {}), "measure": measure})

    a, b = trials[:2]

    def order(one: Trial, other: Trial) -> bool:
        worth = values(run, [one, other])
        return worth[one.layout_hash] < worth[other.layout_hash]

    assert order(with_metrics(a, 9.0, 5e6), with_metrics(b, 10.0, 1e6))  # 10 % of time before space
    assert order(with_metrics(a, 10.1, 1e6), with_metrics(b, 10.0, 3e6))  # space before 1 % of time
    # Of disks that are hardly at work: a hundredth of the job's time is worth less than the space.
    recorded = a.measure["model"]["trace_s"]
    quick, small = (with_metrics(a, 0.01 * recorded, 3e6), with_metrics(b, 0.015 * recorded, 1e6))
    assert order(small, quick)
    # Processors hold a layout back, however little its disks have to do.
    assert not order(with_metrics(a, 0.1, 1e6, cpu=40.0), with_metrics(b, 10.0, 1e6, cpu=1.0))
    failed = dataclasses.replace(a, status="failed", result=None)
    assert a.layout_hash not in values(run, [failed, b])


def test_when_a_search_ends(screened: tuple[Run, list[Trial]]) -> None:
    _, trials = screened
    some = Proposal(((0, 0),), 0.4)
    assert ending_of(trials, some, 3) is None
    assert ending_of(trials, some, 0) == "budget"
    assert ending_of(trials, Proposal(((0, 0),), 0.01), 3) == "enough"
    assert ending_of(trials, Proposal((), 0.0), 3) == "all"
    assert ending_of(trials, Proposal(((0, 0),)), 0) == "budget"
    bad = [dataclasses.replace(t, status="failed", result=None) for t in trials]
    assert ending_of(bad, Proposal(((0, 0),)), 3) == "failed"
    assert ending_of(bad[: STARTS - 1], Proposal(((0, 0),)), 3) is None


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (
            Stopped("enough", 19, 64, 1296, 0.03, 0.02),
            (
                "Stopped after 19 of 64: the chance that another of the space's 1,296 is better by more than "
                "3 % is 2 %."
            ),
        ),
        (
            Stopped("enough", 19, 64, 1296, 0.05, 0.001),
            (
                "Stopped after 19 of 64: the chance that another of the space's 1,296 is better by more than "
                "5 % is less than 1 %."
            ),
        ),
        (
            Stopped("budget", 8, 8, 576, 0.05, 0.31),
            (
                "8 of 576 layouts were searched, all of the budget: the chance that another is better "
                "by more than 5 % is 31 %; a larger --budget may find it."
            ),
        ),
        (
            Stopped("budget", 3, 3, 576, 0.05, None),
            (
                "3 of 576 layouts were searched, all of the budget: too few to tell whether another is "
                "better by more than 5 %; a larger --budget does."
            ),
        ),
        (
            Stopped("budget", 25, 25, 576, 0.05, 0.98),
            (
                "25 of 576 layouts were searched, all of the budget: too few to tell whether another is "
                "better by more than 5 %; a larger --budget does."
            ),
        ),
        (
            Stopped("budget", 8, 8, 576, 0.05, None, ("data.recordsize", "data.atime")),
            (
                "8 of 576 layouts were searched, all of the budget: too few for each setting to have another "
                "value. Nothing is known of data.recordsize and data.atime; a larger --budget varies more."
            ),
        ),
        (Stopped("all", 12, 32, 12, 0.05, 0.0), "All 12 layouts of the space were tried."),
        (Stopped("all", 5, 32, 1, 0.05, 0.0), ""),
        (
            Stopped("failed", 6, 32, 576, 0.05, None),
            "The search stopped: none of the 6 layouts that were tried has a result.",
        ),
    ],
)
def test_why_it_stopped_is_one_sentence(end: Stopped, sentence: str) -> None:
    assert end.sentence() == sentence
    assert stopped({"search": end.to_json()}) == end
    assert stopped({}) is None


class _Cut(Observer):
    """Interrupts after so many trials."""

    def __init__(self, after: int) -> None:
        self.left = after

    def finished(self, trial: Trial, steps: Mapping[str, float]) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_budget_too_small_to_vary_each_setting_says_which_were_not(
    stand_in_engine: Path, trace: Trace, home: Path
) -> None:
    with Store.open() as store:
        run = screening.start(store, trace, study(), engines.check(), ScreenOptions(budget=1, jobs=1))
    end = stopped(run.outcome)
    assert end is not None and (end.reason, end.tried, end.chance) == ("budget", 1, None)
    assert list(end.unvaried) == [axis.name for axis in LayoutSearch(study(), always).space.axes]
    assert "Nothing is known of data.recordsize, " in end.sentence() and "chance" not in end.sentence()


# Among the first, among what the model chose, and among the pairs.
@pytest.mark.parametrize("after", [pytest.param(3, marks=pytest.mark.long), 7, 13])
def test_a_search_that_was_cut_goes_on_to_the_same_end(
    stand_in_engine: Path, trace: Trace, home: Path, after: int
) -> None:
    options = ScreenOptions(budget=10, jobs=2)
    engine = engines.check()
    with Store.open() as store:
        whole = screening.start(store, trace, study(), engine, options)
        with pytest.raises(KeyboardInterrupt):
            screening.start(store, trace, study(), engine, options, observer=_Cut(after))
        cut = store.run()
        assert cut.id != whole.id and cut.status == "interrupted"
        done = screening.resume(store, cut, trace, engine, options)
        assert done.outcome == whole.outcome
        assert [t.layout_hash for t in store.trials(done.id)] == [
            t.layout_hash for t in store.trials(whole.id)
        ]


def test_a_run_of_before_the_search_goes_on_with_it(stand_in_engine: Path, trace: Trace, home: Path) -> None:
    engine = engines.check()
    with Store.open() as store:
        # As an older ztune began: each value alone on the base.
        old = screening.start(store, trace, study(), engine, ScreenOptions(budget=6, jobs=2, only=True))
        before = [t.layout_hash for t in store.trials(old.id)]
        assert len(before) == 6 and stopped(old.outcome) is None
        done = screening.resume(store, old, trace, engine, ScreenOptions(budget=12, jobs=2))
        end = stopped(done.outcome)
        assert end is not None and 6 < end.tried <= 12
        after = [t.layout_hash for t in store.trials(done.id)]
        assert after[:6] == before and len(set(after)) == len(after)


def test_nothing_is_searched_after_the_search_has_ended(
    stand_in_engine: Path, trace: Trace, home: Path
) -> None:
    engine = engines.check()
    with Store.open() as store:
        run = screening.start(store, trace, study(), engine, ScreenOptions(budget=5, jobs=2))
        count = len(store.trials(run.id))
        again = screening.resume(store, run, trace, engine, ScreenOptions(budget=5, jobs=2))
        assert len(store.trials(again.id)) == count
        more = screening.resume(store, run, trace, engine, ScreenOptions(budget=count + 4, jobs=2))
        assert len(store.trials(more.id)) > count
        assert stopped(more.outcome) != stopped(run.outcome)


@pytest.mark.parametrize("budget", [0, -3])
def test_a_budget_below_one_is_one_sentence(
    stand_in_engine: Path, trace: Trace, home: Path, budget: int
) -> None:
    with Store.open() as store, pytest.raises(InputError) as caught:
        screening.start(store, trace, study(), engines.check(), ScreenOptions(budget=budget))
    assert str(caught.value) == f"the budget is {budget}; at least 1 layout has to be tried"


def test_the_command_refuses_a_budget_below_one(stand_in_engine: Path, trace: Trace, home: Path) -> None:
    code, _, err = invoke("screen", str(trace.path), "--budget", "0")
    assert code == 2 and "--budget" in err


def test_the_command_ends_with_why_it_stopped(stand_in_engine: Path, trace: Trace, home: Path) -> None:
    code, out, err = invoke("screen", str(trace.path), "--budget", "5", "--jobs", "1")
    assert code == 0, err
    assert re.search(
        r"5 of [\d,]+ layouts were searched, all of the budget: too few to tell whether another is better",
        out,
    )


def test_nothing_that_was_tried_has_a_result(
    stand_in_engine: Path, trace: Trace, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", 'crash="name": "tank/data"')
    with Store.open() as store:
        run = screening.start(store, trace, study(), engines.check(), ScreenOptions(budget=20, jobs=2))
        end = stopped(run.outcome)
        assert end is not None and end.reason == "failed"
        assert run.status == "failed" and len(store.trials(run.id)) == end.tried == STARTS + 1


TWO_POOLS = {
    "pool": [
        {"name": "tank", "vdev": [{"profile": "hdd-7200"}]},
        {"name": "logs", "vdev": [{"profile": "ssd-sata"}]},
    ],
    "dataset": [{"name": "tank/data", "roles": ["data"]}, {"name": "tank/wal", "roles": ["wal"]}],
}


def test_a_log_device_on_a_pool_that_no_role_lives_on_is_no_second_layout(
    trace: Trace, stand_in_engine: Path, home: Path
) -> None:
    axes = {"wal.pool": ["tank", "logs"], "pool.logs.slog": ["none", "nvme"]}
    asked = resolve_profiles(study(layout=TWO_POOLS, axes=axes, cross=[]))
    logs = with_settings(asked.layout, {"wal.pool": "logs"})
    search = LayoutSearch(asked, always, {"wal.pool": "logs"})
    assert [search.layout(c).hash for c in search.space.cells()] == [asked.layout.hash, logs.hash]
    # Nor is it one of the pairs that prove the layout with it.
    with Store.open() as store:
        run = screening.start(store, trace, asked, engines.check(), ScreenOptions(have={"wal.pool": "logs"}))
        found = [t.layout for t in store.trials(run.id)]
    assert len({meaning(one) for one in found}) == len(found)
    assert with_settings(asked.layout, {"pool.logs.slog": "nvme"}).hash not in {one.hash for one in found}
