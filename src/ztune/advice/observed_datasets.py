"""Facts of the pools and datasets that an observation shows."""

from __future__ import annotations

import math
import re
from typing import Any

from ztune.advice.fact import Fact
from ztune.observe.allocation import Allocation
from ztune.observe.model import (
    Group,
    Observation,
    ObservedDataset,
    ObservedDisk,
    ObservedFiles,
    ObservedPool,
    ObservedVdev,
)
from ztune.units import whole

POOL_FACTS: dict[str, Fact] = {
    "pool": Fact("pool"),
    "health": Fact("health of the pool", "text"),
    "pool_free": Fact("free space of the pool", "bytes"),
    "pool_used": Fact("share of the pool in use", "share"),
    "slop": Fact("space of the pool that ZFS keeps for itself", "bytes"),
    "fragmentation": Fact("fragmentation of the pool's free space", "percent"),
    "sector": Fact("smallest block of the pool (2^ashift)", "size"),
    "small_vdev": Fact("vdev with the smallest ashift for its disks"),
    "vdev_sector": Fact("smallest block of the vdev with the smallest ashift for its disks", "size"),
    "disk_sector": Fact(
        "largest physical sector of the disks of the vdev with the smallest ashift for them", "size"
    ),
    "parity": Fact("the pool has RAID-Z or dRAID", "flag"),
    "parity_vdev": Fact("kind of RAID-Z or dRAID"),
    "slog": Fact("the pool has a log device", "flag"),
    "log_apart": Fact("log records may lie on other vdevs than the data they are of", "flag"),
    "special": Fact("the pool has a special vdev", "flag"),
    "special_redundant": Fact("all special vdevs are redundant", "flag"),
    "pool_syncs": Fact("fsyncs (and the like) of the observed processes on the pool", "count"),
    "sync_mean": Fact("mean time of an fsync", "s"),
    "sync_wait": Fact(
        "time that processes waited for fsync, as a share of the window (can exceed 1)", "share"
    ),
    "log_writes": Fact("writes to the log device", "count"),
    "log_wait": Fact("mean time of a write with its flush on the log device", "s"),
    "data_wait": Fact("mean time of a write with its flush on the pool's other disks", "s"),
}
DATASET_FACTS: dict[str, Fact] = {
    "dataset": Fact("dataset"),
    "roles": Fact("roles whose files the dataset holds"),
    "log_beside": Fact("every database that was seen keeps its log beside its data", "flag"),
    "volume": Fact("the dataset is a volume", "flag"),
    "recordsize": Fact("recordsize (of a volume: volblocksize)", "size"),
    "record_sectors": Fact("sectors in a record", "ratio"),
    "compression": Fact("property compression"),
    "algorithm": Fact("compression algorithm"),
    "level": Fact("compression level", "count"),
    "compressratio": Fact("property compressratio", "ratio"),
    "lz4_ratio": Fact("ratio of lz4 on sampled blocks, after rounding to sectors and parity", "ratio"),
    "lz4_low": Fact("lower end of the 95% interval of lz4's ratio", "ratio"),
    "larger_recordsize": Fact("larger record size at which the sample compressed best", "size"),
    "larger_ratio": Fact("ratio of lz4 at the larger record size", "ratio"),
    "checksum": Fact("property checksum"),
    "logbias": Fact("property logbias"),
    "sync": Fact("property sync"),
    "atime": Fact("property atime"),
    "atime_above": Fact("atime comes from above, from a dataset that was seen too", "flag"),
    "relatime": Fact("property relatime"),
    "primarycache": Fact("property primarycache"),
    "special_small_blocks": Fact("property special_small_blocks", "size"),
    "direct": Fact("property direct"),
    "parity_expansion": Fact(
        "what a record takes with parity and padding, as a multiple of its size", "ratio"
    ),
    "parity_ideal": Fact("what a large record takes with parity, as a multiple of its size", "ratio"),
    "dataset_reads": Fact("reads of the observed processes in the dataset", "count"),
    "dataset_read_bytes": Fact("bytes that the observed processes read from the dataset", "bytes"),
    "dataset_writes": Fact("writes of the observed processes in the dataset", "count"),
    "write_rate": Fact("bytes that the observed processes wrote to the dataset in a second", "bytes/s"),
    "dataset_syncs": Fact("fsyncs (and the like) of the observed processes in the dataset", "count"),
    "other_records": Fact("files with another record size than the property", "count"),
    "other_recordsize": Fact("record size that most of the other files have", "size"),
}

# Databases whose log has to lie beside the data: SQLite finds its own by the name of the database with "-wal"
# behind it (https://sqlite.org/wal.html, The WAL File).
_LOG_BESIDE = {"sqlite"}
# zfs get's short forms (zfsprops(7), compression): `on` is lz4 on a pool with the lz4_compress feature.
_LEVELS = {"on": ("lz4", None), "zstd": ("zstd", 3), "gzip": ("gzip", 6), "zstd-fast": ("zstd-fast", 1)}
# spa_get_slop_space() (spa_misc.c, OpenZFS 2.3): 1/32 of the pool, 128 GiB at most, and at least the smaller
# of 128 MiB and half of the pool.
_SLOP_SHARE, _SLOP_MOST, _SLOP_LEAST = 32, 128 << 30, 128 << 20


def find(observation: Observation, name: str | None) -> ObservedDataset | None:
    """Return the dataset called ``name``, None where the observation has none."""
    datasets = observation.zfs.datasets if observation.zfs else ()
    return next((d for d in datasets if d.name == name), None)


def record_bytes(observation: Observation, name: str | None) -> int | None:
    """Return the recordsize, or volblocksize, of the dataset called ``name`` in bytes."""
    dataset = find(observation, name)
    return _record(dataset) if dataset else None


def pool_of(observation: Observation, group: Group) -> str | None:
    """Return the name of the pool that a group's files are on."""
    return group.pool or (group.dataset.split("/")[0] if group.dataset else None)


def pool_facts(observation: Observation, pool: ObservedPool) -> dict[str, Any]:
    """Return the facts of a pool; keys as in POOL_FACTS, None where not known."""
    data = [v for v in pool.vdevs if v.role == "data"]
    logs = [v for v in pool.vdevs if v.role == "log"]
    special = [v for v in pool.vdevs if v.role == "special"]
    size, allocated = _property(pool, "size"), _property(pool, "allocated")
    if size is None and data and all(v.size is not None for v in data):
        size = sum(v.size or 0 for v in data)
    if allocated is None and data and all(v.allocated is not None for v in data):
        allocated = sum(v.allocated or 0 for v in data)
    ashifts = [v.ashift for v in data if v.ashift is not None]
    parity = next((v for v in data if _parity(v) is not None), None)
    groups = [g for g in observation.of_kind("role") if pool_of(observation, g) == pool.name]
    log_disks, data_disks = _disks(observation, logs), _disks(observation, data)
    worst = _worst(observation, pool)
    return {
        "pool": pool.name,
        "health": pool.properties["health"].value if "health" in pool.properties else None,
        "pool_free": size - allocated if size is not None and allocated is not None else None,
        "pool_used": allocated / size if size and allocated is not None else None,
        "slop": slop(size) if size else None,
        "fragmentation": _property(pool, "fragmentation"),
        "sector": 1 << max(ashifts) if ashifts else None,
        "small_vdev": worst[0] if worst else None,
        "vdev_sector": worst[1] if worst else None,
        "disk_sector": worst[2] if worst else None,
        "parity": parity is not None if data else None,
        "parity_vdev": parity.kind if parity else None,
        "slog": bool(logs) if pool.vdevs else None,
        "log_apart": bool(logs) or len(data) + len(special) > 1 if pool.vdevs else None,
        "special": bool(special) if pool.vdevs else None,
        "special_redundant": all(v.kind not in {"disk", "file"} for v in special) if special else None,
        **_syncs(groups, observation.seconds),
        "log_writes": sum(d.writes for d in log_disks) if log_disks else None,
        "log_wait": _wait(log_disks),
        "data_wait": _wait(data_disks),
    }


def dataset_facts(observation: Observation, dataset: ObservedDataset) -> dict[str, Any]:
    """Return the facts of a dataset without those of its pool; keys as in DATASET_FACTS, None if unknown."""
    values = {name: value.value for name, value in dataset.properties.items()}
    compression = values.get("compression")
    algorithm, level = _algorithm(compression)
    record = _record(dataset)
    groups = _groups(observation, dataset.name)
    written = [g.writes.bytes for g in groups]
    read = [g.reads.bytes for g in groups]
    total = sum(b for b in written if b is not None) if written and None not in written else None
    facts: dict[str, Any] = {
        **dict.fromkeys(DATASET_FACTS),
        "dataset": dataset.name,
        "roles": list(dataset.roles),
        "log_beside": {d.kind for d in observation.databases} <= _LOG_BESIDE
        if observation.databases
        else None,
        "volume": dataset.type == "volume",
        "recordsize": record,
        "compression": compression,
        "algorithm": algorithm,
        "level": level,
        "compressratio": _float(values.get("compressratio")),
        **{
            name: values.get(name)
            for name in ("checksum", "logbias", "sync", "atime", "relatime", "primarycache", "direct")
        },
        "atime_above": _from_above(observation, dataset, "atime"),
        "special_small_blocks": _int(values.get("special_small_blocks")),
        "dataset_reads": sum(g.reads.calls for g in groups) if groups else None,
        "dataset_read_bytes": sum(b for b in read if b is not None) if read and None not in read else None,
        "dataset_writes": sum(g.writes.calls for g in groups) if groups else None,
        "write_rate": total / observation.seconds if total is not None and observation.seconds else None,
        "dataset_syncs": sum(g.syncs.calls for g in groups) if groups else None,
    }
    pool = (
        next((p for p in observation.zfs.pools if p.name == dataset.pool), None) if observation.zfs else None
    )
    sampled = [f for f in observation.files if f.role in dataset.roles]
    if record:
        facts.update(_samples(sampled, record))
        facts.update(_files(sampled, record))
        if pool is not None:
            facts.update(_expansion(pool, record))
    return facts


def _from_above(observation: Observation, dataset: ObservedDataset, name: str) -> bool:
    """Say whether a dataset has a property's value from above, and one above it, with that value, was seen:
    where it is changed there, it changes here."""
    mine = dataset.properties.get(name)
    return (
        mine is not None
        and mine.source.startswith(("default", "inherited"))
        and any(
            dataset.name.startswith(f"{one.name}/")
            and (had := one.properties.get(name)) is not None
            and had.value == mine.value
            for one in (observation.zfs.datasets if observation.zfs else ())
        )
    )


def slop(size: int) -> int:
    """Return the bytes of a pool of ``size`` bytes that ZFS keeps for itself (default spa_slop_shift)."""
    return max(min(size // _SLOP_SHARE, _SLOP_MOST), min(size // 2, _SLOP_LEAST))


def _groups(observation: Observation, name: str) -> list[Group]:
    """Return what was done in a dataset: by role, or by file where a role's files are in several datasets."""
    roles = observation.of_kind("role")
    kind = "file" if any(g.dataset is None and g.filesystem in {None, "zfs"} for g in roles) else "role"
    return [g for g in observation.of_kind(kind) if g.dataset == name]


def _expansion(pool: ObservedPool, record: int) -> dict[str, float]:
    for vdev in pool.vdevs:
        if vdev.role == "data" and vdev.ashift is not None:
            blocks = Allocation.of(vdev)
            if blocks.parity:
                return {
                    "record_sectors": record / blocks.sector,
                    "parity_expansion": blocks.expansion(record),
                    "parity_ideal": blocks.ideal,
                }
    ashifts = [v.ashift for v in pool.vdevs if v.role == "data" and v.ashift is not None]
    return {"record_sectors": record / (1 << max(ashifts))} if ashifts else {}


def _parity(vdev: ObservedVdev) -> str | None:
    return vdev.kind if vdev.kind.startswith(("raidz", "draid")) else None


def _samples(files: list[ObservedFiles], record: int) -> dict[str, Any]:
    """Return what the sample of the role with the most bytes says of lz4 at this record size and above."""
    for one in sorted(files, key=lambda f: -f.bytes):
        lz4 = {c.recordsize: c for c in one.compressed if c.algorithm == "lz4"}
        if record not in lz4:
            continue
        larger = max((c for r, c in lz4.items() if r > record), key=lambda c: c.stored_ratio, default=None)
        return {
            "lz4_ratio": lz4[record].stored_ratio,
            "lz4_low": lz4[record].low,
            "larger_recordsize": larger.recordsize if larger else None,
            "larger_ratio": larger.stored_ratio if larger else None,
        }
    return {}


def _files(files: list[ObservedFiles], record: int) -> dict[str, Any]:
    sizes: dict[int, int] = {}
    for one in files:
        for size, number in one.record_sizes.items():
            sizes[size] = sizes.get(size, 0) + number
    if not sizes:
        return {}
    others = {size: number for size, number in sizes.items() if size != record}
    return {
        "other_records": sum(others.values()),
        "other_recordsize": max(others, key=lambda size: others[size]) if others else None,
    }


def _syncs(groups: list[Group], seconds: float | None) -> dict[str, Any]:
    calls = sum(g.syncs.calls for g in groups) if groups else None
    timed = [g.syncs for g in groups if g.syncs.calls]
    total = (
        sum(s.latency_total or 0 for s in timed) / 1e9
        if all(s.latency_total is not None for s in timed)
        else None
    )
    return {
        "pool_syncs": calls,
        "sync_mean": total / calls if total is not None and calls else None,
        "sync_wait": total / seconds if total is not None and seconds and calls is not None else None,
    }


def _worst(observation: Observation, pool: ObservedPool) -> tuple[str, int, int] | None:
    """Return the vdev whose disks' physical sectors exceed its smallest block most: name, block, sector."""
    found = []
    for vdev in pool.vdevs:
        if vdev.ashift is None or vdev.role in {"cache", "spare"}:
            continue
        sectors = [d.physical_sector for d in _disks(observation, [vdev]) if d.physical_sector]
        if sectors:
            found.append((vdev.name, 1 << vdev.ashift, max(sectors)))
    return max(found, key=lambda v: v[2] / v[1], default=None)


def _disks(observation: Observation, vdevs: list[ObservedVdev]) -> list[ObservedDisk]:
    names = {name for vdev in vdevs for name in vdev.disks}
    return [disk for disk in observation.disks if disk.name in names]


def _wait(disks: list[ObservedDisk]) -> float | None:
    """Return the mean time in s of a write on ``disks``, the times of their flushes shared among them."""
    writes = sum(d.writes for d in disks)
    if not writes or any(d.write_seconds is None for d in disks):
        return None
    return sum((d.write_seconds or 0.0) + (d.flush_seconds or 0.0) for d in disks) / writes


def _record(dataset: ObservedDataset) -> int | None:
    value = dataset.properties.get("volblocksize" if dataset.type == "volume" else "recordsize")
    return _int(value.value) if value else None


def _property(pool: ObservedPool, name: str) -> int | None:
    return _int(pool.properties[name].value) if name in pool.properties else None


def _algorithm(compression: str | None) -> tuple[str | None, int | None]:
    if compression is None:
        return None, None
    if compression in _LEVELS:
        return _LEVELS[compression]
    match = re.fullmatch(r"(zstd-fast|zstd|gzip)-([0-9]{1,4})", compression)
    return (match[1], int(match[2])) if match else (compression, None)


def _int(text: str | None) -> int | None:
    return whole((text or "").removesuffix("%"))


def _float(text: str | None) -> float | None:
    try:
        number = float((text or "").removesuffix("x"))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
