"""What only a measured run has to show: on a terminal and as JSON."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ztune.advice.job import title
from ztune.advice.recommend import recommend
from ztune.analysis import units
from ztune.analysis.basis import in_user_space, limits
from ztune.analysis.contrast import two_factor
from ztune.analysis.effects import from_baseline
from ztune.analysis.metrics import MEASURED
from ztune.analysis.neighbours import measured
from ztune.analysis.paired import Ratio
from ztune.analysis.predicted import Comparison, compare
from ztune.analysis.results import LayoutResult
from ztune.analysis.standing import Standing, standing
from ztune.analysis.verdict import sentence
from ztune.output import Console, Text
from ztune.report import neighbours
from ztune.report.fitting import Fitting
from ztune.runs.follow import followed
from ztune.store.db import by_others
from ztune.store.records import Run, Trial
from ztune.study import DurabilityClass

STANDING = {"leader": "leads", "worse": "worse", "equal": "equal", "open": "not resolved", "": ""}
_NO_PAIR = "no two layouts of one block have a result yet, so there is nothing to compare"
_LAYOUT = 20  # characters of a layout's name that a line has at least
_WIDE = 100  # characters that a third measure needs


def show(run: Run, trials: Sequence[Trial], console: Console | None = None) -> None:
    """Print the ranking of a measured run and what it says."""
    console = console or Console(highlight=False)
    console.print(ranking(standing(run, trials)))
    for part in neighbours.measured_table(measured(run, trials)):
        console.print(part)


def head(now: Standing) -> str:
    """Return what was measured where, in a sentence."""
    run = now.run
    versions = run.versions
    zfs = f" on OpenZFS {versions['openzfs']}" if versions.get("openzfs") else ""
    where = run.where
    accel = " (emulated: no hardware virtualisation)" if now.basis == "emulated" else ""
    if in_user_space(run):
        pace = "disks as fast as this machine" if run.target.get("disks") == "instant" else "modelled disks"
        cached = ", with the kernel's page cache" if run.target.get("page_cache") else ""
        accel = f" (in user space, {pace}, real time{cached})"
    who = by_others(run.made_by)
    return f"Run {run.id}{who}: {title(run, None)}{zfs}, measured on {where}{accel}."


def verdict(now: Standing) -> str:
    """Return what the run found, in a sentence."""
    if not now.outcome and now.to_buy and len(now.ranked) < 2:
        return "All other layouts take hardware that the base layout does not have."
    if not now.outcome:
        return units.sentence(now.lacking or _NO_PAIR)
    text = sentence(now.outcome, now.within)
    reason = now.outcome.get("reason")
    if reason in {"time", "interrupted"}:
        text += "; the time limit ended the run" if reason == "time" else "; the run was cut"
    # A layout's name stays as it is written.
    text = (text[:1].upper() + text[1:] if text.startswith("no") else text) + "."
    return " ".join(filter(None, (text, _by_host(now), now.lacking and units.sentence(now.lacking))))


def _by_host(now: Standing) -> str:
    """Return how the first layout compares with the baseline on each host; "" where there is but one."""
    ratio = now.first.against.get(now.minimise[0]) if now.first is not None and now.minimise else None
    if now.first is None or ratio is None or not ratio.by_host:
        return ""
    each = ", ".join(f"{host} {units.times(mean)}" for host, mean in ratio.by_host.items())
    return f"{now.first.name} to the baseline, by host: {each}."


def ranking(now: Standing) -> RenderableType:
    """Return the ranked layouts with medians, and each against the baseline with its interval."""
    parts: list[RenderableType] = [Text(head(now)), Text(verdict(now), style="bold")]
    ended = followed(now.run.outcome)
    if ended is not None:
        parts.append(Text(ended.sentence()))
        if text := ended.disagreement():
            parts.append(Text(text, style="yellow"))
    caution = now.caution()
    if caution is not None:
        parts.append(Text(caution, style="yellow"))
    narrow = shutil.get_terminal_size().columns < _WIDE
    weak = any(p.result.durability is not DurabilityClass.NOTHING for p in now.places)
    keys = now.columns(3 - narrow - (narrow and weak))
    lines = []
    for place in now.places:
        result = place.result
        words = Text("  (baseline)" if result.baseline else "", style="dim")
        if place.standing in {"worse", "equal", "open"}:
            words.append(f"  {STANDING[place.standing]}")
        if place.to_buy:
            words.append(f"  to buy: {settings_text(place.to_buy)}", style="yellow")
        if place.lag:
            words.append(f"  {place.lag}", style="yellow")
        cells = [str(len(result.trials)), *(result.text(key) for key in keys)]
        cells += [against(result, key) for key in now.minimise[:1]]
        lines.append(
            Line(place.rank, result.name, result is now.chosen, words, str(result.durability), cells)
        )
    heads = ["runs", *map(now.label, keys), *(["to baseline"] if now.minimise else [])]
    table = places(heads, lines)
    parts += [Text(), table, *passed_over(now.first.name if now.first else "", now.passed_over)]
    for failed in now.failed:
        numbers = ", ".join(map(str, failed.trials))
        parts.append(Text(f"failed: {failed.name} (trial {numbers}): {failed.reason}", style="red"))
    return Group(*parts)


@dataclass(frozen=True)
class Line:
    """A layout in a table of them. ``words`` follow its name; ``cells``: one for each further column."""

    rank: int | None
    layout: str
    recommended: bool
    words: Text
    durability: str
    cells: Sequence[str]


def settings_text(hardware: Mapping[str, str]) -> str:
    """Return factors and their values as text: "slog=nvme, arc=8G"."""
    return ", ".join(f"{key}={value}" for key, value in hardware.items())


def places(heads: Sequence[str], lines: Sequence[Line]) -> Fitting:
    """Return layouts as a table; their durability has a column where one may lose something."""
    safe = str(DurabilityClass.NOTHING)
    weak = any(line.durability != safe for line in lines)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("layout", overflow="fold", min_width=_LAYOUT)
    if weak:
        table.add_column("durability", style="red", no_wrap=True)
    for head in heads:
        table.add_column(Text(head), justify="right")
    names, cells = [], []
    for line in lines:
        name = Text(line.layout)
        if line.recommended:
            name.append("  ◀ recommended", style="bold green")
        name.append(line.words)
        klass = ["" if line.durability == safe else line.durability] if weak else []
        rank = "–" if line.rank is None else str(line.rank)
        table.add_row(rank, name, *klass, *line.cells, style="bold" if line.recommended else "")
        names.append(Text(f"{rank}  ").append(name))
        cells.append([*klass, *line.cells])
    return Fitting(table, (2, _LAYOUT), names, [*(["durability"] if weak else []), *heads], cells)


def passed_over(first: str, why: str) -> list[Text]:
    """Return, below a table, why its first layout is not the one to recommend; nothing where it is."""
    return [Text(f"{first} comes first, but {why}", style="yellow")] if why else []


def against(result: LayoutResult, key: str) -> str:
    """Return a layout against the baseline in one metric, with its interval; "" for the baseline, "–" of a
    percentile of too few calls.
    """
    ratio = result.against.get(key)
    return "" if ratio is None else "–" if key in result.few_calls else ratio.text


def predictions(now: Standing, screened: Sequence[Trial]) -> RenderableType | None:
    """Return how right the screening of the same layouts was; None where there was none."""
    found = compare(now.found.layouts, screened)
    if not found:
        return None
    title = Text("Screening's prediction against the measurement", style="bold")
    return Group(title, *(Text(f"  {accuracy(c)}") for c in found))


def accuracy(c: Comparison) -> str:
    """Return how well screening predicted one measure, in a sentence."""
    rank = "" if c.spearman is None else f"rank correlation {c.spearman:.2f}, "
    return f"{c.label}: {rank}worst error {c.worst:.0%} over {len(c.points)} layouts"


def cautions(now: Standing) -> list[str]:
    """Return what limits the conclusion, most important first."""
    out = []
    caution = now.caution()
    if caution is not None:
        out.append(caution)
    if now.outcome.get("verdict") == "open":
        out.append("The run ended unresolved: " + sentence(now.outcome, now.within) + ".")
    if now.run.status in {"interrupted", "failed"}:
        out.append(f"The run is not complete: {now.found.pending} trials did not run.")
    if now.weaker:
        out.append(
            "Layouts marked with a durability class may lose more at a power cut, or nobody knows what they "
            "lose; they do not compete."
        )
    note = limits(now.run, now.found.layouts)
    if note is not None:
        out.append(note)
    out += list(now.found.warnings)
    return out


def to_json(run: Run, trials: Sequence[Trial], screened: Sequence[Trial] = ()) -> dict[str, Any]:
    """Return a measured run's ranking as JSON values; ``screened``: what predicted it."""
    now = standing(run, trials)
    layouts, ended = now.found.layouts, followed(run.outcome)

    def ratio(r: Ratio | None) -> dict[str, Any] | None:
        return None if r is None else r.to_json()

    chosen = now.chosen
    return {
        "run": run.id,
        "kind": run.kind,
        "name": run.name,
        "status": run.status,
        "target": run.target,
        "versions": run.versions,
        "job": run.job,
        "seed": run.seed,
        "evidence": now.basis,
        "goals": list(now.minimise),
        "outcome": dict(now.outcome),
        "sentence": verdict(now),
        "followed": None if ended is None else {"sentence": ended.sentence(), "off": ended.disagreement()},
        "recommended": None
        if chosen is None
        else {"layout": chosen.name, "hash": chosen.hash, "text": recommend(run, trials).verdict},
        "cautions": cautions(now),
        "beside": [{**asdict(row), "ratio": ratio(row.ratio)} for row in measured(run, trials)],
        "layouts": [
            {
                "rank": p.rank,
                "layout": p.result.name,
                "hash": p.result.hash,
                "baseline": p.result.baseline,
                "durability": str(p.result.durability),
                "standing": p.standing,
                "to_leader": ratio(p.to_leader),
                "to_buy": dict(p.to_buy),
                "behind": p.lag,
                "trials": list(p.result.trials),
                "measures": {
                    k: {
                        "unit": MEASURED[k].unit,
                        "median": e.median,
                        "low": e.low,
                        "high": e.high,
                        "interval": e.kind,
                        "values": {str(b): v for b, v in p.result.values[k].items()},
                        "to_baseline": ratio(p.result.against.get(k)),
                    }
                    for k, e in p.result.estimates.items()
                },
            }
            for p in now.places
        ],
        "failed": [asdict(f) for f in now.failed],
        "effects": [
            {"factor": p.factor, "before": p.before, "after": p.after, "beside": p.a.name,
             "ratios": {k: ratio(r) for k in now.columns() if (r := p.paired(k)) is not None}}
            for p in from_baseline(layouts)
        ],
        "interactions": [
            {"first": t.first, "second": t.second, "base": t.base.name, "both": t.both.name,
             "measure": t.measure, "ratio": ratio(t.ratio)}
            for key in now.minimise[:1]
            for t in two_factor(layouts, key)
        ],
        "predicted": [
            {"measure": c.measure, "spearman": c.spearman, "worst_error": c.worst,
             "layouts": [{**asdict(p), "error": p.error} if p.high < float("inf") else
                         {"name": p.name, "arm": p.arm, "predicted": p.predicted, "measured": p.measured,
                          "error": p.error} for p in c.points]}
            for c in compare(layouts, screened)
        ],
    }  # fmt: skip
