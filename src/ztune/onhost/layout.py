"""A layout and its parts: pools, their vdevs, datasets. One vocabulary for both sides of the trial program.

Standard library alone, since it is sent to hosts. ``study/layout.py`` has pydantic read these very classes
from TOML: it takes ``alias``, ``description`` and bounds from the fields' metadata. ``trial/spec.py`` has
``fields`` read them from a spec. What no layout may be is said here once, whoever builds it: a ``KeyedError``
names the key. Sizes are bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ztune.onhost.age import CLONE, FILLER, FILLER_PROPERTIES, Age
from ztune.onhost.declared import Declared
from ztune.onhost.fields import KeyedError, described, to_json
from ztune.onhost.properties import PROPERTIES, STATED
from ztune.onhost.tunables import TUNABLES
from ztune.onhost.words import ROLES, suggest
from ztune.units import format_size

VdevClass = Literal["data", "log", "cache", "special"]
VdevKind = Literal["stripe", "mirror", "raidz1", "raidz2", "raidz3"]
PoolFilesystem = Literal["zfs", "ext4", "xfs"]
VolumeFilesystem = Literal["ext4", "xfs"]

# Which kinds each class takes: zpoolconcepts(7), "Virtual Devices".
CLASS_KINDS: dict[VdevClass, tuple[VdevKind, ...]] = {
    "data": ("stripe", "mirror", "raidz1", "raidz2", "raidz3"),
    "special": ("stripe", "mirror", "raidz1", "raidz2", "raidz3"),
    "log": ("stripe", "mirror"),
    "cache": ("stripe",),
}
CLASSES = tuple(CLASS_KINDS)
"""The classes of vdevs, in the order in which a layout's vdevs stand."""
# The class that each short factor name stands for.
FACTOR_CLASS: dict[str, VdevClass] = {"slog": "log", "l2arc": "cache", "special": "special", "data": "data"}
MIN_DISKS: dict[str, int] = {"stripe": 1, "mirror": 2, "raidz1": 2, "raidz2": 3, "raidz3": 4}
MAX_DISKS = 255
MIN_DISK = 64 << 20
"""SPA_MINDEVSIZE: ZFS takes no smaller device."""
MIN_ASHIFT, DEFAULT_ASHIFT, MAX_ASHIFT = 9, 12, 16
# The smallest volume that takes each file system: mke2fs wants some MiB beside its journal, mkfs.xfs(8)
# refuses less than 300 MiB since xfsprogs 5.19.
MIN_VOLUME: dict[VolumeFilesystem, int] = {"ext4": 64 << 20, "xfs": 300 << 20}
NEIGHBOUR_DATASET = "ztune-neighbour"
"""What the names of a neighbour's datasets begin with, below their pool."""
_POOL = re.compile(r"[A-Za-z][A-Za-z0-9_.: -]*")
_PART = re.compile(r"[A-Za-z0-9_.:-]+")

# What pydantic shall refuse beyond the rules here. A plain table: pydantic isn't there where a trial runs.
_STRICT = {"extra": "forbid", "allow_inf_nan": False}


def check_pool_name(name: str) -> None:
    """Raise ValueError unless zpool-create(8) takes ``name``: a letter first, no reserved word."""
    if not _POOL.fullmatch(name) or name.endswith(" "):
        raise ValueError(f'"{name}" is not a pool name; a letter, then letters, digits, "_", "-", "." or ":"')
    reserved = ("mirror", "raidz", "draid", "spare")
    if re.match(r"^c\d", name) or name.startswith(reserved) or name == "log":
        raise ValueError(
            f'"{name}" is reserved; a pool name does not begin with mirror, raidz, draid, spare or c0…c9'
        )


def check_dataset_name(name: str) -> None:
    """Raise ValueError unless ``name`` is a pool's, or a pool's and what ZFS takes below it."""
    pool, *parts = name.split("/")
    check_pool_name(pool)
    if len(name) > 255 or any(not _PART.fullmatch(p) or p in {".", ".."} for p in parts):
        raise ValueError(
            f'"{name}" is not a dataset name; pool/name with letters, digits, "_", "-", "." or ":"'
        )


def _named(check: Callable[[str], None], name: str) -> None:
    try:
        check(name)
    except ValueError as error:
        raise KeyedError(("name",), str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vdev:
    """Disks of one pool that work together. ``stripe`` with n disks is n top-level vdevs."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    class_: VdevClass = field(default="data", metadata=described("What the vdev is for.", alias="class"))
    kind: VdevKind = field(default="stripe", metadata=described("How its disks work together."))
    disks: int = field(default=1, metadata=described("How many disks.", ge=1, le=MAX_DISKS))
    profile: str = field(
        metadata=described("The disks' profile: a name, or a path to a TOML file beside the study.")
    )
    size: int | None = field(
        default=None, metadata=described("Bytes of one disk, where not the profile's own size.")
    )

    def __post_init__(self) -> None:
        if self.kind not in CLASS_KINDS[self.class_]:
            allowed = " or ".join(CLASS_KINDS[self.class_])
            raise KeyedError(("kind",), f"a {self.class_} vdev can't be {self.kind}; it is {allowed}")
        if self.disks < MIN_DISKS[self.kind]:
            raise KeyedError(
                ("disks",),
                f"{self.kind} needs at least {MIN_DISKS[self.kind]} disks, this vdev has {self.disks}",
            )

    def text(self) -> str:
        """Return the short form: "nvme", "nvme:16G" (disks of another size), "mirror 2 hdd-7200"."""
        disk = self.profile if self.size is None else f"{self.profile}:{format_size(self.size)}"
        return disk if self.kind == "stripe" and self.disks == 1 else f"{self.kind} {self.disks} {disk}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One pool, or another file system on one disk in a pool's place, as a baseline.

    The data vdevs stand first: the order of classes means nothing, so it must not change a layout's hash.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    name: str = field(metadata=described("The pool's name."))
    filesystem: PoolFilesystem = field(
        default="zfs",
        metadata=described("`ext4` or `xfs`: a baseline on the same disk; its datasets are directories."),
    )
    ashift: int = field(
        default=DEFAULT_ASHIFT,
        metadata=described("Sector size as a power of two: 12 is 4 KiB.", ge=MIN_ASHIFT, le=MAX_ASHIFT),
    )
    vdevs: tuple[Vdev, ...] = field(
        metadata=described("The vdevs, at least one of class data.", alias="vdev", min_length=1)
    )

    def __post_init__(self) -> None:
        _named(check_pool_name, self.name)
        ordered = tuple(sorted(self.vdevs, key=lambda v: CLASSES.index(v.class_)))
        object.__setattr__(self, "vdevs", ordered)
        if not self.of_class("data"):
            raise KeyedError(("vdev",), f"pool {self.name} has no data vdev; at least one is needed")
        if self.filesystem != "zfs":
            only = self.vdevs[0]
            if len(self.vdevs) > 1 or (only.kind, only.disks) != ("stripe", 1):
                raise KeyedError(
                    ("vdev",), f"pool {self.name} is {self.filesystem}, which takes one disk and nothing else"
                )
            if self.ashift != DEFAULT_ASHIFT:
                raise KeyedError(
                    ("ashift",), f"pool {self.name} is {self.filesystem}; ashift is a setting of ZFS pools"
                )

    def of_class(self, class_: str) -> list[Vdev]:
        """Return its vdevs of one class, in the layout's order."""
        return [v for v in self.vdevs if v.class_ == class_]

    def vdev_text(self, class_: str) -> str:
        """Return the short form of all vdevs of one class, "none" without any."""
        return " + ".join(v.text() for v in self.of_class(class_)) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One dataset: the roles that live on it, and its properties.

    In a study ``properties`` holds every property that the engine replays, with ZFS's default where the study
    says nothing, plus whatever other property the study sets, and ``volblocksize`` for a volume. Values are
    canonical (see ``parse_property``).
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    name: str = field(metadata=described("pool/name."))
    roles: tuple[str, ...] = field(metadata=described("The roles whose files live here.", min_length=1))
    volume: int | None = field(
        default=None,
        metadata=described("Bytes: makes it a volume (zvol) of that size with a file system on it."),
    )
    filesystem: VolumeFilesystem | None = field(
        default=None, metadata=described("The file system on the volume; `ext4` where a volume does not say.")
    )
    properties: dict[str, str] = field(
        default_factory=dict,
        metadata=described("ZFS properties; in TOML they are written as keys of the dataset itself."),
    )

    def __post_init__(self) -> None:
        _named(check_dataset_name, self.name)
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
            return
        if not self.rest:
            raise KeyedError(("name",), f"{self.name} is a pool's root, which can't be a volume")
        if self.filesystem is None:
            object.__setattr__(self, "filesystem", "ext4")
        assert self.filesystem is not None
        if self.volume < MIN_VOLUME[self.filesystem]:
            raise KeyedError(
                ("volume",),
                f"{format_size(self.volume)} is too small for {self.filesystem}; "
                f"{format_size(MIN_VOLUME[self.filesystem])} is the least",
            )

    @property
    def pool(self) -> str:
        """The name of the pool that holds the dataset."""
        return self.name.partition("/")[0]

    @property
    def rest(self) -> str:
        """Its name below the pool; empty for the pool's own dataset."""
        return self.name.partition("/")[2]

    @property
    def key(self) -> str:
        """The role that stands for the dataset in factor names: its first."""
        return self.roles[0]


def check_together(pools: Iterable[Pool], datasets: Iterable[Dataset]) -> None:
    """Raise KeyedError, with a path into a layout, unless ``datasets`` can stand on ``pools`` together."""
    by_name: dict[str, Pool] = {}
    for i, pool in enumerate(pools):
        if pool.name in by_name:
            raise KeyedError(("pool", i, "name"), f"pool {pool.name} is described twice")
        by_name[pool.name] = pool
    lives: dict[str, str] = {}
    seen: dict[str, Dataset] = {}
    for i, dataset in enumerate(datasets):
        if dataset.name in seen:
            raise KeyedError(("dataset", i, "name"), f"dataset {dataset.name} is described twice")
        seen[dataset.name] = dataset
        if dataset.pool not in by_name:
            raise KeyedError(
                ("dataset", i, "name"),
                f"dataset {dataset.name} is on pool {dataset.pool}, which the layout does not have; "
                f"its pools are {', '.join(by_name)}.{suggest(dataset.pool, by_name)}",
            )
        for role in dataset.roles:
            if role in lives:
                raise KeyedError(
                    ("dataset", i, "roles"),
                    f"role {role} lives on {lives[role]} and on {dataset.name}; a role has one dataset",
                )
            lives[role] = dataset.name
        here = by_name[dataset.pool]
        if here.filesystem != "zfs" and dataset.volume is not None:
            raise KeyedError(
                ("dataset", i, "volume"),
                f"{dataset.name} is on {here.filesystem}, which has no volumes; they are ZFS's",
            )
    for i, dataset in enumerate(seen.values()):
        for other in seen.values():
            if other.volume is not None and dataset.name.startswith(other.name + "/"):
                raise KeyedError(
                    ("dataset", i, "name"),
                    f"{dataset.name} is below {other.name}, a volume, which has no datasets below it",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Pools, datasets, and which role lives where.

    ``pools`` may hold pools that no role lives on: they are left out of trials, so that an axis such as
    ``wal.pool`` can move a role there.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    # A screening calls a layout by all that it changes: of seven roles that are some 400 characters.
    name: str = field(
        default="base", metadata=described("Unique in its study.", min_length=1, max_length=2000)
    )
    description: str = field(default="", metadata=described("One line for people."))
    arc: int = field(default=64 << 20, metadata=described("The most memory the ARC may use, bytes or text."))
    pools: tuple[Pool, ...] = field(metadata=described("The pools.", alias="pool", min_length=1))
    datasets: tuple[Dataset, ...] = field(metadata=described("The datasets.", alias="dataset", min_length=1))
    tunables: dict[str, int] = field(default_factory=dict, metadata=described("Module parameters, by name."))
    database: dict[str, str] = field(
        default_factory=dict,
        metadata=described("Settings of the database itself; those that vary take a recording for each."),
    )
    workload: dict[str, str] = field(
        default_factory=dict,
        metadata=described(
            "Parameters of the workload in which the layouts differ; ztune fills it from `[parameters]`."
        ),
    )
    declared: Declared | None = field(
        default=None,
        metadata=described(
            "What a power cut loses of the database, where ztune does not know it.", alias="durability"
        ),
    )
    age: Age | None = field(
        default=None,
        metadata=described("What happened to the pools before: a table, or `used`, `old`; none: new."),
    )

    neighbour: tuple[str, ...] = field(
        default=(),
        metadata=described(
            "Roles of a second job on the same pools; ztune fills it where `--with` asks for one."
        ),
    )
    disks: dict[str, str] = field(
        default_factory=dict,
        metadata=described("Profile → what becomes of its write cache; ztune fills it from the profiles."),
    )
    direct: tuple[str, ...] = field(
        default=(),
        metadata=described("Roles whose files the database writes with O_DIRECT; ztune fills it."),
    )

    def __post_init__(self) -> None:
        check_together(self.pools, self.datasets)
        for key, roles in (("neighbour", self.neighbour), ("direct", self.direct)):
            for i, role in enumerate(roles):
                if role not in ROLES:
                    raise KeyedError((key, i), f'"{role}" is not a role; the roles are {", ".join(ROLES)}')
        for i, dataset in enumerate(self.datasets):
            if self.neighbour and dataset.rest.startswith(NEIGHBOUR_DATASET) and dataset.roles:
                raise KeyedError(
                    ("dataset", i, "name"), f"{dataset.name} is the name of a neighbour's dataset"
                )
        if self.age is None:
            return
        for pool in self.pools:
            if pool.filesystem != "zfs":
                raise KeyedError(
                    ("age",), f"pool {pool.name} is {pool.filesystem}; an age is one of ZFS pools alone"
                )
        for i, dataset in enumerate(self.datasets):
            if dataset.rest == FILLER and dataset.roles:
                raise KeyedError(("dataset", i, "name"), f"{FILLER} is the name of what fills an aged pool")
            if dataset.rest.startswith(CLONE) and dataset.roles:
                raise KeyedError(
                    ("dataset", i, "name"), f"{dataset.name} is the name of a clone in an aged pool"
                )

    def fillers(self) -> tuple[Dataset, ...]:
        """Return the datasets of no role that the age fills, one on each pool in use."""
        if self.age is None or not self.age.fill:
            return ()
        return tuple(
            Dataset(name=f"{p.name}/{FILLER}", roles=(), properties=dict(FILLER_PROPERTIES))
            for p in self.used_pools()
        )

    def neighbour_dataset(self, role: str) -> str:
        """Return the name of the dataset of a neighbour's files of ``role``: on the pool of its own."""
        like = self.dataset_of(role)
        if like is None:
            return f"{self.used_pools()[0].name}/{NEIGHBOUR_DATASET}-{role}"
        return f"{like.pool}/{NEIGHBOUR_DATASET}-{like.key}"

    def neighbours(self) -> tuple[Dataset, ...]:
        """Return the datasets of the neighbour, of no role: each like the dataset of the same role, with its
        properties, or ZFS's defaults where the layout has none for it.
        """
        found: dict[str, Dataset] = {}
        for role in sorted(set(self.neighbour)):
            like, name = self.dataset_of(role), self.neighbour_dataset(role)
            own = {n: PROPERTIES[n].default for n in STATED}
            found[name] = Dataset(
                name=name, roles=(), properties=dict(own if like is None else like.properties)
            )
        return tuple(found.values())

    @property
    def uses_zfs(self) -> bool:
        """Whether any pool is ZFS."""
        return any(p.filesystem == "zfs" for p in self.pools)

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

    def job_settings(self) -> dict[str, str]:
        """Return what of the job the layout says, as factors: layouts with the same have one recording."""
        found = {f"workload.{name}": value for name, value in self.workload.items()}
        found.update({f"database.{name}": value for name, value in self.database.items()})
        return dict(sorted(found.items()))

    def settings(self) -> dict[str, str]:
        """Return the layout as flat factors, for finding layouts that differ in one of them alone.

        Keys: ``arc``; ``slog``, ``l2arc``, ``special`` of the first pool; ``pool.NAME.ashift`` and
        ``pool.NAME.data`` (and ``.slog`` … of further pools); ``ROLE.PROPERTY`` and ``ROLE.pool`` where ROLE
        is the first role of its dataset; ``ROLE.with`` for the further roles; ``tunable.NAME`` where not
        ZFS's default; ``database.NAME``; ``workload.NAME``; only where not the default, so that stored runs
        stay comparable, ``pool.NAME.filesystem``, ``ROLE.volume``, ``ROLE.filesystem``,
        ``ROLE.volblocksize``, ``ROLE.encryption`` and ``age``. Layouts of one study have the same keys except
        those; see ``optional_setting`` and ``default_setting``.
        """
        out = {"arc": format_size(self.arc)}
        if self.age is not None:
            out["age"] = self.age.text()
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
        return dict(sorted({**out, **self.job_settings()}.items()))

    def canonical(self) -> dict[str, Any]:
        """Return what identifies the layout: everything but its names for people, defaults spelled out."""
        # What is declared changes what is said of the layout, not what it is.
        said = ("name", "description", "durability", "disks", "direct")
        out = {k: v for k, v in self.to_json().items() if k not in said}
        out["tunables"] = {k: v for k, v in sorted(self.tunables.items()) if v != TUNABLES[k].default}
        # What came later is left out at its default: older layouts keep their hash.
        for pool in out["pool"]:
            if pool["filesystem"] == "zfs":
                del pool["filesystem"]
        for dataset in out["dataset"]:
            if dataset["volume"] is None:
                del dataset["volume"], dataset["filesystem"]
        if self.age is not None and not self.age.clones:
            del out["age"]["clones"]
        return out

    @property
    def hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical form: the same for the same meaning."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``fields.from_json`` and a study take back, fully resolved."""
        out: dict[str, Any] = to_json(self)
        if self.declared is None:
            del out["durability"]
        if self.age is None:
            del out["age"]
        if not self.neighbour:
            del out["neighbour"]
        if not self.disks:
            del out["disks"]
        if not self.direct:
            del out["direct"]
        if not self.workload:  # it came later: older layouts keep their hash
            del out["workload"]
        return out
