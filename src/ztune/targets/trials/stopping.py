"""After each block: is the best layout known, and who has to run again?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ztune.analysis.measured import MEASURES, Measured, gather, goals
from ztune.analysis.resolve import Decision, decide
from ztune.store.records import Run, Trial
from ztune.study.durability import Bar
from ztune.targets.trials.plan import Options


def judge(run: Run, trials: Sequence[Trial], options: Options) -> tuple[str, Decision] | None:
    """Return the measure that decides and where the comparison stands; None while nothing can be compared.

    Layouts of a weaker durability class than the objective allows are measured but do not compete, except the
    baseline, which is what the user lives with today.
    """
    measured = gather(trials)
    keys = goals(run, measured.cells)
    if not keys:
        return None
    bar = Bar.of(run.objective.durability, next((t.layout for t in trials if t.is_baseline), None))
    values = competing(measured, keys[0], bar)
    decision = decide(values, resolution=options.resolution, looks=options.looks)
    return None if decision is None else (keys[0], decision)


def competing(measured: Measured, key: str, bar: Bar) -> dict[str, dict[int, float]]:
    """Return arm → block → value of the layouts that may win."""
    return {c.arm: dict(c.values[key]) for c in measured.cells if key in c.values and bar.admits(c.layout)}


def next_arms(
    arms: Sequence[str], baseline: str, decision: Decision | None, trials: Sequence[Trial], options: Options
) -> list[str]:
    """Return the arms of the next block: all until the fewest blocks are there, then those still undecided.

    The baseline and the leader are in every block. A layout that failed twice and never worked is left out.
    """
    hopeless = {
        arm
        for arm in arms
        if sum(t.status == "failed" for t in trials if t.arm == arm) >= 2
        and not any(t.ok for t in trials if t.arm == arm)
    }
    done = max((t.block for t in trials), default=0)
    if decision is None or done < options.blocks[0] or options.aa:
        return [a for a in arms if a not in hopeless]
    wanted = {baseline, decision.leader, *decision.open}
    return [a for a in arms if a in wanted and a not in hopeless]


def outcome(key: str, decision: Decision, reason: str, names: dict[str, str]) -> dict[str, Any]:
    """Return what is stored of a decision; ``reason``: settled, blocks, time, failed, interrupted,
    running.
    """
    return {
        "measure": key,
        "label": MEASURES[key].label,
        "reason": reason,
        "verdict": decision.verdict,
        "leader": decision.leader,
        "leader_name": names.get(decision.leader, decision.leader),
        "blocks": decision.blocks,
        "needed": decision.needed,
        "level": decision.level,
        "others": [
            {
                "arm": a.arm,
                "name": names.get(a.arm, a.arm),
                "standing": a.standing,
                "needed": a.needed,
                # A single block has no interval; JSON has no infinity.
                "ratio": asdict(a.ratio) if a.ratio is not None and a.ratio.known else None,
            }
            for a in decision.others
        ],
    }


def sentence(found: dict[str, Any], resolution: float) -> str:
    """Return the state of a run in one sentence, for the user."""
    label, leader = found["label"], found["leader_name"]
    share = f"{resolution * 100:g}%"
    runs = f"{found['blocks']} run{'s' if found['blocks'] != 1 else ''} each"
    match found["verdict"]:
        case "equal":
            return f"no difference of {share} or more in {label} between the layouts ({runs})"
        case "resolved":
            rest = f"each other layout is worse, or equal within {share}"
            return f"{leader} has the least {label}; {rest} ({runs})"
    names = [o["name"] for o in found["others"] if o["standing"] == "open"]
    who = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"not resolved in {label} after {runs}: {leader} leads, but {who} may be as good"
    if found["needed"] is not None:
        more = max(1, found["needed"] - found["blocks"])
        text += f"; it would take about {more} more run{'s' if more != 1 else ''} of each"
    elif found["blocks"] > 1:
        text += "; the spread is too large for any reasonable number of runs"
    return text
