"""The standing of a measured run: layouts in order, and what may be concluded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ztune.analysis.candidates import Failed
from ztune.analysis.measured import MEASURES, Cell, Kind, Measured, clock, gather, goals
from ztune.analysis.paired import Ratio, paired
from ztune.store.records import Run, Trial
from ztune.study.durability import Bar


@dataclass(frozen=True)
class Place:
    """A layout in its place. ``rank`` is None for one that is not known to be as durable as is allowed.

    ``standing``: leader, worse, equal or open, as the run's last decision has it; "" where there is none.
    ``to_leader``: its ratio to the leader in the measure that decides.
    """

    rank: int | None
    cell: Cell
    standing: str
    to_leader: Ratio | None


@dataclass(frozen=True)
class Standing:
    """All layouts of a measured run, best first."""

    run: Run
    measured: Measured
    goals: tuple[str, ...]
    clock: Kind
    places: tuple[Place, ...]
    failed: tuple[Failed, ...]

    @property
    def leader(self) -> Cell | None:
        """The layout in the first place."""
        return next((p.cell for p in self.places if p.rank == 1), None)

    @property
    def resolution(self) -> float:
        """The share below which differences don't matter."""
        return float(self.run.options.get("resolution", 0.02))

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


def standing(run: Run, trials: Sequence[Trial]) -> Standing:
    """Return how the layouts of a measured run stand."""
    found = gather(trials)
    keys = goals(run, found.cells)
    bar = Bar.of(run.objective.durability, next((t.layout for t in trials if t.is_baseline), None))
    strong = [c for c in found.cells if bar.admits(c.layout)]
    weak = [c for c in found.cells if not bar.admits(c.layout)]
    outcome: dict[str, Any] = run.outcome
    leader = next((c for c in strong if c.arm == outcome.get("leader")), None)
    words = {o["arm"]: o["standing"] for o in outcome.get("others", [])}

    def order(cell: Cell) -> tuple[bool, float]:
        if not keys:
            return (cell is not leader, 0.0)
        ratio = _to(cell, leader, keys[0])
        value = cell.value(keys[0])
        return (
            cell is not leader,
            ratio.mean if ratio is not None else (value if value is not None else 1e300),
        )

    places = [
        Place(
            i,
            c,
            "leader" if c is leader else words.get(c.arm, ""),
            _to(c, leader, keys[0]) if keys else None,
        )
        for i, c in enumerate(sorted(strong, key=order), start=1)
    ]
    places += [Place(None, c, "", _to(c, leader, keys[0]) if keys else None) for c in sorted(weak, key=order)]
    return Standing(run, found, keys, clock(run), tuple(places), found.failed)


def _to(cell: Cell, leader: Cell | None, key: str) -> Ratio | None:
    if leader is None or cell is leader or key not in cell.values or key not in leader.values:
        return None
    return paired(cell.values[key], leader.values[key])


def columns(found: Standing, most: int = 7) -> list[str]:
    """Return the measures that a table shows: the goals first, then what explains them."""
    usual = ["time", "latency", "p99", "ios", "written", "read", "space", "cpu", "mount_cpu"]
    if found.clock == "emulated":
        usual = ["ios", "written", "read", "space", "time"]
    have = [k for k in dict.fromkeys([*found.goals, *usual]) if any(k in p.cell.values for p in found.places)]
    return [k for k in have if k in MEASURES][:most]
