"""``ztune runs --delete``: what goes, what stays, and when it is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ztune import paths
from ztune.cli.main import ztune
from ztune.store.db import Store
from ztune.store.deletion import orphans
from ztune.study import ready
from ztune.study.layout import with_settings

pytestmark = pytest.mark.usefixtures("home")


def make(trace: Path | None = None, status: str = "done", source: str | None = None) -> str:
    study = ready.find("sqlite")
    with Store.open() as store:
        run = store.create_run(
            kind="screen", study=study, trace_path=trace, trace_sha="0" * 64, environment={}, versions={},
            seed=1, source_run=source,
        )  # fmt: skip
        trial = store.add_trial(run.id, study.layout)
        store.start_trial(trial.id, {})
        if status != "running":
            store.finish_run(run.id, status)
    series = paths.home() / "series" / run.id
    series.mkdir(parents=True)
    (series / "0001-cpu.parquet").write_bytes(b"x")
    return run.id


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "trace.json").write_text("{}")
    return path


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, ["runs", *words], standalone_mode=False)


def ids() -> list[str]:
    with Store.open() as store:
        return [run.id for run in store.runs()]


def test_without_yes_nothing_is_changed(home: Path) -> None:
    run = make()
    done = call("--delete", run)
    assert done.output.splitlines() == [
        f"run {run}, sqlite: 1 trials", f"  {home}/series/{run}", "Nothing was changed; --yes deletes it.",
    ]  # fmt: skip
    assert ids() == [run] and (home / "series" / run).is_dir()


def test_a_run_goes_with_its_trials_and_series_and_the_trace_made_for_it(home: Path) -> None:
    own = folder(paths.traces() / "sqlite-1.trace")
    other, run = make(), make(own)
    done = call("--delete", run, "--yes", "--json")
    assert done.exception is None
    assert json.loads(done.output) == [
        {"id": run, "name": "sqlite", "trials": 1, "folders": [f"{home}/series/{run}", str(own)],
         "verdicts": [], "deleted": True},
    ]  # fmt: skip
    assert ids() == [other] and not own.exists() and not (home / "series" / run).exists()
    assert (home / "series" / other).is_dir()
    with Store.open() as store:
        assert store.trials(run) == []


def test_traces_of_others_stay(home: Path, tmp_path: Path) -> None:
    mine = folder(tmp_path / "my.trace")
    shared = folder(paths.traces() / "shared.trace")
    link = paths.traces() / "link.trace"
    link.symlink_to(mine)
    up = paths.traces() / ".."
    runs = [make(mine), make(shared), make(link), make(up)]
    keeper = make(shared)
    words = [word for run in runs for word in ("--delete", run)]
    done = call(*words, "--yes")
    assert done.exception is None, done.exception
    assert ids() == [keeper]
    assert mine.is_dir() and shared.is_dir() and link.is_symlink() and (home / "ztune.db").is_file()
    assert call("--delete", keeper, "--yes").exception is None
    assert not shared.exists()


def test_runs_that_share_a_trace_take_it_along(home: Path) -> None:
    shared = folder(paths.traces() / "shared.trace")
    first, second = make(shared), make(shared)
    assert call("--delete", first, "--delete", second, "--delete", first, "--yes").exception is None
    assert ids() == [] and not shared.exists()


def test_a_run_that_goes_on_is_refused(home: Path) -> None:
    done, live = make(), make()
    with Store.open() as working:
        working.resume_run(live)
        refused = call("--delete", done, "--delete", live, "--yes")
    assert str(refused.exception) == (
        f"run {live} is being worked on by process {os.getpid()}; wait for it or stop it"
    )
    assert ids() == [done, live] and (home / "series" / done).is_dir()


def test_a_run_that_another_builds_on_is_refused_unless_both_go(home: Path) -> None:
    screened = make()
    measured = make(source=screened)
    refused = call("--delete", screened, "--yes")
    assert str(refused.exception) == f"run {measured} has its layouts from run {screened}; delete it too"
    assert ids() == [screened, measured]
    assert call("--delete", screened, "--delete", measured, "--yes").exception is None
    assert ids() == []


def test_a_wrong_name_deletes_nothing() -> None:
    run = make()
    assert "there is no run" in str(call("--delete", run, "--delete", "zzzzzz", "--yes").exception)
    assert ids() == [run]
    assert "--yes goes with --delete" in str(call("--yes").exception)


@pytest.mark.parametrize("given", ["last", "prefix"])
def test_a_run_is_named_as_everywhere(given: str) -> None:
    run = make()
    assert call("--delete", "last" if given == "last" else run[:5], "--yes").exception is None
    assert ids() == []


def test_a_folder_that_stays_is_named(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    run = make()

    def fail(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", fail)
    done = call("--delete", run, "--yes")
    assert f"{home}/series/{run} can't be removed: Permission denied" in str(done.exception)
    assert ids() == []


def test_recordings_of_single_layouts_go_with_the_last_run_that_replayed_them(home: Path) -> None:
    shared, alone = folder(home / "traces" / "job-a.trace"), folder(home / "traces" / "job-b.trace")
    first, second = make(shared), make(shared)
    layout = ready.find("sqlite").layout
    with Store.open() as store:
        for run, trace in ((first, shared), (first, alone), (second, shared)):
            changed = with_settings(layout, {"arc": "1G" if trace is alone else "2G"})
            store.add_trial(run, changed, recording=(trace, "1" * 64))
    assert call("--delete", first, "--yes").exit_code == 0
    assert shared.is_dir() and not alone.exists()
    assert call("--delete", second, "--yes").exit_code == 0
    assert not shared.exists()


def test_a_recording_stays_while_another_run_replays_it_as_a_neighbour(home: Path) -> None:
    own = folder(home / "traces" / "sqlite-1.trace")
    screened, study = make(own), ready.find("sqlite")
    with Store.open() as store:
        neighbour = {"path": str(own), "sha": "0" * 64, "start_s": 0.0, "name": "sqlite"}
        other = store.create_run(
            kind="screen", study=study, environment={}, versions={}, seed=1, options={"beside": neighbour}
        )
        store.finish_run(other.id, "done")
    assert call("--delete", screened, "--yes").exit_code == 0
    assert own.is_dir()
    assert call("--delete", other.id, "--yes").exit_code == 0
    assert not own.exists()


def test_files_stay_while_the_store_of_the_state_directory_has_the_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder(home / "traces" / "sqlite-1.trace")
    run = make(own)
    copy = tmp_path / "copy.db"
    copied = CliRunner().invoke(ztune, ["store", "copy", "default", str(copy)])
    assert copied.exit_code == 0, copied.output
    monkeypatch.setenv("ZTUNE_STORE", str(copy))
    assert call("--delete", run, "--yes").exit_code == 0 and ids() == []
    assert own.is_dir() and (home / "series" / run).is_dir()
    monkeypatch.delenv("ZTUNE_STORE")
    assert ids() == [run]
    assert call("--delete", run, "--yes").exit_code == 0
    assert not own.exists() and not (home / "series" / run).exists()


def test_files_of_no_run_are_found_and_those_of_a_run_are_not(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder(home / "traces" / "sqlite-1.trace"))
    # As a state directory that was moved has them: its runs name the old place.
    moved = folder(home / "traces" / "moved.trace")
    sha = hashlib.sha256((moved / "trace.json").read_bytes()).hexdigest()
    with Store.open() as store:
        run = store.create_run(
            kind="screen", study=ready.find("sqlite"), trace_path=Path("/old/moved.trace"), trace_sha=sha,
            environment={}, versions={}, seed=1,
        )  # fmt: skip
        store.finish_run(run.id, "done")
        assert orphans(store) == []
    (moved / "trace.json").write_text("another")
    killed = home / "series" / "zzzzzz"
    killed.mkdir()
    with Store.open() as store:
        assert orphans(store) == [killed, moved]
    # Another store does not make orphans of what the state directory's own names.
    monkeypatch.setenv("ZTUNE_STORE", str(tmp_path / "other.db"))
    with Store.open() as store:
        assert orphans(store) == [killed, moved]
