"""What a word of the user's means: a run, a trace, a study or a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from ztune.databases import registry
from ztune.errors import InputError
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study, generic, ready
from ztune.trace.manifest import MANIFEST

if TYPE_CHECKING:
    from ztune.trace.reader import Trace

NamedKind = Literal["run", "trace", "study"]
_LAST = ("last", "latest")
_A = {"run": "a run", "trace": "a trace", "study": "a study or a workload"}
_MORE = {
    "run": "`ztune runs` lists the runs",
    "trace": "`ztune record` makes one",
    "study": "`ztune list layouts` and `ztune list workloads` list them",
}


@dataclass(frozen=True)
class Asked:
    """A study that the user named, itself or by a workload. ``layout``: what stood behind a colon."""

    study: Study
    workload: str | None
    layout: str | None = None


@overload
def resolve(what: str, wanted: Literal["run"], *, store: Store) -> Run: ...
@overload
def resolve(what: str, wanted: Literal["trace"], *, store: Store | None = None) -> Trace: ...
@overload
def resolve(what: str, wanted: Literal["study"], *, params: Mapping[str, str] | None = None) -> Asked: ...
def resolve(
    what: str, wanted: NamedKind, *, store: Store | None = None, params: Mapping[str, str] | None = None
) -> Run | Trace | Asked:
    """Return the thing of kind ``wanted`` that ``what`` means.

    A run by its id, the beginning of one, or "last"; a trace by its folder; a study by its file, as a ready
    study or by a workload's name, with ``:LAYOUT`` behind it if need be; ``params`` are the workload's.

    Raises InputError with one sentence, which says what ``what`` is instead, if ztune knows it as something
    else.
    """
    try:
        if wanted == "run":
            assert store is not None
            return store.run("last" if what in _LAST else what)
        if wanted == "trace":
            from ztune.trace.reader import Trace  # Arrow: what names a run need not wait for it

            return Trace.open(what)
        return _study(what, params or {})
    except InputError:
        other = next((kind for kind in meanings(what, store) if kind != wanted), None)
        if other is None or wanted in meanings(what, store):
            raise
        raise InputError(f'"{what}" is {_A[other]}, not {_A[wanted]}; {_MORE[wanted]}') from None


def meanings(what: str, store: Store | None = None) -> list[NamedKind]:
    """Return the kinds of things that ``what`` is the name of."""
    found: list[NamedKind] = []
    if what in _LAST or (store is not None and what in {run.id for run in store.runs()}):
        found.append("run")
    if _is_trace(Path(what)):
        found.append("trace")
    if ready.is_path(what) or what in ready.files() or what in registry.names():
        found.append("study")
    return found


def _is_trace(path: Path) -> bool:
    try:
        return (path / MANIFEST).is_file()
    except OSError:  # too long to be a file's
        return False


def _study(what: str, params: Mapping[str, str]) -> Asked:
    # Layouts' names have colons too, files may: the first one before which there is a study.
    for cut in [len(what), *(i for i, letter in enumerate(what) if letter == ":")]:
        name, layout = what[:cut], what[cut + 1 :] if cut < len(what) else None
        if ready.is_path(name) or name in ready.files():
            study = ready.find(name)
            return Asked(study, study.workload or (name if name in registry.names() else None), layout)
        if name in registry.names():
            return Asked(_own(name, params), name, layout)
    known = ", ".join(dict.fromkeys([*registry.names(), *ready.files()]))
    raise InputError(f'"{what}" is no study and no workload; name a TOML file, or one of {known}')


def _own(workload: str, params: Mapping[str, str]) -> Study:
    """Return the study of a workload for which there is no ready one: made from its roles."""
    job = getattr(registry.make(workload, params), "job", None)
    if job is None:
        raise InputError(f"workload {workload} can be recorded but has no job to run; name a study")
    return generic.build(set(job.roles()), together=registry.together(workload))


def run_id(what: str) -> str:
    """Return the id of the stored run that ``what`` means; see ``resolve``."""
    with Store.open() as store:
        return resolve(what, "run", store=store).id
