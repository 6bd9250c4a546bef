"""What OpenZFS in user space is told about a layout: the same for a replayed trace and for a mount."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ztune.onhost.layout import Vdev
from ztune.onhost.properties import MOUNTED, PROPERTIES, REPLAYED
from ztune.onhost.tunables import TUNABLES, host_memory
from ztune.study import Dataset, Layout, Study
from ztune.units import parse_size

SPEC_VERSION = 1


def engine_spec(study: Study, layout: Layout, seed: int) -> dict[str, Any]:
    """Return the spec of ``layout``: pools, datasets, profiles; no files, and no path of this machine."""
    pools = layout.used_pools()
    profiles = {v.profile: study.profiles[v.profile] for p in pools for v in p.vdevs}
    return {
        "version": SPEC_VERSION,
        "seed": seed,
        "arc_max": layout.arc,
        "host_memory": host_memory(layout.arc),
        "pools": [
            {
                "name": pool.name,
                "ashift": pool.ashift,
                "vdevs": [
                    {
                        "class": vdev.class_,
                        "kind": vdev.kind,
                        "disks": [
                            {"profile": vdev.profile, "size": vdev.size or profiles[vdev.profile].size}
                            for _ in range(vdev.disks)
                        ],
                    }
                    for vdev in pool.vdevs
                ],
            }
            for pool in pools
        ],
        "datasets": [
            *(_dataset(d) for d in (*layout.datasets, *layout.neighbours())),
            *({"name": d.name, "properties": dict(d.properties), "filler": True} for d in layout.fillers()),
        ],
        "profiles": {name: profile.engine_json() for name, profile in sorted(profiles.items())},
        "tunables": {k: v for k, v in sorted(layout.tunables.items()) if TUNABLES[k].replayed},
    }


def _dataset(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset with all of its replayed properties, as the spec has it."""
    properties = {n: _engine_text(n, dataset.properties[n]) for n in REPLAYED if n in dataset.properties}
    return {"name": dataset.name, "properties": properties}


def sampled(spec: dict[str, Any], of: int, region: int) -> dict[str, Any]:
    """Return ``spec`` for a sample of one region of ``region`` bytes in ``of``: with that part of the ARC, of
    what an L2ARC holds and is fed with, and of how far ahead is read, since a scan is that much shorter: what
    was read ahead waits as much longer, in as much smaller an ARC.

    Dirty data is not here: the engine counts a sampled byte as what it stands for.
    """
    if of == 1:
        return spec
    tunables = dict(spec["tunables"])
    ahead = int(tunables.get("zfetch_max_distance", TUNABLES["zfetch_max_distance"].default) or 0)
    record = max(int(d["properties"]["recordsize"]) for d in spec["datasets"] if not d.get("filler"))
    tunables["zfetch_max_distance"] = min(ahead, max(ahead // AHEAD // of, LEAST_AHEAD, region, 2 * record))
    pools = []
    for pool in spec["pools"]:
        vdevs = []
        for vdev in pool["vdevs"]:
            if vdev["class"] == "cache":
                for name in ("l2arc_write_max", "l2arc_write_boost"):
                    tunables[name] = tunables.get(name, TUNABLES[name].default)
                disks = [
                    {**d, "size": max(d["size"] // of, LEAST_DISK), "span": d["size"]} for d in vdev["disks"]
                ]
                vdev = {**vdev, "disks": disks}
            vdevs.append(vdev)
        pools.append({**pool, "vdevs": vdevs})
    for name, least in (("l2arc_write_max", 4096), ("l2arc_write_boost", 0)):
        if name in tunables:
            tunables[name] = max(tunables[name] // of, least)
    return {**spec, "arc_max": spec["arc_max"] // of, "sample": of, "pools": pools, "tunables": tunables}


AHEAD = 4
"""A sample reads ahead an Nth of such a part of ``zfetch_max_distance``: by default OpenZFS reads 4 to 64 MiB
ahead, the less the slower a scan is, and 4 (``zfetch_min_distance``) can't be set. 16 MiB lie between."""
LEAST_AHEAD = 1 << 20
"""Bytes of ``zfetch_max_distance`` at least, as the engine has it."""
LEAST_DISK = 64 << 20
"""Bytes of a disk at least, as the engine has it."""
LEAST_AGED = 2 << 30
"""Bytes of an aged pool at least: OpenZFS keeps 128 MiB for itself (spa_min_slop in spa_misc.c), which leaves
no room at a fill of 90 % in much less."""
AGED = 4
"""An aged pool is so many times as large as the files on it."""
_GRAIN = 64 << 20


def aged(spec: dict[str, Any], layout: Layout, files: Mapping[str, int]) -> dict[str, Any]:
    """Return ``spec`` with the disks of pools that age cut to what the database needs, where the layout does
    not say their size: years of work have to pass through a pool's free space, and that takes long in a large
    one. The disks stay as large as they are to the model, so their seeks are those of a young pool.

    ``files``: dataset → bytes.
    """
    pools = []
    for pool, raw in zip(layout.used_pools(), spec["pools"], strict=True):
        data = pool.of_class("data")
        size = sum(n for name, n in files.items() if name.partition("/")[0] == pool.name)
        columns = sum(_columns(vdev) for vdev in data)
        each = -(-max(LEAST_AGED, AGED * size) // columns // _GRAIN) * _GRAIN
        vdevs = []
        for vdev, table in zip(pool.vdevs, raw["vdevs"], strict=True):
            if vdev.class_ == "data" and vdev.size is None:
                disks = [{**d, "size": min(each, d["size"]), "span": d["size"]} for d in table["disks"]]
                table = {**table, "disks": disks}
            vdevs.append(table)
        pools.append({**raw, "vdevs": vdevs})
    return {**spec, "pools": pools}


def _columns(vdev: Vdev) -> int:
    """Return how many of a vdev's disks hold data of their own."""
    if vdev.kind == "mirror":
        return 1
    return vdev.disks - (int(vdev.kind.removeprefix("raidz")) if vdev.kind.startswith("raidz") else 0)


def mount_spec(study: Study, layout: Layout, seed: int) -> dict[str, Any]:
    """Return the spec of ``layout`` for ``ztune-mount``: no files, but access times.

    A replay has no use for these, and its stored specs know none.
    """
    spec = engine_spec(study, layout, seed)
    for dataset, raw in zip(
        (*layout.datasets, *layout.neighbours(), *layout.fillers()), spec["datasets"], strict=True
    ):
        more = {k: v for k, v in dataset.properties.items() if k in MOUNTED and k not in REPLAYED}
        raw["properties"].update(more)
    return {**spec, "files": [], "content": {}}


def changed_in_vain(study: Study, layout: Layout, heeded: Collection[str]) -> Iterator[str]:
    """Yield what ``layout`` changes against the study's base although OpenZFS in user space does not have it.

    ``heeded``: the properties that it has.
    """
    for name in sorted({*layout.tunables, *study.layout.tunables}):
        default = TUNABLES[name].default
        changed = layout.tunables.get(name, default) != study.layout.tunables.get(name, default)
        if changed and not TUNABLES[name].replayed:
            yield name
    for dataset in layout.datasets:
        base = next((d for d in study.layout.datasets if d.roles == dataset.roles), dataset)
        for name, value in dataset.properties.items():
            if name not in heeded and value != base.properties.get(name, PROPERTIES[name].default):
                yield f"{name} of {dataset.name}"


def _engine_text(name: str, value: str) -> str:
    """Return a property as the spec has it: sizes in plain bytes."""
    return str(parse_size(value)) if name in {"recordsize", "special_small_blocks"} else value
