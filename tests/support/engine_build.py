"""Makes the engine's input for tests, from the documented formats and nothing of ztune's own exporter."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENGINE = Path(os.environ.get("ZTUNE_TESTED_ENGINE") or ROOT / "engine" / "build" / "ztune-engine")
"""The engine that is tested; another one, such as that of another OpenZFS, where the variable names it."""
PLAIN = ROOT / "engine" / "build" / "plain-check"

MIB = 1 << 20
READ, WRITE, FSYNC, FDATASYNC, SYNC_RANGE, TRUNCATE, FALLOCATE = 1, 2, 3, 4, 5, 6, 7
CREATE, UNLINK, RENAME, COPY, MMAP, MSYNC, SYNC, WARM, READ_AHEAD = 8, 9, 10, 11, 12, 13, 14, 15, 16
O_SYNC, O_DSYNC, KEEP_SIZE, PUNCH, ZERO = 1, 2, 16, 32, 64

RECORD = struct.Struct("<qqqqiiHBBIIIII")
HEADER = struct.Struct("<8sIIQII")

PROFILES: dict[str, dict[str, Any]] = {
    "hdd": {
        "kind": "hdd",
        "rotational": True,
        "rpm": 7200,
        "seek_track_ms": 1.0,
        "seek_avg_ms": 8.5,
        "seek_full_ms": 16.0,
        "read_mb_s": 180,
        "write_mb_s": 170,
        "flush_ms": 1.0,
        "overhead_us": 50,
    },
    "nvme": {
        "kind": "flash",
        "rotational": False,
        "channels": 32,
        "read_us": 80,
        "write_us": 20,
        "read_mb_s": 3000,
        "write_mb_s": 2000,
        "flush_us": 50,
        "overhead_us": 5,
    },
}


@dataclass
class Ops:
    """An ops file in the making. Times advance by `step` ns per operation."""

    step: int = 1_000_000
    dur: int = 10_000
    threads: int = 1
    records: list[bytes] = field(default_factory=list)
    files: int = 1
    t: int = 0

    def add(
        self,
        op: int,
        file: int = 0,
        offset: int = -1,
        size: int = -1,
        *,
        file2: int = -1,
        thread: int = 0,
        flags: int = 0,
        via: int = 0,
        blank: int = 0,
        since_sync: int = 0,
        waited: int = 0,
        arc: int = 0,
        dur: int | None = None,
        step: int | None = None,
    ) -> None:
        self.files = max(self.files, file + 1, file2 + 1)
        self.threads = max(self.threads, thread + 1)
        d = self.dur if dur is None else dur
        fields = (
            self.t,
            d,
            offset,
            size,
            file,
            file2,
            thread,
            op,
            via,
            flags,
            blank,
            since_sync,
            waited,
            arc,
        )
        self.records.append(RECORD.pack(*fields))
        self.t += self.step if step is None else step

    def bytes(self) -> bytes:
        head = HEADER.pack(b"ZTOPS\0\0\0", 3, 64, len(self.records), self.files, self.threads)
        return head + b"".join(self.records)


def content(path: Path, kind: str = "noise", mib: int = 8, seed: int = 3) -> Path:
    """A content pool: "noise" does not compress; "half" halves, at any record size from 4 KiB on."""
    r = random.Random(seed)
    if kind == "noise":
        path.write_bytes(r.randbytes(mib * MIB))
    else:
        path.write_bytes(b"".join(r.randbytes(2048) + bytes(2048) for _ in range(mib * 256)))
    return path


def spec(
    pool: Path,
    *,
    size: int | list[int] = 8 * MIB,
    properties: dict[str, str] | None = None,
    vdevs: list[dict[str, Any]] | None = None,
    ashift: int = 12,
    arc: int = 64 * MIB,
    tunables: dict[str, int] | None = None,
    disk: int = 4 << 30,
    profile: str = "nvme",
    **more: Any,
) -> dict[str, Any]:
    """A spec with one pool and one dataset; `more` overrides top-level keys."""
    sizes = [size] if isinstance(size, int) else size
    out: dict[str, Any] = {
        "version": 1,
        "seed": 1,
        "arc_max": arc,
        "pools": [
            {
                "name": "tank",
                "ashift": ashift,
                "vdevs": vdevs
                or [{"class": "data", "kind": "stripe", "disks": [{"profile": profile, "size": disk}]}],
            }
        ],
        "datasets": [{"name": "tank/data", "properties": {"compression": "off", **(properties or {})}}],
        "profiles": PROFILES,
        "files": [
            {"id": i, "dataset": "tank/data", "size": s, "content": "data"} for i, s in enumerate(sizes)
        ],
        "content": {"data": str(pool)},
        "tunables": tunables or {},
        "backing": "memory",
    }
    out.update(more)
    return out


def group(cls: str, kind: str, disks: int, profile: str = "nvme", size: int = 4 << 30) -> dict[str, Any]:
    return {"class": cls, "kind": kind, "disks": [{"profile": profile, "size": size}] * disks}


def run(
    tmp: Path, spec_: dict[str, Any], ops: Ops | bytes, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    (tmp / "spec.json").write_text(json.dumps(spec_))
    (tmp / "ops.bin").write_bytes(ops if isinstance(ops, bytes) else ops.bytes())
    return subprocess.run(
        [str(ENGINE), "replay", "--spec", str(tmp / "spec.json"), "--ops", str(tmp / "ops.bin")],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "LC_ALL": "C"},
    )


def replay(tmp: Path, spec_: dict[str, Any], ops: Ops) -> dict[str, Any]:
    done = run(tmp, spec_, ops)
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def modelled(measure: dict[str, Any]) -> dict[str, Any]:
    """All of a measure but what the engine itself took: that is this machine's, the rest repeats exactly."""
    processor = measure["processor"]
    calls = [{**call, "seconds": None} for call in processor["calls"]]
    return {**measure, "wall_s": None, "cpu_s": None, "processor": [processor["left_out"], calls]}


def overwrites(n: int, size: int, over: int, *, step: int = 1_000_000, seed: int = 5) -> Ops:
    """Random aligned overwrites of `size` bytes over the first `over` bytes of file 0."""
    r = random.Random(seed)
    ops = Ops(step=step)
    for _ in range(n):
        ops.add(WRITE, offset=r.randrange(over // size) * size, size=size)
    return ops


def check_sums(out: dict[str, Any]) -> None:
    """Every way of adding up gives the same, and OpenZFS's own counters agree."""
    m = out["measure"]
    for key in ("reads", "read_bytes", "writes", "write_bytes"):
        total = m["physical"][key]
        assert total == sum(v[key] for v in m["by_vdev"])
        assert total == sum(v["stat_" + key] for v in m["by_vdev"]), key
        assert total == sum(c[key] for c in m["by_cause"].values()), key
    assert m["physical"]["flushes"] == sum(v["flushes"] for v in m["by_vdev"])
    assert m["model"]["modelled_s"] >= m["model"]["busy_s_max"] >= 0
    # A sync of everything is no role's, and no dataset's.
    syncs = [role["sync_latency_ms"] for role in m["model"]["by_role"]]
    of_files = [d["sync_latency_ms"] for d in m["model"]["by_dataset"]]
    assert sum(s["count"] for s in syncs) == sum(s["count"] for s in of_files)
    waits = [sum(s["count"] * s["mean"] for s in one) for one in (syncs, of_files)]
    assert math.isclose(*waits, rel_tol=1e-6, abs_tol=1e-9)
    for kind in ("sync_latency_ms", "read_latency_ms", "write_latency_ms"):
        both, each = m["model"][kind], [d[kind] for d in m["model"]["by_dataset"]]
        count = sum(one["count"] for one in each)
        assert count == both["count"] or (kind == "sync_latency_ms" and count < both["count"]), kind
        if count == both["count"]:
            waited = sum(one["count"] * one["mean"] for one in each)
            assert math.isclose(waited, both["count"] * both["mean"], rel_tol=1e-6, abs_tol=1e-9), kind
