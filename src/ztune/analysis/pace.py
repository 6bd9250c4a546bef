"""The pace of a job whose operations become due at a rate, and which layouts keep it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ztune.analysis import units
from ztune.analysis.metrics import Raw, number_at
from ztune.analysis.results import LayoutResult

_KEPT_UP = 0.95  # of the rate
# Rates that are a job's own agree to half a per cent; the same to within this where nobody says what was
# asked for.
_SAME_RATE = 0.01


@dataclass(frozen=True)
class Pace:
    """A job whose operations became due at a rate, and how the layouts kept up with it.

    ``kept``: arm → block → operations done, over the fewest that count as keeping up: below 1 the layout fell
    behind.
    ``rates``: arm → operations per second, done and asked for; medians. Both are empty where only the
    layouts' own agreement shows the rate. ``behind``: the arms that fell behind in most of their blocks.
    """

    kept: Mapping[str, Mapping[int, float]]
    rates: Mapping[str, tuple[float, float]]
    behind: frozenset[str]

    def lag(self, arm: str) -> str:
        """Return how far a layout fell behind, as a clause; "" for one that kept up."""
        if arm not in self.behind:
            return ""
        done, asked = self.rates[arm]
        return f"falls behind: {units.show(done, 'rate')} of {units.show(asked, 'rate')}/s"


def pace(cells: Sequence[LayoutResult]) -> Pace | None:
    """Return the pace that the job was given; None where it went as fast as it could, under every layout.

    From what each trial says was asked for and what was done. Where no trial says it, as in runs of an older
    ztune, all layouts doing the same per second show it, of a job that tells its latency: one that does not,
    such as an import, has no pace, and takes the same time where its disks don't matter.
    """
    known = [c for c in cells if "per_second" in c.values]
    asked = [v for c in known for v in c.values.get("offered", {}).values()]
    if not asked:
        speeds = [v for c in known if "latency" in c.values and (v := c.value("per_second"))]
        same = len(speeds) > 1 and max(speeds) <= min(speeds) * (1 + _SAME_RATE)
        return Pace({}, {}, frozenset()) if same else None
    usual = median(asked)
    if usual <= 0:
        return None
    best: dict[int, float] = defaultdict(float)
    for cell in known:
        for block, done in cell.values["per_second"].items():
            best[block] = max(best[block], done)
    kept, rates = {}, {}
    for cell in known:
        offered = {b: cell.values.get("offered", {}).get(b) or usual for b in cell.values["per_second"]}
        kept[cell.arm] = {
            b: done / (_KEPT_UP * _due(offered[b], best[b], cell.results[b]))
            for b, done in cell.values["per_second"].items()
        }
        rates[cell.arm] = (median(cell.values["per_second"].values()), median(offered.values()))
    behind = frozenset(arm for arm, row in kept.items() if median(row.values()) < 1)
    return None if len(behind) == len(kept) else Pace(kept, rates, behind)


def _due(offered: float, best: float, result: Raw) -> float:
    """Return how many operations per second became due: what the ``best`` layout of the block did, if chance
    explains that it is less than was ``offered``.

    pgbench and sysbench draw the times at which transactions become due, the same for all layouts
    (pgbench(1), --rate: Poisson): of N that are expected √N fewer become due by chance, and one time in forty
    2 √N fewer.
    """
    expected = offered * (number_at(result, "job", "seconds") or 0.0)
    chance = min(0.5, 2 / expected**0.5) if expected > 0 else 0.0
    return min(offered, max(best, offered * (1 - chance)))
