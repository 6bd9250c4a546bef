"""What ``ztune-mount`` counts, where the pools are in user space: the measure and a probe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune.onhost import latency
from ztune.onhost.probes import disks, procfs, space
from ztune.onhost.probes.context import Context, MountContext
from ztune.onhost.probes.probe import CounterProbe

_COUNTS = ("reads", "read_bytes", "writes", "write_bytes")
_LEVELS = frozenset(("size", "max", "l2_size", "logical", "allocated", "free", "ratio"))
"""What is as it is, and no sum over time."""
_TEXTS = ("pool", "class", "name", "profile")


def change(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counters' differences between two answers of the program, and levels as they are then."""
    found: dict[str, Any] = {}
    for key, now in after.items():
        then = before.get(key)
        if isinstance(now, Mapping):
            found[key] = change(then if isinstance(then, Mapping) else {}, now)
        elif isinstance(now, list):
            # The program names its disks, datasets and pools in the same order each time.
            old = then if isinstance(then, list) and len(then) == len(now) else [{}] * len(now)
            found[key] = [change(a, b) for a, b in zip(old, now, strict=True)]
        elif key in _LEVELS or not isinstance(now, int | float):
            found[key] = now
        else:
            value = now - (then if isinstance(then, int | float) else 0)
            found[key] = round(value, 6) if isinstance(value, float) else value
    return found


def mount_of(context: Context) -> MountContext:
    """Return the mount, which must be there."""
    assert context.mount is not None
    return context.mount


def own_time(pid: int) -> tuple[float, float]:
    """Return the seconds of processor time, user and system, of the program so far."""
    stat = procfs.parse_pid_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    return stat.user_s, stat.system_s


@dataclass(frozen=True, slots=True)
class MountSnapshot:
    """All counters at one time."""

    seconds: float
    stats: dict[str, Any]
    job: procfs.JobCounters
    host: procfs.HostCounters
    own: tuple[float, float]


def _snapshot(context: Context, *, closing: bool) -> MountSnapshot:
    """Return all counters now; the program's next to the window, those of every process further from it."""
    mount = mount_of(context)
    if closing:
        seconds = time.monotonic()
        stats = mount.stats()
        own = own_time(mount.pid)
        return MountSnapshot(seconds, stats, procfs.job(context.pids()), procfs.host(), own)
    host, job, own = procfs.host(), procfs.job(context.pids()), own_time(mount.pid)
    stats = mount.stats()
    return MountSnapshot(time.monotonic(), stats, job, host, own)


def rows(context: Context, stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the result's ``by_vdev``."""
    paths = {
        (pool.layout_name, name): path
        for pool in context.pools
        for _class, name, path, _node in disks.given(pool)
    }
    # Instant disks keep no time.
    timed = any(disk["busy_s"] for disk in stats["disks"])
    return [
        {
            "pool": disk["pool"],
            "class": disk["class"],
            "name": disk["name"],
            "path": paths.get((disk["pool"], disk["name"]), ""),
            "profile": disk.get("profile", ""),
            **{key: disk[key] for key in _COUNTS},
            "flushes": disk["flushes"],
            "busy_ms": round(1e3 * disk["busy_s"], 3) if timed else None,
            # By how much all answers together came after their modelled times: what this host was too slow.
            "late_ms": round(1e3 * disk["late_s"], 3) if timed else None,
            "source": "mount",
        }
        for disk in stats["disks"]
    ]


LATE_MS, LATE_SHARE = 0.25, 0.1
"""An idle machine answers 0.03 to 0.08 ms after a modelled disk's time. From the first on, and this share of
what the disk works, a trial's latencies say more of the machine than of the layout: our choice.
"""


def late(by_vdev: list[dict[str, Any]]) -> str | None:
    """Return a sentence about the disk whose answers came latest, by more than a trial's times bear."""
    found = []
    for row in by_vdev:
        ios = row["reads"] + row["writes"] + row["flushes"]
        if row["late_ms"] and ios and row["late_ms"] > max(LATE_MS * ios, LATE_SHARE * row["busy_ms"]):
            found.append((row["late_ms"] / ios, row["name"]))
    if not found:
        return None
    worst, name = max(found)
    return (
        f"this machine was too busy for the modelled disks: answers of {name} came {worst:.2f} ms late on "
        "average, and latencies are too long by that for each I/O waited for; counts are right"
    )


def _arc(stats: Mapping[str, Any]) -> dict[str, int]:
    arc = stats["arc"]
    found = {key: value for key, value in arc.items() if key.endswith(("hits", "misses")) and key[:2] != "l2"}
    return found | {"size_end": arc["size"], "c_end": arc["max"], "c_max": arc["max"]}


def _l2arc(stats: Mapping[str, Any]) -> dict[str, int]:
    arc = stats["arc"]
    return {
        "hits": arc["l2_hits"],
        "misses": arc["l2_misses"],
        "write_bytes": arc["l2_write_bytes"],
        "size_end": arc["l2_size"],
    }


def _zil(stats: Mapping[str, Any]) -> dict[str, Any]:
    def add(key: str) -> int:
        return sum(int(dataset[key]) for dataset in stats["datasets"])

    kinds = {key: add(key) for key in ("itx_indirect", "itx_copied", "itx_needcopy")}
    return {
        "commits": add("commits"),
        "commit_s": sum(float(dataset["calls"]["sync"]["seconds"]) for dataset in stats["datasets"]),
        "itx": sum(kinds.values()),
        **kinds,
        "writes": stats["causes"]["zil"]["writes"],
        "bytes": stats["causes"]["zil"]["write_bytes"],
        "slog_writes": stats["slog_writes"],
        "slog_bytes": stats["slog_bytes"],
        "source": "mount",
    }


CALLS = ("sync", "read", "write")
"""The calls that the program keeps the times of."""


def _latency(stats: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Return what calls took inside OpenZFS, in ms, under the names that a replay's result has for them."""
    found = [dataset["calls"][kind] for dataset in stats["datasets"]]
    bins: dict[float, int] = {}
    for one in found:
        for ns, count in one["ns"].items():
            if count:
                bins[int(ns)] = bins.get(int(ns), 0) + count
    calls = sum(bins.values())
    if not calls:
        return {"count": 0}
    mean = 1e9 * sum(one["seconds"] for one in found) / calls
    shares = latency.of_bins(bins, mean, max(bins))
    return {"count": calls, **{name: round(ns / 1e6, 6) for name, ns in shares.items()}}


def _logical(stats: Mapping[str, Any], latencies: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return what the job asked of its files, as the result's ``logical``: by what came to the program,
    asynchronous I/O too. The kernel passes a call of more than 1 MiB on in several. ``latencies``: of each
    kind of call, which have their counts."""
    found: dict[str, Any] = {}
    for kind in ("read", "write"):
        found[f"{kind}s"] = latencies[kind]["count"]
        found[f"{kind}_bytes"] = sum(dataset["calls"][kind]["bytes"] for dataset in stats["datasets"])
    return {**found, "source": "mount"}


def _space(context: Context, stats: Mapping[str, Any]) -> dict[str, Any]:
    held = {dataset["name"]: dataset for dataset in stats["datasets"]}
    found = [
        {
            "name": dataset.layout_name,
            "roles": list(dataset.roles),
            "filesystem": dataset.filesystem,
            "files": space.files_of(dataset, context)["logical"],
            "used": int(held[dataset.name]["allocated"]),
            "logical": int(held[dataset.name]["logical"]),
            "ratio": float(held[dataset.name]["ratio"]),
        }
        for dataset in context.datasets
    ]
    return {
        "allocated": sum(int(pool["allocated"]) for pool in stats["pools"]) - space.filler(context),
        "files": sum(row["files"] for row in found),
        "logical": sum(row["logical"] for row in found),
        "compression_ratio": space.ratio(found),
        "by_dataset": found,
        "by_pool": {
            pool["name"]: {"allocated": pool["allocated"], "free": pool["free"]} for pool in stats["pools"]
        },
    }


class MountWindow:
    """The measure window, from here to ``end``: as ``measure.KernelWindow``, by the program's counters."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.after: MountSnapshot | None = None
        self.before = _snapshot(context, closing=False)

    def close(self) -> None:
        """Take the second reading, and nothing else; call it after the pools were synced."""
        self.after = _snapshot(self.context, closing=True)

    def end(self) -> dict[str, Any]:
        """Return the result's ``measure``; closes the window, unless ``close`` did."""
        if self.after is None:
            self.close()
        assert self.after is not None
        before, after = self.before, self.after
        stats = change(before.stats, after.stats)
        by_vdev = rows(self.context, stats)
        if (said := late(by_vdev)) is not None:
            self.context.warn(said)
        times = after.job.times_since(before.job)
        if times is None:
            self.context.warn("some of the job's processes ended unseen: its CPU time is not known")
        own = [round(now - then, 3) for now, then in zip(after.own, before.own, strict=True)]
        host = after.host.since(before.host)
        latencies = {kind: _latency(stats, kind) for kind in CALLS}
        return {
            "seconds": round(after.seconds - before.seconds, 6),
            "physical": disks.total(by_vdev),
            "by_vdev": by_vdev,
            "by_cause": stats["causes"],
            "arc": _arc(stats),
            "l2arc": _l2arc(stats),
            "zil": _zil(stats),
            **{f"{kind}_latency_ms": found for kind, found in latencies.items()},
            "txgs": stats["txgs"],
            "logical": _logical(stats, latencies),
            "cpu": {
                "user_s": times and times[0],
                "system_s": times and times[1],
                # All of OpenZFS runs in the program, and half of FUSE: the kernel's half is in system time.
                "mount_user_s": own[0],
                "mount_system_s": own[1],
                "context_switches": host["context_switches"],
                "processes": after.job.processes,
                "host": host,
            },
            # What OpenZFS does to data, as a replay has it; the rest of its time is in mount_user_s.
            "processor": stats.get("processor"),
            "space": _space(self.context, after.stats),
        }


class MountProbe(CounterProbe[dict[str, Any]]):
    """Everything that the program counts."""

    name = "mount"
    measures = (
        "on a mount: what OpenZFS in user space counted: each disk, what was read and written for (data, "
        "metadata, the intent log), each dataset and its part of the intent log, the ARC"
    )

    @classmethod
    def available(cls, context: Context) -> str | None:
        """Only a mount has them."""
        return "the pools are the kernel's, not a mount's" if context.mount is None else None

    def read(self) -> dict[str, Any]:
        """Ask the program for them."""
        return mount_of(self.context).stats()

    def finish(self) -> dict[str, Any]:
        """Return the differences, and sizes as they are at the end."""
        found = change(self.before, self.after)
        roles = {dataset.name: list(dataset.roles) for dataset in self.context.datasets}
        for dataset in found["datasets"]:
            dataset["roles"] = roles.get(dataset["name"], [])
        return found


class MountSampler:
    """The series probe's readings on a mount."""

    _disk = (*_COUNTS, "flushes", "busy_s")
    _arc = ("hits", "misses", "size")
    _dataset = _COUNTS

    def __init__(self, context: Context) -> None:
        self.mount = mount_of(context)
        stats = self.mount.stats()
        self.groups = {
            "disks": [f"{d['pool']}/{d['name']} {c}" for d in stats["disks"] for c in self._disk],
            "arc": list(self._arc),
            "datasets": [f"{d['name']} {c}" for d in stats["datasets"] for c in self._dataset],
        }

    def values(self) -> dict[str, list[float]]:
        """Return what is there now, by group, in the order of its columns."""
        stats = self.mount.stats()
        return {
            "disks": [float(d[c]) for d in stats["disks"] for c in self._disk],
            "arc": [float(stats["arc"][c]) for c in self._arc],
            "datasets": [float(d[c]) for d in stats["datasets"] for c in self._dataset],
        }
