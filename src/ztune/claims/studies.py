"""The studies that are run again: which layouts each asks for, and under which job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ztune.claims import publication
from ztune.claims.claim import Claim, ComparedLayout
from ztune.claims.publication import Publication
from ztune.claims.tables import files
from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.runs.space import differences
from ztune.study import Layout, ready
from ztune.study.layout import with_settings
from ztune.toml.reading import read_toml
from ztune.units import format_size

Kind = Literal["published", "ready", "sweep"]
"""Why a layout is replayed: it has a published figure, stands in a ready study, or is one record size of
many."""

SWEEP = tuple(4096 << n for n in range(9))
"""Record sizes of a sweep, 4K to 1M, in bytes: what rules of thumb choose from."""


@dataclass(frozen=True)
class StudyLayout:
    """One layout of a study. ``name``: TABLE/ROW of a published figure, or STUDY: LAYOUT of a ready study.

    ``study``: the ready study that has the job's parameters.
    """

    name: str
    kind: Kind
    workload: str
    study: str
    side: ComparedLayout


@dataclass(frozen=True)
class PublishedStudy:
    """A publication that is run again, with every layout that it asks for."""

    name: str
    publication: Publication
    base: Layout
    layouts: tuple[StudyLayout, ...]


def names() -> list[str]:
    """Return the names of the publications that are studies: they have figures, or a ready study of their
    name. Raises InputError for a file that is no TOML."""
    able = ready.files()
    return [
        name for name, path in files("published").items() if name in able or "table" in read_toml(path)[0]
    ]


def find(name: str) -> PublishedStudy:
    """Return the study ``name``. Raises InputError."""
    known = names()
    if name not in known:
        raise InputError(
            f'there is no study "{name}" to run again; there are {", ".join(known)}.{suggest(name, known)}'
        )
    source = publication.find(name)
    base = source.base()
    published = _published(source, base)
    return PublishedStudy(name, source, base, (*published, *_ready(source, published)))


def _published(source: Publication, base: Layout) -> tuple[StudyLayout, ...]:
    found = []
    for name, (table, row) in source.rows().items():
        workload = table.workload or source.workload
        layout = with_settings(base, row.set, name)
        side = ComparedLayout(
            name=name, layout=layout, set=row.set, parameters=row.parameters, figure=row.value
        )
        found.append(StudyLayout(name, "published", workload, _study(source, workload), side))
    return tuple(found)


def _study(source: Publication, workload: str) -> str:
    """Return the ready study that has the parameters of ``workload``: its own, else the publication's."""
    return workload if workload != source.workload and workload in ready.files() else source.study


def _ready(source: Publication, published: Sequence[StudyLayout]) -> list[StudyLayout]:
    """Return the layouts of the ready studies that have no published figure.

    They get the job of the first published layout of their workload: its parameters and the database's
    settings, so that they can be compared.
    """
    found = []
    known = ready.files()
    for study_name in dict.fromkeys([source.study, *(each.study for each in published)]):
        if study_name not in known:
            continue
        study = ready.find(study_name)
        workload = study.workload or source.workload
        same = [each for each in published if each.workload == workload]
        first = same[0].side if same else None
        parameters = {} if first is None else first.parameters
        database = {} if first is None else _of_database(first.set)
        there = {_without_database(each.side) for each in same}
        named = [(study.layout.name, {}), *((each.name, dict(each.set)) for each in study.layouts)]
        for name, changes in named:
            whole = {**database, **changes}
            layout = with_settings(study.layout, whole, name)
            side = ComparedLayout(
                name=f"{study_name}: {name}", layout=layout, set=whole, parameters=parameters
            )
            if (key := _without_database(side)) not in there:
                there.add(key)
                found.append(StudyLayout(side.name, "ready", workload, study_name, side))
    return found


def _of_database(settings: Mapping[str, str | int]) -> dict[str, str | int]:
    return {key: value for key, value in settings.items() if key.startswith("database.")}


def _without_database(side: ComparedLayout) -> tuple[tuple[str, str], ...]:
    return tuple((k, v) for k, v in side.layout.settings().items() if not k.startswith("database."))


def jobs(study: PublishedStudy) -> dict[str, StudyLayout]:
    """Return workload → its first layout: the job whose record sizes are swept."""
    found: dict[str, StudyLayout] = {}
    for each in study.layouts:
        found.setdefault(each.workload, each)
    return found


def sweep(first: StudyLayout, role: str) -> list[StudyLayout]:
    """Return ``first`` with the files of ``role`` at each record size, and nothing else changed."""
    dataset = first.side.layout.dataset_of(role)
    if dataset is None:
        raise InputError(f"the layouts of {first.study} have no dataset for the role {role}")
    key = dataset.key
    found = []
    for size in SWEEP:
        changes = {f"{key}.recordsize": format_size(size)}
        name = f"{first.workload}: {role} at {format_size(size)}"
        layout = with_settings(first.side.layout, changes, name)
        side = ComparedLayout(
            name=name,
            layout=layout,
            set={**first.side.set, **changes},
            parameters=first.side.parameters,
        )
        found.append(replace(first, name=name, kind="sweep", side=side))
    return found


def as_claims(study: PublishedStudy, layouts: Sequence[StudyLayout]) -> list[Claim]:
    """Return ``layouts`` in the form in which claims are replayed: one for each job's parameters.

    They say nothing of the layouts; a claim's source says which ready study has the parameters.
    """
    by: dict[tuple[str, str], list[ComparedLayout]] = {}
    for each in layouts:
        by.setdefault((each.workload, each.study), []).append(each.side)
    return [
        Claim(
            id=study.name, source=replace(study.publication, study=ready_study), sentence="",
            wording="paraphrased", metric="written", relation="best", at_least=0.0, within=0.02,
            workload=workload, layouts=tuple(sides),
        )
        for (workload, ready_study), sides in by.items()
    ]  # fmt: skip


def changes(study: PublishedStudy, side: ComparedLayout) -> str:
    """Return how ``side`` differs from the publication's layout, in words."""
    told = differences(study.base, side.layout)
    return ", ".join(f"{key}={value}" for key, value in told.items())
