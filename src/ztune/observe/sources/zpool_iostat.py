"""``zpool iostat -r`` (request sizes) and ``-w`` (latencies), with -p, -H, -v, -T and intervals.

Without an interval, and in the first report of several, zpool counts since the pool was imported; later
reports give I/Os per second. zpool labels a bucket of latencies with its end, one of sizes with its
beginning.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ztune.observe.model import Buckets
from ztune.observe.sources import figures
from ztune.observe.sources.collect import Collected, add
from ztune.observe.sources.source import Source
from ztune.units import is_power_of_two

SIZES: Final = "req_size"
LATENCY: Final = "latency"

# -H prints no titles: the columns in the order of zpool, to which releases added at the end.
_SIZE_COLUMNS: Final = tuple(
    f"{queue}_{kind}"
    for queue in ("sync_read", "sync_write", "async_read", "async_write", "scrub", "trim", "rebuild")
    for kind in ("ind", "agg")
)
_LATENCY_COLUMNS: Final = (
    *(f"{wait}_{way}" for wait in ("total", "disk", "syncq", "asyncq") for way in ("read", "write")),
    "scrub",
    "trim",
    "rebuild",
)

# ZFS on Linux 0.7 wrote sync_queue and async_queue.
_WAITS: Final = {
    "total_wait": "total",
    "disk_wait": "disk",
    "syncq_wait": "syncq",
    "sync_queue": "syncq",
    "asyncq_wait": "asyncq",
    "async_queue": "asyncq",
}
_DASHES = re.compile(r"-{10,}(?:\s+-+)*\s*")
_TIMES: Final = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
_LABEL_TIME = re.compile(r"(\d+)(ns|us|ms|s)")
_LABEL_SIZE = re.compile(r"\d+[KMG]?")
_SCRIPTED = re.compile(r"\d+(?:\t\d+)+")
_UNIX = re.compile(r"\d{9,11}")
_DATES: Final = ("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %Z %Y")

# zpool create takes no pool name that looks like one of these; the rest are names that disks go by.
_GROUPING = re.compile(r"(?:mirror|raidz\d?|draid[\w:]*|spare|replacing|indirect|hole|missing)(?:-\d+)*")
_DISK = re.compile(
    r"/.*|(?:sd|vd|hd|xvd)[a-z]+\d*|nvme\d+(?:c\d+)?n\d+(?:p\d+)?|(?:ada|da|nda|nvd|vtbd|md|loop|disk|mmcblk)\d+\w*"
    r"|dm-\d+|mpath\w+|(?:ata|scsi|wwn|nvme|virtio|usb|dm|pci|md|lvm)-.*|(?:gpt|diskid|label|ufsid)/.*"
    r"|c\d+(?:t\w+)?d\d+(?:[sp]\d+)?|\d{8,}|[0-9a-f]{8}-[0-9a-f]{4}-.*"
)


@dataclass
class _Block:
    """One histogram table of one pool or vdev."""

    name: str
    kind: str
    columns: list[str]
    time: float | None
    rows: dict[int, list[int]] = field(default_factory=dict)
    rounded: bool = False
    closed: bool = False


class ZpoolIostat:
    """Reads both."""

    name = "zpool-iostat"
    what = "zpool iostat -r and -w"

    def recognise(self, head: str) -> bool:
        """True if a table's title is there, or the rows of -H."""
        return bool(
            re.search(r"^[ \t]*(?:req_size|latency)[ \t]+(?:ind|read)\b", head, re.MULTILINE)
        ) or bool(re.search(r"^(?:512|1)(?:\t\d+){9,14}$\n^(?:1024|3)\t", head, re.MULTILINE))

    def read(self, source: Source) -> None:
        """Add the histograms of pools and vdevs."""
        blocks = _blocks(source)
        reports = _reports(blocks)
        for kind in (SIZES, LATENCY):
            of_kind = [found for report in reports if (found := [b for b in report if b.kind == kind])]
            if of_kind:
                _enter(source, kind, of_kind)


def _blocks(source: Source) -> list[_Block]:
    """Return all tables, in order."""
    blocks: list[_Block] = []
    before = ""
    time: float | None = None
    odd = 0
    for line in source.lines():
        words = line.split()
        last = blocks[-1] if blocks else None
        if not words:
            continue
        if words[0] in (SIZES, LATENCY) and len(words) > 1:
            named = _titles(words, before)
            if named is None:
                source.limit(f"the title {line.strip()[:60]!r} is not understood; its table was left out.")
            else:
                blocks.append(_Block(named[0], words[0], named[1], time))
        elif _DASHES.fullmatch(line.strip()):
            if last is not None and last.rows:
                last.closed = True
        elif _SCRIPTED.fullmatch(line):
            if words[0] in ("512", "1"):
                kind = SIZES if words[0] == "512" else LATENCY
                columns = _SIZE_COLUMNS if kind == SIZES else _LATENCY_COLUMNS
                blocks.append(
                    _Block(before.strip(), kind, list(columns[: len(words) - 1]), time, closed=True)
                )
                last = blocks[-1]
            odd += not (last is not None and _row(last, words))
        elif (
            last is not None
            and len(words) == len(last.columns) + 1
            and _label(last.kind, words[0]) is not None
        ):
            if last.closed or source.unended or not _row(last, words):
                odd += 1
        elif (when := _when(line.strip())) is not None:
            time = when
        elif last and not last.closed and _label(last.kind, words[0]) is not None and len(words) > 1:
            odd += 1
        before = line
    if odd:
        source.limit(f"{odd} rows of zpool iostat are cut or not understood and were left out.")
    if blocks and not blocks[-1].closed:
        source.limit(f"the last table, of {blocks[-1].name}, is cut; its rows before that are kept.")
    return [block for block in blocks if block.rows]


def _titles(words: Sequence[str], above: str) -> tuple[str, list[str]] | None:
    """Return the name and the columns that the two lines of a title give."""
    upper = above.split()
    below = list(words[1:])
    if words[0] == SIZES:
        queues = len(below) // 2
        if below != ["ind", "agg"] * queues or len(upper) <= queues:
            return None
        names = [f"{queue}_{kind}" for queue in upper[-queues:] for kind in ("ind", "agg")]
        return " ".join(upper[:-queues]), names
    waits = [_WAITS[word] for word in upper[1:] if word in _WAITS]
    if not waits or len(upper) <= len(waits) or below[: 2 * len(waits)] != ["read", "write"] * len(waits):
        return None
    names = [f"{wait}_{way}" for wait in waits for way in ("read", "write")]
    return " ".join(upper[: -len(waits)]), names + below[2 * len(waits) :]


def _when(text: str) -> float | None:
    """Return the seconds that -T u or -T d printed; None for another line."""
    if _UNIX.fullmatch(text):
        return float(text)
    for form in _DATES:
        try:
            return datetime.strptime(text, form).timestamp()
        except (ValueError, OverflowError):
            continue
    return None


def _label(kind: str, text: str) -> int | None:
    """Return the lower bound of the bucket with this label."""
    if kind == SIZES:
        found = figures.scaled(text) if _LABEL_SIZE.fullmatch(text) else None
        return found[0] if found and is_power_of_two(found[0]) else None
    if time := _LABEL_TIME.fullmatch(text):
        if len(time[1]) > 6:
            return None
        end = int(time[1]) * _TIMES[time[2]]
    elif text.isascii() and text.isdigit() and len(text) < 20:
        end = int(text)
    else:
        return None
    # The end is 2^n - 1 ns, from 1 µs on cut to a whole number of the unit.
    power = round(math.log2(end + (end < 1000))) if end >= 1 else 0
    return 1 << (power - 1) if 1 <= power <= 62 else None


def _row(block: _Block, words: Sequence[str]) -> bool:
    low = _label(block.kind, words[0])
    values = [figures.scaled(word) if word != "-" else (0, True) for word in words[1:]]
    if low is None or len(values) != len(block.columns) or low in block.rows or None in values:
        return False
    block.rows[low] = [value[0] for value in values if value]
    block.rounded |= not all(value[1] for value in values if value)
    return True


def _reports(blocks: Sequence[_Block]) -> list[list[_Block]]:
    """Return the tables of each report: a new one begins when a name comes again."""
    reports: list[list[_Block]] = []
    seen: set[tuple[str, str]] = set()
    for block in blocks:
        if not reports or (block.name, block.kind) in seen:
            reports.append([])
            seen = set()
        seen.add((block.name, block.kind))
        reports[-1].append(block)
    return reports


def _enter(source: Source, kind: str, reports: list[list[_Block]]) -> None:
    option = "-r" if kind == SIZES else "-w"
    if len(reports) == 1:
        source.limit(
            f"zpool iostat {option} without an interval counts "
            "since the pool was imported, not over a window."
        )
        scales = [1.0]
    else:
        reports, scales = _intervals(source, option, reports)
    if any(block.rounded for report in reports for block in report):
        source.limit(f"zpool iostat {option} without -p rounds numbers to three digits.")
    for report, scale in zip(reports, scales, strict=True):
        pool = ""
        for number, block in enumerate(report):
            vdev = bool(_GROUPING.fullmatch(block.name) or _DISK.fullmatch(block.name))
            if number == 0 or not vdev:
                pool = block.name
                _pool(source.into, pool, block, scale)
            elif not _GROUPING.fullmatch(block.name):
                _disk(source.into, block, pool, scale)


def _intervals(
    source: Source, option: str, reports: list[list[_Block]]
) -> tuple[list[list[_Block]], list[float]]:
    """Return the reports but the first, and the seconds that each stands for."""
    source.limit(
        f"the first of {len(reports)} reports of zpool iostat {option} counts since the import (unless -y was"
        " given) and was left out; the others were added up."
    )
    times = [report[0].time for report in reports]
    steps = [
        after - before
        for before, after in itertools.pairwise(times)
        if before is not None and after is not None and after > before
    ]
    if len(steps) == len(reports) - 1:
        source.into.lasted(sum(steps))
        return reports[1:], steps
    source.limit(
        f"zpool iostat {option} prints I/Os per second after the first report, and does not say how long "
        "an interval was (with -T u it does): numbers are right for one of 1 s, shares for any."
    )
    return reports[1:], [1.0] * (len(reports) - 1)


def _column(block: _Block, index: int, scale: float) -> Buckets:
    return {low: n for low, values in sorted(block.rows.items()) if (n := round(values[index] * scale))}


def _pool(into: Collected, name: str, block: _Block, scale: float) -> None:
    sums = into.pool(name)
    target = sums.request_sizes if block.kind == SIZES else sums.latencies
    for index, column in enumerate(block.columns):
        add(target.setdefault(column, {}), _column(block, index, scale))


def _disk(into: Collected, block: _Block, pool: str, scale: float) -> None:
    """Enter the requests to one disk: individual and aggregated ones are both what it was asked for."""
    group = into.group("device", block.name, pool=pool)
    for index, column in enumerate(block.columns):
        found = _column(block, index, scale)
        if block.kind == LATENCY:
            if column in ("disk_read", "disk_write"):
                add((group.reads if column == "disk_read" else group.writes).latency, found)
        elif "_read_" in column or column.startswith("scrub"):
            add(group.reads.sizes, found)
        elif "_write_" in column or column.startswith("rebuild"):
            add(group.writes.sizes, found)
