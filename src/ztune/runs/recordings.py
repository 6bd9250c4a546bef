"""Recordings of jobs, kept by what they are of: the same job with the same settings is recorded once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ztune import paths
from ztune.databases import registry
from ztune.databases.workload import JobWorkload, Workload
from ztune.errors import InputError
from ztune.trace.reader import Trace

Record = Callable[[Workload, Path], Trace]
"""Runs a workload, and records it into a folder."""


def kept(
    name: str, parameters: Mapping[str, Any], settings: Mapping[str, str], prefix: str
) -> tuple[Workload, Path]:
    """Return the workload ``name`` with ``parameters`` and ``settings`` of its database, and the folder of
    its recording, which may not be there yet; folders' names begin with ``prefix``.

    Raises InputError where the workload refuses them, MissingError where it can't run here.
    """
    kind = registry.get(name)
    if issubclass(kind, JobWorkload):
        workload: Workload = kind(parameters, database=settings)
    elif settings:
        raise InputError(f"workload {name} takes no settings of its database from a layout")
    else:
        workload = registry.make(name, parameters)
    # With the database's version: another one does other I/O.
    text = json.dumps([workload.info(), dict(settings)], sort_keys=True)
    sha = hashlib.sha256(text.encode()).hexdigest()
    return workload, paths.traces() / f"{prefix}-{name}-{sha[:12]}.trace"


def recorded(
    name: str, parameters: Mapping[str, Any], settings: Mapping[str, str], prefix: str, record: Record
) -> Trace:
    """Return the recording that ``kept`` means, made now where it is not there. Raises ZtuneError."""
    workload, path = kept(name, parameters, settings, prefix)
    return Trace.open(path) if path.exists() else record(workload, path)
