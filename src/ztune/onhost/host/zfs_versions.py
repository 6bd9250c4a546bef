"""What OpenZFS learnt when, beside properties: so that an old one is told apart from a wrong word.

Source: the module parameters in the tags zfs-0.6.3 … zfs-2.4.0, by their names below module/.
"""

from __future__ import annotations

from ztune.errors import InputError
from ztune.onhost.properties import PROPERTIES
from ztune.units import parse_size

TUNABLES: dict[str, str] = {
    "l2arc_exclude_special": "2.1.6",
    "zil_nocacheflush": "0.8.0",
    "zfs_dirty_data_sync_percent": "0.8.0",
    "zfetch_max_distance": "0.7.0",
    "zfs_compressed_arc_enabled": "0.7.0",
    "zfs_vdev_aggregation_limit_non_rotating": "0.8.0",
}
VDEV_CLASSES: dict[str, str] = {"special": "0.8.0"}
LARGEST_BEFORE = (1 << 20, "2.2.0", "zfs_max_recordsize")
"""Largest record by default before a version, and the module parameter that lifts it."""
VOLUME_PROPERTIES = frozenset(
    (
        *("checksum", "compression", "copies", "logbias", "sync", "primarycache", "secondarycache"),
        *("redundant_metadata", "encryption", "volblocksize", "prefetch", "snapdev", "volmode"),
    )
)
"""What a volume takes; special_small_blocks only since 2.4.0."""


def number(version: str) -> tuple[int, ...]:
    """Return "2.1.7" as (2, 1, 7)."""
    return tuple(int(part) for part in version.split("."))


def check_property(name: str, value: str, version: tuple[int, ...], max_recordsize: int | None) -> None:
    """Raise InputError when OpenZFS ``version`` does not know a property or its value.

    ``max_recordsize`` is the module parameter zfs_max_recordsize, None where it can't be read.
    """
    if not version:
        return
    have = ".".join(str(part) for part in version)
    if name in PROPERTIES and (since := PROPERTIES[name].lacking(value, have)):
        raise InputError(f"{name}={value} needs OpenZFS {since} or later; this host has {have}")
    if name == "recordsize" and max_recordsize is not None and parse_size(value) > max_recordsize:
        raise InputError(
            f"recordsize={value} is more than this host's zfs_max_recordsize, {max_recordsize} bytes; "
            f"OpenZFS {have} takes it after zfs_max_recordsize is raised to 16777216 (the default since "
            f"{LARGEST_BEFORE[1]}), which the layout's tunables can do"
        )


def check_tunable(name: str, version: tuple[int, ...]) -> str:
    """Return the sentence for a module parameter that this host does not have."""
    have = ".".join(str(part) for part in version) or "unknown"
    since = TUNABLES.get(name)
    if since is not None and version and version < number(since):
        return f"tunable {name} needs OpenZFS {since} or later; this host has {have}"
    return f"tunable {name} does not exist in this host's OpenZFS {have} (/sys/module/zfs/parameters)"
