"""Whether the modelled disks could have done the recorded job in the time in which it was recorded.

A replay issues each call at its recorded time, however late the disks are. Where they need longer than the
recording lasted, the real job would have taken longer too: with more transaction groups, each with less in it
to aggregate, and with other pages dirty at once. So what is counted per operation no longer holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ztune.analysis import units
from ztune.analysis.candidates import Candidate
from ztune.analysis.metrics import extract, number_at

BOUND = 1.0
"""Times the recorded seconds that a layout's disks may need. Above it the job would have taken longer."""
FAR = 3.0
"""From so many times on counts are known to be wrong. RocksDB's load at six paces, replay against mount: at
0.4 to 3.0 times the recorded seconds operations were within 5 % and bytes within 14 %; at 28 and 32 times
operations were 23 and 19 % off and bytes written 48 and 51 %, and in an earlier recording at 12 times 44 and
73 % (docs/accuracy.md)."""


@dataclass(frozen=True)
class Demand:
    """What a layout's disks need for the job, against what was recorded; seconds."""

    recorded_s: float
    needed_s: float

    @property
    def times(self) -> float:
        """How many times the recorded seconds."""
        return self.needed_s / self.recorded_s

    @property
    def outpaced(self) -> bool:
        """Whether the job went faster than the disks can."""
        return self.times > BOUND


def demand(candidate: Candidate) -> Demand | None:
    """Return what ``candidate`` needs; None where its result has no such times."""
    recorded = number_at(candidate.measure, "model", "trace_s")
    needed = extract(candidate.measure, "modelled_s")
    if needed is None or recorded is None or recorded <= 0:
        return None
    return Demand(recorded, needed)


def outpaced(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates whose disks could not have kept the recorded pace."""
    return [c for c in candidates if (need := demand(c)) is not None and need.outpaced]


def sentence(candidates: Sequence[Candidate], named: Sequence[Candidate]) -> str:
    """Return what has to be said of ``candidates``, with the figures of those ``named``; "" for nothing."""
    slow = outpaced(candidates)
    if not slow:
        return ""
    by_hash = {c.hash: c for c in slow}
    hashes = [h for h in dict.fromkeys(c.hash for c in named) if h in by_hash] or [slow[0].hash]
    needs = [(by_hash[h].name, need) for h in hashes if (need := demand(by_hash[h])) is not None]
    figures = " and ".join(f"{units.seconds(need.needed_s)} for it under {name}" for name, need in needs)
    return (
        f"The job was recorded in {units.seconds(needs[0][1].recorded_s)}; these disks need {figures}. "
        f"{len(slow)} of {len(candidates)} layouts could not have kept the recorded pace: there the job "
        "takes longer, in more transaction groups that hold less each. Their operations and bytes, and "
        "their place in the order, may not hold. Record the job at a pace that these disks keep, or "
        "measure: `ztune run --from`."
    )
