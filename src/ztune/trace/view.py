"""The terminal view of a trace's summary: tables, DTrace-like size distributions, rates as sparklines."""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Iterable, Sequence

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from ztune.onhost.latency import tells
from ztune.output import Console, Text
from ztune.trace import extent, host_busy
from ztune.trace.figures import NO_ROLE, PAGE, GroupSummary, Rates, Summary, Transfers
from ztune.trace.manifest import Compressibility, Manifest
from ztune.trace.propose import LEAST_BYTES, RoleProposal
from ztune.trace.repeats import repeats
from ztune.units import counted, listed

_WIDE = 118  # columns from which reads and writes stand side by side
_UNITS = "BKMGTPE"
_IDLE = 8  # kinds of files that did next to nothing: so many are listed, as a small trace may have no others


def size(value: float) -> str:
    """Return bytes as ZFS prints them: binary units, three digits (``8K``, ``1.21G``)."""
    unit = 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    if unit == 0:
        return f"{value:.0f}B"
    text = f"{value:.2f}"[:4].rstrip("0").rstrip(".") if value < 1000 else f"{value:.0f}"
    return f"{text}{_UNITS[unit]}"


def count(value: float) -> str:
    """Return a count in at most six characters (``12,345``, ``1.23M``)."""
    if value < 100_000:
        return f"{value:,.0f}"
    units = "kMGTPE"
    while (value := value / 1000) >= 1000 and len(units) > 1:
        units = units[1:]
    return f"{value:.2f}"[:4].rstrip(".") + units[0]


def rate(value: float) -> str:
    """Return a count per second; small ones with a decimal."""
    return f"{value:.1f}" if 0 < value < 10 else count(value)


def share(value: float) -> str:
    """Return a share as a percentage; a little is never shown as none, nor nearly all as all."""
    if 0 < value < 0.01:
        return "<1%"
    if 0.99 < value < 1:
        return ">99%"
    return f"{value:.0%}"


def show_roles(console: Console, summary: Summary, role: str | None = None) -> None:
    """Print the header, the tables by role, and each role's size distributions and rates."""
    groups = [group for group in summary.roles if role in (None, group.name)]
    _header(console, summary)
    _titled(console, "Writes", _writes_table(groups))
    _titled(console, "Reads", _reads_table(groups))
    _titled(console, "Files and syncs", _files_table(groups, summary))
    shown = {group.name for group in groups}
    if measured := [entry for entry in summary.manifest.compressibility if entry.role in shown]:
        title = "How sampled blocks compress, by record size (before rounding to sectors)"
        _titled(console, title, _compressibility(measured))
        for sentence in repeats(measured):
            console.print(Text(f"{sentence[:1].upper()}{sentence[1:]}.", style="yellow"))
    for group in groups:
        parts = [
            _distribution(console, f"{group.name} {kind} sizes", transfers)
            for kind, transfers in (("write", group.writes), ("read", group.reads))
            if transfers.count
        ]
        rates = _rates(console, summary.rates[group.name], summary.bin_s, summary.manifest.duration_ns / 1e9)
        if not parts and not rates:
            continue
        console.print()
        characters = "─" if _unicode(console) else "-"
        console.rule(Text(group.name, style="bold"), align="left", characters=characters)
        if len(parts) == 2 and console.width >= _WIDE:
            console.print(Columns(parts, padding=(0, 4)))
        else:
            for part in parts:
                console.print(part)
        if rates:
            console.print(rates)


def show_files(console: Console, summary: Summary, role: str | None, top: int) -> None:
    """Print the header and the ``top`` files that moved most bytes."""
    _header(console, summary)
    groups = [group for group in summary.files if role in (None, group.role or NO_ROLE)]
    shown = groups[:top]
    folder = common_folder(group.name for group in shown)
    figures = ("reads", "read", "writes", "written", "seq.", "sync", "over.")
    table = _table("file", "role", figures=figures)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for group in shown:
        table.add_row(
            group.name[len(folder) :].lstrip("/") if folder else group.name,
            group.role or "-",
            count(group.reads.count),
            size(group.reads.bytes),
            count(group.writes.count),
            size(group.writes.bytes),
            share(group.writes.sequential) if group.writes.count else share(group.reads.sequential),
            share(group.sync_share),
            share(group.overwrite_share),
        )
    where = f", below {folder}" if folder else ""
    _titled(console, f"Files, most bytes moved first{where}", table)
    if len(groups) > len(shown):
        more = f"and {len(groups) - len(shown):,} more files; --top {len(groups)} shows all"
        console.print(Text(more, style="dim"))


def common_folder(paths: Iterable[str]) -> str:
    """Return the deepest folder that all ``paths`` lie below, or "" if that is the root or nothing."""
    folders = [path.rpartition("/")[0] for path in paths]
    if not folders or not all(folder.startswith("/") for folder in folders):
        return ""
    folder = os.path.commonpath(folders)
    return "" if folder == "/" else folder


def _unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def _table(*columns: str, figures: Iterable[str]) -> Table:
    # Two blanks between columns: a terminal of 80 has room for the longest figures.
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim"
    )
    for column in columns:
        table.add_column(column, no_wrap=True)
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _titled(console: Console, title: str, table: Table) -> None:
    """Print ``table`` under its title, which may be wider than the table; nothing if it has no rows."""
    if table.row_count:
        console.print(Text(f"\n{title}", style="bold"))
        console.print(table)


def _no_files(console: Console) -> None:
    console.print("The trace names no files.")


def _header(console: Console, summary: Summary) -> None:
    manifest = summary.manifest
    title = Text(summary.name, style="bold")
    rest = ""
    if manifest.workload is not None:
        rest = f"  {manifest.workload.name}"
        if manifest.workload.version:
            rest += f", {manifest.workload.version}"
    elif manifest.command:
        rest = f"  {' '.join(manifest.command)}"
    console.print(Text.assemble(title, rest))
    console.print(
        f"{counted(manifest.events, 'event')} on {counted(len(manifest.files), 'file')}"
        f" in {manifest.duration_ns / 1e9:,.1f} s, recorded by {manifest.recorder.name}, {_when(manifest)}"
        f"{_busy(manifest)}"
    )
    if manifest.dropped:
        console.print(
            Panel(
                f"{manifest.dropped:,} events were dropped: every count and byte below is too low.",
                style="bold red",
                box=box.HEAVY,
                expand=False,
            )
        )
    for text in extent.sentences(manifest):
        console.print(Text(text))
    if manifest.windows:
        table = _table("window began", figures=("second", "seconds"))
        for row in extent.windows(manifest):
            table.add_row(*row)
        console.print(table)
    for warning in manifest.warnings:
        times = f" ({warning.count:,} times)" if warning.count > 1 else ""
        console.print(Text.assemble(("warning:", "yellow"), f" {warning.message}{times}"))
    if summary.global_syncs:
        console.print(f"{summary.global_syncs:,} calls of sync or syncfs, which concern all files")


def _busy(manifest: Manifest) -> str:
    """Return how much of its processors was in use on the recording's host, where the trace says it."""
    share = host_busy.recorded(manifest.environment)
    return "" if share is None else f", on a host whose processors were {share:.0%} in use"


def _when(manifest: Manifest) -> str:
    """Return when the recording began; where the trace does not say it, when it was written."""
    began = datetime.datetime.fromtimestamp(manifest.started_unix_ns // 10**9, datetime.UTC).isoformat()
    said = f"began {began}" if manifest.started_unix_ns else f"written {manifest.created}"
    return said.replace("T", " ").replace("+00:00", " UTC")


def _writes_table(groups: Sequence[GroupSummary]) -> Table:
    figures = ("calls", "bytes", "mean", "in sequence", "sync", "over", "aligned", "touched")
    table = _table("role", figures=figures)
    for group in groups:
        if not group.writes.count:
            continue
        table.add_row(
            group.name,
            *_transfer_cells(group.writes),
            share(group.sync_share),
            share(group.overwrite_share),
            _aligned(group, group.writes),
            size(group.writes.pages * PAGE),
        )
    return table


def _reads_table(groups: Sequence[GroupSummary]) -> Table:
    table = _table("role", figures=("calls", "bytes", "mean", "in sequence", "aligned", "touched"))
    for group in groups:
        if not group.reads.count:
            continue
        table.add_row(
            group.name,
            *_transfer_cells(group.reads),
            _aligned(group, group.reads),
            size(group.reads.pages * PAGE),
        )
    return table


def _transfer_cells(transfers: Transfers) -> list[str]:
    return [count(transfers.count), size(transfers.bytes), size(transfers.mean), share(transfers.sequential)]


def _aligned(group: GroupSummary, transfers: Transfers) -> str:
    """Return the share aligned to the database's page, else to the largest alignment most transfers have."""
    if group.page_size:
        return f"{share(transfers.aligned[group.page_size])} {size(group.page_size)}"
    fitting = [to for to, part in transfers.aligned.items() if part >= 0.5]
    best = max(fitting) if fitting else min(transfers.aligned)
    return f"{share(transfers.aligned[best])} {size(best)}"


def _files_table(groups: Sequence[GroupSummary], summary: Summary) -> Table:
    figures = ("files", "size", "working set", "syncs", "per s", "p50 ms", "p99 ms", "max ms")
    table = _table("role", figures=figures)
    seconds = max(summary.manifest.duration_ns / 1e9, 1e-9)
    for group in groups:
        latency = group.sync_latency_ms
        grown = group.size_end - group.size_start
        table.add_row(
            group.name,
            count(group.files),
            size(group.size_end) + (f" ({'+' if grown > 0 else '-'}{size(abs(grown))})" if grown else ""),
            size(group.pages * PAGE),
            count(group.syncs),
            f"{group.syncs / seconds:,.1f}" if group.syncs else "",
            *(
                (
                    f"{latency.p50:.3g}",
                    f"{latency.p99:.3g}" if tells(latency.count, 0.99) else "-",
                    f"{latency.max:.3g}",
                )
                if latency
                else ("", "", "")
            ),
        )
    return table


def _compressibility(measured: Sequence[Compressibility]) -> Table:
    sizes = sorted({entry.recordsize for entry in measured})
    table = _table("role", "algorithm", figures=map(size, sizes))
    rows: dict[tuple[str, str], dict[int, Compressibility]] = {}
    for entry in measured:
        what = f"{entry.role}, {entry.how or 'touched'}" if entry.touched else entry.role
        rows.setdefault((what, entry.algorithm), {})[entry.recordsize] = entry
    for (role, algorithm), by_size in rows.items():
        cells = (by_size.get(one) for one in sizes)
        table.add_row(role, algorithm, *(f"{e.ratio:.2f}" if e and e.blocks else "-" for e in cells))
    return table


def _distribution(console: Console, title: str, transfers: Transfers) -> RenderableType:
    """Return a size distribution like DTrace's quantize: a row for each power of two between the extremes.

    Below it stand mean and standard deviation by call.
    """
    full = "█" if _unicode(console) else "@"
    rows = [0] if 0 in transfers.sizes else []
    if positive := [low for low in transfers.sizes if low]:
        rows += [1 << bit for bit in range(min(positive).bit_length() - 1, max(positive).bit_length())]
    width = 58 if console.width >= _WIDE else min(console.width, 80)
    space = width - 36
    table = Table(
        box=None, title=title, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 1)
    )
    table.add_column("from", justify="right", min_width=6)
    table.add_column("", width=space)
    table.add_column("calls", justify="right", min_width=6)
    table.add_column("of calls", justify="right", no_wrap=True)
    table.add_column("of bytes", justify="right", no_wrap=True)
    for low in rows:
        calls = transfers.sizes.get(low, 0)
        part = calls / transfers.count
        of_bytes = transfers.size_bytes.get(low, 0) / transfers.bytes if transfers.bytes else 0.0
        # The smallest bar that can be seen stands for "some".
        length = max(1, round(part * space)) if calls else 0
        table.add_row(
            size(low),
            Text(full * length, style="cyan"),
            count(calls),
            share(part) if calls else "",
            share(of_bytes) if calls else "",
        )
    return Group(table, _by_call(transfers))


def _by_call(transfers: Transfers) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("call", no_wrap=True)
    for column in ("calls", "mean", "std. dev."):
        table.add_column(column, justify="right", no_wrap=True)
    for name, one in transfers.by_call.items():
        table.add_row(name, count(one.count), size(one.mean), size(one.stdev))
    return table


def _rates(console: Console, rates: Rates, bin_s: float, seconds: float) -> Table | None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(min_width=12)
    table.add_column()
    table.add_column(justify="right")
    width = max(10, min(60, console.width - 44))
    lines = (
        ("reads/s", rates.reads, rate),
        ("read/s", rates.read_bytes, size),
        ("writes/s", rates.writes, rate),
        ("written/s", rates.write_bytes, size),
        ("syncs/s", rates.syncs, rate),
    )
    for name, values, form in lines:
        if any(values):
            per_s = [value / bin_s for value in values]
            mean = sum(values) / max(seconds, 1e-9)
            table.add_row(
                name,
                Text(sparkline(per_s, width, _unicode(console)), style="green"),
                f"mean {form(mean)}, most {form(max(per_s))}",
            )
    return table if table.row_count else None


def sparkline(values: Sequence[float], width: int, unicode: bool = True) -> str:
    """Return ``values`` as a line of at most ``width`` bars, neighbours averaged, from 0 to the greatest."""
    marks = " ▁▂▃▄▅▆▇█" if unicode else " .:-=+*#@"
    cells = min(width, len(values))
    edges = [round(i * len(values) / cells) for i in range(cells + 1)] if cells else []
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    most = max(means, default=0.0)
    if not most:
        return marks[0] * cells
    return "".join(marks[0] if not mean else marks[max(1, round(mean / most * 8))] for mean in means)


def proposals(console: Console, found: Sequence[RoleProposal], everything: bool = True) -> None:
    """Print the files of a trace by kind, with their roles, those that are proposed, and what they do.

    Without ``everything`` only those with either, if there are any, of those that did next to nothing the
    first few, and how many more there are.
    """
    if not found:
        _no_files(console)
    shown = [one for one in found if everything or one.role or one.proposed] or found
    idle = [] if everything else [one for one in shown if one.read + one.written < LEAST_BYTES and one.role]
    idle = idle[_IDLE:]
    left = {id(one) for one in idle}
    shown = [one for one in shown if id(one) not in left]
    left |= {id(one) for one in shown}
    folder = common_folder(one.glob for one in shown)
    table = _table("role", figures=("files", "written", "read", "syncs"))
    table.add_column("files named, and what they do", overflow="fold")
    for one in shown:
        role = (
            Text(one.role) if one.role else Text(f"{one.proposed}?" if one.proposed else "-", style="yellow")
        )
        table.add_row(
            role,
            count(one.files),
            size(one.written),
            size(one.read),
            count(one.syncs),
            Text.assemble(
                one.glob[len(folder) :].lstrip("/") if folder else one.glob,
                "\n",
                (f"{one.why}{_by(one)}", "dim"),
            ),
        )
    where = f", below {folder}" if folder else ""
    _titled(console, f"Files, most bytes moved first{where}", table)
    if idle:
        of = listed(sorted({one.role or "" for one in idle}))
        console.print(
            f"\nOf {of} {counted(len(idle), 'kind')} of files more, each of which moved less than "
            f"{size(LEAST_BYTES)}. --all lists them."
        )
    if more := [one for one in found if id(one) not in left]:
        written, read = sum(one.written for one in more), sum(one.read for one in more)
        console.print(
            f"\nWithout a role, and none is proposed: {counted(len(more), 'kind')} of files more, with "
            f"{size(written)} written and {size(read)} read. --all lists them."
        )


def _by(one: RoleProposal) -> str:
    """Say who gave the files their role."""
    if one.known_as:
        return f"; rule: {one.known_as}"
    given = "; role told from this" if one.by_use else "; role given" if one.role else ""
    return given + (f", where rule {one.otherwise[0]} says {one.otherwise[1]}" if one.otherwise else "")


def file_list(console: Console, manifest: Manifest, role: str | None) -> None:
    """Print every file of the trace with its role, its size before and after, and its earlier names."""
    files = [file for file in manifest.files if role in (None, file.role or NO_ROLE)]
    table = _table("id", "role", figures=("at start", "at end"))
    table.add_column("path", overflow="fold")
    for file in files:
        was = [name.path for name in file.names if name.path != file.path]
        table.add_row(
            str(file.id),
            file.role or "-",
            "new" if file.created else size(file.size_start),
            "deleted" if file.deleted else ("?" if file.size_end < 0 else size(file.size_end)),
            Text.assemble(file.path, (f" was {', '.join(was)}" if was else "", "dim")),
        )
    _titled(console, counted(len(files), "file"), table)
    if not files:
        _no_files(console)
