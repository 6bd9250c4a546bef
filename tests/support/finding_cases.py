"""For each rule of findings.toml an observation that it fires on, and a near one that it does not."""

from __future__ import annotations

from typing import Any

from observations import (
    GIB,
    LOG,
    MIRROR,
    SPECIAL,
    dataset,
    disk,
    group,
    histogram,
    observation,
    vdev,
    wal_group,
)

from ztune.observe.model import Observation

LZ4 = {"algorithm": "lz4", "blocks": 100, "ratio": 2.0}
MARIADB: dict[str, Any] = {"database": "mariadb"}


def sampled(ratio: float, low: float) -> list[dict[str, Any]]:
    made = [
        {**LZ4, "recordsize": 16384, "stored_ratio": ratio, "low": low, "high": ratio + 0.1},
        {**LZ4, "recordsize": 131072, "stored_ratio": 3.0, "low": 2.9, "high": 3.1},
    ]
    return [{"role": "data", "count": 10, "bytes": GIB, "allocated": GIB, "compressed": made}]


def records(sizes: dict[int, int]) -> list[dict[str, Any]]:
    made = {"count": 10, "bytes": GIB, "allocated": GIB}
    return [
        {"role": "data", **made, "record_sizes": sizes},
        {"role": "wal", **made, "record_sizes": {131072: 10}},
    ]


def elsewhere(filesystem: str = "ext4") -> list[dict[str, Any]]:
    return [group("data", None, filesystem=filesystem), wal_group(None, filesystem=filesystem)]


READ: dict[str, Any] = {
    "reads__calls": 20_000,
    "reads__sizes": {4096: 20_000},
    "reads__bytes": 20_000 * 4096,
    "reads__sequential": 1000,
}


def tables_elsewhere(reads: dict[int, int]) -> list[dict[str, Any]]:
    """RocksDB's on ext4: written once in large pieces, read here and there."""
    return [group("data", None, filesystem="ext4", **{**READ, "reads__sizes": reads}, **LARGE)]


def scanned(in_sequence: int) -> dict[str, Any]:
    """A warehouse's on ext4: pages are written here and there, and most of what is read is scanned."""
    calls = 100_000
    reads = {"reads__calls": calls, "reads__sizes": {8192: calls}, "reads__bytes": calls * 8192}
    made = group("data", None, filesystem="ext4", **reads, reads__sequential=in_sequence)
    return {"groups": [made], "zfs": None}


LARGE: dict[str, Any] = {"writes__sizes": {524288: 10_000}, "writes__sequential": 9900}


def syncs(ms: float, calls: int = 5000) -> dict[str, Any]:
    return {"syncs__calls": calls, "syncs__latency_total": int(calls * ms * 1e6)}


def one_dataset(**changes: Any) -> dict[str, Any]:
    return {"datasets": [dataset("tank/data", ["data"], **changes)], "groups": [group("data", "tank/data")]}


def fast_log(**changes: Any) -> dict[str, Any]:
    return {"vdevs": [MIRROR, LOG], "disks": [disk("sda"), disk("sdb"), disk("nvme0n1", **changes)]}


def volume() -> dict[str, Any]:
    made = dataset("tank/vol", ["data"], "volume", recordsize=None, volblocksize=16384)
    return {"datasets": [made], "groups": [group("data", "tank/vol", filesystem="ext4")]}


RAIDZ = vdev("raidz1-0", ["sda", "sdb", "sdc", "sdd", "sde"])
FILES = histogram("data", {65536: 1000}), histogram("wal", {65536: 1000})
DIRECT = {"writes__direct": 10_000, "writes__aligned": 10_000}
SMALL = {"data": {"recordsize": 4096}}

# Rule → arguments of an observation in which it fires, and of one, as near as possible, in which it does not.
CASES: dict[str, tuple[dict[str, Any] | Observation, dict[str, Any] | Observation]] = {
    "recordsize-above-writes": (
        {"data": {"recordsize": 131072}},
        {"data": {"recordsize": 131072}, "data_group": {"writes__sequential": 9000}},
    ),
    "partial-writes-read": ({"arc": {"demand_data_misses": 4000}}, {"arc": {"demand_data_misses": 3999}}),
    "recordsize-below-writes": (
        {"wal_group_": {"writes__sizes": {65536: 10_000}}, "wal": {"recordsize": 16384}},
        {"wal_group_": {"writes__sizes": {65536: 10_000}}, "wal": {"recordsize": 32768}},
    ),
    "recordsize-from-writes": (FILES[0], FILES[1]),
    "recordsize-scanned": (scanned(50_000), scanned(49_999)),
    "recordsize-in-sequence": (
        {"groups": elsewhere(), "zfs": None},
        {"groups": [group("data", None, filesystem="ext4")], "zfs": None},
    ),
    "recordsize-between": (
        {"groups": tables_elsewhere({4096: 20_000}), "zfs": None},
        {"groups": tables_elsewhere({262144: 20_000}), "zfs": None},
    ),
    "recordsize-above-reads": (
        {"data": {"recordsize": 131072}, "data_group": READ, "arc": {"demand_data_misses": 20_000}},
        {"data": {"recordsize": 16384}, "data_group": READ, "arc": {"demand_data_misses": 20_000}},
    ),
    "recordsize-from-appends": (FILES[1], FILES[0]),
    "wal-large-writes": (
        {"wal_group_": {"writes__sizes": {65536: 10_000}}},
        {"wal_group_": {"writes__sizes": {65536: 10_000}}, **fast_log(write_seconds=0.1)},
    ),
    "recordsize-old-files": ({"files": records({16384: 4, 131072: 6})}, {"files": records({16384: 10})}),
    "data-and-wal-together": (
        {"datasets": [dataset("tank/data", ["data", "wal"])], "groups": [group("data", "tank/data")]},
        {"datasets": [dataset("tank/data", ["data", "temp"])], "groups": [group("data", "tank/data")]},
    ),
    "sync-disabled": ({"wal": {"sync": "disabled"}}, {"wal": {"sync": "always"}}),
    "sync-always": ({"wal": {"sync": "always"}}, {"wal": {"sync": "disabled"}}),
    "checksum-off": ({"data": {"checksum": "off"}}, {"data": {"checksum": "sha256"}}),
    "cache-flush-off": (
        {"tunables": {"zfs_nocacheflush": "1"}},
        {"tunables": {"zfs_nocacheflush": "0", "zil_nocacheflush": "0"}},
    ),
    "txg-timeout-long": ({"tunables": {"zfs_txg_timeout": "6"}}, {"tunables": {"zfs_txg_timeout": "5"}}),
    "txg-timeout-short": ({"tunables": {"zfs_txg_timeout": "1"}}, {"tunables": {"zfs_txg_timeout": "5"}}),
    "fsync-off": ({"settings": {"fsync": "off"}}, {"settings": {"fsync": "on"}}),
    "synchronous-commit-off": (
        {"settings": {"synchronous_commit": "off"}},
        {"settings": {"synchronous_commit": "local"}},
    ),
    "log-flush-weak": (
        {**MARIADB, "settings": {"innodb_flush_log_at_trx_commit": "2"}},
        {**MARIADB, "settings": {"innodb_flush_log_at_trx_commit": "1"}},
    ),
    "full-page-writes-off-torn": (
        {**SMALL, "settings": {"full_page_writes": "off"}},
        {"data": {"recordsize": 8192}, "settings": {"full_page_writes": "off"}},
    ),
    "full-page-writes-off-in-place": (
        {"groups": elsewhere(), "settings": {"full_page_writes": "off"}},
        {"groups": elsewhere(), "settings": {"full_page_writes": "on"}},
    ),
    "full-page-writes-may-go": (
        {"data": {"recordsize": 8192}, "files": records({8192: 2})},
        {"data": {"recordsize": 8192}, "files": records({8192: 2, 4096: 1})},
    ),
    "full-page-writes-off-kept": (
        {
            "data": {"recordsize": 8192},
            "settings": {"full_page_writes": "off"},
            "files": records({8192: 2}),
        },
        {
            "data": {"recordsize": 8192},
            "settings": {"full_page_writes": "off"},
            "files": records({8192: 2, 4096: 1}),
        },
    ),
    "doublewrite-off-torn": (
        {**MARIADB, "settings": {"innodb_doublewrite": "DETECT_ONLY"}, "files": records({16384: 1, 8192: 1})},
        {**MARIADB, "settings": {"innodb_doublewrite": "DETECT_ONLY"}, "files": records({16384: 2})},
    ),
    "doublewrite-off-in-place": (
        {**MARIADB, "groups": elsewhere("xfs"), "settings": {"innodb_doublewrite": "OFF"}},
        {**MARIADB, "groups": elsewhere("xfs"), "settings": {"innodb_doublewrite": "fast"}},
    ),
    "doublewrite-may-go": (
        {**MARIADB, "data": {"recordsize": 16384}, "files": records({16384: 2})},
        {**MARIADB, "data": {"recordsize": 16384}, "files": records({16384: 2, 8192: 1})},
    ),
    "doublewrite-off-kept": (
        {**MARIADB, "settings": {"innodb_doublewrite": "0"}, "files": records({16384: 2})},
        {**MARIADB, "settings": {"innodb_doublewrite": "0"}, "files": records({16384: 2, 8192: 1})},
    ),
    "wal-recycling": (
        {"settings": {"wal_init_zero": "on"}},
        {
            "settings": {"wal_init_zero": "on"},
            "groups": [group("data", "tank/data"), wal_group(None, filesystem="xfs")],
        },
    ),
    "logbias-throughput": (
        {"data": {"logbias": "throughput"}},
        {"data": {"logbias": "throughput"}, "data_group": {"reads__calls": 0}},
    ),
    "slog-absent": ({"wal_group_": syncs(8)}, {"wal_group_": syncs(1)}),
    "slog-slower": (fast_log(write_seconds=0.5, flush_seconds=1.5), fast_log(write_seconds=0.5)),
    "slog-unused": (fast_log(writes=50, write_seconds=0.01), fast_log(writes=51, write_seconds=0.01)),
    "slog-idle": (
        {**fast_log(writes=0), "data_group": syncs(0, 0), "wal_group_": syncs(0, 0)},
        {**fast_log(writes=0), "data_group": syncs(1, 1), "wal_group_": syncs(0, 0)},
    ),
    "compression-off": (
        {"data": {"compression": "off"}, "files": sampled(1.4, 1.3)},
        {"data": {"compression": "off"}, "files": sampled(1.2, 1.05)},
    ),
    "slow-compression": ({"data": {"compression": "gzip-9"}}, {"data": {"compression": "zstd-3"}}),
    "raidz-small-records": ({"vdevs": [RAIDZ]}, {"vdevs": [RAIDZ], "data": {"recordsize": 131072}}),
    "no-gain-from-compression": (
        {"data": {"recordsize": 8192, "compressratio": "1.04"}},
        {"data": {"recordsize": 8192, "compressratio": "1.60"}},
    ),
    "special-takes-all": (
        {"vdevs": [MIRROR, SPECIAL], "data": {"special_small_blocks": 16384}},
        {"vdevs": [MIRROR, SPECIAL], "data": {"special_small_blocks": 8192}},
    ),
    "special-alone": (
        {"vdevs": [MIRROR, SPECIAL | {"kind": "disk", "disks": ["sdc"]}]},
        {"vdevs": [MIRROR, SPECIAL]},
    ),
    "pool-almost-out": ({"pool": {"allocated": 955 * GIB}}, {"pool": {"allocated": 950 * GIB}}),
    "pool-degraded": ({"pool": {"health": "DEGRADED"}}, {"pool": {"health": "ONLINE"}}),
    "pool-full": ({"pool": {"allocated": 900 * GIB}}, {"pool": {"allocated": 890 * GIB}}),
    "free-space-fragmented": ({"pool": {"fragmentation": "64%"}}, {"pool": {"fragmentation": "63%"}}),
    "ashift-small": (
        {"vdevs": [vdev("mirror-0", ["sda", "sdb"], ashift=9)]},
        {"vdevs": [vdev("mirror-0", ["sda", "sdb"], ashift=12)]},
    ),
    "primarycache-misses": (
        {"data": {"primarycache": "metadata"}, "arc": {"demand_data_misses": 6000}},
        {"data": {"primarycache": "metadata"}, "arc": {"demand_data_misses": 5999}},
    ),
    "primarycache-partial-writes": (
        {"data": {"primarycache": "metadata"}},
        {"data": {"primarycache": "metadata"}, "data_group": {"writes__aligned": 9500}},
    ),
    "double-caching": (
        {"settings": {"shared_buffers": str(20 * GIB)}, "gauges": {"size": 16 * GIB}},
        {"settings": {"shared_buffers": str(8 * GIB)}, "gauges": {"size": 16 * GIB}},
    ),
    "caches-above-memory": (
        {"settings": {"shared_buffers": str(40 * GIB)}, "gauges": {"size": 30 * GIB}},
        {"settings": {"shared_buffers": str(30 * GIB)}, "gauges": {"size": 30 * GIB}},
    ),
    "arc-metadata-misses": (
        {"arc": {"demand_metadata_misses": 9000}, "gauges": {"size": 16 * GIB}},
        {"arc": {"demand_metadata_misses": 9000}, "gauges": {"size": 8 * GIB}},
    ),
    "arc-dnodes": ({"gauges": {"dnode_size": 2 * GIB}}, {"gauges": {"dnode_size": GIB}}),
    "direct-ignored": (
        {"data_group": {"reads__direct": 100}, "version": "2.2.7"},
        {"data_group": {"reads__direct": 100}, "version": "2.3.0"},
    ),
    "direct-unaligned": (
        {"data_group": {"writes__direct": 10_000}},
        {"data_group": {"writes__direct": 10_000}, "data": {"direct": "disabled"}},
    ),
    "direct-bypasses-arc": (
        {"data_group": DIRECT},
        {"data_group": DIRECT, "tunables": {"zfs_dio_enabled": "0"}},
    ),
    "direct-unflushed": (
        {"data_group": {"writes__direct": 1}, "vdevs": [MIRROR, LOG]},
        {"data_group": {"writes__direct": 1}, "vdevs": [MIRROR]},
    ),
    "direct-always": ({"data": {"direct": "always"}}, {"data": {"direct": "standard"}}),
    "direct-ignored-setting": (
        {**MARIADB, "settings": {"innodb_flush_method": "O_DIRECT"}, "version": "2.2.7"},
        {**MARIADB, "settings": {"innodb_flush_method": "O_DIRECT"}, "version": "2.3.2"},
    ),
    "atime-on": ({"data": {"atime": "on"}}, {"data": {"atime": "off"}}),
    "volume": (volume(), one_dataset()),
    "other-filesystem": ({"groups": elsewhere()}, {}),
    "old-advice-logbias": (FILES[0], FILES[1]),
    "old-advice-compression": (FILES[0], histogram("temp", {65536: 1000})),
    "old-advice-checksum": (FILES[0], {}),
    "old-advice-read-ahead": (FILES[0], {}),
}  # fmt: skip


def of(case: dict[str, Any] | Observation) -> Observation:
    return case if isinstance(case, Observation) else observation(**case)
