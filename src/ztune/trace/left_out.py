"""How much of a trace is of files without a role that may be a database's: no replay has them.

What no rule says to have no role counts, be it a rule of well-known layouts or the user's (``GLOB=-``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ztune.trace.manifest import Manifest
from ztune.trace.propose import LEAST_BYTES, LEFT_OUT, kinds_of
from ztune.trace.reader import Trace
from ztune.trace.roles import left_out_as_asked
from ztune.trace.schema import Op

KEY = "left_out"
"""Where a run's ``outcome`` keeps it."""
MOST = 0.5
"""Of the bytes, or the syncs: with more of them left out, what is left is not the recorded job."""
LEAST_SYNCS = 10
"""Of files of one kind: a server's start syncs less, and settings are synced once."""
_NAMED = 2
_BEFORE = re.compile(r"Left out: (?P<kinds>.+), with (?P<share>[0-9]+)% of the recorded bytes\. No rule")


@dataclass(frozen=True)
class LeftOut:
    """``bytes``, ``syncs``: the shares of all that were recorded. ``kinds``: of which files, those first that
    moved most; ``more``: how many kinds besides."""

    bytes: float
    syncs: float
    kinds: tuple[str, ...]
    more: int = 0

    @property
    def most(self) -> bool:
        """Whether what is left is not the recorded job."""
        return max(self.bytes, self.syncs) > MOST

    def how_much(self) -> str:
        """Return the shares that matter, as words: "90 % of the recorded bytes and 12 % of the syncs"."""
        shares = ((self.bytes, "bytes"), (self.syncs, "syncs"))
        said = [f"{share:.0%} of the recorded {what}" for share, what in shares if share >= LEFT_OUT]
        return " and ".join(said).replace("%", " %")

    def files(self) -> str:
        """Return the kinds of files as words."""
        more = f" and {self.more} more kinds of files" if self.more else ""
        return ", ".join(self.kinds) + more

    def sentence(self) -> str:
        """Return what is left out, and what gives it a role."""
        return (
            f"Left out: {self.how_much()}. No rule knows {self.files()}, so these files have no role, and "
            "nothing here is about them; `ztune trace roles` proposes one."
        )

    @staticmethod
    def told(warning: str) -> bool:
        """Whether a run's ``warning`` says the same, as it was said when it began."""
        return _BEFORE.match(warning) is not None


def left_out(trace: Trace) -> LeftOut | None:
    """Return what of ``trace`` is left out; None where it is little, and where no file has a role. Raises
    InputError if the trace is damaged.
    """
    import numpy as np  # here, as what a run has kept takes no NumPy

    from ztune.trace.syncs import synced

    every = trace.manifest.files
    lone = without_role(trace.manifest)
    if not lone or all(file.role is None for file in every):
        return None
    # The last is what -1, no file, indexes: such a sync is of all files.
    moved, syncs = np.zeros(len(every) + 1), np.zeros(len(every) + 1)
    for part in trace.parts("op", "flags", "file", "size"):
        calls = np.isin(part["op"], (Op.READ, Op.WRITE, Op.COPY))
        of = np.where(part["file"] < 0, len(every), part["file"])
        moved += np.bincount(of[calls], weights=part["size"][calls], minlength=len(every) + 1)
        syncs += np.bincount(of[synced(part)], minlength=len(every) + 1)
    for file in every:
        if file.counted is not None:  # where the recorder kept some regions alone
            moved[file.id] = file.counted.read_bytes + file.counted.write_bytes
            syncs[file.id] = file.counted.syncs
    kinds: dict[str, tuple[float, float]] = {}
    globs = kinds_of(every[i].path for i in lone)
    for i in lone:
        kind = globs[every[i].path]
        before = kinds.get(kind, (0.0, 0.0))
        kinds[kind] = (before[0] + float(moved[i]), before[1] + float(syncs[i]))
    of_bytes, of_syncs = max(float(moved.sum()), 1.0), max(float(syncs.sum()), 1.0)
    told = {
        kind: (n / of_bytes if n >= LEAST_BYTES else 0.0, times / of_syncs if times >= LEAST_SYNCS else 0.0)
        for kind, (n, times) in kinds.items()
    }
    found = LeftOut(sum(n for n, _ in told.values()), sum(n for _, n in told.values()), ())
    if max(found.bytes, found.syncs) < LEFT_OUT:
        return None
    names = sorted((kind for kind in told if max(told[kind])), key=lambda kind: (-max(told[kind]), kind))
    names = [kind for kind in names if max(told[kind]) >= LEFT_OUT] or names  # those that make it much
    return LeftOut(found.bytes, found.syncs, tuple(names[:_NAMED]), len(names[_NAMED:]))


def sentence(trace: Trace) -> str:
    """Return what of ``trace`` is left out, as a sentence; "" where it is little. Raises InputError."""
    found = left_out(trace)
    return "" if found is None else found.sentence()


def without_role(manifest: Manifest) -> list[int]:
    """Return which files have no role though no rule says so."""
    asked = left_out_as_asked(manifest)
    return [
        i for i, file in enumerate(manifest.files) if file.role is None and not asked.leaves_out(file.path)
    ]


def kept(trace: Trace) -> dict[str, Any]:
    """Return what a run of ``trace`` keeps in its ``outcome``, for `of_run`. Raises InputError."""
    found = left_out(trace)
    return {KEY: None if found is None else asdict(found)}


def of_run(outcome: Mapping[str, Any], trace: Trace | None, warnings: Sequence[str] = ()) -> LeftOut | None:
    """Return what the ``outcome`` of a run has kept; of a run of an older ztune what its ``trace`` shows, and
    without that what its ``warnings`` say.

    Raises InputError where the trace has to be read, and is damaged.
    """
    if KEY in outcome:
        known = outcome[KEY]
        return None if known is None else LeftOut(**{**known, "kinds": tuple(known["kinds"])})
    if trace is not None:
        return left_out(trace)
    said = next(filter(None, map(_BEFORE.match, warnings)), None)
    return None if said is None else LeftOut(int(said["share"]) / 100, 0.0, (said["kinds"],))
