"""What another OpenZFS changes for a recording: on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from ztune.analysis import units
from ztune.analysis.across import COMPARED, Across, LayoutAcross, across
from ztune.analysis.metrics import REPLAYED
from ztune.analysis.standing import standing
from ztune.native.openzfs import order
from ztune.output import Text
from ztune.store.records import Run, Trial

_HEADS = ("", "modelled", "reads", "writes", "read", "written", "space")
_ALLOCATORS = (
    "OpenZFS before 2.3 always allocates in four places at a time, later ones in one for each four "
    "processors, four at most. A replay has one processor: on a host with 16 or more, the difference in "
    "writes and time across 2.3 is far smaller (docs/engine.md)."
)
Runs = Sequence[tuple[Run, Sequence[Trial]]]


def table(runs: Runs, top: int | None = None) -> RenderableType:
    """Return the summary and the layouts: the base layout, then as the first run ranks them; with ``top``
    the first so many.

    ``runs``: of one recording, each with its trials, that which the others are compared with first.
    """
    found = across(runs)
    rank = {place.result.hash: n for n, place in enumerate(standing(*runs[0]).ranked)}
    layouts = sorted(found.layouts, key=lambda one: (not one.baseline, rank.get(one.hash, len(rank))))
    shown = layouts[:top]
    rows = [row for layout in shown for row in _rows(found, layout)]
    widths = [max(len(row[i]) for row in [_HEADS, *rows]) for i in range(len(_HEADS))]
    lines = {layout.hash: [_line(row, widths) for row in _rows(found, layout)] for layout in shown}
    parts: list[RenderableType] = [
        Text(f"OpenZFS {', '.join(found.versions)}: the same recording on the same layouts", style="bold"),
        Text("Operations and bytes are counted, times are modelled from the disks' profile.", style="dim"),
        Text(),
        *_summary(found),
        *(Text(note) for note in _notes(found.versions)),
        Text(),
        *(Text(f"{version}: best is {name}") for version, name in _best(runs).items()),
        Text(),
        Text(_line(_HEADS, widths), style="bold"),
    ]
    for layout in shown:
        parts.append(Text(layout.name + ("  (base)" if layout.baseline else ""), style="bold"))
        parts += map(Text, lines[layout.hash])
        parts += [Text(f"  {v}: failed: {why}", style="red") for v, why in layout.failed.items()]
    if len(shown) < len(layouts):
        parts.append(Text(f"{len(layouts)} layouts in all; --all shows the rest", style="dim"))
    return Group(*parts)


def _notes(versions: Sequence[str]) -> list[str]:
    """Return what of the difference is a matter of this replay; docs/engine.md has the figures."""
    one_per_four = [order(version) >= (2, 3) for version in versions]
    if all(one_per_four) or not any(one_per_four):
        return []
    return [_ALLOCATORS]


def to_json(runs: Runs) -> dict[str, Any]:
    """Return the same as JSON: values, ratios to the first version, their middle and ends, the best."""
    found = across(runs)
    others = found.versions[1:]
    return {
        "openzfs": list(found.versions),
        "notes": _notes(found.versions),
        "runs": dict(zip(found.versions, found.runs, strict=True)),
        "best": _best(runs),
        "change": {
            version: {m: None if (c := found.change(version, m)) is None else vars(c) for m in COMPARED}
            for version in others
        },
        "layouts": [
            {
                "layout": one.name,
                "hash": one.hash,
                "baseline": one.baseline,
                "values": one.values,
                "failed": one.failed,
                "ratios": {v: {m: found.ratio(one, v, m) for m in COMPARED} for v in others},
            }
            for one in found.layouts
        ],
    }


def _summary(found: Across) -> list[RenderableType]:
    first, *others = found.versions
    parts: list[RenderableType] = []
    label = max(len(REPLAYED[metric].label) for metric in COMPARED)
    for version in others:
        parts.append(Text(f"{version} against {first}: the middle layout (least … most)"))
        for metric in COMPARED:
            change = found.change(version, metric)
            said = "–"
            if change is not None:
                said = units.times(change.median, change.low, change.high, of_several=True)
            parts.append(Text(f"  {REPLAYED[metric].label:{label}}  {said}"))
    return parts


def _rows(found: Across, layout: LayoutAcross) -> list[tuple[str, ...]]:
    rows = []
    for version in found.versions:
        if values := layout.values.get(version):
            shown = (units.show(values[m], REPLAYED[m].unit) if m in values else "–" for m in COMPARED)
            rows.append((f"  {version}", *shown))
            if version != found.versions[0]:
                rows.append(("", *(units.times(found.ratio(layout, version, m)) for m in COMPARED)))
    return rows


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])


def _best(runs: Runs) -> dict[str, str]:
    """Return version → the layout that its own ranking recommends; "none" where all failed."""
    chosen = {run.versions["openzfs"]: standing(run, trials).chosen for run, trials in runs}
    return {version: "none" if one is None else one.name for version, one in chosen.items()}
