"""Does a claim follow from its own figures?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ztune.analysis.metrics import MEASURED
from ztune.claims.claim import Claim


class Supported(StrEnum):
    """Whether the published figures show what the sentence says."""

    YES = "yes"
    NO = "no"
    NOT_ENOUGH = "not enough"


@dataclass(frozen=True, slots=True)
class Support:
    """Whether the figures show it, and why in a sentence."""

    word: Supported
    why: str


def supported(claim: Claim) -> Support:
    """Hold the relation of ``claim`` against its own figures.

    Most are single runs. What two runs of the same differ by (the publication's ``scatter``) is no
    difference, and a promised share counts as kept when the figures come that near to it.
    """
    if not claim.layouts:
        return Support(Supported.NOT_ENOUGH, "it has no figures")
    mine = claim.subject.figure
    rest = [(side.name, side.figure) for side in claim.others]
    missing = [side.name for side in claim.layouts if side.figure is None]
    if missing or mine is None:
        return Support(
            Supported.NOT_ENOUGH, f"it has no figures of {', '.join(missing) or claim.subject.name}"
        )
    ratios = {name: mine / figure for name, figure in rest if figure}
    scatter = math.log1p(claim.source.scatter)
    kept = {name: _kept(claim, ratio, scatter) for name, ratio in ratios.items()}
    good = all(kept.values())
    if claim.relation == "best" and good:
        good = any(abs(math.log(ratio)) > scatter for ratio in ratios.values())
    shown = ratios if good else {name: r for name, r in ratios.items() if not kept[name]} or ratios
    said = "; ".join(against(ratio, name) for name, ratio in shown.items())
    apart = f", where runs lie {claim.source.scatter:.1%} apart" if _near(shown.values(), scatter) else ""
    return Support(Supported.YES if good else Supported.NO, f"{claim.subject.name} has {said}{apart}")


def _kept(claim: Claim, ratio: float, scatter: float) -> bool:
    """Say whether the subject stands to one other layout as the claim says; ``scatter``: a logarithm."""
    log = math.log(ratio)
    match claim.relation:
        case "less":
            return log < -scatter and log <= math.log1p(-claim.at_least) + scatter
        case "more":
            return log > scatter and log >= math.log1p(claim.at_least) - scatter
        case "equal":
            return abs(log) <= math.log1p(claim.within)
        case "best":
            return log * (1 if MEASURED[claim.metric].less else -1) <= scatter


def _near(ratios: Iterable[float], scatter: float) -> bool:
    return any(abs(math.log(ratio)) <= scatter for ratio in ratios)


def against(ratio: float, other: str) -> str:
    """Return a ratio to ``other`` in words: "11.3% less than X", "2.1 times that of X", "as much as X"."""
    if ratio >= 2:
        return f"{ratio:,.{1 if ratio < 10 else 0}f} times that of {other}"
    if abs(ratio - 1) < 0.0005:
        return f"as much as {other}"
    return f"{abs(ratio - 1):.1%} {'more' if ratio >= 1 else 'less'} than {other}"
