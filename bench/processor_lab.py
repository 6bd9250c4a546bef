"""Processor time of compression in the kernel's OpenZFS, in the lab: ratios, against bench/processor.py's.

    python bench/processor_lab.py [--against cells.json] [--rounds N] [--records 8K,128K] [--out FILE]

In a guest a file is read whole from a cold start, then written over whole, as bench/processor.py does on a
mount. What QEMU's process takes of this host's processors meanwhile is counted, less the same with
compression off: under emulation the guest's own count would be of a processor that nobody has. So are the
times; each cell's ratio to zstd-3 of the same recordsize is compared, with what bench/processor.py --out kept
of a replay and of a mount (``--against``). Medians of the rounds (default 3), which do every cell once, in
random order. What takes longer is done with fewer MiB, and with compression off as many.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from engine_facts import MIB
from processor import SIZES, pages

from ztune import paths
from ztune.lab import Guest

MIBS = {
    "lz4": 32, "zstd-1": 32, "zstd-3": 32, "zstd-9": 8, "zstd-19": 2, "gzip-1": 32, "gzip-6": 8, "gzip-9": 8
}  # fmt: skip
GOAL = 0.2
READY = """
set -e
zfs create -o compression={compression} -o recordsize={records} -o atime=off -o mountpoint=/tmp/cell t/cell
dd if=/tmp/a of=/tmp/cell/f bs=1M count={mib} status=none
zpool export t
zpool import -d {disk} t
sync
"""
WORK = """
set -e
dd if=/tmp/cell/f of=/dev/null bs=1M status=none
dd if=/tmp/b of=/tmp/cell/f bs=1M count={mib} conv=notrunc status=none
zpool sync t
"""


def seconds(guest: Guest, disk: str, records: str, compression: str, mib: int) -> float:
    """Return the processor seconds of QEMU for one cell."""
    process = psutil.Process(guest.qemu.process.pid)

    def taken() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    said = {"compression": compression, "records": SIZES[records], "mib": mib, "disk": disk}
    guest.run(["sh", "-c", READY.format(**said)], check=True, timeout=900)
    before = taken()
    guest.run(["sh", "-c", WORK.format(**said)], check=True, timeout=3600)
    found = taken() - before
    guest.run(["zfs", "destroy", "t/cell"], check=True, timeout=300)
    return found


def changed(source: bytes) -> bytes:
    """Return ``source`` with the first bytes of each page drawn anew, as the engine does before a write."""
    out, r = bytearray(source), random.Random(1)
    for page in range(0, len(out), 4096):
        out[page : page + 8] = r.randbytes(8)
    return bytes(out)


def measure(cells: dict[str, list[float]], rounds: int, kept: Path | None) -> None:
    """Do what is missing of ``cells``: "RECORDS COMPRESSION MIB"."""
    with tempfile.TemporaryDirectory(dir=paths.scratch()) as name, Guest.resume() as guest:
        folder = Path(name)
        content = pages(folder / "pages", 8 * MIB).read_bytes() * 4
        for file, data in (("a", content), ("b", changed(content))):
            (folder / file).write_bytes(data)
            guest.run(["cp", f"/host{folder / file}", f"/tmp/{file}"], check=True, timeout=600)
        with (folder / "disk").open("wb") as out:
            out.truncate(4 << 30)
        disk = guest.add_disk(folder / "disk", "cells", unsafe=True)
        guest.run(["zpool", "create", "-O", "mountpoint=none", "t", disk], check=True, timeout=300)
        for number in range(rounds):
            todo = [key for key in cells if len(cells[key]) <= number]
            random.Random(number).shuffle(todo)
            for key in todo:
                records, compression, mib = key.split()
                cells[key].append(seconds(guest, "/dev/disk/by-id", records, compression, int(mib)))
                print(f"{number + 1} {key}: {cells[key][-1]:.2f} s", file=sys.stderr, flush=True)
                if kept is not None:
                    kept.write_text(json.dumps(cells))


def table(cells: dict[str, list[float]], against: dict[str, list[dict[str, Any]]]) -> None:
    """Print each cell's ratio to zstd-3, in the kernel and elsewhere, as Markdown."""
    print("| records | compression | kernel, ms per MiB | to zstd-3: kernel | replay | mount, in the calls |")
    print("| --- | --- | --- | --- | --- | --- |")
    errors: dict[str, list[tuple[float, str]]] = {"replay": [], "calls": []}
    for records in SIZES:
        own: dict[str, float] = {}
        for compression, mib in MIBS.items():
            more, off = (cells.get(f"{records} {one} {mib}") for one in (compression, "off"))
            if more and off:
                # Read and written: two of each MiB.
                own[compression] = (statistics.median(more) - statistics.median(off)) / mib / 2 * 1e3
        for compression, each in own.items():
            line = f"| {records} | {compression} | {each:.1f} |"
            if "zstd-3" in own and compression != "zstd-3":
                ratio = each / own["zstd-3"]
                line += f" {ratio:.2f} |"
                rows = [against.get(f"{records} {one}", []) for one in (compression, "zstd-3", "off")]
                for kind in errors:
                    if not all(rows):
                        line += " |"
                        continue
                    a, b, none = (statistics.median(one[kind] for one in found) for found in rows)
                    theirs = (a - none) / (b - none)
                    errors[kind].append((theirs / ratio - 1, f"{records} {compression}"))
                    line += f" {theirs:.2f} ({theirs / ratio - 1:+.0%}) |"
            else:
                line += " | | |"
            print(line)
    for kind, all_of in errors.items():
        if all_of:
            missed = "; ".join(f"{name} {error:+.0%}" for error, name in all_of if abs(error) > GOAL)
            within = sum(abs(error) <= GOAL for error, _ in all_of)
            print(f"\n{kind}: {within} of {len(all_of)} within {GOAL:.0%}; {missed}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", default=",".join(SIZES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cells: dict[str, list[float]] = {}
    for records in given.records.split(","):
        for compression, mib in MIBS.items():
            cells[f"{records} {compression} {mib}"] = []
            cells[f"{records} off {mib}"] = []
    if given.out is not None and given.out.is_file():
        cells |= json.loads(given.out.read_text())
    if given.rounds:
        measure(cells, given.rounds, given.out)
    table(cells, json.loads(given.against.read_text()) if given.against else {})


if __name__ == "__main__":
    main()
