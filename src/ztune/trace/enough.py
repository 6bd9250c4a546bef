"""How much of each role a trace has, and what that is too little for (docs/recommendation.md says why)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ztune.onhost.words import ROLES
from ztune.trace.manifest import Manifest
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.units import counted

LEAST_COMMITS = 100
"""Syncs of a role's files, and writes to files opened with O_SYNC or O_DSYNC, below which nothing is said of
its log. findings.toml asks for as many writes: below, one checkpoint or one backup decides."""
LEAST_CALLS = 100
"""Reads and writes of at least ``TINY`` bytes, below which nothing is said of record sizes ..."""
LEAST_BYTES = LEAST_CALLS * (128 << 10)
"""... unless they moved as much as a hundred records of the default size: a backup makes few large calls."""
TINY = 512
"""Bytes: less is counters and flags, which go to disk with what is written around them."""
_LOGGED = ("data", "wal", "index", "temp")  # what a database syncs as it goes; copies are synced once
_FAR = 1000  # times as many events: a proposed time would be a guess
_MARGIN = 1.5  # of the seconds that are proposed: the next recording may be slower


@dataclass(frozen=True)
class Recorded:
    """What a trace has of one role."""

    role: str
    calls: int
    """Reads and writes of at least ``TINY`` bytes."""
    bytes: int
    """That they moved."""
    commits: int
    """As ``LEAST_COMMITS`` counts them."""
    log: bool
    """Whether advice on a log would be about this role: it is the log, or what is synced without one."""
    direct: int = 0
    """Of ``bytes``, those by calls that have O_DIRECT on ZFS, too."""
    written_direct: int = 0
    """Of these, those that were written."""

    @property
    def sizes(self) -> bool:
        """Whether it is enough for advice on record size, compression and caching."""
        return self.calls >= LEAST_CALLS or self.bytes >= LEAST_BYTES

    @property
    def commit(self) -> bool:
        """Whether it is enough for advice on how it is synced."""
        return self.commits >= LEAST_COMMITS

    def lacks(self, manifest: Manifest, *, log: bool = True, sizes: bool = True) -> str:
        """Return, as a sentence, what it is not enough for, and what to do; empty where nothing lacks.

        ``log``, ``sizes``: whether advice of that kind is asked for. ``manifest``: of its trace.
        """
        parts, most = [], 0.0
        if log and self.log and not self.commit:
            parts.append(f"{counted(self.commits, 'commit')} (advice on a log takes {LEAST_COMMITS})")
            most = LEAST_COMMITS / self.commits if self.commits else math.inf
        if sizes and self.calls and not self.sizes:
            said = counted(self.calls, "read or write", "reads and writes")
            parts.append(
                f"{said} (advice on record sizes takes {LEAST_CALLS}, or {LEAST_BYTES / (1 << 20):g} MiB)"
            )
            most = max(most, LEAST_CALLS / self.calls)
        if not parts:
            return ""
        return f"Not enough was recorded of {self.role}: {' and '.join(parts)}; {_more(manifest, most)}."


def summed(parts: Sequence[Recorded]) -> Recorded:
    """Return what a trace has of roles that have one dataset."""
    return Recorded(
        role=" and ".join(one.role for one in parts),
        calls=sum(one.calls for one in parts),
        bytes=sum(one.bytes for one in parts),
        commits=sum(one.commits for one in parts),
        log=any(one.log for one in parts),
        direct=sum(one.direct for one in parts),
        written_direct=sum(one.written_direct for one in parts),
    )


def recorded(trace: Trace) -> dict[str, Recorded]:
    """Return what ``trace`` has of each role, in the order of ROLES. Raises InputError if it is damaged."""
    import numpy as np  # here, as elsewhere: the command line's help takes no NumPy

    from ztune.trace.direct import DirectIO
    from ztune.trace.syncs import synced

    manifest = trace.manifest
    names = ["", *(role for role in ROLES if any(f.role == role for f in manifest.files))]
    if len(names) == 1:
        return {}
    # The last is what -1, no file, indexes.
    of_file = np.array([names.index(f.role or "") for f in manifest.files] + [0])
    every, direct = 0, DirectIO(manifest.files)
    calls, moved_bytes, commits, written = (np.zeros(len(names)) for _ in range(4))
    directly, written_directly = np.zeros(len(names)), np.zeros(len(names))
    for part in trace.parts("op", "flags", "file", "size"):
        role, op, size = of_file[part["file"]], part["op"], part["size"]
        writes = op == Op.WRITE
        moved = (writes | np.isin(op, (Op.READ, Op.COPY))) & (size >= TINY)
        waited = synced(part) & (op != Op.SYNC)
        every += int(np.count_nonzero(op == Op.SYNC))
        calls += np.bincount(role[moved], minlength=len(names))
        moved_bytes += np.bincount(role[moved], weights=size[moved], minlength=len(names))
        past = moved & direct.asked(part)
        directly += np.bincount(role[past], weights=size[past], minlength=len(names))
        past &= writes
        written_directly += np.bincount(role[past], weights=size[past], minlength=len(names))
        commits += np.bincount(role[waited], minlength=len(names))
        written += np.bincount(role[writes], minlength=len(names))
    return {
        name: Recorded(
            role=name,
            calls=int(calls[i]),
            bytes=int(moved_bytes[i]),
            commits=int(commits[i]) + (every if written[i] else 0),
            log=bool(written[i])
            and (name == "wal" or ("wal" not in names and name in _LOGGED and commits[i])),
            direct=int(directly[i]),
            written_direct=int(written_directly[i]),
        )
        for i, name in enumerate(names)
        if name
    }


def lacking(trace: Trace) -> list[str]:
    """Return a sentence for each role of which ``trace`` has too little. Raises InputError if damaged."""
    return [text for one in recorded(trace).values() if (text := one.lacks(trace.manifest))]


def _more(manifest: Manifest, times: float) -> str:
    """Say how to record ``times`` as many events as ``manifest`` has."""
    if manifest.workload is not None or manifest.command is not None:
        return "give it more to do"
    if times > _FAR:
        return "record longer (--seconds), while it is used"
    seconds = math.ceil(manifest.duration_ns / 1e9 * times * _MARGIN / 10) * 10
    return f"record longer (--seconds {seconds})"
