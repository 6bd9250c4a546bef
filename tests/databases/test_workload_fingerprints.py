"""The table of what each workload does to its files, made by bench/workload_fingerprints.py."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ztune.databases import registry
from ztune.errors import MissingError
from ztune.trace.recorders import choose

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    path = ROOT / "bench" / "workload_fingerprints.py"
    spec = importlib.util.spec_from_file_location("workload_fingerprints", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))  # for what scripts share
        spec.loader.exec_module(module)
    yield module


def test_the_page_has_every_workload_of_ours(script: ModuleType) -> None:
    found = script.BLOCK.search((ROOT / "docs" / "workloads.md").read_text(encoding="utf-8"))
    assert found is not None and found[2].startswith(script.HEAD)
    ours = {entry.name for entry in registry.entries() if entry.source == "ztune"} - {"command"}
    assert {line.split("`")[1] for line in found[2].splitlines()[2:]} == ours == set(script.SMALL)


@pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here")
def test_a_row_is_what_was_recorded(
    script: ModuleType, parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        choose("auto")
    except MissingError as error:
        pytest.skip(f"no recorder here: {error}")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fingerprints -->\n| `sqlite` | kept |\n<!-- end fingerprints -->\nafter\n")
    monkeypatch.setattr(script, "PAGE", page)
    small = {
        "size": "2M",
        "numjobs": 2,
        "seconds": 0,
        "rate_iops": 100,
        "rw": "write",
        "bs": "16K",
        "fsync": 1,
    }
    monkeypatch.setitem(script.SMALL, "fio", small)
    monkeypatch.setattr(sys, "argv", ["script", "fio"])
    monkeypatch.setenv("TMPDIR", str(parent))
    script.main()
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("<!-- end fingerprints -->\nafter\n")
    assert "| `sqlite` | kept |\n" in text
    [row] = [line for line in text.splitlines() if line.startswith("| `fio` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[5:7] == ["data", "16K 100 %"] and cells[1].startswith("fio-")
    # All of its size, as long as that takes, and each write is followed by a sync.
    assert int(cells[4]) == 128 and abs(int(cells[7]) - int(cells[8])) <= 2
