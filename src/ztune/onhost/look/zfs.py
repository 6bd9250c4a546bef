"""What OpenZFS tells of itself during an observation: layout, properties, counters, histograms, history.

Only reads: kstats below /proc/spl/kstat/zfs, module parameters, the call of ``zpool iostat`` on /dev/zfs
(``probes.devzfs``), ``zfs get`` and ``zpool get``. What it gives are plain values, shaped as
``observe.model.ObservedZfs``, which checks them.
"""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ztune.errors import ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.host import about, mounts, tunables
from ztune.onhost.host.zfs import Commands, last_words, module_version, parse_get
from ztune.onhost.probes import devzfs, kstat, procfs, vdevs

Buckets = dict[int, int]
"""Lower bound of a power-of-two bucket → count."""
KSTATS: Final = ("arcstats", "zil", "dmu_tx", "zfetchstats")
MOST_OBJSETS: Final = 5000
"""Datasets whose counters are read; a host with more has them read for none."""
TUNABLES: Final = (
    *("zfs_arc_max", "zfs_arc_min", "zfs_arc_meta_limit_percent", "zfs_arc_meta_balance"),
    *("zfs_arc_sys_free", "zfs_compressed_arc_enabled", "zfs_prefetch_disable", "zfetch_max_distance"),
    *("zfs_txg_timeout", "zfs_dirty_data_max", "zfs_dirty_data_max_percent", "zfs_dirty_data_sync_percent"),
    *("zfs_delay_min_dirty_percent", "zfs_delay_scale", "zfs_txg_history"),
    *("zfs_nocacheflush", "zil_nocacheflush", "zil_replay_disable", "zil_slog_bulk", "zil_maxblocksize"),
    *("zfs_immediate_write_sz", "zil_special_is_slog", "zfs_dio_enabled", "zfs_dio_strict"),
    *("zfs_vdev_sync_read_max_active", "zfs_vdev_sync_write_max_active", "zfs_vdev_async_read_max_active"),
    *("zfs_vdev_async_write_max_active", "zfs_vdev_async_write_min_active", "zfs_vdev_max_active"),
    *("zfs_vdev_scrub_max_active", "zfs_vdev_aggregation_limit", "zfs_vdev_read_gap_limit"),
    *("zfs_vdev_write_gap_limit", "zfs_recordsize_max", "zfs_max_recordsize"),
    *("l2arc_noprefetch", "l2arc_headroom", "l2arc_write_max", "l2arc_write_boost", "l2arc_mfuonly"),
    *("l2arc_rebuild_enabled", "l2arc_exclude_special"),
)
"""Module parameters that decide how a database's I/O is served: zfs(4). Those that a release lacks are left
out."""
SIZES: Final = {
    f"vdev_{kernel}_histo": name
    for kernel, name in (
        *(("sync_ind_r", "sync_read_ind"), ("sync_agg_r", "sync_read_agg")),
        *(("sync_ind_w", "sync_write_ind"), ("sync_agg_w", "sync_write_agg")),
        *(("async_ind_r", "async_read_ind"), ("async_agg_r", "async_read_agg")),
        *(("async_ind_w", "async_write_ind"), ("async_agg_w", "async_write_agg")),
        *(("ind_scrub", "scrub_ind"), ("agg_scrub", "scrub_agg"), ("ind_trim", "trim_ind")),
        *(("agg_trim", "trim_agg"), ("ind_rebuild", "rebuild_ind"), ("agg_rebuild", "rebuild_agg")),
    )
}
"""The kernel's name of each histogram of ``zpool iostat -r`` (include/sys/fs/zfs.h) → its heading there:
"ind" as asked for, "agg" after neighbours were joined."""
TIMES: Final = {
    f"vdev_{kernel}_histo": name
    for kernel, name in (
        *(("tot_r_lat", "total_read"), ("tot_w_lat", "total_write")),
        *(("disk_r_lat", "disk_read"), ("disk_w_lat", "disk_write")),
        *(("sync_r_lat", "syncq_read"), ("sync_w_lat", "syncq_write")),
        *(("async_r_lat", "asyncq_read"), ("async_w_lat", "asyncq_write")),
        *(("scrub", "scrub"), ("trim", "trim"), ("rebuild", "rebuild")),
    )
}
"""Likewise for ``zpool iostat -w``."""

_OF_DATASETS = ("reads", "nread", "writes", "nwritten")
_ASKED_SECONDS = 30.0
_VOLUMES = Path("/dev/zvol")
# Places in "vdev_stats" (vdev_stat_t): see probes.vdevs for those of operations.
_ALLOCATED, _SPACE, _FRAGMENTATION = 3, 4, 27
_NOT_SHOWN = 1 << 63
# In arcstats sums over time and present sizes stand side by side.
_GAUGES = frozenset(
    (
        *("size", "c", "c_min", "c_max", "p", "pd", "pm", "meta", "hash_elements", "hash_elements_max"),
        *("hash_chains", "hash_chain_max", "arc_no_grow", "arc_tempreserve", "arc_loaned_bytes"),
        *("arc_dnode_limit", "arc_meta_min", "arc_need_free", "arc_sys_free", "memory_all_bytes"),
        *("memory_free_bytes", "memory_available_bytes", "l2_data_to_meta_ratio", "l2_asize"),
        *("cached_only_in_progress", "l2_log_blk_avg_asize"),
    )
)
_GAUGE_ENDS = ("_size", "_lsize", "_limit", "_used", "_data", "_metadata", "_meta_max")


def missing() -> str | None:
    """Return why there is nothing to ask ZFS, as a sentence; None when it is there."""
    if not module_version():
        return "no OpenZFS module is loaded on this host: nothing is known of pools, datasets, ARC and ZIL"
    return None


class Places:
    """Tells which dataset a path is in, by the device number of its file system.

    Right for bind mounts and links too. A file system on a volume, and a volume's own node, belong to the
    volume. What is mounted later is not seen.
    """

    def __init__(self) -> None:
        self._by_device: dict[int, str] = {}
        self._mountpoints: dict[str, str] = {}
        for mount in mounts.table():
            if mount.type == "zfs":
                self._by_device[os.makedev(*mount.device)] = mount.source
                if mount.root == "/":
                    self._mountpoints.setdefault(mount.source, str(mount.point))
        for link in sorted(_VOLUMES.glob("**/*")):
            with suppress(OSError):
                status = link.stat()
                # Partitions have links of their own: NAME-part1.
                if stat.S_ISBLK(status.st_mode) and _whole(status.st_rdev) == status.st_rdev:
                    self._by_device.setdefault(status.st_rdev, str(link.relative_to(_VOLUMES)))

    def mountpoint(self, dataset: str) -> str | None:
        """Return where a dataset is mounted here, None if it is not."""
        return self._mountpoints.get(dataset)

    def dataset(self, path: str) -> str | None:
        """Return the dataset, snapshot or volume that ``path`` is in; None when that is not ZFS.

        A path that is gone is looked for by the folders above it.
        """
        for place in (Path(path), *Path(path).parents):
            try:
                status = place.stat()
            except OSError:
                continue
            return self._on(status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev)
        return None

    def of_device(self, device: int, path: str) -> str | None:
        """Return the same of a file on the file system ``device`` (st_dev), wherever ``path`` leads here.

        Only the node of a volume is asked for by its path.
        """
        if found := self._on(device):
            return found
        with suppress(OSError):
            status = Path(path).stat()
            if stat.S_ISBLK(status.st_mode) and status.st_dev == device:
                return self._on(status.st_rdev)
        return None

    def _on(self, device: int) -> str | None:
        return self._by_device.get(device) or self._by_device.get(_whole(device))


def asked(name: str, datasets: Collection[str]) -> dict[str, str]:
    """Return dataset → what this host's ZFS says of its property ``name``; empty where it can't be asked."""
    if not datasets:
        return {}
    ask = Commands(Events(io.StringIO()), patience=about.patience())
    argv = ["zfs", "get", "-Hp", "-o", "name,property,value,source", name, *sorted(datasets)]
    try:
        out = ask.attempt(argv, timeout=_ASKED_SECONDS)[1]
    except ZtuneError:
        return {}
    return {dataset: of[name].value for dataset, of in parse_get(out).items() if name in of}


def _whole(device: int) -> int:
    return os.makedev(*procfs.whole_disk((os.major(device), os.minor(device))))


@dataclass(frozen=True, slots=True)
class _Reading:
    """All counters at one time."""

    at_ns: int
    kstats: dict[str, dict[str, int]] = field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    txgs: dict[str, str] = field(default_factory=dict)


def pools() -> list[str]:
    """Return the names of the imported pools. No program is started, no right needed."""
    try:
        return sorted(p.name for p in kstat.ROOT.iterdir() if (p / "txgs").exists() or (p / "state").exists())
    except OSError:
        return []


def _objsets(pool: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for path in (kstat.ROOT / pool).glob("objset-*"):
        text = kstat.read_text(str(path))
        if name := kstat.dataset_name(text):
            found[f"objset {name}"] = kstat.parse_named(text)
    return found


def _moved(config: Mapping[str, Any]) -> dict[str, int]:
    """Return what reached a pool's devices since its import. Cache devices are left out: they hold copies."""
    leaves = [leaf for leaf in vdevs.leaves(config) if leaf.class_ not in ("cache", "spare")]
    names = ("reads", "read_bytes", "writes", "write_bytes")
    return {name: sum(getattr(leaf, name) for leaf in leaves) for name in names}


class ZfsReadings:
    """Readings of ZFS's counters at the beginning and at the end of a window.

    Reads when it is made, and in ``freeze``. Nothing fails: what can't be read is in the limits.
    """

    def __init__(self) -> None:
        self.limits: list[str] = []
        self._before = self._read()
        self._after: _Reading | None = None

    def freeze(self) -> None:
        """End the window. A second call does nothing."""
        if self._after is None:
            self._after = self._read()

    def _limit(self, text: str) -> None:
        if text not in self.limits:
            self.limits.append(text)

    def _read(self) -> _Reading:
        # The clock of the transaction groups' birth: gethrtime() is CLOCK_MONOTONIC_RAW or close to it.
        reading = _Reading(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))
        if missing():
            return reading
        reading.kstats.update({name: kstat.read(name) for name in KSTATS})
        names = pools()
        count = sum(len(list((kstat.ROOT / name).glob("objset-*"))) for name in names)
        if count > MOST_OBJSETS:
            self._limit(f"counters of datasets are left out: {count} are mounted, more than {MOST_OBJSETS}")
        for name in names:
            reading.kstats[f"iostats {name}"] = kstat.read(f"{name}/iostats")
            waits = kstat.parse_assign(kstat.read_text(f"{name}/dmu_tx_assign"))
            reading.kstats[f"dmu_tx_assign {name}"] = {str(bound): n for bound, n in waits.items()}
            if count <= MOST_OBJSETS:
                of_pool = _objsets(name)
                reading.kstats.update(of_pool)
                reading.kstats[f"objsets {name}"] = {
                    key: sum(one.get(key, 0) for one in of_pool.values()) for key in _OF_DATASETS
                }
            reading.txgs[name] = kstat.read_text(f"{name}/txgs")
            try:
                reading.pools[name] = devzfs.pool_stats(name)
                reading.kstats[f"vdevs {name}"] = _moved(reading.pools[name])
            except ZtuneError as error:
                self._limit(f"pool {name}: vdevs, request sizes and latencies are unknown: {error}")
        return reading

    def state(
        self,
        files: Mapping[str, str | None],
        datasets: Mapping[str | None, Collection[str]] = MappingProxyType({}),
    ) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """Return what ZFS did between the two readings, and what is not known.

        Args:
            files: paths of files or folders → their role, None for none. The pools and datasets that they are
                in are told of.
            datasets: names of datasets that are told of besides → roles of files in them; None for what is in
                none. With neither, every pool is told of, and no dataset.

        Returns:
            An ``ObservedZfs`` as plain values, None without ZFS; and sentences. ``counters`` also has
            "objset DATASET" (reads, nread, writes, nwritten and, from 2.2, its part of the ZIL),
            "iostats POOL" (from 2.3 direct I/O), "dmu_tx_assign POOL" (upper bound in ns → transactions that
            waited so long), "objsets POOL" (the sums of its datasets) and "vdevs POOL" (what reached the
            pool's devices, cache devices left out).
        """
        if reason := missing():
            return None, (reason,)
        self.freeze()
        assert self._after is not None
        before, after = self._before, self._after
        places = Places()
        roles = {name: set(of_files) for name, of_files in datasets.items() if name is not None}
        for path, role in files.items():
            if found := places.dataset(path):
                roles.setdefault(found, set()).update([role] if role else [])
        if (files or datasets) and not roles:
            self._limit("none of the observed files is on ZFS")
        wanted = sorted({name.partition("/")[0].partition("@")[0] for name in roles})
        if not files and not datasets:
            wanted = sorted(after.txgs)
        ask = Commands(Events(io.StringIO()), patience=about.patience())
        counters = {
            name: kstat.difference(before.kstats.get(name, {}), values)
            for name, values in after.kstats.items()
            if self._told(name, roles, wanted)
        }
        gauges = {"arcstats": {k: v for k, v in after.kstats.get("arcstats", {}).items() if _is_gauge(k)}}
        counters["arcstats"] = {k: v for k, v in counters.get("arcstats", {}).items() if not _is_gauge(k)}
        return {
            "version": module_version(),
            "pools": tuple(self._pool(name, ask) for name in wanted),
            "datasets": self._datasets(roles, places, ask),
            "counters": {name: values for name, values in counters.items() if values},
            "gauges": {name: values for name, values in gauges.items() if values},
            "tunables": {name: value for name in TUNABLES if (value := tunables.read(name)) is not None},
        }, tuple(self.limits)

    @staticmethod
    def _told(name: str, roles: Mapping[str, Any], wanted: list[str]) -> bool:
        kind, _, of = name.partition(" ")
        return not of or (of in roles if kind == "objset" else of in wanted)

    def _get(self, ask: Commands, program: str, names: list[str]) -> dict[str, dict[str, dict[str, str]]]:
        argv = [program, "get", "-Hp", "-o", "name,property,value,source", "all", *names]
        try:
            _rc, out, err = ask.attempt(argv)
        except ZtuneError as error:
            out, err = "", str(error)
        if err:
            self._limit(f"{program} get: {last_words(err)}")
        return {
            # What users name themselves (with a colon) is theirs, and may be anything.
            name: {k: {"value": v.value, "source": v.source} for k, v in values.items() if ":" not in k}
            for name, values in parse_get(out).items()
        }

    def _datasets(
        self, roles: Mapping[str, set[str]], places: Places, ask: Commands
    ) -> tuple[dict[str, Any], ...]:
        if not roles:
            return ()
        properties = self._get(ask, "zfs", sorted(roles))
        return tuple(
            {
                "name": name,
                "pool": name.partition("/")[0].partition("@")[0],
                "type": values["type"]["value"] if "type" in values else "filesystem",
                "mountpoint": places.mountpoint(name),
                "roles": tuple(sorted(roles[name])),
                "properties": values,
            }
            for name in sorted(roles)
            if (values := properties.get(name, {})) or places.mountpoint(name)
        )

    def _pool(self, name: str, ask: Commands) -> dict[str, Any]:
        assert self._after is not None
        config = self._after.pools.get(name, {})
        tree = config.get("vdev_tree", {})
        old = self._before.pools.get(name, {}).get("vdev_tree", {})
        sizes = times = None
        if old and tree:
            now, then = tree.get("vdev_stats_ex", {}), old.get("vdev_stats_ex", {})
            sizes, times = _histograms(SIZES, then, now), _histograms(TIMES, then, now)
            if sizes is None or times is None:
                self._limit(
                    f"pool {name}: OpenZFS began to count anew in the window, as it does when a device is "
                    "opened again; its request sizes and latencies are left out"
                )
        return {
            "name": name,
            "properties": self._get(ask, "zpool", [name]).get(name, {}),
            "vdevs": tuple(vdevs_of(config)),
            "request_sizes": sizes or {},
            "latencies": times or {},
            "txgs": self._txgs(name),
        }

    def _txgs(self, name: str) -> list[dict[str, float]]:
        assert self._after is not None
        text = self._after.txgs.get(name, "")
        first, last = kstat.committed(self._before.txgs.get(name, "")), kstat.committed(text)
        if last is None:
            self._limit(f"pool {name}: no history of transaction groups; zfs_txg_history may be 0")
            return []
        rows = [r for r in kstat.parse_txgs(text) if r["state"] == "C" and int(r["txg"]) > (first or 0)]
        if first is not None and len(rows) < last - first:
            self._limit(
                f"pool {name}: of {last - first} transaction groups in the window the kernel kept the last "
                f"{len(rows)}; zfs_txg_history says how many"
            )
        return [
            {
                "txg": int(r["txg"]),
                "t_s": round((int(r["birth"]) - self._before.at_ns) / 1e9, 3),
                "dirty_bytes": int(r["ndirty"]),
                "read_bytes": int(r["nread"]),
                "write_bytes": int(r["nwritten"]),
                "reads": int(r["reads"]),
                "writes": int(r["writes"]),
                "open_s": int(r["otime"]) / 1e9,
                "quiesce_s": int(r["qtime"]) / 1e9,
                "wait_s": int(r["wtime"]) / 1e9,
                "sync_s": int(r["stime"]) / 1e9,
            }
            for r in rows
        ]


def _is_gauge(name: str) -> bool:
    return name in _GAUGES or name.endswith(_GAUGE_ENDS)


def _histograms(
    names: Mapping[str, str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Buckets] | None:
    """Return the growth of each histogram that grew; None when one shrank."""
    found: dict[str, Buckets] = {}
    for key, name in names.items():
        now = after.get(key, [])
        then = list(before.get(key, [])) + [0] * len(now)
        grown = {1 << i: n - then[i] for i, n in enumerate(now) if n != then[i]}
        if any(n < 0 for n in grown.values()):
            return None
        if grown:
            found[name] = grown
    return found


def device_name(path: str) -> str:
    """Return the kernel's name of the whole disk that ``path`` is or is a part of; a file's own path."""
    try:
        status = Path(path).stat()
    except OSError:
        return path
    if not stat.S_ISBLK(status.st_mode):
        return path
    number = procfs.whole_disk((os.major(status.st_rdev), os.minor(status.st_rdev)))
    return Path(f"/sys/dev/block/{number[0]}:{number[1]}").resolve().name


def _ends(node: Mapping[str, Any]) -> Iterator[str]:
    children = node.get("children")
    if children:
        for child in children:
            yield from _ends(child)
    elif node.get("path"):
        yield str(node["path"])


def _name(node: Mapping[str, Any]) -> str:
    """As ``zpool status`` names a top-level vdev of several devices (zpool_vdev_name in libzfs)."""
    kind, number, parity = str(node.get("type", "")), node.get("id", 0), node.get("nparity", 1)
    if kind == "draid":
        width, spares = len(node.get("children", [])), node.get("draid_nspares", 0)
        return f"draid{parity}:{node.get('draid_ndata', 0)}d:{width}c:{spares}s-{number}"
    return f"{_kind(node)}-{number}"


def _kind(node: Mapping[str, Any]) -> str:
    kind = str(node.get("type", ""))
    return f"{kind}{node.get('nparity', 1)}" if kind in ("raidz", "draid") else kind


def vdevs_of(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the top-level vdevs, cache devices and spares of a pool's configuration.

    ``config`` is what ``devzfs.pool_stats`` returns. Removed vdevs are left out. A file's own path is its
    name, a disk's the kernel's name of the whole disk.
    """
    tree = config.get("vdev_tree", {})
    groups: list[tuple[Mapping[str, Any], str]] = []
    for node in tree.get("children", []):
        bias = str(node.get("alloc_bias", ""))
        role = "log" if node.get("is_log") else bias if bias in ("special", "dedup") else "data"
        groups.append((node, role))
    groups += [(node, "cache") for node in tree.get("l2cache", [])]
    groups += [(node, "spare") for node in tree.get("spares", [])]
    for node, role in groups:
        if node.get("type") in ("hole", "missing", "indirect"):
            continue
        stats = list(node.get("vdev_stats", []))
        disks = tuple(device_name(path) for path in _ends(node))
        ashift = int(node.get("ashift", 0))
        known = role != "spare" and len(stats) > _SPACE
        fragmentation = stats[_FRAGMENTATION] if known and len(stats) > _FRAGMENTATION else _NOT_SHOWN
        yield {
            "name": _name(node) if node.get("children") else disks[0] if disks else str(node.get("type")),
            "kind": _kind(node),
            "role": role,
            "ashift": ashift or None,
            "size": stats[_SPACE] if known else None,
            "allocated": stats[_ALLOCATED] if known else None,
            "fragmentation": None if fragmentation >= _NOT_SHOWN or role == "cache" else fragmentation,
            "disks": disks,
        }


def disk_pools() -> dict[str, str]:
    """Return the kernel's name of each disk → the pool it belongs to; empty without ZFS or the right.

    Disks below one that is in a pool (LUKS, multipath, software RAID) are in it too.
    """
    found: dict[str, str] = {}
    for pool in pools():
        with suppress(ZtuneError):
            for vdev in vdevs_of(devzfs.pool_stats(pool)):
                todo = list(vdev["disks"])
                while todo:
                    name = todo.pop()
                    if name.startswith("/") or name in found:
                        continue
                    found[name] = pool
                    with suppress(OSError):
                        todo += [
                            device_name(f"/dev/{s.name}") for s in Path(f"/sys/block/{name}/slaves").iterdir()
                        ]
    return found
