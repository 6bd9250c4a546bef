"""The parts of a layout: pools, their vdevs, datasets. One vocabulary for both sides of the trial program.

Standard library alone, since it is sent to hosts. ``study/layout.py`` has pydantic read these very classes
from TOML: it takes ``alias``, ``description`` and bounds from the fields' metadata. ``trial/spec.py`` builds
them from a spec. What no layout may be is said here once, whoever builds it: a ``KeyedError`` names the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from ztune.onhost.words import ROLES, suggest
from ztune.units import format_size

VdevClass = Literal["data", "log", "cache", "special"]
VdevKind = Literal["stripe", "mirror", "raidz1", "raidz2", "raidz3"]
PoolFilesystem = Literal["zfs", "ext4", "xfs"]
VolumeFilesystem = Literal["ext4", "xfs"]

POOL_FILESYSTEMS: tuple[PoolFilesystem, ...] = get_args(PoolFilesystem)
VOLUME_FILESYSTEMS: tuple[VolumeFilesystem, ...] = get_args(VolumeFilesystem)
# Which kinds each class takes: zpoolconcepts(7), "Virtual Devices".
CLASS_KINDS: dict[VdevClass, tuple[VdevKind, ...]] = {
    "data": ("stripe", "mirror", "raidz1", "raidz2", "raidz3"),
    "special": ("stripe", "mirror", "raidz1", "raidz2", "raidz3"),
    "log": ("stripe", "mirror"),
    "cache": ("stripe",),
}
CLASSES = tuple(CLASS_KINDS)
"""The classes of vdevs, in the order in which a layout's vdevs stand."""
MIN_DISKS: dict[str, int] = {"stripe": 1, "mirror": 2, "raidz1": 2, "raidz2": 3, "raidz3": 4}
MAX_DISKS = 255
MIN_DISK = 64 << 20
"""SPA_MINDEVSIZE: ZFS takes no smaller device."""
MIN_ASHIFT, DEFAULT_ASHIFT, MAX_ASHIFT = 9, 12, 16
# The smallest volume that takes each file system: mke2fs wants some MiB beside its journal, mkfs.xfs(8)
# refuses less than 300 MiB since xfsprogs 5.19.
MIN_VOLUME: dict[VolumeFilesystem, int] = {"ext4": 64 << 20, "xfs": 300 << 20}
_POOL = re.compile(r"[A-Za-z][A-Za-z0-9_.: -]*")
_PART = re.compile(r"[A-Za-z0-9_.:-]+")

# What pydantic shall refuse beyond the rules here. A plain table: pydantic isn't there where a trial runs.
_STRICT = {"extra": "forbid", "allow_inf_nan": False}


class KeyedError(ValueError):
    """A ValueError that knows which key below the failing object is meant, for the path in the message."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


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


def _named(check: Any, name: str) -> None:
    try:
        check(name)
    except ValueError as error:
        raise KeyedError(("name",), str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vdev:
    """Disks of one pool that work together. ``stripe`` with n disks is n top-level vdevs."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    class_: VdevClass = field(
        default="data", metadata={"alias": "class", "description": "What the vdev is for."}
    )
    kind: VdevKind = field(default="stripe", metadata={"description": "How its disks work together."})
    disks: int = field(default=1, metadata={"ge": 1, "le": MAX_DISKS, "description": "How many disks."})
    profile: str = field(
        metadata={"description": "The disks' profile: a name, or a path to a TOML file beside the study."}
    )
    size: int | None = field(
        default=None, metadata={"description": "Bytes of one disk, where not the profile's own size."}
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

    name: str = field(metadata={"description": "The pool's name."})
    filesystem: PoolFilesystem = field(
        default="zfs",
        metadata={
            "description": "`ext4` or `xfs`: a baseline on the same disk; its datasets are directories."
        },
    )
    ashift: int = field(
        default=DEFAULT_ASHIFT,
        metadata={
            "ge": MIN_ASHIFT,
            "le": MAX_ASHIFT,
            "description": "Sector size as a power of two: 12 is 4 KiB.",
        },
    )
    vdevs: tuple[Vdev, ...] = field(
        metadata={
            "alias": "vdev",
            "min_length": 1,
            "description": "The vdevs, at least one of class data.",
        }
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

    name: str = field(metadata={"description": "pool/name."})
    roles: tuple[str, ...] = field(
        metadata={"min_length": 1, "description": "The roles whose files live here."}
    )
    volume: int | None = field(
        default=None,
        metadata={"description": "Bytes: makes it a volume (zvol) of that size with a file system on it."},
    )
    filesystem: VolumeFilesystem | None = field(
        default=None,
        metadata={"description": "The file system on the volume; `ext4` where a volume does not say."},
    )
    properties: dict[str, str] = field(
        default_factory=dict,
        metadata={"description": "ZFS properties; in TOML they are written as keys of the dataset itself."},
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
