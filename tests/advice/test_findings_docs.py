"""docs/findings.md against the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from published_studies import GRAPH, IMPORT

from ztune.advice.findings import rules
from ztune.advice.findings_docs import fill, in_words, main
from ztune.advice.observed_facts import SCOPES
from ztune.advice.record_size import PER_RECORD, TINY, fit
from ztune.units import format_size

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_page_is_current() -> None:
    assert fill(TEXT) == TEXT, "run `make docs`"


def test_check_says_whether_a_page_is_current(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n<!-- findings: index -->\nold\n<!-- end -->\n", encoding="utf-8")
    assert main(["--check", str(page)]) == 1
    assert "old" in page.read_text(encoding="utf-8")
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
    assert "| [`sync-disabled`](#sync-disabled) | danger | dataset |" in page.read_text(encoding="utf-8")


def test_an_unknown_mark_is_refused() -> None:
    with pytest.raises(ValueError, match='"rulez"'):
        fill("<!-- findings: rulez -->\n<!-- end -->")


def test_every_rule_and_fact_is_on_the_page() -> None:
    for rule in rules():
        section = TEXT.split(f"### {rule.id}\n")[1].split("### ")[0]
        for part in (rule.severity, rule.source, rule.why):
            assert part.replace("|", "\\|") in section
    for facts in SCOPES.values():
        for name in facts:
            assert f"| `{name}` |" in TEXT


def test_conditions_in_words() -> None:
    condition = {
        "all": [
            {"fact": "recordsize", "ge": "@fit", "times": 4},
            {"any": [{"fact": "sequential", "lt": 0.5}, {"not": {"fact": "on_zfs", "eq": True}}]},
            {"fact": "special_small_blocks", "le": 65536},
            {"fact": "role", "in": ["data", "wal"]},
            {"fact": "dataset", "ne": ""},
            {"fact": "slog", "known": False},
        ]
    }
    assert in_words(condition, "role") == (
        "`recordsize` ≥ 4 × `fit` and (`sequential` < 50% or not (`on_zfs` = yes)) and "
        "`special_small_blocks` ≤ 64K and `role` one of data, wal and `dataset` is known and "
        "`slog` is not known"
    )


def test_the_studies_come_out_as_written() -> None:
    rows = re.findall(r"^\| (?:OrientDB|the same)[^|]*\|(.*)\|[^|]*\|$", TEXT, re.MULTILINE)
    made = []
    for _, sizes, _ in [*GRAPH.values(), *IMPORT.values()]:
        best = fit(sizes)
        assert best is not None
        calls = max(sizes, key=lambda s: sizes[s])
        most = max(sizes, key=lambda s: s * sizes[s])
        cells = [
            "1 byte" if calls == 1 else format_size(calls),
            format_size(most),
            format_size(best.recordsize),
            f"×{best.below:.2f}" if best.below else "",
            f"×{best.above:.2f}" if best.above else "",
        ]
        made.append(cells)
    assert [[cell.strip() for cell in row.split("|")] for row in rows] == made


def test_the_formula_s_numbers_are_those_of_the_code() -> None:
    assert f"(record + {PER_RECORD >> 10} KiB)" in TEXT
    assert f"Writes below {TINY} bytes" in TEXT
