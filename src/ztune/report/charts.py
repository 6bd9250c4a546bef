"""The report's drawings, as inline SVG. Colours come from the style sheet, so that they follow the theme."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from ztune.advice.model import Row
from ztune.analysis import units
from ztune.analysis.disk_use import DiskRates, DiskUse
from ztune.analysis.metrics import MEASURED
from ztune.analysis.predicted import Comparison
from ztune.analysis.results import LayoutResult
from ztune.analysis.why import Why
from ztune.observe import histograms
from ztune.report.brief import BriefFigure
from ztune.units import format_size

# A logarithmic axis from this ratio of largest to smallest on: below, a linear one shows differences better.
_LOG_FROM = 8.0
_NAME = 250  # pixels for a layout's name
_ROW = 30


Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels, with round ticks."""

    low: float
    high: float
    start: float  # pixel of ``low``
    end: float  # pixel of ``high``
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """Return an axis that holds all ``values`` with some air; logarithmic where they span much."""
        low, high = min(values), max(values)
        if low > 0 and high / low >= _LOG_FROM:
            return cls(low / 1.25, high * 1.25, start, end, True)
        air = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
        return cls(max(0.0, low - air), high + air, start, end, False)

    def at(self, value: float) -> float:
        """Return the pixel of ``value``."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, binary: bool = False) -> list[float]:
        """Return round values inside; ``binary`` for bytes: multiples of a power of 1024."""
        if self.log:
            base = 2.0 if binary else 10.0
            steps = (1.0,) if binary else (1.0, 2.0, 5.0)
            first, last = math.floor(math.log(self.low, base)), math.ceil(math.log(self.high, base))
            found = [s * base**p for p in range(first, last + 1) for s in steps]
            found = [v for v in found if self.low <= v <= self.high]
            return found[:: max(1, math.ceil(len(found) / 7))]
        span = self.high - self.low
        raw = span / 5
        size = 10 ** math.floor(math.log10(raw))
        if binary:
            step = 2.0 ** math.ceil(math.log2(raw))
        else:
            step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
        lowest = math.ceil(self.low / step)
        return [(lowest + i) * step for i in range(12) if (lowest + i) * step <= self.high]


def _cut(text: str, most: int = 38) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(wide: int, tall: int, label: str) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(wide, tall, label)


def _upright(kind: str, x: float, y1: float, y2: float) -> Markup:
    return Markup('<line class="{0}" x1="{1:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{3:.1f}"/>').format(
        kind, x, y1, y2
    )


def _level(kind: str, y: float, x1: float, x2: float) -> Markup:
    return Markup('<line class="{0}" x1="{1:.1f}" x2="{2:.1f}" y1="{3:.1f}" y2="{3:.1f}"/>').format(
        kind, x1, x2, y
    )


def _tick(value: float, unit: str) -> str:
    return units.times(value) if unit == "times" else units.show(value, unit)


def _columns(axis: Axis, unit: str, top: float, bottom: float, most: int | None = None) -> list[Markup]:
    """Return the grid of a horizontal axis: a line and its value for each tick."""
    out = []
    for value in axis.ticks(binary=unit == "bytes")[:most]:
        x = axis.at(value)
        out.append(_upright("grid", x, top, bottom))
        out.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                x, bottom + 17, _tick(value, unit)
            )
        )
    return out


def _lines(axis: Axis, unit: str, left: float, right: float, most: int | None = None) -> list[Markup]:
    """Return the grid of a vertical axis."""
    out = []
    for value in axis.ticks(binary=unit == "bytes")[:most]:
        y = axis.at(value)
        out.append(_level("grid", y, left, right))
        out.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                left - 7, y + 4, _tick(value, unit)
            )
        )
    return out


def _named(cell: LayoutResult, y: float, strong: bool) -> Markup:
    """Return the name of the layout whose row is at ``y``."""
    return Markup('<text class="{}" x="{}" y="{:.1f}" text-anchor="end">{}<title>{}</title></text>').format(
        "strong" if strong else "", _NAME - 12, y + 4, _cut(cell.name), cell.name
    )


def trade_off(
    rows: Sequence[Row], apart: Sequence[Row], per: str = "", wide: int = 1040, tall: int = 460
) -> Markup:
    """Return the plot of space against modelled time; the area of a circle is the bytes written.

    ``apart``: layouts without a rank. ``per``: what the two are of, such as " per op"; else they are totals.

    Empty if fewer than two layouts have all three numbers.
    """
    points = [
        r for r in [*apart, *rows] if all(k in r.values for k in ("modelled_s", "allocated", "written"))
    ]
    if len(points) < 2:
        return Markup("")
    left, right, top, bottom = 84, 24, 20, 52
    x = Axis.over([r.values["modelled_s"] for r in points], left, wide - right)
    y = Axis.over([r.values["allocated"] for r in points], tall - bottom, top)
    largest = max(r.values["written"] for r in points) or 1.0
    what = "Modelled time against space for each layout; the table above holds the same numbers"
    out = [
        _svg(wide, tall, what),
        *_columns(x, "s", top, tall - bottom),
        *_lines(y, "bytes", left, wide - right),
    ]
    out.append(
        Markup('<text x="{}" y="{}" text-anchor="end">modelled time{}{} → less is better</text>').format(
            wide - right, tall - 10, per, ", logarithmic" if x.log else ""
        )
    )
    out.append(
        Markup('<text x="{}" y="{}">space allocated{}</text>').format(
            left, top - 6, ", logarithmic" if y.log else ""
        )
    )
    placed: list[Box] = []
    labels: list[Markup] = []

    def drawn_last(row: Row) -> tuple[int, float]:
        return (2 if row.recommended else 1 if row.baseline else 0, -row.values["written"])

    for row in sorted(points, key=drawn_last):
        px, py = x.at(row.values["modelled_s"]), y.at(row.values["allocated"])
        radius = 4 + 14 * math.sqrt(row.values["written"] / largest)
        kind = (
            "rec" if row.recommended else "base" if row.baseline
            else "buy" if row.rank is None and row.to_buy else "apart" if row.rank is None
            else "front" if row.front else ""
        )  # fmt: skip
        title = (
            f"{'' if row.rank is None else f'{row.rank}. '}{row.layout}: "
            f"{units.seconds(row.values['modelled_s'])} modelled{per}, "
            f"{units.amount(row.values['allocated'])}, {units.amount(row.values['written'])} written{per}"
        )
        out.append(
            Markup(
                '<circle class="p {}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"><title>{}</title></circle>'
            ).format(kind, px, py, radius, title)
        )
    for row in sorted(points, key=drawn_last, reverse=True):
        if row.rank is None or not (row.recommended or row.baseline or row.front):
            continue
        px, py = x.at(row.values["modelled_s"]), y.at(row.values["allocated"])
        radius = 4 + 14 * math.sqrt(row.values["written"] / largest)
        text = "recommended" if row.recommended else "base layout" if row.baseline else f"#{row.rank}"
        strong = row.recommended or row.baseline
        label = _label(text, px, py, radius, strong, placed, (left, wide - right, top, tall - bottom))
        if label:
            labels.append(label)
    return Markup("").join([*out, *labels, Markup("</svg>")])


def _label(
    text: str,
    px: float,
    py: float,
    radius: float,
    strong: bool,
    placed: list[Box],
    frame: Box,
) -> Markup:
    """Return a label beside a point where there is room for it, or nothing."""
    width = len(text) * (7.2 if strong else 6.4)
    left, right, top, bottom = frame
    for x0, y0 in (
        (px + radius + 5, py + 4),
        (px - radius - 5 - width, py + 4),
        (px - width / 2, py - radius - 6),
        (px - width / 2, py + radius + 15),
    ):
        box = (x0, y0 - 11, x0 + width, y0 + 3)
        inside = box[0] >= left and box[2] <= right and box[1] >= top and box[3] <= bottom
        free = all(box[2] < b[0] or box[0] > b[2] or box[3] < b[1] or box[1] > b[3] for b in placed)
        if inside and free:
            placed.append(box)
            return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
                "strong" if strong else "", x0, y0, escape(text)
            )
    return Markup("")


def ratio_bar(median: float, low: float, high: float, reach: float, wide: int = 120) -> Markup:
    """Return a bar of a ratio around ×1 on a logarithmic scale that ends at ×``reach`` and its inverse.

    Left (less) is better. A thin line shows the range over the pairs. Ratios beyond the scale are cut at its
    end.
    """
    middle = wide / 2

    def at(ratio: float) -> float:
        if ratio <= 0:
            return 1.0
        share = math.log(ratio) / math.log(reach)
        return middle + max(-1.0, min(1.0, share)) * (middle - 2)

    end = at(median)
    x0, width = min(middle, end), max(abs(end - middle), 0.8)
    out = [
        Markup('<svg width="{0}" height="16" viewBox="0 0 {0} 16" aria-hidden="true">').format(wide),
        Markup('<rect class="{}" x="{:.1f}" y="4" width="{:.1f}" height="8" rx="1.5" opacity=".8"/>').format(
            "less" if median <= 1 else "more", x0, width
        ),
    ]
    if high > low:
        out.append(_level("span", 8, at(low), at(high)))
        out += [_upright("span", edge, 5, 11) for edge in (at(low), at(high))]
    out.append(_upright("axis", middle, 1, 15))
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def now_and_then(figures: Sequence[BriefFigure], wide: int = 1040, *, stacked: bool = False) -> Markup:
    """Return two bars for each figure of the first screen: under the base layout and the recommended one.

    Each pair has a scale of its own, from 0 to the larger of the two. ``stacked``: its name stands above it,
    for a screen as narrow as a phone's. Empty without such figures.
    """
    rows = [(f, f.bars) for f in figures if f.bars is not None]
    if not rows:
        return Markup("")
    left, right, tall, above = (0, 130, 62, 18) if stacked else (250, 320, 44, 0)
    # What stands behind a bar shortens all, where it would end beyond the edge: the letters of wide fonts.
    beyond = [
        (wide - left - 8 - 6.8 * len(value) - 8.2 * len(change)) / share
        for figure, bars in rows
        for share, value, change in ((bars[0], figure.base, ""), (bars[1], figure.then, f" {figure.change}"))
        if share > 0
    ]
    room = max(0.0, min(wide - left - right, *beyond))
    label = "What the recommended layout changes: " + "; ".join(
        f"{f.label}, base {f.base}, {f.then} recommended" for f, _ in rows
    )
    out = [_svg(wide, tall * len(rows), label)]
    for i, (figure, bars) in enumerate(rows):
        top = tall * i + 6 + above
        x, y, anchor = (0, top - 6, "start") if stacked else (left - 14, top + 20, "end")
        out.append(
            Markup('<text class="strong" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                x, y, anchor, figure.label
            )
        )
        shown = (
            (bars[0], "base", figure.base, ""),
            (bars[1], figure.kind or "same", figure.then, figure.change),
        )
        for j, (share, kind, value, change) in enumerate(shown):
            y, end = top + 15 * j, max(1.5, share * room)
            out.append(
                Markup('<rect class="bar {}" x="{}" y="{}" width="{:.1f}" height="13" rx="2"/>').format(
                    kind, left, y, end
                )
            )
            text = Markup('<text x="{:.1f}" y="{}">{} <tspan class="{}">{}</tspan></text>')
            out.append(text.format(left + end + 8, y + 11, value, figure.kind, change))
    return Markup("").join([*out, Markup("</svg>")])


def dots(cells: Sequence[LayoutResult], key: str, chosen: LayoutResult | None, wide: int = 1040) -> Markup:
    """Return one row per layout with a dot for each block, the median, and its interval; none of a percentile
    of too few calls. Empty without rows.
    """
    rows = [c for c in cells if key in c.values and key not in c.few_calls]
    values = [v for c in rows for v in c.values[key].values()]
    if not values:
        return Markup("")
    unit = MEASURED[key].unit
    tall = 14 + _ROW * len(rows) + 40
    bottom = tall - 34
    axis = Axis.over(values, _NAME, wide - 30)
    out = [
        _svg(wide, tall, f"{MEASURED[key].label} of each layout in each block"),
        *_columns(axis, unit, 8, bottom),
    ]
    for i, cell in enumerate(rows):
        y = 8 + _ROW * (i + 0.5)
        kind = "rec" if cell is chosen else "base" if cell.baseline else ""
        out.append(_named(cell, y, cell is chosen or cell.baseline))
        found = cell.estimates[key]
        if found.low is not None and found.high is not None:
            out.append(_level("span", y, axis.at(found.low), axis.at(found.high)))
        out.append(_upright("axis", axis.at(found.median), y - 9, y + 9))
        for block, value in sorted(cell.values[key].items()):
            out.append(
                Markup(
                    '<circle class="p {}" cx="{:.1f}" cy="{:.1f}" r="5"><title>block {}: {}</title></circle>'
                ).format(kind, axis.at(value), y, block, units.show(value, unit))
            )
    return Markup("").join([*out, Markup("</svg>")])


def file_sizes(
    files: Mapping[int, int], held: Mapping[int, int] | None = None, wide: int = 420, tall: int = 150
) -> Markup:
    """Return columns by size: the share of the files that is so large and, beside it, of the bytes.

    ``files``: the least size of a power-of-two bucket (0: empty files) → files; ``held``: the same buckets →
    bytes in them, None where nobody knows. Empty without files.
    """
    files = {low: n for low, n in files.items() if low >= 0 and n > 0}
    lows = [low for low, _ in histograms.rows(files)]
    if not lows:
        return Markup("")
    kinds = {"files": files, "bytes": held or {}}
    shares = {
        kind: {low: n / whole for low, n in of.items()}
        for kind, of in kinds.items()
        if (whole := sum(of.values()))
    }
    most = max(share for of in shares.values() for share in of.values())
    # Room for half of the first label and of the last.
    edge = 14.0
    bottom, room = tall - 20, (wide - 2 * edge) / len(lows)
    bar = min(room * 0.8, 40.0) / len(shares)
    out = [_svg(wide, tall, "Files by size"), _level("axis", bottom, 0, wide)]
    for i, low in enumerate(lows):
        middle = edge + room * (i + 0.5)
        told = f"{format_size(low)} to {format_size(2 * low)}" if low else "empty"
        told += f": {units.count(files.get(low, 0))} of {units.count(sum(files.values()))} files"
        if held is not None:
            told += f", {units.amount(held.get(low, 0))} in them"
        for j, (kind, of) in enumerate(shares.items()):
            if share := of.get(low, 0.0):
                high = max(1.0, share / most * (bottom - 4))
                left = middle + (j - len(shares) / 2) * bar
                out.append(
                    Markup(
                        '<rect class="sizes {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
                        "<title>{}</title></rect>"
                    ).format(kind, left, bottom - high, bar, high, told)
                )
        if i % math.ceil(40 / room) == 0:
            out.append(
                Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                    middle, tall - 5, format_size(low)
                )
            )
    return Markup("").join([*out, Markup("</svg>")])


def causes(rows: Sequence[tuple[LayoutResult, Why]], wide: int = 1040) -> Markup:
    """Return a bar per layout: bytes written per operation, the ZIL's part, and what the database asked
    for.
    """
    if not rows:
        return Markup("")
    tall = 14 + _ROW * len(rows) + 40
    bottom = tall - 34
    most = max(max(w.written, w.asked or 0.0) for _, w in rows) or 1.0
    axis = Axis(0.0, most * 1.08, _NAME, wide - 90, False)
    out = [
        _svg(wide, tall, "Bytes written per operation by cause"),
        *_columns(axis, "bytes", 8, bottom),
    ]
    for i, (cell, why) in enumerate(rows):
        y = 8 + _ROW * (i + 0.5)
        out.append(_named(cell, y, cell.baseline))
        start = axis.at(0)
        parts = [("zil", why.zil, "ZIL"), ("rest", why.rest, "transaction groups")]
        if why.zil is None:
            parts = [("rest", why.written, "all writes")]
        for kind, value, label in parts:
            if not value:
                continue
            width = axis.at(value) - axis.at(0)
            out.append(
                Markup(
                    '<rect class="cause {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="16">'
                    "<title>{}: {}</title></rect>"
                ).format(kind, start, y - 8, width, label, units.amount(value))
            )
            start += width
        if why.asked:
            out.append(_upright("asked", axis.at(why.asked), y - 12, y + 12))
        out.append(
            Markup('<text class="strong" x="{:.1f}" y="{:.1f}">{}</text>').format(
                start + 8, y + 4, units.amount(why.written)
            )
        )
    return Markup("").join([*out, Markup("</svg>")])


PANELS: Mapping[str, tuple[str, str]] = {
    "busy": ("time at work", "share"),
    "queued": ("requests waiting or under way", "ratio"),
    "operations": ("operations/s", "ratio"),
    "bytes": ("bytes/s", "bytes"),
}
"""What ``disk_use`` draws, each in a panel of its own: the field of ``DiskRates``, its name and unit."""
HUES = 4
"""Kinds of line that ``disk_use`` tells apart."""


def highest(uses: Sequence[DiskUse]) -> dict[str, float]:
    """Return the largest value of each panel, so that several drawings share a scale; none for a panel that
    nobody counted.
    """
    found: dict[str, float] = {}
    for panel in PANELS:
        values = [v for use in uses for one in use.intervals if (v := _value(one, panel)) is not None]
        if values:
            found[panel] = max(values)
    return found


def _value(rates: DiskRates, panel: str) -> float | None:
    found = getattr(rates, panel)
    return None if found is None else float(found)


def disk_use(
    uses: Sequence[DiskUse], most: Mapping[str, float], seconds: float, wide: int = 520, tall: int = 104
) -> Markup:
    """Return what the disks of one trial did over time: a panel for each key of ``most``, one below another,
    and in each a line for each group of disks.

    ``most`` and ``seconds`` are the ends of the axes. A value holds for the interval that it is drawn over.
    """
    left, right = 74, wide - 12
    x = Axis(0.0, max(seconds, 1e-9), left, right, False)
    whole = tall * len(most) + 30
    out = [_svg(wide, whole, "What the disks did over time; the table below has the means")]
    for row, (panel, top) in enumerate(most.items()):
        label, unit = PANELS[panel]
        upper, lower = row * tall + 24, (row + 1) * tall - 6
        y = Axis(0.0, max(1.0, top) if panel == "busy" else max(top * 1.05, 1e-9), lower, upper, False)
        out.append(Markup('<text x="{}" y="{}">{}</text>').format(left, upper - 8, label))
        values = y.ticks(binary=unit == "bytes")
        for value in values[:: max(1, math.ceil(len(values) / 4))]:
            out.append(_level("grid", y.at(value), left, right))
            out.append(
                Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                    left - 7, y.at(value) + 4, _tick(value, unit) if value else "0"
                )
            )
        for hue, use in enumerate(uses):
            points = []
            for one, start, end in zip(use.intervals, use.edges, use.edges[1:], strict=False):
                height = y.at(_value(one, panel) or 0.0)
                points += [f"{x.at(start):.1f},{height:.1f}", f"{x.at(end):.1f},{height:.1f}"]
            out.append(
                Markup('<polyline class="series hue{}" points="{}"><title>{}</title></polyline>').format(
                    hue % HUES, " ".join(points), use.name
                )
            )
        out.append(_level("axis", lower, left, right))
    for value in x.ticks()[::2]:
        out.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                x.at(value), whole - 14, units.seconds(value)
            )
        )
    return Markup("").join([*out, Markup("</svg>")])


def scatter(comparison: Comparison, wide: int = 330, tall: int = 300) -> Markup:
    """Return predicted against measured, both as multiples of the baseline; on the diagonal it was right."""
    points = comparison.points
    both = [v for p in points for v in (p.predicted, p.measured)]
    left, bottom = 52, tall - 40
    x = Axis.over(both, left, wide - 14)
    y = Axis(x.low, x.high, bottom, 14, x.log)
    out = [
        _svg(wide, tall, f"{comparison.label}: predicted against measured"),
        *_columns(x, "times", 14, bottom, 6),
        *_lines(y, "times", left, wide - 14, 6),
    ]
    out.append(
        Markup('<line class="frontline" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
            x.at(x.low), y.at(x.low), x.at(x.high), y.at(x.high)
        )
    )
    for p in points:
        out.append(
            Markup(
                '<circle class="p front" cx="{:.1f}" cy="{:.1f}" r="5">'
                "<title>{}: predicted {}, measured {}</title></circle>"
            ).format(
                x.at(p.predicted), y.at(p.measured), p.name, units.times(p.predicted), units.times(p.measured)
            )
        )
    out.append(Markup('<text x="{}" y="{}" text-anchor="end">predicted</text>').format(wide - 14, tall - 6))
    out.append(Markup('<text x="4" y="11">measured</text>'))
    return Markup("").join([*out, Markup("</svg>")])


@dataclass(frozen=True)
class RatioMarks:
    """One row of a chart of ratios: mark → ratio, where a ratio is known. ``joined``: a line goes through its
    first mark. ``spans``: mark → low and high end of its interval."""

    name: str
    marks: Mapping[str, float]
    joined: bool = False
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def ratios(rows: Sequence[RatioMarks], kinds: Mapping[str, str], what: str, wide: int = 1040) -> Markup:
    """Return one line for each row with a mark for each ratio on one axis, ×1 being what all are set against.

    ``kinds``: mark → its label. Marks of a row that are at the same place lie over each other, the first on
    top. Empty without ratios.
    """
    values = [v for row in rows for v in row.marks.values() if v > 0]
    values += [v for row in rows for ends in row.spans.values() for v in ends if v > 0]
    if not values:
        return Markup("")
    tall = 14 + _ROW * len(rows) + 40
    bottom = tall - 34
    axis = Axis.over([*values, 1.0], _NAME, wide - 30)
    out = [_svg(wide, tall, what), *_columns(axis, "times", 8, bottom)]
    out.append(_upright("axis", axis.at(1.0), 8, bottom))
    first = next(iter(kinds))
    steps = [
        (axis.at(row.marks[first]), 8 + _ROW * (i + 0.5))
        for i, row in enumerate(rows)
        if row.joined and row.marks.get(first, 0) > 0
    ]
    if len(steps) > 1:
        path = f"M{steps[0][0]:.1f} {steps[0][1]:.1f}"
        path += "".join(
            f"V{(a[1] + b[1]) / 2:.1f}H{b[0]:.1f}V{b[1]:.1f}" for a, b in itertools.pairwise(steps)
        )
        out.append(Markup('<path class="series" d="{}"/>').format(path))
    for i, row in enumerate(rows):
        y = 8 + _ROW * (i + 0.5)
        out.append(
            Markup('<text class="{}" x="{}" y="{:.1f}" text-anchor="end">{}<title>{}</title></text>').format(
                "strong" if row.joined else "", _NAME - 12, y + 4, _cut(row.name), row.name
            )
        )
        for kind, (low, high) in row.spans.items():
            if low > 0 and kind in row.marks:
                out.append(_level("span", y, axis.at(low), axis.at(high)))
        for kind in reversed(list(kinds)):
            value = row.marks.get(kind, 0.0)
            if value > 0:
                out.append(_mark(kind, axis.at(value), y, f"{kinds[kind]}: {units.times(value)}"))
    return Markup("").join([*out, Markup("</svg>")])


def _mark(kind: str, x: float, y: float, title: str) -> Markup:
    """Return a mark: shapes and colours tell the kinds apart."""
    shapes = {
        "published": "M-6 0L0 -6L6 0L0 6Z",
        "ours": "M-5 -5H5V5H-5Z",
        "modelled_s": "M-5 -5H5V5H-5Z",
        "end_time": "M-6 0L0 -6L6 0L0 6Z",
        "end_ios": "M-6 0L0 -6L6 0L0 6Z",
        "end_bytes": "M-5 -5L0 0L-5 5ZM5 -5L0 0L5 5Z",
        "written": "M-5 5L0 -5L5 5Z",
        "read": "M-5 -5L5 -5L0 5Z",
    }
    return Markup(
        '<path class="mark {}" transform="translate({:.1f} {:.1f})" d="{}"><title>{}</title></path>'
    ).format(kind, x, y, shapes[kind], title)


def mark_sample(kind: str) -> Markup:
    """Return the mark ``kind`` by itself, for a legend."""
    return Markup('<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">{}</svg>').format(
        _mark(kind, 7, 7, "")
    )
