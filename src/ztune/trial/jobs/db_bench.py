"""What RocksDB's ``db_bench`` is asked, and what its report says happened."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ztune.errors import ZtuneError

_DONE = re.compile(
    r"^(?P<name>\w+)\s*:\s+[\d.]+ micros/op \d+ ops/sec (?P<seconds>[\d.]+) seconds"
    r" (?P<operations>\d+) operations",
    re.MULTILINE,
)
_TICKER = re.compile(r"^(rocksdb\.[\w.\-]+) COUNT : (\d+)\s*$", re.MULTILINE)
_KIND = re.compile(r"^Microseconds per (\w+):$", re.MULTILINE)
_AVERAGE = re.compile(r"^Count: (\d+) Average: ([\d.]+)", re.MULTILINE)
_MOST = re.compile(r"^Min: \d+\s+Median: [\d.]+\s+Max: (\d+)", re.MULTILINE)
_BIN = re.compile(r"^[(\[]\s*(\d+),\s*(\d+) [\])]\s+(\d+)\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Times of one kind of operation, in µs: bins as (from, to, how many)."""

    kind: str
    count: int
    mean: float
    largest: int
    bins: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What ``db_bench`` says of its last benchmark."""

    name: str
    seconds: float
    operations: int
    histograms: tuple[Histogram, ...]
    counters: dict[str, int]
    """RocksDB's own statistics, such as ``rocksdb.number.keys.written``."""


def parse(text: str) -> Report:
    """Read the report of a run with ``--histogram --statistics``.

    Raises:
        ZtuneError: there is no result in it; the sentence ends with its last line.
    """
    found = list(_DONE.finditer(text))
    if not found:
        lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
        raise ZtuneError(f"db_bench reported no result; it ends: {lines[-1] if lines else '(nothing)'}")
    last = found[-1]
    rest = text[last.end() :]
    kinds = list(_KIND.finditer(rest))
    ends = [*(kind.start() for kind in kinds[1:]), len(rest)]
    histograms = []
    for kind, end in zip(kinds, ends, strict=True):
        part = rest[kind.end() : end]
        average, most = _AVERAGE.search(part), _MOST.search(part)
        if average is None or most is None:
            continue
        # RocksDB's statistics have tables of their own further down.
        table = part.partition("STATISTICS:")[0]
        bins = tuple((int(low), int(high), int(n)) for low, high, n in _BIN.findall(table))
        histograms.append(
            Histogram(
                kind[1],
                int(average[1]),
                float(average[2]),
                int(most[1]),
                bins[: _whole(bins, int(average[1]))],
            )
        )
    return Report(
        name=last["name"],
        seconds=float(last["seconds"]),
        operations=int(last["operations"]),
        histograms=tuple(histograms),
        counters={name: int(number) for name, number in _TICKER.findall(text)},
    )


def _whole(bins: Sequence[tuple[int, int, int]], count: int) -> int:
    """Return how many of ``bins`` make up ``count``: what follows belongs to another table."""
    seen = 0
    for index, (_, _, number) in enumerate(bins):
        seen += number
        if seen >= count:
            return index + 1
    return len(bins)


def latency_summary(histograms: Sequence[Histogram]) -> dict[str, float]:
    """Return mean, p50, p90, p99, p999 and max in ms over all ``histograms``; empty if nothing is in them.

    Within a bin times are taken as evenly spread, as RocksDB does for its own percentiles.
    """
    total = sum(one.count for one in histograms)
    if not total:
        return {}
    bins: dict[tuple[int, int], int] = {}
    for one in histograms:
        for low, high, number in one.bins:
            bins[low, high] = bins.get((low, high), 0) + number
    largest = max(one.largest for one in histograms)
    found: dict[str, Any] = {"mean": sum(one.mean * one.count for one in histograms) / total}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        left = share * sum(bins.values())
        for (low, high), number in sorted(bins.items()):
            if left <= number:
                found[name] = min(float(largest), low + (high - low) * left / number)
                break
            left -= number
    found["max"] = float(largest)
    return {name: round(us / 1000.0, 4) for name, us in found.items()}
