from __future__ import annotations

from pathlib import Path

import pytest

from ztune.databases import registry
from ztune.databases.docs import render
from ztune.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"


def test_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert render(text) == text, "run `make docs`"


def test_every_workload_has_a_section_and_every_parameter_a_line() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for entry in registry.entries():
        if entry.source == "ztune":
            assert f"## {entry.name}\n" in text
            for parameter in entry.parameters:
                assert f"| `{parameter.name}` |" in text


def test_a_workload_without_a_block_is_noticed() -> None:
    with pytest.raises(InputError, match="no block '<!-- parameters: postgres-oltp -->'"):
        render("# Workloads\n")
