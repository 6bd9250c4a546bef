"""How fast a mounted layout is: pgbench and fio on a mount with instant disks, against ext4.

    .venv/bin/python bench/mount_speed.py [--blocks N] [--seconds S] [--clients N …] [--scale N]

Each block runs every place once, in random order (seeded). `ext4` is ext4 on a loop device over a file in
memory, whose disk is as instant as the mount's. `host` is the file system of --host (default /var/tmp), whose
disk and flushes are real. `mount` is ztune-mount, recordsize 8K, lz4, instant disks. `mount-fuse` is the same
mount asked for what OpenZFS answers at once (reads beyond the end of a file): what is left is FUSE.
`mount-hdd` is a mount whose one disk is the profile hdd-7200: its pgbench is followed by how much of the time
that disk worked, and how much processor time the mount took. `ext4` needs root and a loop device, and is left
out with a reason elsewhere. Prints one JSON object: for each load and place the median per second, and for
the mount the median over the blocks of its ratio to the others with a 95 % bootstrap interval, and the share
of FUSE in the time of one read. Goal: pgbench half of ext4's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import started

from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.onhost.host.mounted import Mount, MountOptions
from ztune.places import mount_program
from ztune.study import profiles

RESAMPLES = 5000
DISK = 16 << 30
FIO = {
    "randread 8K": ("randread", "8k", 0),
    "randwrite 8K": ("randwrite", "8k", 0),
    "randwrite 8K fsync": ("randwrite", "8k", 1),
    "seqread 128K": ("read", "128k", 0),
    "seqwrite 128K": ("write", "128k", 0),
}
SPEC: dict[str, Any] = {
    "version": 1,
    "seed": 1,
    "arc_max": 1 << 30,
    "profiles": {
        "ssd": {
            "kind": "flash", "channels": 32, "read_us": 80, "write_us": 20, "read_mb_s": 3000,
            "write_mb_s": 2000, "flush_us": 50, "overhead_us": 5,
        }
    },
    "pools": [
        {
            "name": "speed",
            "ashift": 12,
            "vdevs": [{"class": "data", "kind": "stripe", "disks": [{"profile": "ssd", "size": DISK}]}],
        }
    ],
    "datasets": [{"name": "speed/db", "properties": {"recordsize": "8192", "compression": "lz4"}}],
    "files": [],
    "content": {},
    "tunables": {},
}  # fmt: skip
HDD = "hdd-7200"


def interval(values: list[float], seed: int) -> list[float]:
    """95 % percentile bootstrap interval of the median."""
    rng = np.random.default_rng(seed)
    picks = rng.choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return [round(float(low), 3), round(float(high), 3)]


@contextlib.contextmanager
def mounted(folder: Path, profile: str | None = None) -> Iterator[Mount]:
    """A mount of one disk: an instant one, or a ready profile's in real time."""
    name, spec = profile or "instant", SPEC
    if profile is not None:
        disk = {"profile": profile, "size": DISK}
        vdev = {"class": "data", "kind": "stripe", "disks": [disk]}
        spec = {
            **SPEC,
            "profiles": {profile: profiles.find(profile).engine_json()},
            "pools": [{"name": "speed", "ashift": 12, "vdevs": [vdev]}],
        }
    mount = Mount.start(
        mount_program.check(), spec, folder / f"store-{name}", {"speed/db": folder / f"mount-{name}"},
        MountOptions("profile" if profile else "instant"), die_with_caller=True,
    )  # fmt: skip
    try:
        yield mount
    finally:
        mount.stop()


@contextlib.contextmanager
def loop_ext4(folder: Path) -> Iterator[Path]:
    """Ext4 on a file in memory."""
    place = folder / "ext4"
    place.mkdir()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        image = Path(memory) / "disk.img"
        with image.open("wb") as file:
            file.truncate(DISK)
        subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=True)


def fio(place: Path, kind: str, size: str, fsync: int, seconds: int) -> float:
    """Return I/Os per second of one job that waits for each."""
    command = [
        "fio", "--name=speed", f"--directory={place}", f"--rw={kind}", f"--bs={size}", "--size=512m",
        "--ioengine=psync", f"--fsync={fsync}", f"--runtime={seconds}", "--time_based",
        "--output-format=json",
    ]  # fmt: skip
    done = started.run(command, check=True, capture_output=True)
    job = json.loads(done.stdout)["jobs"][0]
    return float(job["read"]["iops"] + job["write"]["iops"])


def beyond_the_end(place: Path, seconds: float) -> float:
    """Return how many reads per second of an empty file's first 8 KiB."""
    fd = os.open(place / "empty", os.O_RDONLY | os.O_CREAT, 0o600)
    try:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(100):
                os.pread(fd, 8192, 0)
            count += 100
        return count / seconds
    finally:
        os.close(fd)


def cpu_s(pid: int) -> float:
    """Processor time that a process took so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def pgbench(
    place: Path, options: argparse.Namespace, clients: int, mount: Mount | None = None
) -> tuple[float, dict[str, float]]:
    """Return transactions per second; of a mount also the shares of its disk's and a processor's time."""
    parameters = {
        "scale": options.scale,
        "clients": clients,
        "seconds": options.seconds,
        "rate": 0,
        "final_checkpoint": False,
        "max_wal_size": "1G",
    }
    shares: dict[str, float] = {}
    with running(PostgresOltp(parameters), parent=place) as workload:
        if mount is not None:
            mount.reset()
            before = cpu_s(mount.pid)
        rate = float(workload.run().per_second)
        if mount is not None:
            found = mount.stats()
            shares["disk"] = max(float(d["busy_s"]) for d in found["disks"]) / float(found["seconds"])
            shares["processor"] = (cpu_s(mount.pid) - before) / float(found["seconds"])
    return rate, shares


def note(rates: dict[str, dict[str, list[float]]], block: int, load: str, place: str, value: float) -> None:
    rates.setdefault(load, {}).setdefault(place, []).append(value)
    print(f"block {block} {load} {place}: {value:.4g}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="of load in each run")
    parser.add_argument("--clients", type=int, nargs="+", default=[8], help="of pgbench; each by itself")
    parser.add_argument("--scale", type=int, default=5, help="× 100,000 rows")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the bootstrap")
    parser.add_argument("--host", type=Path, default=Path("/var/tmp"))
    options = parser.parse_args()

    left_out = {}
    rates: dict[str, dict[str, list[float]]] = {}
    order = random.Random(options.seed)
    with tempfile.TemporaryDirectory(dir=options.host) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        host = folder / "host"
        host.mkdir()
        hdd = stack.enter_context(mounted(folder, HDD))
        places = {"host": host, "mount": stack.enter_context(mounted(folder)).places["speed/db"]}
        try:
            places["ext4"] = stack.enter_context(loop_ext4(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            left_out["ext4"] = str(error)
        for path in (*places.values(), *hdd.places.values()):
            path.chmod(0o755)
        for block in range(1, options.blocks + 1):
            for place in order.sample(list(places), len(places)):
                for clients in options.clients:
                    rate, _ = pgbench(places[place], options, clients)
                    note(rates, block, f"pgbench {clients} clients", place, rate)
                for load, (kind, size, fsync) in FIO.items():
                    rate = fio(places[place], kind, size, fsync, options.seconds)
                    note(rates, block, load, place, rate)
            rate = beyond_the_end(places["mount"], options.seconds)
            note(rates, block, "randread 8K", "mount-fuse", rate)
            for clients in options.clients:
                load = f"pgbench {clients} clients"
                rate, shares = pgbench(hdd.places["speed/db"], options, clients, hdd)
                note(rates, block, load, "mount-hdd", rate)
                for what, share in shares.items():
                    note(rates, block, load, f"mount-hdd: share of the {what}'s time", share)
    report = {
        "blocks": options.blocks,
        "seconds": options.seconds,
        "clients": options.clients,
        "scale": options.scale,
        "cpus": os.cpu_count(),
        "left_out": left_out,
        "loads": {load: described(found, options.seed) for load, found in rates.items()},
    }
    print(json.dumps(report, indent=1))


def described(found: dict[str, list[float]], seed: int) -> dict[str, Any]:
    """Medians of each place, and the mount against the others, block by block."""
    out: dict[str, Any] = {place: round(statistics.median(values), 3) for place, values in found.items()}
    for place in ("ext4", "host"):
        if place in found:
            ratios = [a / b for a, b in zip(found["mount"], found[place], strict=True)]
            out[f"mount / {place}"] = [round(statistics.median(ratios), 3), *interval(ratios, seed)]
    if "mount-fuse" in found:
        share = [a / b for a, b in zip(found["mount"], found["mount-fuse"], strict=True)]
        out["share of FUSE"] = [round(statistics.median(share), 3), *interval(share, seed)]
    return out


if __name__ == "__main__":
    started.script(main)
