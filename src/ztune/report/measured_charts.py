"""The drawings of a measured run's report, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ztune.analysis import units
from ztune.analysis.metrics import MEASURED
from ztune.analysis.predicted import Comparison
from ztune.analysis.results import LayoutResult
from ztune.analysis.why import Why
from ztune.report.charts import Axis

_NAME = 250  # pixels for a layout's name
_ROW = 30


def _cut(text: str, most: int = 38) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _grid(axis: Axis, unit: str, top: float, bottom: float) -> list[Markup]:
    out = []
    for value in axis.ticks(binary=unit == "bytes"):
        x = axis.at(value)
        out.append(
            Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(x, top, bottom)
        )
        out.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                x, bottom + 17, units.show(value, unit)
            )
        )
    return out


def dots(cells: Sequence[LayoutResult], key: str, chosen: LayoutResult | None, wide: int = 1040) -> Markup:
    """Return one row per layout with a dot for each block, the median, and its interval; empty without
    values.
    """
    rows = [c for c in cells if key in c.values]
    values = [v for c in rows for v in c.values[key].values()]
    if not values:
        return Markup("")
    unit = MEASURED[key].unit
    tall = 14 + _ROW * len(rows) + 40
    bottom = tall - 34
    axis = Axis.over(values, _NAME, wide - 30)
    out = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{} of each layout in each block">').format(
            wide, tall, MEASURED[key].label
        ),
        *_grid(axis, unit, 8, bottom),
    ]
    for i, cell in enumerate(rows):
        y = 8 + _ROW * (i + 0.5)
        kind = "rec" if cell is chosen else "base" if cell.baseline else ""
        strong = "strong" if cell is chosen or cell.baseline else ""
        out.append(
            Markup('<text class="{}" x="{}" y="{:.1f}" text-anchor="end">{}<title>{}</title></text>').format(
                strong, _NAME - 12, y + 4, _cut(cell.name), cell.name
            )
        )
        found = cell.estimates[key]
        if found.low is not None and found.high is not None:
            out.append(
                Markup('<line class="span" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                    axis.at(found.low), axis.at(found.high), y, y
                )
            )
        x = axis.at(found.median)
        out.append(
            Markup('<line class="axis" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>').format(
                x, y - 9, y + 9
            )
        )
        for block, value in sorted(cell.values[key].items()):
            out.append(
                Markup(
                    '<circle class="p {}" cx="{:.1f}" cy="{:.1f}" r="5"><title>block {}: {}</title></circle>'
                ).format(kind, axis.at(value), y, block, units.show(value, unit))
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
        Markup(
            '<svg viewBox="0 0 {} {}" role="img" aria-label="Bytes written per operation by cause">'
        ).format(wide, tall),
        *_grid(axis, "bytes", 8, bottom),
    ]
    for i, (cell, why) in enumerate(rows):
        y = 8 + _ROW * (i + 0.5)
        out.append(
            Markup('<text class="{}" x="{}" y="{:.1f}" text-anchor="end">{}<title>{}</title></text>').format(
                "strong" if cell.baseline else "", _NAME - 12, y + 4, _cut(cell.name), cell.name
            )
        )
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
            x = axis.at(why.asked)
            out.append(
                Markup('<line class="asked" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>').format(
                    x, y - 12, y + 12
                )
            )
        out.append(
            Markup('<text class="strong" x="{:.1f}" y="{:.1f}">{}</text>').format(
                start + 8, y + 4, units.amount(why.written)
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
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}: predicted against measured">').format(
            wide, tall, comparison.label
        )
    ]
    for value in x.ticks()[:6]:
        px, py = x.at(value), y.at(value)
        out.append(
            Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="14" y2="{1}"/>').format(px, bottom)
        )
        out.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                left, wide - 14, py, py
            )
        )
        text = units.times(value)
        out.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(px, bottom + 16, text)
        )
        out.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(left - 6, py + 4, text)
        )
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
