"""The tables of docs/results-format.md: ``python -m ztune.results.docs docs/results-format.md`` makes them.

Replaces what stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from ztune.analysis.metrics import MEASURED, REPLAYED, Metric
from ztune.results.file import COLUMNS
from ztune.results.row import ResultRow, RowMetric
from ztune.study.docs import fill_tables


def tables() -> dict[str, list[str]]:
    """Return name → lines of every table."""
    columns = [
        f"| `{f.name}` | {_type(f.name)} | {'run' if f.metadata.get('of') == 'run' else 'trial'} | "
        f"{f.metadata['description']} |"
        for f in fields(ResultRow)
    ]
    keys = [
        f"| `{f.name}` | {'real' if f.name == 'value' else 'text'} | {f.metadata['description']} |"
        for f in fields(RowMetric)
    ]
    return {
        "columns": ["| column | type | same in a | meaning |", "| --- | --- | --- | --- |", *columns],
        "metric": ["| key | type | meaning |", "| --- | --- | --- |", *keys],
        "replayed": _metrics(REPLAYED.values()),
        "measured": _metrics(MEASURED.values()),
    }


def _metrics(found: Iterable[Metric]) -> list[str]:
    rows = [f"| `{m.key}` | {m.unit} | {m.label} |" for m in found]
    return ["| metric | unit | meaning |", "| --- | --- | --- |", *rows]


def _type(name: str) -> str:
    if name == "metrics":
        return "list"
    if ResultRow.__annotations__[name].startswith("dict"):
        return "text, JSON"
    kind = {"string": "text", "int64": "integer", "bool": "boolean"}[str(COLUMNS.field(name).type)]
    return f"{kind} or null" if COLUMNS.field(name).nullable else kind


def fill(text: str) -> str:
    """Return ``text`` with every table between its marks made anew; ValueError for an unknown one."""
    return fill_tables(text, tables())


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text()))
