"""The page of results: one file that loads nothing, ours and others' apart, and quick with many rows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import exported_runs as runs
import pytest

from ztune.report import results_html
from ztune.results.row import ResultRow

HOSTILE = "</script><script>alert(1)</script>\x1b[2J\u202e&<b>"


@pytest.fixture
def rows(home: object) -> list[ResultRow]:
    return runs.exported()


def data(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_loads_nothing(rows: list[ResultRow]) -> None:
    page = results_html.render(rows, results_html.publications())
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in page
    assert re.findall(r"<(?:link|img|iframe|object|script)[^>]*>", page) == [
        '<script type="application/json" id="data">', "<script>",
    ]  # fmt: skip
    assert not re.search(r"@import|url\(|fetch\(|innerHTML|eval\(|XMLHttpRequest|import\(", page)
    assert not re.search(r'\son\w+="', page)


def test_a_line_is_a_layout_with_medians_and_its_ratio_to_the_base(rows: list[ResultRow]) -> None:
    found = data(results_html.render(rows, {}))
    assert len(found["runs"]) == 2 and len(found["rows"]) == 5
    base, other = found["rows"][3:]
    assert base["baseline"] and base["trials"] == 2 and base["cells"]["time"][2] == 1
    # 20 and 40 ms in two blocks, against 10 and 20.
    assert other["cells"]["time"][:2] == [pytest.approx(0.03), "30.0 ms"]
    assert other["cells"]["time"][2:] == [pytest.approx(2.0), "×2.00"]
    assert other["cells"]["written"][2] == pytest.approx(0.5)
    assert other["set"] == runs.CHANGES and other["layout"] == "wal.recordsize=128K, workload.clients=4"
    failed = found["rows"][2]
    assert failed["failed"] and failed["cells"] == {}


def test_an_aa_runs_twin_is_a_line_of_its_own(rows: list[ResultRow]) -> None:
    twins = [*rows[3:4], replace(rows[3], trial=9, twin=1, baseline=False)]
    assert len(data(results_html.render(twins, {}))["rows"]) == 2


def test_published_figures_are_marked_and_can_be_left_out(rows: list[ResultRow]) -> None:
    publications = results_html.publications()
    page = results_html.render(rows, publications)
    found = data(page)
    theirs = [row for row in found["rows"] if found["runs"][row["run"]]["published"]]
    assert len(theirs) == sum(len(p.rows()) for p in publications.values()) > 100
    assert f"and {len(theirs)} figures that others published" in page
    stick = next(row for row in theirs if row["name"] == "usb-and-disk-swapped/once")
    assert stick["cells"]["time"][1] == "322,240 ms" and stick["cells"]["time"][0] == pytest.approx(322.24)
    about = found["runs"][stick["run"]]["about"]
    assert "not measured by us" in about["Published"] and about["Where"].startswith("http")
    # Its ARC is not ours, which is scaled down.
    assert all(row["arc"] is None and row["cells"].get("time", [0, "", None])[2] is None for row in theirs)
    studies = {"orientdb-import", "orientdb-graph", "ldap-import", "mongo-restore"}
    assert studies <= {found["runs"][row["run"]]["workload"] for row in theirs}
    assert not any(run["published"] for run in data(results_html.render(rows, {}))["runs"])


def test_text_of_others_has_no_power_over_the_page(rows: list[ResultRow]) -> None:
    hostile = [
        replace(rows[0], changes=HOSTILE, cpu=HOSTILE, settings={HOSTILE: HOSTILE}, parameters={"a": HOSTILE})
    ]
    page = results_html.render(hostile, {})
    assert page.count("</script>") == 2 and "<b>" not in page.split('id="data">')[1].split("</script>")[0]
    assert "\x1b" not in page and "\u202e" not in page
    assert data(page)["rows"][0]["layout"] == HOSTILE


def test_thousands_of_rows_make_a_page_of_some_megabytes(rows: list[ResultRow]) -> None:
    many = [replace(row, origin=f"{i:016x}") for i in range(600) for row in rows]
    page = results_html.render(many, {})
    assert len(data(page)["rows"]) == 600 * 5
    assert len(page) < 8e6
