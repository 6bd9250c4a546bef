"""The table of what each setting does: the same for replays and for trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from ztune.advice.model import EffectRow
from ztune.analysis import units
from ztune.analysis.effects import from_baseline
from ztune.analysis.metrics import EXPLAIN, MAIN, Metric
from ztune.analysis.standing import Standing
from ztune.report import charts

_CAUSES = 3  # how many counts explain an effect
_REACH = 1.5, 4.0  # the bars' scale ends where the data does, between these: small effects stay visible
_Ratio = tuple[float, float, float]  # in the middle, the least, the greatest


@dataclass(frozen=True)
class Shift:
    """What one change of a setting does. ``ratios``: by metric, over ``pairs`` of layouts."""

    factor: str
    before: str
    after: str
    ratios: Mapping[str, _Ratio]
    pairs: int
    durability: bool  # whether it changes what a power cut may lose
    notes: Sequence[str]
    titles: Mapping[str, str] = field(default_factory=dict)


def replayed(rows: Sequence[EffectRow], metrics: Mapping[str, Metric]) -> list[Shift]:
    """Return the effects over all pairs of a screening, each with the counts that explain it."""
    out = []
    for row in rows:
        causes = [m for m in EXPLAIN if m in row.ratios and abs(row.ratios[m][0] - 1) >= 0.05]
        causes.sort(key=lambda m: -_size(row.ratios[m][0]))
        words = ", ".join(f"{metrics[m].label} {units.times(row.ratios[m][0])}" for m in causes[:_CAUSES])
        ratios = {m: row.ratios[m] for m in MAIN if m in row.ratios}
        titles = {
            m: "least with {}; most with {}".format(*row.ends[m])
            for m, (_, low, high) in ratios.items()
            if low != high
        }
        notes = [words] if words else []
        out.append(
            Shift(row.factor, row.before, row.after, ratios, row.pairs, row.durability_changes, notes, titles)
        )
    return [shift for shift in out if shift.ratios]


def measured(now: Standing, keys: Iterable[str]) -> list[Shift]:
    """Return the effects of each pair of layouts that trials compared within blocks, in ``keys``."""
    out = []
    for pair in from_baseline(now.found.layouts):
        found = {k: ratio for k in keys if pair.tells(k) and (ratio := pair.paired(k)) is not None}
        ratios = {
            key: (r.mean, r.low, r.high) if r.shown else (r.mean, r.mean, r.mean) for key, r in found.items()
        }
        weaker = pair.a.durability != pair.b.durability
        beside = [f"beside {pair.a.name}"]
        out.append(Shift(pair.factor, pair.before, pair.after, ratios, 1, weaker, beside))
    return out


def table(shifts: Sequence[Shift], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return what the template shows: heads (``labels``: by metric), and groups of rows by setting.

    Settings that change the first metric most come first; last those that trade durability, which is no
    tuning.
    """
    keys = list(labels)
    seen = [r for s in shifts for ratios in s.ratios.values() for r in ratios[1:] if r > 0]
    reach = min(_REACH[1], max([_REACH[0], *(max(r, 1 / r) for r in seen)]))
    groups: dict[str, list[Shift]] = {}
    for shift in shifts:
        groups.setdefault(shift.factor, []).append(shift)

    def place(factor: str) -> tuple[bool, float, str]:
        group = groups[factor]
        most = max(_size(s.ratios[keys[0]][0] if keys[0] in s.ratios else 1.0) for s in group)
        return all(s.durability for s in group), -most, factor

    return {
        "heads": [label[:1].upper() + label[1:] for label in labels.values()],
        "groups": [
            [(shift, [_cell(shift, key, reach) for key in keys]) for shift in groups[factor]]
            for factor in sorted(groups, key=place)
        ],
    }


def _cell(shift: Shift, key: str, reach: float) -> dict[str, Any]:
    if key not in shift.ratios:
        return {"bar": Markup(""), "text": "–", "range": "", "title": ""}
    middle, low, high = shift.ratios[key]
    least, most = units.times(low), units.times(high)
    return {
        "bar": charts.ratio_bar(middle, low, high, reach),
        "text": units.times(middle),
        "range": "" if least == most else f"{least} … {most}",
        "title": shift.titles.get(key, ""),
    }


def _size(ratio: float) -> float:
    """Return how large a change is, whichever way: 2 for both ×2 and ×0.5."""
    return max(ratio, 1 / ratio) if ratio > 0 else float("inf")
