"""The report of a measured run as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ztune import __version__
from ztune.analysis import units
from ztune.analysis.contrast import one_factor, two_factor
from ztune.analysis.measured import MEASURES, Cell
from ztune.analysis.predicted import compare
from ztune.analysis.verdict import Standing, columns, standing
from ztune.analysis.why import explain, sentence
from ztune.report import html, measured
from ztune.report import measured_charts as charts
from ztune.report.charts import ratio_bar
from ztune.store.records import Run, Trial

_DOTS = 3  # measures that are drawn block by block


def render(run: Run, trials: Sequence[Trial], screened: Sequence[Trial] | None = None) -> str:
    """Return the report as the text of an HTML file. All text from outside is escaped.

    ``screened``: the trials of the screening run that the layouts came from; default: looked up in the store.
    """
    found = standing(run, trials)
    cells = [p.cell for p in found.places]
    chosen = found.recommended()
    base = found.measured.baseline
    keys = columns(found, 6)
    compared = compare(cells, measured.screened(run) if screened is None else screened)
    reasons = [(c, w) for c in cells if (w := explain(c)) is not None]
    return html.page(
        "measured.html.j2",
        version=__version__,
        style=Markup(html.data("style.css")),
        script=Markup(html.data("script.js")),
        run=run,
        found=found,
        heading=f"Measured: {run.job.get('workload', run.name)}",
        head=measured.head(found),
        verdict=measured.verdict(found),
        advice=measured.advice(found),
        chosen=chosen,
        base=base,
        changes={} if chosen is None else measured.changes(base, chosen),
        tiles=_tiles(found, chosen),
        cautions=measured.cautions(found),
        columns=[(k, measured.heading(k, found)) for k in keys],
        rows=[_row(p, keys, found) for p in found.places],
        failed=found.failed,
        dots=[(measured.heading(k, found), charts.dots(cells, k, chosen)) for k in keys[:_DOTS]],
        causes=charts.causes(reasons),
        has_zil=any(w.zil is not None for _, w in reasons),
        reasons=[(c, sentence(c, _unit(c))) for c, _ in reasons],
        classes=_classes(reasons),
        unit=_unit(cells[0]) if cells else "operation",
        compared=[(c, charts.scatter(c), measured.accuracy(c)) for c in compared],
        effects=_effects(found, keys),
        interactions=[t for k in found.goals[:1] for t in two_factor(cells, k)],
        trials=trials,
        blocks=found.measured.blocks,
        environment=_environment(run, cells),
    )


def _unit(cell: Cell) -> str:
    for result in cell.results.values():
        unit = (result.get("job") or {}).get("unit")
        if isinstance(unit, str) and unit:
            return unit
    return "operation"


def _tiles(found: Standing, chosen: Cell | None) -> list[dict[str, str]]:
    """Return the main measures of the chosen layout against the baseline."""
    if chosen is None or chosen is found.measured.baseline:
        return []
    out = []
    for key in columns(found, 4):
        ratio, value = chosen.against.get(key), chosen.value(key)
        if ratio is None or value is None:
            continue
        better = MEASURES[key].less
        emulated = MEASURES[key].clock and found.clock == "emulated"
        sure = not emulated and ratio.known and (ratio.high < 1 or ratio.low > 1)
        good = (ratio.mean < 1) == (better is not False)
        out.append(
            {
                "what": measured.heading(key, found),
                "big": units.show(value, MEASURES[key].unit),
                "kind": "" if not sure or better is None else "less" if good else "more",
                "from": f"{ratio.text} of the baseline's",
            }
        )
    return out


def _row(place: Any, keys: Sequence[str], found: Standing) -> dict[str, Any]:
    cell: Cell = place.cell
    values: list[dict[str, Any]] = []
    for key in keys:
        estimate = cell.estimates.get(key)
        unit = MEASURES[key].unit
        if estimate is None:
            values.append({"text": "–", "sort": "", "range": ""})
            continue
        span = ""
        if estimate.low is not None and estimate.high is not None:
            span = f"{units.show(estimate.low, unit)} … {units.show(estimate.high, unit)}"
        values.append({"text": units.show(estimate.median, unit), "sort": estimate.median, "range": span})
    key = found.goals[0] if found.goals else ""
    return {
        "place": place,
        "cell": cell,
        "values": values,
        "against": "" if not key else measured.against(cell, key),
        "sort": cell.against[key].mean if key in cell.against else 1.0,
        "standing": {"worse": "worse", "equal": "equal", "open": "not resolved", "leader": "leads"}.get(
            place.standing, ""
        ),
    }


def _classes(reasons: Sequence[tuple[Cell, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Return the bytes written by class of device, where there is more than one class."""
    names = list(dict.fromkeys(n for _, w in reasons for n in w.by_class))
    if len(names) < 2:
        return []
    return [
        (c.name, {n: units.amount(w.by_class[n]) if n in w.by_class else "–" for n in names})
        for c, w in reasons
    ]


def _effects(found: Standing, keys: Sequence[str]) -> list[dict[str, Any]]:
    measures = list(keys[:4])
    out = []
    for effect in one_factor(found.measured.cells, measures):
        shown = []
        for key in measures:
            ratio = effect.ratios.get(key)
            if ratio is None:
                shown.append({"bar": Markup(""), "text": "–"})
                continue
            low, high = (ratio.low, ratio.high) if ratio.known else (ratio.mean, ratio.mean)
            shown.append({"bar": ratio_bar(ratio.mean, low, high, 4.0), "text": ratio.text})
        out.append({"effect": effect, "cells": shown})
    return out


def _environment(run: Run, cells: Sequence[Cell]) -> dict[str, str]:
    out: dict[str, str] = {"Target": str(run.target.get("name", ""))}
    accel = run.target.get("accel")
    if accel:
        out["Virtualisation"] = {"tcg": "emulation (TCG): seconds are emulated", "kvm": "KVM"}.get(
            accel, str(accel)
        )
    for key, value in run.target.items():
        if key not in {"name", "kind", "accel"} and value not in (None, "", {}, []):
            out[key.capitalize().replace("_", " ")] = _text(value)
    if run.target.get("kind") in {"lab", "mount"}:
        used = {v.profile for c in cells for p in c.layout.used_pools() for v in p.vdevs}
        out["Disk profiles"] = ", ".join(sorted(used))
    for key, value in run.versions.items():
        out[
            {"openzfs": "OpenZFS", "kernel": "Kernel", "database": "Database", "ztune": "ztune"}.get(key, key)
        ] = value
    for key, value in (run.environment.get("target") or {}).items():
        if key not in {"openzfs", "kernel", "tools", "boot_id", "accel", "root", "host", "mount"}:
            out[f"Target: {key}"] = units.amount(value) if key == "memory" else _text(value)
    out["Job"] = _text(run.job.get("params", {}))
    layouts = {c.layout.arc for c in cells}
    out["ARC"] = ", ".join(units.amount(a) for a in sorted(layouts))
    out["Settled"] = str(run.options.get("settle", "cold"))
    out["Host of ztune"] = f"{run.environment.get('kernel', '')}, {run.environment.get('cpu', '')}"
    return out


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_text(v) for v in value)
    return str(value)
