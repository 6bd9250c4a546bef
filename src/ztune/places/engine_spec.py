"""What OpenZFS in user space is told about a layout: the same for a replayed trace and for a mount."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ztune.onhost.properties import PROPERTIES, REPLAYED
from ztune.onhost.tunables import TUNABLES, host_memory
from ztune.study import Layout, Study
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
            {"name": d.name, "properties": {k: _engine_text(k, d.properties[k]) for k in REPLAYED}}
            for d in layout.datasets
        ],
        "profiles": {name: profile.engine_json() for name, profile in sorted(profiles.items())},
        "tunables": {k: v for k, v in sorted(layout.tunables.items()) if TUNABLES[k].replayed},
        "cold": True,
    }


MOUNT_ONLY = ("atime", "relatime")
"""Properties that a mount heeds beside those of a replay: a trace does not say when access times changed."""


HEEDED = (*REPLAYED, *MOUNT_ONLY)
"""What a mount has of a dataset's properties."""


def mount_spec(study: Study, layout: Layout, seed: int) -> dict[str, Any]:
    """Return the spec of ``layout`` for ``ztune-mount``: no files, but access times and the disks' caches.

    A replay has no use for these, and its stored specs know none.
    """
    spec = engine_spec(study, layout, seed)
    for dataset, raw in zip(layout.datasets, spec["datasets"], strict=True):
        raw["properties"].update({k: dataset.properties[k] for k in MOUNT_ONLY if k in dataset.properties})
    for name, profile in spec["profiles"].items():
        size = study.profiles[name].cache_mb
        if size is not None:
            profile["cache_mb"] = size
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
