"""What two jobs on one pool lose to each other, for the terminal and for HTML."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import RenderableType
from rich.table import Table

from ztune.analysis import units
from ztune.analysis.neighbours import JobBeside, MeasuredBeside, Shared
from ztune.output import Text
from ztune.report.fitting import Fitting
from ztune.units import counted

HEADS = ("data I/Os", "moved", "synced write", "read", "modelled")
_JOB, _FIGURE = 12, 20  # characters of the first column, at least
_UNITS = ("count", "bytes", "ms", "ms", "s")
NOTE = (
    "Alone → together. Of both: the sum of what each does alone, of latencies the mean over all calls. "
    "Data I/Os are without those of the log and of the pool's own metadata."
)


def cells(row: JobBeside) -> list[tuple[str, str]]:
    """Return for each of ``HEADS`` the figure alone and together, for people."""
    shared = (row.ios, row.moved, row.sync, row.read, row.seconds)
    return [_pair(one, unit) for one, unit in zip(shared, _UNITS, strict=True)]


_CALLED = {
    "per_second": "operations per s",
    "latency_mean": "mean latency",
    "latency_p99": "p99 latency",
    "seconds": "duration",
}
MEASURED_HEADS = ("alone", "together", "together / alone")
MEASURED_NOTE = (
    "Medians over the blocks; the ratio is paired within blocks, with its interval. Both begin at one time; "
    "what a job does after the other has ended counts in its figures too."
)


def measured_cells(row: MeasuredBeside) -> tuple[str, str, str, str]:
    """Return what a measured figure is called, and it alone, together and as a ratio, for people; dashes of a
    percentile of too few calls.
    """
    if row.few_calls is not None:
        return _CALLED[row.figure], "–", "–", "–"
    shown = [units.show(value, row.unit) for value in (row.alone, row.beside)]
    return _CALLED[row.figure], shown[0], shown[1], "–" if row.ratio is None else row.ratio.text


def measured_table(rows: Sequence[MeasuredBeside]) -> list[RenderableType]:
    """Return what was measured of two jobs as a table, readable at 80 columns; nothing without rows."""
    if not rows:
        return []
    out = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    out.add_column("layout", overflow="fold", min_width=12)
    for head in MEASURED_HEADS:
        out.add_column(Text(head), justify="right", no_wrap=True)
    layout = job = ""
    names: list[Text] = []
    shown: list[Sequence[str]] = []
    for row in rows:
        if row.hash != layout:
            layout, job = row.hash, ""
            out.add_row(Text(row.layout, style="bold"))
        if row.job != job:
            job = row.job
            out.add_row(Text(f"  {row.job}, {units.seconds(row.together_s)} at one time"))
        name, *figures = measured_cells(row)
        out.add_row(Text(f"    {name}", style="dim"), *figures)
        names.append(Text(f"{row.layout}, {row.job}, {name}"))
        shown.append(figures)
    title = Text("\nTwo jobs on one pool: alone, and together", style="bold")
    fitting = Fitting(out, (_FIGURE,), names, MEASURED_HEADS, shown)
    return [title, fitting, Text(MEASURED_NOTE, style="dim")]


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
    called: list[Text] = []
    figures: list[Sequence[str]] = []
    for row in shown:
        if row.hash != before:
            before = row.hash
            out.add_row(Text(row.layout, style="bold"))
        pairs = cells(row)
        out.add_row(Text(f"  {row.job}"), *(a for a, _ in pairs))
        called.append(Text(f"{row.layout}, {row.job}"))
        figures.append([a for a, _ in pairs])
        if any(b != "–" for _, b in pairs):
            called.append(Text(f"{row.layout}, {row.job}, together"))
            figures.append([b if b != "–" else "" for _, b in pairs])
            out.add_row(Text("    together", style="dim"), *figures[-1])
    more = f" {counted(left, 'more layout')}: --all shows them." if left else ""
    title = Text("\nTwo jobs on one pool: alone, and together", style="bold")
    return [title, Fitting(out, (_JOB,), called, HEADS, figures), Text(NOTE + more, style="dim")]
