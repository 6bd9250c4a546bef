"""Layout: pools, datasets and where each role lives, checked as strictly as ZFS itself would check it.

All models are frozen. Sizes are bytes inside.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from ztune.databases.declared import Declared
from ztune.onhost.layout import (
    Dataset,
    KeyedError,
    Pool,
    check_together,
)
from ztune.onhost.words import ROLES, DurabilityClass
from ztune.study import durability as _durability
from ztune.study import factors as _factors
from ztune.study.properties import PROPERTIES, REPLAYED
from ztune.study.tables import FACTOR_CLASS, DatasetTable, PoolTable, Strict, non_default
from ztune.study.tunables import TUNABLES, parse_tunable
from ztune.units import format_size, parse_size

MIN_ARC, MAX_ARC = 64 << 20, 1 << 44
"""What the kernel and the engine take: OpenZFS takes no notice of less (MIN_ARC_MAX in arc.c)."""
# Runs that are stored may have a layout with an ARC that every place has refused.
_MIN_STORED_ARC = 16 << 20


def _tunables(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    out = {}
    for name, item in value.items():
        try:
            out[name] = parse_tunable(str(name), item)
        except ValueError as error:
            raise KeyedError((str(name),), str(error)) from None
    return out


def _database(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    out = {}
    for name, item in value.items():
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise KeyedError(
                (str(name),), f'{name} is {item!r}; write the database\'s own text, such as "off"'
            )
        out[str(name)] = str(item)
    return out


def _arc(value: object) -> int:
    size = parse_size(value)
    if size < _MIN_STORED_ARC:
        raise ValueError(_arc_range(size))
    return size


def _arc_range(size: int) -> str:
    what = "small" if size < MIN_ARC else "large"
    return (
        f"{format_size(size)} is too {what} for an ARC; {format_size(MIN_ARC)} is the least, "
        f"{format_size(MAX_ARC)} the most"
    )


class Layout(Strict):
    """Pools, datasets, and which role lives where.

    ``pools`` may hold pools that no role lives on: they are left out of trials, so that an axis such as
    ``wal.pool`` can move a role there.
    """

    name: str = Field(default="base", min_length=1, max_length=200, description="Unique in its study.")
    description: str = Field(default="", description="One line for people.")
    arc: Annotated[int, BeforeValidator(_arc)] = Field(
        default=64 << 20, description="The most memory the ARC may use, bytes or text."
    )
    pools: tuple[PoolTable, ...] = Field(alias="pool", min_length=1, description="The pools.")
    datasets: tuple[DatasetTable, ...] = Field(alias="dataset", min_length=1, description="The datasets.")
    tunables: Annotated[dict[str, int], BeforeValidator(_tunables)] = Field(
        default_factory=dict, description="Module parameters, by name."
    )
    database: Annotated[dict[str, str], BeforeValidator(_database)] = Field(
        default_factory=dict, description="Settings of the database itself; replay can't vary them."
    )
    declared: Declared | None = Field(
        default=None,
        alias="durability",
        description="What a power cut loses of the database, where ztune does not know it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _own(cls, value: Any) -> Any:
        """Note which settings a declaration speaks of: the base layout's."""
        if not isinstance(value, Mapping):
            return value
        declared, database = value.get("durability"), value.get("database", {})
        if isinstance(declared, Mapping) and "own" not in declared and isinstance(database, Mapping):
            return {**value, "durability": {**declared, "own": _database(database)}}
        return value

    @model_validator(mode="after")
    def _check(self) -> Layout:
        check_together(self.pools, self.datasets)
        for i, dataset in enumerate(self.datasets):
            here = self.pool(dataset.pool)
            if here.filesystem != "zfs":
                for name in non_default(dataset):
                    raise KeyedError(
                        ("dataset", i, name),
                        f"{dataset.name} is a directory on {here.filesystem}, which takes no ZFS properties",
                    )
            small = dataset.properties["special_small_blocks"]
            if small != "0" and here.vdev_text("special") == "none":
                raise KeyedError(
                    ("dataset", i, "special_small_blocks"),
                    f'special_small_blocks is "{small}", but pool {dataset.pool} has no special vdev',
                )
        return self

    def check_arc(self) -> None:
        """Raise ValueError if no place takes an ARC of this size."""
        if not MIN_ARC <= self.arc <= MAX_ARC:
            raise ValueError(_arc_range(self.arc))

    def pool(self, name: str) -> Pool:
        """Return the pool called ``name``; KeyError without one."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    def used_pools(self) -> tuple[Pool, ...]:
        """Return the pools that at least one role lives on."""
        used = {d.pool for d in self.datasets}
        return tuple(p for p in self.pools if p.name in used)

    def dataset_of(self, role: str) -> Dataset | None:
        """Return the dataset that ``role`` lives on, or None."""
        return next((d for d in self.datasets if role in d.roles), None)

    def profiles(self) -> tuple[str, ...]:
        """Return the names of the profiles in use, sorted."""
        return tuple(sorted({v.profile for p in self.pools for v in p.vdevs}))

    def settings(self) -> dict[str, str]:
        """Return the layout as flat factors, for finding layouts that differ in one of them alone.

        Keys: ``arc``; ``slog``, ``l2arc``, ``special`` of the first pool; ``pool.NAME.ashift`` and
        ``pool.NAME.data`` (and ``.slog`` … of further pools); ``ROLE.PROPERTY`` and ``ROLE.pool`` where ROLE
        is the first role of its dataset; ``ROLE.with`` for the further roles; ``tunable.NAME`` where not
        ZFS's default; ``database.NAME``; only where not the default, so that stored runs stay comparable,
        ``pool.NAME.filesystem``, ``ROLE.volume``, ``ROLE.filesystem``, ``ROLE.volblocksize`` and
        ``ROLE.encryption``. Layouts of one study have the same keys except those; see ``optional_setting``
        and ``default_setting``.
        """
        out = {"arc": format_size(self.arc)}
        for i, pool in enumerate(self.pools):
            prefix = f"pool.{pool.name}."
            out[prefix + "ashift"] = str(pool.ashift)
            out[prefix + "data"] = pool.vdev_text("data")
            if pool.filesystem != "zfs":
                out[prefix + "filesystem"] = pool.filesystem
            for factor in ("slog", "l2arc", "special"):
                out[factor if i == 0 else prefix + factor] = pool.vdev_text(FACTOR_CLASS[factor])
        for dataset in self.datasets:
            out[f"{dataset.key}.pool"] = dataset.pool
            for role in dataset.roles[1:]:
                out[f"{role}.with"] = dataset.key
            if dataset.volume is not None:
                out[f"{dataset.key}.volume"] = format_size(dataset.volume)
                if dataset.filesystem != "ext4":
                    out[f"{dataset.key}.filesystem"] = str(dataset.filesystem)
            for name, value in dataset.properties.items():
                if name != "volblocksize" or value != PROPERTIES[name].default:
                    out[f"{dataset.key}.{name}"] = value
        for name, number in self.tunables.items():
            if number != TUNABLES[name].default:
                out[f"tunable.{name}"] = TUNABLES[name].text(number)
        out.update({f"database.{name}": value for name, value in self.database.items()})
        return dict(sorted(out.items()))

    def with_settings(self, changes: Mapping[str, object], name: str | None = None) -> Layout:
        """Return a layout that has ``changes`` (factors as in ``settings``), checked afresh.

        ``tunable.NAME``, ``database.NAME``, ``pool.NAME.filesystem`` and the settings of a role may be
        "default", which takes the setting away. Raises ValueError with a sentence for an unknown factor or a
        value that ZFS would not take.
        """
        return Layout.model_validate(_factors.changed(self.to_json(), changes, name))

    def canonical(self) -> dict[str, Any]:
        """Return what identifies the layout: everything but its names for people, defaults spelled out."""
        # What is declared changes what is said of the layout, not what it is.
        out = self.model_dump(mode="json", by_alias=True, exclude={"name", "description", "declared"})
        out["tunables"] = {k: v for k, v in sorted(self.tunables.items()) if v != TUNABLES[k].default}
        # What came later is left out at its default: older layouts keep their hash.
        for pool in out["pool"]:
            if pool["filesystem"] == "zfs":
                del pool["filesystem"]
        for dataset in out["dataset"]:
            if dataset["volume"] is None:
                del dataset["volume"], dataset["filesystem"]
        return out

    @property
    def hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical form: the same for the same meaning."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def judged(self) -> _durability.Judgement:
        """Return what a power cut may lose, and what of that is not known."""
        return _durability.judge(self)

    def durability(self) -> DurabilityClass:
        """Return what a power cut may lose."""
        return _durability.judge(self).klass

    def durability_reasons(self) -> list[str]:
        """Return one sentence for each setting that decides the durability class, then notes that do not."""
        return list(_durability.judge(self).reasons)

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``Layout.model_validate`` takes back, fully resolved."""
        out = self.model_dump(mode="json", by_alias=True)
        if self.declared is None:
            del out["durability"]
        return out


def default_setting(key: str) -> str | None:
    """Return ZFS's default of a factor of ``Layout.settings``, or None where ZFS has none (disks, ARC)."""
    if key in {"slog", "l2arc", "special"} or re.fullmatch(r"pool\..+\.(slog|l2arc|special)", key):
        return "none"
    if key.startswith("tunable."):
        known = TUNABLES.get(key.removeprefix("tunable."))
        return None if known is None else ("default" if known.default is None else known.text(known.default))
    if key.startswith("database."):
        return "default"
    if key.startswith("pool."):
        return "zfs" if key.endswith(".filesystem") else None
    role, _, name = key.partition(".")
    if role in ROLES and name in PROPERTIES:
        return PROPERTIES[name].default
    if role in ROLES and name in _VOLUME_DEFAULTS:
        return _VOLUME_DEFAULTS[name]
    return None


_VOLUME_DEFAULTS = {"volume": "none", "filesystem": "ext4"}


def optional_setting(key: str) -> bool:
    """Say whether ``Layout.settings`` may leave a factor out: absent means its default."""
    head, _, name = key.partition(".")
    if head in ROLES and name in PROPERTIES:
        return name not in REPLAYED
    return (
        head in {"tunable", "database"}
        or (head in ROLES and name in _VOLUME_DEFAULTS)
        or (head == "pool" and key.endswith(".filesystem"))
    )


def plain(error: ValueError) -> str:
    """Return the sentence inside a pydantic ValidationError, or the error's own text."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        first = errors()[0]
        return str(first["msg"]).removeprefix("Value error, ")
    return str(error)
