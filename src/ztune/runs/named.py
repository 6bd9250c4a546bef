"""What a word of the user's means: a run, a trace, or a study or a workload, which `asked` finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, overload

from ztune.databases.database import every
from ztune.databases.entry_points import WORKLOADS, by_package
from ztune.errors import InputError
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import ready
from ztune.trace.manifest import MANIFEST
from ztune.trace.reader import Trace

NamedKind = Literal["run", "trace", "study"]
LAST = ("last", "latest")
_A = {"run": "a run", "trace": "a trace", "study": "a study or a workload"}
_MORE = {
    "run": "`ztune runs` lists the runs",
    "trace": "`ztune record` makes one",
    "study": "`ztune list layouts` and `ztune list workloads` list them",
}


@overload
def resolve(what: str, wanted: Literal["run"], *, store: Store) -> Run: ...
@overload
def resolve(what: str, wanted: Literal["trace"], *, store: Store | None = None) -> Trace: ...
def resolve(what: str, wanted: Literal["run", "trace"], *, store: Store | None = None) -> Run | Trace:
    """Return the run or trace that ``what`` means; a study is ``ztune.runs.asked.study_named``'s.

    A run by its id, the beginning of one, or "last"; a trace by its folder. Raises InputError with one
    sentence, which says what ``what`` is instead, if ztune knows it as something else.
    """
    with meant(what, wanted, store):
        if wanted == "run":
            assert store is not None
            return store.run("last" if what in LAST else what)
        return Trace.open(what)


@contextmanager
def meant(what: str, wanted: NamedKind, store: Store | None = None) -> Iterator[None]:
    """Have an InputError on ``what`` as one of ``wanted`` say what it is instead."""
    try:
        yield
    except InputError:
        other = next((kind for kind in meanings(what, store) if kind != wanted), None)
        if other is None or wanted in meanings(what, store):
            raise
        raise InputError(f'"{what}" is {_A[other]}, not {_A[wanted]}; {_MORE[wanted]}') from None


def meanings(what: str, store: Store | None = None) -> list[NamedKind]:
    """Return the kinds of things that ``what`` is the name of."""
    found: list[NamedKind] = []
    if what in LAST or (store is not None and what in {run.id for run in store.runs()}):
        found.append("run")
    if _is_trace(Path(what)):
        found.append("trace")
    if what.endswith(".toml") or what in ready.files() or what in _workloads():
        found.append("study")
    return found


def is_run(what: str) -> bool:
    """Whether ``what`` is a run, by its id, the beginning of one, or "last", and nothing else."""
    with Store.open() as store:
        found = meanings(what, store)
        if found:
            return found == ["run"]
        if Path(what).exists() or ":" in what:
            return False
        try:
            store.run(what)
        except InputError:
            return False
        return True


def _workloads() -> set[str]:
    """Return the names of all workloads. None is loaded, unlike by the registry."""
    offered = by_package(WORKLOADS)
    return {name for one in every() for name in one.facts.workloads} | {
        point.name for _, points, _ in offered for point in points
    }


def _is_trace(path: Path) -> bool:
    try:
        return (path / MANIFEST).is_file()
    except OSError:  # too long to be a file's
        return False


def run_id(what: str) -> str:
    """Return the id of the stored run that ``what`` means; see ``resolve``."""
    with Store.open() as store:
        return resolve(what, "run", store=store).id
