"""Made-up but coherent evidence: a PostgreSQL-like study, its layouts, and results from a toy cost formula.

The formula knows records, sectors, a log and a disk; it is no model of ZFS, and only good for testing what is
done with results. Numbers are deterministic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ztune.store.records import Run, Trial
from ztune.study import Layout, Objective, Study
from ztune.study.layout import parse_layout, with_settings
from ztune.trace.figures import GroupSummary, Latencies, Summary, Transfers
from ztune.trace.manifest import Manifest
from ztune.units import parse_size

PAGE = 8192
# For runs in which the log device of ``AXES`` counts as there.
WITH_LOG = {"have": {"slog": "nvme"}}
PROFILE_TEXT = {"hdd-7200": "7200 rpm disk", "nvme": "NVMe drive with power-loss protection"}


def base_layout(**changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "name": "base",
        "arc": "64M",
        "pool": [
            {
                "name": "tank",
                "ashift": 12,
                "vdev": [{"class": "data", "kind": "stripe", "profile": "hdd-7200"}],
            }
        ],
        "dataset": [
            {"name": "tank/data", "roles": ["data", "temp", "index"]},
            {"name": "tank/wal", "roles": ["wal"]},
        ],
    }
    return {**raw, **changes}


AXES: dict[str, list[str]] = {
    "data.recordsize": ["8K", "16K", "32K", "64K", "1M"],
    "data.compression": ["off", "zstd-3"],
    "data.logbias": ["throughput"],
    "data.primarycache": ["metadata"],
    "wal.recordsize": ["16K", "1M"],
    "wal.compression": ["off"],
    "slog": ["nvme"],
    "data.sync": ["disabled"],
}
CROSS: list[dict[str, str]] = [
    *(
        {"data.recordsize": r, "slog": "nvme", **({"data.compression": c} if c != "lz4" else {})}
        for r, c in itertools.product(["8K", "16K", "32K"], ["lz4", "zstd-3"])
    ),
    {"data.recordsize": "16K", "data.compression": "zstd-3"},
    {"data.recordsize": "16K", "slog": "nvme", "wal.recordsize": "1M"},
    {"data.sync": "disabled", "wal.sync": "disabled"},
    {"data.recordsize": "16K", "data.sync": "disabled", "wal.sync": "disabled"},
]


def name_of(changes: Mapping[str, str]) -> str:
    return ", ".join(f"{k}={v}" for k, v in changes.items()) or "base"


def layouts(
    axes: Mapping[str, Sequence[str]] = AXES, cross: Sequence[Mapping[str, str]] = CROSS
) -> list[Layout]:
    base = parse_layout(base_layout())
    out = [base]
    for key, values in axes.items():
        out += [with_settings(base, {key: v}, name_of({key: v})) for v in values]
    out += [with_settings(base, c, name_of(c)) for c in cross]
    return out


def toy_measure(layout: Layout, scale: float = 1.0) -> dict[str, Any]:
    """Return an engine-shaped measure for ``layout``."""
    data, wal = layout.dataset_of("data"), layout.dataset_of("wal")
    assert data is not None and wal is not None
    logical_writes, commits, reads, logical = 40_000, 20_000, 60_000, 1 << 30
    record = parse_size(data.properties["recordsize"])
    shrink = {"off": 1.0, "lz4": 2.0, "zstd-3": 2.7}[data.properties["compression"]]
    sector = 1 << layout.pools[0].ashift
    packed = -(-int(record / shrink) // sector) * sector
    blocks = logical // record
    allocated = blocks * (packed + 256)
    per_write = max(packed, sector) * (2 if record < PAGE else 1)
    cached = 0.15 if data.properties["primarycache"] == "all" else 0.0
    rmw = int(logical_writes * (1 - cached)) if record > PAGE else 0
    touched = min(logical_writes, blocks * 2)
    data_bytes = int(touched * per_write * 1.1)
    throughput = data.properties["logbias"] == "throughput"
    slog = layout.pools[0].vdev_text("log") != "none"
    disabled = wal.properties["sync"] == "disabled"
    zil_bytes = 0 if disabled else commits * 12_288
    wal_bytes = int(commits * 8192 * (0.6 if wal.properties["compression"] != "off" else 1))
    read_ops = rmw + int(reads * (1 - cached))
    seek = 0.008 + packed / 150e6
    busy = read_ops * seek / 8 + touched * 0.001 + (0 if slog or disabled else commits * 0.004)
    busy += 12 if throughput else 0
    written = data_bytes + zil_bytes + wal_bytes
    modelled = round(busy * scale, 4)
    sync_ms = 0.0 if disabled else (0.15 if slog else 8.5)
    return {
        "wall_s": 4.0,
        "cpu_s": 5.0,
        "txgs": 12,
        "logical": {
            "reads": reads,
            "read_bytes": reads * PAGE,
            "writes": 60_000,
            "write_bytes": 60_000 * PAGE,
            "syncs": commits,
        },
        "physical": {
            "reads": read_ops,
            "read_bytes": read_ops * packed,
            "writes": touched + commits,
            "write_bytes": written,
            "flushes": 0 if disabled else commits,
        },
        "by_vdev": [],
        "by_cause": {"zil": {"writes": commits, "write_bytes": zil_bytes}},
        "by_dataset": [
            {"name": data.name, "write_bytes": data_bytes},
            {"name": wal.name, "write_bytes": wal_bytes},
        ],
        "rmw_reads": rmw,
        "rmw_read_bytes": rmw * packed,
        "write_amplification": written / (60_000 * PAGE),
        "arc": {"demand_data_hits": 20_000, "demand_data_misses": read_ops},
        "l2arc": {"hits": 0, "misses": 0, "size_end": 0, "write_bytes": 0},
        "zil": {
            "commits": 0 if disabled else commits,
            "bytes": zil_bytes,
            "slog_bytes": zil_bytes if slog else 0,
        },
        "space": {
            "logical": logical,
            "allocated": allocated,
            "compression_ratio": record / packed,
            "datasets": [
                {
                    "name": data.name,
                    "logical": logical,
                    "allocated": allocated - (1 << 24),
                    "compressratio": record / packed,
                },
                {"name": wal.name, "logical": 1 << 25, "allocated": 1 << 24, "compressratio": 2.0},
            ],
        },
        "model": {
            "trace_s": 150.0,
            "modelled_s": modelled,
            "busy_s_max": modelled,
            "busy_vdev": "data-0/0",
            "thread_wait_s_max": modelled * 0.8,
            "sync_latency_ms": {
                "count": commits,
                "mean": sync_ms,
                "p50": sync_ms,
                "p90": sync_ms * 1.5,
                "p99": sync_ms * 3,
                "p999": sync_ms * 5,
                "max": sync_ms * 8,
            },
            "read_latency_ms": {
                "count": reads,
                "mean": 6.0,
                "p50": 6.0,
                "p90": 11.0,
                "p99": 15.0,
                "p999": 20.0,
                "max": 30.0,
            },
        },
    }


def trial(
    layout: Layout,
    number: int,
    measure: dict[str, Any] | None = None,
    status: str = "ok",
    error: str | None = None,
    engine: str = "0.1.0",
    baseline: bool = False,
    warnings: Sequence[str] = (),
) -> Trial:
    ok = status == "ok"
    return Trial(
        id=1000 + number,
        run_id="7f3k2a",
        number=number,
        round=1,
        layout_name=layout.name,
        layout_hash=layout.hash,
        layout=layout,
        target="replay",
        status=status,
        error=error,
        spec_json=None,
        result={"status": "ok", "measure": measure, "warnings": list(warnings)} if ok else None,
        engine_version=engine if ok else None,
        openzfs_version="2.3.2" if ok else None,
        started="2026-11-20T10:00:00Z",
        wall_s=4.2,
        is_baseline=baseline,
    )


def trials(
    of: Sequence[Layout] | None = None,
    measure: Callable[[Layout], dict[str, Any]] = toy_measure,
    fail: Sequence[str] = (),
) -> list[Trial]:
    out = []
    for number, layout in enumerate(of if of is not None else layouts(), start=1):
        if layout.name in fail:
            out.append(trial(layout, number, status="failed", error="the pool ran out of space"))
        else:
            out.append(trial(layout, number, measure(layout), baseline=number == 1))
    return out


def run(objective: Objective | None = None, **changes: Any) -> Run:
    goal = objective or Objective()
    study = Study.model_validate(
        {
            "name": "postgres-oltp",
            "workload": "postgres-oltp",
            "objective": goal.model_dump(mode="json"),
            "layout": base_layout(),
            "axes": AXES,
        }
    ).to_json()
    study["profiles"] = {n: {"name": n, "description": d} for n, d in PROFILE_TEXT.items()}
    fields: dict[str, Any] = {
        "id": "7f3k2a",
        "kind": "screen",
        "name": "postgres-oltp",
        "created": "2026-11-20T10:00:00Z",
        "status": "done",
        "pid": None,
        "study": study,
        "trace_path": "/srv/traces/oltp.trace",
        "trace_sha": "0" * 64,
        "environment": {"kernel": "6.18.0", "cpus": 2, "cpu_model": "Example CPU"},
        "versions": {"ztune": "0.1.0", "engine": "0.1.0", "openzfs": "2.3.2"},
        "seed": 1,
        "objective": goal,
        "command": ["ztune", "screen", "/srv/traces/oltp.trace"],
        "options": {},
        "warnings": [],
        **changes,
    }
    return Run(**fields)


def manifest(**changes: Any) -> Manifest:
    raw: dict[str, Any] = {
        "ztune": "0.1.0",
        "created": "2026-11-20T09:59:00Z",
        "duration_ns": 150_000_000_000,
        "recorder": {"name": "ebpf"},
        "events": 1,
        "workload": {
            "name": "postgres-oltp",
            "parameters": {"scale": 60},
            "result": {"operations": 20_000, "unit": "transaction"},
            "version": "PostgreSQL 15.9",
        },
        "files": [{"id": 0, "path": "/srv/pg/base/5/16384", "role": "data", "size_start": 1 << 30}],
        "page_size": {"data": PAGE},
        "parquet": {"events.parquet": {"rows": 1, "bytes": 100, "sha256": "0" * 64}},
        **changes,
    }
    return Manifest.model_validate(raw)


def summary(of: Manifest | None = None) -> Summary:
    """Return what a trace of this workload would show; sizes as PostgreSQL writes them."""
    latencies = Latencies(20_000, 9.1, 8.4, 12.0, 25.0, 80.0)

    def transfers(sizes: dict[int, int], sequential: float) -> Transfers:
        moved = sum(size * count for size, count in sizes.items())
        return Transfers(
            count=sum(sizes.values()),
            bytes=moved,
            sizes=sizes,
            size_bytes={size: size * count for size, count in sizes.items()},
            sequential=sequential,
            aligned={512: 1.0, 4096: 0.99, 8192: 0.98},
            pages=9_000,
            mean=moved / max(1, sum(sizes.values())),
            stdev=0.0,
            by_call={},
        )

    none = transfers({}, 0.0)
    data = GroupSummary(
        "data",
        "data",
        42,
        1 << 30,
        (1 << 30) + (1 << 26),
        transfers({8192: 61_234, 16384: 120}, 0.08),
        transfers({8192: 39_800, 16384: 90, 65536: 12, 131072: 4}, 0.11),
        84,
        latencies,
        2_400,
        2_400 * PAGE,
        38_000 * PAGE,
        30_000,
        PAGE,
        {"write": 39_906, "read": 61_354, "fsync": 84},
        {8192: 30, 65536: 10, 1 << 28: 2},
        {8192: 30 * 8192, 65536: 10 << 16, 1 << 28: 1 << 30},
    )
    wal = GroupSummary(
        "wal",
        "wal",
        9,
        1 << 27,
        1 << 27,
        none,
        transfers({8192: 17_500, 16384: 2_100, 32768: 380, 65536: 40}, 0.93),
        20_010,
        latencies,
        20_020,
        1 << 28,
        1 << 27,
        32_768,
        None,
        {"write": 20_020, "fdatasync": 20_010},
        {1 << 24: 8},
        {1 << 24: 1 << 27},
    )
    return Summary("oltp", of or manifest(), [data, wal], [], 1.0, {}, 0)
