"""Does `ztune disk` get a known profile back? Serves a shaped disk, measures it, compares every key.

    python bench/disk_profile_back.py [--profile NAME]… [--seconds 20]

The disks are served more slowly, and the times divided again: this machine's own work on a request is not
the disk's. Exit 1 if a key is off by more than it may be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import started

from ztune import native
from ztune.disk import fio, server
from ztune.disk.fio import Figures, FioJob
from ztune.disk.measure import measure
from ztune.errors import MissingError
from ztune.study import profiles

SIZE = 256 << 30
SLOWER = {"hdd": 5.0, "flash": 50.0}
# The seek curve hangs on two differences; a seek of one track is a tenth of what it is measured in.
ALLOWED = {
    "seek_track_ms": 0.35,
    "seek_full_ms": 0.15,
    "seek_avg_ms": 0.07,
    "overhead_us": 0.5,
    "flush_ms": 1.0,
    "channels": 0.13,
}
USUAL = 0.05


def real(figures: Figures, slower: float) -> Figures:
    flush = figures.flush_ms / slower if figures.flush_ms is not None else None
    return replace(
        figures,
        iops=figures.iops * slower,
        mb_s=figures.mb_s * slower,
        latency_ms=figures.latency_ms / slower,
        p5_ms=figures.p5_ms / slower,
        p95_ms=figures.p95_ms / slower,
        flush_ms=flush,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--profile", action="append", help="default hdd-7200 and ssd-sata")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    try:
        fio.program(), native.DISK.find()
    except MissingError as error:
        print(f"skipped: {error}")
        return 0
    off = 0
    for name in args.profile or ["hdd-7200", "ssd-sata"]:
        known = profiles.find(name)
        slower = SLOWER[known.kind]
        with tempfile.TemporaryDirectory(prefix="ztune-") as folder:
            place = Path(folder)
            with server.start(known, SIZE, place / "b", place / "s", dilation=slower) as disk:

                def run(job: FioJob, uri: str = disk.uri, slower: float = slower) -> Figures:
                    return real(fio.run(uri, job), slower)

                found = measure(
                    run,
                    known.kind,
                    SIZE,
                    "back",
                    "bench",
                    seconds=args.seconds,
                    write=True,
                    progress=lambda i, n, text: print(f"[{i}/{n}] {text}", file=sys.stderr, flush=True),
                )
                late = disk.stats()["reply_late_us"] * slower
        print(f"{name:12} {'key':14} {'known':>10} {'measured':>10} {'off by':>8}   late {late:.0f} µs")
        for key, value in known.model_dump().items():
            if not isinstance(value, float | int) or isinstance(value, bool) or key in ("size", "cache_mb"):
                continue
            got = getattr(found.profile, key)
            by = got / value - 1 if value else 0.0
            bad = abs(by) > ALLOWED.get(key, USUAL)
            off += bad
            print(f"{'':12} {key:14} {value:10g} {got:10g} {by:+8.1%}{'   OFF' if bad else ''}")
        for note in found.notes:
            print(f"{'':12} note: {note}")
    return 1 if off else 0


if __name__ == "__main__":
    started.script(main)
