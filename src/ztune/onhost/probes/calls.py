"""Probes that watch calls as they happen: sizes of reads and writes by dataset, and system calls."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.host.zfs import which
from ztune.onhost.probes import bpf, perf, procfs
from ztune.onhost.probes.context import Context
from ztune.onhost.probes.probe import Probe, needs_root
from ztune.onhost.probes.syscall_names import call_name

FUNCTIONS = {
    "zfs": ("zpl_iter_write", "zpl_iter_read", "zpl_fsync"),
    "ext4": ("ext4_file_write_iter", "ext4_file_read_iter", "ext4_sync_file"),
    "xfs": ("xfs_file_write_iter", "xfs_file_read_iter", "xfs_file_fsync"),
}
"""Where each file system takes writes, reads and fsync: every way to ask for them ends there, io_uring and
asynchronous I/O included; memory-mapped files do not."""
COMMIT = "zil_commit"


def sizes_script(filesystems: Mapping[str, set[int]], commit: bool) -> str:
    """Return the bpftrace script that counts calls by device.

    ``filesystems``: kind → the kernel's device numbers of the mounted ones. ``commit``: watch zil_commit too.
    """
    parts = []
    for kind, devices in sorted(filesystems.items()):
        write, read, sync = FUNCTIONS[kind]
        mine = " || ".join(f"$d == {device}" for device in sorted(devices))
        for function, name in ((write, "write"), (read, "read")):
            parts.append(
                f"kprobe:{function} {{ $d = (uint64)((struct kiocb *)arg0)->ki_filp->f_inode->i_sb->s_dev; "
                f"if ({mine}) {{ $n = ((struct iov_iter *)arg1)->count; @{name}_sizes[$d] = hist($n); "
                f"@{name}_bytes[$d] = sum($n); @{name}_calls[$d] = count(); }} }}"
            )
        parts.append(
            f"kprobe:{sync} {{ $d = (uint64)((struct file *)arg0)->f_inode->i_sb->s_dev; if ({mine}) "
            f"{{ @began[tid] = nsecs; @of[tid] = $d; }} }} kretprobe:{sync} /@began[tid]/ {{ "
            "$t = nsecs - @began[tid]; $d = @of[tid]; @sync_times[$d] = hist($t / 1000); "
            "@sync_ns[$d] = sum($t); @sync_calls[$d] = count(); delete(@began[tid]); delete(@of[tid]); }"
        )
    if commit:
        parts.append(
            f"kprobe:{COMMIT} {{ @commit_began[tid] = nsecs; }} kretprobe:{COMMIT} /@commit_began[tid]/ "
            "{ @commit_times = hist((nsecs - @commit_began[tid]) / 1000); delete(@commit_began[tid]); }"
        )
    return " ".join(parts)


class SizesProbe(Probe):
    """Sizes of the calls that reach each dataset."""

    name = "sizes"
    measures = (
        "sizes of the reads and writes that reach each dataset's file system, and how long its fsync takes, "
        "as histograms by powers of two; for ZFS also how long zil_commit takes"
    )
    cost = "large"
    default = False
    _script: bpf.Script | None = None

    @classmethod
    def available(cls, context: Context) -> str | None:
        """It needs bpftrace, root, and a kernel that lets functions be watched."""
        if context.mount is not None:
            return "the pools are in user space: the kernel's functions see nothing of them"
        if reason := needs_root("bpftrace"):
            return reason
        wanted = {f for d in context.datasets for f in FUNCTIONS.get(d.filesystem, ())}
        missing = wanted - bpf.symbols(wanted)
        return f"this kernel has no function {', '.join(sorted(missing))} to watch" if missing else None

    def begin(self) -> None:
        """Attach; takes a second, half a minute under emulation."""
        self.devices = {d.name: bpf.kernel_device(d.mountpoint.stat().st_dev) for d in self.context.datasets}
        filesystems: dict[str, set[int]] = {}
        for dataset in self.context.datasets:
            filesystems.setdefault(dataset.filesystem, set()).add(self.devices[dataset.name])
        commit = bool(self.context.zfs_pools) and COMMIT in bpf.symbols({COMMIT})
        self._script = bpf.Script(self.context, sizes_script(filesystems, commit))

    def freeze(self) -> None:
        """End watching."""
        assert self._script is not None
        self._script.interrupt()

    def abandon(self) -> None:
        """Kill it."""
        if self._script is not None:
            self._script.kill()

    def finish(self) -> dict[str, Any]:
        """Return the histograms by dataset: lower bound (bytes, µs) → calls."""
        assert self._script is not None
        maps = self._script.result()
        rows = []
        for dataset in self.context.datasets:
            key = str(self.devices[dataset.name])
            row: dict[str, Any] = {"name": dataset.layout_name, "roles": list(dataset.roles)}
            for name in ("read", "write"):
                row[f"{name}_calls"] = maps.get(f"{name}_calls", {}).get(key, 0)
                row[f"{name}_bytes"] = maps.get(f"{name}_bytes", {}).get(key, 0)
                row[f"{name}_sizes"] = bpf.buckets(maps.get(f"{name}_sizes", {}).get(key, []))
            row["sync_calls"] = maps.get("sync_calls", {}).get(key, 0)
            row["sync_s"] = round(maps.get("sync_ns", {}).get(key, 0) / 1e9, 6)
            row["sync_times_us"] = bpf.buckets(maps.get("sync_times", {}).get(key, []))
            rows.append(row)
        commits = maps.get("commit_times", {}).get("", [])
        return {"datasets": rows, "zil_commit_times_us": bpf.buckets(commits)}


def calls_script(pids: list[int]) -> str:
    """Return the bpftrace script that counts the system calls of these processes and their descendants."""
    seeds = " ".join(f"@job[{pid}] = 1;" for pid in pids)
    return (
        f"BEGIN {{ {seeds} }} tracepoint:sched:sched_process_fork /@job[pid]/ "
        "{ @job[args->child_pid] = 1; } "
        "tracepoint:raw_syscalls:sys_enter /@job[pid]/ { @began[tid] = nsecs; } "
        "tracepoint:raw_syscalls:sys_exit /@began[tid]/ { $t = nsecs - @began[tid]; "
        "@calls[pid, args->id] = count(); @ns[pid, args->id] = sum($t); @names[pid] = comm; "
        "@times[args->id] = hist($t / 1000); delete(@began[tid]); }"
    )


def counted_calls(maps: Mapping[str, Mapping[str, Any]], names: Mapping[int, str]) -> dict[str, Any]:
    """Return what the maps of ``calls_script`` hold: ``calls`` (call → calls, seconds, ``times_us``) and
    ``by_process`` (name → call → calls, seconds). ``names``: what processes are called, where that was seen.
    """
    machine = platform.machine()
    calls: dict[str, Any] = {}
    by_process: dict[str, dict[str, Any]] = {}
    told = maps.get("names", {})
    for key, count in maps.get("calls", {}).items():
        pid, number = (int(word) for word in key.split(","))
        if number < 0:
            continue  # the way back from a signal
        call = call_name(number, machine)
        process = names.get(pid) or str(told.get(str(pid), "unknown"))
        spent = maps.get("ns", {}).get(key, 0) / 1e9
        blank = {"calls": 0, "seconds": 0.0}
        whole = calls.setdefault(
            call, {**blank, "times_us": bpf.buckets(maps.get("times", {}).get(str(number), []))}
        )
        for row in (whole, by_process.setdefault(process, {}).setdefault(call, dict(blank))):
            row["calls"] += count
            row["seconds"] = round(row["seconds"] + spent, 6)
    return {"calls": calls, "by_process": by_process}


class SyscallsProbe(Probe):
    """System calls of the job's processes."""

    name = "syscalls"
    measures = (
        "system calls of the job's processes, by call and by process: how many, their time in all, and "
        "(bpftrace) a histogram of their times; bpftrace where it is installed, else `perf trace record`"
    )
    cost = "large"
    default = False
    options = {"megabytes": 256.0}  # noqa: RUF012 - never changed
    _script: bpf.Script | None = None
    _recording: perf.PerfRecording | None = None

    @classmethod
    def available(cls, context: Context) -> str | None:
        """It needs bpftrace or perf, and root."""
        if which("bpftrace") is None and which("perf") is None:
            return "neither bpftrace nor perf is installed"
        return needs_root("bpftrace" if which("bpftrace") else "perf")

    def begin(self) -> None:
        """Attach to the processes that there are; later ones are followed."""
        pids = procfs.descendants(self.context.pids())
        if not pids:
            raise ZtuneError("the job has no processes to watch")
        if which("bpftrace") is not None:
            self._script = bpf.Script(self.context, calls_script(pids))
            return
        self._recording = perf.PerfRecording(self.context, pids, self.option["megabytes"])

    def freeze(self) -> None:
        """End watching."""
        if self._script is not None:
            self._script.interrupt()
        elif self._recording is not None:
            self._recording.interrupt()

    def abandon(self) -> None:
        """Kill what runs."""
        if self._script is not None:
            self._script.kill()
        if self._recording is not None:
            self._recording.kill()

    def finish(self) -> dict[str, Any]:
        """Return call → calls, seconds and, from bpftrace, ``times_us``: lower bound → calls; and calls and
        seconds by the name of the process.
        """
        if self._script is not None:
            return {"method": "bpftrace", **counted_calls(self._script.result(), self.context.names)}
        assert self._recording is not None
        text = self._recording.summary()
        if lost := perf.lost(text):
            self.context.warn(f"probe syscalls: perf lost {lost} events")
        return {
            "method": "perf",
            "calls": perf.parse_summary(text),
            "by_process": perf.by_process(text, self.context.names),
            "lost": lost,
        }
