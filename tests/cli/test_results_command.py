"""``ztune results``: export, merge, page, and what is wrong with each in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import exported_runs as runs
import pytest
from click.testing import CliRunner, Result

from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.results import file
from ztune.store.db import Store


@pytest.fixture(autouse=True)
def stored(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    with Store.open() as store:
        return [runs.screened(store).id, runs.measured(store).id]


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, ["results", *words], standalone_mode=False)


def done(*words: str) -> str:
    result = call(*words)
    assert result.exception is None, result.exception
    return result.stdout  # what takes two seconds says so on stderr


def refused(*words: str) -> str:
    result = call(*words)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def test_export_merge_and_page(stored: list[str], tmp_path: Path) -> None:
    with Store.open() as store:
        origin = store.origin()
    assert done("export", "--out", "all.parquet") == "all.parquet: 7 trials of 2 runs from 1 store\n"
    said = json.loads(done("export", stored[0], stored[0][:5], "--out", "one.parquet", "--json"))
    assert said == {"file": "one.parquet", "rows": 3, "failed": 1, "runs": 1, "stores": 1, "twice": 0}
    out = done("merge", "one.parquet", "all.parquet", "--out", "both.parquet")
    assert out == "both.parquet: 7 trials of 2 runs from 1 store; 3 were in it twice\n"
    assert file.read(Path("both.parquet")) == sorted(file.read(Path("all.parquet")), key=lambda row: row.key)
    assert {row.origin for row in file.read(Path("both.parquet"))} == {origin}
    assert done("page", "both.parquet", "--out", "x.html") == "x.html\n"
    assert "published, not ours" in Path("x.html").read_text()
    done("page", "both.parquet", "--out", "y.html", "--no-published")
    assert '"published": true' not in Path("y.html").read_text()
    assert '"published": true' in Path("x.html").read_text()


def test_a_file_can_be_merged_into_itself() -> None:
    done("export", "--out", "a.parquet")
    before = file.read(Path("a.parquet"))
    done("merge", "a.parquet", "a.parquet", "--out", "a.parquet")
    assert file.read(Path("a.parquet")) == sorted(before, key=lambda row: row.key)


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path) -> None:
    done("export", "--out", "a.parquet")
    rows = file.read(Path("a.parquet"))
    file.write(Path("b.parquet"), [replace(row, openzfs="9.9.9") for row in rows])
    Path("short.parquet").write_bytes(Path("a.parquet").read_bytes()[:-100])
    assert "contradicts itself" in refused("merge", "a.parquet", "b.parquet", "--out", "c.parquet")
    assert "cut short" in refused("merge", "a.parquet", "short.parquet", "--out", "c.parquet")
    assert "cut short" in refused("page", "short.parquet", "--out", "c.parquet")
    assert "can't be read: No such file" in refused("page", "none.parquet", "--out", "c.parquet")
    assert not Path("c.parquet").exists()
    assert not list(tmp_path.glob(".ztune-*"))


def test_a_run_that_is_not_there_and_a_place_that_can_not_be_written() -> None:
    assert refused("export", "zzzzzz", "--out", "c.parquet") == (
        'there is no run "zzzzzz"; `ztune runs` lists them'
    )
    assert "its directory does not exist" in refused("export", "--out", "none/c.parquet")
    assert not Path("c.parquet").exists()


def test_a_store_without_trials_has_nothing_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "empty"))
    assert refused("export", "--out", "c.parquet").startswith("there is nothing to export: ")
    assert not Path("c.parquet").exists()
