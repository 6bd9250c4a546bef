"""What was in the recorded host's caches when a recording began, told from how long its first reads took.

A recording of a server that runs begins in the middle: what it had read before is not known, so a replay
would begin with an empty ARC, and read from the disk what the server had in memory. The recording shows that,
though. A read that took no disk's time found its data in a cache, and where nothing recorded had read or
written it before, it lay there from the beginning. Of what is written first nothing is known: of that as
large a part is taken for cached as of what is read first, in the same role.

The cache there may have been larger than the ARC of a layout. Then only a part of this is in the ARC, what is
used most (``warm_share.py``).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ztune import paths
from ztune.errors import unwritten
from ztune.onhost.host import shared_files
from ztune.trace.manifest import COLD, FIRST_READS
from ztune.trace.reader import Trace

VERSION = 1
"""Of how it is told: what was told in another way is not taken for the same."""


def with_caches(trace: Trace) -> Trace:
    """Return ``trace`` with what the caches held when it began, beside it, where that is not known and its
    first reads tell; else ``trace``. Raises InputError where it can't be read or written.
    """
    if all(warning.code != COLD for warning in trace.manifest.warnings):
        return trace
    path = _path(trace)
    if path.exists():
        return Trace.open(path)
    # Here, as what else is known of traces takes no NumPy.
    from ztune.trace.first_blocks import cached, write

    rows = cached(trace)
    if not len(rows):
        return trace
    try:
        with shared_files.replacing(path) as made:
            write(trace, rows, made)
    except OSError as error:
        if not path.exists():  # else another one has made it meanwhile
            raise unwritten(path, error) from None
    return Trace.open(path)


def made_of(trace: Trace) -> list[Trace]:
    """Return what ``with_caches`` has made of ``trace``, if it has. Raises InputError."""
    path = _path(trace)
    return [Trace.open(path)] if path.exists() else []


def _path(trace: Trace) -> Path:
    asked = hashlib.sha256(f"{trace.sha} {VERSION}".encode()).hexdigest()
    return paths.traces() / f"{trace.name[:50]}-{FIRST_READS}-{asked[:12]}.trace"
