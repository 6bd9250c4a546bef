"""Processor time of replays beside the modelled time of their disks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ztune.analysis import units
from ztune.analysis.candidates import Candidate
from ztune.analysis.metrics import number_at

# Processor times of replays that differ by less are not told apart: the same replay takes that much more
# beside others on a busy machine (docs/recommendation.md).
SPREAD = 1.25


@dataclass(frozen=True)
class Need:
    """What a replay needed, in s: of processors, of the modelled disks; and how long the recorded job
    took."""

    cpu: float
    disks: float
    trace: float | None

    @property
    def both(self) -> float:
        """The time of the work if nothing of the two went on at once."""
        return self.cpu + self.disks

    @property
    def limited(self) -> bool:
        """Whether processors need longer than the disks, or than the recorded job took."""
        return self.cpu > self.disks or (self.trace is not None and self.cpu > self.trace)

    def sentence(self) -> str:
        """Return the figures as a clause."""
        text = f"{units.seconds(self.cpu)} of processor time for {units.seconds(self.disks)} of modelled time"
        if self.cpu <= self.disks and self.trace is not None:
            text += f" and {units.seconds(self.trace)} recorded"
        return text


def need(candidate: Candidate) -> Need | None:
    """Return what a layout's replay needed; None where the engine did not report it.

    Processor time is the engine's own, from the first recorded operation to the last transaction group: the
    library is a debugging build, and what it does in one process a kernel spreads over processors.
    """
    cpu, disks = candidate.value("cpu_s"), candidate.value("modelled_s")
    if cpu is None or disks is None:
        return None
    return Need(cpu, disks, number_at(candidate.measure, "model", "trace_s"))


def held(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return the layouts that their processor time holds back: hash → why, as a clause.

    Those limited by processors, unless processor and modelled time together are clearly (``SPREAD``) less
    than those of any layout that is not: a client may wait for the two in turn. Where every layout is limited
    so, those within ``SPREAD`` of the least of both remain; so never all are held back.
    """
    needs = [(c, found) for c in candidates if (found := need(c)) is not None]
    # The least of both kinds is enough to compare with: where it is not better, none is.
    least = [
        min(kind, key=lambda pair: (pair[1].both, pair[0].hash))
        for limited in (False, True)
        if (kind := [pair for pair in needs if pair[1].limited == limited])
    ]
    out: dict[str, str] = {}
    for candidate, mine in needs:
        if not mine.limited:
            continue
        better = [
            (other, theirs)
            for other, theirs in least
            if (theirs.both < mine.both * SPREAD if not theirs.limited else theirs.both * SPREAD < mine.both)
        ]
        if better:
            other, theirs = min(better, key=lambda pair: (pair[1].both, pair[0].hash))
            took, instead = units.seconds(mine.both), units.seconds(theirs.both)
            out[candidate.hash] = f"{mine.sentence()}, {took} of both together; " + (
                f"{other.name} needs {instead}"
                if theirs.both < mine.both
                else f"not {SPREAD:g} times less than the {instead} of {other.name}"
            )
    return out
