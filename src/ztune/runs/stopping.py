"""After each block: is the best layout known, and who has to run again?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ztune.analysis import verdict
from ztune.analysis.basis import basis
from ztune.analysis.resolve import Decision
from ztune.analysis.results import collect
from ztune.runs.options import TrialOptions
from ztune.store.records import Run, Trial


def judge(run: Run, trials: Sequence[Trial], options: TrialOptions) -> tuple[str, Decision] | None:
    """Return the measure that decides and where the comparison stands; None while nothing can be compared."""
    return verdict.judge(run, collect(trials, basis(run)), options.resolution, options.looks)


def next_arms(
    arms: Sequence[str],
    baseline: str,
    undecided: Collection[str] | None,
    trials: Sequence[Trial],
    options: TrialOptions,
) -> list[str]:
    """Return the arms of the next block: all until the fewest blocks are there, then those still undecided.

    ``undecided``: the arms that must run again, None while nothing can be compared. The baseline is in every
    block. A layout that failed twice and never worked is left out.
    """
    hopeless = {
        arm
        for arm in arms
        if sum(t.status == "failed" for t in trials if t.arm == arm) >= 2
        and not any(t.ok for t in trials if t.arm == arm)
    }
    done = max((t.block for t in trials), default=0)
    if undecided is None or done < options.blocks[0] or options.aa:
        return [a for a in arms if a not in hopeless]
    wanted = {baseline, *undecided}
    return [a for a in arms if a in wanted and a not in hopeless]
