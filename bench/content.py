"""How near a replay's content comes to what was written: sectors of 4 KiB that records take, compressed.

    python bench/content.py mariadb-oltp,size=128M,rate=8,seconds=30,warmup=0 sqlite,size=128M,seconds=15 …

Records each workload (`ztune tune`) and keeps a copy of its files as they are when the recording measures
them. Of each role, record size and algorithm some thousand records are drawn from all that were written, each
once in five seconds, as a transaction group has them, and compressed. Against these stand the records of a
replay's content: of samples that were kept, and made like what was measured, as where no samples are. The
seed is fixed; a workload's own writes are not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import started

from ztune.cli.main import ztune
from ztune.observe.allocation import HEADER, Allocation
from ztune.store.db import Store
from ztune.trace import record
from ztune.trace.compressibility import compressor, sample_files
from ztune.trace.content import content_pools
from ztune.trace.inputs import content_name
from ztune.trace.manifest import MANIFEST
from ztune.trace.reader import Trace
from ztune.trace.schema import TXG_NS, Op

SIZES = (8192, 16384, 32768, 131072)
ALGORITHMS = ("lz4", "zstd-3")
DRAWN = 24 << 20  # bytes of records that are compressed of each kind, but at least ...
LEAST = 200


def mean(records: list[bytes], size: int, algorithm: str) -> float:
    """Return the bytes that OpenZFS allocates for each byte of records of ``size``, none for zeros."""
    zeros, compress, header = bytes(size), compressor(algorithm), HEADER[algorithm.partition("-")[0]]
    packed = (0 if one == zeros else len(compress(one)) + header for one in records)
    return statistics.fmean(Allocation().stored(size, one) for one in packed) / size


def written(trace: Trace, role: str, size: int, copies: Mapping[str, Path]) -> tuple[int, list[bytes]]:
    """Return how often records of files of a role were written, each once in a group, and some of them."""
    files = trace.manifest.files
    mine = np.array([f.role == role and f.path in copies for f in files] + [False])
    known: set[tuple[int, int, int]] = set()
    for part in trace.parts("t", "op", "file", "offset", "size"):
        chosen = (part["op"] == Op.WRITE) & mine[part["file"]] & (part["size"] > 0) & (part["offset"] >= 0)
        for t, file, offset, length in zip(
            *(part[name][chosen].tolist() for name in ("t", "file", "offset", "size")), strict=True
        ):
            blocks = range(offset // size, (offset + length - 1) // size + 1)
            known.update((file, block, t // TXG_NS) for block in blocks)
    listed = sorted(known)
    drawn = np.random.default_rng(1).permutation(len(listed))[: DRAWN // size + LEAST]
    found = []
    for file, block, _ in (listed[n] for n in drawn):
        with copies[files[file].path].open("rb") as copy:
            copy.seek(block * size)
            found.append(copy.read(size))
    return len(listed), [one for one in found if len(one) == size]


def compare(job: str, folder: Path, errors: Mapping[str, list[float]]) -> None:
    """Record a workload, print a row for each role, record size and algorithm, and add to ``errors``."""
    workload, *params = job.split(",")
    copies: dict[str, Path] = {}

    def copying(files: Mapping[str, str], **more: Any) -> Any:
        for n, path in enumerate(files):
            if Path(path).is_file():
                started.run(["cp", "--sparse=always", path, folder / str(n)], check=True)
                copies[path] = folder / str(n)
        return sample_files(files, **more)

    vars(record)["sample_files"] = copying
    words = [word for one in params for word in ("-p", one)]
    ztune.main(
        [
            *("tune", workload, "--budget", "1", "--settings", "0", "--no-elsewhere"),
            *("--out", str(folder / "out"), *words),
        ],
        standalone_mode=False,
    )
    vars(record)["sample_files"] = sample_files
    with Store.open() as store:
        run = store.run(json.loads((folder / "out" / "run.json").read_text())["run"])
    trace = Trace.open(Path(str(run.trace_path)))
    shutil.copytree(trace.path, folder / "bare.trace")
    manifest = json.loads((folder / "bare.trace" / MANIFEST).read_text())
    (folder / "bare.trace" / MANIFEST).write_text(json.dumps({**manifest, "samples": []}))
    kept = content_pools(trace, folder / "kept")
    made = content_pools(Trace.open(folder / "bare.trace"), folder / "made")
    print(f"\n| {workload} | records | | written | bytes on disk | kept | made |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for role in dict.fromkeys(f.role for f in trace.manifest.files if f.role):
        for size in SIZES:
            count, real = written(trace, role, size, copies)
            for algorithm in ALGORITHMS:
                true = mean(real, size, algorithm) if real else 0.0
                if not true:
                    continue
                cells = []
                for name, pools in (("kept", kept), ("made", made)):
                    content = pools[content_name(role, size)].read_bytes()
                    records = [content[at : at + size] for at in range(0, len(content), size)]
                    errors[name].append(mean(records, size, algorithm) / true - 1)
                    cells.append(f"{errors[name][-1]:+.1%}")
                print(
                    f"| {role} | {size >> 10}K | {algorithm} | {count} | {true:.3f} | {' | '.join(cells)} |",
                    flush=True,
                )


def main() -> None:
    """Compare each workload."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", metavar="WORKLOAD[,NAME=VALUE …]")
    errors: dict[str, list[float]] = {"kept": [], "made": []}
    for job in parser.parse_args().workloads:
        with tempfile.TemporaryDirectory(
            prefix="ztune-content-", dir=os.environ.get("TMPDIR", "/var/tmp")
        ) as name:
            compare(job, Path(name), errors)
    for name, found in errors.items():
        if found:
            middle = statistics.median(map(abs, found))
            print(
                f"{name}: {len(found)} figures, median {middle:.1%}, {min(found):+.1%} to {max(found):+.1%}"
            )


if __name__ == "__main__":
    started.script(main)
