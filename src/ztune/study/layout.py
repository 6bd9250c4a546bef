"""Layout: pools, datasets and where each role lives, checked as strictly as ZFS itself would check it.

All models are frozen. Sizes are bytes inside.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ztune.databases.declared import Declared
from ztune.onhost.words import ROLES, DurabilityClass
from ztune.study import durability as _durability
from ztune.study.properties import ALIASES, PROPERTIES, REPLAYED, parse_property, suggest
from ztune.study.tunables import TUNABLES, parse_tunable
from ztune.units import format_size, parse_size

MIN_DISKS = {"stripe": 1, "mirror": 2, "raidz1": 2, "raidz2": 3, "raidz3": 4}
# Which kinds each class takes: zpoolconcepts(7), "Virtual Devices".
CLASS_KINDS = {
    "data": ("stripe", "mirror", "raidz1", "raidz2", "raidz3"),
    "special": ("stripe", "mirror", "raidz1", "raidz2", "raidz3"),
    "log": ("stripe", "mirror"),
    "cache": ("stripe",),
}
# The class that each short factor name stands for.
FACTOR_CLASS = {"slog": "log", "l2arc": "cache", "special": "special", "data": "data"}
# The smallest volume that takes each file system: mke2fs wants some MiB beside its journal, mkfs.xfs(8)
# refuses less than 300 MiB since xfsprogs 5.19.
MIN_VOLUME = {"ext4": 64 << 20, "xfs": 300 << 20}
MIN_ARC, MAX_ARC = 64 << 20, 1 << 44
"""What the kernel and the engine take: OpenZFS takes no notice of less (MIN_ARC_MAX in arc.c)."""
# Runs that are stored may have a layout with an ARC that every place has refused.
_MIN_STORED_ARC = 16 << 20


class KeyedError(ValueError):
    """A ValueError that knows which key below the failing object is meant, for the path in the message."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


class Strict(BaseModel):
    """Base of all models: unknown keys are refused, values can't be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _pool_name(name: str) -> str:
    # The rules of zpool-create(8): a letter first, a small alphabet, no reserved word.
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.: -]*", name) or name.endswith(" "):
        raise ValueError(f'"{name}" is not a pool name; a letter, then letters, digits, "_", "-", "." or ":"')
    reserved = ("mirror", "raidz", "draid", "spare", "log")
    if re.match(r"^c\d", name) or any(name == w or name.startswith(w) for w in reserved[:4]) or name == "log":
        raise ValueError(
            f'"{name}" is reserved; a pool name does not begin with mirror, raidz, draid, spare or c0…c9'
        )
    return name


def _dataset_name(name: str) -> str:
    parts = name.split("/")
    _pool_name(parts[0])
    if len(name) > 255 or any(
        not re.fullmatch(r"[A-Za-z0-9_.:-]+", p) or p in {".", ".."} for p in parts[1:]
    ):
        raise ValueError(
            f'"{name}" is not a dataset name; pool/name with letters, digits, "_", "-", "." or ":"'
        )
    return name


class Vdev(Strict):
    """Disks of one pool that work together. ``stripe`` with n disks is n top-level vdevs."""

    class_: Literal["data", "log", "cache", "special"] = Field(
        default="data", alias="class", description="What the vdev is for."
    )
    kind: Literal["stripe", "mirror", "raidz1", "raidz2", "raidz3"] = Field(
        default="stripe", description="How its disks work together."
    )
    disks: int = Field(default=1, ge=1, le=255, description="How many disks.")
    profile: str = Field(description="The disks' profile: a name, or a path to a TOML file beside the study.")
    size: Annotated[int | None, BeforeValidator(lambda v: v if v is None else _size(v))] = Field(
        default=None, description="Bytes of one disk, where not the profile's own size."
    )

    @model_validator(mode="after")
    def _check(self) -> Vdev:
        if self.kind not in CLASS_KINDS[self.class_]:
            allowed = " or ".join(CLASS_KINDS[self.class_])
            raise KeyedError(("kind",), f"a {self.class_} vdev can't be {self.kind}; it is {allowed}")
        if self.disks < MIN_DISKS[self.kind]:
            raise KeyedError(
                ("disks",),
                f"{self.kind} needs at least {MIN_DISKS[self.kind]} disks, this vdev has {self.disks}",
            )
        return self

    def text(self) -> str:
        """Return the short form: "nvme", "nvme:16G" (disks of another size), "mirror 2 hdd-7200"."""
        disk = self.profile if self.size is None else f"{self.profile}:{format_size(self.size)}"
        return disk if self.kind == "stripe" and self.disks == 1 else f"{self.kind} {self.disks} {disk}"


def _size(value: object) -> int:
    size = parse_size(value)
    if size < 64 << 20:
        raise ValueError(f"{format_size(size)} is too small; ZFS takes disks of 64M and more")
    return size


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
        vdevs.append(
            Vdev.model_validate(
                {"class": class_, "kind": kind, "disks": int(disks), "profile": profile, "size": size or None}
            )
        )
    return tuple(vdevs)


def _by_class(vdevs: tuple[Vdev, ...]) -> tuple[Vdev, ...]:
    """Put data vdevs first: the order of classes means nothing, so it must not change a layout's hash."""
    return tuple(sorted(vdevs, key=lambda v: list(CLASS_KINDS).index(v.class_)))


class Pool(Strict):
    """One pool, or another file system on one disk in a pool's place, as a baseline."""

    name: Annotated[str, AfterValidator(_pool_name)] = Field(description="The pool's name.")
    filesystem: Literal["zfs", "ext4", "xfs"] = Field(
        default="zfs",
        description="`ext4` or `xfs`: a baseline on the same disk; its datasets are directories.",
    )
    ashift: int = Field(default=12, ge=9, le=16, description="Sector size as a power of two: 12 is 4 KiB.")
    vdevs: Annotated[tuple[Vdev, ...], AfterValidator(_by_class)] = Field(
        alias="vdev", min_length=1, description="The vdevs, at least one of class data."
    )

    @model_validator(mode="after")
    def _check(self) -> Pool:
        if not any(v.class_ == "data" for v in self.vdevs):
            raise KeyedError(("vdev",), f"pool {self.name} has no data vdev; at least one is needed")
        if self.filesystem != "zfs":
            only = self.vdevs[0]
            if len(self.vdevs) > 1 or (only.kind, only.disks) != ("stripe", 1):
                raise KeyedError(
                    ("vdev",), f"pool {self.name} is {self.filesystem}, which takes one disk and nothing else"
                )
            if self.ashift != Pool.model_fields["ashift"].default:
                raise KeyedError(
                    ("ashift",), f"pool {self.name} is {self.filesystem}; ashift is a setting of ZFS pools"
                )
        return self

    def vdev_text(self, class_: str) -> str:
        """Return the short form of all vdevs of one class, "none" without any."""
        return " + ".join(v.text() for v in self.vdevs if v.class_ == class_) or "none"


class Dataset(Strict):
    """One dataset: the roles that live on it, and its properties.

    ``properties`` always holds every property that the engine replays, with ZFS's default where the study
    says nothing, plus whatever other property the study sets, and ``volblocksize`` for a volume. Values are
    canonical (see ``parse_property``).
    """

    name: Annotated[str, AfterValidator(_dataset_name)] = Field(description="pool/name.")
    roles: tuple[str, ...] = Field(min_length=1, description="The roles whose files live here.")
    volume: Annotated[int | None, BeforeValidator(lambda v: v if v is None else _volume(v))] = Field(
        default=None, description="Bytes: makes it a volume (zvol) of that size with a file system on it."
    )
    filesystem: Literal["ext4", "xfs"] | None = Field(
        default=None, description="The file system on the volume; `ext4` where a volume does not say."
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="ZFS properties; in TOML they are written as keys of the dataset itself.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        given: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, item in value.items():
            (rest if key in _DATASET_KEYS else given)[key] = item
        nested = rest.get("properties", {})
        if not isinstance(nested, Mapping):
            raise KeyedError(("properties",), "properties is a table of property = value")
        properties = {name: PROPERTIES[name].default for name in REPLAYED}
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
        for name in ("encryption", *([] if volume else ["volblocksize"])):
            if properties.get(name) == PROPERTIES[name].default:
                del properties[name]
        return {**rest, "properties": properties}

    @model_validator(mode="after")
    def _check(self) -> Dataset:
        for i, role in enumerate(self.roles):
            if role not in ROLES:
                raise KeyedError(
                    ("roles", i),
                    f'"{role}" is not a role; the roles are {", ".join(ROLES)}.{suggest(role, ROLES)}',
                )
        if len(set(self.roles)) != len(self.roles):
            raise KeyedError(("roles",), "a role is named twice")
        if self.volume is None:
            if self.filesystem is not None:
                raise KeyedError(
                    ("filesystem",), f"{self.name} is no volume; a file system is made on a volume = SIZE"
                )
            if "volblocksize" in self.properties:
                raise KeyedError(("volblocksize",), f"{self.name} is no volume; files have a recordsize")
            return self
        assert self.filesystem is not None  # _gather fills it
        if "/" not in self.name:
            raise KeyedError(("name",), f"{self.name} is a pool's root, which can't be a volume")
        if self.volume < MIN_VOLUME[self.filesystem]:
            raise KeyedError(
                ("volume",),
                f"{format_size(self.volume)} is too small for {self.filesystem}; "
                f"{format_size(MIN_VOLUME[self.filesystem])} is the least",
            )
        if self.volume % parse_size(self.properties["volblocksize"]):
            raise KeyedError(
                ("volume",),
                f"{format_size(self.volume)} is not a multiple of the volblocksize "
                f"{self.properties['volblocksize']}",
            )
        for name in self.non_default():
            if not PROPERTIES[name].volumes:
                instead = "; a volume has volblocksize" if name == "recordsize" else ""
                raise KeyedError((name,), f"{name} is no property of a volume, which {self.name} is{instead}")
        return self

    @property
    def pool(self) -> str:
        """The name of the pool that holds the dataset."""
        return self.name.split("/")[0]

    @property
    def key(self) -> str:
        """The role that stands for the dataset in factor names: its first."""
        return self.roles[0]

    def non_default(self) -> dict[str, str]:
        """Return the properties whose value is not ZFS's default."""
        return {k: v for k, v in self.properties.items() if v != PROPERTIES[k].default}


_DATASET_KEYS = ("name", "roles", "volume", "filesystem", "properties")


def _volume(value: object) -> int:
    size = parse_size(value)
    if size == 0:
        raise ValueError("a volume has a size; leave it out for a file system")
    return size


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
    pools: tuple[Pool, ...] = Field(alias="pool", min_length=1, description="The pools.")
    datasets: tuple[Dataset, ...] = Field(alias="dataset", min_length=1, description="The datasets.")
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
        pools = [p.name for p in self.pools]
        for i, name in enumerate(pools):
            if name in pools[:i]:
                raise KeyedError(("pool", i, "name"), f"pool {name} is described twice")
        where: dict[str, str] = {}
        names: set[str] = set()
        for i, dataset in enumerate(self.datasets):
            if dataset.name in names:
                raise KeyedError(("dataset", i, "name"), f"dataset {dataset.name} is described twice")
            names.add(dataset.name)
            if dataset.pool not in pools:
                raise KeyedError(
                    ("dataset", i, "name"),
                    f"dataset {dataset.name} is on pool {dataset.pool}, which the layout does not have; "
                    f"its pools are {', '.join(pools)}.{suggest(dataset.pool, pools)}",
                )
            for role in dataset.roles:
                if role in where:
                    raise KeyedError(
                        ("dataset", i, "roles"),
                        f"role {role} lives on {where[role]} and on {dataset.name}; a role has one dataset",
                    )
                where[role] = dataset.name
            here = next(p for p in self.pools if p.name == dataset.pool)
            if here.filesystem != "zfs":
                if dataset.volume is not None:
                    raise KeyedError(
                        ("dataset", i, "volume"),
                        f"{dataset.name} is on {here.filesystem}, which has no volumes; they are ZFS's",
                    )
                for name in dataset.non_default():
                    raise KeyedError(
                        ("dataset", i, name),
                        f"{dataset.name} is a directory on {here.filesystem}, which takes no ZFS properties",
                    )
            small = dataset.properties["special_small_blocks"]
            if small != "0" and self.pool(dataset.pool).vdev_text("special") == "none":
                raise KeyedError(
                    ("dataset", i, "special_small_blocks"),
                    f'special_small_blocks is "{small}", but pool {dataset.pool} has no special vdev',
                )
        for i, dataset in enumerate(self.datasets):
            for other in self.datasets:
                if other.volume is not None and dataset.name.startswith(other.name + "/"):
                    raise KeyedError(
                        ("dataset", i, "name"),
                        f"{dataset.name} is below {other.name}, a volume, which has no datasets below it",
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
        from ztune.study.factors import apply

        return apply(self, changes, name)

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
