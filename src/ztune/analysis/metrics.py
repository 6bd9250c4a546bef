"""What is compared: names, units, and where each number stands in the engine's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ztune.errors import InputError
from ztune.study import METRICS as OBJECTIVES


@dataclass(frozen=True)
class Metric:
    """One number of a trial. Less is better for all but the compression ratio."""

    key: str
    label: str  # as a column head or in a sentence
    unit: str  # see units.show
    path: tuple[str, ...]  # into Trial.measure


# A superset of what an objective may minimise (ztune.study.METRICS; a test holds the two together).
METRICS: dict[str, Metric] = {
    m.key: m
    for m in (
        Metric("modelled_s", "modelled time", "s", ("model", "modelled_s")),
        Metric("allocated", "space", "bytes", ("space", "allocated")),
        Metric("written", "bytes written", "bytes", ("physical", "write_bytes")),
        Metric("read", "bytes read", "bytes", ("physical", "read_bytes")),
        Metric("write_ops", "write operations", "count", ("physical", "writes")),
        Metric("read_ops", "read operations", "count", ("physical", "reads")),
        Metric("flushes", "cache flushes", "count", ("physical", "flushes")),
        Metric("rmw_reads", "read-modify-write reads", "count", ("rmw_reads",)),
        Metric("write_amplification", "bytes written per byte asked", "ratio", ("write_amplification",)),
        Metric("zil_bytes", "bytes written by the ZIL", "bytes", ("by_cause", "zil", "write_bytes")),
        Metric("sync_p50", "modelled sync latency, median", "ms", ("model", "sync_latency_ms", "p50")),
        Metric("sync_p99", "modelled sync latency, p99", "ms", ("model", "sync_latency_ms", "p99")),
        Metric("read_p99", "modelled read latency, p99", "ms", ("model", "read_latency_ms", "p99")),
        Metric("busy_s", "busiest device, modelled", "s", ("model", "busy_s_max")),
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
