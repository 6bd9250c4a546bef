"""Runs in a store, as the tests of stores need them."""

from __future__ import annotations

from pathlib import Path

from ztune.store import environment
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study, generic


def study() -> Study:
    return generic.build({"data", "wal"})


def new_run(store: Store, **fields: object) -> Run:
    values: dict[str, object] = {
        "kind": "screen",
        "study": study(),
        "trace_path": Path("/t.trace"),
        "trace_sha": "ab" * 32,
        "environment": environment.collect(),
        "versions": {"ztune": "0.1.0", "engine": "1", "openzfs": "2.3.2"},
        "seed": 5,
        "warnings": ["events were lost"],
        **fields,
    }
    return store.create_run(**values)  # type: ignore[arg-type]
