"""Known numbers of OpenZFS in user space, measured again with the engine of this tree.

    python3 bench/engine_facts.py            all tables as Markdown on stdout, progress on stderr
    python3 bench/engine_facts.py --quick    a quarter of the operations

The tables in docs/engine.md come from here. Needs a built engine (`make -C engine`), 2 GB of memory and some
minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import started

ENGINE = Path(__file__).resolve().parents[1] / "engine" / "build" / "ztune-engine"
MIB = 1 << 20
WRITE, FSYNC = 2, 3

PROFILES = {
    # 6 ms of positioning and 8.3 ms for a flush: the disk of the feasibility study, nearly.
    "hdd": {
        "kind": "hdd",
        "rpm": 7200,
        "seek_track_ms": 1.0,
        "seek_avg_ms": 6.0,
        "seek_full_ms": 12.0,
        "read_mb_s": 180,
        "write_mb_s": 180,
        "flush_ms": 0.0,
        "overhead_us": 50,
    },
    "nvme": {
        "kind": "flash",
        "channels": 16,
        "read_us": 80,
        "write_us": 20,
        "read_mb_s": 3000,
        "write_mb_s": 2000,
        "flush_us": 50,
        "overhead_us": 5,
    },
}

Op = tuple[int, int, int]  # code, offset, size


def replay(work: Path, spec: dict[str, Any], ops: list[Op], step_ns: int = 100_000) -> dict[str, Any]:
    record = struct.Struct("<qqqqiiHBBIIIII")
    body = b"".join(
        record.pack(i * step_ns, 1000, off, size, 0, -1, 0, code, 0, 0, 0, 0, 0, 0)
        for i, (code, off, size) in enumerate(ops)
    )
    (work / "ops.bin").write_bytes(struct.pack("<8sIIQII", b"ZTOPS\0\0\0", 3, 64, len(ops), 1, 1) + body)
    (work / "spec.json").write_text(json.dumps(spec))
    began = time.monotonic()
    done = started.run(
        [str(ENGINE), "replay", "--spec", str(work / "spec.json"), "--ops", str(work / "ops.bin")],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    out: dict[str, Any] = json.loads(done.stdout)
    print(f"  {time.monotonic() - began:.1f} s", file=sys.stderr)
    return out


def spec(
    pool: Path, size: int, properties: dict[str, str], *, ashift: int = 12, slog: bool = False
) -> dict[str, Any]:
    vdevs = [{"class": "data", "kind": "stripe", "disks": [{"profile": "hdd", "size": 16 << 30}]}]
    if slog:
        vdevs.append({"class": "log", "kind": "stripe", "disks": [{"profile": "nvme", "size": 4 << 30}]})
    return {
        "version": 1,
        "seed": 1,
        "arc_max": 64 * MIB,
        "pools": [{"name": "tank", "ashift": ashift, "vdevs": vdevs}],
        "datasets": [{"name": "tank/data", "properties": properties}],
        "profiles": PROFILES,
        "files": [{"id": 0, "dataset": "tank/data", "size": size, "content": "data"}],
        "content": {"data": str(pool)},
        "tunables": {"zfs_txg_timeout": 3600, "zfs_dirty_data_max": 160 * MIB},
    }


def overwrite_table(work: Path, noise: Path, n: int) -> None:
    print(f"{n:,} random 8 KB overwrites over 512 MB, cold, ARC 64 MB, ashift 12,")
    print("a transaction group every 32 MB of dirty data at most:\n")
    print("| recordsize | reads | MB read | writes | MB written | write amplification | overwrites/s |")
    print("|---|---|---|---|---|---|---|")
    r = random.Random(5)
    ops = [(WRITE, r.randrange(512 * MIB // 8192) * 8192, 8192) for _ in range(n)]
    for rs in ("4K", "8K", "16K", "128K"):
        print(f"overwrites, recordsize {rs}", file=sys.stderr)
        m = replay(work, spec(noise, 512 * MIB, {"recordsize": rs, "compression": "off"}), ops)["measure"]
        p = m["physical"]
        print(
            f"| {rs} | {p['reads']:,} | {p['read_bytes'] / 1e6:,.0f} "
            f"| {p['writes']:,} | {p['write_bytes'] / 1e6:,.0f} "
            f"| {m['write_amplification']:.2f} | {n / m['wall_s']:,.0f} |",
            flush=True,
        )


def commit_table(work: Path, noise: Path, n: int) -> None:
    print(f"\n{n:,} × (8 KB write + fsync) over 256 MB, recordsize 8K:\n")
    head = ["logbias", "log device", "log blocks and blocks in place, main", "writes, log device", "flushes"]
    print("| " + " | ".join([*head, "MB written", "modelled fsyncs/s", "replayed/s"]) + " |")
    print("|---|---|---|---|---|---|---|---|")
    r = random.Random(6)
    ops: list[Op] = []
    for _ in range(n):
        ops += [(WRITE, r.randrange(256 * MIB // 8192) * 8192, 8192), (FSYNC, -1, -1)]
    for bias in ("latency", "throughput"):
        for slog in (False, True):
            print(f"commits, logbias {bias}, slog {slog}", file=sys.stderr)
            s = spec(noise, 256 * MIB, {"recordsize": "8K", "compression": "off", "logbias": bias}, slog=slog)
            m = replay(work, s, ops)["measure"]
            # Log blocks on the main disk, and blocks that a log record only points to: written in place.
            main = m["zil"]["itx_indirect"] + m["zil"]["writes"] - m["zil"]["slog_writes"]
            rate = 1000 / max(m["model"]["sync_latency_ms"]["mean"], 1e-9)
            print(
                f"| {bias} | {'yes' if slog else 'no'} | {main:,} | {m['zil']['slog_writes']:,} "
                f"| {m['physical']['flushes']:,} | {m['physical']['write_bytes'] / 1e6:,.0f} | {rate:,.0f} "
                f"| {n / m['wall_s']:,.0f} |",
                flush=True,
            )


def space_table(work: Path, half: Path) -> None:
    print("\n256 MB that compress to half, recordsize 16K:\n")
    print("| ashift | compression | MB allocated | compression ratio | load MB/s |")
    print("|---|---|---|---|---|")
    for ashift, comp in (
        (9, "off"),
        (9, "lz4"),
        (9, "gzip"),
        (9, "zstd"),
        (9, "zle"),
        (12, "lz4"),
        (13, "lz4"),
    ):
        print(f"space, ashift {ashift}, {comp}", file=sys.stderr)
        properties = {"recordsize": "16K", "compression": comp}
        out = replay(work, spec(half, 256_000_000 // 16384 * 16384, properties, ashift=ashift), [])
        sp = out["measure"]["space"]
        print(
            f"| {ashift} | {comp} | {sp['allocated'] / 1e6:,.0f} | {sp['compression_ratio']:.2f} "
            f"| {out['load']['write_bytes'] / 1e6 / out['load']['wall_s']:,.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the operations")
    quick = parser.parse_args().quick
    if not ENGINE.exists():
        sys.exit("The engine is not built: run `make -C engine`.")
    with tempfile.TemporaryDirectory(prefix="ztune-bench-") as tmp:
        work = Path(tmp)
        r = random.Random(3)
        noise, half = work / "noise.bin", work / "half.bin"
        noise.write_bytes(r.randbytes(16 * MIB))
        # Half of each 16 KB record is noise, the rest zeros.
        half.write_bytes(b"".join(r.randbytes(8192) + bytes(8192) for _ in range(1024)))
        overwrite_table(work, noise, 5000 if quick else 20000)
        commit_table(work, noise, 1250 if quick else 5000)
        space_table(work, half)


if __name__ == "__main__":
    started.script(main)
