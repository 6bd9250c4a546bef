"""The tables of docs/study-format.md and docs/advice.md: ``python -m ztune.study.docs docs/study-format.md``.

Replaces what stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; the rest of the page is written
by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from ztune.onhost.age import Age
from ztune.onhost.declared import Declared
from ztune.onhost.layout import Dataset, Layout, Pool, Vdev
from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import TUNABLES
from ztune.onhost.words import OBJECTIVES
from ztune.study.advised import AdviceSet, AdvisedValue, DatabaseAdvice
from ztune.study.profile import FlashProfile, HddProfile
from ztune.study.study import NamedLayout, Objective, Study
from ztune.study.tables import fields_of
from ztune.units import format_size

MODELS: dict[str, type] = {
    "study": Study,
    "objective": Objective,
    "layout": Layout,
    "pool": Pool,
    "vdev": Vdev,
    "dataset": Dataset,
    "durability": Declared,
    "age": Age,
    "layouts": NamedLayout,
    "hdd": HddProfile,
    "flash": FlashProfile,
}
ADVICE: dict[str, type] = {"advice": AdviceSet, "advised": DatabaseAdvice, "value": AdvisedValue}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(name: str, field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else None
    if name == "arc" and isinstance(value, int):
        return f'`"{format_size(value)}"`'
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{v}"' for v in value) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str) and value:
        return f'`"{value}"`'
    return "" if value is None or value == "" else f"`{value}`"


def model_table(model: type) -> list[str]:
    """Return a table of the keys of one model."""
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    for name, field in fields_of(model).items():
        key = field.alias or name
        rows.append(f"| `{key}` | {_default(name, field)} | {_cell(field.description or '')} |")
    return rows


def property_table() -> list[str]:
    """Return the table of properties."""
    rows = [
        "| property | default | values | meaning | on | since | screened |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for p in PROPERTIES.values():
        kind = "volumes" if p.volume_only else "both" if p.volumes else "files"
        since = p.since + "".join(f"; {value} {version}" for value, version in p.values_since.items())
        rows.append(
            f"| `{p.name}` | `{p.default}` | {_cell(p.values)} | {_cell(p.doc)} | {kind} | {since} | "
            f"{'yes' if p.replayed else 'no'} |"
        )
    return rows


def tunable_table() -> list[str]:
    """Return the table of module parameters."""
    rows = [
        "| tunable | default | range | unit | meaning | since | screened |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for t in TUNABLES.values():
        default = "from memory" if t.default is None else f"`{t.text(t.default)}`"
        default += "".join(f"; before {version} `{t.text(value)}`" for version, value in t.older)
        rows.append(
            f"| `{t.name}` | {default} | {t.text(t.low)} … {t.text(t.high)} | {t.unit} | {_cell(t.doc)} | "
            f"{t.since} | {'yes' if t.replayed else 'no'} |"
        )
    return rows


def metric_table() -> list[str]:
    """Return the table of metrics."""
    rows = ["| metric | unit | in the measure |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {unit} | `{'.'.join(path)}` |" for name, (path, unit) in OBJECTIVES.items()]
    return rows


def tables() -> dict[str, list[str]]:
    """Return name → lines of every table."""
    found = {name: model_table(model) for name, model in {**MODELS, **ADVICE}.items()}
    return {**found, "properties": property_table(), "tunables": tunable_table(), "metrics": metric_table()}


def fill(text: str) -> str:
    """Return ``text`` with every table between its marks made anew; ValueError for an unknown one."""
    return fill_tables(text, tables())


def fill_tables(text: str, made: Mapping[str, Sequence[str]]) -> str:
    """Return ``text`` with every table between its marks replaced by that of ``made``, name → lines.

    Raises ValueError for a name that ``made`` does not have.
    """

    def one(match: re.Match[str]) -> str:
        if match[1] not in made:
            raise ValueError(f'there is no table "{match[1]}"')
        return "\n".join([f"<!-- table: {match[1]} -->", *made[match[1]], "<!-- end -->"])

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", one, text, flags=re.DOTALL)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text()))
