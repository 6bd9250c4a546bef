"""The page of a results file: a line for each layout, to filter and to sort, in one HTML file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from markupsafe import Markup

from ztune import __version__, output
from ztune.analysis import units
from ztune.claims import publication
from ztune.claims.publication import Figure, Publication, Table
from ztune.databases import database
from ztune.report import html
from ztune.results.row import ResultRow, RowMetric
from ztune.runs.space import differences
from ztune.study import Layout
from ztune.study.layout import with_settings
from ztune.units import format_size

# The figures that have a column each: key → what of a replay and of a trial stands there.
_FIGURES = {
    "time": ("modelled_s", "time"),
    "written": ("written",),
    "read": ("read",),
    "space": ("allocated", "space"),
    "rate": ("per_second",),
}
# A published figure's unit → how many of the column's.
_SCALE = {"s": 1.0, "ms": 1e-3, "1/s": 1.0, "bytes": 1.0, "KB": 1024.0, "MB": 1024.0**2}

Entry = dict[str, Any]


def render(rows: Sequence[ResultRow], publications: Mapping[str, Publication]) -> str:
    """Return the page of ``rows``, with the figures of ``publications`` (name → publication) marked as
    theirs. It loads nothing, and no text from outside is taken for markup.
    """
    runs: list[Entry] = []
    entries = [*_ours(rows, runs), *_published(publications, runs)]
    return html.page(
        "results.html.j2",
        version=__version__,
        style=Markup(html.data("style.css") + html.data("results.css")),
        script=Markup(html.data("script.js") + html.data("results.js")),
        table=_json({"runs": runs, "rows": entries}),
        layouts=sum(not runs[e["run"]]["published"] for e in entries),
        trials=len(rows),
        stores=len({row.origin for row in rows}),
        figures=sum(runs[e["run"]]["published"] for e in entries),
        titles=[f"{p.title}, {p.year}" for p in publications.values() if p.table],
    )


def publications() -> dict[str, Publication]:
    """Return all publications by name: ztune's and the user's own. Raises InputError."""
    return {name: publication.find(name) for name in publication.names()}


def _json(value: object) -> Markup:
    """Return JSON that can stand in a script element: it holds none of HTML's characters."""
    text = output.json_text(value, indent=None)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _ours(rows: Iterable[ResultRow], runs: list[Entry]) -> Iterator[Entry]:
    grouped: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    for row in rows:
        grouped[row.origin, row.run].append(row)
    for theirs in grouped.values():
        first = theirs[0]
        base = next((row.settings for row in theirs if row.baseline), first.settings)
        runs.append(_run(first, base))
        arms: dict[tuple[int, int], list[ResultRow]] = defaultdict(list)
        for row in theirs:
            arms[row.layout, row.twin].append(row)
        against = next((_figures(arm) for arm in arms.values() if arm[0].baseline and not arm[0].twin), {})
        for arm in arms.values():
            yield _entry(len(runs) - 1, arm, base, against)


def _run(row: ResultRow, base: Mapping[str, object]) -> Entry:
    """Return what all layouts of a run share."""
    memory = "" if row.memory is None else units.amount(row.memory)
    cpus = "" if row.cpus is None else f"{row.cpus} ×"
    about = {
        "Run": f"{row.run} of store {row.origin}",
        "Machine": ", ".join(filter(None, (f"{cpus} {row.cpu}".strip(), row.machine, memory, row.kernel))),
        "ztune": ", ".join(filter(None, (row.ztune, row.engine and f"engine {row.engine}"))),
        "Database": f"{row.database} {row.database_version}".strip(),
        "Parameters": ", ".join(f"{k}={_word(v)}" for k, v in row.parameters.items()),
    }
    return {
        "published": False,
        "database": row.database or "not known",
        "workload": row.workload,
        "openzfs": row.openzfs,
        "place": row.place,
        "basis": row.run_basis,
        "base": base,
        "about": {k: v for k, v in about.items() if v},
    }


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _figures(arm: Sequence[ResultRow]) -> dict[str, tuple[RowMetric, float]]:
    """Return name → metric and its median over the trials of a layout."""
    values: dict[str, list[RowMetric]] = defaultdict(list)
    for row in arm:
        for metric in row.metrics:
            values[metric.name].append(metric)
    return {name: (found[0], median(m.value for m in found)) for name, found in values.items()}


def _entry(
    run: int,
    arm: Sequence[ResultRow],
    base: Mapping[str, object],
    against: Mapping[str, tuple[RowMetric, float]],
) -> Entry:
    first, figures = arm[0], _figures(arm)
    cells: Entry = {}
    for column, names in _FIGURES.items():
        for name in names:
            if name in figures:
                metric, value = figures[name]
                before = against[name][1] if name in against else 0
                times = value / before if before else None
                cells[column] = [value, units.show(value, metric.unit), times, units.times(times)]
    keys = sorted({*base, *first.settings})
    return {
        "run": run,
        "layout": first.changes,
        "baseline": first.baseline,
        "failed": not figures,
        "disks": first.disks,
        "device": first.device,
        "arc": first.arc,
        "arc_text": "" if first.arc is None else format_size(first.arc),
        "durability": first.durability,
        "trials": len(arm),
        "date": max(row.started for row in arm)[:10],
        "cells": cells,
        "more": [
            [m.meaning, units.show(value, m.unit) + (" (emulated)" if m.basis == "emulated" else "")]
            for m, value in figures.values()
        ],
        "set": {k: first.settings.get(k, "default") for k in keys if first.settings.get(k) != base.get(k)},
    }


def _published(given: Mapping[str, Publication], runs: list[Entry]) -> Iterator[Entry]:
    for name, found in given.items():
        base = found.base()
        for table in found.table:
            workload = table.workload or found.workload
            theirs = database.of_workload(workload)
            runs.append(
                {
                    "published": True,
                    "database": theirs.name if theirs is not None else "not known",
                    "workload": workload,
                    "openzfs": "",
                    "place": "",
                    "basis": "published",
                    "base": {},
                    "about": _about(name, found, table),
                }
            )
            for row in table.all_rows().values():
                yield _figure(len(runs) - 1, found, table, row, base)


def _about(name: str, found: Publication, table: Table) -> dict[str, str]:
    by = f" by {found.author}" if found.author else ""
    told = {
        "Published": f"{found.title}{by}, {found.year}; not measured by us ({name})",
        "Where": found.url,
        "Database": found.database,
        "System": found.system,
        "Quantity": f"{table.quantity}, in {table.unit}",
        "Note": " ".join(filter(None, (table.note, found.note))),
    }
    return {k: v for k, v in told.items() if v}


def _figure(run: int, found: Publication, table: Table, row: Figure, base: Layout) -> Entry:
    layout = with_settings(base, row.set)
    set_ = differences(base, layout)
    text = f"{row.value:,.10g} {table.unit}"
    column = table.metric if table.metric in _FIGURES else "rate" if table.metric == "per_second" else ""
    data = {v.profile for p in layout.used_pools() for v in p.of_class("data")}
    kinds = {"hdd" if name.startswith("hdd") else "flash" for name in data}
    return {
        "run": run,
        "layout": ", ".join(f"{k}={v}" for k, v in set_.items()) or row.name,
        "name": f"{table.name}/{row.name}",
        "baseline": False,
        "failed": False,
        # The ARC and the disks' sizes of a publication's layout are ours, scaled down.
        "disks": "",
        "device": "+".join(sorted(kinds)),
        "arc": None,
        "arc_text": "",
        "durability": "",
        "trials": 1,
        "date": str(found.year),
        "cells": {column: [row.value * _SCALE.get(table.unit, 1.0), text, None, ""]} if column else {},
        "more": [[table.quantity, text]],
        "set": set_,
    }
