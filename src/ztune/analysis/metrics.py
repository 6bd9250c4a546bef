"""What is compared: names, units, and where each number stands in the engine's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ztune.errors import InputError
from ztune.onhost.words import OBJECTIVES


@dataclass(frozen=True)
class Metric:
    """One number of a trial. Less is better for all but the compression ratio."""

    key: str
    label: str  # as a column head or in a sentence
    unit: str  # see units.show
    path: tuple[str, ...]  # into Trial.measure


def _objective(key: str, label: str) -> Metric:
    path, unit = OBJECTIVES[key]
    return Metric(key, label, unit, path)


# What an objective may minimise, and what besides is shown.
METRICS: dict[str, Metric] = {
    m.key: m
    for m in (
        _objective("modelled_s", "modelled time"),
        _objective("allocated", "space"),
        _objective("written", "bytes written"),
        _objective("read", "bytes read"),
        _objective("write_ops", "write operations"),
        _objective("read_ops", "read operations"),
        _objective("flushes", "cache flushes"),
        Metric("rmw_reads", "read-modify-write reads", "count", ("rmw_reads",)),
        Metric("write_amplification", "bytes written per byte asked", "ratio", ("write_amplification",)),
        Metric("zil_bytes", "bytes written by the ZIL", "bytes", ("by_cause", "zil", "write_bytes")),
        _objective("sync_p50", "modelled sync latency, median"),
        _objective("sync_p99", "modelled sync latency, p99"),
        _objective("read_p99", "modelled read latency, p99"),
        _objective("busy_s", "busiest device, modelled"),
        Metric("wait_s", "longest thread's waits, modelled", "s", ("model", "thread_wait_s_max")),
        Metric("cpu_s", "processor time of the replay", "s", ("cpu_s",)),
        Metric("compression_ratio", "compression ratio", "ratio", ("space", "compression_ratio")),
    )
}

ALIASES = {"time": "modelled_s", "space": "allocated", "wear": "written"}

# The three that an effect, a pair and the trade-off plot always show.
MAIN = ("modelled_s", "allocated", "written")
# Ratios that an effect lists besides, since counts explain the times.
EXPLAIN = ("read_ops", "write_ops", "read", "flushes", "rmw_reads", "sync_p99")


def resolve(name: str) -> str:
    """Return the objective's metric that ``name`` means ("time" → "modelled_s"); or raise InputError."""
    key = ALIASES.get(name.strip(), name.strip())
    if key not in OBJECTIVES:
        raise InputError(f'"{name}" can\'t be minimised; use one of {", ".join([*ALIASES, *OBJECTIVES])}')
    return key


def extract(measure: Mapping[str, Any], key: str) -> float | None:
    """Return the metric ``key`` of one trial's measure in the metric's unit, or None where it is absent."""
    return number_at(measure, *METRICS[key].path)


def number_at(values: Mapping[str, Any], *path: str) -> float | None:
    """Return the number at ``path`` in nested mappings, None where there is no number."""
    node: Any = values
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    if isinstance(node, bool) or not isinstance(node, int | float) or node != node:
        return None
    return float(node)
