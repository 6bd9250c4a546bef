"""A `ztune tune` that is cut or fails takes back what it made, and nothing of anybody else's."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from click.testing import CliRunner
from synthetic_traces import make_trace

from ztune import paths
from ztune.cli import _recording, _tune
from ztune.cli.main import ztune
from ztune.databases.command.workload import Command
from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import Workload
from ztune.errors import InputError, ZtuneError
from ztune.runs import recordings
from ztune.runs.recordings import KeptJob
from ztune.trace import record


@pytest.mark.parametrize("note", ["", "notes.md"])
def test_a_cut_tune_leaves_what_others_put_into_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: str
) -> None:
    out = tmp_path / "out"

    def cut(*_args: object) -> None:
        if note:
            (out / note).write_text("mine")
        raise KeyboardInterrupt

    monkeypatch.setattr(_tune, "record_workload", cut)
    CliRunner().invoke(ztune, ["tune", "sqlite", "--out", str(out)])
    assert out.exists() == bool(note)
    assert not note or (out / note).read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a folder of another user")
def test_a_folder_that_another_user_put_into_an_open_directory_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name is known beforehand: links in it would be followed, and apply.sh be theirs to change.
    tmp_path.chmod(0o1777)
    theirs = tmp_path / "ztune-sqlite"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    monkeypatch.setattr(_tune, "record_workload", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(ztune, ["tune", "sqlite"], standalone_mode=False)
    assert isinstance(done.exception, InputError)
    assert "ztune-sqlite: it is something of another user" in str(done.exception)
    assert theirs.is_dir() and not [*theirs.iterdir()]


def test_a_recording_whose_job_was_not_done_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(_result: object) -> None:
        assert (tmp_path / "a.trace" / "samples").is_dir()
        raise ZtuneError("a row is missing")

    @contextlib.contextmanager
    def recording(out: Path, **_: object) -> Any:
        yield SimpleNamespace()
        (out / "samples").mkdir(parents=True)

    started = Mock(**{"role_paths.return_value": {}, "info.return_value": {"name": "x"}}, verify=verify)
    monkeypatch.setattr(_recording, "running", lambda *_, **__: contextlib.nullcontext(started))
    monkeypatch.setattr(record, "Recording", recording)
    with pytest.raises(ZtuneError, match="a row is missing"):
        _recording.record_workload(Mock(), "auto", tmp_path / "a.trace")
    assert list(tmp_path.iterdir()) == []


def test_a_role_that_the_job_does_not_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = make_trace(tmp_path / "a.trace")
    places = {role: tmp_path / role for role in ("data", "wal", "temp")}
    started = Mock(**{"role_paths.return_value": places, "info.return_value": {"name": "x"}})
    monkeypatch.setattr(_recording, "running", lambda *_, **__: contextlib.nullcontext(started))
    made = MagicMock(trace=trace)
    monkeypatch.setattr(record, "Recording", lambda *_, **__: made)
    _recording.record_workload(Mock(roles_declared=True), "auto", tmp_path / "b.trace")
    said = capsys.readouterr().err
    assert "did nothing to files of its role temp," in said and "role data" not in said
    # ztune's own have directories for all that the database may come to need.
    _recording.record_workload(Mock(roles_declared=False), "auto", tmp_path / "b.trace")
    assert "did nothing" not in capsys.readouterr().err
    assert not PostgresOltp.roles_declared and Command.roles_declared


def test_room_is_looked_for_before_each_recording_of_a_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, filled = {"GiB": 3.0}, list[Workload]()

    def usage(path: Path) -> Any:
        here = tmp_path in (path, *path.parents)
        return SimpleNamespace(total=100 << 30, free=int((free["GiB"] if here else 90) * 2**30))

    @contextlib.contextmanager
    def running(workload: Workload, **_: object) -> Any:
        filled.append(workload)
        yield Mock(**{"role_paths.return_value": {}, "info.return_value": {"name": "x"}})

    class Recording:
        def __init__(self, out: Path, **_: object) -> None:
            self.trace = out

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            self.trace.mkdir()
            free["GiB"] -= 1

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr(_recording, "running", running)
    monkeypatch.setattr(_recording, "_unused", lambda *_: [])
    monkeypatch.setattr(record, "Recording", Recording)
    series = [KeptJob(((name, ""),), Mock(), tmp_path / f"{name}.trace", name) for name in ("a", "b", "c")]
    monkeypatch.setattr(recordings, "jobs", lambda *_: series)
    monkeypatch.setattr(_recording, "first_round", lambda *_: [])
    with pytest.raises(InputError) as refused:
        _recording.record_jobs(Mock(), "x", {}, "auto", 3)
    assert str(refused.value) == (
        f"the trace is not written to {tmp_path}: 2.0 GiB of 100.0 GiB are free there, and 2.0 GiB stay so; "
        "make room there, or set ZTUNE_HOME to a roomier place"
    )
    # No database was filled for the second, and the first is there.
    assert filled == [series[0].workload] and [path.name for path in tmp_path.iterdir()] == ["a.trace"]


def test_clean_names_traces_that_no_run_replayed(home: Path) -> None:
    for name in ("sqlite-1.trace", "sqlite-2.trace.partial"):
        (paths.traces() / name).mkdir()
    said = CliRunner().invoke(ztune, ["clean"]).output
    for name in ("sqlite-1.trace", "sqlite-2.trace.partial"):
        assert f"no run in {home / 'ztune.db'} goes with {paths.traces() / name}\n" in said
    assert "unless another store has the run" in said
