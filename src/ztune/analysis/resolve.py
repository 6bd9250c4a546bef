"""Is the best layout known yet? Asked after each block, so that no block too many is run.

Asking again and again, of many layouts, would find a difference by chance sooner or later. So each answer
uses a stricter level: the chance of any wrong "different" over all looks and all layouts stays below 5 %
(Bonferroni: 5 % divided by their number).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ztune.analysis.paired import LEVEL, Ratio, blocks_needed, log_ratios, paired

DEFAULT_RESOLUTION = 0.02
LayoutStanding = Literal["leader", "worse", "equal", "open"]
Certainty = Literal["resolved", "equal", "open"]


@dataclass(frozen=True)
class Against:
    """One layout against the leader. ``needed``: blocks in all to settle it; None where settled or
    hopeless. ``behind``: it does not keep the pace of the job, which is what makes it worse.
    """

    arm: str
    standing: LayoutStanding
    ratio: Ratio | None  # layout / leader: above 1 is worse; None for one that is behind
    needed: int | None = None
    behind: bool = False


@dataclass(frozen=True)
class Decision:
    """Where the comparison stands.

    ``verdict``: "resolved": each other layout is worse than the leader, or equal to it within the resolution;
    "equal": all are equal within the resolution; "open": some are undecided.
    ``needed``: blocks in all that would settle everything, as far as the spread so far tells; None where
    settled, or where not even 10,000 would do.
    """

    leader: str
    verdict: Certainty
    blocks: int
    others: tuple[Against, ...]
    needed: int | None
    level: float

    @property
    def open(self) -> tuple[str, ...]:
        """The layouts that are not settled."""
        return tuple(a.arm for a in self.others if a.standing == "open")


def adjusted(looks: int, comparisons: int, level: float = LEVEL) -> float:
    """Return the confidence level of one answer so that all of them together have ``level``."""
    return 1 - (1 - level) / max(1, looks * comparisons)


def leader(values: Mapping[str, Mapping[int, float]]) -> str | None:
    """Return the arm with the least value, by the mean logarithm of the ratios over the blocks that two
    share.
    """
    arms = [a for a, v in values.items() if any(x > 0 for x in v.values())]
    best: str | None = None
    for arm in arms:
        if best is None:
            best = arm
            continue
        if sum(log_ratios(values[arm], values[best])) < 0:
            best = arm
    return best


def decide(
    values: Mapping[str, Mapping[int, float]],
    *,
    resolution: float = DEFAULT_RESOLUTION,
    looks: int = 1,
    behind: Mapping[str, Mapping[int, float]] | None = None,
) -> Decision | None:
    """Return where ``values`` (arm → block → value, less is better) stand; None with fewer than two.

    ``resolution`` is a share (0.02 = 2 %): differences below it don't matter. ``looks``: how often the
    question is asked in all. ``behind``: further arms, which do not keep the pace of the job: what they did
    in each block over what would have kept it. They are worse once that is below 1 beyond its interval.
    """
    late = behind or {}
    best = leader(values)
    rest = [a for a in values if a != best]
    if best is None or not (rest or late):
        return None
    level = adjusted(looks, len(rest) + len(late))
    others = [_against(arm, paired(values[arm], values[best], level), resolution) for arm in rest]
    others += [_behind(arm, row, resolution, level) for arm, row in late.items()]
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
    )


def _against(arm: str, ratio: Ratio | None, resolution: float) -> Against:
    if ratio is None or not ratio.known:
        return Against(arm, "open", ratio)
    limit = math.log1p(resolution)
    if ratio.low > 0 and math.log(ratio.low) >= -limit and math.log(ratio.high) <= limit:
        return Against(arm, "equal", ratio)
    if ratio.low > 1:
        return Against(arm, "worse", ratio)
    return Against(arm, "open", ratio, blocks_needed(ratio, resolution, ratio.level))


def _behind(arm: str, kept: Mapping[int, float], resolution: float, level: float) -> Against:
    ratio = paired(kept, dict.fromkeys(kept, 1.0), level)
    if ratio is not None and ratio.known and ratio.high < 1:
        return Against(arm, "worse", None, behind=True)
    needed = None if ratio is None else blocks_needed(ratio, resolution, level)
    return Against(arm, "open", None, needed, behind=True)
