"""Facts of a host that an observation shows: OpenZFS itself, its caches and its module parameters."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from ztune.advice.fact import Fact
from ztune.advice.observed_databases import cache_bytes
from ztune.advice.observed_datasets import record_bytes
from ztune.advice.observed_roles import NO_ROLE, counted, on_zfs
from ztune.advice.record_size import typical
from ztune.observe.model import Observation
from ztune.onhost.properties import version_key
from ztune.units import whole

FACTS: dict[str, Fact] = {
    "source": Fact("where the numbers are from"),
    "zfs": Fact("OpenZFS is there", "flag"),
    "zfs_version": Fact("version of OpenZFS"),
    "direct_io_exists": Fact("this OpenZFS knows Direct I/O (2.3 and later)", "flag"),
    "elsewhere": Fact("roles whose files are not on ZFS"),
    "elsewhere_filesystems": Fact("types of their file systems"),
    "elsewhere_writes": Fact("their writes that were counted", "count"),
    "memory": Fact("memory", "bytes"),
    "arc_size": Fact("size of the ARC", "bytes"),
    "arc_max": Fact("largest size that the ARC may have", "bytes"),
    "arc_full": Fact("size of the ARC as a share of its largest size", "share"),
    "arc_metadata": Fact("metadata in the ARC", "bytes"),
    "dnode_bytes": Fact("dnodes in the ARC", "bytes"),
    "dnode_limit": Fact("the ARC's limit for dnodes", "bytes"),
    "database_cache": Fact("the databases' own caches", "bytes"),
    "caches": Fact("the databases' own caches and the ARC together", "bytes"),
    "data_misses": Fact("demand reads of data that missed the ARC (whole host)", "count"),
    "data_misses_per_s": Fact("demand reads of data that missed the ARC, in a second", "per s"),
    "data_miss_share": Fact("share of the demand reads of data that missed the ARC", "share"),
    "metadata_misses_per_s": Fact("demand reads of metadata that missed the ARC, in a second", "per s"),
    "metadata_miss_share": Fact("share of the demand reads of metadata that missed the ARC", "share"),
    "misses_beyond_reads": Fact(
        "demand reads of data that missed the ARC (whole host) "
        "beyond those that the observed processes asked for",
        "count",
    ),
    "indirect_writes": Fact("synced writes that went to the pool, not the intent log (whole host)", "count"),
    "txg_timeout": Fact("module parameter zfs_txg_timeout", "s"),
    "nocacheflush": Fact("module parameter zfs_nocacheflush", "count"),
    "zil_nocacheflush": Fact("module parameter zil_nocacheflush", "count"),
    "dio_enabled": Fact("module parameter zfs_dio_enabled", "count"),
}  # fmt: skip


def host_facts(observation: Observation) -> dict[str, Any]:
    """Return the facts of the host; keys as in FACTS, None where not known. Counts are of the window."""
    zfs = observation.zfs
    counters: Mapping[str, Mapping[str, int]] = zfs.counters if zfs else {}
    arc = counters.get("arcstats", {})
    gauges = zfs.gauges.get("arcstats", {}) if zfs else {}
    tunables = zfs.tunables if zfs else {}
    caches = [cache_bytes(database) for database in observation.databases]
    database_cache = sum(c for c in caches if c is not None) if caches and None not in caches else None
    size, largest = gauges.get("size"), gauges.get("c_max")
    data, metadata = _demand(arc, "data"), _demand(arc, "metadata")
    misses, metadata_misses = arc.get("demand_data_misses"), arc.get("demand_metadata_misses")
    roles = [group for group in observation.of_kind("role") if group.name != NO_ROLE]
    elsewhere = [group for group in roles if on_zfs(observation, group) is False]
    return {
        "source": observation.source,
        "zfs": True if zfs else False if observation.source == "live" else None,
        "zfs_version": zfs.version if zfs else None,
        "direct_io_exists": version_key(zfs.version) >= (2, 3) if zfs and version_key(zfs.version) else None,
        "elsewhere": [group.name for group in elsewhere] or None,
        "elsewhere_filesystems": sorted({g.filesystem for g in elsewhere if g.filesystem}) or None,
        "elsewhere_writes": counted(observation, sum(group.writes.calls for group in elsewhere)),
        "memory": gauges.get("memory_all_bytes"),
        "arc_size": size,
        "arc_max": largest,
        "arc_full": size / largest if size is not None and largest else None,
        "arc_metadata": gauges.get("arc_meta_used"),
        "dnode_bytes": gauges.get("dnode_size"),
        "dnode_limit": gauges.get("arc_dnode_limit"),
        "database_cache": database_cache,
        "caches": database_cache + size if database_cache is not None and size is not None else None,
        "data_misses": misses,
        "data_misses_per_s": rate(misses, observation.seconds),
        "data_miss_share": misses / data if misses is not None and data else None,
        "metadata_misses_per_s": rate(metadata_misses, observation.seconds),
        "metadata_miss_share": metadata_misses / metadata
        if metadata_misses is not None and metadata
        else None,
        "misses_beyond_reads": _unasked(observation, misses),
        "indirect_writes": counters.get("zil", {}).get("zil_itx_indirect_count"),
        "txg_timeout": _number(tunables, "zfs_txg_timeout"),
        "nocacheflush": _number(tunables, "zfs_nocacheflush"),
        "zil_nocacheflush": _number(tunables, "zil_nocacheflush"),
        "dio_enabled": _number(tunables, "zfs_dio_enabled"),
    }


def rate(amount: int | None, seconds: float | None) -> float | None:
    """Return ``amount`` in a second, None where one of them is not known."""
    return amount / seconds if amount is not None and seconds else None


def _demand(arc: Mapping[str, int], kind: str) -> int | None:
    hits, misses = arc.get(f"demand_{kind}_hits"), arc.get(f"demand_{kind}_misses")
    if hits is None or misses is None:
        return None
    return hits + misses + arc.get(f"demand_{kind}_iohits", 0)  # iohits: since OpenZFS 2.2


def _unasked(observation: Observation, misses: int | None) -> int | None:
    """Return the demand misses that no read of the observed processes explains, at least 0.

    Each read call can miss as many records as it spans. What is left are records that partial writes had to
    read first, and reads of other programs: an upper bound for either.
    """
    groups = [group for group in observation.of_kind("role") if group.filesystem in {None, "zfs"}]
    if misses is None or not groups:
        return None
    asked = 0
    for group in groups:
        record = record_bytes(observation, group.dataset)
        span = ceil(typical(group.reads.sizes) / record) if record else 1
        asked += group.reads.calls * max(1, span)
    return max(0, misses - asked)


def _number(tunables: Mapping[str, str], name: str) -> int | None:
    text = tunables.get(name, "")
    number = whole(text.removeprefix("-"))
    return -number if number is not None and text.startswith("-") else number
