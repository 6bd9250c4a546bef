"""Windows out of a long recording, as a trace of their own.

A replay takes as long as there are calls, and logs are never sampled (``sampling.py``). So of a recording of
hours a stretch is replayed: where it begins is chosen so that it has as much of what was read, written and
synced as its share of the time. What was read and written before it warms the caches. Several windows follow
each other as those of a recording by windows do (``windows.py``); what a cache would have taken up between
two of them is missing, so that one is nearer to the whole.
"""

from __future__ import annotations

import glob
import math
import re
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ztune import paths
from ztune.errors import InputError, unwritten
from ztune.onhost.host import shared_files
from ztune.trace.manifest import FileName, Manifest, RecordedWindow, TraceFile, Warning_
from ztune.trace.reader import Columns, Trace
from ztune.trace.regions import MOVED
from ztune.trace.schema import Op
from ztune.trace.spool import Rows
from ztune.trace.syncs import synced
from ztune.trace.windows import with_growth
from ztune.trace.writer import EVENT_DTYPE, TraceWriter
from ztune.units import counted, listed

CALLS = 2_000_000
"""A recording of so many calls is replayed whole by default: a minute at 20,000 a second has 1.2 million."""
IN_WINDOWS = CALLS // 2
"""So many calls are replayed of a longer one, about; and so many reads and writes before them, at most, warm
the caches."""
CODE = "windows"
"""Code of the warning that says which part of the recording it is."""
_BEGINS = 64  # that are compared
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


@dataclass(frozen=True)
class Stretch:
    """How many windows, and of how many seconds each, to the millisecond."""

    number: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.number}x{f'{self.seconds:.3f}'.rstrip('0').rstrip('.')}s"


def parse(text: str) -> Stretch | None:
    """Return what ``--windows`` asks for; None: all of the time. Raises InputError."""
    if text == "all":
        return None
    found = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,9}(?:\.[0-9]{1,3})?)s?", text)
    asked = Stretch(int(found[1]), float(found[2])) if found else Stretch(0, 0)
    if not asked.number or not asked.seconds:
        raise InputError(f"--windows {text!r}: should be such as 6x20s, six windows of 20 seconds, or all")
    return asked


def usual(manifest: Manifest) -> Stretch | None:
    """Return which windows a recording is replayed in by default; None: it is replayed whole."""
    if manifest.workload is not None or any(one.code == CODE for one in manifest.warnings):
        return None  # it is of a job that was counted whole, or of such windows itself
    if manifest.events <= CALLS:
        return None
    total_s = manifest.duration_ns / _S * IN_WINDOWS / manifest.events
    recorded = min((one.duration_ns / _S for one in manifest.windows), default=total_s)
    number = math.ceil(total_s / recorded) if recorded else 0
    seconds = math.floor(total_s / max(number, 1) * 1000) / 1000
    return Stretch(number, seconds) if seconds else None


def of(trace: Trace, asked: Stretch) -> Trace:
    """Return the trace of the windows ``asked`` of ``trace``, kept in the state directory; ``trace`` stays.

    The same windows give the same trace. Raises InputError where the recording has not so much time, is of a
    workload, whose operations are counted as a whole, or can't be read or written.
    """
    manifest = trace.manifest
    if manifest.workload is not None:
        raise InputError(
            f"{trace.path} is of the workload {manifest.workload.name}, whose operations were counted over "
            "all of its time; leave out --windows, or record fewer seconds of it"
        )
    if asked.number * asked.seconds > manifest.duration_ns / _S:
        raise InputError(
            f"--windows {asked} is more than the {manifest.duration_ns / _S:,.1f} s of {trace.path}"
        )
    path = paths.traces() / f"{_kept(trace)}{asked}.trace"
    if not path.exists():
        counts = _Counts(trace)
        windows = min(_candidates(manifest, asked), key=counts.uneven)
        try:
            with shared_files.replacing(path) as made:
                _write(trace, windows, counts.sentence(windows), made)
        except OSError as error:
            if not path.exists():  # else another one has made it meanwhile
                raise unwritten(path, error) from None
    return Trace.open(path)


def made_of(trace: Trace) -> list[Trace]:
    """Return the traces that are kept of windows of ``trace``. Raises InputError."""
    return [Trace.open(path) for path in sorted(paths.traces().glob(f"{glob.escape(_kept(trace))}*.trace"))]


def _kept(trace: Trace) -> str:
    return f"{trace.name[:50]}-windows-{trace.sha[:12]}-"


def _candidates(manifest: Manifest, asked: Stretch) -> list[Windows]:
    """Return windows as far apart as each other, with one begin or another; of a recording by windows, the
    first seconds of some of them."""
    length = round(asked.seconds * _S)
    recorded = [one.t for one in manifest.windows if one.duration_ns >= length]
    number = asked.number
    if len(recorded) >= number:
        step = len(recorded) / number
        chosen = [[recorded[int(i * step) + first] for i in range(number)] for first in range(int(step))]
    else:
        period = manifest.duration_ns // number
        last = max(period - length, 0)
        # Not at the beginning: as much time as a window has, or half of what there is, warms the caches.
        firsts = np.unique(np.linspace(min(length, last / 2), last, _BEGINS).astype(np.int64)).tolist()
        chosen = [[first + i * period for i in range(number)] for first in firsts]
    return [[(begin, begin + length) for begin in begins] for begins in chosen]


class _Counts:
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

    def __init__(self, trace: Trace, windows: Windows) -> None:
        self._begins, self._ends = np.array(windows, np.int64).T
        self._lengths = self._ends - self._begins
        self.starts = np.cumsum(self._lengths) - self._lengths
        entries = trace.manifest.files
        # By file; the last is what -1 indexes.
        used, self._made, made_between, self._left, gone = np.zeros((5, len(entries) + 1), bool)
        before: deque[Rows] = deque()
        for rows in _rows(trace):
            t, op, file = rows["t"], rows["op"], rows["file"]
            inside, first = self._inside(rows), (t < self._begins[0]) | (op == Op.WARM)
            used[file[inside]] = used[rows["file2"][inside]] = True
            self._made[file[inside & (op == Op.CREATE)]] = True
            made_between[file[~inside & (op == Op.CREATE)]] = True
            self._left[file[(t >= self._ends[-1]) & (op == Op.UNLINK)]] = True
            gone[file[first & (op == Op.UNLINK)]] = True
            moved = np.isin(op, MOVED) & (rows["size"] > 0)
            before.append(rows[moved & first])
            while sum(map(len, before)) - len(before[0]) >= IN_WINDOWS:
                before.popleft()
        # Those that were made between windows, and not used in one.
        self._unseen = made_between & ~used
        # What a log was given is in no cache but as the windows write it anew.
        cold = gone | np.array([*(file.role == "wal" for file in entries), True])
        warming = np.concatenate([np.empty(0, EVENT_DTYPE), *before])
        warming = warming[~cold[warming["file"]]][-IN_WINDOWS:]
        warming["op"], warming["file2"] = Op.WARM, -1
        warming["t"] = warming["dur"] = warming["flags"] = 0
        self._warming: Rows = warming

    def events(self, trace: Trace) -> Iterator[Rows]:
        """Give what warms the caches, then the events in the windows, and the calls on names between them, so
        that it stays known which file is which."""
        yield self._warming
        for rows in _rows(trace):
            if len(rows) and rows["t"][0] >= self._ends[-1]:
                return
            inside = self._inside(rows)
            names = ~inside & np.isin(rows["op"], _NAMES) & (rows["t"] < self._begins[-1])
            names &= ~self._unseen[rows["file"]]
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


def _rows(trace: Trace) -> Iterator[Rows]:
    for part in trace.parts():
        rows = np.empty(len(part["t"]), EVENT_DTYPE)
        for name, values in part.items():
            rows[name] = values
        yield rows


def _write(trace: Trace, windows: Windows, said: str, path: Path) -> None:
    manifest = trace.manifest
    cut = _Cut(trace, windows)
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
            warnings=[*manifest.warnings, Warning_(code=CODE, message=said)],
            windows=cut.windows(manifest),
        )


def _unix_ns(manifest: Manifest, t: int) -> int:
    """Return when the recording's time ``t`` was."""
    for one in reversed(manifest.windows):
        if one.t <= t:
            return one.started_unix_ns + t - one.t
    return manifest.started_unix_ns + t
