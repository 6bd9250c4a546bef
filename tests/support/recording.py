"""Recording a program, and counting what the trace holds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ztune.trace.manifest import TraceFile
from ztune.trace.reader import Trace
from ztune.trace.record import Recording, record
from ztune.trace.recorders import RECORDERS
from ztune.trace.schema import Op


@cache
def reason(name: str) -> str | None:
    """Return why the recorder does not work here. It starts a program: once, and not to collect the tests."""
    (found,) = (recorder.unavailable() for recorder in RECORDERS if recorder.name == name)
    return found


def need(name: str) -> None:
    if why := reason(name):
        pytest.skip(f"{name}: {why}")


class Seen:
    """A trace, as tests look at it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.files: list[TraceFile] = trace.manifest.files
        self.events: list[dict[str, Any]] = trace.table().to_pylist()

    def file(self, name: str) -> TraceFile:
        found = [file for file in self.files if any(Path(n.path).name == name for n in file.names)]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def of(self, name: str) -> list[tuple[str, int, int]]:
        """The events of a file: operation, offset, size."""
        id_ = self.file(name).id
        return [(Op(e["op"]).name, e["offset"], e["size"]) for e in self.events if e["file"] == id_]

    def rows(self, name: str) -> list[dict[str, Any]]:
        id_ = self.file(name).id
        return [e for e in self.events if e["file"] == id_]

    def totals(self, name: str) -> dict[str, tuple[int, int]]:
        """Count and bytes of a file's events by operation."""
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for op, _, size in self.of(name):
            counts[op] += 1
            sizes[op] += size
        return {op: (counts[op], sizes[op]) for op in counts}


def run_python(text: str, folder: Path, recorder: str, **options: Any) -> Seen:
    """Record a Python program that works in ``folder``; only its files are kept."""
    (folder / "program.py").write_text(f"import os, sys\nos.chdir({str(folder)!r})\n" + text)
    out = folder.parent / f"{folder.name}-{recorder}.trace"
    command = [sys.executable, "-I", str(folder / "program.py")]
    return Seen(record(Recording(out, command=command, recorder=recorder, paths=[folder], **options)))


def shell(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, **options)
    return str(done.stdout)
