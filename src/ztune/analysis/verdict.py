"""What may be concluded from the blocks of a measured run so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ztune.analysis.basis import basis
from ztune.analysis.metrics import MEASURED, Metric
from ztune.analysis.pace import Pace, pace
from ztune.analysis.resolve import DEFAULT_RESOLUTION, Decision, decide
from ztune.analysis.results import LayoutResult, Results
from ztune.store.records import Run
from ztune.study.durability import Bar
from ztune.study.hardware import Hardware
from ztune.units import counted


def answering(word: str) -> list[Metric]:
    """Return what is measured of an objective's word: one metric, none where trials know of no such thing."""
    return [m for m in MEASURED.values() if word in m.asked] or [m for k, m in MEASURED.items() if k == word]


def goals(run: Run, results: Sequence[LayoutResult]) -> tuple[str, ...]:
    """Return the measures that order the layouts, most important first.

    Those of the run's objective; but where seconds are emulated, operations and bytes come first. A job with
    a rate does as much per second under every layout that keeps up: there, latency is its time.
    """
    wanted = [m.key for word in run.objective.minimise for m in answering(word)]
    if basis(run) == "emulated":
        wanted = ["ios", "bytes", *wanted]
    if pace(results) is not None and any("latency" in r.values for r in results):
        wanted = ["latency" if key == "time" else key for key in wanted]
    wanted = [k for k in dict.fromkeys(wanted) if any(k in r.values for r in results)]
    return tuple(wanted) or tuple(k for k in ("time", "bytes") if any(k in r.values for r in results))


def judge(run: Run, found: Results, resolution: float, looks: int) -> tuple[str, Decision] | None:
    """Return the measure that decides and where the comparison stands; None while nothing can be compared.

    Layouts of a weaker durability class than the objective allows are measured but do not compete, except the
    baseline, which is what the user lives with today. Those that do not keep the pace of a paced job are not
    compared by latency but worse.
    """
    keys = goals(run, found.layouts)
    if not keys:
        return None
    values = competing(run, found, keys[0])
    late = lagging(keys, found)
    behind = {} if late is None else {a: late.kept[a] for a in values if a in late.behind}
    keeping = {a: row for a, row in values.items() if a not in behind}
    decision = decide(keeping, resolution=resolution, looks=looks, behind=behind, hosts=found.hosts)
    return None if decision is None else (keys[0], decision)


def lagging(keys: Sequence[str], found: Results) -> Pace | None:
    """Return the pace that layouts must keep; None where the first goal is something else than time."""
    return pace(found.layouts) if keys and keys[0] == "latency" else None


def competing(run: Run, found: Results, key: str) -> dict[str, dict[int, float]]:
    """Return arm → block → value of the layouts that may win."""
    bar = bar_of(run, found)
    return {c.arm: dict(c.values[key]) for c in found.layouts if key in c.values and bar.admits(c.layout)}


def bar_of(run: Run, found: Results) -> Bar:
    """Return which layouts compete: as durable as the objective allows, or as the baseline is."""
    return Bar.of(run.objective.durability, found.base_layout)


def outcome(key: str, decision: Decision, reason: str, names: dict[str, str]) -> dict[str, Any]:
    """Return what is stored of a decision; ``reason``: settled, blocks, time, failed, interrupted,
    running.
    """
    return {
        "measure": key,
        "label": MEASURED[key].label,
        "reason": reason,
        "verdict": decision.verdict,
        "leader": decision.leader,
        "leader_name": names.get(decision.leader, decision.leader),
        "blocks": decision.blocks,
        "runs": list(decision.runs),
        "needed": decision.needed,
        "level": decision.level,
        "others": [
            {
                "arm": a.arm,
                "name": names.get(a.arm, a.arm),
                "standing": a.standing,
                "needed": a.needed,
                "behind": a.behind,
                "only_on": a.only_on,
                "ratio": a.ratio.to_json() if a.ratio is not None and a.ratio.known else None,
            }
            for a in decision.others
        ],
    }


def sentence(found: Mapping[str, Any], resolution: float) -> str:
    """Return the state of a run in one sentence, for the user; ``found`` as ``outcome`` returns it."""
    late = [o["name"] for o in found["others"] if o.get("behind") and o["standing"] == "worse"]
    if not late:
        return _compared(found, resolution)
    return f"{_compared(found, resolution)}; {_some(late, 'and')} can't keep the pace of the job"


def _some(names: Sequence[str], word: str) -> str:
    """Return the first of ``names`` with ``word`` between them, since a name of a layout holds commas."""
    return f" {word} ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def _compared(found: Mapping[str, Any], resolution: float) -> str:
    label, leader = found["label"], found["leader_name"]
    share = f"{resolution * 100:g}%"
    runs = f"{counted(found['blocks'], 'run')} each"
    least, most = found.get("runs") or (found["blocks"], found["blocks"])
    if least != most:  # some stopped early, or joined late
        runs = f"{least} to {most} runs each"
    match found["verdict"]:
        case "equal":
            return f"no difference of {share} or more in {label} between the layouts ({runs})"
        case "resolved":
            rest = f"each other layout is worse, or equal within {share}"
            return f"{leader} has the least {label}; {rest} ({runs})"
    names = [o["name"] for o in found["others"] if o["standing"] == "open"]
    text = f"not resolved in {label} after {runs}: {leader} leads, but {_some(names, 'or')} may be as good"
    if alone := [o for o in found["others"] if o.get("only_on")]:
        where = {o["only_on"] for o in alone}
        rivals = _some([o["name"] for o in alone], "or")
        text += f"; that it is better than {rivals} rests on {' and '.join(sorted(where))} alone"
        return text
    if found["needed"] is not None:
        more = max(1, found["needed"] - found["blocks"])
        text += f"; it would take about {counted(more, 'more run')} of each"
    elif any(o["ratio"] for o in found["others"]):
        text += "; the spread is too large for any reasonable number of runs"
    return text


def hardware(run: Run, results: Results) -> dict[str, dict[str, str]]:
    """Return, by the hash of each layout, what of its disks and memory is not there: factors, values.

    There is what the base layout uses, what the user said that he has (``have`` of the run's options), and,
    where layouts ran on disks or pools of the user's own, what they ran on.
    """
    base, have = results.base_layout, run.options.get("have") or {}
    places = [one.get("place") for one in (run.target, *run.target.get("hosts", ()))]
    own = any(isinstance(p, Mapping) and (p.get("disks") or p.get("parents")) for p in places)
    if base is None or own:
        return {c.hash: {} for c in results.layouts}
    there = Hardware(base, have)
    return {c.hash: there.lacking(c.layout) for c in results.layouts}


def resolution_of(run: Run) -> float:
    """Return the share below which differences of a measured run don't matter."""
    return float(run.options.get("resolution", DEFAULT_RESOLUTION))
