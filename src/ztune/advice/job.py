"""What job a run is of, and so how its layouts can be measured."""

from __future__ import annotations

from ztune.store.records import Run
from ztune.trace.manifest import Manifest

FROM = "`ztune run --from`"
AS_WORKLOAD = "a run of your database as a workload (`ztune list workloads command`)"


def workload_of(run: Run, manifest: Manifest | None) -> str | None:
    """Return the name of the workload that was recorded or run, None without one."""
    if manifest is not None and manifest.workload is not None:
        return manifest.workload.name
    name = run.job.get("workload") or run.study.get("workload")
    return name if isinstance(name, str) else None


def measured_by(run: Run, manifest: Manifest | None) -> str:
    """Return what measures the layouts of ``run``, as words: a recording alone can't be run again."""
    own = manifest is not None and manifest.workload is None
    return AS_WORKLOAD if own or workload_of(run, manifest) is None else FROM
