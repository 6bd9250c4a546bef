"""Is the best layout known yet? Asked after each block, so that no block too many is run.

Asking again and again, of many layouts, would find a difference by chance sooner or later. So each answer
uses a stricter level: the chance of any wrong "different" over all looks and all layouts stays below 5 %
(Bonferroni: 5 % divided by the number of looks and of pairs of layouts).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ztune.analysis.paired import LEVEL, Ratio, blocks_needed, paired

DEFAULT_RESOLUTION = 0.02
LayoutStanding = Literal["leader", "worse", "equal", "open"]
Certainty = Literal["resolved", "equal", "open"]


@dataclass(frozen=True)
class Against:
    """One layout against the leader. ``needed``: blocks in all to settle it; None where settled or
    hopeless. ``behind``: it does not keep the pace of the job, which is what makes it worse. ``only_on``: the
    one host without which it is not known to be worse.
    """

    arm: str
    standing: LayoutStanding
    ratio: Ratio | None  # layout / leader: above 1 is worse; None for one that is behind
    needed: int | None = None
    behind: bool = False
    only_on: str = ""


@dataclass(frozen=True)
class Decision:
    """Where the comparison stands.

    ``verdict``: "resolved": each other layout is worse than the leader, or equal to it within the resolution;
    "equal": all are equal within the resolution; "open": some are undecided.
    ``blocks``: of the leader; ``runs``: the fewest and the most of any layout. ``needed``: blocks in all that
    would settle everything, as far as the spread so far tells; None where settled, or where not even 10,000
    would do.
    """

    leader: str
    verdict: Certainty
    blocks: int
    others: tuple[Against, ...]
    needed: int | None
    level: float
    runs: tuple[int, int] = (0, 0)

    @property
    def open(self) -> tuple[str, ...]:
        """The layouts that are not settled."""
        return tuple(a.arm for a in self.others if a.standing == "open")


def adjusted(looks: int, comparisons: int, level: float = LEVEL) -> float:
    """Return the confidence level of one answer so that all of them together have ``level``."""
    return 1 - (1 - level) / max(1, looks * comparisons)


def effects(
    values: Mapping[str, Mapping[int, float]], hosts: Mapping[int, str] | None = None
) -> dict[str, float]:
    """Return what each arm does to the logarithm of a value, as a difference to the mean of all arms.

    The least squares of arms and blocks, so that arms need not have run in the same blocks; where all did,
    differences are the mean logarithms of the blocks' ratios. Arms without a value above 0 are left out.
    ``hosts``: the host of each block; each weighs as much as any other.
    """
    import numpy as np  # here, as it takes long to load

    arms = [a for a, v in values.items() if any(x > 0 for x in v.values())]
    rows = [(i, block, x) for i, a in enumerate(arms) for block, x in values[a].items() if x > 0]
    if not rows:
        return {}
    blocks = sorted({block for _, block, _ in rows})
    design = np.zeros((len(rows), len(arms) + len(blocks)))
    for at, (i, block, _) in enumerate(rows):
        design[at, i] = design[at, len(arms) + blocks.index(block)] = 1.0
    on = Counter((hosts or {}).get(block, "") for block in blocks)
    weights = np.sqrt([1.0 / on[(hosts or {}).get(block, "")] for _, block, _ in rows])
    logs = np.log([x for _, _, x in rows])
    solved = np.linalg.lstsq(design * weights[:, None], logs * weights, rcond=None)[0][: len(arms)]
    return dict(zip(arms, (solved - solved.mean()).tolist(), strict=True))


def leader(values: Mapping[str, Mapping[int, float]], hosts: Mapping[int, str] | None = None) -> str | None:
    """Return the arm with the least value, blocks apart; the first of equal ones."""
    found = effects(values, hosts)
    return min(found, key=lambda arm: round(found[arm], 9), default=None)


def decide(
    values: Mapping[str, Mapping[int, float]],
    *,
    resolution: float = DEFAULT_RESOLUTION,
    looks: int = 1,
    behind: Mapping[str, Mapping[int, float]] | None = None,
    hosts: Mapping[int, str] | None = None,
) -> Decision | None:
    """Return where ``values`` (arm → block → value, less is better) stand; None with fewer than two.

    ``resolution`` is a share (0.02 = 2 %): differences below it don't matter. ``looks``: how often the
    question is asked in all. ``behind``: further arms, which do not keep the pace of the job: what they did
    in each block over what would have kept it. They are worse once that is below 1 beyond its interval.
    ``hosts``: the host of each block, where there are several. What is known then holds with any one of them
    left out too: what one host alone shows is not.
    """
    late = behind or {}
    best = leader(values, hosts)
    rest = [a for a in values if a != best]
    if best is None or not (rest or late):
        return None
    # The values themselves say who leads, so any of the pairs may turn out to be asked about.
    pairs = len(rest) * (len(rest) + 1) // 2
    level = adjusted(looks, pairs + len(late))
    others = [_against(arm, values, best, level, resolution, hosts) for arm in rest]
    others += [_behind(arm, row, resolution, level, hosts) for arm, row in late.items()]
    blocks = len(values[best])
    undecided = [a for a in others if a.standing == "open"]
    if undecided:
        verdict: Certainty = "open"
    else:
        verdict = "equal" if all(a.standing == "equal" for a in others) else "resolved"
    needed = [a.needed for a in undecided]
    return Decision(
        leader=best,
        verdict=verdict,
        blocks=blocks,
        others=tuple(others),
        needed=None if not needed or None in needed else max(n for n in needed if n is not None),
        level=level,
        runs=(min(map(len, values.values())), max(map(len, values.values()))),
    )


def _against(
    arm: str,
    values: Mapping[str, Mapping[int, float]],
    best: str,
    level: float,
    resolution: float,
    hosts: Mapping[int, str] | None,
) -> Against:
    ratio = paired(values[arm], values[best], level, hosts=hosts)
    if ratio is None or not ratio.known:
        # It may have stopped before the leader joined, as worse than one that the leader is no worse than.
        others = [row for other, row in values.items() if other not in (arm, best)]
        rest = [paired(values[arm], row, level, hosts=hosts) for row in others]
        worse = any(one is not None and one.known and one.low > 1 and not one.alone() for one in rest)
        return Against(arm, "worse" if worse else "open", ratio)
    limit = math.log1p(resolution)
    ends = [(ratio.low, ratio.high), *([ratio.without_one] if ratio.without_one else [])]
    if all(low > 0 and math.log(low) >= -limit and math.log(high) <= limit for low, high in ends):
        return Against(arm, "equal", ratio)
    if all(low > 1 for low, _ in ends):
        return Against(arm, "worse", ratio)
    needed = None if ratio.alone() else blocks_needed(ratio, resolution, ratio.level)
    return Against(arm, "open", ratio, needed, only_on=ratio.alone())


def _behind(
    arm: str, kept: Mapping[int, float], resolution: float, level: float, hosts: Mapping[int, str] | None
) -> Against:
    # The other way round, so that above 1 is worse here too.
    ratio = paired(dict.fromkeys(kept, 1.0), kept, level, hosts=hosts)
    if ratio is not None and ratio.known and ratio.low > 1 and not ratio.alone():
        return Against(arm, "worse", None, behind=True)
    needed = None if ratio is None else blocks_needed(ratio, resolution, level)
    return Against(arm, "open", None, needed, behind=True, only_on=ratio.alone() if ratio else "")
