"""The spec of a trial: parsed and checked as strictly as a user's file, in one sentence per fault.

It comes from another program, most often another host, so nothing in it is trusted: names that become paths,
dataset names or arguments of commands are checked here. See docs/trial-format.md for every field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ztune.errors import InputError
from ztune.onhost import fields
from ztune.onhost.fields import shown
from ztune.onhost.host import about
from ztune.onhost.host.home import ID as _ID
from ztune.onhost.host.home import RunHome
from ztune.onhost.host.mounted import CACHES, DISKS, MountOptions
from ztune.onhost.layout import CLASSES, MIN_DISK, Layout
from ztune.units import parse_size

FORMAT = "ztune-trial"
VERSION = 1
_Word = TypeVar("_Word", bound=str)
_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
_POOL = re.compile(r"[A-Za-z][A-Za-z0-9_.: -]*")
_PROPERTY = re.compile(r"[a-z][a-z0-9_]*")
_VALUE = re.compile(r"[A-Za-z0-9_.:+-]+")


@dataclass(frozen=True, slots=True)
class Kept:
    """Where loaded pools are kept: a trial whose load would leave the same behind begins with a copy."""

    folder: Path
    engine: Mapping[str, Any]
    """As ``Mounting.engine``, with nothing but what decides how a load lies on the disks."""


@dataclass(frozen=True, slots=True)
class Mounting:
    """How ``ztune-mount`` holds the pools: the program, where it keeps disks, and what it is told."""

    program: Path
    stores: Path
    """The directory in which the trial makes its store."""
    engine: Mapping[str, Any]
    """The layout as OpenZFS in user space takes it; the program checks it."""
    options: MountOptions
    notes: tuple[str, ...]
    """What a reader of the result must know: settings that a mount does not have."""
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class PoolPlacement:
    """Where the layout's pools go.

    ``disks`` maps pool → class → one tuple per vdev of its disks: paths for kind "disks", sizes in bytes for
    kind "files". ``parents`` maps pool → an existing dataset, for kind "parent". ``mounting`` is for kind
    "mount".
    """

    kind: str
    disks: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, tuple[tuple[int, ...], ...]]] = field(default_factory=dict)
    dir: Path | None = None
    parents: Mapping[str, str] = field(default_factory=dict)
    mounting: Mounting | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole trial."""

    run: str
    trial: str
    seed: int
    state: Path
    place: PoolPlacement
    layout: Layout
    job: str
    params: Mapping[str, Any]
    database: Mapping[str, str]
    start: str
    """load, copy or keep."""
    start_path: Path | None
    settle: str
    probes: Mapping[str, Any]
    dilation: float
    patience: float
    raw: Mapping[str, Any]
    """The spec as it came, for the record."""

    @property
    def directory(self) -> Path:
        """Where the trial's mount points and work directories lie: users of databases pass through."""
        return RunHome(self.state, self.run).places / self.trial

    @property
    def home(self) -> Path:
        """Where its journal and key lie: nobody else enters."""
        return RunHome(self.state, self.run).believed / self.trial


def _fail(where: str, what: str) -> InputError:
    return InputError(f"spec: {where + ': ' if where else ''}{what}")


def _dict(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _fail(where, f"{shown(value)} is not an object")
    return value


def _object(
    value: Any, where: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    item = _dict(value, where)
    for key in item:
        if key not in needed and key not in optional:
            raise _fail(where, f'"{key}" is not a key here; the keys are {", ".join((*needed, *optional))}')
    for key in needed:
        if key not in item:
            raise _fail(where, f'"{key}" is missing')
    return item


def _text(value: Any, where: str, pattern: re.Pattern[str] | None = None, what: str = "text") -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _fail(where, f"{shown(value)} is not {what}")
    if pattern is not None and not pattern.fullmatch(value):
        raise _fail(where, f"{shown(value)} is not {what}")
    return value


def _choice(value: Any, where: str, words: Sequence[_Word]) -> _Word:
    for word in words:
        if value == word:
            return word
    raise _fail(where, f"{shown(value)} is not one of {', '.join(words)}")


def _int(value: Any, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _fail(where, f"{shown(value)} is not a whole number from {low} to {high}")
    return value


def _number(value: Any, where: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _fail(where, f"{shown(value)} is not a number")
    if not low <= value <= high:
        raise _fail(where, f"{value:g} is not a number from {low:g} to {high:g}")
    return float(value)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _fail(where, f"{shown(value)} is not a list with at least one entry")
    return value


def _size(value: Any, where: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise _fail(where, str(error)) from None


def _path(value: Any, where: str) -> Path:
    text = _text(value, where, what="a path")
    pure = PurePosixPath(text)
    if not pure.is_absolute() or ".." in pure.parts or any(ord(c) < 32 for c in text):
        raise _fail(where, f"{shown(value)} is not an absolute path without ..")
    return Path(pure)


def _dataset_name(value: Any, where: str) -> str:
    text = _text(value, where, what="a dataset name")
    first, *rest = text.split("/")
    if (
        len(text) > 200
        or not _POOL.fullmatch(first)
        or any(not _NAME.fullmatch(p) or p in (".", "..") for p in rest)
    ):
        raise _fail(where, f'{shown(value)} is not a dataset name such as "tank/ztune"')
    return text


def parse(text: str) -> Spec:
    """Return the spec in ``text``, one JSON object.

    Raises:
        InputError: the first fault found, as one sentence that begins with "spec:".
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"spec: not JSON: {error}") from None
    top = _object(
        raw,
        "",
        ("format", "version", "run", "trial", "state", "place", "layout", "job"),
        ("seed", "start", "settle", "probes", "dilation", "patience"),
    )
    if top["format"] != FORMAT:
        raise _fail("format", f'{shown(top["format"])} is not "{FORMAT}"')
    if top["version"] != VERSION or isinstance(top["version"], bool):
        raise _fail("version", f"{shown(top['version'])} is not {VERSION}, the one that this program knows")
    run = _text(top["run"], "run", _ID, "an id of letters, digits, - and _")
    trial = _text(top["trial"], "trial", _ID, "an id of letters, digits, - and _")
    layout = _layout(top["layout"])
    job = _object(top["job"], "job", ("name",), ("params", "database"))
    start = _object(top.get("start", {"kind": "load"}), "start", ("kind",), ("from", "save"))
    kind = _choice(start["kind"], "start.kind", ("load", "copy", "keep"))
    path_key = {"copy": "from", "keep": "save"}.get(kind)
    for key in ("from", "save"):
        if (key in start) != (key == path_key):
            raise _fail(
                "start", f'"{key}" {"is missing" if key == path_key else f"does not go with kind {kind}"}'
            )
    probes = _dict(top.get("probes", {}), "probes")
    params = _dict(job.get("params", {}), "job.params")
    return Spec(
        run=run,
        trial=trial,
        seed=_int(top.get("seed", 0), "seed", 0, (1 << 63) - 1),
        state=_path(top["state"], "state"),
        place=_place(top["place"], layout),
        layout=layout,
        job=_text(job["name"], "job.name"),
        params=params,
        database=_database(job.get("database", {}), "job.database") or layout.database,
        start=kind,
        start_path=_path(start[path_key], f"start.{path_key}") if path_key else None,
        settle=_choice(top.get("settle", "cold"), "settle", ("cold", "warm")),
        probes=probes,
        dilation=_number(top.get("dilation", 1.0), "dilation", 0.001, 10_000),
        patience=_number(top["patience"], "patience", 1, 10_000) if "patience" in top else about.patience(),
        raw=raw,
    )


def _database(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise _fail(where, f"{shown(value)} is not an object of texts")
    return dict(value)


def _layout(value: Any) -> Layout:
    """Return the layout with the pools in use alone, as it came: the study's checks are not made again."""
    raw = dict(_dict(value, "layout"))
    for key, prepared in (("pool", _pool), ("dataset", _dataset)):
        entries = raw.get(key)
        if isinstance(entries, list):
            raw[key] = [
                prepared(item, f"layout.{key}[{i}]") if isinstance(item, dict) else item
                for i, item in enumerate(entries)
            ]
    if "arc" not in raw:
        raise _fail("layout", '"arc" is missing')
    _int(raw["arc"], "layout.arc", 1 << 20, 1 << 50)
    for name, number in _dict(raw.get("tunables", {}), "layout.tunables").items():
        if not _PROPERTY.fullmatch(name):
            raise _fail("layout.tunables", f"{shown(name)} is not a module parameter")
        _int(number, f"layout.tunables.{name}", 0, (1 << 63) - 1)
    try:
        layout = fields.from_json(Layout, raw)
    except fields.KeyedError as error:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
        raise _fail("layout" + path, str(error)) from None
    datasets = (*layout.datasets, *layout.neighbours(), *layout.fillers())
    return replace(layout, pools=layout.used_pools(), datasets=datasets)


def _pool(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a pool's table without what disks it has: that the place says."""
    vdevs = _list(value["vdev"], f"{where}.vdev") if "vdev" in value else []
    plain = [{**v, "profile": "", "size": None} if isinstance(v, dict) else v for v in vdevs]
    return {**value, "vdev": plain} if plain else value


def _dataset(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a dataset's table with its volume in bytes; refuse properties that are none."""
    properties = _dict(value.get("properties", {}), f"{where}.properties")
    for name in ("mountpoint", "canmount", "keylocation", "keyformat", "readonly", "sharenfs", "sharesmb"):
        if name in properties:
            raise _fail(f"{where}.properties", f"{name} is the trial's own to set")
    for name, text in properties.items():
        if not _PROPERTY.fullmatch(name) or not isinstance(text, str) or not _VALUE.fullmatch(text):
            raise _fail(f"{where}.properties", f"{shown({name: text})} is not a property and its value")
    if "name" in value:
        _dataset_name(value["name"], f"{where}.name")
    volume = value.get("volume")
    return value if volume is None else {**value, "volume": _size(volume, f"{where}.volume")}


def _place(value: Any, layout: Layout) -> PoolPlacement:
    kind = _choice(_dict(value, "place").get("kind"), "place.kind", ("disks", "files", "parent", "mount"))
    if kind == "mount":
        return PoolPlacement(kind, mounting=_mounting(value, layout))
    pools = {p.name: p for p in layout.pools}
    if kind == "parent":
        given = _dict(_object(value, "place", ("kind", "parents"))["parents"], "place.parents")
        for pool in layout.pools:
            if pool.name not in given:
                raise _fail("place.parents", f'pool "{pool.name}" of the layout has no parent dataset')
            if pool.filesystem != "zfs":
                raise _fail("place.parents", f'pool "{pool.name}" is {pool.filesystem}; that needs a disk')
        return PoolPlacement(
            kind,
            parents={
                name: _dataset_name(parent, f"place.parents.{name}")
                for name, parent in given.items()
                if name in pools
            },
        )
    item = _object(value, "place", ("kind", "disks"), ("dir",) if kind == "files" else ())
    if kind == "files" and "dir" not in item:
        raise _fail("place", '"dir" is missing')
    given = _dict(item["disks"], "place.disks")
    found: dict[str, dict[str, tuple[tuple[Any, ...], ...]]] = {}
    for pool in layout.pools:
        where = f"place.disks.{pool.name}"
        if pool.name not in given:
            raise _fail("place.disks", f'pool "{pool.name}" of the layout has no disks')
        classes = _object(given[pool.name], where, (), CLASSES)
        found[pool.name] = {}
        for class_ in CLASSES:
            vdevs = pool.of_class(class_)
            groups = classes.get(class_, [])
            here = f"{where}.{class_}"
            if not isinstance(groups, list) or [len(g) if isinstance(g, list) else -1 for g in groups] != [
                v.disks for v in vdevs
            ]:
                shape = " + ".join(str(v.disks) for v in vdevs) or "no"
                raise _fail(here, f"{shown(groups)} does not fit the layout, which has {shape} disks there")
            if vdevs:
                found[pool.name][class_] = tuple(
                    tuple(_disk(kind, d, f"{here}[{i}][{j}]") for j, d in enumerate(group))
                    for i, group in enumerate(groups)
                )
    if kind == "files":
        return PoolPlacement(kind, sizes=found, dir=_path(item["dir"], "place.dir"))
    return PoolPlacement(kind, disks=found)


def _mounting(value: Any, layout: Layout) -> Mounting:
    item = _object(
        value,
        "place",
        ("kind", "program", "stores", "engine"),
        ("disks", "cache", "page_cache", "notes", "kept"),
    )
    engine = item["engine"]
    datasets = engine.get("datasets") if isinstance(engine, dict) else None
    names = [d.get("name") for d in datasets if isinstance(d, dict)] if isinstance(datasets, list) else []
    if sorted(map(str, names)) != sorted(d.name for d in layout.datasets):
        raise _fail("place.engine", "it has other datasets than the layout")
    page_cache = item.get("page_cache", False)
    if not isinstance(page_cache, bool):
        raise _fail("place.page_cache", f"{shown(page_cache)} is neither true nor false")
    notes = item.get("notes", [])
    if not isinstance(notes, list):
        raise _fail("place.notes", f"{shown(notes)} is not a list")
    return Mounting(
        _path(item["program"], "place.program"),
        _path(item["stores"], "place.stores"),
        engine,
        MountOptions(
            _choice(item.get("disks", DISKS[0]), "place.disks", DISKS),
            _choice(item.get("cache", CACHES[0]), "place.cache", CACHES),
            page_cache,
        ),
        tuple(_text(note, "place.notes") for note in notes),
        _kept(item["kept"]) if "kept" in item else None,
    )


def _kept(value: Any) -> Kept:
    item = _object(value, "place.kept", ("folder", "engine"))
    return Kept(_path(item["folder"], "place.kept.folder"), _dict(item["engine"], "place.kept.engine"))


def _disk(kind: str, value: Any, where: str) -> str | int:
    if kind == "disks":
        return str(_path(value, where))
    size = _size(value, where)
    if size < MIN_DISK:
        raise _fail(where, f"{shown(value)} is too small; ZFS takes disks of 64M and more")
    return size
