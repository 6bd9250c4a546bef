"""A `ztune tune` that is cut or fails takes back what it made, and nothing of anybody else's."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from ztune import paths
from ztune.cli import _recording, _tune
from ztune.cli.main import ztune
from ztune.errors import ZtuneError
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


def test_clean_names_traces_that_no_run_replayed(home: Path) -> None:
    for name in ("sqlite-1.trace", "sqlite-2.trace.partial"):
        (paths.traces() / name).mkdir()
    said = CliRunner().invoke(ztune, ["clean"]).output
    for name in ("sqlite-1.trace", "sqlite-2.trace.partial"):
        assert f"no run in {home / 'ztune.db'} goes with {paths.traces() / name}\n" in said
    assert "unless another store has the run" in said
