"""The measure window: counters before the job and after its closing sync, and the difference.

Both readings only read files of ``/proc`` and ask the ZFS module; no program is started in the window, apart
from the closing ``zpool sync`` that the trial itself runs. Space is asked for after the second reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.probes import disks, kstat, mount, procfs, space
from ztune.onhost.probes.context import Context

ARC = (
    *("hits", "iohits", "misses", "demand_data_hits", "demand_data_iohits", "demand_data_misses"),
    *("demand_metadata_hits", "demand_metadata_iohits", "demand_metadata_misses"),
    *("prefetch_data_hits", "prefetch_data_iohits", "prefetch_data_misses"),
    *("prefetch_metadata_hits", "prefetch_metadata_iohits", "prefetch_metadata_misses"),
)


@dataclass(frozen=True, slots=True)
class KernelSnapshot:
    """All cheap counters at one time."""

    seconds: float
    """Monotonic: right before the readings that close the window, right after those that open it."""
    devices: disks.DiskReading
    arc: dict[str, int]
    zil: dict[str, int]
    """Of the whole host."""
    objsets: dict[str, dict[str, int]]
    """By dataset; a dataset that is not mounted has none."""
    txgs: dict[str, int | None]
    """Pool (layout name) → last transaction group on its disks."""
    job: procfs.JobCounters
    host: procfs.HostCounters
    zfs_threads_s: float


def snapshot(
    context: Context, devices: list[disks.Device], objsets: Mapping[str, Path], *, closing: bool
) -> KernelSnapshot:
    """Return all cheap counters now. ``objsets``: dataset → its kstat's file.

    The devices' counters are read next to the window, those of every process furthest from it: what a
    reading takes is in the reading after it.
    """
    zfs = bool(context.zfs_pools)
    values: dict[str, Any] = {}
    steps: list[Callable[[], Any]] = [
        lambda: values.update(devices=disks.read(context, devices)),
        lambda: values.update(job=procfs.job(context.pids()), host=procfs.host()),
        lambda: values.update(
            arc=kstat.read("arcstats") if zfs else {}, zil=kstat.read("zil") if zfs else {}
        ),
        lambda: values.update(objsets={name: kstat.read(str(path)) for name, path in objsets.items()}),
        lambda: values.update(
            txgs={
                p.layout_name: kstat.committed(kstat.read_text(f"{p.name}/txgs")) for p in context.zfs_pools
            }
        ),
        lambda: values.update(zfs_threads_s=procfs.zfs_threads() if zfs else 0.0),
    ]
    seconds = time.monotonic()
    for step in steps if closing else reversed(steps):
        step()
    return KernelSnapshot(seconds if closing else time.monotonic(), **values)


def arc(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the ARC's hits and misses. Before 2.2 a block still on its way counted as a hit."""
    if not after:
        return {}
    found = {k: after[k] - before.get(k, 0) for k in ARC if k in after}
    return found | {
        "size_end": after.get("size", 0),
        "c_end": after.get("c", 0),
        "c_max": after.get("c_max", 0),
    }


def l2arc(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return what the L2ARC did; empty without cache devices' counters."""
    if "l2_hits" not in after:
        return {}
    d = kstat.difference(before, after)
    return {
        "hits": d["l2_hits"],
        "misses": d["l2_misses"],
        "read_bytes": d["l2_read_bytes"],
        "write_bytes": d["l2_write_bytes"],
        "size_end": after.get("l2_size", 0),
        "allocated_end": after.get("l2_asize", 0),
    }


def zil(change: Mapping[str, int], source: str) -> dict[str, Any]:
    """Return the intent log's work from differences of its kstat.

    ``writes`` are log blocks, ``bytes`` what was written of them. Before 2.2 only what was filled was
    counted: then ``bytes`` is that, and ``bytes_filled`` is equal to it. ``source``: "datasets" or "host".
    """
    if not change:
        return {}

    def add(kind: str) -> dict[str, int]:
        head = f"zil_itx_metaslab_{kind}_"
        filled = change.get(head + "bytes", 0)
        return {
            "writes": change.get(head + "count", 0),
            "bytes": change.get(head + "write", filled),
            "bytes_filled": filled,
        }

    normal, slog = add("normal"), add("slog")
    return {
        "commits": change.get("zil_commit_count", 0),
        "commits_written": change.get("zil_commit_writer_count", 0),
        "itx": change.get("zil_itx_count", 0),
        "itx_indirect": change.get("zil_itx_indirect_count", 0),
        "itx_copied": change.get("zil_itx_copied_count", 0),
        "itx_needcopy": change.get("zil_itx_needcopy_count", 0),
        "indirect_bytes": change.get("zil_itx_indirect_bytes", 0),
        "copied_bytes": change.get("zil_itx_copied_bytes", 0),
        "needcopy_bytes": change.get("zil_itx_needcopy_bytes", 0),
        "writes": normal["writes"] + slog["writes"],
        "bytes": normal["bytes"] + slog["bytes"],
        "bytes_filled": normal["bytes_filled"] + slog["bytes_filled"],
        "slog_writes": slog["writes"],
        "slog_bytes": slog["bytes"],
        "source": source,
    }


def _zil(before: KernelSnapshot, after: KernelSnapshot) -> dict[str, Any]:
    """Take the datasets' own counters where this release has them (2.2 and later), else the host's."""
    mine = [
        kstat.difference(before.objsets.get(name, {}), values)
        for name, values in after.objsets.items()
        if "zil_commit_count" in values
    ]
    if mine and len(mine) == len(after.objsets):
        total: dict[str, int] = {}
        for change in mine:
            for name, value in change.items():
                total[name] = total.get(name, 0) + value
        return zil(total, "datasets")
    return zil(kstat.difference(before.zil, after.zil), "host")


def _logical(context: Context, before: KernelSnapshot, after: KernelSnapshot) -> dict[str, Any] | None:
    """What the job asked of its files: by the datasets' counters, or its processes' where those can't say."""
    own = [d.name for d in context.datasets]
    if (
        own
        and all(d.filesystem == "zfs" and not d.volume for d in context.datasets)
        and all(name in before.objsets and name in after.objsets for name in own)
    ):
        changes = [kstat.difference(before.objsets[name], after.objsets[name]) for name in own]
        return {
            "reads": sum(c.get("reads", 0) for c in changes),
            "read_bytes": sum(c.get("nread", 0) for c in changes),
            "writes": sum(c.get("writes", 0) for c in changes),
            "write_bytes": sum(c.get("nwritten", 0) for c in changes),
            "source": "datasets",
        }
    if before.job.io is None or after.job.io is None or not after.job.processes:
        return None
    change = kstat.difference(before.job.io, after.job.io)
    return {
        "reads": change.get("syscr", 0),
        "read_bytes": change.get("rchar", 0),
        "writes": change.get("syscw", 0),
        "write_bytes": change.get("wchar", 0),
        "source": "processes",
    }


def compare(
    context: Context, devices: list[disks.Device], before: KernelSnapshot, after: KernelSnapshot
) -> tuple[dict[str, Any], list[str]]:
    """Return the result's ``measure`` without its space, from two readings; and warnings."""
    rows, warnings = disks.compare(devices, before.devices, after.devices)
    host = after.host.since(before.host)
    user, system = after.job.user_s - before.job.user_s, after.job.system_s - before.job.system_s
    if user < -0.02 or system < -0.02:
        warnings.append("some of the job's processes ended unseen: its CPU time is not known")
    txgs = [
        None if last is None or (first := before.txgs.get(pool)) is None else last - first
        for pool, last in after.txgs.items()
    ]
    measured = {
        "seconds": round(after.seconds - before.seconds, 6),
        "physical": disks.total(rows),
        "by_vdev": rows,
        "arc": arc(before.arc, after.arc),
        "l2arc": l2arc(before.arc, after.arc),
        "zil": _zil(before, after),
        "txgs": sum(n for n in txgs if n is not None) if None not in txgs else None,
        "logical": _logical(context, before, after),
        "cpu": {
            "user_s": round(user, 3) if user >= -0.02 and system >= -0.02 else None,
            "system_s": round(system, 3) if user >= -0.02 and system >= -0.02 else None,
            "zfs_threads_s": round(after.zfs_threads_s - before.zfs_threads_s, 3),
            "context_switches": host["context_switches"],
            "processes": after.job.processes,
            "host": host,
        },
    }
    return measured, warnings


class KernelWindow:
    """The measure window, open from ``begin`` to ``end``."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.devices = disks.find(context)
        names = [d.name for d in context.datasets if d.filesystem == "zfs" or d.volume]
        self.objsets: dict[str, Path] = {}
        for pool in context.zfs_pools:
            self.objsets |= kstat.objset_files(pool.name, names)
        for name in names:
            if name not in self.objsets:
                context.warn(f"{name}: the ZFS module shows no statistics of this dataset")
        for pool in context.pools:
            if not pool.ours:
                context.warn(
                    f"pool {pool.name} is not ztune's: "
                    "what its devices did in the measure includes all else that used it"
                )
        self.after: KernelSnapshot | None = None
        self.before = snapshot(context, self.devices, self.objsets, closing=False)

    def close(self) -> None:
        """Take the second reading, and nothing else; call it after the pools were synced."""
        self.after = snapshot(self.context, self.devices, self.objsets, closing=True)

    def end(self) -> dict[str, Any]:
        """Return the result's ``measure``; closes the window, unless ``close`` did.

        What can't be had is None, with a warning. Counts are differences over the window; ``space`` is what
        is there at its end.
        """
        if self.after is None:
            self.close()
        assert self.after is not None
        measured, warnings = compare(self.context, self.devices, self.before, self.after)
        for text in warnings:
            self.context.warn(text)
        try:
            measured["space"] = space.collect(self.context)
        except (ZtuneError, OSError) as error:
            self.context.warn(f"space: {error}")
            measured["space"] = None
        return measured


def begin(context: Context) -> KernelWindow | mount.MountWindow:
    """Open the measure window; the job's timed part begins right after."""
    return KernelWindow(context) if context.mount is None else mount.MountWindow(context)
