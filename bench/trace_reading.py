"""How long `ztune trace show` takes on a trace of ten million events, and the engine's export of it.

    .venv/bin/python bench/trace_reading.py [--events N] [--keep FOLDER]

The trace is made up (an OLTP-like mix over 40 data files and 4 WAL files, from a fixed seed). Prints one JSON
object: seconds of wall time, best of three, each in a process of its own, start of Python included. Goal for
showing ten million events: under 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ztune.trace.ops import export_ops
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

GIB = 1 << 30
DATA_FILES, WAL_FILES = 40, 4
BATCH = 1 << 20


def make(path: Path, events: int) -> None:
    """Write the synthetic trace: 60 % reads and 25 % writes of 8 KiB pages, 10 % WAL writes, 5 % syncs."""
    rng = np.random.default_rng(1)
    wal_end = 0
    with TraceWriter(path) as writer:
        for start in range(0, events, BATCH):
            n = min(BATCH, events - start)
            kind = rng.choice(4, n, p=[0.60, 0.25, 0.10, 0.05])
            rows = np.zeros(n, EVENT_DTYPE)
            # Slightly out of order, as recorders deliver.
            rows["t"] = (start + np.arange(n)) * 10_000 + rng.integers(0, 50_000, n)
            rows["dur"] = np.where(
                kind == 3, rng.integers(500_000, 9_000_000, n), rng.integers(1000, 90_000, n)
            )
            rows["pid"] = rows["tid"] = 1000 + rng.integers(0, 16, n)
            rows["op"] = np.array([Op.READ, Op.WRITE, Op.WRITE, Op.FDATASYNC])[kind]
            rows["file"] = np.minimum(rng.zipf(1.3, n) - 1, DATA_FILES - 1)
            rows["file2"] = -1
            rows["offset"] = (rng.beta(0.5, 3, n) * GIB).astype(np.int64) // 8192 * 8192
            rows["size"] = 8192
            wal = kind == 2
            sizes = rng.integers(1, 5, wal.sum()) * 8192
            ends = wal_end + np.cumsum(sizes)
            rows["size"][wal] = sizes
            rows["offset"][wal] = (ends - sizes) % (16 << 20)
            rows["file"][wal] = DATA_FILES + ((ends - sizes) >> 24) % WAL_FILES
            wal_end = int(ends[-1]) if len(ends) else wal_end
            sync = kind == 3
            rows["offset"][sync], rows["size"][sync] = -1, 0
            rows["file"][sync] = DATA_FILES + rng.integers(0, WAL_FILES, sync.sum())
            writer.add_rows(rows)
        files = [
            {"id": i, "path": f"/pg/base/5/{i}", "role": "data", "size_start": GIB} for i in range(DATA_FILES)
        ]
        files += [
            {"id": DATA_FILES + i, "path": f"/pg/pg_wal/{i:024X}", "role": "wal", "size_start": 16 << 20}
            for i in range(WAL_FILES)
        ]
        writer.finish(
            duration_ns=events * 10_000,
            recorder={"name": "synthetic", "detail": "bench/trace_reading.py"},
            files=files,
            page_size={"data": 8192},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="keep the trace in this folder (and use it if it is there)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        path = folder / f"bench-{args.events}.trace"
        result: dict[str, object] = {"events": args.events, "cpus": os.cpu_count()}
        if not path.exists():
            start = time.perf_counter()
            make(path, args.events)
            result["make_s"] = round(time.perf_counter() - start, 2)
        result["trace_bytes"] = sum(file.stat().st_size for file in path.iterdir())
        command = [
            sys.executable,
            "-c",
            "from ztune.cli.main import main; main()",
            "trace",
            "show",
            str(path),
        ]
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
        result["show_s"] = [round(one, 2) for one in times]
        result["show_best_s"] = round(min(times), 2)
        start = time.perf_counter()
        info = export_ops(Trace.open(path), Path(scratch) / "ops.bin")
        result["export_ops_s"] = round(time.perf_counter() - start, 2)
        result["ops"] = info.nops
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
