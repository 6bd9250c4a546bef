"""What sysbench's OLTP load is asked, and what its report says happened."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ztune.errors import ZtuneError
from ztune.onhost import latency

MIX = (
    *("--point-selects=4", "--index-updates=1", "--non-index-updates=1", "--delete_inserts=0"),
    *("--simple-ranges=0", "--sum-ranges=0", "--order-ranges=0", "--distinct-ranges=0"),
)
"""Two reads for every write: four reads by key and two updates, one of them of an indexed column."""
READS, WRITES = 4, 2
"""Of one transaction of ``MIX``."""

_NUMBERS = {
    "reads": re.compile(r"^\s+read:\s+(\d+)", re.MULTILINE),
    "writes": re.compile(r"^\s+write:\s+(\d+)", re.MULTILINE),
    "transactions": re.compile(r"^\s+transactions:\s+(\d+)", re.MULTILINE),
    "errors": re.compile(r"^\s+ignored errors:\s+(\d+)", re.MULTILINE),
}
_SECONDS = re.compile(r"^\s+total time:\s+([\d.]+)s", re.MULTILINE)
_LATENCY = {
    "mean": re.compile(r"^\s+avg:\s+([\d.]+)", re.MULTILINE),
    "max": re.compile(r"^\s+max:\s+([\d.]+)", re.MULTILINE),
}
# A line of --histogram=on: upper bound in ms, bar, how many.
_BIN = re.compile(r"^\s*([\d.]+) \|[* ]*\s(\d+)\s*$", re.MULTILINE)
_PROGRESS = re.compile(r"^\[ (\d+)s \]")


@dataclass(frozen=True, slots=True)
class SysbenchReport:
    """What sysbench says it did."""

    transactions: int
    reads: int
    writes: int
    errors: int
    """Transactions that were rolled back, as after a deadlock, and begun again."""
    seconds: float
    latency_ms: dict[str, float]


def rate(per_second: float) -> int:
    """Return the rate that sysbench is given, which takes whole numbers; 0 for as fast as it goes."""
    return max(1, round(per_second)) if per_second else 0


def parse_progress(line: str) -> float | None:
    """Return the seconds gone by, from a line of ``--report-interval``; ``None`` for any other."""
    match = _PROGRESS.match(line)
    return float(match[1]) if match else None


def parse(text: str) -> SysbenchReport:
    """Read sysbench's closing report.

    Raises:
        ZtuneError: it lacks a number.
    """
    numbers = {}
    for name, pattern in _NUMBERS.items():
        match = pattern.search(text)
        if match is None:
            raise ZtuneError(f"sysbench's report names no number of {name}: {text.strip()[-200:]!r}")
        numbers[name] = int(match[1])
    spent = _SECONDS.search(text)
    if spent is None:
        raise ZtuneError(f"sysbench's report names no time: {text.strip()[-200:]!r}")
    return SysbenchReport(**numbers, seconds=float(spent[1]), latency_ms=_latency(text))


def _latency(text: str) -> dict[str, float]:
    found = {name: float(match[1]) for name, pattern in _LATENCY.items() if (match := pattern.search(text))}
    bins = {float(value): int(number) for value, number in _BIN.findall(text)}
    if not any(bins.values()) or set(found) != set(_LATENCY):
        return {}
    return latency.of_bins(bins, found["mean"], found["max"])
