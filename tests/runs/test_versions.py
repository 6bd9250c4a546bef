"""One recording under two versions of OpenZFS, by engines that stand in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synthetic_traces import STAND_IN

from ztune import native
from ztune.cli.main import ztune
from ztune.errors import InputError, MissingError
from ztune.native import openzfs
from ztune.native.openzfs import Library
from ztune.store.db import Store
from ztune.trace.reader import Trace

pytestmark = pytest.mark.usefixtures("home", "stand_in_engine")


def bring(version: str, source: str = "0.0.1") -> Library:
    """Have an engine with this OpenZFS, as ``ztune setup openzfs`` leaves it."""
    folder = openzfs.folder(version)
    (folder / "root").mkdir(parents=True)
    (folder / "version").write_text(f"{version}-1\n")
    library = Library(folder / "root", f"{version}-1")
    path = native.ENGINE.against(library)._own()
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nSTAND_IN_OPENZFS={version} STAND_IN_VERSION={source} exec {STAND_IN} "$@"\n')
    path.chmod(0o755)
    return library


def screen(*words: str, ok: int = 0) -> Any:
    given = ["screen", *words, "--budget", "6", "--jobs", "2", "--json"]
    done = CliRunner().invoke(ztune, given, standalone_mode=False)
    assert done.return_value == ok, done.stderr
    return json.loads(done.stdout)


def test_the_same_layouts_are_tried_with_both(trace: Trace) -> None:
    bring("2.4.4")
    answer = screen(str(trace.path), "--openzfs", "2.3,2.4")
    assert answer["openzfs"] == ["2.3.2", "2.4.4"]
    assert answer["change"]["2.4.4"]["write_ops"] == {
        "median": 0.9, "low": 0.9, "high": 0.9, "layouts": len(answer["layouts"]),
    }  # fmt: skip
    assert answer["change"]["2.4.4"]["written"]["high"] == 1.0
    with Store.open() as store:
        first, second = store.runs()
        assert [run.versions["openzfs"] for run in (first, second)] == ["2.3.2", "2.4.4"]
        assert second.source_run == first.id and second.name == f"{first.name}, OpenZFS 2.4.4"
        layouts = [
            [t.layout_hash for t in store.trials(run.id) if not t.condition] for run in (first, second)
        ]
        assert layouts[0] == layouts[1] and len(layouts[0]) == len(answer["layouts"])
        assert {t.openzfs_version for t in store.trials(second.id)} == {"2.4.4"}


def test_the_table_says_what_changes(trace: Trace) -> None:
    bring("2.4.4")
    words = ["screen", str(trace.path), "--openzfs", "2.3.2,2.4.4", "--budget", "2"]
    done = CliRunner().invoke(ztune, words, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "2.4.4 against 2.3.2: the middle layout (least … most)" in done.stdout
    assert "write operations  ×0.90 (0.90 … 0.90)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    with Store.open() as store:
        first, second = (run.id for run in store.runs())
    shown = CliRunner().invoke(ztune, ["show", second], env={"COLUMNS": "80"})
    assert "OpenZFS 2.3.2, 2.4.4: the same recording on the same layouts" in shown.stdout
    # Each has a ranking of its own, and one that others have their layouts from stays.
    assert f"Run {second}" in shown.stdout
    deleted = CliRunner().invoke(ztune, ["runs", "--delete", first])
    assert "has its layouts from run" in str(deleted.exception)


def test_a_version_is_added_to_a_run_that_there_is(trace: Trace) -> None:
    alone = screen(str(trace.path))
    bring("2.4.4")
    answer = screen("--resume", str(alone["run"]), "--openzfs", "2.4.4")
    assert answer["runs"]["2.3.2"] == alone["run"] and len(answer["layouts"]) == len(alone["layouts"])
    again = screen("--resume", str(alone["run"]), "--openzfs", "2.4.4")
    assert again["runs"] == answer["runs"]


def test_a_version_that_was_cut_goes_on(trace: Trace) -> None:
    bring("2.4.4")
    answer = screen(str(trace.path), "--openzfs", "2.3.2,2.4.4")
    with Store.open() as store:
        second = store.run(answer["runs"]["2.4.4"])
        trial = store.trials(second.id)[-1]
        store._db.execute("UPDATE trial SET status = 'running', result = NULL WHERE id = ?", (trial.id,))
        store._db.execute("UPDATE run SET status = 'interrupted' WHERE id = ?", (second.id,))
    again = screen("--resume", str(trace.path))
    assert again["runs"] == answer["runs"] and again["layouts"] == answer["layouts"]


def test_one_version_alone_is_a_ranking(trace: Trace) -> None:
    bring("2.4.4")
    answer = screen(str(trace.path), "--openzfs", "2.4")
    assert answer["versions"]["openzfs"] == "2.4.4"


def test_a_layout_that_fails_in_one_is_said(trace: Trace) -> None:
    path = native.ENGINE.against(bring("2.4.4"))._own()
    path.write_text(path.read_text().replace("STAND_IN_OPENZFS", "STAND_IN=refuse=65536 STAND_IN_OPENZFS"))
    answer = screen(str(trace.path), "--openzfs", "2.3.2,2.4.4", ok=1)
    failed = [one for one in answer["layouts"] if one["failed"]]
    assert failed and all("recordsize is odd" in one["failed"]["2.4.4"] for one in failed)
    assert all(one["ratios"]["2.4.4"]["written"] is None for one in failed)


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (
            "2.4.4",
            MissingError,
            r"no engine with OpenZFS 2.4.4 here \(2.3.2\); `ztune setup openzfs --version",
        ),
        ("2.3,2.3.2", InputError, r"OpenZFS 2.3.2 is named twice in 2.3,2.3.2"),
        ("2.3.2,", InputError, r"is no list of versions; write 2.3.2,2.4.4"),
        (
            "3.1",
            InputError,
            r'no engine with OpenZFS "3.1" \(here: 2.3.2\), and Debian has 2.1, 2.3, 2.4 only',
        ),
    ],
)
def test_what_can_not_be_compared_is_one_sentence(
    trace: Trace, words: str, error: type[Exception], said: str
) -> None:
    done = CliRunner().invoke(ztune, ["screen", str(trace.path), "--openzfs", words])
    assert isinstance(done.exception, error)
    with pytest.raises(error, match=said):
        raise done.exception
    with Store.open() as store:
        assert store.runs() == []


def test_engines_of_other_sources_are_not_compared(trace: Trace, home: Path) -> None:
    bring("2.4.4", source="0.0.2")
    done = CliRunner().invoke(ztune, ["screen", str(trace.path), "--openzfs", "2.3.2,2.4.4"])
    assert "the engines are not of the same sources (0.0.1, 0.0.2)" in str(done.exception)
