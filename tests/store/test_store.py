from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import children
import pytest
from stored_runs import new_run, study

from ztune import paths
from ztune.errors import InputError
from ztune.store import environment
from ztune.store.db import Store, migrations
from ztune.study.layout import with_settings

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("home")


WORKER = """
from stored_runs import new_run
from ztune.store.db import Store
with Store.open() as store:
    print(new_run(store).id, flush=True)
    input()
"""
RESULT = {
    "engine": {"version": "1", "openzfs": "2.3.2"},
    "measure": {"model": {"modelled_s": 1.5}},
    "warnings": ["w"],
}


@pytest.mark.usefixtures("stored")
def test_what_is_stored_comes_back(home: Path) -> None:
    with Store.open() as store:
        run = new_run(store, name="mine", command=["ztune", "screen"], options={"budget": 3})
        trial = store.add_trial(run.id, run.resolved_study.layout, is_baseline=True)
        assert (trial.number, trial.status, trial.round, trial.is_baseline) == (1, "pending", 1, True)
        store.start_trial(trial.id, {"version": 1})
        store.finish_trial(trial.id, result=RESULT, wall_s=2.5)
    with Store.open() as store:  # another process, as it were
        again = store.run()
        assert again == store.run(run.id) == store.run(run.id[:3])
        assert (again.name, again.seed, again.command, again.options) == (
            "mine",
            5,
            ["ztune", "screen"],
            {"budget": 3},
        )
        assert again.resolved_study == study()
        assert list(again.resolved_study.axes) == list(
            study().axes
        )  # their order decides which layouts come first
        assert again.objective == study().objective
        (trial,) = store.trials(run.id)
        assert trial.layout == study().layout and trial.layout_hash == study().layout.hash
        assert trial.ok and trial.measure == RESULT["measure"] and trial.warnings == ["w"]
        assert (trial.spec, trial.wall_s, trial.engine_version, trial.openzfs_version) == (
            {"version": 1},
            2.5,
            "1",
            "2.3.2",
        )
    assert "ZTUNE_STORE" in os.environ or (home / "ztune.db").stat().st_size > 0


@pytest.mark.usefixtures("stored")
def test_failed_trials_keep_their_sentence() -> None:
    with Store.open() as store:
        run = new_run(store)
        trial = store.add_trial(run.id, study().layout)
        store.start_trial(trial.id, {})
        failed = store.finish_trial(trial.id, error="the engine was killed by SIGSEGV", wall_s=0.1)
        assert failed.status == "failed" and failed.error == "the engine was killed by SIGSEGV"
        assert failed.measure == {} and not failed.ok


@pytest.mark.usefixtures("stored")
def test_a_layout_is_in_a_run_once() -> None:
    with Store.open() as store:
        run = new_run(store)
        first = store.add_trial(run.id, study().layout)
        same = with_settings(study().layout, {"data.compression": "on"}, "another name")
        assert store.add_trial(run.id, same).id == first.id
        assert store.add_trial(new_run(store).id, same).id != first.id


@pytest.mark.usefixtures("stored")
def test_resume_makes_failed_and_cut_trials_pending() -> None:
    with Store.open() as store:
        run = new_run(store)
        sizes = ["8K", "16K", "32K"]
        ids = [
            store.add_trial(run.id, with_settings(study().layout, {"data.recordsize": s}, s)).id
            for s in sizes
        ]
        store.start_trial(ids[0], {})
        store.finish_trial(ids[0], result=RESULT, wall_s=1)
        store.start_trial(ids[1], {})
        store.finish_trial(ids[1], error="no", wall_s=1)
        store.start_trial(ids[2], {})
        store.finish_run(run.id, "interrupted")
        assert not store.is_live(store.run(run.id))
        assert store.resume_run(run.id).status == "running"
        assert [t.status for t in store.trials(run.id)] == ["ok", "pending", "pending"]
        assert store.is_live(store.run(run.id))


def test_a_run_of_another_container_is_live_until_its_process_ends() -> None:
    """Its number is none here, or that of another process: a lock says whether it lives."""
    own = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []
    there = subprocess.Popen(
        [*own, sys.executable, "-c", WORKER], env=children.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with there, Store.open() as store:
        assert there.stdout is not None
        run = store.run(there.stdout.readline().strip())
        assert store.is_live(run)
        for refused in (store.resume_run, lambda run_id: store.delete_runs([run_id])):
            with pytest.raises(InputError, match=f"run {run.id} is being worked on"):
                refused(run.id)
        there.kill()
        there.communicate()
        assert not store.is_live(run)
        assert store.resume_run(run.id).status == "running" and store.is_live(run)
        with Store.open() as other:
            assert other.is_live(run)
    with Store.open() as store:
        assert not store.is_live(run)
        store.delete_runs([run.id])
        assert not list(Path(store.path).parent.glob("*-run-*"))


def test_a_run_that_began_in_a_process_with_our_number_is_not_ours() -> None:
    with Store.open() as there, Store.open() as here:
        run = new_run(there)
        assert run.pid == os.getpid()
        with pytest.raises(InputError, match="is being worked on"):
            here.resume_run(run.id)


@pytest.mark.usefixtures("stored")
def test_runs_are_named_clearly() -> None:
    with Store.open() as store:
        with pytest.raises(InputError, match="no runs in"):
            store.run()
        runs = [new_run(store) for _ in range(40)]
        assert [r.id for r in store.runs()] == [r.id for r in runs]
        assert len({r.id for r in runs}) == 40
        assert all(re.fullmatch("[2-9a-hjkmnp-z]{6}", r.id) for r in runs)
        with pytest.raises(InputError, match='no run "0"'):
            store.run("0")
        with pytest.raises(InputError, match='no run ""'):
            store.run("")
        with pytest.raises(InputError, match='no run "%"'):
            store.run("%")
        letters = [r.id[0] for r in runs]
        twice = next(c for c in letters if letters.count(c) > 1)  # 40 ids over 31 letters
        with pytest.raises(InputError, match="begins several runs"):
            store.run(twice)
        with pytest.raises(InputError, match="has no trial 9"):
            store.trial(runs[0].id, 9)


def test_a_newer_database_is_refused(home: Path) -> None:
    Store.open().close()
    with sqlite3.connect(home / "ztune.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(
        InputError, match=f"has version 99, this ztune knows up to {migrations()[-1][0]}; use a newer ztune"
    ):
        Store.open()


def test_a_file_that_is_no_database_is_refused(home: Path) -> None:
    paths.home()
    (home / "ztune.db").write_text("not a database, but long enough to have a header" * 10)
    with pytest.raises(InputError, match="can't be used: file is not a database"):
        Store.open()


def test_a_failed_migration_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ztune.store.db as module

    broken = [*migrations(), (len(migrations()) + 1, "CREATE TABLE extra (x);\nCREATE TABLE run (x);\n")]
    monkeypatch.setattr(module, "migrations", lambda _dialect: broken)
    with pytest.raises(InputError, match="already exists"):
        Store.open()
    monkeypatch.undo()
    monkeypatch.setenv("ZTUNE_HOME", str(home))
    with Store.open() as store:  # as if the broken version had never been
        assert store.runs() == []
    with sqlite3.connect(home / "ztune.db") as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)
    db.close()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [version for version, _ in migrations()] == list(range(1, len(migrations()) + 1))


@pytest.mark.usefixtures("stored")
def test_many_threads_and_processes_write_at_once() -> None:
    with Store.open() as store:
        run = new_run(store)

    def add(size: str) -> int:
        with Store.open() as own:
            trial = own.add_trial(run.id, with_settings(study().layout, {"data.recordsize": size}, size))
            own.start_trial(trial.id, {})
            own.finish_trial(trial.id, result=RESULT, wall_s=1)
            return trial.number

    other = subprocess.Popen(
        [sys.executable, "-c", f"""
from ztune.store.db import Store
from ztune.study import generic, with_settings
base = generic.build(("data", "wal")).layout
for size in ("512", "1K", "2K", "4K"):
    with Store.open() as store:
        store.add_trial("{run.id}", with_settings(base, {{"wal.recordsize": size}}, size))
"""]
    )  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(add, ["512", "1K", "2K", "4K", "8K", "16K", "32K", "64K"] * 2))
    assert other.wait(60) == 0
    with Store.open() as store:
        trials = store.trials(run.id)
    assert [t.number for t in trials] == list(range(1, 13))
    assert len(set(numbers)) == 8


def test_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "a"))
    assert paths.home() == tmp_path / "a"
    monkeypatch.delenv("ZTUNE_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "b"))
    assert paths.home() == tmp_path / "b" / "ztune"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert paths.home() == tmp_path / "c" / ".local" / "state" / "ztune"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "file" / "x"))
    with pytest.raises(InputError, match=r"can't be made.*set ZTUNE_HOME"):
        paths.home()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_state_directory_of_somebody_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root would run the programs that lie there, and delete what its records say."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    monkeypatch.setenv("ZTUNE_HOME", str(theirs / "home"))
    with pytest.raises(InputError, match=f"{theirs}.*belongs to user 65534.*set ZTUNE_HOME"):
        paths.home()
    assert list(theirs.iterdir()) == []
    os.chown(theirs, 0, 0)
    theirs.chmod(0o1777)  # as /tmp
    assert paths.home().stat().st_mode & 0o777 == 0o711
    assert (paths.scratch().stat().st_mode | paths.cache().stat().st_mode) & 0o022 == 0
    paths.cache().chmod(0o777)
    with pytest.raises(InputError, match="cache can be written by every user"):
        paths.cache()


def test_environment_has_no_names() -> None:
    found = environment.collect()
    assert set(found) == {
        "kernel", "machine", "cpu", "cpus", "cpus_usable", "memory_bytes", "memory_available_bytes",
        "python", "ztune",
    }  # fmt: skip
    assert found["memory_bytes"] > found["memory_available_bytes"] > 0


def test_every_column_is_documented(home: Path) -> None:
    Store.open().close()
    page = (ROOT / "docs" / "results.md").read_text()
    with sqlite3.connect(home / "ztune.db") as db:
        for table in ("run", "trial"):
            section = page.split(f"## `{table}`")[1].split("\n## ")[0]
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            assert len(columns) > 10
            for column in columns:
                assert f"`{column}`" in section, f"{table}.{column}"
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    assert tables == {"run", "trial", "origin"} and "## `origin`" in page
    for key in environment.collect():
        assert f"`{key}`" in page


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("run", "study", '{"a": "cut'),
        ("run", "options", "["),
        ("run", "objective", '{"minimise": 7}'),
        ("trial", "spec", "[" * 100_000),
        ("trial", "result", '{"a" 1}'),
        ("trial", "layout", "17"),
        ("trial", "series", "[7]"),
    ],
)
def test_a_row_that_is_damaged_is_one_sentence(table: str, column: str, value: str) -> None:
    with Store.open() as store:
        run = new_run(store)
        store.add_trial(run.id, run.resolved_study.layout)
        store._db.execute(f"UPDATE {table} SET {column} = ?", (value,))
        with pytest.raises(InputError, match=r"results database is damaged: .*; set ZTUNE_HOME") as caught:
            assert not [trial.spec for trial in store.trials(store.run(run.id).id)]
        assert "\n" not in str(caught.value)


def test_a_column_whose_name_is_damaged_is_one_sentence() -> None:
    with Store.open() as store:
        new_run(store)
    path = paths.database()
    path.write_bytes(path.read_bytes().replace(b"trace_sha", b"trace\xc8sha"))
    with pytest.raises(InputError, match="can't be used: a text in it is not UTF-8"), Store.open() as store:
        store.runs()
