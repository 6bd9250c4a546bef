"""A publication: who published which figures, of which layouts. They are others' figures, never ours."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ztune.analysis.metrics import MEASURED
from ztune.claims.tables import STRICT, File, Scalar, files, twice
from ztune.databases import registry
from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.study import Layout, ready
from ztune.study.layout import LayoutTable

SCATTER = 0.02
"""How far two single runs of the same lie apart where a publication says nothing: 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published figure and the layout it belongs to."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    name: str = field(metadata={"description": "Unique in its table."})
    value: float = field(metadata={"description": "The figure, in the table's unit."})
    set: dict[str, str | int] = field(
        default_factory=dict,
        metadata={"description": "How its layout differs from the publication's, beyond the table's `set`."},
    )
    parameters: dict[str, Scalar] = field(
        default_factory=dict, metadata={"description": "Parameters of the workload, beyond the table's."}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures of one quantity: along one or more axes (``figures``), or layout by layout (``rows``)."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    name: str = field(metadata={"description": "Unique in its file; claims name a figure `TABLE/ROW`."})
    quantity: str = field(metadata={"description": "What was measured, in words."})
    unit: str = field(metadata={"description": "The figures' unit, as published."})
    metric: str = field(
        default="", metadata={"description": "The metric of ours that says the same; none: no metric does."}
    )
    workload: str = field(default="", metadata={"description": "The workload, where not the publication's."})
    set: dict[str, str | int] = field(
        default_factory=dict,
        metadata={"description": "How the layouts of all rows differ from the publication's."},
    )
    parameters: dict[str, Scalar] = field(
        default_factory=dict, metadata={"description": "Parameters of the workload in all rows."}
    )
    axes: tuple[str, ...] = field(
        default=(), metadata={"description": "Factors that have the row's name as their value."}
    )
    figures: dict[str, float] = field(
        default_factory=dict, metadata={"description": "Value of the axes → figure."}
    )
    rows: tuple[Figure, ...] = field(
        default=(), metadata={"description": "Figures whose layouts are no axis."}
    )
    base: str = field(
        default="",
        metadata={
            "description": "The row that the others are set against, as `TABLE/ROW` one of another table of "
            "the same unit; none: the first."
        },
    )
    note: str = field(default="", metadata={"description": "What a reader of the figures has to know."})

    def all_rows(self) -> dict[str, Figure]:
        """Return name → row, each with everything that its layout and its workload differ in."""
        swept = [Figure(name=n, value=v, set=dict.fromkeys(self.axes, n)) for n, v in self.figures.items()]
        return {
            row.name: Figure(
                name=row.name,
                value=row.value,
                set={**self.set, **row.set},
                parameters={**self.parameters, **row.parameters},
            )
            for row in (*swept, *self.rows)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How often which size was met."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    name: str = field(metadata={"description": "Unique in its file."})
    quantity: str = field(metadata={"description": "What was counted, in words."})
    unit: str = field(metadata={"description": "Unit of the sizes."})
    counts: dict[str, int] = field(metadata={"description": "Size, or the least of a bucket → how often."})
    note: str = field(default="", metadata={"description": "What a reader of it has to know."})


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What somebody published: its source, its layout in our words, its figures as they were printed."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    title: str = field(metadata={"description": "Its title."})
    author: str = field(default="", metadata={"description": "Who wrote it; none where that is not known."})
    year: int = field(metadata={"description": "When it was published."})
    url: str = field(
        default="", metadata={"description": "Where it can be read; none where that is not known."}
    )
    database: str = field(metadata={"description": "The database and its version."})
    system: str = field(
        metadata={
            "description": "Operating system, version of ZFS, machine and disks, as far as they are told."
        }
    )
    workload: str = field(metadata={"description": "The workload of ours that does the same job."})
    study: str = field(metadata={"description": "The ready study that asks the same."})
    parameters: dict[str, Scalar] = field(
        default_factory=dict,
        metadata={
            "description": "Parameters of the workloads, such as the version that it speaks of; "
            "the user's own go first."
        },
    )
    scatter: float = field(
        default=SCATTER,
        metadata={"description": "How far two runs of the same lie apart, a share: less is no difference."},
    )
    scatter_why: str = field(
        default="", metadata={"description": "Where that comes from; needed when `scatter` is given."}
    )
    layout: LayoutTable | None = field(
        default=None,
        metadata={"description": "Its layout before any change, as in a study; none: the ready study's."},
    )
    table: tuple[Table, ...] = field(
        default=(), metadata={"description": "Figures, one table for each quantity and sweep."}
    )
    histogram: tuple[Histogram, ...] = field(default=(), metadata={"description": "Sizes that it counted."})
    recommended: dict[str, dict[str, str]] = field(
        default_factory=dict,
        metadata={"description": "Role → property → value: what it recommends in the end."},
    )
    other: dict[str, float] = field(
        default_factory=dict,
        metadata={"description": "Further figures that belong to no layout, with their unit in the name."},
    )
    conclusion: str = field(default="", metadata={"description": "What it concludes, in a sentence."})
    stand_in: str = field(
        default="",
        metadata={"description": "What our trials put in the place of what can't be had."},
    )
    scale: str = field(
        default="", metadata={"description": "How the sizes of the ready study stand to its sizes."}
    )
    note: str = field(default="", metadata={"description": "What a reader has to know of the whole."})

    def base(self) -> Layout:
        """Return the layout that all others are changes of. Raises InputError."""
        return self.layout or ready.find(self.study).layout

    def base_of(self, table: Table) -> str:
        """Return the row that those of ``table`` are set against, as TABLE/ROW."""
        name = table.base or next(iter(table.all_rows()))
        return name if name not in table.all_rows() and "/" in name else f"{table.name}/{name}"

    def rows(self) -> dict[str, tuple[Table, Figure]]:
        """Return "TABLE/ROW" → table and figure, of all, in their order."""
        return {f"{t.name}/{name}": (t, row) for t in self.table for name, row in t.all_rows().items()}


_INNER = {"table": Table, "rows": Figure, "histogram": Histogram}


def load(path: Path) -> Publication:
    """Return the publication in the TOML file ``path``, each of its layouts checked. Raises InputError."""
    return _load_shipped(path) if ready.unchanging(path) else _load(path)


def _load(path: Path) -> Publication:
    file = File(path)
    found = file.parse(Publication, _INNER, "a publication")
    check_workload(file, found.workload, {}, ("workload",))
    check_workload(file, found.workload, found.parameters, ("parameters",))
    if found.url and not found.url.startswith(("https://", "http://")):
        raise file.wrong(
            ("url",), f'"{found.url}" is no address of a page; it begins with https:// or http://'
        )
    if not 0 < found.scatter < 1:
        raise file.wrong(("scatter",), f"{found.scatter:g} is no share between 0 and 1; 0.02 is 2 %")
    if found.scatter != SCATTER and not found.scatter_why:
        raise file.wrong(("scatter",), "scatter_why is missing: where that comes from")
    try:
        base = found.base()
    except InputError as error:
        raise file.wrong(("study",), f"{error}; give it a [layout]") from None
    for kind, names in (
        ("table", [t.name for t in found.table]),
        ("histogram", [h.name for h in found.histogram]),
    ):
        for i, name in twice(names):
            raise file.wrong((kind, i, "name"), f'two are called "{name}"')
    for i, table in enumerate(found.table):
        _check_table(file, found, base, i, table)
    for role, properties in found.recommended.items():
        changes = {f"{role}.{name}": value for name, value in properties.items()}
        file.changed(base, changes, "recommended", ("recommended", role))
    return found


_load_shipped = functools.cache(_load)


def _check_table(file: File, found: Publication, base: Layout, i: int, table: Table) -> None:
    at = ("table", i)
    check_metric(file, table.metric, (*at, "metric"), or_none=True)
    if bool(table.figures) == bool(table.rows) or bool(table.figures) != bool(table.axes):
        raise file.wrong(at, "a table has either axes and figures, or rows")
    for j, name in twice([r.name for r in table.rows]):
        raise file.wrong((*at, "rows", j, "name"), f'two rows are called "{name}"')
    if table.base:
        able = {**table.all_rows(), **{k: v for k, (t, v) in found.rows().items() if t.unit == table.unit}}
        if table.base not in able:
            raise file.wrong((*at, "base"), f'there is no row "{table.base}".{suggest(table.base, able)}')
    places = {r.name: (*at, "rows", j) for j, r in enumerate(table.rows)}
    for name, row in table.all_rows().items():
        place = places.get(name, (*at, "figures"))
        if row.value <= 0:
            raise file.wrong(place, f"{name} is {row.value:g}; a figure is above 0")
        file.changed(base, row.set, f"{table.name}/{name}", place)
        check_workload(file, table.workload or found.workload, row.parameters, place)


def check_metric(file: File, metric: str, at: tuple[str | int, ...], *, or_none: bool = False) -> None:
    """Raise InputError unless ``metric`` is one of a trial's."""
    if metric not in MEASURED and not (or_none and not metric):
        raise file.wrong(
            at, f'"{metric}" is not a metric; they are {", ".join(MEASURED)}.{suggest(metric, MEASURED)}'
        )


def check_workload(
    file: File, name: str, parameters: Mapping[str, Scalar], at: tuple[str | int, ...]
) -> None:
    """Raise InputError unless there is a workload ``name`` that takes ``parameters``."""
    try:
        registry.make(name, parameters)
    except InputError as error:
        raise file.wrong(at, str(error)) from None


def names() -> Iterator[str]:
    """Give the names of all publications, sorted: ztune's (``studies/published``) and the user's own."""
    yield from files("published")


def find(name: str) -> Publication:
    """Return the publication ``name``. Raises InputError."""
    known = files("published")
    if name not in known:
        raise InputError(
            f'there is no publication "{name}"; there are {", ".join(known)}.{suggest(name, known)}'
        )
    return load(known[name])
