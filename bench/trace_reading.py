"""What reading ten million events takes: `ztune trace show`, `check` and `roles`, and what screening reads.

    .venv/bin/python bench/trace_reading.py [--events N] [--only NAME …] [--runs N] [--keep FOLDER]

The trace is made up (an OLTP-like mix over 40 data files and 4 WAL files, from a fixed seed). Prints one JSON
object: for each, seconds of wall and of processor time, best of three, and the most memory, each in a process
of its own, start of Python included. `enough` is what a study is cut down by, `witness` what a run keeps of
acknowledgments, `export_ops` the engine's operations. Goals: 2 s for ten million events, 2 GiB for a billion.
To make the trace takes 25 bytes an event on disk, to keep it 10.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import started

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


_COMMAND = "import sys; from ztune.cli.main import main; "
_OPEN = "from ztune.trace.reader import Trace; "


def run(code: str) -> tuple[float, float, int]:
    """Run ``code`` in a Python of its own; return wall and processor time in s, and peak memory in MiB."""
    start = time.perf_counter()
    child = started.begin([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    try:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        started.end(child)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"{code}: status {status}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="keep the trace in this folder (and use it if it is there)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="show, check, roles, …")
    parser.add_argument("--runs", type=int, default=3, help="of each, of which the best counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        path = folder / f"bench-{args.events}.trace"
        result: dict[str, object] = {"events": args.events, "cpus": os.cpu_count()}
        if not path.exists():
            start = time.perf_counter()
            # On its own: what it took would count as its children's, too.
            maker = multiprocessing.get_context("spawn").Process(
                target=make, args=(path, args.events), daemon=True
            )
            maker.start()
            maker.join()
            result["make_s"] = round(time.perf_counter() - start, 2)
        result["trace_bytes"] = sum(file.stat().st_size for file in path.iterdir())
        ops = Path(scratch) / "ops.bin"
        asked = {
            "show": f"{_COMMAND}sys.argv = ['ztune', 'trace', 'show', {str(path)!r}]; main()",
            "check": f"{_COMMAND}sys.argv = ['ztune', 'trace', 'check', {str(path)!r}]; main()",
            "roles": f"{_COMMAND}sys.argv = ['ztune', 'trace', 'roles', {str(path)!r}]; main()",
            "enough": f"{_OPEN}from ztune.trace.enough import recorded; recorded(Trace.open({str(path)!r}))",
            "witness": f"{_OPEN}from ztune.trace.witness import witness; witness(Trace.open({str(path)!r}))",
            "export_ops": f"{_OPEN}from ztune.trace.ops import export_ops; "
            f"export_ops(Trace.open({str(path)!r}), {str(ops)!r})",
        }
        for name, code in asked.items():
            if args.only and name not in args.only:
                continue
            found = [run(code) for _ in range(args.runs)]
            result[name] = {
                "wall_s": round(min(one[0] for one in found), 2),
                "cpu_s": round(min(one[1] for one in found), 2),
                "peak_mib": max(one[2] for one in found),
            }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    started.script(main)
