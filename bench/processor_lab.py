"""Processor time of compression in the kernel's OpenZFS: ratios, against bench/processor.py's.

    python bench/processor_lab.py [--against cells.json] [--rounds N] [--records 8K,128K] [--out FILE]

In a guest in user mode (`ztune lab build --user-mode`), whose kernel code runs on this host's processors as
it is, a file is read whole from a cold start, then written over whole, as bench/processor.py does on a mount.
Meanwhile perf (linux-perf) looks 1,000 times a second at what the guest's kernel does. Counted is what it
finds in the compressor's own functions: what the guest takes in all, less the same with compression off, is
of no use, since without compression it writes up to ten times as much. Each cell's ratio to zstd-3 of the
same recordsize is compared with what bench/processor.py --out kept of a replay and of a mount
(``--against``), there less the same with compression off. Medians of the rounds (default 3), which do every
cell once, in random order; what takes longer is done with fewer MiB.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import started
from engine_facts import MIB
from processor import SIZES, pages

from ztune import paths
from ztune.lab import Guest, image
from ztune.lab.uml import GuestDisk

MIBS = {
    "lz4": 256, "zstd-1": 128, "zstd-3": 128, "zstd-9": 64, "zstd-19": 4,
    "gzip-1": 64, "gzip-6": 32, "gzip-9": 16,
}  # fmt: skip
GOAL = 0.2
HERTZ = 1000
CELLS = 8  # of one guest: each page that it maps is a mapping of the host's, of which a process has so many
OWN = re.compile(
    # zstd and lz4, then the kernel's zlib
    r"^(zfs_|real_)?(ZSTD|zstd|HUF|FSE|HIST|LZ4|lz4|BIT|ERR)_|^zlib_|^(deflate|inflate)_|longest_match|^_?tr_|"
    r"^compress_block|^fill_window|^gen_(bitlen|codes)|^pqdownheap|^build_(bl_)?tree|^(send|scan)_|^bi_|"
    r"^z_(un)?compress|^(copy|init)_block|^flush_pending|^read_buf|gzip|adler"
)
READY = """
set -e
zfs create -o compression={compression} -o recordsize={records} -o atime=off -o mountpoint=/tmp/cell t/cell
for i in $(seq {times}); do cat /tmp/a; done | dd of=/tmp/cell/f bs=1M iflag=fullblock count={mib} status=none
zpool export t
zpool import -d /dev/disk/by-id t
sync
"""
WORK = """
set -e
dd if=/tmp/cell/f of=/dev/null bs=1M status=none
for i in $(seq {times}); do cat /tmp/b; done |
    dd of=/tmp/cell/f bs=1M iflag=fullblock count={mib} conv=notrunc status=none
zpool sync t
"""
_SAMPLE = re.compile(r"\s*[0-9a-f]+ (.*?) \((.*)\)\s*$")


def kernel_of(guest: Guest) -> int:
    """Return the process that the guest's kernel is."""
    return int(psutil.Process(guest.vm.process.pid).children()[0].pid)


def seconds(guest: Guest, folder: Path, records: str, compression: str, mib: int) -> float:
    """Return the seconds that one cell takes in the compressor's functions."""
    said = {"compression": compression, "records": SIZES[records], "mib": mib, "times": -(-mib // 32)}
    guest.run(["sh", "-c", READY.format(**said)], check=True, timeout=900)
    data = folder / "perf"
    words = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "-p", str(kernel_of(guest))]
    watching = started.begin([*words, "-o", str(data)])
    try:
        time.sleep(0.5)  # until it looks
        guest.run(["sh", "-c", WORK.format(**said)], check=True, timeout=3600)
        watching.send_signal(signal.SIGINT)
        watching.wait(60)
    finally:
        started.end(watching)
    words = ["perf", "script", "-i", str(data), "-F", "ip,sym,dso"]
    found = started.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    symbols = [match[1] for line in found if (match := _SAMPLE.match(line)) and match[2].endswith("vmlinuz")]
    guest.run(["zfs", "destroy", "t/cell"], check=True, timeout=300)
    return sum(1 for symbol in symbols if OWN.search(symbol) and "zio" not in symbol) / HERTZ


def changed(source: bytes) -> bytes:
    """Return ``source`` with the first bytes of each page drawn anew, as the engine does before a write."""
    out, r = bytearray(source), random.Random(1)
    for page in range(0, len(out), 4096):
        out[page : page + 8] = r.randbytes(8)
    return bytes(out)


@contextmanager
def ready(folder: Path) -> Iterator[Guest]:
    """Yield a guest with an empty pool and what is to be written: /tmp/a, and /tmp/b over it."""
    with (folder / "disk").open("wb") as out:
        out.truncate(4 << 30)
    disk = GuestDisk("cells", folder / "disk")
    with Guest.in_user_mode(image.find(user_mode=True), 2048, [disk]) as guest:
        for file in ("a", "b"):
            guest.run(["cp", f"/host{folder / file}", f"/tmp/{file}"], check=True, timeout=600)
        make = ["zpool", "create", "-f", "-O", "mountpoint=none", "t", "/dev/disk/by-id/ztune-cells"]
        guest.run(make, check=True, timeout=300)
        yield guest


def measure(cells: dict[str, list[float]], rounds: int, kept: Path | None) -> None:
    """Do what is missing of ``cells``: "RECORDS COMPRESSION MIB"."""
    with tempfile.TemporaryDirectory(dir=paths.scratch()) as name:
        folder = Path(name)
        content = pages(folder / "pages", 8 * MIB).read_bytes() * 4
        for file, data in (("a", content), ("b", changed(content))):
            (folder / file).write_bytes(data)
        for number in range(rounds):
            todo = [key for key in cells if len(cells[key]) <= number]
            random.Random(number).shuffle(todo)
            for some in (todo[at : at + CELLS] for at in range(0, len(todo), CELLS)):
                with ready(folder) as guest:
                    for key in some:
                        records, compression, mib = key.split()
                        cells[key].append(seconds(guest, folder, records, compression, int(mib)))
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
            if found := cells.get(f"{records} {compression} {mib}"):
                # Read and written: two of each MiB.
                own[compression] = statistics.median(found) / mib / 2 * 1e3
        for compression, each in own.items():
            line = f"| {records} | {compression} | {each:.2f} |"
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
    cells: dict[str, list[float]] = {
        f"{records} {compression} {mib}": []
        for records in given.records.split(",")
        for compression, mib in MIBS.items()
    }
    if given.out is not None and given.out.is_file():
        cells |= json.loads(given.out.read_text())
    if given.rounds and shutil.which("perf") is None:
        raise SystemExit("processor_lab: there is no perf here; install linux-perf")
    if given.rounds:
        measure(cells, given.rounds, given.out)
    table(cells, json.loads(given.against.read_text()) if given.against else {})


if __name__ == "__main__":
    started.script(main)
