"""What job a run is of, and so how its layouts can be measured."""

from __future__ import annotations

import contextlib
import tomllib
from pathlib import Path

from ztune.store.records import Run
from ztune.study import generic
from ztune.trace.manifest import Manifest

FROM = "`ztune run --from`"
AS_WORKLOAD = "a run of your database as a workload (`ztune list workloads command`)"


def workload_of(run: Run, manifest: Manifest | None) -> str | None:
    """Return the name of the workload that was recorded or run, None without one."""
    if manifest is not None and manifest.workload is not None:
        return manifest.workload.name
    name = run.job.get("workload") or run.study.get("workload")
    return name if isinstance(name, str) else None


def title(run: Run, manifest: Manifest | None) -> str:
    """Return what people call the job of ``run``: its workload, or what the file of commands calls a database
    of one's own; else the study, or of one that ztune made, the recording."""
    workload = workload_of(run, manifest)
    recorded = None if manifest is None else manifest.workload
    params = run.job.get("params") or ({} if recorded is None else recorded.parameters)
    if workload == "command" and isinstance(text := params.get("file_text"), str):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            return str(tomllib.loads(text).get("name") or workload)
    study = str(run.study.get("name", run.name))
    return workload or (Path(run.trace_path).stem if study == generic.NAME and run.trace_path else study)


def measured_by(run: Run, manifest: Manifest | None) -> str:
    """Return what measures the layouts of ``run``, as words: a recording alone can't be run again."""
    own = manifest is not None and manifest.workload is None
    return AS_WORKLOAD if own or workload_of(run, manifest) is None else FROM
