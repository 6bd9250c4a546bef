"""What the recorded job needs of a layout's disks and of processors, and whether that fits in its time.

A call begins when it was recorded, or as soon as its thread's last one is answered. Where the disks need
longer than the recording lasted a replay takes longer, as the real job would have. What the database does of
itself in the longer time, such as compactions, stays as recorded: what it writes no longer holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ztune.analysis import units
from ztune.analysis.metrics import number_at
from ztune.analysis.results import LayoutResult

BOUND = 1.01
"""Times the recorded seconds that a layout's disks may need. Above it the job would have taken longer; a
hundredth is what a replay's last calls take."""
FAR = 3.0
"""From so many times on counts are taken to be wrong. Of RocksDB, replay against mount, an earlier engine
wrote 12 to 24 % too many bytes at 1.3 to 2.8 times the recorded seconds, and 70 to 74 % at 70 times; what
today's does is in docs/accuracy.md, "A job faster than the disks"."""
# Processor times of replays that differ by less are not told apart: the same replay takes that much more
# beside others on a busy machine (docs/recommendation.md).
SPREAD = 1.25
LONGER = 0.05
"""By which share the host's processors, when they are what limits, may make the job longer than under another
layout: the tolerance of objectives, where a study names none."""
IDLE = 0.1
"""Of the recorded time: processors that are at work for less of it limit nothing, however fast disks are. Of
the recordings by which ``held`` was made, RocksDB with zstd-3 had them at work for 14 %."""


@dataclass(frozen=True)
class Need:
    """What a replay needed, in s: of the modelled disks, of processors (None: not reported); and how long the
    recorded job took (None: not known). ``work``: how many operations the job did, where others of the run
    did other work; else None.

    ``cpu`` is how long ``cores`` processors, all at work, take for what OpenZFS does to data: compression,
    decompression, checksums, parity, encryption and copies. ``cores`` None: of an older engine, which knew
    only its own processor time, with all the checks of a debugging build in it and on one processor.
    ``used`` is how long they are all at work with what else the recorded host did; None: not known.
    """

    disks: float
    cpu: float | None
    recorded: float | None
    work: float | None = None
    cores: int | None = None
    used: float | None = None

    @property
    def least(self) -> float:
        """The least that the recorded job takes, where it does not go faster than recorded."""
        return max(self.recorded or 0.0, self.disks, self.used or 0.0)

    @property
    def full(self) -> bool:
        """Whether the host's processors, and not its disks, would make the job longer than recorded."""
        return self.used is not None and self.recorded is not None and self.used >= self.least

    @property
    def times(self) -> float:
        """How many times the recorded seconds the disks need; 0 where those are not known."""
        return self.disks / self.recorded if self.recorded else 0.0

    @property
    def outpaced(self) -> bool:
        """Whether the job went faster than the disks can."""
        return self.times > BOUND

    @property
    def both(self) -> float:
        """The time of the work if nothing of disks and processors went on at once; of one operation of it
        where the layouts' jobs differ."""
        return ((self.cpu or 0.0) + self.disks) / (self.work or 1.0)

    def takes_more(self, other: Need, within: float) -> bool:
        """Whether ``both`` is more than another layout's by more than ``within``, and not by the noise of
        processor times (``SPREAD``), be these much of both or little."""
        if not self.cpu or not other.cpu:
            return False
        mine, theirs = self.cpu / (self.work or 1.0), other.cpu / (other.work or 1.0)
        return mine > theirs * SPREAD and self.both > other.both * (1 + within)

    def both_text(self) -> str:
        """Return ``both`` for people."""
        return units.seconds(self.both) + ("" if self.work is None else " per op")

    @property
    def limited(self) -> bool:
        """Whether processors need clearly (``SPREAD``) longer than the recorded job took, or than the disks
        and are at work for more than a little (``IDLE``) of the job."""
        if self.cpu is None:
            return False
        recorded = self.recorded or 0.0
        return self.cpu > (recorded or math.inf) * SPREAD or (
            self.cpu > self.disks * SPREAD and self.cpu >= recorded * IDLE
        )

    def sentence(self) -> str:
        """Return the figures of processors and disks as a clause."""
        cpu = self.cpu or 0.0
        if self.cores is None:
            of = "of processor time for"
            text = f"{units.seconds(cpu)} {of} {units.seconds(self.disks)} of modelled time"
        else:
            of = "one processor" if self.cores == 1 else f"{self.cores} processors"
            text = f"{units.seconds(cpu)} of {of} for {units.seconds(self.disks)} of the disks"
        if cpu <= self.disks and self.recorded is not None:
            text += f" and {units.seconds(self.recorded)} recorded"
        return text


def need(result: LayoutResult) -> Need | None:
    """Return what a layout's replay needed; None where it has no modelled time."""
    disks = result.value("modelled_s")
    if disks is None:
        return None
    work = result.work
    of_disks, cpu = (number_at(result.measure, "model", key) for key in ("disks_s", "processor_s"))
    cores = number_at(result.measure, "processor", "host", "cores")
    if of_disks is not None and cpu is not None and cores:
        recorded, share = (number_at(result.measure, "model", key) for key in ("trace_s", "host_busy"))
        used = None if share is None or recorded is None else share * recorded
        return Need(of_disks, cpu, recorded, work, int(cores), used)
    cpu = result.value("cpu_s")
    if work is not None:  # how long it took is asked of the whole job
        disks, cpu = disks * work, None if cpu is None else cpu * work
    return Need(disks, cpu, number_at(result.measure, "model", "trace_s"), work)


def outpaced(results: Sequence[LayoutResult]) -> list[LayoutResult]:
    """Return the layouts whose disks could not have kept the recorded pace."""
    return [c for c in results if (found := need(c)) is not None and found.outpaced]


def outpaced_sentence(
    results: Sequence[LayoutResult], named: Sequence[LayoutResult], measured_by: str
) -> str:
    """Return what has to be said of ``results``, with the figures of those ``named``; "" for nothing.

    ``measured_by``: what would measure them, as words.
    """
    slow = outpaced(results)
    if not slow:
        return ""
    by_hash = {c.hash: c for c in slow}
    hashes = [h for h in dict.fromkeys(c.hash for c in named) if h in by_hash] or [slow[0].hash]
    needs = [(by_hash[h].name, found) for h in hashes if (found := need(by_hash[h])) is not None]
    figures = " and ".join(f"{units.seconds(found.disks)} for it under {name}" for name, found in needs)
    recorded = " and ".join(dict.fromkeys(units.seconds(found.recorded or 0.0) for _, found in needs))
    return (
        f"The job was recorded in {recorded}; these disks need {figures}. "
        f"{len(slow)} of {len(results)} layouts could not have kept the recorded pace: there the job "
        "takes longer, and what the database does of itself meanwhile, such as compactions, is not known: "
        "bytes written, and the order, may not hold. Record the job at a pace that these disks keep, or "
        f"measure: by {measured_by}."
    )


def held(results: Sequence[LayoutResult]) -> dict[str, str]:
    """Return the layouts that their processor time holds back: hash → why, as a clause.

    Those limited by processors, unless processor and modelled time together are clearly (``SPREAD``) less
    than those of any layout that is not: a client may wait for the two in turn. Where every layout is limited
    so, those within ``SPREAD`` of the least of both remain. And those of the rest for which a host that was
    busy when it was recorded has no room (`_crowded`). So never all are held back.
    """
    needs = [(c, found) for c in results if (found := need(c)) is not None and found.cpu is not None]
    # The least of both kinds is enough to compare with: where it is not better, none is.
    least = [
        min(kind, key=lambda pair: (pair[1].both, pair[0].hash))
        for limited in (False, True)
        if (kind := [pair for pair in needs if pair[1].limited == limited])
    ]
    out: dict[str, str] = {}
    for result, mine in needs:
        if not mine.limited:
            continue
        better = [
            (other, theirs)
            for other, theirs in least
            if (theirs.both < mine.both * SPREAD if not theirs.limited else theirs.both * SPREAD < mine.both)
        ]
        if better:
            other, theirs = min(better, key=lambda pair: (pair[1].both, pair[0].hash))
            took, instead = mine.both_text(), theirs.both_text()
            out[result.hash] = f"{mine.sentence()}, {took} of both together; " + (
                f"{other.name} needs {instead}"
                if theirs.both < mine.both
                else f"not {SPREAD:g} times less than the {instead} of {other.name}"
            )
    return out | _crowded([pair for pair in needs if pair[0].hash not in out])


def _crowded(needs: Sequence[tuple[LayoutResult, Need]]) -> dict[str, str]:
    """Return the layouts under which the job takes longer than under another, as the host's processors have
    too much to do: hash → why, as a clause."""
    if not needs:
        return {}
    other, theirs = min(needs, key=lambda pair: (pair[1].least / (pair[1].recorded or 1.0), pair[0].hash))
    out: dict[str, str] = {}
    for result, mine in needs:
        if not mine.full or not mine.recorded or not theirs.recorded:
            continue
        longer, elsewhere = mine.least / mine.recorded, theirs.least / theirs.recorded
        if longer > elsewhere * (1 + LONGER):
            out[result.hash] = (
                f"with what else the recorded host did its processors would be at work for "
                f"{units.show(longer, 'share')} of the recorded time; {other.name} needs "
                f"{units.show(elsewhere, 'share')}"
            )
    return out
