"""Small traces made without recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ztune.trace.manifest import RecorderInfo, Sample, TraceFile, WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
"""A stand-in for the engine that replays them."""


def make_trace(
    path: Path,
    roles: tuple[str, ...] = ("data", "wal"),
    size: int = 4 << 20,
    writes: int = 120,
    step_ns: int = 10**7,
    workload: WorkloadInfo | None = None,
) -> Trace:
    """One file in a directory for each role; 8 KiB writes to the first, each followed by one to the last and
    its fsync.
    """
    rng = np.random.default_rng(7)
    files = [
        TraceFile(id=i, path=f"/db/{role}/1", role=role, size_start=size, size_end=size)  # type: ignore[arg-type]
        for i, role in enumerate(roles)
    ]
    rows = []
    tail = 0
    for i in range(writes):
        t = i * step_ns
        page = int(rng.integers(size // 8192))
        rows.append((t, 1000, 1, 1, Op.WRITE, 0, 0, 0, -1, page * 8192, 8192))
        last = len(files) - 1
        rows.append((t + 2000, 1000, 1, 1, Op.WRITE, 0, 0, last, -1, tail % size, 8192))
        rows.append((t + 4000, 1000, 1, 1, Op.FSYNC, 0, 0, last, -1, -1, 0))
        tail += 8192
    events = np.zeros(len(rows), EVENT_DTYPE)
    for i, row in enumerate(rows):
        events[i] = (*row, 0, 0)
    with TraceWriter(path) as writer:
        writer.add_rows(events)
        samples = []
        for role in roles:  # kept samples, half compressible: nothing to synthesise
            content = np.repeat(rng.integers(256, size=1 << 19, dtype=np.uint8), 2).tobytes()
            (writer.samples_dir / f"{role}.bin").write_bytes(content)
            samples.append(Sample(role=role, file=f"samples/{role}.bin", bytes=len(content)))  # type: ignore[arg-type]
        writer.finish(
            duration_ns=writes * step_ns,
            recorder=RecorderInfo(name="synthetic"),
            files=files,
            samples=samples,
            page_size={"data": 8192},
            workload=workload,
        )
    return Trace.open(path)


class Made:
    """Files and what is done to them, in order."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.files: list[TraceFile] = []
        self.rows: list[tuple[int, ...]] = []

    def file(self, name: str, content: bytes = b"", role: str | None = None, **more: object) -> int:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        number = len(self.files)
        self.files.append(
            TraceFile.model_validate(
                {"id": number, "path": str(path), "role": role, "size_end": len(content), **more}
            )
        )
        return number

    def do(self, op: Op, file: int, offset: int = -1, size: int = 0) -> None:
        self.rows.append((len(self.rows) * 1000, 100, 1, 1, op, 0, 0, file, -1, offset, size))

    def write(self, path: Path, **more: Any) -> Trace:
        events = np.zeros(len(self.rows), EVENT_DTYPE)
        for i, row in enumerate(self.rows):
            events[i] = (*row, 0, 0)
        with TraceWriter(path) as writer:
            writer.add_rows(events)
            recorder = RecorderInfo(name="synthetic")
            writer.finish(duration_ns=10**9, recorder=recorder, files=self.files, **more)
        return Trace.open(path)
