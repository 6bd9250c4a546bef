"""Runs the studies again by replay, and keeps which stored trial belongs to which of their layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune import files, output, paths
from ztune.claims import studies, thumb
from ztune.claims.replaying import LayoutAlone, Replays, data_bytes
from ztune.claims.studies import Kind, PublishedStudy, StudyLayout
from ztune.claims.thumb import RoleSizes
from ztune.errors import InputError
from ztune.onhost.fields import KeyedError, from_json, to_json
from ztune.store.db import now
from ztune.trace.reader import Trace


@dataclass(frozen=True)
class RecordedJob:
    """A job that was recorded for a study. ``data``: bytes of its data in the end; ``seconds``: recorded."""

    sha: str
    workload: str
    version: str
    parameters: Mapping[str, Any]
    seconds: float
    data: int
    sizes: Mapping[str, RoleSizes]


@dataclass(frozen=True)
class StudyTrial:
    """The trial of one layout, as RUN/N; "" where there is none, and ``why``. ``job``: its recording."""

    name: str
    kind: Kind
    trial: str
    why: str
    job: str


@dataclass(frozen=True)
class StudyTrials:
    """The trials of one study, as they were kept when it last ran."""

    study: str
    when: str
    engine: str
    openzfs: str
    jobs: tuple[RecordedJob, ...]
    trials: tuple[StudyTrial, ...]

    @property
    def done(self) -> int:
        """How many layouts have a trial."""
        return sum(bool(each.trial) for each in self.trials)


def run(study: PublishedStudy, replays: Replays) -> StudyTrials:
    """Record the jobs of ``study``, replay each of its layouts and the record sizes of each job.

    What is stored already is not replayed again. Which trial is whose is kept also when it is interrupted.
    Raises MissingError where the engine is not right.
    """
    wanted = _prepared(study, study.layouts, replays)
    traces = {each.trace.sha: each.trace for _, each in wanted if each.trace is not None}
    sizes = {sha: thumb.role_sizes(trace) for sha, trace in traces.items()}
    of_layout = {layout.name: each for layout, each in wanted}
    for first in studies.jobs(study).values():
        trace = of_layout[first.name].trace
        role = None if trace is None else thumb.swept_role(sizes[trace.sha])
        if role is not None:
            wanted += _prepared(study, studies.sweep(first, role), replays)
    try:
        replays.replay(each for _, each in wanted)
    finally:
        found = replays.trials_of([each for _, each in wanted])
        kept = StudyTrials(
            study.name,
            now(),
            replays.engine.version,
            replays.engine.openzfs,
            tuple(_job(trace, sizes[sha]) for sha, trace in traces.items()),
            tuple(
                StudyTrial(layout.name, layout.kind, trial, why, "" if each.trace is None else each.trace.sha)
                for (layout, each), (trial, why) in zip(wanted, found, strict=True)
            ),
        )
        if traces:  # else nothing could be recorded, and what was kept before stays
            _keep(kept)
    return kept


def _prepared(
    study: PublishedStudy, layouts: Sequence[StudyLayout], replays: Replays
) -> list[tuple[StudyLayout, LayoutAlone]]:
    by_name = {each.name: each for each in layouts}
    return [
        (by_name[side.name], replays.alone(claim, side))
        for claim in studies.as_claims(study, layouts)
        for side in claim.layouts
    ]


def _job(trace: Trace, sizes: Mapping[str, RoleSizes]) -> RecordedJob:
    info, manifest = trace.manifest.workload, trace.manifest
    return RecordedJob(
        sha=trace.sha,
        workload="" if info is None else info.name,
        version="" if info is None else info.version,
        parameters={} if info is None else dict(info.parameters),
        seconds=manifest.duration_ns / 1e9,
        data=data_bytes(trace),
        sizes=sizes,
    )


def _keep(kept: StudyTrials) -> None:
    path = _path(kept.study)
    paths.private(path.parent)
    files.write(path, output.json_text(to_json(kept)) + "\n")


def last(name: str) -> StudyTrials | None:
    """Return what was kept of the study ``name``; None where it never ran. Raises InputError for a file that
    is not one of ours."""
    path = _path(name)
    if not path.is_file():
        return None
    try:
        return from_json(StudyTrials, json.loads(path.read_text()))
    except (ValueError, KeyedError) as error:
        raise InputError(
            f"{path} can't be read: {error}; `ztune studies run {name}` makes it anew from what is stored"
        ) from None


def _path(name: str) -> Path:
    return paths.folder("study-trials") / f"{name}.json"
