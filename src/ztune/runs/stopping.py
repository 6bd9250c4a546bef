"""After each block: is the best layout known, and who has to run again?"""

from __future__ import annotations

from collections import Counter
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


def hopeless(trials: Sequence[Trial]) -> set[str]:
    """Return the arms that failed twice and never worked."""
    worked = {t.arm for t in trials if t.ok}
    failed = Counter(t.arm for t in trials if t.status == "failed")
    return {arm for arm, times in failed.items() if times >= 2 and arm not in worked}


def next_arms(
    arms: Sequence[str],
    baseline: str,
    undecided: Collection[str] | None,
    trials: Sequence[Trial],
    options: TrialOptions,
    done: int,
    new: Collection[str] = (),
) -> list[str]:
    """Return the arms of the next block: all until the fewest blocks are there, then those still undecided.

    ``done``: how many blocks there are, of several hosts on each.
    ``undecided``: the arms that must run again, None while nothing can be compared. The baseline is in every
    block, and so are the ``new`` arms. A layout that failed twice and never worked is left out.
    """
    lost = hopeless(trials)
    if undecided is None or done < options.blocks[0] or options.aa:
        return [a for a in arms if a not in lost]
    wanted = {baseline, *undecided, *new}
    return [a for a in arms if a in wanted and a not in lost]
