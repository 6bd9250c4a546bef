"""A cut `ztune tune` takes back the folder that it made, and nothing of anybody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ztune.cli import _tune
from ztune.cli.main import ztune


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
