"""Workloads by name, as the tests that run their jobs need them."""

from __future__ import annotations

from collections.abc import Mapping

from ztune.databases import registry
from ztune.databases.workload import JobWorkload


def job_workload(name: str, params: Mapping[str, object] | None = None) -> JobWorkload:
    """Return the workload ``name`` with parameters; it is one that trials can run."""
    made = registry.get(name)(params or {})
    assert isinstance(made, JobWorkload)
    return made
