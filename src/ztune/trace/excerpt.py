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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ztune import paths
from ztune.errors import InputError, unwritten
from ztune.onhost.host import shared_files
from ztune.trace.manifest import Manifest, Warning_
from ztune.trace.reader import Trace

if TYPE_CHECKING:
    from ztune.trace.window_cut import Windows

CALLS = 2_000_000
"""A recording of so many calls is replayed whole by default: a minute at 20,000 a second has 1.2 million."""
IN_WINDOWS = CALLS // 2
"""So many calls are replayed of a longer one, about; and so many reads and writes before them, at most, warm
the caches."""
CODE = "windows"
"""Code of the warning that says which part of the recording it is."""
_BEGINS = 64  # that are compared
_S = 10**9


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
        # Here, as which windows there are takes neither NumPy nor Arrow.
        from ztune.trace.window_cut import Counts, write

        counts = Counts(trace)
        windows = min(_candidates(manifest, asked), key=counts.uneven)
        try:
            with shared_files.replacing(path) as made:
                said = Warning_(code=CODE, message=counts.sentence(windows))
                write(trace, windows, said, IN_WINDOWS, made)
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
    import numpy as np  # see ``of``

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
