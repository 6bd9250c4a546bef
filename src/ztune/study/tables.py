"""The tables of a layout in TOML: pydantic makes the parts in ``onhost/layout.py`` of them.

Sizes are bytes inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo

from ztune.onhost.age import age_table
from ztune.onhost.fields import KeyedError
from ztune.onhost.layout import MIN_DISK, MIN_DISKS, Dataset, Vdev
from ztune.onhost.properties import ALIASES, PROPERTIES, STATED, parse_property
from ztune.onhost.tunables import parse_tunable
from ztune.onhost.words import suggest
from ztune.units import format_size, parse_size

_DATASET_KEYS = ("name", "roles", "volume", "filesystem", "properties")


class Strict(BaseModel):
    """Base of all models: unknown keys are refused, values can't be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _size(value: object) -> int:
    size = parse_size(value)
    if size < MIN_DISK:
        raise ValueError(f"{format_size(size)} is too small; ZFS takes disks of 64M and more")
    return size


_VDEV = TypeAdapter(Vdev)


def parse_vdevs(text: str, class_: str) -> tuple[Vdev, ...]:
    """Return the vdevs of a short form, as ``Vdev.text`` writes it, several joined by " + "; "none" for none.

    "2 nvme" is short for "stripe 2 nvme", "mirror nvme" for the fewest disks that a mirror takes. Raises
    ValueError with a sentence.
    """
    if text == "none":
        if class_ == "data":
            raise ValueError("a pool needs at least one data vdev")
        return ()
    vdevs = []
    for part in text.split("+"):
        words = part.split()
        kind = words.pop(0) if len(words) > 1 and words[0] in MIN_DISKS else "stripe"
        disks = words.pop(0) if len(words) > 1 and words[0].isdecimal() else str(MIN_DISKS[kind])
        if len(words) != 1 or len(disks) > 3:
            raise ValueError(
                f'"{text}" is not a vdev; write none, PROFILE, or KIND N PROFILE such as "mirror 2 nvme"'
            )
        profile, _, size = words[0].partition(":")
        table = {"class": class_, "kind": kind, "disks": int(disks), "profile": profile}
        vdevs.append(_VDEV.validate_python({**table, "size": _size(size) if size else None}))
    return tuple(vdevs)


def vdev_table(vdev: Vdev) -> dict[str, Any]:
    """Return a vdev as its table in TOML says it."""
    table: dict[str, Any] = _VDEV.dump_python(vdev, mode="json", by_alias=True)
    return table


def _pool_table(value: object) -> object:
    """Return a pool's table with the sizes of its disks in bytes."""
    if not isinstance(value, Mapping) or not isinstance(value.get("vdev"), list | tuple):
        return value
    vdevs = list(value["vdev"])
    for i, vdev in enumerate(vdevs):
        if isinstance(vdev, Mapping) and vdev.get("size") is not None:
            try:
                vdevs[i] = {**vdev, "size": _size(vdev["size"])}
            except ValueError as error:
                raise KeyedError(("vdev", i, "size"), str(error)) from None
    return {**value, "vdev": vdevs}


def _dataset_table(value: object) -> object:
    """Return a dataset's table with its properties gathered, their defaults in, and its volume in bytes."""
    if not isinstance(value, Mapping):
        return value
    given: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, item in value.items():
        (rest if key in _DATASET_KEYS else given)[key] = item
    nested = rest.get("properties", {})
    if not isinstance(nested, Mapping):
        raise KeyedError(("properties",), "properties is a table of property = value")
    properties = {name: PROPERTIES[name].default for name in STATED}
    seen: set[str] = set()
    for key, item in [
        *((("properties", k), v) for k, v in nested.items()),
        *(((k,), v) for k, v in given.items()),
    ]:
        try:
            name, text = parse_property(str(key[-1]), item)
        except ValueError as error:
            message = str(error)
            if str(key[-1]) not in PROPERTIES and str(key[-1]) not in ALIASES:
                near = suggest(str(key[-1]), [*_DATASET_KEYS, *PROPERTIES])
                message = f'"{key[-1]}" is not a property that a layout can set.{near}'
            raise KeyedError(key, message) from None
        if name in seen:
            raise KeyedError(key, f"{name} is set twice on this dataset")
        seen.add(name)
        properties[name] = text
    volume = rest.get("volume") is not None
    if volume:
        properties.setdefault("volblocksize", PROPERTIES["volblocksize"].default)
        rest["filesystem"] = rest.get("filesystem") or "ext4"
    # Left out at their defaults, so that a layout that says them has the hash of one that does not.
    for name in ("encryption", "direct", *([] if volume else ["volblocksize"])):
        if properties.get(name) == PROPERTIES[name].default:
            del properties[name]
    if volume:
        try:
            rest["volume"] = _volume(rest["volume"])
        except ValueError as error:
            raise KeyedError(("volume",), str(error)) from None
    return {**rest, "properties": properties}


def check_properties(dataset: Dataset) -> None:
    """Check the properties of a volume. Raises KeyedError."""
    if dataset.volume is None:
        return
    if dataset.volume % parse_size(dataset.properties["volblocksize"]):
        raise KeyedError(
            ("volume",),
            f"{format_size(dataset.volume)} is not a multiple of the volblocksize "
            f"{dataset.properties['volblocksize']}",
        )
    for name in set_by_study(dataset):
        if not PROPERTIES[name].volumes:
            instead = "; a volume has volblocksize" if name == "recordsize" else ""
            raise KeyedError((name,), f"{name} is no property of a volume, which {dataset.name} is{instead}")


def set_by_study(dataset: Dataset) -> dict[str, str]:
    """Return the properties that a study says of its dataset, as far as can be told: the stated are there at
    ZFS's default, too, where it says nothing."""
    return {k: v for k, v in dataset.properties.items() if k not in STATED or v != PROPERTIES[k].default}


def layout_table(value: object) -> object:
    """Return a layout's table with sizes in bytes, properties gathered, and values as ZFS would write them.

    What is no table is returned as it is, for pydantic to complain of. Raises KeyedError.
    """
    if not isinstance(value, Mapping):
        return value
    out = dict(value)
    database = value.get("database", {})
    steps: dict[str, Callable[[object], object]] = {
        "arc": parse_size,
        "age": age_table,
        "tunables": _tunables,
        "database": _database,
        "workload": _database,
        "durability": lambda declared: _declared(declared, database),
    }
    for key, step in steps.items():
        if key in value:
            out[key] = _below((key,), step, value[key])
    for key, step in (("pool", _pool_table), ("dataset", _dataset_table)):
        if isinstance(value.get(key), list | tuple):
            out[key] = [_below((key, i), step, item) for i, item in enumerate(value[key])]
    return out


def _below(path: tuple[str | int, ...], step: Callable[[object], object], value: Any) -> Any:
    """Return ``step(value)``; what is wrong with it is wrong below ``path``."""
    try:
        return step(value)
    except ValueError as error:
        further = error.path if isinstance(error, KeyedError) else ()
        raise KeyedError((*path, *further), str(error)) from None


def _tunables(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {n: _below((str(n),), partial(parse_tunable, str(n)), item) for n, item in value.items()}


def _database(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    for name, item in value.items():
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise KeyedError((str(name),), f'{name} is {item!r}; write it as text, such as "off"')
    return {str(name): str(item) for name, item in value.items()}


def _declared(value: Any, database: Any) -> Any:
    """Note which settings a declaration speaks of: the base layout's."""
    if isinstance(value, Mapping) and "own" not in value and isinstance(database, Mapping):
        return {**value, "own": _database(database)}
    return value


def fields_of(model: type) -> dict[str, FieldInfo]:
    """Return name → pydantic's view of each field, of a model or of a part in ``onhost/layout.py``."""
    if issubclass(model, BaseModel):
        return dict(model.model_fields)
    assert is_dataclass(model)
    return {f.name: FieldInfo.from_annotated_attribute(Any, f) for f in dataclass_fields(model)}


def _volume(value: object) -> int:
    size = parse_size(value)
    if size == 0:
        raise ValueError("a volume has a size; leave it out for a file system")
    return size
