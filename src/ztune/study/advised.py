"""The advice that is in print: named sets of settings by database and role, each with its source.

A set is a TOML file in ``advice`` of a folder of studies, ztune's or the user's own; docs/advice.md explains
the format. A set becomes a layout beside those of a study: its properties on the study's own disks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from ztune.databases import database as databases
from ztune.errors import InputError
from ztune.onhost.fields import KeyedError
from ztune.onhost.layout import Layout
from ztune.onhost.properties import MOUNTED, PROPERTIES, REPLAYED, parse_property
from ztune.onhost.tunables import TUNABLES, parse_tunable
from ztune.onhost.words import ROLES, suggest
from ztune.study import ready
from ztune.study.layout import plain, with_settings
from ztune.study.study import NamedLayout, Study
from ztune.study.tables import Strict
from ztune.toml.reading import Hints, Loc, explain, read_toml

PREFIX = "advice:"
"""How layouts that are somebody's advice are called: ``advice:openzfs-guide``."""
ANY = "any"
"""What stands in a set for every database that it does not name."""
# Not a matter of speed, or of the data's own nature: advice that is silent on them leaves them as they are.
_KEPT = frozenset({"encryption", "acltype", "snapdir", "volblocksize", "special_small_blocks", "copies"})


class AdvisedValue(Strict):
    """One setting, as somebody advises it."""

    value: str | int = Field(description="The value, as ZFS or the database takes it.")
    says: str = Field(min_length=1, description="What the source says of it, in your own words.")
    url: str = Field(default="", description="Where it says so, if not at the set's `url`.")


_Values = dict[str, AdvisedValue]


def _role(role: str) -> _Values | None:
    """Return the field of one role."""
    found: _Values | None = Field(default=None, description=f"ZFS property → what is advised for {role}.")
    return found


class DatabaseAdvice(Strict):
    """What a set says of one database.

    A role that it names has ZFS's defaults beside what it says; one that it does not name stays as it is.
    """

    note: str = Field(default="", description="What a reader has to know of it.")
    data: _Values | None = _role("data")
    index: _Values | None = _role("index")
    wal: _Values | None = _role("wal")
    temp: _Values | None = _role("temp")
    backup: _Values | None = _role("backup")
    archive: _Values | None = _role("archive")
    source: _Values | None = _role("source")
    tunables: _Values = Field(default_factory=dict, description="Module parameters of OpenZFS.")
    settings: _Values = Field(default_factory=dict, description="Settings of the database itself.")
    left_out: tuple[str, ...] = Field(
        default=(), description="What the source advises too and no layout here has, and why; sentences."
    )

    @model_validator(mode="after")
    def _check(self) -> DatabaseAdvice:
        for role, values in self.roles().items():
            for name, advised in values.items():
                try:
                    parse_property(name, advised.value)
                except ValueError as error:
                    raise KeyedError((role, name), str(error)) from None
        for name, advised in self.tunables.items():
            try:
                parse_tunable(name, advised.value)
            except ValueError as error:
                raise KeyedError(("tunables", name), str(error)) from None
        if not self.roles():
            raise KeyedError((), f"it names no role; the roles are {', '.join(ROLES)}")
        return self

    def roles(self) -> dict[str, _Values]:
        """Return role → property → what is advised, of the roles that are named."""
        return {role: values for role in ROLES if (values := getattr(self, role)) is not None}


class AdviceSet(Strict):
    """A file of ``studies/advice``."""

    title: str = Field(min_length=1, description="The title of what it was read in.")
    author: str = Field(default="", description="Who wrote it.")
    url: str = Field(default="", description="Where it can be read; none where that is not known.")
    as_of: str = Field(min_length=1, description="The date of what was read, such as 2026-07-22 or 2014.")
    note: str = Field(default="", description="What a reader has to know of the whole.")
    database: dict[str, DatabaseAdvice] = Field(
        min_length=1,
        description=f"Database, by ztune's name for it → what is said of it; `{ANY}`: every other.",
    )

    @model_validator(mode="after")
    def _check(self) -> AdviceSet:
        known = [*(one.name for one in databases.every()), ANY]
        for name in self.database:
            if name not in known:
                raise KeyedError(
                    ("database", name),
                    f'"{name}" is not a database; they are {", ".join(known)}.{suggest(name, known)}',
                )
        return self


def files() -> dict[str, Path]:
    """Return name → file of every set, sorted; the user's own before ztune's."""
    found: dict[str, Path] = {}
    for folder in reversed(ready.folders()):
        found.update({f.stem: f for f in sorted((folder / "advice").glob("*.toml"))})
    return dict(sorted(found.items()))


def find(name: str) -> AdviceSet:
    """Return the set ``name``, with ``advice:`` before it or without. Raises InputError."""
    short, known = name.removeprefix(PREFIX), files()
    if short not in known:
        raise InputError(
            f'there is no set of advice "{short}"; there are {", ".join(known)}.{suggest(short, known)}'
        )
    return load(known[short])


def load(path: Path) -> AdviceSet:
    """Return the set in the TOML file ``path``. Raises InputError with one sentence."""
    raw, text = read_toml(path)
    try:
        return AdviceSet.model_validate(raw)
    except ValidationError as error:
        raise InputError(explain(error, raw, text, path, _HINTS, "a set of advice")) from None


def about(name: str, database: str) -> DatabaseAdvice:
    """Return what the set ``name`` says of ``database``. Raises InputError where it says nothing of it."""
    found = find(name).database
    here = found.get(database, found.get(ANY))
    if here is None:
        raise InputError(
            f"{PREFIX}{name.removeprefix(PREFIX)} says nothing of {database}, but of {', '.join(found)}; "
            "`ztune list advice` shows which set says something of which database"
        )
    return here


def sets_of(database: str) -> dict[str, DatabaseAdvice]:
    """Return name → what it says, of the sets that say something of ``database``. Raises InputError."""
    found = {name: load(path).database for name, path in files().items()}
    return {name: said for name, by in found.items() if (said := by.get(database, by.get(ANY))) is not None}


REPLAY, MOUNT = "replay", "mount"
HAS: Mapping[str, Collection[str]] = {REPLAY: REPLAYED, MOUNT: MOUNTED}
"""Places that have only some of ZFS's properties, and only the tunables of a replay."""


@dataclass(frozen=True)
class AdvisedChanges:
    """What a set changes of a base layout: ``changes``, factors as in a study; ``settings``, those of the
    database, which change the job itself; ``notes``, sentences on what has no place in that layout."""

    changes: Mapping[str, str | int]
    settings: Mapping[str, str | int]
    notes: tuple[str, ...]


def changes(said: DatabaseAdvice, base: Layout, place: str | None = None) -> AdvisedChanges:
    """Return what ``said`` changes of ``base``, on the pools that ``base`` has; ``place``: without what that
    one of ``HAS`` does not have."""
    has = HAS.get(place or "", PROPERTIES)
    found: dict[str, str | int] = {}
    notes, without = [], []
    roles = {role: {n: one.value for n, one in values.items()} for role, values in said.roles().items()}
    for dataset in base.datasets:
        here = roles.get(dataset.key)
        apart = [role for role in dataset.roles[1:] if roles.get(role) and roles[role] != here]
        if apart:
            notes.append(
                f"{' and '.join(apart)} shares a dataset with {dataset.key} here, whose settings it has"
            )
        if here is None or dataset.volume is not None or base.pool(dataset.pool).filesystem != "zfs":
            continue
        for name in [n for n in dataset.properties if n not in _KEPT and n not in here]:
            if name in has:
                found[f"{dataset.key}.{name}"] = "default"
        for name, value in here.items():
            if name not in has:
                without.append(name)
            else:
                found[f"{dataset.key}.{name}"] = value
    for name, one in said.tunables.items():
        if place in HAS and not TUNABLES[name].replayed:
            without.append(name)
        else:
            found[f"tunable.{name}"] = one.value
    if without:
        notes.append(f"without {', '.join(dict.fromkeys(without))}, which a {place} does not have")
    settings = {f"database.{name}": one.value for name, one in said.settings.items()}
    return AdvisedChanges(found, settings, tuple(notes))


@dataclass(frozen=True)
class StudyBeside:
    """A study with layouts of sets of advice, and sentences on what of the sets they leave out."""

    study: Study
    notes: tuple[str, ...]


def beside(study: Study, names: Sequence[str], database: str | None, place: str | None) -> StudyBeside:
    """Return ``study`` with a layout for each of the sets ``names``, before its own.

    ``database``: the study's, by ztune's name. ``place``: where it is tried; without what that one of ``HAS``
    does not have. A set with settings of the database is two layouts, without them and with them, but in a
    replay. Raises InputError for a set that there is not, and for one that says nothing of the database.
    """
    if not names:
        return StudyBeside(study, ())
    if database is None:
        raise InputError(
            f"{PREFIX}{names[0].removeprefix(PREFIX)} is by database, and which one this is is not known; "
            "give the study a workload"
        )
    added, notes = [], []
    same_as = {study.layout.hash: f'the base layout, "{study.layout.name}"'}
    for name in dict.fromkeys(one.removeprefix(PREFIX) for one in names):
        found = changes(about(name, database), study.layout, place)
        notes += [f"{PREFIX}{name}: {note}" for note in found.notes]
        wanted = {f"{PREFIX}{name}": dict(found.changes)}
        if found.settings and place != REPLAY:
            wanted[f"{PREFIX}{name} and its settings"] = {**found.changes, **found.settings}
        elif found.settings:
            said = ", ".join(f"{k.partition('.')[2]}={v}" for k, v in found.settings.items())
            notes.append(
                f"{PREFIX}{name}: without its settings of the database ({said}), which change the job "
                "itself; `ztune run … --advice` tries them too"
            )
        for called, set_ in wanted.items():
            layout = _made(study, called, set_)
            same = same_as.setdefault(layout.hash, called)
            if same != called:
                notes.append(f"{called} is the same here as {same}")
                continue
            added.append(NamedLayout(name=called, description=find(name).title, set=set_))
    taken = {one.name for one in added}
    kept = [one for one in study.layouts if one.name not in taken]
    return StudyBeside(study.model_copy(update={"layouts": (*added, *kept)}), tuple(notes))


def _made(study: Study, name: str, set_: Mapping[str, str | int]) -> Layout:
    """Return the layout that ``set_`` makes of the study's base. Raises InputError."""
    try:
        return with_settings(study.layout, set_)
    except ValueError as error:
        raise InputError(f'{name} does not fit study "{study.name}": {plain(error)}') from None


def _model(loc: Loc) -> type[Strict]:
    """Return the model of the table at ``loc``."""
    return (AdviceSet, AdviceSet, DatabaseAdvice, DatabaseAdvice, AdvisedValue)[min(len(loc), 4)]


def _keys(loc: Loc) -> list[str]:
    return list(_model(loc[:-1]).model_fields)


def _described(loc: Loc) -> str:
    field = _model(loc[:-1]).model_fields.get(str(loc[-1]))
    said = field.description if field is not None else ""
    return f": {said[:1].lower()}{said[1:].rstrip('.')}" if said else ""


_HINTS = Hints(_keys, lambda loc: suggest(str(loc[-1]), _keys(loc)), _described)
