"""What the host did during an observation: processors, memory, disks, and ZFS's caches and log, over time.

Counters of /proc and the kstats of OpenZFS are read once an interval and kept as they are; rates are made at
the end, so that nothing is lost between two readings and the whole window is exact.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ztune.observe.model import ObservedDisk, Series
from ztune.onhost.look.disks import between, block_devices
from ztune.onhost.probes import kstat, procfs

MOST_ROWS: Final = 3600
"""Readings that are kept: when there are more, every other one is dropped and the interval doubled."""
_SHARE = 0.01  # of a processor, which reading takes at most

Reading = dict[str, float]
Rates = Callable[[Reading, Reading, float], dict[str, float]]
"""From two readings of counters and the seconds between them to the columns of a series."""

_MEMORY = {
    "MemFree": "free_bytes",
    "MemAvailable": "available_bytes",
    "Cached": "cached_bytes",
    "Buffers": "buffers_bytes",
    "Dirty": "dirty_bytes",
    "Writeback": "writeback_bytes",
    "AnonPages": "anonymous_bytes",
    "SReclaimable": "reclaimable_slab_bytes",
    "SUnreclaim": "unreclaimable_slab_bytes",
}
_SWAP = {"pswpin": "swap_ins_per_s", "pswpout": "swap_outs_per_s"}
_ARC_LEVELS = {"size": "size_bytes", "c": "target_bytes", "l2_size": "l2_size_bytes"}
_ARC = {
    "hits": "hits_per_s",
    "iohits": "io_hits_per_s",
    "misses": "misses_per_s",
    "demand_data_misses": "demand_data_misses_per_s",
    "demand_metadata_misses": "demand_metadata_misses_per_s",
    "prefetch_data_misses": "prefetch_data_misses_per_s",
    "l2_hits": "l2_hits_per_s",
    "l2_misses": "l2_misses_per_s",
    "l2_read_bytes": "l2_read_bytes_per_s",
    "l2_write_bytes": "l2_write_bytes_per_s",
}
_ZIL = {
    "zil_commit_count": "commits_per_s",
    "zil_commit_writer_count": "commit_writers_per_s",
    "zil_itx_indirect_bytes": "indirect_bytes_per_s",
    "zil_itx_copied_bytes": "copied_bytes_per_s",
    "zil_itx_needcopy_bytes": "needcopy_bytes_per_s",
    "zil_itx_metaslab_normal_bytes": "pool_bytes_per_s",
    "zil_itx_metaslab_slog_bytes": "log_device_bytes_per_s",
}
_DMU_TX = {
    "dmu_tx_assigned": "assigned_per_s",
    "dmu_tx_delay": "delays_per_s",
    "dmu_tx_dirty_delay": "dirty_delays_per_s",
    "dmu_tx_dirty_throttle": "dirty_throttles_per_s",
    "dmu_tx_dirty_over_max": "dirty_over_max_per_s",
}
_DISK = ("reads", "read_bytes", "read_ms", "writes", "write_bytes", "write_ms", "busy_ms", "queue_ms")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def parse_meminfo(lines: list[str]) -> dict[str, int]:
    """Return the sizes in /proc/meminfo, bytes."""
    found = {}
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            found[words[0].rstrip(":")] = int(words[1]) << 10
    return found


def parse_pressure(lines: list[str]) -> dict[str, int]:
    """Return "some" and "full" → µs in which tasks stood still, from a file of /proc/pressure."""
    found = {}
    for line in lines:
        match = re.match(r"(some|full) .*total=(\d+)", line)
        if match:
            found[match[1]] = int(match[2])
    return found


def interrupts() -> dict[str, int]:
    """Return the host's interrupts, hard and soft ("softirq BLOCK"), since it was started, by source."""
    try:
        found = procfs.interrupts()
    except OSError:  # as in a container
        return {}
    return found["interrupts"] | {f"softirq {name}": n for name, n in found["softirqs"].items()}


def _cpu_reading() -> tuple[Reading, Reading]:
    host = procfs.host()
    cpu = {name: float(getattr(host, name)) for name in procfs.HostCounters.__slots__}
    queue: Reading = {}
    for line in _lines("/proc/stat"):
        words = line.split()
        if words[:1] in (["procs_running"], ["procs_blocked"]):
            queue[words[0]] = float(words[1])
    load = _lines("/proc/loadavg")
    if load:
        queue["load1"], queue["load5"] = (float(word) for word in load[0].split()[:2])
    for what in ("cpu", "io", "memory"):
        for how, total in parse_pressure(_lines(f"/proc/pressure/{what}")).items():
            queue[f"{what} {how}"] = float(total)
    return cpu, queue


def _cpu(then: Reading, now: Reading, seconds: float) -> dict[str, float]:
    d = {name: max(0.0, value - then.get(name, 0.0)) for name, value in now.items()}
    total = d["user_s"] + d["system_s"] + d["idle_s"] + d["steal_s"]
    shares = {
        "user_share": d["user_s"],
        "system_share": d["system_s"],
        "iowait_share": d["iowait_s"],
        "idle_share": max(0.0, d["idle_s"] - d["iowait_s"]),
        "steal_share": d["steal_s"],
    }
    return {name: value / total if total else 0.0 for name, value in shares.items()} | {
        "context_switches_per_s": d["context_switches"] / seconds,
        "forks_per_s": d["forks"] / seconds,
    }


def _queue(then: Reading, now: Reading, seconds: float) -> dict[str, float]:
    # The sampler itself runs while it reads.
    found = {"running_count": max(0.0, now.get("procs_running", 0.0) - 1)}
    found["blocked_count"] = now.get("procs_blocked", 0.0)
    found |= {f"{name}_count": now[name] for name in ("load1", "load5") if name in now}
    for name, value in now.items():
        what, blank, how = name.partition(" ")
        if blank and name in then:
            found[f"{what}_{how}_stalled_share"] = min(1.0, (value - then[name]) / 1e6 / seconds)
    return found


def _memory_reading() -> Reading:
    info = parse_meminfo(_lines("/proc/meminfo"))
    found = {column: float(info[name]) for name, column in _MEMORY.items() if name in info}
    found["swap_used_bytes"] = float(info.get("SwapTotal", 0) - info.get("SwapFree", 0))
    for line in _lines("/proc/vmstat"):
        name, _, value = line.partition(" ")
        if name in _SWAP:
            found[name] = float(value)
    return found


def _memory(then: Reading, now: Reading, seconds: float) -> dict[str, float]:
    levels = {name: value for name, value in now.items() if name.endswith("_bytes")}
    return levels | _growth(_SWAP)(then, now, seconds)


def _disk_reading(disk: procfs.DiskCounters) -> Reading:
    found = {name: float(getattr(disk, name)) for name in _DISK}
    if disk.flushes is not None and disk.flush_ms is not None:
        found |= {"flushes": float(disk.flushes), "flush_ms": float(disk.flush_ms)}
    return found


def _disk(then: Reading, now: Reading, seconds: float) -> dict[str, float]:
    d = {name: max(0.0, value - then.get(name, 0.0)) for name, value in now.items()}
    requests = d["reads"] + d["writes"]
    found = {
        "reads_per_s": d["reads"] / seconds,
        "writes_per_s": d["writes"] / seconds,
        "read_bytes_per_s": d["read_bytes"] / seconds,
        "write_bytes_per_s": d["write_bytes"] / seconds,
        "read_wait_s": d["read_ms"] / 1e3 / d["reads"] if d["reads"] else 0.0,
        "write_wait_s": d["write_ms"] / 1e3 / d["writes"] if d["writes"] else 0.0,
        "service_s": d["busy_ms"] / 1e3 / requests if requests else 0.0,
        "queue_count": d["queue_ms"] / 1e3 / seconds,
        "busy_share": min(1.0, d["busy_ms"] / 1e3 / seconds),
    }
    if "flushes" in d:
        found["flushes_per_s"] = d["flushes"] / seconds
        found["flush_wait_s"] = d["flush_ms"] / 1e3 / d["flushes"] if d["flushes"] else 0.0
    return found


def _growth(columns: Mapping[str, str]) -> Rates:
    def rates(then: Reading, now: Reading, seconds: float) -> dict[str, float]:
        return {
            column: (now[name] - then[name]) / seconds
            for name, column in columns.items()
            if name in now and name in then
        }

    return rates


def _arc(then: Reading, now: Reading, seconds: float) -> dict[str, float]:
    found = {column: now[name] for name, column in _ARC_LEVELS.items() if name in now}
    found |= _growth(_ARC)(then, now, seconds)
    looked = found.get("hits_per_s", 0.0) + found.get("misses_per_s", 0.0)
    if looked:
        found["hit_share"] = found["hits_per_s"] / looked
    return found


_RATES: dict[str, Rates] = {
    "cpu": _cpu,
    "run_queue": _queue,
    "memory": _memory,
    "arc": _arc,
    "zil": _growth(_ZIL),
    "dmu_tx": _growth(_DMU_TX),
}


class Sampler:
    """Reads the host's counters once an interval, in a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, interval: float = 1.0, origin: float | None = None) -> None:
        """``interval``: seconds; ``origin``: what ``t`` counts from, in ``time.monotonic``'s seconds, the
        call of ``start`` unless given."""
        self.interval = interval
        self.seconds = 0.0
        """From the first reading to the last."""
        self.own_cpu_seconds = 0.0
        self.limits: list[str] = []
        self._origin = origin
        self._rows: list[tuple[float, dict[str, Reading]]] = []
        self._thread: threading.Thread | None = None
        self._halt = threading.Event()
        self._zfs = kstat.ROOT.is_dir()

    def start(self) -> None:
        """Take the first reading and begin to sample."""
        self._names = block_devices()
        self._first = self._last = procfs.diskstats()
        self._take()
        if self._origin is None:
            self._origin = self._rows[0][0]
        self._thread = threading.Thread(target=self._run, daemon=True, name="system sampler")
        self._thread.start()

    def stop(self) -> None:
        """Take the last reading. What was sampled stays. A second call does nothing."""
        if self._thread is None:
            return
        self._halt.set()
        self._thread.join()
        self._thread = None
        self._take()
        self.seconds = self._rows[-1][0] - self._rows[0][0]

    def _take(self) -> None:
        began = time.thread_time()
        disks = procfs.diskstats()
        now = time.monotonic()
        cpu, queue = _cpu_reading()
        reading = {"cpu": cpu, "run_queue": queue, "memory": _memory_reading()}
        for number, name in self._names.items():
            if number in disks:
                reading[f"disk:{name}"] = _disk_reading(disks[number])
        if self._zfs:
            arc = kstat.pick(kstat.read_text("arcstats"), {*_ARC, *_ARC_LEVELS})
            reading["arc"] = {name: float(value) for name, value in arc.items()}
            for name in ("zil", "dmu_tx"):
                reading[name] = {k: float(v) for k, v in kstat.read(name).items()}
        self._last = disks
        self._rows.append((now, reading))
        self.own_cpu_seconds += time.thread_time() - began

    def _run(self) -> None:
        step = pace = self.interval
        due = time.monotonic()
        try:
            while True:
                # By the clock, not by pauses: readings don't drift when one takes long.
                due = max(due + pace, time.monotonic())
                if self._halt.wait(due - time.monotonic()):
                    return
                began = time.thread_time()
                self._take()
                if len(self._rows) > MOST_ROWS:
                    del self._rows[1::2]
                    step *= 2
                pace = max(step, (time.thread_time() - began) / _SHARE)
        except Exception as error:
            self.limits.append(f"the host's counters were read for a part of the window only: {error}")

    def series(self) -> dict[str, Series]:
        """Return the series: "cpu", "run_queue", "memory", "disk:NAME", "arc", "zil", "dmu_tx".

        Rates and shares are means over the time since the last point; levels (memory, sizes, running) are
        those at the point. ``whole`` has the means over the window, and levels at its end. Disks without a
        request are left out; ZFS's series are missing without ZFS.
        """
        found: dict[str, Series] = {}
        origin = self._origin or 0.0
        rows = self._rows
        if len(rows) < 2:
            return found
        for name in dict.fromkeys(name for _, reading in rows for name in reading):
            rates = _disk if name.startswith("disk:") else _RATES[name]
            if rates is _disk and not self._moved(name):
                continue
            t: list[float] = []
            points: list[dict[str, float]] = []
            for (then, before), (now, after) in itertools.pairwise(rows):
                # The last reading may follow another at once: no time to take a mean over.
                if now - then >= 0.05 * self.interval and name in before and name in after:
                    t.append(round(now - origin, 3))
                    points.append(rates(before[name], after[name], now - then))
            columns = [c for c in (points[0] if points else {}) if all(c in point for point in points)]
            ends = [(at, reading[name]) for at, reading in rows if name in reading]
            if points and len(ends) > 1 and ends[-1][0] > ends[0][0]:
                whole = rates(ends[0][1], ends[-1][1], ends[-1][0] - ends[0][0])
                found[name] = Series(
                    t=t,
                    columns={c: [_short(point[c]) for point in points] for c in columns},
                    whole={c: _short(value) for c, value in whole.items()},
                )
        return found

    def _moved(self, name: str) -> bool:
        readings = [reading[name] for _, reading in self._rows if name in reading]
        return any(readings[-1][c] != readings[0][c] for c in ("reads", "writes", "busy_ms"))

    def disks(self, pools: Mapping[str, str] | None = None) -> tuple[ObservedDisk, ...]:
        """Return the host's whole block devices over the window, by name.

        ``pools``: name of a disk → the pool that it belongs to (``zfs.disk_pools``). Devices without a
        request that are in no pool are left out.
        """
        found = between(self._names, self._first, self._last, self.seconds, pools or {})
        return tuple(ObservedDisk.model_validate(one) for one in found)


def _short(value: float) -> float:
    """Seven digits: what a document needs, and no more."""
    return float(f"{value:.7g}")
