"""Changing one layout into another by factors: "data.recordsize" = "8K", "slog" = "nvme"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ztune.onhost.layout import FACTOR_CLASS
from ztune.onhost.properties import ALIASES, PROPERTIES, parse_property
from ztune.onhost.tunables import parse_tunable
from ztune.onhost.words import ROLES, suggest
from ztune.study.tables import parse_vdevs, vdev_table

_OF_AGE = ("fill", "rewrites", "snapshots", "write")
_OF_DATASET = ("pool", "volume", "filesystem", *PROPERTIES)


def changed(raw: dict[str, Any], changes: Mapping[str, object], name: str | None = None) -> dict[str, Any]:
    """Return ``raw``, a layout as ``Layout.to_json`` writes it, with ``changes`` made; not checked.

    See ``Layout.with_settings``. Raises ValueError with a sentence.
    """
    # Pool shapes first, whatever the order written: special_small_blocks needs a special vdev.
    # A volume before what stands on it.
    for key in sorted(changes, key=lambda k: (k.split(".")[0] in ROLES, not k.endswith(".volume"))):
        _change(raw, key, changes[key])
    if name is not None:
        raw["name"] = name
        raw["description"] = ""
    return raw


def _change(raw: dict[str, Any], key: str, value: object) -> None:
    head, _, rest = key.partition(".")
    if key in {"arc", "age"}:
        raw[key] = value
    elif head == "age" and rest in _OF_AGE:
        raw["age"] = {**(raw.get("age") or {}), rest: value}
    elif key in {"slog", "l2arc", "special"}:
        _vdevs(raw["pool"][0], key, value)
    elif head == "pool":
        _pool(raw, key, rest, value)
    elif head in {"tunable", "database", "workload"} and rest:
        table = raw["tunables"] if head == "tunable" else raw.setdefault(head, {})
        if value == "default":
            table.pop(rest, None)
        elif head == "tunable":
            table[rest] = parse_tunable(rest, value)
        else:
            table[rest] = value
    elif head in ROLES and rest:
        _dataset(raw, head, rest, value)
    else:
        raise ValueError(
            f'"{key}" is not a factor; write ROLE.PROPERTY, ROLE.pool, slog, l2arc, special, arc, age, '
            f"pool.NAME.ashift, pool.NAME.data, pool.NAME.filesystem, ROLE.volume, ROLE.filesystem, "
            f"tunable.NAME, database.NAME or workload.NAME.{suggest(key, _known(raw))}"
        )


def _known(raw: Mapping[str, Any]) -> list[str]:
    """Return the factors that a user may have meant: those of the layout's own pools, roles and settings."""
    return [
        *("arc", "age", *(f"age.{of}" for of in _OF_AGE), "slog", "l2arc", "special"),
        *(f"pool.{p['name']}.{of}" for p in raw["pool"] for of in ("ashift", "filesystem", *FACTOR_CLASS)),
        *(f"{d['roles'][0]}.{of}" for d in raw["dataset"] for of in _OF_DATASET),
        *(f"tunable.{name}" for name in raw["tunables"]),
        *(f"database.{name}" for name in raw["database"]),
        *(f"workload.{name}" for name in raw.get("workload", ())),
    ]


def _vdevs(pool: dict[str, Any], factor: str, value: object) -> None:
    class_ = FACTOR_CLASS[factor]
    # "same": disks like the pool's first data disk, whatever `--profile` made of it.
    like = next(v["profile"] for v in pool["vdev"] if v["class"] == "data")
    new = parse_vdevs(re.sub(r"\bsame\b(?!-)", lambda _: like, str(value)), class_)
    others = [v for v in pool["vdev"] if v["class"] != class_]
    made = [vdev_table(v) for v in new]
    pool["vdev"] = [*made, *others] if class_ == "data" else [*others, *made]


def _pool(raw: dict[str, Any], key: str, rest: str, value: object) -> None:
    name, _, factor = rest.rpartition(".")
    pools = {p["name"]: p for p in raw["pool"]}
    if name not in pools:
        raise ValueError(f'"{key}": the layout has no pool "{name}"; its pools are {", ".join(pools)}')
    if factor == "ashift":
        pools[name]["ashift"] = value
    elif factor == "filesystem":
        pools[name]["filesystem"] = "zfs" if value == "default" else value
    elif factor in FACTOR_CLASS:
        _vdevs(pools[name], factor, value)
    else:
        raise ValueError(
            f'"{key}" is not a factor; of a pool, ashift, filesystem, data, slog, l2arc and special are'
        )


def _dataset(raw: dict[str, Any], role: str, name: str, value: object) -> None:
    entry = next((d for d in raw["dataset"] if role in d["roles"]), None)
    if entry is None:
        raise ValueError(f'role {role} has no dataset in layout "{raw["name"]}"')
    key = entry["roles"][0]
    if key != role:
        raise ValueError(
            f"role {role} lives on {entry['name']} with {key}: write {key}.{name}, "
            f"or give {role} a dataset of its own"
        )
    if name == "pool":
        pools = [p["name"] for p in raw["pool"]]
        if value not in pools:
            raise ValueError(f'{role}.pool is "{value}"; the layout\'s pools are {", ".join(pools)}')
        entry["name"] = "/".join([str(value), *entry["name"].split("/")[1:]])
        return
    if name == "volume":
        gone = value in ("none", "default")
        entry["volume"] = None if gone else value
        if gone:
            entry["filesystem"] = None
            entry["properties"].pop("volblocksize", None)
        return
    if name == "filesystem":
        entry["filesystem"] = None if value == "default" else value
        return
    full = ALIASES.get(name, name)
    if full not in PROPERTIES:
        raise ValueError(f'"{name}" is not a property that a layout can set.{suggest(name, _OF_DATASET)}')
    if value == "default":
        entry["properties"].pop(full, None)
    else:
        entry["properties"][full] = parse_property(full, value)[1]
