"""What a run is asked to do: which job, which layouts, how often, in which order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ztune.databases import registry
from ztune.databases.workload import JobWorkload, Workload
from ztune.errors import InputError
from ztune.onhost.fields import from_json, to_json
from ztune.onhost.jobs.beside import NAME as TWO_JOBS
from ztune.runs.recordings import with_parameters
from ztune.runs.space import aliases, changed, first_round, meaning
from ztune.store.records import Run, Trial
from ztune.study import Layout, Study


@dataclass(frozen=True)
class RunJob:
    """The job of a run, as a trial's spec wants it. ``modules``: to be sent along; ``version``: of the
    database; ``calibration``: how the rate was found, where ``busy`` asked for it. ``beside``: the workload
    of a second job at the same time, which ``params`` have then too (``onhost.jobs.beside``).
    """

    workload: str
    name: str
    params: Mapping[str, Any]
    modules: tuple[str, ...] = ()
    version: str = ""
    roles: tuple[str, ...] = ()
    calibration: Mapping[str, Any] = field(default_factory=dict)
    beside: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for the run's record."""
        return dict(to_json(self))

    def with_neighbour(self, other: RunJob) -> RunJob:
        """Return this job and ``other`` as one. Raises InputError where that can't be."""
        for one in (self, other):
            if one.params.get("busy"):
                raise InputError(
                    f"--with: {one.workload} has busy={one.params['busy']}; give it a rate instead"
                )
        parts = {
            part: {"name": one.name, "params": dict(one.params)}
            for part, one in (("first", self), ("neighbour", other))
        }
        versions = list(dict.fromkeys(filter(None, (self.version, other.version))))
        return replace(
            self,
            name=TWO_JOBS,
            params=parts,
            modules=tuple(dict.fromkeys((*self.modules, *other.modules))),
            version=", beside ".join(versions),
            beside=other.workload,
        )

    def under(self, layout: Layout, base: Layout) -> RunJob:
        """Return the job as ``layout`` has it; ``base``: the study's. Raises InputError for what its workload
        refuses.
        """
        if not layout.workload:
            return self
        given = with_parameters(self.workload, self.params, layout.workload, base.arc)
        return replace(workload_job(registry.make(self.workload, given)), version=self.version)

    @classmethod
    def of(cls, run: Run) -> RunJob:
        """Return the job of a stored run."""
        return from_json(cls, run.job)


def held(calibration: Mapping[str, Any]) -> str:
    """Return how busy a calibrated load kept the processors, and at which rate, as a sentence."""
    return (
        f"rate {calibration['rate']:g}/s kept {calibration['processors']:g} processors "
        f"{calibration['busy'] * 100:.0f} % busy with the base layout; "
        f"{calibration['asked'] * 100:.0f} % was asked for, "
        f"{calibration['idle'] * 100:.0f} % were taken without the load"
    )


def workload_job(workload: Workload) -> RunJob:
    """Return the job of a workload's instance. Raises InputError if it can only be recorded."""
    if not isinstance(workload, JobWorkload):
        raise InputError(f"workload {workload.name} can be recorded but not run in trials: it has no job")
    modules = tuple(workload.job_modules)
    name = str(workload.job_name())
    if ":" in name:
        modules = (name.partition(":")[0], *modules)
    return RunJob(
        workload=workload.name,
        name=name,
        params=workload.resolved(),
        modules=tuple(dict.fromkeys(modules)),
        roles=tuple(workload.job.roles()),
    )


def layouts(study: Study, names: Sequence[str] = ()) -> list[Layout]:
    """Return the baseline and the study's layouts, or those of them called so (by name, or beginning of
    hash).

    Raises InputError for a name that the study does not have.
    """
    every = first_round(study)
    if not names:
        return every
    return _with_base(study, [_named(every, name, f'study "{study.name}"', study) for name in names])


def chosen(run: Run, trials: Sequence[Trial], names: Sequence[str] = ()) -> list[Layout]:
    """Return the baseline of a screening run, and those of its layouts that are called so."""
    study = run.resolved_study
    return _with_base(
        study, [_named([t.layout for t in trials], name, f"run {run.id}", study) for name in names]
    )


def _with_base(study: Study, chosen: Sequence[Layout]) -> list[Layout]:
    out = {study.layout.hash: study.layout}
    for layout in chosen:
        out.setdefault(layout.hash, layout)
    return list(out.values())


def _named(every: Sequence[Layout], name: str, where: str, study: Study) -> Layout:
    """Return the one of ``every`` called ``name``, there or in the ``study``: what equals an axis' value has
    that for its name."""
    exact = [one for one in every if one.name == name]
    if not exact and (named := aliases(study).get(name)) is not None:
        exact = [one for one in every if meaning(one) == meaning(named)]
    found = exact or [one for one in every if len(name) >= 4 and one.hash.startswith(name)]
    if len({one.hash for one in found}) != 1:
        listed = ", ".join(f'"{one.name}"' for one in every[:8]) + (" …" if len(every) > 8 else "")
        what = "has no layout" if not found else "has several layouts"
        raise InputError(f'{where} {what} "{name}"; it has {listed}; the beginning of a hash will do too')
    return found[0]


def order(arms: Sequence[str], block: int, seed: int) -> list[str]:
    """Return ``arms``, the baseline first, in the random order of one block: the same for the same seed,
    another for each block.

    The first block begins with the baseline: without it a run that is cut early has nothing to compare with.
    """
    shuffled = sorted(arms)
    # Text seeds are hashed by their bytes: the order is the same in every Python.
    random.Random(f"{seed}:{block}").shuffle(shuffled)
    return sorted(shuffled, key=lambda arm: arm != arms[0]) if block == 1 else shuffled


def renamed(study: Study, found: Sequence[Layout]) -> list[Layout]:
    """Return layouts with names that differ, as a table needs them."""
    seen: dict[str, str] = {}
    out = []
    for layout in found:
        if seen.setdefault(layout.name, layout.hash) != layout.hash:
            layout = changed(study.layout, {}, layout.name) if layout.hash == study.layout.hash else layout
            layout = replace(layout, name=f"{layout.name} ({layout.hash[:4]})")
        out.append(layout)
    return out
