"""Probes that read counters before and after: disks, I/O sizes, caches, log, transactions, datasets, CPU."""

from __future__ import annotations

import threading
import time
from typing import Any

from ztune.onhost.probes import devzfs, disks, kstat, mount, procfs, vdevs
from ztune.onhost.probes.context import Context
from ztune.onhost.probes.probe import CounterProbe, Probe, ZfsProbe, needs_zfs

SHARE = 0.01
"""Sampling takes at most this share of a processor: where a sample costs more, samples become fewer."""


class DisksProbe(CounterProbe[dict[procfs.Number, procfs.DiskCounters]]):
    """The kernel's counters of the layout's disks."""

    name = "disks"
    measures = (
        "what the kernel counted on each disk: requests, merges, bytes, flushes, time busy and in queues"
    )

    @classmethod
    def available(cls, context: Context) -> str | None:
        """A mount's disks are no devices of the kernel's."""
        return "the disks are modelled; the probe mount has their counters" if context.mount else None

    def begin(self) -> None:
        """Find the disks and read their counters."""
        self.devices = [d for d in disks.find(self.context) if d.number is not None]
        super().begin()

    def read(self) -> dict[procfs.Number, procfs.DiskCounters]:
        """Return the counters of every block device."""
        return procfs.diskstats()

    def finish(self) -> dict[str, Any]:
        """Return the differences by pool and device."""
        rows = []
        for device in self.devices:
            assert device.number is not None
            then, now = self.before.get(device.number), self.after.get(device.number)
            if then is None or now is None:
                continue
            change = now.since(then)
            rows.append(
                {
                    "pool": device.pool,
                    "name": device.name,
                    "path": device.path,
                    "device": f"{device.number[0]}:{device.number[1]}",
                    **{name: getattr(change, name) for name in procfs.DiskCounters.__slots__},
                }
            )
        return {"disks": rows}


class IostatProbe(ZfsProbe[dict[str, dict[int, vdevs.Leaf]]]):
    """OpenZFS's histograms of I/O sizes and times."""

    name = "iostat"
    measures = (
        "sizes of physical I/Os, as issued and as aggregated, and their times in the queue and on the disk: "
        "the histograms of `zpool iostat -r` and `-w`, per device"
    )

    def read(self) -> dict[str, dict[int, vdevs.Leaf]]:
        """Return pool → guid → what happened on that device so far."""
        return {
            p.name: {leaf.guid: leaf for leaf in vdevs.leaves(devzfs.pool_stats(p.name))}
            for p in self.context.zfs_pools
        }

    def begin(self) -> None:
        """Find the devices and read their counters."""
        self.devices = {d.guid: d for d in disks.find(self.context) if d.guid}
        super().begin()

    def finish(self) -> dict[str, Any]:
        """Return the differences: bucket's lower bound (bytes, ns) → I/Os; empty buckets are left out."""
        rows = []
        for pool, leaves in self.after.items():
            for guid, leaf in leaves.items():
                then = self.before.get(pool, {}).get(guid)
                device = self.devices.get(guid)
                if then is None or device is None or vdevs.reset(then, leaf):
                    continue
                change = vdevs.since(then, leaf)
                rows.append(
                    {
                        "pool": device.pool,
                        "name": device.name,
                        "class": device.class_,
                        "trims": change.trims,
                        "size_bytes": {k: h for k, v in change.sizes.items() if (h := vdevs.histogram(v))},
                        "time_ns": {k: h for k, v in change.times.items() if (h := vdevs.histogram(v))},
                    }
                )
        return {"devices": rows}


class KstatProbe(ZfsProbe[dict[str, dict[str, int]]]):
    """All counters of OpenZFS that moved."""

    name = "kstat"
    measures = (
        "every counter of OpenZFS that moved: ARC and L2ARC (arcstats), the intent log (zil), prefetch "
        "(zfetchstats), dbufs, transactions (dmu_tx), and each pool's iostats and transaction waits"
    )
    files = ("arcstats", "zil", "zfetchstats", "dbufstats", "dmu_tx", "dnodestats", "abdstats", "zstd")
    # Sizes as they are, not sums over time: a difference says nothing of them.
    sizes = ("size", "c", "c_min", "c_max", "p", "pd", "pm", "meta", "hash_chain_max", "hash_elements_max")

    def read(self) -> dict[str, dict[str, int]]:
        """Return them by kstat."""
        found = {name: kstat.read(name) for name in self.files}
        for pool in self.context.zfs_pools:
            key = f"pool {pool.layout_name}"
            # "io" was there until 2.0.
            found[f"{key} iostats"] = kstat.read(f"{pool.name}/iostats")
            waits = kstat.parse_assign(kstat.read_text(f"{pool.name}/dmu_tx_assign"))
            found[f"{key} assign_ns"] = {str(bound): count for bound, count in waits.items()}
        return found

    def finish(self) -> dict[str, Any]:
        """Return the differences that are not 0, and the ARC's sizes at the end."""
        found: dict[str, Any] = {}
        for name, values in self.after.items():
            moved = kstat.moved(self.before.get(name, {}), values)
            if moved:
                found[name] = moved
        arc = self.after["arcstats"]
        found["arc_end"] = {k: v for k, v in arc.items() if k in self.sizes or k.endswith("_size")}
        return found


class TxgsProbe(ZfsProbe[dict[str, str]]):
    """Transaction groups one by one."""

    name = "txgs"
    measures = (
        "each transaction group that was written: dirty bytes, bytes and I/Os read and written, and the time "
        "it was open, quiescing, waiting and syncing; the last hundred (zfs_txg_history)"
    )

    def read(self) -> dict[str, str]:
        """Return each pool's history, as text."""
        return {p.layout_name: kstat.read_text(f"{p.name}/txgs") for p in self.context.zfs_pools}

    def finish(self) -> dict[str, Any]:
        """Return, by pool: how many, how many of them the history still has, and those as rows."""
        found: dict[str, Any] = {}
        columns = (
            *("txg", "birth", "ndirty", "nread", "nwritten", "reads", "writes"),
            *("otime", "qtime", "wtime", "stime"),
        )
        for pool, text in self.after.items():
            first, last = kstat.committed(self.before[pool]), kstat.committed(text)
            if first is None or last is None:
                self.context.warn(f"pool {pool}: no history of transaction groups; zfs_txg_history is 0")
                continue
            rows = [r for r in kstat.parse_txgs(text) if r["state"] == "C" and int(r["txg"]) > first]
            found[pool] = {
                "count": last - first,
                "kept": len(rows),
                "columns": list(columns),
                "rows": [[row.get(c, 0) for c in columns] for row in rows],
            }
        return found


class DatasetsProbe(ZfsProbe[dict[str, dict[str, int]]]):
    """Reads and writes of each dataset, so of each role."""

    name = "datasets"
    measures = (
        "calls and bytes read and written in each dataset, so of its roles, files removed, and from 2.2 on "
        "its part of the intent log"
    )

    def read(self) -> dict[str, dict[str, int]]:
        """Return them by dataset."""
        return {name: kstat.read(str(path)) for name, path in self.files.items()}

    def begin(self) -> None:
        """Find the datasets' kstats and read them."""
        pools = [p.name for p in self.context.zfs_pools]
        self.files = kstat.objset_files(pools, [d.name for d in self.context.datasets])
        super().begin()

    def finish(self) -> dict[str, Any]:
        """Return the differences by dataset."""
        rows = []
        for dataset in self.context.datasets:
            if dataset.name in self.after:
                rows.append(
                    {
                        "name": dataset.layout_name,
                        "roles": list(dataset.roles),
                        **kstat.difference(self.before[dataset.name], self.after[dataset.name]),
                    }
                )
        return {"datasets": rows}


class _ProcessTable:
    """What each process of the job did between two readings, also those that ended between them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.first: dict[procfs.Task, procfs.ProcessCounters] = {}
        self.last: dict[procfs.Task, procfs.ProcessCounters] = {}
        self.living: set[procfs.Task] = set()
        self.threads_first: dict[procfs.Task, procfs.Switches] = {}
        self.threads: dict[procfs.Task, procfs.Switches] = {}
        self.owners: dict[procfs.Task, procfs.Task] = {}

    def look(self, *, edge: bool = False) -> None:
        """Read all processes that live; at the ``edge`` of the window also the one that holds a mount's
        pools: it has many threads, and lives throughout.
        """
        mount = self.context.mount
        pids = procfs.descendants(self.context.pids())
        found = procfs.processes([*pids, mount.pid] if edge and mount is not None else pids)
        for task, process in found.items():
            threads = procfs.tasks([process.pid])
            self.threads.update(threads)
            self.owners.update(dict.fromkeys(threads, task))
            self.context.names[process.pid] = process.name
        if not self.last:
            self.first, self.threads_first = dict(found), dict(self.threads)
        self.last.update(found)
        self.living = set(found)

    def switches(self) -> dict[procfs.Task, list[int]]:
        """Return the growth of each field of ``Switches`` by process; a thread counts up to the last time it
        was seen.
        """
        zero = procfs.Switches(0, 0, 0, 0)
        sums: dict[procfs.Task, list[int]] = {}
        for thread, now in self.threads.items():
            then = self.threads_first.get(thread, zero)
            row = sums.setdefault(self.owners[thread], [0] * len(procfs.Switches.__slots__))
            for i, name in enumerate(procfs.Switches.__slots__):
                row[i] += getattr(now, name) - getattr(then, name)
        return sums

    def rows(self) -> list[dict[str, Any]]:
        """Return what the processes of each name did, the busiest first."""
        ended: dict[int, list[procfs.ProcessCounters]] = {}
        for task, process in self.last.items():
            if task not in self.living:
                ended.setdefault(process.parent, []).append(process)
        switches = self.switches()
        found: dict[str, dict[str, Any]] = {}
        for task, now in self.last.items():
            then = self.first.get(task)
            # The kernel adds what a child did to its parent, once the parent waited for its end.
            children = ended.get(now.pid, []) if task in self.living else []
            row = found.setdefault(
                now.name,
                dict.fromkeys(("processes", "user_s", "system_s", *_CALLS.values(), *_SWITCHES), 0),
            )
            row["processes"] += 1
            row["user_s"] += now.user_s - (then.user_s if then else 0.0)
            row["system_s"] += now.system_s - (then.system_s if then else 0.0)
            for key, name in _CALLS.items():
                grown = now.io.get(key, 0) - (then.io.get(key, 0) if then else 0)
                grown -= sum(child.io.get(key, 0) for child in children)
                # None where one of them may not be read.
                row[name] = None if not now.io or row[name] is None else row[name] + max(0, grown)
            for i, name in enumerate(_SWITCHES):
                row[name] += switches.get(task, [0, 0])[i]
        rows: list[dict[str, Any]] = [
            {"name": name, **{k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}}
            for name, row in found.items()
        ]
        return sorted(rows, key=lambda row: -(row["user_s"] + row["system_s"]))[:_MOST_NAMES]


_CALLS = {"syscr": "read_calls", "syscw": "write_calls", "rchar": "read_bytes", "wchar": "write_bytes"}
_SWITCHES = ("voluntary_switches", "involuntary_switches")
_MOST_NAMES = 60  # of processes, and sources of interrupts: a host may have hundreds


class CpuProbe(Probe):
    """The job's processes and the host's processors."""

    name = "cpu"
    measures = (
        "processor time, I/O calls, context switches and time in the run queue of the job's processes, all "
        "together and by name; the whole host's processor time and interrupts beside them"
    )
    cost = "small"
    options = {"interval": 1.0}  # noqa: RUF012 - never changed
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Read, and watch from now on for threads that end."""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.host_before = procfs.host()
        self.interrupts_before = self._interrupts()
        self.job_before = procfs.job(self.context.pids())
        self.table = _ProcessTable(self.context)
        self.table.look(edge=True)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="cpu probe")
        self._thread.start()

    def _interrupts(self) -> dict[str, dict[str, int]] | None:
        try:
            return procfs.interrupts()
        except OSError:
            return None  # as in a container

    def _watch(self) -> None:
        step = pace = self.option["interval"] * max(1.0, self.context.dilation)
        try:
            while not self._stop.wait(pace):
                began = time.thread_time()
                with self._lock:
                    self.table.look()
                pace = max(step, (time.thread_time() - began) / SHARE)
        except Exception as error:
            self.context.warn(f"probe {self.name} ended early: {error}")

    def freeze(self) -> None:
        """Read again."""
        self.abandon()
        with self._lock:
            self.table.look(edge=True)
        self.interrupts_after = self._interrupts()
        self.host_after = procfs.host()
        self.job_after = procfs.job(self.context.pids())

    def abandon(self) -> None:
        """End the watching."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()

    def finish(self) -> dict[str, Any]:
        """Return the differences. What a process or thread did counts up to the last time it was seen."""
        mount = self.context.mount
        owned = {
            task: row for task, row in self.table.switches().items() if mount is None or task[0] != mount.pid
        }
        sums = [sum(row[i] for row in owned.values()) for i in range(4)]
        threads = sum(mount is None or task[0] != mount.pid for task in self.table.owners.values())
        before, after = self.job_before, self.job_after
        return {
            "job": {
                "processes": after.processes,
                "threads_seen": threads,
                "user_s": round(after.user_s - before.user_s, 3),
                "system_s": round(after.system_s - before.system_s, 3),
                "voluntary_switches": sums[0],
                "involuntary_switches": sums[1],
                "ran_s": round(sums[2] / 1e9, 6),
                "waited_s": round(sums[3] / 1e9, 6),
                "io": after.io_since(before),
            },
            "by_process": self.table.rows(),
            "host": self.host_after.since(self.host_before),
            **self._interrupts_since(),
        }

    def _interrupts_since(self) -> dict[str, dict[str, int] | None]:
        """Return source → interrupts of the whole host, the most first; None where it shows none."""
        before, after = self.interrupts_before, self.interrupts_after
        if before is None or after is None:
            return {"interrupts": None, "softirqs": None}
        found: dict[str, dict[str, int] | None] = {}
        for kind, now in after.items():
            grown = {name: n - before[kind].get(name, 0) for name, n in now.items()}
            most = sorted(((n, name) for name, n in grown.items() if n > 0), reverse=True)
            found[kind] = {name: n for n, name in most[:_MOST_NAMES]}
        return found


class _Sampler:
    """The series probe's readings of the kernel."""

    _disk = ("reads", "read_bytes", "writes", "write_bytes", "flushes", "busy_ms", "queue_ms")
    _arc = ("hits", "iohits", "misses", "size", "c", "l2_hits", "l2_write_bytes")
    _dataset = ("reads", "nread", "writes", "nwritten")

    def __init__(self, context: Context) -> None:
        zfs = bool(context.zfs_pools) and needs_zfs(context) is None
        self.devices = [d for d in disks.find(context) if d.number is not None]
        pools = [p.name for p in context.zfs_pools] if zfs else []
        self.files = kstat.objset_files(pools, [d.name for d in context.datasets])
        names = {d.name: d.layout_name for d in context.datasets}
        self.groups: dict[str, list[str]] = {
            "disks": [f"{d.pool}/{d.name} {c}" for d in self.devices for c in self._disk],
            "arc": list(self._arc) if zfs else [],
            "datasets": [f"{names[n]} {c}" for n in self.files for c in self._dataset],
        }

    def values(self) -> dict[str, list[float]]:
        """Return what is there now, by group, in the order of its columns."""
        found: dict[str, list[float]] = {}
        if self.groups["disks"]:
            stats = procfs.diskstats()
            blank = procfs.DiskCounters()
            found["disks"] = [
                float(getattr(stats.get(d.number, blank) if d.number else blank, c) or 0)
                for d in self.devices
                for c in self._disk
            ]
        if self.groups["arc"]:
            arc = kstat.pick(kstat.read_text("arcstats"), self._arc)
            found["arc"] = [float(arc.get(c, 0)) for c in self._arc]
        if self.groups["datasets"]:
            found["datasets"] = []
            for path in self.files.values():
                values = kstat.pick(kstat.read_text(str(path)), self._dataset)
                found["datasets"] += [float(values.get(c, 0)) for c in self._dataset]
        return found


class SeriesProbe(Probe):
    """Counters over time."""

    name = "series"
    measures = (
        "the counters of disks, ARC, datasets and processors over time, once a second or as often as that "
        "takes 1 % of a processor: sums since the window began"
    )
    cost = "small"
    options = {"interval": 1.0, "batch": 10.0}  # noqa: RUF012 - never changed
    _thread: threading.Thread | None = None
    _level = frozenset(("size", "c"))
    _host = ("user_s", "system_s", "iowait_s", "context_switches")

    def begin(self) -> None:
        """Read what the sums count from, and begin to sample."""
        own = self.context.mount is not None
        self.sampler: _Sampler | mount.MountSampler = (
            mount.MountSampler(self.context) if own else _Sampler(self.context)
        )
        self.groups = {**self.sampler.groups, "host": list(self._host)}
        self.groups = {name: columns for name, columns in self.groups.items() if columns}
        self.zero = self._values()
        self.rows: dict[str, list[list[float]]] = {name: [] for name in self.groups}
        self.samples = 0
        self.spent_s = 0.0
        # What the first interval is measured from.
        self._keep(self.zero)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True, name="series probe")
        self._thread.start()

    def _values(self) -> dict[str, list[float]]:
        host = procfs.host()
        return {**self.sampler.values(), "host": [float(getattr(host, c)) for c in self._host]}

    def _row(self) -> None:
        began = time.thread_time()
        self._keep(self._values())
        self.spent_s += time.thread_time() - began

    def _keep(self, found: dict[str, list[float]]) -> None:
        now = time.time()
        for name, values in found.items():
            columns = self.groups[name]
            self.rows[name].append(
                [
                    round(now, 3),
                    *(
                        round(v if c in self._level else v - z, 3)
                        for c, v, z in zip(columns, values, self.zero[name], strict=True)
                    ),
                ]
            )
        self.samples += 1

    def _send(self) -> None:
        for name, rows in self.rows.items():
            if rows:
                self.context.series(name, ["t", *self.groups[name]], rows)
                self.rows[name] = []

    def _sample(self) -> None:
        step = pace = self.option["interval"] * max(1.0, self.context.dilation)
        due = time.monotonic()
        try:
            while True:
                # By the clock, not by pauses: samples don't drift when one takes long.
                due = max(due + pace, time.monotonic())
                if self._stop.wait(due - time.monotonic()):
                    return
                began = time.thread_time()
                self._row()
                pace = max(step, (time.thread_time() - began) / SHARE)
                if self.samples % max(1, round(self.option["batch"])) == 0:
                    self._send()
        except Exception as error:
            self.context.warn(f"probe {self.name} ended early: {error}")

    def freeze(self) -> None:
        """Take the last sample."""
        self.abandon()
        self._row()

    def abandon(self) -> None:
        """End the sampling."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()

    def finish(self) -> dict[str, Any]:
        """Send the last rows."""
        self._send()
        return {
            "interval_s": self.option["interval"] * max(1.0, self.context.dilation),
            "samples": self.samples,
            "own_cpu_s": round(self.spent_s, 3),
        }
