"""What the recorded job needs of a layout's disks and of processors, and whether that fits in its time.

A call begins when it was recorded, or as soon as its thread's last one is answered. Where the disks need
longer than the recording lasted a replay takes longer, as the real job would have. What the database does of
itself in the longer time, such as compactions, stays as recorded: what it writes no longer holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ztune.analysis import units
from ztune.analysis.need import SPREAD, Need
from ztune.analysis.results import LayoutResult

FAR = 3.0
"""From so many times on counts are taken to be wrong. Of RocksDB, replay against mount, an earlier engine
wrote 12 to 24 % too many bytes at 1.3 to 2.8 times the recorded seconds, and 70 to 74 % at 70 times; what
today's does is in docs/accuracy.md, "A job faster than the disks"."""
LONGER = 0.05
"""By which share the host's processors, when they are what limits, may make the job longer than under another
layout: the tolerance of objectives, where a study names none."""


def outpaced(results: Sequence[LayoutResult]) -> list[LayoutResult]:
    """Return the layouts whose disks could not have kept the recorded pace."""
    return [c for c in results if (found := c.need) is not None and found.outpaced]


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
    needs = [(by_hash[h].name, found) for h in hashes if (found := by_hash[h].need) is not None]
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
    needs = [(c, found) for c in results if (found := c.need) is not None and found.cpu is not None]
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
    too much to do: hash → why, as a clause. Only those of one recording are held against each other: the host
    was more or less busy while another was made."""
    least: dict[str, tuple[LayoutResult, Need]] = {}
    for pair in sorted(needs, key=lambda pair: (pair[1].least, pair[0].hash)):
        least.setdefault(pair[0].recording, pair)
    out: dict[str, str] = {}
    for result, mine in needs:
        other, theirs = least[result.recording]
        if mine.full and mine.recorded and mine.least > theirs.least * (1 + LONGER):
            share, instead = (units.show(n.least / mine.recorded, "share") for n in (mine, theirs))
            out[result.hash] = (
                f"with what else the recorded host did its processors would be at work for {share} of the "
                f"recorded time; {other.name} needs {instead}"
            )
    return out
