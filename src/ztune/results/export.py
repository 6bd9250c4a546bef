"""From stored runs to rows that may leave this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ztune.analysis.basis import basis
from ztune.analysis.metrics import operations, table
from ztune.databases import database
from ztune.errors import InputError
from ztune.places.rack import KIND as FLEET
from ztune.results import private
from ztune.results.row import PLACES, ResultRow, RowMetric
from ztune.runs.space import describe
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout
from ztune.study.durability import judge
from ztune.trace.reader import Trace
from ztune.trace.roles import databases_in


def rows(store: Store, runs: Sequence[Run]) -> list[ResultRow]:
    """Return a row for each trial of ``runs`` that ended, in the order of runs and trials; none for trials
    under other conditions than their run's.

    Raises ReadOnlyError where the store has no id yet and can't be written.
    """
    store.origin()  # raises
    # What a layout does under other conditions than its run's is no result of that run.
    return [row for run in runs for row in _of(run, [t for t in store.trials(run.id) if not t.condition])]


@dataclass(frozen=True)
class _Job:
    """What a run is about, as far as that is known and may be said."""

    database: str = ""
    version: str = ""
    workload: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


def _of(run: Run, trials: Sequence[Trial]) -> Iterator[ResultRow]:
    names = private.profile_names(run.resolved_study.profiles)
    shared = _shared(run)
    base = private.layout(run.resolved_study.layout, names, shared["workload"])
    order = list(dict.fromkeys(t.layout_hash for t in trials))
    # All of a run or none: a total and one of an operation under one name could not be compared.
    each = all(t.trace_sha and operations(t.result or {}) for t in trials if t.ok)
    for trial in trials:
        if trial.status not in ("ok", "failed"):
            continue
        layout = private.layout(trial.layout, names, shared["workload"])
        disks, device = _disks(run, trial.layout, layout)
        yield ResultRow(
            **shared,
            **_machine(run, trial),
            origin=run.origin,
            run=run.id,
            trial=trial.number,
            started=trial.started or run.created,
            status=trial.status,
            disks=disks,
            device=device,
            arc=layout.arc,
            layout=1 + order.index(trial.layout_hash),
            block=trial.block,
            twin=trial.twin,
            baseline=trial.is_baseline,
            changes=describe(base, layout),
            settings=dict(layout.settings()),
            layout_hash=layout.hash,
            durability=judge(trial.layout).klass.value,
            metrics=_metrics(run, trial, each),
        )


def _shared(run: Run) -> dict[str, Any]:
    """Return the columns that all trials of a run have in common."""
    job = _job(run)
    place = str(run.target.get("kind", "")) if run.measured else "replay"
    if place == FLEET:
        place = "ssh"  # several of them
    versions = run.versions
    return {
        "run_basis": basis(run),
        "place": place if place in PLACES else "local",
        "database": job.database,
        "database_version": job.version,
        "workload": job.workload,
        "parameters": job.parameters,
        "openzfs": private.version(versions.get("openzfs")),
        "ztune": private.version(versions.get("ztune", run.environment.get("ztune"))),
        "engine": private.engine(versions.get("engine") or versions.get("ztune-mount")),
        "seed": run.seed,
    }


def _machine(run: Run, trial: Trial) -> dict[str, Any]:
    """Return the columns that say on which machine a trial ran: its place's, or that of its host; a replay's
    is this one.
    """
    there = run.environment.get("target") if run.measured else None
    where = there if isinstance(there, dict) else run.environment
    for row in run.target.get("hosts", ()):
        name, _, since = trial.host.partition(" (kernel ")
        if row["name"] == name:
            # What a host has been since it came back with another kernel is in its name.
            where = {**row, "kernel": since.removesuffix(")") or row.get("kernel")}
    return {
        "kernel": private.kernel(where.get("kernel")),
        "machine": private.machine(where.get("machine")),
        "cpu": private.cpu(where.get("cpu")),
        "cpus": private.count(where.get("cpus")),
        "memory": private.count(where.get("memory_bytes", where.get("memory"))),
    }


def _job(run: Run) -> _Job:
    if run.job:
        return _named(run.job.get("workload"), run.job.get("params"), run.job.get("version"))
    try:
        manifest = Trace.reopen(run.trace_path, run.trace_sha).manifest
    except InputError:
        return _named(run.study.get("workload"), run.study.get("parameters"), "")
    if manifest.workload is not None:
        return _named(manifest.workload.name, manifest.workload.parameters, manifest.workload.version)
    # A live database: nobody says which it is, but its files do.
    found = databases_in(manifest)
    ours = [one.name for one in found if one.own]
    return _Job(database=ours[0] if len(ours) == 1 else "")


def _named(name: object, params: object, version: object) -> _Job:
    workload = private.workload(name)
    theirs = database.of_workload(workload)
    if theirs is None:
        return _Job()
    given = private.parameters(workload, params if isinstance(params, dict) else {})
    if workload == "command":  # of which database, and of which version of it, is the user's to know
        return _Job(workload=workload, parameters=given)
    return _Job(theirs.name, private.version(version), workload, given)


def _disks(run: Run, layout: Layout, shown: Layout) -> tuple[str, str]:
    """Return the disks that were modelled or served, by pool, and the class of the data disks."""
    if run.measured and run.target.get("kind") not in ("mount", "lab"):
        return "", ""
    if run.target.get("kind") == "mount" and run.target.get("disks") == "instant":
        return "instant", ""
    used = {pool.name for pool in shown.used_pools()}
    texts = []
    for pool in shown.used_pools():
        parts = [pool.vdev_text("data")]
        parts += [f"{c} {pool.vdev_text(c)}" for c in ("log", "cache", "special") if pool.of_class(c)]
        texts.append(", ".join(parts))
    profiles = run.resolved_study.profiles
    kinds = {
        profiles[vdev.profile].kind
        for pool, named in zip(layout.pools, shown.pools, strict=True)
        if named.name in used
        for vdev in pool.of_class("data")
        if vdev.profile in profiles
    }
    return " | ".join(texts), "+".join(sorted(kinds))


def _metrics(run: Run, trial: Trial, each: bool) -> tuple[RowMetric, ...]:
    """Return what is known of a trial that succeeded; ``each``: totals of a replay for one operation."""
    if not trial.ok:
        return ()
    whole = basis(run)
    found = []
    for metric in table(whole, each).values():
        value = metric.read(trial.result or {})
        if value is not None:
            # Under emulation counts are real, seconds are not.
            rests = "measured" if whole == "emulated" and not metric.clock else whole
            found.append(
                RowMetric(name=metric.key, value=value, unit=metric.unit, basis=rests, meaning=metric.label)
            )
    return tuple(found)
