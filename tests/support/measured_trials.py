"""Builds measured runs for tests: results shaped like a trial's, from a few numbers per layout."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ztune.store.records import Run, Trial
from ztune.study import Layout, Objective, Study, generic
from ztune.study.layout import with_settings


def study() -> Study:
    return generic.build({"data", "wal"})


def layout(name: str, **changes: str) -> Layout:
    base = study().layout
    return (
        base
        if not changes
        else with_settings(base, {k.replace("__", "."): v for k, v in changes.items()}, name)
    )


def result(
    seconds: float = 0.01,
    written: float = 20_000,
    read: float = 4_000,
    ios: float = 3.0,
    space: float = 300e6,
    operations: int = 1000,
    zil: float = 8_000,
    latency: float | None = None,
    offered: float | None = None,
    cpu: float = 0.005,
) -> dict[str, Any]:
    """``seconds``, bytes ``written``, ``read`` and to the ``zil``, and disk operations ``ios`` per
    operation; ``latency`` in ms, ``offered`` operations per second; ``cpu``: seconds of processor, ZFS's
    included.
    """
    n = operations
    mean = seconds * 8000 if latency is None else latency
    return {
        "format": "ztune-result",
        "version": 1,
        "steps": {"prepare": 1.0, "load": 2.0, "settle": 1.0, "measure": seconds * n, "collect": 1.0},
        "job": {
            "seconds": seconds * n, "operations": n, "unit": "transaction", "per_second": 1 / seconds,
            "latency_ms": {"mean": mean, "p50": mean * 0.9, "p90": 1.0, "p99": mean * 4, "p999": 1.0},
            "offered_per_second": offered,
            "log": {"writes": 1.5 * n, "write_s": n * 3e-5, "syncs": 0.5 * n, "sync_s": n * 1e-3},
        },
        "measure": {
            "seconds": seconds * n, "operations": n,
            "physical": {"reads": ios * n / 3, "read_bytes": read * n, "writes": ios * n * 2 / 3,
                         "write_bytes": written * n, "flushes": n},
            "by_vdev": [{"class": "data", "path": "/dev/sda", "write_bytes": written * n * 0.9,
                         "busy_ms": 3 * n},
                        {"class": "log", "path": "/dev/sdb", "write_bytes": written * n * 0.1, "busy_ms": n}],
            "arc": {"hits": 900, "misses": 100},
            "zil": {"bytes": zil * n, "commits": n},
            "txgs": 6,
            "space": {"allocated": space, "compression_ratio": 1.5},
            "logical": {"read_bytes": 9_000 * n, "write_bytes": 11_000 * n},
            "cpu": {"user_s": 1.0, "system_s": 1.0, "zfs_threads_s": cpu * n - 2, "context_switches": 3000},
        },
        "warnings": [],
    }  # fmt: skip


def trials(
    layouts: Sequence[tuple[Layout, Mapping[str, float]]],
    blocks: int,
    *,
    spread: float = 0.02,
    drift: float = 0.1,
    seed: int = 1,
    twin: bool = False,
) -> list[Trial]:
    """Each layout once per block. ``spread``: noise of one trial; ``drift``: of a whole block (standard
    deviations).
    """
    dice = random.Random(seed)
    arms = [(lay, num, 0) for lay, num in layouts] + ([(*layouts[0], 1)] if twin else [])
    out: list[Trial] = []
    for block in range(1, blocks + 1):
        shared = 1 + dice.gauss(0, drift)
        for at, (chosen, numbers, copy) in enumerate(arms):
            noise: dict[str, Any] = {
                k: v if k == "offered" else v * abs(1 + dice.gauss(0, spread))
                for k, v in {"seconds": 0.01, **numbers}.items()
            }
            noise["seconds"] *= abs(shared)
            out.append(
                Trial(
                    id=len(out) + 1, run_id="abc234", number=len(out) + 1, round=1, layout_name=chosen.name,
                    layout_hash=chosen.hash, layout=chosen, target="lab", status="ok", error=None,
                    spec_json="{}", result=result(**noise), engine_version=None, openzfs_version="2.3.2",
                    started=None, wall_s=20.0, is_baseline=at == 0, block=block, twin=copy,
                )
            )  # fmt: skip
    return out


def run(**fields: Any) -> Run:
    values: dict[str, Any] = {
        "id": "abc234", "kind": "run", "name": "postgres-oltp", "created": "2026-01-01T00:00:00.000Z",
        "status": "done",
        "pid": None, "study": study().to_json(), "trace_path": "", "trace_sha": "",
        "environment": {"kernel": "Linux 6.1", "cpu": "a cpu", "target": {"cpus": 2, "memory": 2 << 30}},
        "versions": {"openzfs": "2.3.2-1", "kernel": "6.1.0", "database": "PostgreSQL 15.18"}, "seed": 7,
        "objective": Objective(), "command": ["ztune", "run", "postgres-oltp"],
        "options": {"blocks": [3, 8], "resolution": 0.02, "have": {"slog": "nvme"}}, "warnings": [],
        "target": {"name": "lab", "kind": "lab", "accel": "kvm"},
        "job": {"workload": "postgres-oltp", "name": "postgres-oltp", "params": {"seconds": 30, "rate": 0}},
    }  # fmt: skip
    return Run(**{**values, **fields})
