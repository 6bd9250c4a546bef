"""What the user asks for: the study that a word names, with what the command line changes in it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ztune.databases import database, memory, registry
from ztune.errors import InputError
from ztune.onhost.declared import KNOWN, Declared
from ztune.runs import from_trace, plan, recordings
from ztune.runs.follow import ScreenedPrior
from ztune.runs.named import meant
from ztune.runs.plan import RunJob, workload_job
from ztune.runs.screening import prior_of
from ztune.runs.space import layouts_of, unique
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Layout, Study, advised, generic, profiles, ready
from ztune.study.adjust import adjusted
from ztune.study.advised import StudyBeside
from ztune.study.durability import asks_direct
from ztune.study.hardware import check_have, parse_have
from ztune.study.layout import plain, with_settings
from ztune.trace.manifest import Manifest, WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.roles import database_in, databases_in


@dataclass(frozen=True)
class Asked:
    """A study that the user named, itself or by a workload. ``layout``: what stood behind a colon."""

    study: Study
    workload: str | None
    layout: str | None = None


def study_named(what: str, params: Mapping[str, str] | None = None) -> Asked:
    """Return the study that ``what`` means: by its file, as a ready study or by a workload's name, with
    ``:LAYOUT`` behind it if need be; ``params`` are the workload's.

    Raises InputError with one sentence, which says what ``what`` is instead.
    """
    with meant(what, "study"):
        return _study(what, params or {})


def _study(what: str, params: Mapping[str, str]) -> Asked:
    # Layouts' names have colons too, files may: the first one before which there is a study.
    for cut in [len(what), *(i for i, letter in enumerate(what) if letter == ":")]:
        name, layout = what[:cut], what[cut + 1 :] if cut < len(what) else None
        if ready.is_path(name) or name in ready.files():
            found = ready.find(name)
            return Asked(found, found.workload or (name if name in registry.names() else None), layout)
        if name in registry.names():
            return Asked(_own(name, params), name, layout)
    known = ", ".join(dict.fromkeys([*registry.names(), *ready.files()]))
    raise InputError(f'"{what}" is no study and no workload; name a TOML file, or one of {known}')


def _own(workload: str, params: Mapping[str, str]) -> Study:
    """Return the study of a workload for which there is no ready one: made from its roles."""
    job = getattr(registry.make(workload, params), "job", None)
    if job is None:
        raise InputError(f"workload {workload} can be recorded but has no job to run; name a study")
    return generic.build(set(job.roles()), groups=[("data", *registry.together(workload))])


def changed(
    study: Study,
    profile: str | None,
    arc: str | None,
    database: Mapping[str, str] | None = None,
    declared: Declared = KNOWN,
) -> Study:
    """Return ``study`` with what a command line changes. Raises InputError."""
    try:
        return adjusted(study, profile=profile, arc=arc, database=database or {}, declared=declared)
    except ValueError as error:
        raise InputError(f"--arc {arc}: {plain(error)}" if arc is not None else plain(error)) from None


def layout_of(what: str, name: str | None, profile: str | None, arc: str | None) -> tuple[Study, Layout]:
    """Return the study and the one layout that ``what`` means, or ``name`` beside it; else the baseline."""
    asked = study_named(what)
    if asked.layout is not None and name is not None:
        raise InputError(f'"{what}" names a layout, and so does --layout; one of them is enough')
    name = asked.layout if name is None else name
    study = changed(asked.study, profile, arc)
    return study, study.layout if name is None else plan.layouts(study, [name])[-1]


def study_for(trace: Trace, name: str | None, profile: str | None, arc: str | None) -> Study:
    """Return the study named, else the ready one of the trace's workload, else one built from its roles.

    Raises InputError; also if a role of the trace has no dataset in it.
    """
    manifest = trace.manifest
    roles: set[str] = {f.role for f in manifest.files if f.role is not None}
    if not roles:
        raise InputError(
            f"no file in {trace.path} has a role, so there is nothing to lay out; `ztune trace roles "
            f"{shlex.quote(str(trace.path))}` proposes some, and --role '/srv/db/**=data' gives one"
        )
    workload = manifest.workload.name if manifest.workload is not None else None
    if name is not None:
        study = _noted(ready.find(name), manifest)
    elif workload is not None and workload in ready.files():
        study = ready.find(workload)
    else:
        return _changed_for(from_trace.built_for(trace, arc=arc is not None), trace, profile, arc)
    info = manifest.workload
    if info is not None and info.name in registry.names() and recordings.varied(study):
        study = recordings.completed(study, info.name, info.parameters, settings=True)
    return suited(study, trace, profile, arc, named=name is not None)


def _noted(study: Study, manifest: Manifest) -> Study:
    """Return ``study`` with a note where it is of another database than the one that was recorded."""
    theirs, ours = database.of_workload(study.workload or ""), _database_of(manifest)
    if theirs is None or ours is None or theirs.name == ours.name:
        return study
    note = (
        f'study "{study.name}" is of {theirs.facts.title} and the recording of {ours.facts.title}: its base '
        "and what it varies may not be what that asks for; without --study one is made from the recording"
    )
    return study.model_copy(update={"notes": (*study.notes, note)})


def _database_of(manifest: Manifest) -> database.Database | None:
    """Return the database that was recorded: its workload's, or the one by its files; None where several."""
    return (
        database_in(manifest) if manifest.workload is None else database.of_workload(manifest.workload.name)
    )


def study_of_jobs(
    study: Study, workload: str, parameters: Mapping[str, Any], profile: str | None, arc: str | None
) -> Study:
    """Return ``study`` as it is screened with recordings of ``workload`` that are yet to be made, with what a
    command line changes. Raises InputError.
    """
    study = recordings.completed(study, workload, parameters, settings=True)
    settings = registry.settings_of(workload, parameters)
    return changed(study, profile, arc, settings, registry.declared(workload, parameters))


def suited(study: Study, trace: Trace, profile: str | None, arc: str | None, *, named: bool = True) -> Study:
    """Return ``study`` with what ``trace`` says of its database and of what can be built and told, and what a
    command line changes. ``named``: whether the user named the study.

    Raises InputError; also if a role of the trace has no dataset in it.
    """
    try:
        study.check_roles({f.role for f in trace.manifest.files if f.role is not None})
    except ValueError as error:
        raise InputError(plain(error)) from None
    return _changed_for(from_trace.suited(study, trace, named=named), trace, profile, arc)


def _changed_for(study: Study, trace: Trace, profile: str | None, arc: str | None) -> Study:
    """Return ``study`` with what ``trace`` says of its database, and what a command line changes."""
    manifest = trace.manifest
    return changed(study, profile, arc, _settings(manifest.workload), _declared(manifest))


def with_advice(study: Study, names: Sequence[str], trace: Trace) -> StudyBeside:
    """Return ``study`` with layouts of the sets of advice ``names`` for the database in ``trace``.

    Raises InputError.
    """
    manifest = trace.manifest
    found = _database_of(manifest)
    if found is None and manifest.workload is None and study.workload is not None:
        found = database.of_workload(study.workload)
    return advised.beside(study, names, None if found is None else found.name, advised.REPLAY)


def have_of(words: Sequence[str], study: Study) -> tuple[dict[str, str], list[str]]:
    """Return the hardware in ``words`` ("slog=nvme") that is there beside what the base uses, factor → value,
    and a sentence for each factor that the study does not vary.

    That is no mistake: what a recording shows nothing of is left out of its study. Raises InputError for a
    disk that nobody knows, and where the study varies the factor but has no such value.
    """
    base = study.layout
    if not (have := parse_have(words, base)):
        return {}, []  # all layouts of a large cross take seconds
    unused = check_have(have, base, layouts_of(study), f'study "{study.name}"')
    for name in with_settings(base, have).profiles():
        if name not in study.profiles:
            profiles.find(name)
    return have, unused


def _declared(manifest: Manifest) -> Declared:
    """Return what is declared of the durability of the database that was recorded."""
    if manifest.workload is not None:
        return registry.declared(manifest.workload.name, manifest.workload.parameters)
    # A live database: nobody says which it is, but its files do.
    found = databases_in(manifest)
    # Those that wait for their log unless they are told otherwise.
    sure = [one for one in found if one.facts.durability.default is not None]
    return Declared() if not sure else KNOWN if any(one.own for one in sure) else sure[0].declared


def _settings(workload: WorkloadInfo | None) -> dict[str, str]:
    """Return the database's settings that the recorded workload made; of one that is not here, none."""
    if workload is None or workload.name not in registry.names():
        return {}
    try:
        return registry.settings_of(workload.name, workload.parameters)
    except InputError:  # recorded by a version with other parameters
        return {}


@dataclass(frozen=True)
class Task:
    """What trials do: the layouts of a study, the baseline first, and the job on each. ``notes``: sentences
    on what of the sets of advice their layouts leave out. ``prior``: a screening whose layouts may join.
    """

    study: Study
    layouts: Sequence[Layout]
    job: RunJob
    notes: tuple[str, ...] = ()
    prior: ScreenedPrior | None = None


AGED_DISK = 4 << 30
"""Bytes of each data disk under `--age`, where the layout does not say its size: the pool is filled."""


def aged(task: Task, age: str) -> Task:
    """Return ``task`` with pools of that age under every layout. Raises InputError for one that is none."""

    def older(layout: Layout) -> Layout:
        pools = tuple(
            replace(
                pool,
                vdevs=tuple(
                    replace(v, size=AGED_DISK) if v.class_ == "data" and v.size is None else v
                    for v in pool.vdevs
                ),
            )
            for pool in layout.pools
        )
        return with_settings(replace(layout, pools=pools), {"age": age}, layout.name)

    try:
        study = task.study.model_copy(update={"layout": older(task.study.layout)})
        return replace(task, study=study, layouts=[older(layout) for layout in task.layouts])
    except ValueError as error:
        raise InputError(f"--age: {plain(error)}") from None


def beside(task: Task, given: str, *, native: bool) -> Task:
    """Return ``task`` with a second job, ``WORKLOAD[:NAME=VALUE,…]``, for which every layout has datasets.

    Raises InputError.
    """
    name, _, rest = given.partition(":")
    params = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise InputError(f'--with: "{part}" is no parameter of {name}; write {name}:NAME=VALUE,…')
        params[key.strip()] = value.strip()
    if any(one.workload for one in task.layouts):
        raise InputError(
            f'study "{task.study.name}" has layouts that change the job (`workload.*`), and --with takes one '
            "job; leave them out with --layouts"
        )
    fields = registry.get(name).Parameters.model_fields
    sizes = {"arc": task.study.layout.arc} if memory.is_relative(fields, params) else {}
    other = _job(name, {**sizes, **params}, native)

    def shared(layout: Layout) -> Layout:
        return replace(layout, neighbour=tuple(sorted(other.roles)))

    study = task.study.model_copy(update={"layout": shared(task.study.layout)})
    layouts = [shared(layout) for layout in task.layouts]
    return replace(task, study=study, layouts=layouts, job=task.job.with_neighbour(other))


def task(
    what: str,
    params: Mapping[str, str],
    names: Sequence[str],
    profile: str | None,
    arc: str | None,
    *,
    native: bool,
    on: str | None = None,
    advice: Sequence[str] = (),
) -> Task:
    """Return what to run for the study or workload ``what``; ``names``: only these of its layouts.

    ``native``: with the database of this host. ``on``: the place's name, which may not have all that a set
    says. ``advice``: sets whose layouts run too, also with ``names``.
    """
    asked = study_named(what, params)
    study, workload = asked.study, asked.workload
    if workload is None:
        raise InputError(f'study "{study.name}" names no workload, so nothing can run; add workload = "…"')
    if asked.layout is not None:
        names = [asked.layout, *names]
    given = {**study.parameters, **params}
    study, notes = _advised(study, advice, workload, on)
    if names:
        names = [*names, *_layouts_of(study, advice)]
    study = recordings.completed(study, workload, given, settings=False)
    settings, declared = registry.settings_of(workload, given), registry.declared(workload, given)
    study = changed(study, profile, arc, settings, declared)
    direct = tuple(sorted(asks_direct(settings) or ()))
    study = study.model_copy(update={"layout": replace(study.layout, direct=direct)})
    fields = registry.get(workload).Parameters.model_fields
    sizes = {"arc": study.layout.arc} if memory.is_relative(fields, given) else {}
    return Task(study, plan.layouts(study, names), _job(workload, {**sizes, **given}, native), notes)


def _advised(
    study: Study, advice: Sequence[str], workload: str, on: str | None
) -> tuple[Study, tuple[str, ...]]:
    found = database.of_workload(workload)
    both = advised.beside(study, advice, None if found is None else found.name, on)
    return both.study, both.notes


def _layouts_of(study: Study, advice: Sequence[str]) -> list[str]:
    """Return the names of the layouts that sets of advice added to ``study``."""
    if not advice:
        return []
    return [one.name for one in study.layouts if one.name.startswith(advised.PREFIX)]


def task_after(
    run: Run,
    store: Store,
    params: Mapping[str, str],
    names: Sequence[str],
    top: int,
    *,
    native: bool,
    on: str | None = None,
    advice: Sequence[str] = (),
) -> Task:
    """Return what to run after a screening run: ``top`` of its layouts at most, or those in ``names``, and
    those of the sets of ``advice``; ``on`` as in ``task``.
    """
    if run.measured:
        raise InputError(f"run {run.id} was measured already; --from takes a screening run")
    study = run.resolved_study
    workload, recorded = _recorded(run)
    trials = store.trials(run.id)
    layouts, prior = plan.chosen(run, trials, names), None
    if not names:
        prior = prior_of(run, trials, top)
    study, notes = _advised(study, advice, workload, on)
    # A set that says no more than the base has no layout of its own.
    if joined := _layouts_of(study, advice):
        layouts = list(unique([*layouts, *plan.layouts(study, joined)]))
    return Task(study, layouts, _job(workload, {**recorded, **params}, native), notes, prior)


def _job(name: str, params: Mapping[str, Any], native: bool) -> RunJob:
    workload = registry.make(name, params)
    job = workload_job(workload)
    # Elsewhere the database is another one; the trial itself says which.
    return replace(job, version=workload.check()) if native else job


def _recorded(run: Run) -> tuple[str, dict[str, Any]]:
    """Return the workload of a screening run and the parameters that it was recorded with, from its trace."""
    try:
        workload = Trace.reopen(run.trace_path or "", run.trace_sha or "").manifest.workload
    except InputError:  # it is gone, or another is there now
        if isinstance(name := run.study.get("workload"), str):
            return name, {}
        workload = None
    if workload is None:
        raise InputError(
            f"run {run.id} screened a trace that no workload of ztune's made, so there is nothing to run; "
            "`ztune run WORKLOAD` runs one, and `ztune list workloads command` says how yours becomes one"
        )
    return workload.name, dict(workload.parameters)
