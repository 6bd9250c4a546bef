from __future__ import annotations

import re
from pathlib import Path

import exported_runs as runs
import pytest

from ztune.analysis.metrics import MEASURED, REPLAYED
from ztune.results import file
from ztune.results.docs import fill, tables
from ztune.results.private import kernel

PAGE = (Path(__file__).parents[2] / "docs" / "results-format.md").read_text()


def test_tables_are_current() -> None:
    assert fill(PAGE) == PAGE, "run: python -m ztune.results.docs docs/results-format.md"
    assert set(re.findall(r"<!-- table: (\w+) -->", PAGE)) == set(tables())


def test_the_page_names_the_version() -> None:
    assert f"version {file.VERSION} of the format" in PAGE and file.FORMAT.decode() in PAGE
    assert kernel("6.1.0-28-amd64").endswith("6.1.0-28") and "`6.1.0-28-amd64` is `6.1.0-28`" in PAGE


def test_every_metric_in_a_file_is_explained(home: Path) -> None:
    for row in runs.exported():
        known = REPLAYED if row.place == "replay" else MEASURED
        assert all(known[m.name].label == m.meaning for m in row.metrics)


def test_the_example_runs(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file.write(Path("mine.parquet"), runs.exported())
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    shown: list[object] = []
    exec(example, {"print": shown.append})
    assert len(shown) == 1 and len(shown[0]) == 4  # type: ignore[arg-type]
