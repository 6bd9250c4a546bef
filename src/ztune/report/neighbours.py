"""What two jobs on one pool lose to each other, for the terminal and for HTML."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import RenderableType
from rich.table import Table

from ztune.analysis import units
from ztune.analysis.neighbours import JobBeside, Shared
from ztune.output import Text
from ztune.units import counted

HEADS = ("disk I/Os", "moved", "synced write", "read", "modelled")
_UNITS = ("count", "bytes", "ms", "ms", "s")
NOTE = (
    "Alone → together. Of both: the sum of what each does alone, of latencies the mean over all calls. A "
    "replay tells the latencies of a job beside the other only where that one makes no such calls."
)


def cells(row: JobBeside) -> list[tuple[str, str]]:
    """Return for each of ``HEADS`` the figure alone and together, for people."""
    shared = (row.ios, row.moved, row.sync, row.read, row.seconds)
    return [_pair(one, unit) for one, unit in zip(shared, _UNITS, strict=True)]


def _pair(one: Shared, unit: str) -> tuple[str, str]:
    def said(value: float | None) -> str:
        return "–" if value is None else units.show(value, unit)

    return said(one.alone), said(one.beside)


def table(rows: Sequence[JobBeside], names: Collection[str | None] | None = None) -> list[RenderableType]:
    """Return the table, readable at 80 columns; nothing without rows. ``names``: of these layouts alone."""
    shown = [row for row in rows if names is None or row.layout in names]
    if not shown:
        return []
    left = len({row.hash for row in rows}) - len({row.hash for row in shown})
    out = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    out.add_column("layout", overflow="fold", min_width=8)
    for head in HEADS:
        out.add_column(Text(head), justify="right", no_wrap=True)
    before = ""
    for row in shown:
        if row.hash != before:
            before = row.hash
            out.add_row(Text(row.layout, style="bold"))
        pairs = cells(row)
        out.add_row(Text(f"  {row.job}"), *(a for a, _ in pairs))
        if any(b != "–" for _, b in pairs):
            out.add_row(Text("    together", style="dim"), *(b if b != "–" else "" for _, b in pairs))
    more = f" {counted(left, 'more layout')}: --all shows them." if left else ""
    title = Text("\nTwo jobs on one pool: alone, and together", style="bold")
    return [title, out, Text(NOTE + more, style="dim")]
