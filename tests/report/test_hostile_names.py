"""Names that want to be markup, or to rule the terminal, in everything that is printed of stored runs and
traces. Studies refuse them now; a store may have them from an earlier ztune."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import evidence as ev
import pytest
from click.testing import CliRunner

from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.store.db import Store
from ztune.study import Study
from ztune.study.loader import load_study
from ztune.trace.columns import EVENTS
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

NAME = "[/x][bold]\x1b[2J\x9b1m\u202enoise:warning:"
WRITTEN = r"[/x][bold]\x1b[2J\x9b1m\u202enoise:warning:"

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> str:
    done = CliRunner().invoke(ztune, list(words), standalone_mode=False, color=True)
    assert done.exception is None, (words, done.exception)
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", re.sub(r"\x1b\[[0-9;]*m", "", done.output)
    )
    return done.output


@pytest.fixture
def stored() -> str:
    raw = {k: v for k, v in ev.run().study.items() if k != "profiles"}
    study = Study.model_validate({**raw, "name": NAME})
    with Store.open() as store:
        run = store.create_run(
            kind="screen", study=study, trace_path=Path(f"/nowhere/{NAME}.trace"), trace_sha="0" * 64,
            environment={"kernel": NAME, "cpu": NAME, "memory_bytes": 1 << 30}, name=NAME,
            versions={"ztune": NAME, "openzfs": "2.3.2"}, seed=1, warnings=[NAME], command=["ztune", NAME],
        )  # fmt: skip
        for number, layout in enumerate(ev.layouts()[:8], start=1):
            named = replace(layout, name=f"{NAME} {number}")
            trial = store.add_trial(run.id, named, is_baseline=number == 1)
            store.start_trial(trial.id, {})
            if number == 8:
                store.finish_trial(trial.id, error=f"{NAME}{os.fsdecode(bytes([255]))} failed", wall_s=1.0)
            else:
                result = {
                    "engine": {"version": NAME, "openzfs": "2.3.2"},
                    "measure": ev.toy_measure(layout),
                    "warnings": [NAME],
                }
                store.finish_trial(trial.id, result=result, wall_s=2.0)
        store.finish_run(run.id, "done")
    return run.id


def test_the_store_is_shown(stored: str) -> None:
    for words in (
        ("runs",), ("show", stored), ("show", stored, "--trial", "2"), ("recommend", stored),
        ("recommend", "--all"), ("runs", "--delete", stored),
    ):  # fmt: skip
        assert WRITTEN in call(*words), words


def test_json_is_exact(stored: str) -> None:
    assert json.loads(call("runs", "--json"))[0]["name"] == NAME
    assert json.loads(call("show", stored, "--json"))["trials"][0]["layout_name"] == f"{NAME} 1"
    assert json.loads(call("recommend", stored, "--json"))["layout_name"].startswith(NAME)


def test_the_report_shows_them_too(stored: str, home: Path) -> None:
    call("report", stored, "--out", "r.html")
    page = (home / "r.html").read_text()
    assert WRITTEN in page
    assert not CONTROL.search(page)
    call("recommend", stored, "--script", "s.sh")
    assert not CONTROL.search((home / "s.sh").read_text())


def test_files_of_a_trace(home: Path) -> None:
    import numpy as np

    rows = np.zeros(1, EVENT_DTYPE)
    rows["op"], rows["file2"], rows["size"] = Op.WRITE, -1, 4096
    assert set(EVENT_DTYPE.names or ()) == set(EVENTS.names)
    writer = TraceWriter(home / "t.trace")
    writer.add_rows(rows)
    writer.finish(
        files=[
            {"id": 0, "path": f"/db/{NAME}", "role": "data", "size_start": 4096,
             "names": [{"t": 0, "path": f"/db/old{NAME}"}, {"t": 1, "path": f"/db/{NAME}"}]},
        ],
        duration_ns=10**9, recorder={"name": NAME}, command=[NAME],
        warnings=[{"code": "x", "message": NAME, "count": 2}],
    )  # fmt: skip
    for words in (("files", "t.trace"), ("show", "t.trace"), ("show", "t.trace", "--by", "file")):
        assert WRITTEN in call("trace", *words), words


def test_a_study_with_them_is_refused_in_one_sentence(home: Path) -> None:
    shipped = (Path(__file__).parents[2] / "studies" / "sqlite.toml").read_text()
    good = load_study(Path(__file__).parents[2] / "studies" / "sqlite.toml")
    for old, new, key in (
        (f'name = "{good.name}"', r'name = "a\u001b[2Jb"', "name"),
        (f'name = "{good.name}"', r'name = "two\nlines"', "name"),
        (f'name = "{good.name}"', f'name = "{good.name}"\ndescription = "a\\u202eb"', "description"),
    ):
        text = shipped if key != "description" else re.sub(r"(?ms)^description = .*?$", "", shipped)
        assert old in text
        (home / "s.toml").write_text(text.replace(old, new, 1))
        with pytest.raises(
            InputError, match=rf"s\.toml(:\d+)?: {key} is \".*no control characters"
        ) as caught:
            load_study(home / "s.toml")
        assert str(caught.value).isprintable()
