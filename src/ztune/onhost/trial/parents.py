"""The datasets of a user's below which trials are made: whether they can have any."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.zfs import Upkeep, Zfs
from ztune.onhost.properties import PROPERTIES, parse_property, version_key
from ztune.units import format_size

LEAST_ROOM = 64 << 20
FULL = 90
"""Per cent; docs/age.md has what such a pool costs."""
_ALONE = {
    "dedup": "off",
    "direct": PROPERTIES["direct"].default,
    "prefetch": PROPERTIES["prefetch"].default,
    "exec": "on",
    "sharenfs": "off",
    "sharesmb": "off",
    "casesensitivity": "sensitive",
    "normalization": "none",
    "utf8only": "off",
}
"""ZFS's defaults of what a layout does not always say, and would have from its parent."""
_LOOK = ("type", "available", "readonly", "encryption", "keystatus", "xattr", "dnodesize", "acltype")


def check(zfs: Zfs, names: Iterable[str]) -> list[str]:
    """Return what a reader of results from below ``names`` must know, a sentence each.

    Raises:
        InputError: no trial can work below one of them.
    """
    names = sorted(set(names))
    warnings: list[str] = []
    # The pools first: of one that waits for its disks every question to a dataset would wait, too.
    for pool in sorted({name.partition("/")[0] for name in names}):
        warnings += _check_pool(zfs, pool)
    found = zfs.values(names, _LOOK)
    for name in names:
        if name not in found:
            raise InputError(
                f'parent "{name}" does not exist on this host; make it: zfs create -p {shlex.quote(name)}'
            )
        values = found[name]
        if values["type"].value != "filesystem":
            raise InputError(f'parent "{name}" is a {values["type"].value}; name a file system dataset')
        if values["readonly"].value == "on":
            raise InputError(
                f'parent "{name}" can\'t be written, nor what is made below it: its readonly is on'
            )
        if values["keystatus"].value == "unavailable":
            raise InputError(
                f'parent "{name}" is encrypted, and its key is not loaded; zfs load-key loads it'
            )
        room = int(values["available"].value)
        if room < LEAST_ROOM:
            raise InputError(f'parent "{name}" is full: {format_size(room // 1024 * 1024)} is left')
        if values["encryption"].value != "off":
            warnings.append(
                f"parent {name} is encrypted, and the trial's datasets are not where the layout does not set "
                "encryption: what they hold lies on the pool's disks as it is until they are destroyed, and "
                "what is freed stays there until it is overwritten"
            )
        for property_ in ("xattr", "dnodesize", "acltype"):
            said = values[property_]
            if said.source not in ("default", "-") and parse_property(property_, said.value)[1] != (
                PROPERTIES[property_].default
            ):
                warnings.append(
                    f"the trial's datasets inherit {property_}={said.value} from {name} where "
                    "the layout does not set it"
                )
    return warnings


def alone(zfs: Zfs, name: str, version: tuple[int, ...]) -> dict[str, str]:
    """Return what a dataset below the parent ``name`` is made with, so that it passes nothing of that on to
    the datasets of a layout, which mean ZFS's defaults where they are silent.

    ``version``: of OpenZFS, whose properties they have to be.
    """
    encryption = zfs.values([name], ("encryption",)).get(name, {}).get("encryption")
    found = {
        property_: value
        for property_, value in _ALONE.items()
        if property_ not in PROPERTIES or version >= version_key(PROPERTIES[property_].since)
    }
    return found | ({"encryption": "off"} if encryption and encryption.value != "off" else {})


def lacks(zfs: Zfs, name: str) -> frozenset[str]:
    """Return the features that the pool of the parent ``name`` has disabled."""
    found = zfs.pool_values(name.partition("/")[0], ("all",))
    prefix = "feature@"
    return frozenset(
        key.removeprefix(prefix)
        for key, said in found.items()
        if key.startswith(prefix) and said.value == "disabled"
    )


def facts(zfs: Zfs, name: str) -> dict[str, Any]:
    """Return what layouts below the parent ``name`` are refused by, before the first trial: the features that
    its pool ``lacks``, and the bytes that it has ``room`` for."""
    room = zfs.values([name], ("available",))[name]["available"].value
    return {"lacks": sorted(lacks(zfs, name)), "room": int(room)}


def _check_pool(zfs: Zfs, pool: str) -> list[str]:
    values = zfs.pool_values(pool, ("health", "readonly", "capacity"))
    if not values:
        raise InputError(f'pool "{pool}" is not imported on this host')
    health = values["health"].value
    if health == "SUSPENDED":
        raise InputError(f'pool "{pool}" is suspended: it waits for its disks; zpool status says why')
    if health in ("UNAVAIL", "FAULTED"):  # zpool says nothing else of it
        raise InputError(f'pool "{pool}" is {health}; zpool status says why')
    if values["readonly"].value == "on":
        raise InputError(f'pool "{pool}" is imported read-only')
    warnings = []
    if health != "ONLINE":
        warnings.append(f"pool {pool} is {health}: what is measured is not what it does with all its disks")
    full = int(values["capacity"].value)
    if full >= FULL:
        warnings.append(f"pool {pool} is {full} % full: its writes fall into more pieces")
    return [*warnings, *at_work(pool, zfs.upkeep(pool))]


def at_work(pool: str, upkeep: Upkeep) -> list[str]:
    """Return a sentence for each thing that the pool does beside a trial, the same whenever it is asked."""
    return [
        f"pool {pool}: {work} in progress: what is measured is not what the disks do without it; "
        "zpool status says how far it is, and trials after its end are worth more"
        for work in upkeep.works
    ]


def disturbed(pool: str, before: Upkeep, after: Upkeep) -> list[str]:
    """Return a sentence for each thing that happened to a pool between two looks at it."""
    found = [*at_work(pool, before), *at_work(pool, after)]
    if not found and before.last != after.last:
        found.append(f"pool {pool}: while it was measured, a scrub or resilver began and ended: {after.last}")
    if before.health != after.health:
        found.append(
            f"pool {pool} was {before.health} when the measure began and {after.health} at its end: "
            "part of it was measured with other disks than the rest"
        )
    for verb, names in (
        ("came to", [name for name in after.vdevs if name not in before.vdevs]),
        ("left", [name for name in before.vdevs if name not in after.vdevs]),
    ):
        if names:
            found.append(
                f"{', '.join(names)} {verb} pool {pool} while it was measured: "
                "part of it was measured with other disks than the rest"
            )
    return list(dict.fromkeys(found))


def require_kept(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ZtuneError where somebody changed what a trial made between two looks at it.

    Both: name of a dataset → property → value, and so of the module's parameters.
    """
    for name, values in before.items():
        if name not in after:
            raise ZtuneError(
                f"{name} is not there any more: somebody renamed or destroyed it while it was measured"
            )
        for key, value in values.items():
            if (now := after[name].get(key) or "nothing") != (value or "nothing"):
                raise ZtuneError(
                    f"{key} of {name}: {value} when the measure began and {now} at its end; somebody changed "
                    "that, so that what was measured is not this layout"
                )
