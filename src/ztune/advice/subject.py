"""What a recommendation is about: the run, and what it was made with."""

from __future__ import annotations

from collections.abc import Mapping

from ztune.advice.model import Subject
from ztune.store.records import Run
from ztune.study import Layout


def subject(
    run: Run,
    layout: Layout,
    workload: str | None,
    *,
    openzfs: str,
    engine: str = "",
    trace_s: float | None = None,
) -> Subject:
    """Return the subject of advice from ``run`` that chose ``layout``.

    ``engine``: of the replays, empty for measured runs; ``trace_s``: seconds that were recorded.
    """
    known = run.study.get("profiles")
    known = known if isinstance(known, Mapping) else {}
    profiles = {}
    for name in layout.profiles():
        entry = known.get(name)
        profiles[name] = str(entry.get("description", "")) if isinstance(entry, Mapping) else ""
    return Subject(
        run=run.id,
        kind=run.kind,
        name=run.name,
        created=run.created,
        study=str(run.study.get("name", run.name)),
        workload=workload,
        trace=run.trace_path,
        trace_s=trace_s,
        engine=engine,
        openzfs=openzfs,
        seed=run.seed,
        environment=run.environment,
        versions=run.versions,
        command=run.command,
        profiles=profiles,
    )
