"""Version 2 of the database: trials on real ZFS, and what version 1 left."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from ztune.errors import InputError
from ztune.store import environment, series
from ztune.store.db import Store, migrations
from ztune.study import Study, generic
from ztune.study.layout import with_settings

pytestmark = pytest.mark.usefixtures("home")


def study() -> Study:
    return generic.build({"data", "wal"})


def make_version_1(path: Path) -> None:
    """Write a database as the first release left it: one run, two trials."""
    layout = study().layout
    path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(path) as db:
        db.executescript(migrations()[0][1])
        db.execute("PRAGMA user_version = 1")
        db.execute(
            "INSERT INTO run VALUES (7,'abc234','tune','old','2025-01-01T00:00:00.000Z','done',NULL,NULL,?,"
            "'/old.trace','ff','{}','{\"openzfs\":\"2.3.2\"}',3,?,'[]','{}','[\"w\"]')",
            (json.dumps(study().to_json()), json.dumps(study().objective.model_dump(mode="json"))),
        )
        for number, (status, result) in enumerate(
            (("ok", '{"measure":{"model":{"modelled_s":2.5}}}'), ("failed", None)), start=1
        ):
            db.execute(
                "INSERT INTO trial VALUES (?,'abc234',?,1,?,?,?,'replay',?,?,'{}',?,'1','2.3.2',NULL,1.5,?)",
                (10 + number, number, f"l{number}", f"{number:012}", json.dumps(layout.to_json()), status,
                 "broke" if result is None else None, result, int(number == 1)),
            )  # fmt: skip
    db.close()


def test_a_database_of_version_1_keeps_everything(home: Path) -> None:
    make_version_1(home / "ztune.db")
    with Store.open() as store:
        (run,) = store.runs()
        assert (run.id, run.kind, run.name, run.status, run.seed) == ("abc234", "tune", "old", "done", 3)
        assert (run.trace_path, run.trace_sha, run.warnings) == ("/old.trace", "ff", ["w"])
        assert run.resolved_study == study()
        assert (run.target, run.job, run.source_run, run.outcome) == ({}, {}, None, {})
        first, second = store.trials(run.id)
        assert first.ok and first.measure == {"model": {"modelled_s": 2.5}} and first.is_baseline
        assert (second.status, second.error, second.number) == ("failed", "broke", 2)
        assert (first.block, first.twin, first.attempts, first.series) == (0, 0, [], ())
        assert (first.trace_path, first.trace_sha) == ("", "")
        assert run.recording_of(first) == ("/old.trace", "ff") and store.recordings(run.id) == []
        # And it can be gone on with.
        assert store.resume_run(run.id).status == "running"
        assert store.add_trial(run.id, with_settings(study().layout, {"arc": "1G"})).number == 3
        new = store.create_run(
            kind="run", study=study(), environment=environment.collect(), versions={}, seed=1
        )
        assert [r.id for r in store.runs()] == ["abc234", new.id]
    with sqlite3.connect(home / "ztune.db") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (migrations()[-1][0],)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()


def test_a_trial_may_have_a_recording_of_its_own(home: Path) -> None:
    make_version_1(home / "ztune.db")
    with Store.open() as store:
        layout = with_settings(study().layout, {"arc": "1G"})
        trial = store.add_trial("abc234", layout, recording=(Path("/other.trace"), "ee"))
        assert (trial.trace_path, trial.trace_sha) == ("/other.trace", "ee")
        assert store.run("abc234").recording_of(trial) == ("/other.trace", "ee")
        assert store.recordings("abc234") == ["/other.trace"]


def test_trials_still_belong_to_their_run_after_the_migration(home: Path) -> None:
    make_version_1(home / "ztune.db")
    with Store.open() as store:
        with pytest.raises(sqlite3.IntegrityError):
            store.add_trial("nobody", study().layout)
        assert len(store.trials("abc234")) == 2


def new_run(store: Store) -> str:
    return store.create_run(
        kind="run", study=study(), environment={}, versions={"openzfs": "2.3.2"}, seed=4,
        target={"kind": "lab", "accel": "tcg"}, job={"name": "fio", "params": {"seconds": 3}},
        source_run="abc234",
    ).id  # fmt: skip


@pytest.mark.usefixtures("stored")
def test_a_run_without_a_trace() -> None:
    with Store.open() as store:
        run = store.run(new_run(store))
        assert (run.trace_path, run.trace_sha, run.measured) == ("", "", True)
        assert (
            run.target["accel"] == "tcg"
            and run.job["params"] == {"seconds": 3}
            and run.source_run == "abc234"
        )
        assert store.note_run(run.id, outcome={"verdict": "resolved"}).outcome == {"verdict": "resolved"}


@pytest.mark.usefixtures("stored")
def test_the_runs_that_took_their_layouts_from_one() -> None:
    with Store.open() as store:
        first, second = (store.run(new_run(store)) for _ in range(2))
        assert [run.id for run in store.runs_from("abc234")] == [first.id, second.id]
        assert store.runs_from(first.id) == []


@pytest.mark.usefixtures("stored")
def test_a_layout_is_repeated_by_block_and_by_twin() -> None:
    with Store.open() as store:
        run = new_run(store)
        layout = study().layout
        made = [
            store.add_trial(run, layout, target="lab", block=block, twin=twin, is_baseline=not twin)
            for block in (1, 2)
            for twin in (0, 1)
        ]
        assert [t.number for t in made] == [1, 2, 3, 4]
        assert store.add_trial(run, layout, target="lab", block=2, twin=1).number == 4
        assert [t.arm for t in made] == [layout.hash, layout.hash + "+1"] * 2


@pytest.mark.usefixtures("stored")
def test_an_attempt_that_was_cut_is_kept_apart() -> None:
    with Store.open() as store:
        run = new_run(store)
        trial = store.add_trial(run, study().layout, block=1)
        store.start_trial(trial.id, {})
        assert store.reset_trial(trial.id, "the guest stopped").attempts[0]["error"] == "the guest stopped"
        store.start_trial(trial.id, {})
        store.finish_trial(trial.id, error="no room", result={"warnings": ["w"]}, wall_s=2)
        failed = store.trial(run, 1)
        assert (failed.status, failed.error, failed.warnings, failed.ok) == (
            "failed",
            "no room",
            ["w"],
            False,
        )
        store.finish_run(run, "interrupted")
        store.resume_run(run)
        again = store.trial(run, 1)
        assert again.status == "pending" and [a["error"] for a in again.attempts] == [
            "the guest stopped",
            "no room",
        ]


def test_series_lie_beside_the_database(home: Path) -> None:
    with Store.open() as store:
        run = new_run(store)
        trial = store.add_trial(run, study().layout, block=1)
        rows = series.SeriesRows()
        rows.add("arc", ["t", "hits"], [[1.0, 5], [2.0, None]])
        rows.add("arc", ["t", "other"], [[3.0, 1]])  # another shape: not the same series
        rows.add("zpool iostat/../x", ["t"], [[1.5]])
        rows.add("empty", ["t"], [])
        refs = rows.write(run, trial.number)
        assert [r.file for r in refs] == [
            f"series/{run}/0001-arc.parquet", f"series/{run}/0001-zpool-iostat-x.parquet"
        ]  # fmt: skip
        done = store.finish_trial(trial.id, result={"measure": {}}, wall_s=1, openzfs="2.3.2", series=refs)
    assert done.ok and done.openzfs_version == "2.3.2" and done.series == tuple(refs)
    assert series.read(done, "arc") == {"t": [1.0, 2.0], "hits": [5.0, None]}
    assert sorted(p.name for p in (home / "series" / run).iterdir()) == [Path(r.file).name for r in refs]
    with pytest.raises(InputError, match="has no series"):
        series.read(done, "l2arc")
    (home / refs[0].file).unlink()
    with pytest.raises(InputError, match="can't be read"):
        series.read(done, "arc")
