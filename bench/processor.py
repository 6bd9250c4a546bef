"""Processor time of compression and checksums: what a replay says against what a mount takes.

    python bench/processor.py [--content FILE] [--rounds N] [--size MIB] [--out FILE]

For each compression at each record size the same work is replayed and done on a mount with instant disks: a
file is read whole from a cold start, then written over whole. Each of the N rounds (default 3) does every
pair once, in random order. Three figures per cell, medians of the rounds, in ms of processor per MiB read and
written:

- *replay*: `measure.processor.seconds` of the engine, measured in the calls;
- *mount, in the calls*: the same of `ztune-mount`, whose threads are OpenZFS's own. It does such work four
  times before, uncounted: memory that a process touches for the first time costs it 0.1 to 0.4 ms a MiB;
- *mount, process*: what `ztune-mount` took in user space by the kernel's count, less what it took with
  compression off. Nothing of ztune's accounting is in it; the kernel counts by ticks of 10 ms, and
  what compression spares of the disks' work is taken away too. Compared where it is 0.1 s at least.

Errors are replay / mount - 1; of the process's, the replay's own figure with compression off is taken away
too. With --out FILE each cell is kept as it is done, and a second call goes on; --rounds 0 prints what there
is. Default data: pages as pgbench fills them; --content takes a pool of a trace, a multiple of 1 MiB.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import started
from engine_facts import MIB, PROFILES, WRITE, replay

from ztune.onhost.host.mounted import Mount, MountOptions
from ztune.places import mount_program

READ = 1
WARM_UPS = 4  # until little memory is new to a mount's process; after one much still is
COMPRESSIONS = ("off", "lz4", "zstd-1", "zstd-3", "zstd-9", "zstd-19", "gzip-1", "gzip-6", "gzip-9")
SIZES = {"8K": 8 << 10, "32K": 32 << 10, "128K": 128 << 10, "1M": MIB}
STEP = MIB  # of one read or write
GOAL = 0.2
LEAST_S = 0.1
Cell = dict[str, float]


def pages(path: Path, size: int) -> Path:
    """Write pages as pgbench's accounts have them: numbers, and 84 blanks in each row."""
    r = random.Random(3)
    out = bytearray()
    while len(out) < size:
        page = bytearray(r.randbytes(24))
        while len(page) + 121 <= 8192:
            key, balance = r.randrange(1 << 20), r.randrange(-(10**4), 10**4)
            page += r.randrange(1 << 32).to_bytes(8, "little") + bytes(15)
            page += (
                key.to_bytes(4, "little")
                + (1).to_bytes(4, "little")
                + balance.to_bytes(4, "little", signed=True)
            )
            page += b" " * 84 + bytes(2)
        out += page.ljust(8192, b"\0")
    path.write_bytes(out[:size])
    return path


def spec(properties: dict[str, str]) -> dict[str, Any]:
    """Return one pool of one disk with one dataset."""
    disk = {"profile": "nvme", "size": 8 << 30}
    vdev = {"class": "data", "kind": "stripe", "disks": [disk]}
    return {
        "version": 1, "seed": 1, "arc_max": 128 * MIB,
        "pools": [{"name": "tank", "ashift": 12, "vdevs": [vdev]}],
        "datasets": [{"name": "tank/data", "properties": properties}],
        "profiles": {"nvme": PROFILES["nvme"]}, "files": [], "content": {}, "tunables": {},
    }  # fmt: skip


def replayed(folder: Path, content: Path, properties: dict[str, str], size: int) -> Cell:
    """Return the processor seconds of the replay, in the calls."""
    whole = {
        **spec(properties),
        "files": [{"id": 0, "dataset": "tank/data", "size": size, "content": "data"}],
        "content": {"data": str(content)},
    }
    ops = [(code, at, STEP) for code in (READ, WRITE) for at in range(0, size, STEP)]
    found = replay(folder, whole, ops)["measure"]["processor"]
    return {"replay": found["seconds"]}


def process_s(pid: int) -> float:
    """Return the seconds that a process spent in user space; what its disk takes is in the kernel."""
    return psutil.Process(pid).cpu_times().user


def on_mount(folder: Path, content: Path, properties: dict[str, str], size: int) -> Cell:
    """Return the processor seconds of the same work on a mount: in the calls, and of the whole process."""
    pool, place, store = content.read_bytes(), folder / "place", folder / "store"
    r = random.Random(1)

    def piece(at: int) -> bytearray:
        chunk = (at // MIB) % (len(pool) // MIB) * MIB
        data = bytearray(pool[chunk : chunk + STEP])
        for page in range(0, STEP, 4096):  # as the engine does, so that overwrites differ
            data[page : page + 8] = r.randbytes(8)
        return data

    def start() -> Mount:
        return Mount.start(
            mount_program.check(), spec(properties), store, {"tank/data": place}, MountOptions("instant"),
            die_with_caller=True,
        )  # fmt: skip

    def read_and_write(name: str, new: list[bytearray]) -> None:
        with (place / name).open("r+b", buffering=0) as file:
            for at in range(0, size, STEP):
                file.seek(at)
                left = STEP
                while left > 0:
                    left -= len(file.read(left))
            for at, data in zip(range(0, size, STEP), new, strict=True):
                file.seek(at)
                file.write(data)
        mount.sync()

    mount = start()
    for name in ("file", "another"):
        with (place / name).open("wb", buffering=0) as file:
            for at in range(0, size, STEP):
                file.write(piece(at))
    mount.stop()
    mount = start()
    try:
        new = [piece(at) for at in range(0, size, STEP)]
        for _ in range(WARM_UPS):
            read_and_write("another", [piece(at) for at in range(0, size, STEP)])
        mount.reset()
        before, calls = process_s(mount.pid), mount.stats()["processor"]["seconds"]
        read_and_write("file", new)
        return {
            "calls": mount.stats()["processor"]["seconds"] - calls,
            "process": process_s(mount.pid) - before,
        }
    finally:
        mount.stop()


def cell(content: Path, properties: dict[str, str], size: int) -> Cell:
    """Do one cell in both places."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {
            **replayed(folder, content, properties, size),
            **on_mount(folder, content, properties, size),
        }


def middle(rows: list[Cell], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def table(cells: dict[str, list[Cell]], size: int) -> None:
    """Print the cells that are done, and their errors, as Markdown; then how many are within the goal."""
    per = 2 * size / MIB / 1e3  # MiB read and written, for ms
    heads = ("records", "compression", "replay", "mount, in the calls", "mount, process")
    print(f"| {' | '.join(heads)} | to zstd-3: replay | mount, in the calls |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    missed: dict[str, list[str]] = {"in the calls": [], "process": [], "ratio": []}
    done = dict.fromkeys(missed, 0)

    def error(kind: str, name: str, mine: float, theirs: float) -> str:
        value = mine / theirs - 1 if theirs else math.inf
        done[kind] += 1
        if abs(value) > GOAL:
            missed[kind].append(f"{name} {value:+.0%}")
        return f"{value:+.0%}"

    for records in SIZES:
        off, usual = cells[f"{records} off"], cells[f"{records} zstd-3"]

        def extra(rows: list[Cell], key: str, without: list[Cell] = off) -> float:
            return middle(rows, key) - middle(without, key)

        for compression in COMPRESSIONS:
            name = f"{records} {compression}"
            if not (rows := cells[name]):
                continue
            mine, calls = middle(rows, "replay"), middle(rows, "calls")
            line = f"| {records} | {compression} | {mine / per:.2f} | {calls / per:.2f} "
            line += f"({error('in the calls', name, mine, calls)}) |"
            if compression != "off" and off:
                here, there = extra(rows, "replay"), extra(rows, "process")
                line += f" {there / per:.2f}"
                line += f" ({error('process', name, here, there)}) |" if there >= LEAST_S else " |"
            else:
                line += " |"
            if usual and compression != "zstd-3":
                a, b = mine / middle(usual, "replay"), calls / middle(usual, "calls")
                line += f" {a:.2f} | {b:.2f} ({error('ratio', name, a, b)}) |"
            else:
                line += " | |"
            print(line)
    for kind, names in missed.items():
        print(f"\n{kind}: {done[kind] - len(names)} of {done[kind]} within {GOAL:.0%}; {'; '.join(names)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--content", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=16, help="MiB")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size = args.size * MIB
    cells: dict[str, list[Cell]] = {f"{s} {c}": [] for s in SIZES for c in COMPRESSIONS}
    if args.out is not None and args.out.is_file():
        cells |= json.loads(args.out.read_text())
    with tempfile.TemporaryDirectory() as name:
        content = args.content or pages(Path(name) / "pages", 8 * MIB)
        for number in range(args.rounds):
            todo = [key for key in cells if len(cells[key]) <= number]
            random.Random(number).shuffle(todo)
            for key in todo:
                records, compression = key.split()
                properties = {"recordsize": str(SIZES[records]), "compression": compression}
                cells[key].append(cell(content, properties, size))
                print(f"{number + 1} {key}: {cells[key][-1]}", file=sys.stderr, flush=True)
                if args.out is not None:
                    args.out.write_text(json.dumps(cells))
    table(cells, size)


if __name__ == "__main__":
    started.script(main)
