"""A made-up observation of PostgreSQL on ZFS with nothing to complain of, and ways to change it."""

from __future__ import annotations

from typing import Any

from ztune.observe.model import Observation

GIB = 1 << 30
SECONDS = 60.0


def group(name: str, dataset: str | None, **changes: Any) -> dict[str, Any]:
    """A role's group; changes by path, "__" for the dots: writes__sequential=0."""
    made: dict[str, Any] = {
        "kind": "role", "name": name, "dataset": dataset, "filesystem": "zfs" if dataset else None,
        "reads": {"calls": 3000, "bytes": 3000 * 8192, "sizes": {8192: 3000}, "direct": 0},
        "writes": {
            "calls": 10_000, "bytes": 10_000 * 8192, "sizes": {8192: 10_000}, "sequential": 1000,
            "aligned": 5000, "overwritten": 9000 * 8192, "synced": 0, "direct": 0,
        },
        "syncs": {"calls": 20, "latency_total": 20 * 500_000},
    }  # fmt: skip
    return set_all(made, changes)


def wal_group(dataset: str | None, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "writes__sequential": 9900, "writes__overwritten": 0, "reads__calls": 0, "reads__sizes": {},
        "reads__bytes": 0, "syncs__calls": 5000, "syncs__latency_total": 5000 * 500_000,
    }  # fmt: skip
    return group("wal", dataset, **{**made, **changes})


def set_all(made: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = made
        for parent in parents:
            node = node[parent]
        node[last] = value
    return made


def dataset(name: str, roles: list[str], type: str = "filesystem", **properties: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "recordsize": 16384, "compression": "lz4", "compressratio": "1.90", "checksum": "on",
        "logbias": "latency", "sync": "standard", "atime": "off", "relatime": "on", "primarycache": "all",
        "special_small_blocks": 0, "direct": "standard",
    }  # fmt: skip
    values.update(properties)
    return {
        "name": name, "pool": name.split("/")[0], "roles": roles, "type": type,
        "properties": {k: {"value": str(v)} for k, v in values.items() if v is not None},
    }  # fmt: skip


def vdev(name: str, disks: list[str], ashift: int = 12, role: str = "data") -> dict[str, Any]:
    return {
        "name": name,
        "kind": name.split("-")[0].split(":")[0],
        "role": role,
        "ashift": ashift,
        "disks": disks,
    }


def disk(name: str, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name, "physical_sector": 4096, "logical_sector": 512, "writes": 2000, "write_seconds": 2.0,
        "flush_seconds": 0.0,
    }  # fmt: skip
    return {**made, **changes}


MIRROR = vdev("mirror-0", ["sda", "sdb"])
LOG = vdev("nvme0n1", ["nvme0n1"], role="log") | {"kind": "disk"}
SPECIAL = vdev("mirror-1", ["sdc", "sdd"], role="special")


def observation(
    *,
    data: dict[str, Any] | None = None,
    wal: dict[str, Any] | None = None,
    data_group: dict[str, Any] | None = None,
    wal_group_: dict[str, Any] | None = None,
    groups: list[dict[str, Any]] | None = None,
    datasets: list[dict[str, Any]] | None = None,
    vdevs: list[dict[str, Any]] | None = None,
    disks: list[dict[str, Any]] | None = None,
    pool: dict[str, Any] | None = None,
    arc: dict[str, int] | None = None,
    gauges: dict[str, int] | None = None,
    tunables: dict[str, str] | None = None,
    files: list[dict[str, Any]] | None = None,
    database: str = "postgresql",
    settings: dict[str, str] | None = None,
    version: str = "2.3.2-1",
    **top: Any,
) -> Observation:
    """The observation with these changes; ``data``, ``wal``: properties of the two datasets."""
    counters = {
        "demand_data_hits": 90_000, "demand_data_iohits": 0, "demand_data_misses": 900,
        "demand_metadata_hits": 90_000, "demand_metadata_iohits": 0, "demand_metadata_misses": 60,
    }  # fmt: skip
    gauge = {
        "size": 4 * GIB, "c_max": 16 * GIB, "memory_all_bytes": 64 * GIB, "arc_meta_used": GIB,
        "dnode_size": GIB // 8, "arc_dnode_limit": GIB,
    }  # fmt: skip
    knobs = {"zfs_txg_timeout": "5", "zfs_nocacheflush": "0", "zil_nocacheflush": "0", "zfs_dio_enabled": "1"}
    of_kind = {
        "postgresql": {
            "block_size": "8192", "shared_buffers": str(8 * GIB), "full_page_writes": "on",
            "wal_recycle": "off", "wal_init_zero": "off", "synchronous_commit": "on", "fsync": "on",
        },
        "mariadb": {
            "innodb_page_size": "16384", "innodb_buffer_pool_size": str(8 * GIB), "innodb_doublewrite": "ON",
            "innodb_flush_log_at_trx_commit": "1", "innodb_flush_method": "fsync",
        },
    }[database]  # fmt: skip
    raw: dict[str, Any] = {
        "ztune": "0", "source": "live", "subject": "process 1 (postgres)", "seconds": SECONDS,
        "groups": groups
        if groups is not None
        else [group("data", "tank/data", **(data_group or {})), wal_group("tank/wal", **(wal_group_ or {}))],
        "disks": disks if disks is not None else [disk("sda"), disk("sdb")],
        "files": files or [],
        "databases": [
            {"kind": database, "where": "/run/db.sock", "settings": {**of_kind, **(settings or {})}}
        ],
        "zfs": {
            "version": version,
            "pools": [
                {
                    "name": "tank", "vdevs": vdevs or [MIRROR],
                    "properties": {
                        k: {"value": str(v)}
                        for k, v in {
                            "size": 1000 * GIB, "allocated": 400 * GIB, "fragmentation": 20,
                            "health": "ONLINE", **(pool or {}),
                        }.items()
                    },
                }
            ],
            "datasets": datasets
            or [
                dataset("tank/data", ["data"], **(data or {})),
                dataset("tank/wal", ["wal"], **{"recordsize": 131072, **(wal or {})}),
            ],
            "counters": {"arcstats": {**counters, **(arc or {})}, "zil": {"zil_itx_indirect_count": 0}},
            "gauges": {"arcstats": {**gauge, **(gauges or {})}},
            "tunables": {**knobs, **(tunables or {})},
        },
    }  # fmt: skip
    return Observation.model_validate({**raw, **top})


def histogram(role: str, sizes: dict[int, int], **more: Any) -> Observation:
    """What a reader of DTrace output makes of one histogram of write sizes: nothing else is known."""
    writes = {"calls": sum(sizes.values()), "sizes": sizes}
    return Observation.model_validate(
        {
            "ztune": "0", "source": "files", "subject": "dtrace output writes.txt",
            "groups": [{"kind": "role", "name": role, "writes": writes}], **more,
        }
    )  # fmt: skip
