"""Stored runs to hand on, with a word that is private wherever somebody can name something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence as ev
import measured_trials as mt

from ztune.results import export
from ztune.results.row import ResultRow
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Layout, Study, profiles
from ztune.study.layout import parse_layout, with_settings

PRIVATE = "zebrafish"
"""Stands in every name, path and text of the runs made here."""


def _profiles() -> dict[str, Any]:
    own = profiles.find("nvme").model_dump(mode="json")
    return {PRIVATE: {**own, "name": PRIVATE, "description": PRIVATE, "source": PRIVATE}}


# What a layout changes of the files, and of the job.
CHANGES = {"wal.recordsize": "128K", "workload.clients": "4"}


def private_layout() -> Layout:
    """A layout whose every name is private."""
    return parse_layout(
        {
            "name": f"{PRIVATE} layout",
            "description": f"for {PRIVATE}",
            "arc": "128M",
            "pool": [
                {
                    "name": PRIVATE,
                    "vdev": [
                        {"profile": "hdd-7200", "disks": 2, "kind": "mirror"},
                        {"class": "log", "profile": PRIVATE},
                    ],
                }
            ],
            "dataset": [
                {"name": f"{PRIVATE}/{PRIVATE}-data", "roles": ["data", "index", "temp"]},
                {"name": f"{PRIVATE}/{PRIVATE}-wal", "roles": ["wal"], "recordsize": "16K"},
            ],
            "database": {
                "full_page_writes": "off",
                "archive_command": f"scp %p {PRIVATE}:/wal",
                "shared_buffers": "64M",
                f"{PRIVATE}.guc": "on",
                "cluster_name": PRIVATE,
            },
        }
    )


def private_study() -> Study:
    raw = {
        "name": PRIVATE,
        "description": PRIVATE,
        "workload": "postgres-oltp",
        "layout": private_layout().to_json(),
        "profiles": {**_profiles(), "hdd-7200": profiles.find("hdd-7200").model_dump(mode="json")},
    }
    return Study.model_validate(raw)


def replayed(layout: Layout, scale: float = 1.0) -> dict[str, Any]:
    """A replay's result, from the toy formula of ``evidence``."""
    return {
        "engine": {"version": "0.1.0+abcdef12", "openzfs": f"2.3.2-1-{PRIVATE}"},
        "status": "ok",
        "measure": ev.toy_measure(layout, scale),
        "warnings": [f"{PRIVATE} is slow"],
    }


def screened(store: Store) -> Run:
    """A screening with private names: the base layout, another, and one that failed."""
    study = private_study()
    base = study.layout
    run = store.create_run(
        kind="screen", study=study, trace_path=Path(f"/home/{PRIVATE}/{PRIVATE}.trace"), trace_sha="0" * 64,
        environment={"kernel": f"Linux 6.1.0-28-{PRIVATE}", "cpu": "A Processor 9000", "cpus": 8,
                     "memory_bytes": 32 << 30, "machine": "x86_64", "host": PRIVATE},
        versions={"ztune": "0.1.0", "engine": "0.1.0+abcdef12", "openzfs": f"2.3.2-1-{PRIVATE}"}, seed=3,
        name=PRIVATE, command=["ztune", "screen", f"/home/{PRIVATE}"], warnings=[PRIVATE],
        options={"host": PRIVATE},
    )  # fmt: skip
    for number, changes in enumerate(({}, {"data.recordsize": "16K"}, {"wal.recordsize": "1M"})):
        layout = replace(with_settings(base, changes), name=f"{PRIVATE} {number}") if changes else base
        trial = store.add_trial(run.id, layout, is_baseline=not changes)
        store.start_trial(trial.id, {"host": PRIVATE})
        if number == 2:
            store.finish_trial(trial.id, error=f"/home/{PRIVATE}: no such file", wall_s=1.0)
        else:
            store.finish_trial(trial.id, result=replayed(layout), wall_s=1.0)
    store.finish_run(run.id, "done")
    return store.run(run.id)


def measured(store: Store, **target: Any) -> Run:
    """A run of the real database, two layouts twice, over SSH unless ``target`` says otherwise."""
    study = private_study()
    run = store.create_run(
        kind="run", study=study,
        environment={"kernel": "Linux 5.0", "target": {
            "host": PRIVATE, "kernel": f"6.12.3-1-{PRIVATE}", "machine": "aarch64", "cpu": "Other 1",
            "cpus": 4, "memory": 8 << 30, "boot_id": PRIVATE, "tools": {"zfs": f"/opt/{PRIVATE}/zfs"}}},
        versions={"ztune": "0.1.0", "openzfs": f"2.2.7-1~{PRIVATE}", "kernel": PRIVATE,
                  "database": f"PostgreSQL 15.18 ({PRIVATE})"},
        seed=4, name=PRIVATE, command=["ztune", "run", PRIVATE],
        target={"name": f"ssh://{PRIVATE}@{PRIVATE}.example", "kind": "ssh", "accel": "none",
                "place": {"pool": f"tank/{PRIVATE}"}, **target},
        job={"workload": "postgres-oltp", "name": "postgres-oltp", "version": f"PostgreSQL 15.18 ({PRIVATE})",
             "params": {"scale": 25, "size": "400M", "full_page_writes": True, "content": "text",
                        "script": PRIVATE, "home": f"/home/{PRIVATE}"}},
    )  # fmt: skip
    layouts = (study.layout, with_settings(study.layout, CHANGES, PRIVATE))
    for block in (1, 2):
        for number, layout in enumerate(layouts):
            trial = store.add_trial(run.id, layout, target="ssh", is_baseline=number == 0, block=block)
            store.start_trial(trial.id, {})
            result = mt.result(seconds=0.01 * (1 + number) * block, written=20_000 / (1 + number))
            store.finish_trial(
                trial.id, result={**result, "warnings": [PRIVATE]}, wall_s=1.0, openzfs="2.2.7-1"
            )
    store.finish_run(run.id, "done")
    return store.run(run.id)


def exported(**target: Any) -> list[ResultRow]:
    """Both runs of a new store in ``ZTUNE_HOME``, as rows."""
    with Store.open() as store:
        return export.rows(store, [screened(store), measured(store, **target)])
