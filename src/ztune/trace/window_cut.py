"""Cuts windows out of a recording: what was done in each, and the trace of some (``excerpt.py``)."""

from __future__ import annotations

import math
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.trace.manifest import FileName, Manifest, RecordedWindow, TraceFile, Warning_
from ztune.trace.reader import Columns, Trace
from ztune.trace.regions import MOVED
from ztune.trace.schema import Flag, Op
from ztune.trace.spool import Rows
from ztune.trace.syncs import synced
from ztune.trace.windows import with_growth
from ztune.trace.writer import EVENT_DTYPE, TraceWriter
from ztune.units import counted, listed

_BINS = 1 << 16  # in which what was done is counted
_S = 10**9
_NAMES = (Op.UNLINK, Op.RENAME, Op.TRUNCATE)
_WORDS = ("of the calls", "of the bytes read", "of the bytes written", "of the syncs")
_KEPT = (
    "created", "recorder", "command", "pids", "dropped", "complete", "environment", "page_size",
    "compressibility", "samples", "sample",
)  # fmt: skip

Floats: TypeAlias = "npt.NDArray[np.float64]"
Windows: TypeAlias = "Sequence[tuple[int, int]]"
"""Begin and end of each in the recording's time, ns."""


class Counts:
    """What was done when: calls, bytes read and written, and syncs in each of many short times."""

    def __init__(self, trace: Trace) -> None:
        self._duration = max(trace.manifest.duration_ns, 1)
        self._bin = max(self._duration // _BINS, 1)
        bins = self._duration // self._bin + 1
        sums = np.zeros((len(_WORDS), bins))
        for part in trace.parts("t", "op", "flags", "size"):
            at = np.minimum(part["t"] // self._bin, bins - 1)
            for row, weights in enumerate(_done(part)):
                sums[row] += np.bincount(at, weights, bins)
        self._until = np.concatenate([np.zeros((len(_WORDS), 1)), np.cumsum(sums, axis=1)], axis=1)

    def uneven(self, windows: Windows) -> float:
        """Return by how much the share that is furthest from that of the time is off, as a logarithm."""
        of_time = self._of_time(windows)
        shares = (share for _, share in self._shares(windows))
        return max((abs(math.log(max(share, 1e-9) / of_time)) for share in shares), default=0.0)

    def sentence(self, windows: Windows) -> str:
        """Return what part of the recording ``windows`` are."""
        seconds = (windows[0][1] - windows[0][0]) / _S
        shares = [f"{share:.2%} {words}" for words, share in self._shares(windows)]
        said = f", with {listed(shares)}" if shares else ""
        what = (
            f"{counted(len(windows), 'window')} of {seconds:,.1f} s {'are' if windows[1:] else 'is'} replayed"
        )
        return (
            f"Of the {self._duration / _S:,.1f} s that were recorded {what}, {self._of_time(windows):.2%} of "
            f"the time{said}."
        )

    def _of_time(self, windows: Windows) -> float:
        return sum(end - begin for begin, end in windows) / self._duration

    def _shares(self, windows: Windows) -> list[tuple[str, float]]:
        """Return what share of each is in ``windows``; not of what nothing was done of."""
        edges = np.arange(self._until.shape[1]) * self._bin
        begin, end = np.array(windows).T
        return [
            (words, float((np.interp(end, edges, until) - np.interp(begin, edges, until)).sum() / until[-1]))
            for words, until in zip(_WORDS, self._until, strict=True)
            if until[-1]
        ]


def _done(part: Columns) -> tuple[Floats, Floats, Floats, Floats]:
    op, size = part["op"], part["size"].astype(np.float64)
    return (
        (op != Op.WARM).astype(np.float64),
        np.where(op == Op.READ, size, 0.0),
        np.where((op == Op.WRITE) | (op == Op.COPY), size, 0.0),
        synced(part).astype(np.float64),
    )


class _Cut:
    """What of a recording's events is in some windows, and when it is there."""

    def __init__(self, trace: Trace, windows: Windows, warming_calls: int) -> None:
        self._begins, self._ends = np.array(windows, np.int64).T
        self._lengths = self._ends - self._begins
        self.starts = np.cumsum(self._lengths) - self._lengths
        entries = trace.manifest.files
        # By file; the last is what -1 indexes.
        used, self._made, made_between, self._left, gone = np.zeros((5, len(entries) + 1), bool)
        before: deque[Rows] = deque()
        # By file: when it was cut last before the first window, to what, and whether it has grown since.
        self._cut_at, cut_to = np.full((2, len(entries) + 1), -1)
        self._grown = np.zeros(len(entries) + 1, bool)
        for rows in event_rows(trace):
            t, op, file = rows["t"], rows["op"], rows["file"]
            inside, first = self._inside(rows), (t < self._begins[0]) | (op == Op.WARM)
            used[file[inside]] = used[rows["file2"][inside]] = True
            self._made[file[inside & (op == Op.CREATE)]] = True
            made_between[file[~inside & (op == Op.CREATE)]] = True
            self._left[file[(t >= self._ends[-1]) & (op == Op.UNLINK)]] = True
            self._left[rows["file2"][(t >= self._ends[-1]) & (op == Op.RENAME)]] = True
            gone[file[first & (op == Op.UNLINK)]] = True
            moved = np.isin(op, MOVED) & (rows["size"] > 0)
            cuts = np.flatnonzero((op == Op.TRUNCATE) & first)  # in order of time: of several the last stays
            self._cut_at[file[cuts]], cut_to[file[cuts]] = t[cuts], rows["size"][cuts]
            self._grown[file[cuts]] = False
            grows = moved & first & (op != Op.READ) & (t > self._cut_at[file])
            self._grown[file[grows & (rows["offset"] + rows["size"] > cut_to[file])]] = True
            before.append(rows[moved & first])
            while sum(map(len, before)) - len(before[0]) >= warming_calls:
                before.popleft()
        # Those that were made between windows, and not used in one.
        self._unseen = made_between & ~used
        # What a log was given is in no cache but as the windows write it anew.
        cold = gone | np.array([*(file.role == "wal" for file in entries), True])
        warming = np.concatenate([np.empty(0, EVENT_DTYPE), *before])
        warming = warming[~cold[warming["file"]]][-warming_calls:]
        # What was written is taken to have gone through the cache, as parts of records do.
        warming["flags"] = np.where(warming["op"] == Op.READ, warming["flags"] & int(Flag.DIRECT), 0)
        warming["op"], warming["file2"] = Op.WARM, -1
        for name in ("t", "dur", "since_sync", "waited"):
            warming[name] = 0
        self._warming: Rows = warming

    def events(self, trace: Trace) -> Iterator[Rows]:
        """Give what warms the caches, then the events in the windows, and the calls on names between them, so
        that it stays known which file is which."""
        yield self._warming
        for rows in event_rows(trace):
            if len(rows) and rows["t"][0] >= self._ends[-1]:
                return
            inside = self._inside(rows)
            names = ~inside & np.isin(rows["op"], _NAMES) & (rows["t"] < self._begins[-1])
            names &= ~self._unseen[rows["file"]]
            # A file is as it was when the first window began: what was cut off and written anew is there.
            cut = (rows["op"] == Op.TRUNCATE) & (rows["t"] < self._begins[0])
            names &= ~cut | ((rows["t"] == self._cut_at[rows["file"]]) & ~self._grown[rows["file"]])
            rows["t"] = self.time(rows["t"])
            rows["t"][names] = np.maximum(rows["t"][names] - 1, 0)  # ahead of all that the next window has
            yield rows[inside | names]

    def files(self, files: Sequence[TraceFile]) -> list[TraceFile]:
        """Return the files as they are in the windows. What came between them and was not used has no role;
        what was used is there from the begin, as in a recording by windows."""
        return [
            file.model_copy(
                update={
                    "created": bool(self._made[file.id]),
                    "deleted": file.deleted and not self._left[file.id],
                    "role": None if self._unseen[file.id] else file.role,
                    "names": [FileName(t=int(self.time(name.t)), path=name.path) for name in file.names],
                    "counted": None,  # that was over all of the time
                }
            )
            for file in files
        ]

    def time(self, t: Any) -> Any:
        """Return when ``t``, ns of the recording, is here: between two windows, when the next begins."""
        window = np.searchsorted(self._begins, t, side="right") - 1
        passed = np.clip(t - self._begins[window], 0, self._lengths[window])
        return np.where(window < 0, 0, self.starts[window] + passed)

    def windows(self, manifest: Manifest) -> list[RecordedWindow]:
        """Return the windows as the trace has them."""
        times = (self.starts.tolist(), self._lengths.tolist(), self._begins.tolist())
        return [
            RecordedWindow(t=t, duration_ns=length, started_unix_ns=_unix_ns(manifest, begin))
            for t, length, begin in zip(*times, strict=True)
        ]

    def _inside(self, rows: Rows) -> npt.NDArray[np.bool_]:
        window = np.searchsorted(self._begins, rows["t"], side="right") - 1
        found: npt.NDArray[np.bool_] = (window >= 0) & (rows["t"] < self._ends[window])
        found &= rows["op"] != Op.WARM
        return found


def event_rows(trace: Trace) -> Iterator[Rows]:
    """Give the events of ``trace`` as a writer takes them, part by part. Raises InputError."""
    for part in trace.parts():
        rows = np.empty(len(part["t"]), EVENT_DTYPE)
        for name, values in part.items():
            rows[name] = values
        yield rows


def write(trace: Trace, windows: Windows, said: Warning_, warming_calls: int, path: Path) -> None:
    """Write the trace of the ``windows`` of ``trace`` to ``path``, which says of itself what is ``said``.

    The last ``warming_calls`` reads and writes before them, at most, warm the caches. Raises OSError,
    InputError.
    """
    manifest = trace.manifest
    cut = _Cut(trace, windows, warming_calls)
    with TraceWriter(path) as writer:

        def written() -> Iterator[Rows]:
            for rows in cut.events(trace):
                writer.add_rows(rows)
                yield rows

        grown = with_growth(manifest.files, written())
        for sample in manifest.samples:
            # Not linked: the writer closes its files to others.
            shutil.copyfile(trace.path / sample.file, writer.samples_dir / Path(sample.file).name)
        writer.finish(
            **{name: getattr(manifest, name) for name in _KEPT},
            started_unix_ns=_unix_ns(manifest, windows[0][0]),
            duration_ns=sum(end - begin for begin, end in windows),
            files=cut.files(grown),
            warnings=[*manifest.warnings, said],
            windows=cut.windows(manifest),
        )


def _unix_ns(manifest: Manifest, t: int) -> int:
    """Return when the recording's time ``t`` was."""
    for one in reversed(manifest.windows):
        if one.t <= t:
            return one.started_unix_ns + t - one.t
    return manifest.started_unix_ns + t
