"""The report of an observation as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ztune.advice.findings import Finding, Undecided, unknown_roles
from ztune.analysis import units
from ztune.observe import histograms
from ztune.observe.model import Buckets, Group, Observation, Series
from ztune.report import charts, html, observed_sheets
from ztune.units import format_size

_MOST = 48  # lines drawn over time, at most
# What is drawn of each series; the rest is in the observation itself.
_DRAWN = {
    "cpu": ("user_share", "system_share", "iowait_share", "context_switches_per_s"),
    "run_queue": ("running_count", "io_some_stalled_share"),
    "memory": ("available_bytes", "dirty_bytes", "swap_used_bytes"),
    "disk": (
        "busy_share", "reads_per_s", "writes_per_s", "read_bytes_per_s", "write_bytes_per_s", "read_wait_s",
        "write_wait_s", "queue_count",
    ),
    "arc": ("size_bytes", "hits_per_s", "misses_per_s", "l2_hits_per_s"),
    "zil": ("commits_per_s", "pool_bytes_per_s", "log_device_bytes_per_s"),
    "dmu_tx": ("assigned_per_s", "dirty_delays_per_s"),
}  # fmt: skip


def render(seen: Observation, findings: Sequence[Finding], undecided: Sequence[Undecided]) -> str:
    """Return the report as the text of an HTML file. All text from outside is escaped."""
    return html.page(
        "observed.html.j2",
        version=seen.ztune,
        style=Markup(html.data("style.css")),  # ours, not escaped: it holds no text from outside
        script=Markup(html.data("script.js")),
        seen=seen,
        facts=_facts(seen),
        findings=findings,
        unknown=unknown_roles(seen),
        undecided=undecided,
        io=observed_sheets.io_sheets(seen),
        other=[s for s in (*observed_sheets.other_sheets(seen), observed_sheets.settings(seen)) if s.rows],
        groups=[_histograms(g) for g in (*seen.of_kind("role"), *seen.of_kind("device")) if _any(g)],
        pools=_pools(seen),
        files=[(f, plot) for f in seen.files if (plot := charts.file_sizes(f.sizes))],
        series=_series(seen),
    )


def _facts(seen: Observation) -> list[tuple[str, str]]:
    found = []
    if seen.seconds is not None:
        found.append((units.seconds(seen.seconds), "observed"))
    roles = seen.of_kind("role")
    for way, word in (("reads", "read"), ("writes", "written")):
        moved = sum(getattr(g, way).bytes or 0 for g in roles)
        if moved:
            found.append((units.amount(moved), word))
    syncs = sum(g.syncs.calls for g in roles)
    if syncs:
        found.append((units.count(syncs), "sync" if syncs == 1 else "syncs"))
    for kind, n in seen.context_switches.items():
        found.append((units.count(n), f"{kind} context switches"))
    if seen.cpu_seconds is not None:
        found.append((units.seconds(seen.cpu_seconds), "of processor"))
    if seen.own_cpu_seconds is not None:
        found.append((units.seconds(seen.own_cpu_seconds), "for observing"))
    return found


def _any(group: Group) -> bool:
    return bool(group.reads.calls or group.writes.calls or group.syncs.calls)


def _histograms(group: Group) -> dict[str, Any]:
    return {
        "group": group,
        "sizes": _rows({"read": group.reads.sizes, "write": group.writes.sizes}, format_size),
        "times": _rows(
            {"read": group.reads.latency, "write": group.writes.latency, "sync": group.syncs.latency},
            lambda low: units.seconds(low / 1e9),
        ),
    }


def _rows(columns: dict[str, Buckets], name: Any) -> dict[str, Any]:
    """Return a table of histograms side by side; widths are shares of the most in each."""
    kept = {key: buckets for key, buckets in columns.items() if any(buckets.values())}
    bounds = [low for low, _ in histograms.rows(histograms.added(kept.values()))]
    most = {key: max(buckets.values()) for key, buckets in kept.items()}
    return {
        "columns": list(kept),
        "cell": round(88 / max(1, len(kept)), 1),
        "rows": [
            {
                "name": name(low),
                "cells": [
                    {
                        "kind": key,
                        "count": n,
                        "width": round(n / most[key] * (60 if len(kept) < 3 else 45), 2),
                    }
                    for key, buckets in kept.items()
                    for n in (buckets.get(low, 0),)
                ],
            }
            for low in bounds
        ],
    }


def _pools(seen: Observation) -> list[dict[str, Any]]:
    found = []
    for pool in seen.zfs.pools if seen.zfs else ():
        sizes = _rows(dict(pool.request_sizes), format_size)
        times = _rows(dict(pool.latencies), lambda low: units.seconds(low / 1e9))
        if sizes["columns"] or times["columns"]:
            found.append({"name": pool.name, "sizes": sizes, "times": times})
    return found


def _series(seen: Observation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, series in seen.series.items():
        for column, values in series.columns.items():
            drawn = column in _DRAWN.get(name.partition(":")[0], ()) and max(values, default=0) > 0
            if drawn and len(found) < _MOST:
                found.append(
                    {
                        "name": name,
                        "column": column.rpartition("_")[0].replace("_", " "),
                        "mean": _amount(column, series.whole.get(column, sum(values) / len(values))),
                        "most": _amount(column, max(values)),
                        "plot": _line(series, values, f"{name} {column}"),
                    }
                )
    return found


def _amount(column: str, value: float) -> str:
    if column.endswith("_bytes"):
        return units.amount(value)
    if column.endswith("_share"):
        return units.show(value, "share")
    if column.endswith("_s") and not column.endswith("_per_s"):
        return units.seconds(value)
    if column.endswith("bytes_per_s"):
        return f"{units.amount(value)}/s"
    return f"{units.count(value)}/s" if column.endswith("_per_s") else f"{value:,.3g}"


def _line(series: Series, values: Sequence[float], label: str, wide: int = 360, tall: int = 48) -> Markup:
    """Return one column over time as a line, from 0 to its largest value."""
    last, most = max(series.t[-1], 1e-9), max(values)
    points = " ".join(
        f"{t / last * wide:.1f},{tall - 3 - v / most * (tall - 6):.1f}"
        for t, v in zip(series.t, values, strict=True)
    )
    return Markup(
        '<svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        '<line class="axis" x1="0" x2="{}" y1="{}" y2="{}"/><polyline class="series" points="{}"/></svg>'
    ).format(wide, tall, wide, tall, label, wide, tall - 3, tall - 3, points)
