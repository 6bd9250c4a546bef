"""Real trials that follow a screening: what joins, when it stops, what is kept, with a stand-in trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_place import FakePlace
from stored_runs import new_run

from ztune.cli.main import ztune
from ztune.errors import InputError, ZtuneError
from ztune.places import named as places
from ztune.runs import asked, failover, runner
from ztune.runs.follow import Followed, Following, ScreenedPrior, followed
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.runs.screening import allowed_order
from ztune.runs.screening import prior_of as screened_prior
from ztune.runs.space import first_round
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Layout, Study

STUDY = Study.model_validate(
    {
        "name": "grid",
        "workload": "fio",
        "layout": {
            "pool": [{"name": "main", "vdev": [{"profile": "ssd-sata"}]}],
            "dataset": [{"name": "main/data", "roles": ["data", "wal"]}],
        },
        "axes": {
            "data.recordsize": ["8K", "16K", "32K", "128K"],
            "data.compression": ["lz4", "zstd-3"],
        },
        "cross": [["data.recordsize", "data.compression"]],
    }
)
FORETOLD = {"8K": 0.5, "16K": 0.55, "32K": 0.7, "128K": 1.0}


def foretold(layout: Layout) -> float:
    """Return the modelled seconds: zstd-3 seems to save a fifth."""
    settings = layout.settings()
    return FORETOLD[settings["data.recordsize"]] * (0.8 if settings["data.compression"] == "zstd-3" else 1.0)


def taken(layout: Layout) -> float:
    """Return the measured seconds: zstd-3 costs a third instead."""
    settings = layout.settings()
    return (
        0.01
        * FORETOLD[settings["data.recordsize"]]
        * (1.33 if settings["data.compression"] == "zstd-3" else 1.0)
    )


def screened(
    store: Store,
    layouts: Sequence[Layout] | None = None,
    study: Study = STUDY,
    seconds: Mapping[str, float] | None = None,
) -> Run:
    """Store a screening of ``layouts``, default all of the study; ``seconds``: modelled, by name."""
    run = new_run(store, study=study)
    for layout in layouts if layouts is not None else first_round(study):
        trial = store.add_trial(run.id, layout, is_baseline=layout.hash == study.layout.hash)
        store.start_trial(trial.id, {})
        took = foretold(layout) if seconds is None else seconds[layout.name]
        # Of the log, with logbias=throughput.
        written = 7e6 if layout.settings()["data.logbias"] == "throughput" else 1e7
        measure = {
            "model": {"modelled_s": took, "busy_s": took, "trace_s": 1.0},
            "space": {"allocated": 1e8},
            "physical": {
                "write_bytes": written,
                "read_bytes": 1e6,
                "writes": 1000,
                "reads": 100,
                "flushes": 9,
            },
        }
        store.finish_trial(
            trial.id,
            result={"engine": {"version": "1", "openzfs": "2.3.2"}, "measure": measure},
            wall_s=1.0,
        )
    store.finish_run(run.id, "done")
    return store.run(run.id)


def prior_of(store: Store, screening: Run, most: int = 5) -> ScreenedPrior:
    return screened_prior(screening, store.trials(screening.id), most)


class Notes(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def place(tmp_path: Path, home: Path, packed_once: None, monkeypatch: pytest.MonkeyPatch) -> FakePlace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(failover, "PAUSE_S", 0.0)
    fake = FakePlace(tmp_path / "there")
    behave(fake)
    monkeypatch.setattr(places, "make", lambda *_: fake)
    monkeypatch.setattr(places, "again", lambda _: fake)
    return fake


def behave(place: FakePlace, **more: dict[str, Any]) -> None:
    base = STUDY.layout
    of: dict[str, Any] = {
        layout.name: {"seconds": taken(layout), "spread": 0.004} for layout in first_round(STUDY)
    }
    of[base.name] = {"seconds": taken(base), "spread": 0.004}
    for name, what in more.items():
        of[name] = {**of[name], **what}
    place.behave(of=of)


def ran(store: Store, run: Run) -> list[str]:
    """Return the layouts beside the baseline in the order in which they joined."""
    return list(dict.fromkeys(t.layout_name for t in store.trials(run.id) if not t.is_baseline))


def request(store: Store, place: FakePlace, most: int = 5, **options: Any) -> runner.Request:
    screening = screened(store)
    task = asked.task_after(screening, store, {}, (), most, native=False)
    assert [one.hash for one in task.layouts] == [STUDY.layout.hash]
    return runner.Request(
        study=task.study, layouts=task.layouts, job=task.job, place=place, source_run=screening.id,
        prior=task.prior, options=TrialOptions(**options), seed=1,
    )  # fmt: skip


def ended(run: Run) -> Followed:
    found = followed(run.outcome)
    assert found is not None
    return found


def test_one_trial_of_zstd_says_what_the_others_of_it_cost(home: Path) -> None:
    with Store.open() as store:
        prior = prior_of(store, screened(store))
        following = Following(STUDY, prior, TrialOptions(), seed=1)
        by_name = {layout.name: layout for layout in following.layouts.values()}
        first = following.after("time", {}, (), (), None)
        best = "data.compression=zstd-3, data.recordsize=8K"
        assert [following.layouts[name].name for name in first.next] == [best]
        assert following.said(by_name[best]) == "the screening recommends it and foretold −60 %"
        base = STUDY.layout
        values = {one.hash: {1: taken(one), 2: taken(one)} for one in (base, by_name[best])}
        then = following.after("time", values, values, (), None)
        assert [following.layouts[name].name for name in then.next] == ["data.recordsize=8K"]
        # What zstd-3 cost there is expected of its neighbour too: less than was foretold.
        near = following.said(by_name["data.compression=zstd-3, data.recordsize=16K"])
        assert near.startswith("the screening foretold −56 %, after what was measured it is −")


def test_the_layout_that_the_screening_recommends_is_measured_first(home: Path) -> None:
    """Not the first of the ranking, which a short replay flatters, nor what the model expects most of."""
    raw = STUDY.to_json()
    raw["axes"] = {
        "data.recordsize": ["4K"], "data.logbias": ["throughput"], "data.primarycache": ["metadata"],
    }  # fmt: skip
    raw["cross"] = [list(raw["axes"])]
    raw["layouts"] = [{"name": "both", "set": {"data.recordsize": "4K", "data.logbias": "throughput"}}]
    study = Study.model_validate({**raw, "profiles": {}})
    seconds = {
        "data.logbias=throughput, data.primarycache=metadata, data.recordsize=4K": 7.98, "both": 7.98,
        "data.recordsize=4K": 8.08, "base": 9.31, "data.logbias=throughput": 10.5,
        "data.primarycache=metadata": 9.4,
    }  # fmt: skip
    with Store.open() as store:
        run = screened(store, study=study, seconds=seconds)
        top = allowed_order(run, store.trials(run.id))[0]
        assert top.layout.settings()["data.logbias"] == "throughput"
        prior = prior_of(store, run, 2)
        following = Following(study, prior, TrialOptions(blocks=(2, 2)), seed=1)
        assert following.at_once == 2
        joining = [following.layouts[name] for name in following.after("time", {}, (), (), None).next]
        assert joining[0].name == "data.recordsize=4K" and len(joining) == 2
        assert following.said(joining[0]) == "the screening recommends it and foretold −13 %"
        assert following.said(joining[1]) == "the screening foretold −14 %"
        # Once it ran, or runs anyway, the model goes on; what never works makes room.
        for ran, beside, left_out in (
            ([joining[0].hash], [], []), ([], [joining[0]], []), ([], [], [joining[0].hash])
        ):  # fmt: skip
            other = Following(study, prior.with_others(beside), TrialOptions(), seed=1)
            names = [other.layouts[h].name for h in other.after("time", {}, ran, left_out, None).next]
            assert names and "data.recordsize=4K" not in names
        # A prior that an older ztune kept names none.
        old = prior.to_json()
        for one in old["layouts"]:
            del one["recommended"]
        assert ScreenedPrior.kept(TrialOptions(follow=old)) is not None


def test_layouts_join_until_another_is_unlikely_to_be_better(place: FakePlace) -> None:
    notes = Notes()
    with Store.open() as store:
        run = runner.start(store, request(store, place), notes)
        trials = store.trials(run.id)
        order = ran(store, run)
    assert order[0] == "data.compression=zstd-3, data.recordsize=8K" and "data.recordsize=8K" in order[:2]
    assert run.outcome["leader_name"] == "data.recordsize=8K" and run.outcome["reason"] == "settled"
    now = ended(run)
    assert now.reason == "enough" and now.ran == len(order) < 5 and now.chance <= 0.05
    assert now.sentence().startswith(
        f"Stopped after {len(order)} of at most 5 layouts: the chance that another of the 7 screened is "
        "better by more than 2 % is "
    )
    assert (now.leader, now.foretold) == ("data.recordsize=8K", 0.5)
    assert now.measured == pytest.approx(0.5, abs=0.02)
    assert [t.layout_name for t in trials if t.block == 1 and not t.is_baseline] == order[:1]
    # A layout that is clearly worse does not run to the end.
    last = max(t.block for t in trials)
    assert last > 3 or order[0] not in {t.layout_name for t in trials if t.block > 3}
    assert notes.said[0].startswith("data.compression=zstd-3, data.recordsize=8K joins: the screening recomm")


def test_a_run_that_was_cut_goes_on_with_the_same_layouts(place: FakePlace) -> None:
    with Store.open() as store:
        whole = runner.start(store, request(store, place))
        trials = [(t.layout_name, t.block) for t in store.trials(whole.id)]
        cut = runner.start(store, request(store, place, time_limit_s=0.0))
        assert not any(t.ok for t in store.trials(cut.id))
        kept = TrialOptions.of(store.run(cut.id))
        no_limit = replace(kept, time_limit_s=None).to_json()
        store.note_run(cut.id, options=no_limit)
        again = runner.resume(store, store.run(cut.id), place)
        assert [(t.layout_name, t.block) for t in store.trials(again.id)] == trials
        assert ended(again).sentence().replace(ended(again).screening, "") == ended(whole).sentence().replace(
            ended(whole).screening, ""
        )


def test_top_is_the_limit(place: FakePlace) -> None:
    with Store.open() as store:
        run = runner.start(store, request(store, place, most=1))
        assert len(ran(store, run)) == 1
    now = ended(run)
    assert now.reason == "most" and "a larger --top" in now.sentence()
    # It was foretold to be the fastest by far, and is not as fast.
    assert now.disagreement().startswith(
        "The screening had foretold −60 % for data.compression=zstd-3, data.recordsize=8K, measured is −3"
    )


def test_few_blocks_are_shared_by_several_layouts(place: FakePlace) -> None:
    with Store.open() as store:
        run = runner.start(store, request(store, place, most=3, blocks=(2, 2)))
        first = {t.layout_name for t in store.trials(run.id) if t.block == 1}
    assert len(first) == 4 and ended(run).ran == 3


def test_a_layout_that_fails_twice_makes_room_for_another(place: FakePlace) -> None:
    best = "data.compression=zstd-3, data.recordsize=8K"
    behave(place, **{best: {"fail": "load"}})
    with Store.open() as store:
        run = runner.start(store, request(store, place, most=1))
        trials = store.trials(run.id)
        assert sum(t.layout_name == best for t in trials) == 2
        assert len(ran(store, run)) == 2 and ended(run).ran == 1 and ended(run).screened == 6
    assert run.outcome["leader_name"] != best


def test_layouts_that_the_place_refuses_are_left_out_and_named(
    place: FakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(study: Study, layout: Layout) -> None:
        if layout.settings()["data.compression"] == "zstd-3":
            raise InputError("no zstd here")

    monkeypatch.setattr(place, "check", check)
    notes = Notes()
    with Store.open() as store:
        run = runner.start(store, request(store, place), notes)
        assert all("zstd" not in name for name in ran(store, run))
    assert ended(run).screened == 3
    assert notes.said[0] == (
        "4 of the screened layouts can't run there, such as data.compression=zstd-3, data.recordsize=8K: no "
        "zstd here"
    )


def test_layouts_that_run_anyway_do_not_count(place: FakePlace) -> None:
    best = "data.compression=zstd-3, data.recordsize=8K"
    with Store.open() as store:
        mine = request(store, place, most=1)
        anyway = next(one for one in first_round(STUDY) if one.name == best)
        run = runner.start(store, replace(mine, layouts=[*mine.layouts, anyway]))
        names = ran(store, run)
    assert set(names) > {best} and len(names) == 2 and ended(run).ran == 1


def test_noise_does_not_end_a_run_too_soon(place: FakePlace) -> None:
    behave(place, **{layout.name: {"spread": 0.3} for layout in first_round(STUDY)})
    with Store.open() as store:
        run = runner.start(store, request(store, place, most=2, blocks=(3, 4)))
    now = ended(run)
    assert now.ran == 2 and now.chance > 0.05 and run.outcome["verdict"] == "open"


def test_a_screening_with_a_single_layout_is_refused_in_a_sentence(home: Path) -> None:
    with Store.open() as store:
        screening = screened(store, [STUDY.layout])
        with pytest.raises(InputError, match="has no finished layout beside the baseline"):
            asked.task_after(screening, store, {}, (), 5, native=False)
        empty = screened(store, [])
        with pytest.raises(InputError, match=f"`ztune show {empty.id}` says why"):
            asked.task_after(empty, store, {}, (), 5, native=False)


def test_a_prior_of_another_study_is_refused_in_a_sentence(place: FakePlace) -> None:
    with Store.open() as store:
        mine = request(store, place)
        raw = STUDY.to_json()
        raw["layout"]["dataset"] = [{"name": "main/all", "roles": ["index"]}]
        raw["axes"], raw["cross"] = {}, []
        other = Study.model_validate({**raw, "name": "other", "profiles": {}})
        before = len(store.runs())
        with pytest.raises(ZtuneError, match='study "other" can\'t have'):
            runner.start(store, replace(mine, study=other, layouts=[other.layout]))
        assert len(store.runs()) == before


def call(*words: str) -> str:
    done = CliRunner().invoke(ztune, list(words), standalone_mode=False, catch_exceptions=True)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_the_commands_say_how_far_it_followed(place: FakePlace) -> None:
    with Store.open() as store:
        screening = screened(store)
    out = json.loads(call("run", "--from", screening.id, "--on", "local", "--json"))
    assert out["outcome"]["follow"]["reason"] == "enough" and out["outcome"]["follow"]["screening"]
    assert out["followed"]["sentence"].startswith("Stopped after ")
    shown = " ".join(call("show", out["run"]).split())
    assert out["followed"]["sentence"] in shown
    assert "Stopped after " in call("recommend", out["run"])
    print(call("show", out["run"]), call("recommend", out["run"]))
    with pytest.raises(InputError, match="and the workload of its screening"):
        call("run", "fio", "--from", screening.id)


def test_named_layouts_run_as_they_are_named(place: FakePlace) -> None:
    with Store.open() as store:
        screening = screened(store)
    words = ("run", "--from", screening.id, "--layouts", "data.recordsize=32K", "--blocks", "2", "--json")
    out = json.loads(call(*words))
    assert [row["layout"] for row in out["layouts"] if not row["baseline"]] == ["data.recordsize=32K"]
    assert out["followed"] is None and "follow" not in out["outcome"]


def test_a_set_that_is_the_base_itself_brings_no_other_layouts(home: Path) -> None:
    with Store.open() as store:
        screening = screened(store)
        task = asked.task_after(screening, store, {}, (), 5, native=False, advice=["zfs-defaults"])
    assert [one.name for one in task.layouts] == [STUDY.layout.name]
    assert any("is the same here as the base" in one for one in task.notes)
