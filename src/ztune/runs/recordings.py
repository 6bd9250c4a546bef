"""Recordings of jobs, kept by what they are of: the same job with the same settings is recorded once.

A layout may change the job itself: a parameter of its workload (``workload.NAME``) or a setting of its
database (``database.NAME``). Then it is replayed on the recording of that job. ``completed`` says in the base
layout what the job has there, ``jobs`` which recordings a study takes, ``found`` which of them are there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ztune import paths
from ztune.databases import memory, registry
from ztune.databases.workload import JobWorkload, Workload
from ztune.errors import InputError
from ztune.onhost.declared import Declared
from ztune.runs.space import JOB_FACTORS, differences, first_round
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Layout, Study
from ztune.study.durability import is_combined, is_direct, weakening
from ztune.study.layout import with_settings
from ztune.study.loader import resolve_profiles
from ztune.study.reduced import without
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.partial import discard, partial_of
from ztune.trace.reader import Trace

Record = Callable[[Workload, Path], Trace]
"""Runs a workload, and records it into a folder."""
JobKey = tuple[tuple[str, str], ...]
"""What a layout says of the job: the same for layouts that have one recording (``Layout.job_settings``)."""
PREFIX = "job"
"""How the folders of recordings begin that layouts with a job of their own are replayed on."""


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
    return made(*kept(name, parameters, settings, prefix), record)


def made(workload: Workload, path: Path, record: Record) -> Trace:
    """Return the recording of ``workload`` that is kept at ``path``, made now where it is not there. What was
    cut there is removed, a trace that was recovered of it too. Raises ZtuneError.
    """
    if path.exists():
        if is_made(path):
            return Trace.open(path)
        discard(path)
    # Not what lies at `path` by now: whoever recorded it beside us may have come to its end.
    partial = partial_of(path)
    if partial.is_dir():
        discard(partial)
    return record(workload, path)


def is_made(path: Path) -> bool:
    """Return whether the recording that is kept at ``path`` is there, with its job done to the end: one that
    was cut and recovered doesn't say of which job it is. Raises InputError where it is no trace.
    """
    return path.exists() and Trace.open(path).manifest.workload is not None


def key_of(layout: Layout) -> JobKey:
    """Return which recording ``layout`` is replayed on."""
    return tuple(layout.job_settings().items())


def varied(study: Study) -> list[str]:
    """Return the factors of ``study`` that change the job, sorted; empty where one recording does for all."""
    return sorted(key for key in study.varied if key.startswith(JOB_FACTORS))


def with_parameters(
    name: str, parameters: Mapping[str, Any], changes: Mapping[str, str], arc: int | str | None = None
) -> dict[str, Any]:
    """Return the parameters of the workload ``name`` with what a layout changes of them.

    ``arc``: of the study's base layout, which a size that only a layout makes relative is relative to.
    """
    wanted = registry.get(name)
    found: dict[str, Any] = {**parameters, **changes}
    source, _ = getattr(wanted, "read_in", ("", ""))
    if source and source in changes:
        found.pop(f"{source}_text", None)  # of the other file
    fields = wanted.Parameters.model_fields
    if arc is not None and memory.is_relative(fields, found) and "arc" not in changes:
        # The parameters of a recording always have one, whether it meant anything or not.
        if memory.is_relative(fields, parameters):
            found.setdefault("arc", arc)
        else:
            found["arc"] = arc
    return found


def completed(study: Study, workload: str, parameters: Mapping[str, Any], *, settings: bool) -> Study:
    """Return ``study`` whose base layout has what the job has there of each factor that varies, so that a
    value equal to the base's is the base; values of parameters are written as the workload writes them.

    ``parameters``: the workload's, as they were given. ``settings``: settings of the database too, as far as
    the workload says them itself. What a parameter means for durability becomes part of the base layout's
    declaration, for each value. Raises InputError for a parameter or value that the workload refuses.
    """
    names = [key.partition(".")[2] for key in varied(study) if key.startswith("workload.")]
    own = registry.settings_of(workload, parameters)
    database = {
        name: own[name]
        for key in varied(study)
        if settings and key.startswith("database.") and (name := key.partition(".")[2]) in own
    }
    if not names and not database:
        return study
    given = with_parameters(workload, parameters, {}, study.layout.arc)
    values = {name: _Values.of(study, workload, given, name) for name in names}

    def written(key: str, value: str | int) -> str | int:
        name = key.removeprefix("workload.")
        return values[name].texts[value] if key != name else value

    raw = study.to_json()
    raw["layout"]["database"] = {**database, **study.layout.database}
    if names:
        raw["layout"]["workload"] = {name: values[name].base for name in names}
    raw["axes"] = {key: [written(key, v) for v in found] for key, found in study.axes.items()}
    for entry, named in zip(raw["layouts"], study.layouts, strict=True):
        entry["set"] = {key: written(key, v) for key, v in named.set.items()}
    found = Study.model_validate({**raw, "profiles": {}})
    declared = (study.layout.declared or Declared()).with_more(_declared(workload, given, values))
    if declared != (study.layout.declared or Declared()):
        found = found.model_copy(update={"layout": replace(found.layout, declared=declared)})
    return resolve_profiles(found, study.profiles)


@dataclass(frozen=True)
class _Values:
    """The values of one parameter. ``texts``: as the study has them → as they are kept; ``base``: the one of
    the job as it was asked for."""

    texts: Mapping[str | int, str]
    base: str

    @classmethod
    def of(cls, study: Study, workload: str, given: Mapping[str, Any], name: str) -> _Values:
        key = f"workload.{name}"
        asked = study.varied.get(key, [])

        def meant(changes: Mapping[str, str]) -> tuple[str, str]:
            """Return the value as the workload writes it, and as it is in the end: a size in bytes."""
            made = registry.make(workload, with_parameters(workload, given, changes, study.layout.arc))
            whole = made.resolved() if isinstance(made, JobWorkload) else made.params.resolved()
            return _text(made.params.resolved()[name]), _text(whole[name])

        found = {value: meant({name: str(value)}) for value in asked}
        written, last = meant({})
        base = next((text for text, end in found.values() if end == last), written)
        return cls({value: text for value, (text, _) in found.items()}, base)


def _text(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _declared(workload: str, given: Mapping[str, Any], values: Mapping[str, _Values]) -> Declared:
    """Return what the values of parameters make of the database's durability."""
    every = {name: dict.fromkeys([found.base, *found.texts.values()]) for name, found in values.items()}
    made = {
        name: {v: registry.settings_of(workload, with_parameters(workload, given, {name: v})) for v in found}
        for name, found in every.items()
    }
    differing = {
        name: {n for one in by.values() for n in one if len({o.get(n) for o in by.values()}) > 1}
        for name, by in made.items()
    }
    out: dict[str, dict[str, dict[str, str]]] = {}
    known = registry.declared(workload, given).known
    for name, by in made.items():
        others = {n for other, found in differing.items() if other != name for n in found}
        for value, found in by.items():
            bearing = {
                n: v for n, v in found.items() if n in differing[name] and (not known or is_combined(n))
            }
            if known:
                bearing |= weakening(found)
                bearing |= {n: v for n, v in found.items() if n in differing[name] and is_direct(n)}
            if kept_here := {n: v for n, v in bearing.items() if n not in others}:
                out.setdefault(name, {})[value] = kept_here
    together = {
        registry.declared(workload, with_parameters(workload, given, {name: v})).together
        for name, found in every.items()
        for v in found
    }
    most = max((n for n in together if n is not None), default=None) if len(together) > 1 else None
    return Declared(parameters=out, together=most)


@dataclass(frozen=True)
class KeptJob:
    """One job of a study, and where its recording is kept. ``words``: what of it the study varies."""

    key: JobKey
    workload: Workload
    path: Path
    words: str

    @property
    def there(self) -> bool:
        """Whether it was recorded."""
        return is_made(self.path)

    def trace(self, record: Record) -> Trace:
        """Return its recording, made now where it is not there."""
        return made(self.workload, self.path, record)


def jobs(
    study: Study, workload: str, parameters: Mapping[str, Any], layouts: Iterable[Layout]
) -> list[KeptJob]:
    """Return the jobs that ``layouts`` of ``study``, which is ``completed``, are replayed on, the base's
    first.

    Raises InputError, MissingError as ``kept`` does.
    """
    found: dict[JobKey, KeptJob] = {}
    factors = varied(study)
    for layout in (study.layout, *layouts):
        key = key_of(layout)
        if key not in found:
            given = with_parameters(workload, parameters, layout.workload, study.layout.arc)
            try:
                made, path = kept(workload, given, layout.database, PREFIX)
                check = getattr(getattr(made, "job", None), "check_settings", None)
                if check is not None:
                    check()
            except InputError as error:
                raise InputError(f'layout "{layout.name}" of study "{study.name}": {error}') from None
            said = dict(key)
            words = ", ".join(f"{factor}={said.get(factor, 'default')}" for factor in factors)
            found[key] = KeptJob(key, made, path, words)
    return list(found.values())


def replayable(study: Study, trace: Trace, named: str | None = None) -> Study:
    """Return ``study`` without what takes a recording that there is none of beside ``trace``, the base's, and
    with a note that says so and what makes them. ``named``: what the user called the study.

    Raises InputError where nothing is left to try.
    """
    layouts = [one for one in first_round(study) if key_of(one) != key_of(study.layout)]
    if not layouts:
        return study
    info = trace.manifest.workload
    known = info is not None and info.name in registry.names()
    there = {key_of(study.layout)}
    if info is not None and known:
        there |= {job.key for job in jobs(study, info.name, info.parameters, layouts) if job.there}
    if all(key_of(one) in there for one in layouts):
        return study

    def has(set_: Mapping[str, str | int]) -> bool:
        return key_of(with_settings(study.layout, set_)) in there

    gone: dict[str, list[str | int]] = {
        key: left
        for key, values in study.axes.items()
        if (left := [value for value in values if not has({key: value})])
    }
    lost = [one for one in study.layouts if not has(one.set)]
    said = [f"{key}={', '.join(map(str, values))}" for key, values in gone.items()]
    said += [f'layout "{one.name}"' for one in lost]
    note = f"Left out, since there is no recording of that job: {'; '.join(said) or 'combinations of them'}. "
    note += (
        f"`{_command(info, study, named)}` makes it, and screens all of the study."
        if info is not None and known
        else f"{trace.path} is of no workload that ztune could record again."
    )
    found = without(study, gone, note, layouts=False)
    crosses = [
        keys
        for keys in found.cross
        if all(has(dict(zip(keys, some, strict=True))) for some in _combined(found, keys))
    ]
    kept_here = tuple(one for one in found.layouts if one not in lost)
    found = found.model_copy(update={"cross": tuple(crosses), "layouts": kept_here})
    if len(first_round(found)) < 2:
        raise InputError(f'study "{study.name}" leaves nothing to try with {trace.path}. {note}')
    return found


def _combined(study: Study, keys: Iterable[str]) -> Iterable[tuple[str | int, ...]]:
    return itertools.product(*(study.axes[key] for key in keys))


def found(study: Study, trace: Trace, budget: int, named: str | None = None) -> dict[JobKey, Trace]:
    """Return the recordings beside ``trace``, which is the base's, that the first ``budget`` layouts of
    ``study`` are replayed on. ``named``: what the user called the study.

    Raises InputError, with the command that makes them, where one is not there, or where ``trace`` is of
    another job than the base's.
    """
    layouts = [one for one in first_round(study, budget) if key_of(one) != key_of(study.layout)]
    if not layouts:
        return {}
    info = trace.manifest.workload
    if info is None:
        changed = next(key for key in differences(study.layout, layouts[0]) if key.startswith(JOB_FACTORS))
        raise InputError(
            f'layout "{layouts[0].name}" of study "{study.name}" changes {changed}: a recorded trace can\'t '
            f"show that, since the database would write otherwise, and {trace.path} is of no workload that "
            "ztune could record again"
        )
    base, *wanted = jobs(study, info.name, info.parameters, layouts)
    _check_base(study, trace, info, base, wanted)
    missing = [job for job in wanted if not job.there]
    if missing:
        shown = "; ".join(job.words for job in missing[:3]) + (" …" if len(missing) > 3 else "")
        raise InputError(
            f'study "{study.name}" changes the job itself, and {len(missing)} of the {len(wanted)} '
            f"recordings that it takes beside {trace.path} were not made ({shown}); "
            f"`{_command(info, study, named)}` makes and screens them"
        )
    return {job.key: Trace.open(job.path) for job in wanted}


def _check_base(
    study: Study, trace: Trace, info: WorkloadInfo, base: KeptJob, others: Iterable[KeptJob]
) -> None:
    """Raise InputError where ``trace`` is known to have other settings of the database than the base has."""
    if trace.path.resolve() == base.path.resolve():
        return
    for job in others:
        if trace.path.resolve() == job.path.resolve():
            raise InputError(
                f"{trace.path} is the recording of {job.words}, and the base of study "
                f'"{study.name}" has {base.words}; name {base.path}'
            )
    had = registry.settings_of(info.name, info.parameters)
    for name, value in study.layout.database.items():
        if f"database.{name}" in varied(study) and had.get(name, value) != value:
            raise InputError(
                f"{trace.path} was recorded with {name}={had[name]}, and the base of study "
                f'"{study.name}" has {value}; `ztune tune {info.name}` with the study records it'
            )


def _command(info: WorkloadInfo, study: Study, named: str | None) -> str:
    """Return the command that records what a study takes, with the parameters of the recording ``info``."""
    fields = registry.get(info.name).Parameters.model_fields
    plain = registry.make(info.name, {k: v for k, v in study.parameters.items() if k in fields})
    usual = plain.resolved() if isinstance(plain, JobWorkload) else plain.params.resolved()
    words = ["ztune", "tune", info.name, "--study", named or study.name]
    for name, value in info.parameters.items():
        if name in fields and _text(value) != _text(usual.get(name)) and not isinstance(value, dict | list):
            words += ["-p", f"{name}={_text(value)}"]
    return shlex.join(words)


def of_run(store: Store, run: Run) -> dict[JobKey, Trace]:
    """Return the recordings of a stored run beside its base's. Raises InputError where one is gone, or is not
    the same any more.
    """
    out: dict[JobKey, Trace] = {}
    for trial in store.trials(run.id):
        path, sha = run.recording_of(trial)
        key = key_of(trial.layout)
        if sha == run.trace_sha or key in out:
            continue
        out[key] = Trace.reopen(path, sha)
    return out
