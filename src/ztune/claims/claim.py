"""A claim: one published sentence, the layouts it compares, and what it says of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from ztune.analysis.metrics import MEASURED
from ztune.claims import publication
from ztune.claims.publication import Publication, check_metric, check_workload
from ztune.claims.tables import STRICT, File, Scalar, files, twice
from ztune.errors import InputError
from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import TUNABLES
from ztune.onhost.words import OBJECTIVES, suggest
from ztune.study import Layout, ready
from ztune.toml.reading import read_toml

Relation = Literal["less", "more", "equal", "best"]
"""What the first layout is to the others: its metric is less, more or the same, or none of them beats it."""
Wording = Literal["quoted", "paraphrased"]
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # it names the file of the claim's last verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLayout:
    """A layout that a claim compares without a published figure."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    name: str = field(metadata={"description": "Unique in its claim."})
    set: dict[str, str | int] = field(
        default_factory=dict, metadata={"description": "How it differs from the publication's layout."}
    )
    parameters: dict[str, Scalar] = field(
        default_factory=dict, metadata={"description": "Parameters of the workload."}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenClaim:
    """A claim as its file says it."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    id: str = field(
        metadata={
            "min_length": 1,
            "description": "Unique among all claims: letters, digits, `.`, `_` and `-`.",
        }
    )
    sentence: str = field(metadata={"min_length": 1, "description": "The sentence."})
    wording: Wording = field(
        metadata={"description": "Whether it is `quoted` word by word or `paraphrased`."}
    )
    metric: str = field(metadata={"description": "What it speaks of: a metric of a trial."})
    relation: Relation = field(
        metadata={
            "description": "What the first has beside each other: `less`, `more`, as much (`equal`); "
            "`best`: none of them is better."
        }
    )
    at_least: float = field(
        default=0.0,
        metadata={"description": "With less and more: the share that the sentence promises, 0.1 for 10 %."},
    )
    within: float = field(
        default=0.02, metadata={"description": "With equal: the share that counts as no difference."}
    )
    rows: tuple[str, ...] = field(
        default=(), metadata={"description": "The published figures that it compares, `TABLE/ROW`."}
    )
    layouts: tuple[WrittenLayout, ...] = field(
        default=(), metadata={"description": "The layouts that it compares, where none has a figure."}
    )
    workload: str = field(
        default="", metadata={"description": "The workload, where not that of its figures or publication."}
    )
    where: str = field(default="", metadata={"description": "Where in the publication it stands."})
    doubt: str = field(default="", metadata={"description": "What was doubtful before we tried."})
    stand_in: str = field(
        default="",
        metadata={"description": "What our trial puts in the place of something that can't be had."},
    )
    cannot: str = field(
        default="", metadata={"description": "Why no trial of ours can test it; none where one can."}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A file of claims."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = STRICT

    publication: str = field(
        metadata={"description": "The publication that they stand in: a file of `studies/published`."}
    )
    claim: tuple[WrittenClaim, ...] = field(metadata={"description": "The claims."})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLayout:
    """One side of a comparison. ``figure``: what was published of it, in the claim's unit."""

    name: str
    layout: Layout
    set: Mapping[str, str | int]
    parameters: Mapping[str, Scalar]
    figure: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One published sentence, resolved. The first of ``layouts`` is the one that it speaks of; a claim that
    no trial can test may have none.

    ``at_least`` and ``within`` are shares; ``unit`` is that of the figures, as published.
    """

    id: str
    source: Publication
    sentence: str
    wording: Wording
    metric: str
    relation: Relation
    at_least: float
    within: float
    workload: str
    layouts: tuple[ComparedLayout, ...]
    unit: str = ""
    where: str = ""
    doubt: str = ""
    stand_in: str = ""
    cannot: str = ""

    @property
    def subject(self) -> ComparedLayout:
        """The layout that the sentence speaks of."""
        return self.layouts[0]

    @property
    def others(self) -> tuple[ComparedLayout, ...]:
        """What it is compared with."""
        return self.layouts[1:]


_INNER = {"claim": WrittenClaim, "layouts": WrittenLayout}


def load(path: Path) -> tuple[Claim, ...]:
    """Return the claims in the TOML file ``path``, each layout checked. Raises InputError."""
    return _load_shipped(path) if ready.unchanging(path) else _load(path)


def _load(path: Path) -> tuple[Claim, ...]:
    file = File(path)
    found = file.parse(Claims, _INNER, "a file of claims")
    try:
        source = publication.find(found.publication)
    except InputError as error:
        raise file.wrong(("publication",), str(error)) from None
    for i, name in twice([entry.id for entry in found.claim]):
        raise file.wrong(("claim", i, "id"), f'two claims are called "{name}"')
    base, rows = source.base(), source.rows()
    return tuple(
        _resolved(file, ("claim", i), entry, source, base, rows) for i, entry in enumerate(found.claim)
    )


_load_shipped = functools.cache(_load)


def _resolved(
    file: File,
    at: tuple[str | int, ...],
    entry: WrittenClaim,
    source: Publication,
    base: Layout,
    rows: Mapping[str, tuple[publication.Table, publication.Figure]],
) -> Claim:
    check_metric(file, entry.metric, (*at, "metric"))
    if (entry.rows and entry.layouts) or not (entry.rows or entry.layouts or entry.cannot):
        raise file.wrong(at, "a claim has either rows, which are published figures, or layouts")
    if len(entry.rows) + len(entry.layouts) == 1:
        raise file.wrong(at, "a claim compares two layouts or more")
    if not _ID.fullmatch(entry.id):
        raise file.wrong((*at, "id"), f'"{entry.id}" is no id: write letters, digits, ".", "_" and "-"')
    for key, value in (("at_least", entry.at_least), ("within", entry.within)):
        if not 0 <= value < 10 or (key == "within" and value == 0):
            raise file.wrong((*at, key), f"{value:g} is no share; 0.1 is 10 %")
    if entry.at_least and entry.relation not in {"less", "more"}:
        raise file.wrong((*at, "at_least"), "at_least goes with less and more")
    if entry.relation == "less" and entry.at_least >= 1:
        raise file.wrong((*at, "at_least"), f"nothing is less by {entry.at_least:.0%}; 0.1 is 10 %")
    if entry.relation == "best" and MEASURED[entry.metric].less is None:
        raise file.wrong((*at, "relation"), f"neither less nor more of {entry.metric} is better")
    for key, names in (("rows", list(entry.rows)), ("layouts", [each.name for each in entry.layouts])):
        for i, name in twice(names):
            raise file.wrong((*at, key, i), f'"{name}" is compared with itself')
    for i, name in enumerate(entry.rows):
        if name not in rows:
            raise file.wrong(
                (*at, "rows", i), f'{entry.id} names "{name}", which has no figure in the publication.'
                f"{suggest(name, rows)}",
            )  # fmt: skip
    tables = [rows[name][0] for name in entry.rows]
    for what, values in (
        ("unit", {t.unit for t in tables}),
        ("quantity", {t.quantity for t in tables}),
        ("metric", {t.metric for t in tables} | ({entry.metric} if tables else set())),
        ("workload", {t.workload for t in tables}),
    ):
        if len(values) > 1:
            raise file.wrong(
                (*at, "rows"), f"{entry.id} compares figures of another {what}: "
                f"{'; '.join(sorted(v or 'none' for v in values))}",
            )  # fmt: skip
    workload = entry.workload or (tables[0].workload if tables else "") or source.workload
    sides: list[ComparedLayout] = []
    for i, name in enumerate(entry.rows):
        row = rows[name][1]
        made = file.changed(base, row.set, name, (*at, "rows", i))
        sides.append(
            ComparedLayout(name=name, layout=made, set=row.set, parameters=row.parameters, figure=row.value)
        )
    for i, each in enumerate(entry.layouts):
        made = file.changed(base, each.set, each.name, (*at, "layouts", i))
        sides.append(ComparedLayout(name=each.name, layout=made, set=each.set, parameters=each.parameters))
    key = "rows" if entry.rows else "layouts"
    seen: dict[tuple[object, ...], str] = {}
    for i, side in enumerate(sides):
        check_workload(file, workload, side.parameters, (*at, key, i))
        same = seen.setdefault((side.layout.hash, *sorted(side.parameters.items())), side.name)
        if same != side.name:
            raise file.wrong((*at, key, i), f"{side.name} and {same} are the same layout and workload")
    return Claim(
        id=entry.id, source=source, sentence=entry.sentence, wording=entry.wording, metric=entry.metric,
        relation=entry.relation, at_least=entry.at_least, within=entry.within, workload=workload,
        layouts=tuple(sides), unit=tables[0].unit if tables else "", where=entry.where, doubt=entry.doubt,
        stand_in=entry.stand_in, cannot=entry.cannot,
    )  # fmt: skip


def every() -> dict[str, Claim]:
    """Return id → claim of all: ztune's (``studies/claims``) and the user's own. Raises InputError."""
    _places()
    return {claim.id: claim for path in files("claims").values() for claim in load(path)}


def find(name: str) -> Claim:
    """Return the claim with the id ``name``; no other file than its own is checked. Raises InputError."""
    known = _places()
    if name not in known:
        raise InputError(f'there is no claim "{name}".{suggest(name, known)}')
    return next(claim for claim in load(known[name]) if claim.id == name)


def _places() -> dict[str, Path]:
    """Return id → file of all claims, as far as the files can be read. Raises InputError."""
    found: dict[str, Path] = {}
    for path in files("claims").values():
        entries = read_toml(path)[0].get("claim")
        for entry in entries if isinstance(entries, list) else ():
            name = entry.get("id") if isinstance(entry, dict) else None
            if not isinstance(name, str):
                continue  # which load says
            if found.setdefault(name, path) != path:
                raise InputError(f'{path}: a claim "{name}" stands in {found[name]} too')
    return found


def replay_cannot(claim: Claim) -> str:
    """Return why a replay can't tell whether the claim holds, in a sentence; empty where it can.

    What differs in the database or in its workload needs a recording of its own for each layout.
    """
    metric = MEASURED[claim.metric]
    if claim.cannot:
        return claim.cannot
    if not (metric.predicted or OBJECTIVES.keys() & set(metric.asked)):
        return f"a replay doesn't tell {metric.label}"
    factors = sorted({key for side in claim.others for key in _differ(claim.subject, side)})
    for key in factors:
        head, _, name = key.partition(".")
        if key.endswith(".filesystem"):
            return "a replay knows no other file system than ZFS"
        if head == "tunable" and not TUNABLES[name].replayed:
            return f"a replay leaves {name} out"
        if name in PROPERTIES and not PROPERTIES[name].replayed:
            return f"a replay leaves {name} out"
        if metric.clock and head == "tunable" and name.startswith("zfs_vdev_") and name.endswith("_active"):
            return "a replay's modelled time does not know how many I/Os a disk is given at once"
    return ""


def _differ(a: ComparedLayout, b: ComparedLayout) -> set[str]:
    one, two = a.layout.settings(), b.layout.settings()
    return {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)}
