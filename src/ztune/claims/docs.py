"""The tables of docs/claims-format.md: ``python -m ztune.claims.docs docs/claims-format.md`` makes them.

Replaces what stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ztune.analysis.metrics import MEASURED
from ztune.claims.claim import Claims, WrittenClaim, WrittenLayout
from ztune.claims.publication import Figure, Histogram, Publication, Table
from ztune.study.docs import fill_tables, model_table

MODELS: dict[str, type] = {
    "claims": Claims,
    "claim": WrittenClaim,
    "layout": WrittenLayout,
    "publication": Publication,
    "figures": Table,
    "row": Figure,
    "histogram": Histogram,
}


def tables() -> dict[str, list[str]]:
    """Return name → lines of every table."""
    rows = ["| metric | unit | of a trial | in a replay |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{m.key}` | {m.unit} | {m.label} | {f'`{m.predicted}`' if m.predicted else ''} |"
        for m in MEASURED.values()
    ]
    return {**{name: model_table(model) for name, model in MODELS.items()}, "metrics": rows}


def fill(text: str) -> str:
    """Return ``text`` with every table between its marks made anew; ValueError for an unknown one."""
    return fill_tables(text, tables())


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text()))
