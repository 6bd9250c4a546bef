"""Whether runs can be judged together, and the base layout that they have together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ztune.advice.job import workload_of
from ztune.advice.model import Recommendation
from ztune.analysis import units
from ztune.analysis.joint import JobField, setting
from ztune.analysis.standing import Standing
from ztune.databases.database import of_workload
from ztune.errors import InputError
from ztune.onhost.words import ROLES
from ztune.store.records import Run, Trial
from ztune.study import Layout, Objective
from ztune.study.layout import parse_layout, with_settings
from ztune.trace.manifest import Manifest
from ztune.units import listed

if TYPE_CHECKING:
    from ztune.trace.witness import Witness


@dataclass(frozen=True)
class WeighedRun:
    """One job's run and what is known of it. ``alone``: its own recommendation, under ``objective``.

    ``weight``: the job's share, in any unit; with ``per_day`` how many times a day the recorded job runs.
    ``measured_by``: of a screening, the run that measured its layouts since; "" without one.
    """

    run: Run
    trials: Sequence[Trial]
    alone: Recommendation
    weight: float = 1.0
    per_day: bool = False
    objective: Objective | None = None
    manifest: Manifest | None = None
    witness: Witness | None = None
    measured_by: str = ""

    @property
    def workload(self) -> str | None:
        """The workload that was recorded or run, if it has a name."""
        return workload_of(self.run, self.manifest)


def openzfs_of(run: Run, now: Standing) -> str:
    """Return the OpenZFS version of a run's results."""
    return now.found.openzfs or run.versions.get("openzfs", "")


def check_same(jobs: Sequence[WeighedRun], nows: Sequence[Standing]) -> None:
    """Raise InputError unless the runs can be judged together."""
    ids = [job.run.id for job in jobs]
    twice = next((run for run in ids if ids.count(run) > 1), None)
    if twice is not None:
        raise InputError(f"run {twice} is named twice; name each job's run once")
    for job, now in zip(jobs, nows, strict=True):
        a, b = jobs[0].run, job.run
        if now.baseline is None or now.chosen is None:
            raise InputError(
                f"run {b.id} has no result of its base layout, which each job's ratios are to; "
                "screen it again, or leave the run out"
            )
        if now.basis != nows[0].basis:
            raise InputError(
                f"run {a.id} is {nows[0].basis} and run {b.id} {now.basis}, which are never mixed; name "
                "screenings alone, or runs of `ztune run` alone"
            )
        versions = [openzfs_of(r, n) for r, n in ((a, nows[0]), (b, now))]
        if versions[0] != versions[1]:
            raise InputError(
                f"run {a.id} is of OpenZFS {versions[0] or '?'} and run {b.id} of {versions[1] or '?'}; "
                "run one of them again on the other's version"
            )
        places = [(r.target.get("kind"), r.target.get("name")) for r in (a, b)]
        if a.measured and places[0] != places[1]:
            raise InputError(
                f"run {a.id} was measured on {places[0][1]} and run {b.id} on {places[1][1]}, so on other "
                "disks; measure both in one place"
            )
        owners = [of_workload(j.workload or "") for j in (jobs[0], job)]
        if owners[0] is not None and owners[1] is not None and owners[0].name != owners[1].name:
            raise InputError(
                f"run {a.id} is of {owners[0].name} and run {b.id} of {owners[1].name}; one layout is "
                "recommended for the jobs of one database"
            )
    for (i, one), (k, other) in combinations(enumerate(nows), 2):
        _check_ground(jobs[i].run, jobs[k].run, one.found.base_layout, other.found.base_layout)


def _check_ground(a: Run, b: Run, one: Layout | None, other: Layout | None) -> None:
    """Raise InputError unless the base layouts of two runs stand on the same disks with the same ARC."""
    assert one is not None and other is not None  # each has a result of its base layout
    if one.arc != other.arc:
        raise InputError(
            f"run {a.id} has an ARC of {units.amount(one.arc)} and run {b.id} of {units.amount(other.arc)}, "
            "on which the worth of a layout depends; screen one of them again with the other's --arc"
        )
    if one.pools[0].name != other.pools[0].name:
        raise InputError(
            f"run {a.id} has its roles on pool {one.pools[0].name} and run {b.id} on {other.pools[0].name}; "
            "screen both with the same pools"
        )
    for role in ROLES:
        here, there = one.dataset_of(role), other.dataset_of(role)
        if here is not None and there is not None and here.pool != there.pool:
            raise InputError(
                f"role {role} is on pool {here.pool} in run {a.id} and on {there.pool} in run {b.id}; "
                "screen both with the same pools"
            )
    for pool in one.pools:
        same = next((p for p in other.pools if p.name == pool.name), None)
        if same is None:
            continue
        disks = [f"{p.vdev_text('data')} (ashift {p.ashift}, {p.filesystem})" for p in (pool, same)]
        if disks[0] != disks[1]:
            raise InputError(
                f"run {a.id} has {disks[0]} in pool {pool.name} and run {b.id} {disks[1]}; "
                "screen both on the same disks"
            )
    mine, theirs = (_profiles(r) for r in (a, b))
    for name in sorted({*one.profiles()} & {*other.profiles()}):
        if mine.get(name) != theirs.get(name):
            raise InputError(
                f'runs {a.id} and {b.id} mean different disks by the profile "{name}"; screen one of them '
                "again with the other's profile"
            )


def _profiles(run: Run) -> Mapping[str, Any]:
    found = run.study.get("profiles")
    return found if isinstance(found, Mapping) else {}


def joint_base(ids: Sequence[str], layouts: Sequence[Layout | None]) -> tuple[Layout, list[str]]:
    """Return the base layouts of all runs as one, and what had to be decided for it, as sentences.

    A role that has a dataset of its own in any of the runs has one here.
    """
    bases = [layout for layout in layouts if layout is not None]
    own = {d.key for base in bases for d in base.datasets}
    raw: dict[str, Any] = bases[0].to_json()
    raw.update(name="base", description="", pool=[], dataset=[])
    raw["direct"] = sorted({role for base in bases for role in base.direct})
    notes, placed, names, pools = [], set[str](), set[str](), set[str]()
    for run, base in zip(ids, bases, strict=True):
        told = base.to_json()
        raw["pool"] += [p for p in told["pool"] if p["name"] not in pools]
        pools |= {p["name"] for p in told["pool"]}
        for name in ("tunables", "database"):
            raw[name] = {**told[name], **raw[name]}
        for dataset, table in zip(base.datasets, told["dataset"], strict=True):
            apart = [r for r in dataset.roles[1:] if r in own]
            if apart:
                verb = "lives" if len(apart) == 1 else "live"
                notes.append(
                    f"In run {run} {listed(apart)} {verb} with {dataset.key} on one dataset: "
                    f"it says nothing of what suits {apart[0]} alone."
                )
            if dataset.key in placed:
                continue
            roles = [dataset.key, *(r for r in dataset.roles[1:] if r not in own | placed)]
            name = dataset.name if dataset.name not in names else f"{dataset.pool}/{dataset.key}"
            raw["dataset"].append({**table, "name": name, "roles": roles})
            placed |= set(roles)
            names.add(name)
    # What is missing is a companion whose host was placed by an earlier run.
    for base in bases:
        for dataset in base.datasets:
            late = [r for r in dataset.roles if r not in placed]
            host = next(d for d in raw["dataset"] if dataset.key in d["roles"])
            host["roles"] = [*host["roles"], *late]
            placed |= set(late)
    return parse_layout(raw), notes


def in_common(ids: Sequence[str], fields: Sequence[JobField], base: Layout) -> Layout:
    """Return ``base`` with values that every run can tell of. Raises InputError where there is none."""
    settings, changes = base.settings(), {}
    for factor in dict.fromkeys(f for field in fields for f in field.values):
        asked = [(run, field) for run, field in zip(ids, fields, strict=True) if field.asks(factor)]
        offered = dict.fromkeys(
            [setting(settings, factor), *(v for _, field in asked for v in field.values.get(factor, ()))]
        )
        common = [v for v in offered if all(field.can(factor, v) for _, field in asked)]
        if not common:
            had = "; ".join(
                f"{run}: {', '.join(field.values.get(factor, [setting({}, factor)]))}" for run, field in asked
            )
            raise InputError(
                f"the runs have no value of {factor} in common ({had}), so no layout can be judged by all of "
                "them; screen one of them with a value of the other's"
            )
        if common[0] != setting(settings, factor):
            changes[factor] = common[0]
    return with_settings(base, changes, "base") if changes else base
