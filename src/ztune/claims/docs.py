"""The tables of docs/claims-format.md: ``python -m ztune.claims.docs docs/claims-format.md`` makes them.

Replaces what stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ztune.analysis.metrics import MEASURED
from ztune.claims.claim import Claims, WrittenClaim, WrittenLayout
from ztune.claims.publication import Figure, Histogram, Publication, Table
from ztune.study.docs import model_table

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
    made = tables()

    def one(match: re.Match[str]) -> str:
        if match[1] not in made:
            raise ValueError(f'there is no table "{match[1]}"')
        return "\n".join([f"<!-- table: {match[1]} -->", *made[match[1]], "<!-- end -->"])

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", one, text, flags=re.DOTALL)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text()))
