"""What a host has differently from what was recommended: properties, devices, module parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ztune import files
from ztune.advice.commands import settable
from ztune.advice.host import canonical
from ztune.advice.plan import stays
from ztune.errors import InputError
from ztune.observe.model import Observation, ObservedDataset, ObservedPool
from ztune.study import Dataset, Layout, Pool
from ztune.study.layout import parse_layout

DriftKind = Literal["property", "device", "tunable", "unknown"]
_CLASSES = ("data", "log", "cache", "special", "dedup")


@dataclass(frozen=True)
class ExpectedLayout:
    """A recommendation as a file holds it."""

    path: Path
    layout: Layout
    names: Mapping[str, str]
    """The layout's dataset → the live one, where the file names them; else roles tell which it is."""


@dataclass(frozen=True)
class Drift:
    """One thing that is not as recommended."""

    kind: DriftKind
    """ "unknown": it could not be compared."""
    about: str
    """The dataset, the pool, or "host"."""
    what: str
    expected: str
    found: str


def read_expected(path: Path) -> ExpectedLayout:
    """Return what a file of ``ztune recommend --json`` or ``ztune apply --export json`` recommends.

    Raises InputError for anything else.
    """
    try:
        raw = json.loads(files.read(path))
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; {_RIGHT}") from None
    raw = raw.get("recommendation", raw) if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(raw.get("layout"), dict):
        raise InputError(f"{path} holds no recommendation; {_RIGHT}")
    try:
        layout = parse_layout(raw["layout"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception:
        raise InputError(f"{path}: its layout can't be understood; {_RIGHT}") from None
    return ExpectedLayout(path, layout, _names(raw.get("datasets", ()), layout, path))


_RIGHT = "write one with `ztune recommend --json` or `ztune apply --dataset ROLE=POOL/DS --export json`"


def _names(datasets: Any, layout: Layout, path: Path) -> dict[str, str]:
    """Return dataset of the layout → live dataset, by the roles that both have."""
    try:
        by_role = {str(role): str(one["name"]) for one in datasets for role in one["roles"]}
    except (TypeError, KeyError):
        raise InputError(f"{path}: its datasets can't be understood; {_RIGHT}") from None
    return {
        dataset.name: by_role[role]
        for dataset in layout.datasets
        for role in dataset.roles
        if role in by_role
    }


def drifts(seen: Observation, expected: ExpectedLayout) -> list[Drift]:
    """Return what is not as recommended, in the order of the recommendation; empty where all is.

    What can't be compared (no ZFS, a dataset that is not there) is said too, so that silence means agreement.
    """
    if seen.zfs is None:
        return [Drift("unknown", "host", "OpenZFS", "there", "not there")]
    found: dict[Drift, None] = {}
    pools: dict[str, str] = {}
    for dataset in expected.layout.datasets:
        lives = _live(seen, dataset, expected)
        if not lives:
            name = expected.names.get(dataset.name)
            by = name or f"a dataset with files of {', '.join(dataset.roles)}"
            found[Drift("unknown", name or "host", "dataset", by, "not seen")] = None
        for live in lives:
            pools.setdefault(live.pool, dataset.pool)
            found.update(dict.fromkeys(_properties(live, dataset, expected.layout)))
    of_layout = {pool.name: pool for pool in expected.layout.used_pools()}
    of_host = {pool.name: pool for pool in seen.zfs.pools}
    for name, wanted in pools.items():
        if name in of_host and wanted in of_layout:
            found.update(dict.fromkeys(_devices(of_host[name], of_layout[wanted])))
    for name, number in sorted(expected.layout.tunables.items()):
        value = seen.zfs.tunables.get(name)
        if value is None:
            found[Drift("unknown", "host", name, str(number), "not known")] = None
        elif value != str(number):
            found[Drift("tunable", "host", name, str(number), value)] = None
    return list(found)


def _live(seen: Observation, dataset: Dataset, expected: ExpectedLayout) -> list[ObservedDataset]:
    known = seen.zfs.datasets if seen.zfs else ()
    name = expected.names.get(dataset.name)
    if name is not None:
        return [one for one in known if one.name == name]
    return [one for one in known if set(one.roles) & set(dataset.roles)]


def _properties(live: ObservedDataset, dataset: Dataset, layout: Layout) -> Iterator[Drift]:
    for name, value in settable(dataset, layout).items():
        now = live.properties.get(name)
        if now is None:
            yield Drift("unknown", live.name, name, value, "not known")
            continue
        shown = canonical(name, now.value)
        # What `ztune apply` keeps is as it was recommended.
        if shown != canonical(name, value) and not stays(name, shown, value):
            yield Drift("property", live.name, name, value, shown)


def _devices(live: ObservedPool, pool: Pool) -> Iterator[Drift]:
    """Compare which vdevs there are, and the size of sectors. Which disks they are a profile does not say."""
    if not live.vdevs:
        yield Drift("unknown", live.name, "vdevs", _vdevs_of(pool)["data"], "not known")
        return
    wanted, there = _vdevs_of(pool), _vdevs_there(live)
    for class_ in _CLASSES:
        if wanted.get(class_, "none") != there.get(class_, "none"):
            yield Drift(
                "device", live.name, f"{class_} vdevs", wanted.get(class_, "none"), there.get(class_, "none")
            )
    ashifts = sorted({v.ashift for v in live.vdevs if v.role == "data" and v.ashift is not None})
    if pool.ashift is not None and ashifts and ashifts != [pool.ashift]:
        yield Drift("device", live.name, "ashift", str(pool.ashift), ", ".join(map(str, ashifts)))


def _vdevs_of(pool: Pool) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for vdev in pool.vdevs:
        one = f"{vdev.kind} of {vdev.disks}"
        found.setdefault(vdev.class_, []).extend(["disk"] * vdev.disks if vdev.kind == "stripe" else [one])
    return {class_: _counted(kinds) for class_, kinds in found.items()}


def _vdevs_there(pool: ObservedPool) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for vdev in pool.vdevs:
        single = vdev.kind in ("disk", "file")
        found.setdefault(vdev.role, []).append("disk" if single else f"{vdev.kind} of {len(vdev.disks)}")
    return {role: _counted(kinds) for role, kinds in found.items()}


def _counted(kinds: Iterable[str]) -> str:
    kinds = sorted(kinds)
    return ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
