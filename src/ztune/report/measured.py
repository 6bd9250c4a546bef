"""A measured run on a terminal and as JSON. The HTML page is ``measured_html``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ztune.analysis import units
from ztune.analysis.contrast import OneFactor, one_factor, two_factor
from ztune.analysis.measured import MEASURES, Cell, in_user_space, limits
from ztune.analysis.paired import Ratio
from ztune.analysis.predicted import Comparison, compare
from ztune.analysis.verdict import Standing, columns, sentence, standing
from ztune.output import Console, Text
from ztune.store.db import Store
from ztune.store.records import Run, Trial

_STANDING = {"leader": "leads", "worse": "worse", "equal": "equal", "open": "not resolved", "": ""}
_WIDE = 100  # characters that a third measure needs


def screened(run: Run, store: Store | None = None) -> list[Trial]:
    """Return the trials of the screening run that a measured run took its layouts from; empty without one."""
    if run.source_run is None:
        return []
    if store is None:
        with Store.open() as opened:
            return screened(run, opened)
    return store.trials(run.source_run)


def show(run: Run, trials: Sequence[Trial], console: Console | None = None) -> None:
    """Print the ranking of a measured run and what it says."""
    (console or Console(highlight=False)).print(ranking(run, trials))


def head(found: Standing) -> str:
    """Return what was measured where, in a sentence."""
    run = found.run
    versions = run.versions
    zfs = f" on OpenZFS {versions['openzfs']}" if versions.get("openzfs") else ""
    where = run.target.get("name", "")
    accel = " (emulated: no hardware virtualisation)" if found.clock == "emulated" else ""
    if in_user_space(run):
        pace = "disks as fast as this machine" if run.target.get("disks") == "instant" else "modelled disks"
        cached = ", with the kernel's page cache" if run.target.get("page_cache") else ""
        accel = f" (in user space, {pace}, real time{cached})"
    return f"Run {run.id}: {run.job.get('workload', run.name)}{zfs}, measured on {where}{accel}."


def verdict(found: Standing) -> str:
    """Return what the run found, in a sentence."""
    if not found.outcome:
        return "No two layouts of one block have a result yet, so there is nothing to compare."
    text = sentence(found.outcome, found.resolution)
    reason = found.outcome.get("reason")
    if reason in {"time", "interrupted"}:
        text += "; the time limit ended the run" if reason == "time" else "; the run was cut"
    # A layout's name stays as it is written.
    return (text[:1].upper() + text[1:] if text.startswith("no") else text) + "."


def ranking(run: Run, trials: Sequence[Trial]) -> RenderableType:
    """Return the ranked layouts with medians, and each against the baseline with its interval."""
    found = standing(run, trials)
    parts: list[RenderableType] = [Text(head(found)), Text(verdict(found), style="bold")]
    caution = found.caution()
    if caution is not None:
        parts.append(Text(caution, style="yellow"))
    keys = columns(found, 3 if shutil.get_terminal_size().columns >= _WIDE else 2)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("layout", overflow="fold", min_width=20)
    table.add_column("runs", justify="right")
    for key in keys:
        table.add_column(heading(key, found), justify="right", min_width=9)
    if found.goals:
        table.add_column("to baseline", justify="right", min_width=11)
    for place in found.places:
        cell = place.cell
        name = Text(cell.name)
        if cell.baseline:
            name.append("  (baseline)", style="dim")
        if place.standing in {"worse", "equal", "open"}:
            name.append(f"  {_STANDING[place.standing]}", style="dim")
        if place.lag:
            name.append(f"  {place.lag}", style="yellow")
        if place.rank is None:
            name.append(f"  {cell.durability}", style="red")
        row: list[Any] = ["–" if place.rank is None else str(place.rank), name, str(len(cell.trials))]
        row += [value_text(cell, key) for key in keys]
        if found.goals:
            row.append(against(cell, found.goals[0]))
        table.add_row(*row, style="bold" if place.rank == 1 else "")
    parts += [Text(), table]
    for failed in found.failed:
        numbers = ", ".join(map(str, failed.trials))
        parts.append(Text(f"failed: {failed.name} (trial {numbers}): {failed.reason}", style="red"))
    return Group(*parts)


def heading(key: str, found: Standing) -> str:
    """Return a column's head; seconds of an emulated lab are marked so."""
    measure = MEASURES[key]
    return measure.label + (" (emulated)" if measure.clock and found.clock == "emulated" else "")


def value_text(cell: Cell, key: str) -> str:
    """Return the median of a measure, as text."""
    value = cell.value(key)
    return "–" if value is None else units.show(value, MEASURES[key].unit)


def against(cell: Cell, key: str) -> str:
    """Return a layout against the baseline in one measure, with its interval."""
    ratio = cell.against.get(key)
    return "" if ratio is None else ratio.text


def recommendation(run: Run, trials: Sequence[Trial]) -> RenderableType:
    """Return what the measured run advises: the layout, what it changes, what each change did, what is not
    known.
    """
    found = standing(run, trials)
    base, chosen = found.measured.baseline, found.recommended()
    parts: list[RenderableType] = [ranking(run, trials), Text()]
    if chosen is None:
        parts.append(Text("Nothing to recommend: no layout has a result."))
        return Group(*parts)
    parts.append(Text(advice(found), style="bold"))
    for key, value in changes(base, chosen).items():
        parts.append(Text(f"  {key} = {value}"))
    lines = [
        describe(e, found) for e in one_factor(found.measured.cells, found.goals[:1]) if chosen in (e.a, e.b)
    ]
    if lines:
        parts += [
            Text(),
            Text("Measured, one setting at a time", style="bold"),
            *(Text(f"  {t}") for t in lines),
        ]
    comparisons = compare(found.measured.cells, screened(run))
    if comparisons:
        parts += [Text(), Text("Screening's prediction against the measurement", style="bold"),
                  *(Text(f"  {accuracy(c)}") for c in comparisons)]  # fmt: skip
    notes = cautions(found)
    if notes:
        parts += [Text(), Text("Know before you act", style="bold"), *(Text(f"  {t}") for t in notes)]
    return Group(*parts)


def advice(found: Standing) -> str:
    """Return the recommendation as a sentence."""
    chosen, base = found.recommended(), found.measured.baseline
    if chosen is None or not found.goals:
        return "Nothing to recommend."
    key = found.goals[0]
    label = heading(key, found)
    if chosen is base:
        return f"Keep the baseline ({chosen.name}): no layout is known to need less {label}."
    if base is None:
        return f"{chosen.name} has the least {label}; the baseline has no result to compare with."
    others = [k for k in columns(found) if k != key and k in chosen.against][:3]
    text = f"{chosen.name}: {label} {against(chosen, key)} of the baseline's"
    if others:
        text += "; " + ", ".join(f"{heading(k, found)} {units.times(chosen.against[k].mean)}" for k in others)
    return text + "."


def changes(base: Cell | None, chosen: Cell) -> dict[str, str]:
    """Return the settings in which the chosen layout differs from the baseline."""
    before = dict(base.settings) if base is not None else {}
    keys = sorted({*before, *chosen.settings})
    return {k: chosen.settings.get(k, "default") for k in keys if before.get(k) != chosen.settings.get(k)}


def describe(effect: OneFactor, found: Standing) -> str:
    """Return what one setting did, in a sentence."""
    key = next(iter(effect.ratios))
    return (
        f"{effect.factor} {effect.before} → {effect.after}: {heading(key, found)} "
        f"{effect.ratios[key].text} (beside {effect.a.name})"
    )


def accuracy(c: Comparison) -> str:
    """Return how well screening predicted one measure, in a sentence."""
    rank = "" if c.spearman is None else f"rank correlation {c.spearman:.2f}, "
    return f"{c.label}: {rank}worst error {c.worst:.0%} over {len(c.points)} layouts"


def cautions(found: Standing) -> list[str]:
    """Return what limits the conclusion, most important first."""
    out = []
    caution = found.caution()
    if caution is not None:
        out.append(caution)
    if found.outcome.get("verdict") == "open":
        out.append("The run ended unresolved: " + sentence(found.outcome, found.resolution) + ".")
    if found.run.status in {"interrupted", "failed"}:
        out.append(f"The run is not complete: {found.measured.pending} trials did not run.")
    if any(p.rank is None for p in found.places):
        out.append(
            "Layouts marked with a durability class may lose more at a power cut, or nobody knows what they "
            "lose; they do not compete."
        )
    note = limits(found.run, found.measured.cells)
    if note is not None:
        out.append(note)
    out += list(found.measured.warnings)
    return out


def to_json(run: Run, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return a measured run's ranking as JSON values."""
    found = standing(run, trials)

    def ratio(r: Ratio | None) -> dict[str, Any] | None:
        if r is None:
            return None
        return asdict(r) if r.known else {"n": 1, "mean": r.mean}

    chosen = found.recommended()
    return {
        "run": run.id,
        "kind": run.kind,
        "name": run.name,
        "status": run.status,
        "target": run.target,
        "versions": run.versions,
        "job": run.job,
        "seed": run.seed,
        "evidence": found.clock,
        "goals": list(found.goals),
        "outcome": dict(found.outcome),
        "sentence": verdict(found),
        "recommended": None
        if chosen is None
        else {"layout": chosen.name, "hash": chosen.hash, "text": advice(found)},
        "cautions": cautions(found),
        "layouts": [
            {
                "rank": p.rank,
                "layout": p.cell.name,
                "hash": p.cell.hash,
                "baseline": p.cell.baseline,
                "durability": str(p.cell.durability),
                "standing": p.standing,
                "to_leader": ratio(p.to_leader),
                "behind": p.lag,
                "trials": list(p.cell.trials),
                "measures": {
                    k: {
                        "unit": MEASURES[k].unit,
                        "median": e.median,
                        "low": e.low,
                        "high": e.high,
                        "interval": e.kind,
                        "values": {str(b): v for b, v in p.cell.values[k].items()},
                        "to_baseline": ratio(p.cell.against.get(k)),
                    }
                    for k, e in p.cell.estimates.items()
                },
            }
            for p in found.places
        ],
        "failed": [asdict(f) for f in found.failed],
        "effects": [
            {"factor": e.factor, "before": e.before, "after": e.after, "beside": e.a.name,
             "ratios": {k: ratio(r) for k, r in e.ratios.items()}}
            for e in one_factor(found.measured.cells, columns(found))
        ],
        "interactions": [
            {"first": t.first, "second": t.second, "base": t.base.name, "both": t.both.name,
             "measure": t.measure, "ratio": ratio(t.ratio)}
            for key in found.goals[:1]
            for t in two_factor(found.measured.cells, key)
        ],
        "predicted": [
            {"measure": c.measure, "spearman": c.spearman, "worst_error": c.worst,
             "layouts": [{**asdict(p), "error": p.error} if p.high < float("inf") else
                         {"name": p.name, "arm": p.arm, "predicted": p.predicted, "measured": p.measured,
                          "error": p.error} for p in c.points]}
            for c in compare(found.measured.cells, screened(run))
        ],
    }  # fmt: skip
