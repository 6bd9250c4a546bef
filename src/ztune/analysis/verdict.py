"""The standing of a measured run: layouts in order, and what may be concluded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ztune.analysis.candidates import Failed
from ztune.analysis.measured import MEASURES, Cell, Kind, Measured, Pace, clock, gather, goals, pace
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.resolve import DEFAULT_RESOLUTION, Decision, decide
from ztune.store.records import Run, Trial
from ztune.study.durability import Bar


@dataclass(frozen=True)
class Place:
    """A layout in its place. ``rank`` is None for one that is not known to be as durable as is allowed.

    ``standing``: leader, worse, equal or open, as the run's last decision has it; "" where there is none.
    ``to_leader``: its ratio to the leader in the measure that decides; None for one that falls behind.
    ``lag``: how far it falls behind the pace of the job: "falls behind: 412 of 1,000/s"; else "".
    """

    rank: int | None
    cell: Cell
    standing: str
    to_leader: Ratio | None
    lag: str = ""


@dataclass(frozen=True)
class Standing:
    """All layouts of a measured run, best first. ``outcome``: what was decided, in the form of
    ``Run.outcome``."""

    run: Run
    measured: Measured
    goals: tuple[str, ...]
    clock: Kind
    places: tuple[Place, ...]
    failed: tuple[Failed, ...]
    outcome: Mapping[str, Any]
    pace: Pace | None

    @property
    def leader(self) -> Cell | None:
        """The layout in the first place."""
        return next((p.cell for p in self.places if p.rank == 1), None)

    @property
    def resolution(self) -> float:
        """The share below which differences don't matter."""
        return _resolution(self.run)

    def recommended(self) -> Cell | None:
        """Return the layout to take: the leader; the baseline where nothing is known to be better than it."""
        base = self.measured.baseline
        for place in self.places:
            if base is not None and place.cell is base and place.standing in {"equal", "open"}:
                return base
        return self.leader

    def caution(self) -> str | None:
        """Return what must be said beside any advice from this run, or None."""
        if self.clock == "emulated":
            return (
                "The target ran without hardware virtualisation: its operations and bytes are those of real "
                "ZFS, its seconds are not those of any machine. Layouts are ordered by operations and "
                "bytes; do not choose by the times."
            )
        return None


def judge(run: Run, measured: Measured, resolution: float, looks: int) -> tuple[str, Decision] | None:
    """Return the measure that decides and where the comparison stands; None while nothing can be compared.

    Layouts of a weaker durability class than the objective allows are measured but do not compete, except the
    baseline, which is what the user lives with today. Those that do not keep the pace of a paced job are not
    compared by latency but worse.
    """
    keys = goals(run, measured.cells)
    if not keys:
        return None
    values = competing(run, measured, keys[0])
    lagging = _lagging(keys, measured)
    behind = {} if lagging is None else {a: lagging.kept[a] for a in values if a in lagging.behind}
    keeping = {a: row for a, row in values.items() if a not in behind}
    decision = decide(keeping, resolution=resolution, looks=looks, behind=behind)
    return None if decision is None else (keys[0], decision)


def _lagging(keys: Sequence[str], measured: Measured) -> Pace | None:
    """Return the pace that layouts must keep; None where the first goal is something else than time."""
    return pace(measured.cells) if keys and keys[0] == "latency" else None


def competing(run: Run, measured: Measured, key: str) -> dict[str, dict[int, float]]:
    """Return arm → block → value of the layouts that may win."""
    bar = _bar(run, measured)
    return {c.arm: dict(c.values[key]) for c in measured.cells if key in c.values and bar.admits(c.layout)}


def _bar(run: Run, measured: Measured) -> Bar:
    return Bar.of(run.objective.durability, measured.base_layout)


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
                "behind": a.behind,
                # A single block has no interval; JSON has no infinity.
                "ratio": asdict(a.ratio) if a.ratio is not None and a.ratio.known else None,
            }
            for a in decision.others
        ],
    }


def sentence(found: Mapping[str, Any], resolution: float) -> str:
    """Return the state of a run in one sentence, for the user; ``found`` as ``outcome`` returns it."""
    late = [o["name"] for o in found["others"] if o.get("behind") and o["standing"] == "worse"]
    if not late:
        return _compared(found, resolution)
    who = ", ".join(late[:3]) + (f" and {len(late) - 3} more" if len(late) > 3 else "")
    return f"{_compared(found, resolution)}; {who} can't keep the pace of the job"


def _compared(found: Mapping[str, Any], resolution: float) -> str:
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


def _resolution(run: Run) -> float:
    return float(run.options.get("resolution", DEFAULT_RESOLUTION))


def standing(run: Run, trials: Sequence[Trial]) -> Standing:
    """Return how the layouts of a measured run stand."""
    found = gather(trials)
    keys = goals(run, found.cells)
    bar = _bar(run, found)
    strong = [c for c in found.cells if bar.admits(c.layout)]
    weak = [c for c in found.cells if not bar.admits(c.layout)]
    outcome = _outcome(run, found, keys)
    leader = next((c for c in strong if c.arm == outcome.get("leader")), None)
    words = {o["arm"]: o["standing"] for o in outcome.get("others", [])}
    lagging = _lagging(keys, found)

    def behind(cell: Cell) -> bool:
        return lagging is not None and cell.arm in lagging.behind

    def order(cell: Cell) -> tuple[bool, bool, float]:
        if not keys:
            return (cell is not leader, False, 0.0)
        if lagging is not None and behind(cell):
            done, asked = lagging.rates[cell.arm]
            return (True, True, -done / asked)
        ratio = _to(cell, leader, keys[0])
        value = cell.value(keys[0])
        return (
            cell is not leader,
            False,
            ratio.mean if ratio is not None else (value if value is not None else 1e300),
        )

    def place(rank: int | None, cell: Cell, word: str) -> Place:
        late = behind(cell)
        return Place(
            rank,
            cell,
            word,
            _to(cell, leader, keys[0]) if keys and not late else None,
            lagging.lag(cell.arm) if lagging is not None else "",
        )

    places = [
        place(i, c, "leader" if c is leader else words.get(c.arm, ""))
        for i, c in enumerate(sorted(strong, key=order), start=1)
    ]
    places += [place(None, c, "") for c in sorted(weak, key=order)]
    return Standing(run, found, keys, clock(run), tuple(places), found.failed, outcome, pace(found.cells))


def _outcome(run: Run, found: Measured, keys: Sequence[str]) -> Mapping[str, Any]:
    """Return the run's own decision; made anew where an older ztune decided by another measure."""
    stored: dict[str, Any] = run.outcome
    if not stored or not keys or stored.get("measure") == keys[0]:
        return stored
    least, most = run.options.get("blocks", (1, 1))
    again = judge(run, found, _resolution(run), most - least + 1)
    if again is None:
        return stored
    names = {c.arm: c.name for c in found.cells}
    return outcome(*again, str(stored.get("reason", "")), names)


def _to(cell: Cell, leader: Cell | None, key: str) -> Ratio | None:
    if leader is None or cell is leader or key not in cell.values or key not in leader.values:
        return None
    return paired(cell.values[key], leader.values[key])


def columns(found: Standing, most: int = 7) -> list[str]:
    """Return the measures that a table shows: the goals first, then what explains them. Beside the mean
    latency its p99."""
    usual = ["time", "latency", "p99", "ios", "written", "read", "space", "cpu", "mount_cpu"]
    if found.clock == "emulated":
        usual = ["ios", "written", "read", "space", "time"]
    first = ["latency", "p99"] if found.goals[:1] == ("latency",) else []
    have = [
        k
        for k in dict.fromkeys([*first, *found.goals, *usual])
        if any(k in p.cell.values for p in found.places)
    ]
    return [k for k in have if k in MEASURES][:most]
