"""The terminal view of an observation: findings first, then what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from ztune.advice.findings import Finding, Undecided, unknown_roles
from ztune.analysis import units
from ztune.observe import histograms
from ztune.observe.model import Buckets, Observation
from ztune.observe.model import Group as Seen
from ztune.output import Console, Text
from ztune.report import observed_sheets as sheets
from ztune.report.hosts import first_sentence
from ztune.report.observed_sheets import Sheet
from ztune.trace.view import count, rate, share, size, sparkline
from ztune.units import counted, listed

_FIRST = 3  # findings, and limits, of which the first screen has a sentence each
_WIDE = 118  # columns from which two histograms stand side by side
_STYLES = {"danger": "bold red", "warning": "yellow", "note": "cyan"}
# The columns of a series that are worth a line in the terminal, and what to call them.
_LINES = (
    ("cpu", "user_share", "user"),
    ("cpu", "system_share", "system"),
    ("cpu", "iowait_share", "waiting for I/O"),
    ("arc", "size_bytes", "ARC"),
)


def show(
    console: Console,
    seen: Observation,
    findings: Sequence[Finding],
    undecided: Sequence[Undecided],
    *,
    everything: bool,
) -> None:
    """Print the answer: findings, what to do, what each role did; with ``everything`` all that was seen."""
    if everything:
        _all(console, seen, findings, undecided)
    else:
        _brief(console, seen, findings)


def _brief(console: Console, seen: Observation, findings: Sequence[Finding]) -> None:
    told = [seen.subject, *([units.seconds(seen.seconds)] if seen.seconds is not None else [])]
    console.print(Text(", ".join(told), style="bold"))
    if unknown := unknown_roles(seen):
        console.print(Text(unknown, style="yellow"))
    elif not findings:
        console.print("Findings: none of the rules fires on what is known.")
    rows = Table.grid(padding=(0, 2, 0, 0))
    for found in findings[:_FIRST]:
        rows.add_row(
            Text(found.severity, style=_STYLES[found.severity]),
            Text("\n".join(first_sentence(text, ".") for text in (found.sentence, found.do) if text)),
        )
    if findings:
        console.print(rows)
    sheet = sheets.by_role(seen)
    if sheet.rows:
        _sheet(console, sheet)
    limits = [first_sentence(text, ".") for text in seen.limits]
    rows = Table.grid(padding=(0, 2, 0, 0))
    for number, text in enumerate(limits[:_FIRST]):
        rows.add_row(Text("" if number else "Not known", style="bold"), Text(text))
    rest = [
        counted(n - _FIRST, words)
        for n, words in ((len(findings), "more finding"), (len(limits), "more limit"))
        if n > _FIRST
    ]
    words = listed([*rest, "evidence", "costs", "sizes", "files", "disks"])
    rows.add_row(Text("More", style="bold"), Text(f"--all: {words}"))
    console.print()
    console.print(rows)


def _all(
    console: Console, seen: Observation, findings: Sequence[Finding], undecided: Sequence[Undecided]
) -> None:
    head(console, seen)
    show_findings(console, findings, len(undecided), unknown_roles(seen))
    for sheet in sheets.io_sheets(seen):
        _sheet(console, sheet)
    show_histograms(console, seen)
    for sheet in sheets.other_sheets(seen):
        _sheet(console, sheet)
    for database in seen.databases:
        unknown = f", {len(database.unknown)} are unknown" if database.unknown else ""
        if len(reasons := {*database.unknown.values()}) == 1:
            unknown += f": {reasons.pop()}"
        console.print(
            f"\n{database.kind} {database.version or ''} ({sheets.where(database)}): "
            f"{len(database.settings)} settings read{unknown}; --json and --out list them",
            highlight=False,
        )
    _titled(console, "Over time", _series_table(console, seen))
    if seen.limits:
        console.print(Text("\nNot known", style="bold"))
        for text in seen.limits:
            console.print(Padding(Text(f"· {text}"), (0, 0, 0, 2)))


def head(console: Console, seen: Observation) -> None:
    """Print what was observed, when, where, and what observing cost."""
    console.print(Text(seen.subject, style="bold"))
    words = []
    if seen.seconds is not None:
        words.append(f"{units.seconds(seen.seconds)}")
    if seen.host:
        words.append(f"on {seen.host}" + (f" ({seen.kernel})" if seen.kernel else ""))
    if seen.begun:
        words.append(seen.begun.replace("T", " ").replace("+00:00", " UTC"))
    if seen.cpu_seconds is not None:
        words.append(f"{units.seconds(seen.cpu_seconds)} of processor")
    if seen.own_cpu_seconds is not None:
        words.append(f"{units.seconds(seen.own_cpu_seconds)} for observing")
    if seen.context_switches:
        words.append(
            ", ".join(f"{count(n)} {kind} context switches" for kind, n in seen.context_switches.items())
        )
    if words:
        console.print("; ".join(words))


def show_findings(console: Console, findings: Sequence[Finding], undecided: int, unknown: str = "") -> None:
    """Print each finding: sentence, evidence, what to do, what it costs, source.

    ``unknown``: that no role is known, which comes first.
    """
    console.print(Text("\nFindings", style="bold"))
    if unknown:
        console.print(Padding(Text(unknown, style="yellow"), (0, 0, 0, 2)))
    elif not findings:
        console.print("  none of the rules fires on what is known")
    for found in findings:
        lines: list[RenderableType] = [
            Text.assemble(
                (f"{found.severity}  ", _STYLES[found.severity]),
                found.sentence,
            )
        ]
        proof = "; ".join(f"{e.words} {e.text}" for e in found.evidence)
        for label, text in (("evidence", proof), ("do", found.do), ("cost", found.cost)):
            if text:
                lines.append(Padding(Text.assemble((f"{label}: ", "dim"), text), (0, 0, 0, 4)))
        lines.append(Padding(Text(f"{found.id} · {found.source}", style="dim"), (0, 0, 0, 4)))
        console.print(Padding(Group(*lines), (0, 0, 0, 2)))
    if undecided:
        rules = "rule" if undecided == 1 else "rules"
        text = f"  {undecided} more {rules} could not be decided: --json lists them and what they lack"
        console.print(Text(text, style="dim"))


def table(sheet: Sheet) -> Table:
    """Return a sheet in the style of ztune's tables."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for i, column in enumerate(sheet.columns):
        words = i < sheet.text
        made.add_column(
            column,
            justify="left" if words else "right",
            overflow="fold",
            no_wrap=not words,
            min_width=6 if words else None,
        )
    for row in sheet.rows:
        made.add_row(*row)
    return made


def _titled(console: Console, title: str, made: Table) -> None:
    if made.row_count:
        console.print(Text(f"\n{title}", style="bold"))
        console.print(made)


def _sheet(console: Console, sheet: Sheet) -> None:
    """Print a sheet as a table, or row by row where the terminal is too narrow for it."""
    made = table(sheet)
    if console.measure(made, options=console.options.update(max_width=10_000)).maximum <= console.width:
        _titled(console, sheet.title, made)
        return
    console.print(Text(f"\n{sheet.title}", style="bold"))
    for row in sheet.rows:
        cells = zip(sheet.columns[1:], row[1:], strict=True)
        words = Text.assemble((row[0], "bold"), "  ")
        for number, (column, cell) in enumerate((column, cell) for column, cell in cells if cell):
            words.append(" · " if number else "").append(column, "dim").append(f" {cell}")
        console.print(Padding(words, (0, 0, 0, 2)))


def show_histograms(console: Console, seen: Observation) -> None:
    """Print the distributions of each role: sizes of reads and writes, times of syncs."""
    for group in [*seen.of_kind("role"), *seen.of_kind("device")]:
        parts = [
            distribution(console, f"{group.name} {title}", buckets, times)
            for title, buckets, times in (
                ("write sizes", group.writes.sizes, False),
                ("read sizes", group.reads.sizes, False),
                ("sync times", group.syncs.latency, True),
            )
            if buckets
        ]
        if not parts:
            continue
        console.print()
        if console.width >= _WIDE:
            console.print(Columns(parts, padding=(0, 4)))
        else:
            for part in parts:
                console.print(part)


def distribution(console: Console, title: str, buckets: Buckets, times: bool = False) -> RenderableType:
    """Return a histogram as DTrace draws it: a row for each power of two; ``times``: of ns, not bytes."""
    full = "█" if console.encoding.lower().startswith("utf") else "@"
    space = 22 if console.width >= _WIDE else min(console.width, 80) - 26
    made = Table(
        box=None,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 1),
    )
    made.add_column("from", justify="right", min_width=6, no_wrap=True)
    made.add_column("", width=space)
    made.add_column("calls", justify="right", min_width=6)
    made.add_column("share", justify="right", no_wrap=True)
    every = histograms.total(buckets)
    for low, n in histograms.rows(buckets):
        # The smallest bar that can be seen stands for "some".
        bar = full * (max(1, round(n / every * space)) if n else 0)
        name = units.seconds(low / 1e9) if times else size(low)
        made.add_row(name, Text(bar, style="cyan"), count(n), share(n / every) if n else "")
    return made


def _series_table(console: Console, seen: Observation) -> Table:
    made = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    width = max(10, min(60, console.width - 50))
    unicode = console.encoding.lower().startswith("utf")
    lines = list(_LINES)
    lines += [
        (name, column, f"{name.removeprefix('disk:')} {column.removesuffix('_share')}")
        for name in seen.series
        if name.startswith("disk:")
        for column in ("busy_share",)
    ]
    for name, column, label in lines:
        series = seen.series.get(name)
        values = series.columns.get(column, []) if series else []
        if not any(values):
            continue
        form = share if column.endswith("_share") else size if column.endswith("_bytes") else rate
        made.add_row(
            label,
            Text(sparkline(values, width, unicode), style="green"),
            f"mean {form(sum(values) / len(values))}, most {form(max(values))}",
        )
    return made


def live(console: Console, seen: Observation, passed: float, of: float | None) -> RenderableType:
    """Return the refreshing view while observing: time, the roles' tables, and their distributions."""
    left = f" of {units.seconds(of)}" if of is not None else ""
    title = Text.assemble(
        (seen.subject, "bold"), f"  {units.seconds(max(1.0, passed))}{left}  ", ("Ctrl-C ends it", "dim")
    )
    parts: list[RenderableType] = [title]
    for sheet in sheets.io_sheets(seen):
        parts += ["", Text(sheet.title, style="bold"), table(sheet)]
    busiest = _busiest(seen)
    if busiest is not None and busiest.writes.sizes:
        parts += ["", distribution(console, f"{busiest.name} write sizes", busiest.writes.sizes)]
    return Group(*parts)


def _busiest(seen: Observation) -> Seen | None:
    return max(seen.of_kind("role"), key=lambda g: g.writes.bytes or 0, default=None)
