"""Builds small traces for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ztune.trace.reader import Trace
from ztune.trace.schema import EVENTS
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

MS = 1_000_000
S = 1_000_000_000


def rows(events: Iterable[Mapping[str, int]]) -> np.ndarray:
    """Return events as rows; what is not given is 0, and -1 for ``file2`` and ``offset``."""
    events = list(events)
    out = np.zeros(len(events), EVENT_DTYPE)
    out["file2"] = out["offset"] = -1
    for index, event in enumerate(events):
        assert event.keys() <= set(EVENTS.names)
        for name, value in event.items():
            out[name][index] = value
    return out


def files(*entries: tuple[str, str | None, int]) -> list[dict[str, Any]]:
    """Return manifest files from (path, role, size at the start)."""
    return [
        {"id": index, "path": path, "role": role, "size_start": size}
        for index, (path, role, size) in enumerate(entries)
    ]


def build(
    path: Path, events: Iterable[Mapping[str, int]], file_list: list[dict[str, Any]], **fields: Any
) -> Trace:
    """Write a trace and open it."""
    writer = TraceWriter(path)
    writer.add_rows(rows(events))
    fields = {"duration_ns": 10 * S, "recorder": {"name": "synthetic"}, **fields}
    return Trace.open(writer.finish(files=file_list, **fields))
