"""What is known about a layout, its datasets and the workload, as flat facts that rules can ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ztune.analysis.results import LayoutResult
from ztune.databases.database import every
from ztune.databases.switch import switch
from ztune.observe.allocation import Allocation
from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import TUNABLES
from ztune.study import Dataset, Layout, Pool
from ztune.study.durability import smallest_record
from ztune.trace.manifest import Manifest
from ztune.trace.roles import database_in
from ztune.units import parse_size

# Memory for each block that only the L2ARC holds: the size of an L2-only header (arc_impl.h, OpenZFS 2.3.2,
# 64 bit: the part of arc_buf_hdr_t before b_l1hdr).
L2ARC_HEADER_BYTES = 96

LAYOUT_FACTS = (
    "arc", "database", "full_page_writes", "doublewrite", "wal_recycle", "wal_init_zero",
    "data_pool", "wal_pool", "data_dataset", "wal_dataset", "nocacheflush", "zil_nocacheflush", "txg_timeout",
    "recordsize_changed", "smallest_record", "write_amplification", "rmw_reads",
)  # fmt: skip
DATASET_FACTS = (
    *LAYOUT_FACTS, "dataset", "roles", "page", "recordsize", "compression", "algorithm", "level",
    "checksum", "logbias", "sync", "primarycache", "secondarycache", "redundant_metadata",
    "special_small_blocks", "copies", "atime", "durable", "pool", "ashift", "sector", "kinds",
    "redundant", "raidz", "raidz_sectors", "raidz_expansion", "raidz_ideal", "slog", "slog_redundant",
    "special", "special_redundant", "l2arc", "l2arc_bytes", "l2arc_header_bytes", "first_of_pool",
    "filesystem", "volume", "encryption", "direct",
)  # fmt: skip

# What a directory on another file system has not.
_OF_ZFS = (
    "recordsize", "compression", "algorithm", "level", "checksum", "logbias", "sync", "primarycache",
    "secondarycache", "redundant_metadata", "special_small_blocks", "copies", "atime", "ashift", "sector",
    "redundant", "slog", "special", "l2arc", "direct",
)  # fmt: skip


def database_of(workload: str | None, manifest: Manifest | None) -> str | None:
    """Return "postgresql", "mariadb" … from the workload's name or the trace's files; None if unknown."""
    names = [workload or "", manifest.workload.name if manifest is not None and manifest.workload else ""]
    for name in names:
        for one in every():
            # Also of a name like one's: postgres-mine.
            known = {one_of.partition("-")[0] for one_of in one.facts.workloads}
            if one.facts.files and name.partition("-")[0] in known:
                return one.name
    found = None if manifest is None else database_in(manifest)
    return None if found is None else found.name


def layout_facts(
    result: LayoutResult, workload: str | None = None, manifest: Manifest | None = None
) -> dict[str, Any]:
    """Return the facts of a whole layout; keys as in LAYOUT_FACTS, None where not known. Sizes are bytes."""
    layout = result.layout
    data, wal = layout.dataset_of("data"), layout.dataset_of("wal")
    return {
        "arc": layout.arc,
        "database": database_of(workload, manifest),
        "full_page_writes": _switch(layout, "full_page_writes"),
        "doublewrite": _switch(layout, "innodb_doublewrite"),
        "wal_recycle": _switch(layout, "wal_recycle"),
        "wal_init_zero": _switch(layout, "wal_init_zero"),
        "data_pool": data.pool if data else None,
        "wal_pool": wal.pool if wal else None,
        "data_dataset": data.name if data else None,
        "wal_dataset": wal.name if wal else None,
        "nocacheflush": _tunable(layout, "zfs_nocacheflush"),
        "zil_nocacheflush": _tunable(layout, "zil_nocacheflush"),
        "txg_timeout": _tunable(layout, "zfs_txg_timeout"),
        "recordsize_changed": any(
            d.properties["recordsize"] != "128K" for d in layout.datasets if d.volume is None
        ),
        "smallest_record": smallest_record(layout)[0],
        "write_amplification": result.amplification,
        "rmw_reads": result.value("rmw_reads"),
    }


def dataset_facts(
    result: LayoutResult,
    dataset: Dataset,
    workload: str | None = None,
    manifest: Manifest | None = None,
) -> dict[str, Any]:
    """Return the facts of one dataset and of the pool it is on; keys as in DATASET_FACTS. Sizes are bytes."""
    layout = result.layout
    pool = layout.pool(dataset.pool)
    properties = dataset.properties
    zfs = pool.filesystem == "zfs"
    # The block of a volume is to it what the record is to a file.
    recordsize = parse_size(properties["volblocksize" if dataset.volume is not None else "recordsize"])
    algorithm, _, level = properties["compression"].partition("-")
    sector = 1 << pool.ashift
    facts: dict[str, Any] = {
        **layout_facts(result, workload, manifest),
        "dataset": dataset.name,
        "roles": list(dataset.roles),
        "page": _page(dataset, manifest),
        "recordsize": recordsize,
        "compression": properties["compression"],
        "algorithm": algorithm,
        "level": int(level) if level.isdigit() else None,
        "copies": int(properties["copies"]),
        "special_small_blocks": parse_size(properties["special_small_blocks"]),
        "atime": properties.get("atime", PROPERTIES["atime"].default),
        "direct": properties.get("direct", PROPERTIES["direct"].default),
        "durable": any(r not in {"temp", "source"} for r in dataset.roles),
        "pool": pool.name,
        "ashift": pool.ashift,
        "sector": sector,
        "filesystem": dataset.filesystem or pool.filesystem,
        "volume": dataset.volume is not None,
        "encryption": properties.get("encryption", "off"),
        "first_of_pool": next(d for d in layout.datasets if d.pool == pool.name) is dataset,
        **{
            name: properties[name]
            for name in (
                "checksum",
                "logbias",
                "sync",
                "primarycache",
                "secondarycache",
                "redundant_metadata",
            )
        },
        **_pool_facts(pool, recordsize, sector),
    }
    if not zfs:
        facts.update(dict.fromkeys(_OF_ZFS))  # not known: no rule about ZFS fires
        return facts
    cached = _l2arc_bytes(result)
    if facts["l2arc"] and cached is not None:
        facts["l2arc_bytes"] = cached
        facts["l2arc_header_bytes"] = cached / recordsize * L2ARC_HEADER_BYTES
    return facts


def _pool_facts(pool: Pool, recordsize: int, sector: int) -> dict[str, Any]:
    data = [v for v in pool.vdevs if v.class_ == "data"]
    logs = [v for v in pool.vdevs if v.class_ == "log"]
    special = [v for v in pool.vdevs if v.class_ == "special"]
    raidz = next((v for v in data if v.kind.startswith("raidz")), None)
    facts: dict[str, Any] = {
        "kinds": sorted({v.kind for v in data}),
        "redundant": all(v.kind != "stripe" for v in data),
        "raidz": raidz is not None,
        "slog": bool(logs),
        "slog_redundant": all(v.kind != "stripe" for v in logs) if logs else None,
        "special": bool(special),
        "special_redundant": all(v.kind != "stripe" for v in special) if special else None,
        "l2arc": any(v.class_ == "cache" for v in pool.vdevs),
        "l2arc_bytes": None,
        "l2arc_header_bytes": None,
        "raidz_sectors": None,
        "raidz_expansion": None,
        "raidz_ideal": None,
    }
    if raidz is not None:
        blocks = Allocation(sector, raidz.disks, parity=int(raidz.kind.removeprefix("raidz")))
        facts["raidz_sectors"] = blocks.allocated(recordsize) // sector
        facts["raidz_expansion"] = blocks.expansion(recordsize)
        facts["raidz_ideal"] = blocks.ideal
    return facts


def _switch(layout: Layout, name: str) -> str:
    return switch(layout.database.get(name, "on")) or "on"


def _tunable(layout: Layout, name: str) -> int | None:
    known = TUNABLES.get(name)
    return layout.tunables.get(name, None if known is None else known.default)


def _page(dataset: Dataset, manifest: Manifest | None) -> int | None:
    """Return the largest database page among the roles that are written in pages, bytes.

    An index has the data's where nothing else is said.
    """
    if manifest is None:
        return None
    pages: dict[Any, int] = dict(manifest.page_size)
    if "data" in pages:
        pages.setdefault("index", pages["data"])
    return max((pages[r] for r in dataset.roles if r in pages and r != "wal"), default=None)


def _l2arc_bytes(result: LayoutResult) -> float | None:
    node = result.measure.get("l2arc")
    size = node.get("size_end") if isinstance(node, Mapping) else None
    return float(size) if isinstance(size, int | float) and size > 0 else None
