"""ZFS's part of an observation, from what kernels said once; on real ZFS: tests/lab/test_lab_observe.py."""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from ztune.observe.model import ObservedVdev
from ztune.observe.zfs_state import ZfsWatch
from ztune.onhost.host import mounts
from ztune.onhost.look import zfs as zfs_state
from ztune.onhost.look.zfs import Places, vdevs_of
from ztune.onhost.probes import kstat, nvlist

FIXTURES = Path(__file__).parents[1] / "onhost" / "probes" / "fixtures"


def config(version: str) -> dict[str, Any]:
    return nvlist.unpack(
        zlib.decompress(base64.b64decode((FIXTURES / version / "pool-stats.b64").read_text()))
    )


def vdevs(config: dict[str, Any]) -> list[ObservedVdev]:
    return [ObservedVdev.model_validate(one) for one in vdevs_of(config)]


@pytest.mark.parametrize("version", ["2.1", "2.3"])
def test_vdevs_of_a_real_pool(version: str) -> None:
    found = list(vdevs(config(version)))
    assert [(v.name, v.kind, v.role, len(v.disks)) for v in found] == [
        ("mirror-0", "mirror", "data", 2),
        (found[1].disks[0], "disk", "log", 1),
        (found[2].disks[0], "disk", "cache", 1),
    ]
    assert all(v.size and v.allocated is not None for v in found) and found[0].ashift and found[1].ashift
    assert found[0].fragmentation is not None and found[2].fragmentation is None


def test_parity_is_in_names_and_kinds_and_removed_vdevs_are_left_out() -> None:
    leaf = {"type": "file", "path": "/no/such/file"}
    tree = {
        "children": [
            {"type": "raidz", "id": 0, "nparity": 2, "ashift": 12, "children": [leaf] * 6},
            {"type": "hole", "id": 1, "is_log": 1},
            {"type": "indirect", "id": 2},
            {
                "type": "draid",
                "id": 3,
                "nparity": 1,
                "draid_ndata": 4,
                "draid_nspares": 1,
                "ashift": 12,
                "children": [leaf] * 11,
                "alloc_bias": "dedup",
            },
        ]
    }
    assert [(v.name, v.kind, v.role, len(v.disks)) for v in vdevs({"vdev_tree": tree})] == [
        ("raidz2-0", "raidz2", "data", 6),
        ("draid1:4d:11c:1s-3", "draid1", "dedup", 11),
    ]


def test_histograms_grow_or_began_anew() -> None:
    names = {"vdev_sync_ind_w_histo": "sync_write_ind"}
    before, after = ({"vdev_sync_ind_w_histo": [0] * 12 + [n]} for n in (5, 9))
    assert zfs_state._histograms(names, before, after) == {"sync_write_ind": {4096: 4}}
    assert zfs_state._histograms(names, after, before) is None
    assert zfs_state._histograms(names, after, after) == {}


def test_levels_of_the_arc_are_told_from_its_counters() -> None:
    text = (FIXTURES / "2.3" / "arcstats").read_text()
    gauges = {name for name in kstat.parse_named(text) if zfs_state._is_gauge(name)}
    assert {
        "size",
        "c",
        "c_max",
        "hdr_size",
        "mfu_ghost_size",
        "arc_meta_used",
        "anon_data",
        "l2_size",
    } <= gauges
    assert not gauges & {
        *("hits", "misses", "demand_data_misses", "prefetch_metadata_hits", "l2_read_bytes", "evict_skip"),
        *("l2_writes_sent", "evict_l2_cached", "l2_log_blk_writes", "deleted", "memory_throttle_count"),
    }


def test_a_path_is_in_the_dataset_of_its_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    mount = mounts.MountInfo(tmp_path, "/", "zfs", "tank/pg", (os.major(device), os.minor(device)))
    monkeypatch.setattr(mounts, "table", lambda: [mount])
    places = Places()
    assert places.dataset(str(tmp_path)) == "tank/pg" and places.mountpoint("tank/pg") == str(tmp_path)
    assert places.dataset(str(tmp_path / "gone" / "file")) == "tank/pg"
    assert places.dataset("/proc/self/stat") is None and places.mountpoint("tank") is None


def test_a_volume_and_what_is_on_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk = next(
        (Path("/dev", p.name) for p in Path("/sys/block").iterdir() if Path("/dev", p.name).exists()), None
    )
    if disk is None:
        pytest.skip("no block device is to be seen in /dev")
    (tmp_path / "tank").mkdir()
    (tmp_path / "tank" / "vol").symlink_to(disk)
    monkeypatch.setattr(zfs_state, "_VOLUMES", tmp_path)
    monkeypatch.setattr(mounts, "table", list)
    assert Places().dataset(str(disk)) == "tank/vol"


@pytest.mark.skipif(zfs_state.missing() is None, reason="this host has ZFS")
def test_a_host_without_zfs_says_so() -> None:
    zfs, limits = ZfsWatch().state({"/etc/passwd": "data"})
    assert zfs is None and len(limits) == 1 and "no OpenZFS module is loaded" in limits[0]
    assert zfs_state.disk_pools() == {} and zfs_state.pools() == []
