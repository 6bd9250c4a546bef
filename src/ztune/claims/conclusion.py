"""What our trials say of a claim: it holds, holds only if …, or does not hold here.

Pure: what was measured comes in, one ``Tried`` for each condition; words go out. "Does not hold here" is
never "was wrong then": another machine, another version and often another database were tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Literal

from ztune.analysis.metrics import MEASURED
from ztune.analysis.paired import Ratio
from ztune.claims.claim import Claim
from ztune.claims.support import Support, Supported, against
from ztune.units import format_size

Upshot = Literal["holds", "fails", "open", "untried"]
"""Of one condition; ``open``: what difference there may be is too small to tell."""


class Word(StrEnum):
    """What may be concluded."""

    HOLDS = "holds"
    ONLY_IF = "holds only if"
    NO_LONGER = "no longer holds"
    NEVER = "never supported by its own figures"
    TOO_SMALL = "too small to tell"
    CANNOT = "can't be tested here"


@dataclass(frozen=True, slots=True)
class Condition:
    """What a comparison was made under. ``arc``: bytes; ``openzfs``: as the engine or module says it."""

    place: str
    profile: str
    arc: int
    openzfs: str

    @property
    def text(self) -> str:
        """The condition for people."""
        return ", ".join(_part(f.name, getattr(self, f.name)) for f in fields(self))


@dataclass(frozen=True, slots=True)
class Compared:
    """The claim's first layout over another: the paired ratio of the metric, with its interval.

    One without an interval has 0 to infinity. A replay repeats exactly, which says nothing of how far it is
    off: its interval has no width, and the condition's ``smallest`` is what can be told from none.
    """

    other: str
    ratio: float
    low: float
    high: float

    @property
    def exact(self) -> bool:
        """Whether the interval has no width."""
        return self.low == self.high

    @classmethod
    def of(cls, other: str, ratio: Ratio) -> Compared:
        """Return the comparison that ``ratio``, the claim's layout over ``other``, makes."""
        return cls(other, ratio.mean, ratio.low, ratio.high)


@dataclass(frozen=True, slots=True)
class Tried:
    """What was found under one condition.

    ``smallest``: the smallest difference that matters and could be seen, a share; what lies within it is no
    difference. ``trials``: what the figures rest on. ``untried``: why there are none, in words.
    """

    condition: Condition
    compared: tuple[Compared, ...] = ()
    smallest: float = 0.02
    trials: tuple[str, ...] = ()
    untried: str = ""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What may be said of a claim. ``states``: of each condition, in the order they were given."""

    word: Word
    sentence: str
    states: tuple[tuple[Tried, Upshot], ...]

    @property
    def trials(self) -> tuple[str, ...]:
        """The trials that it cites, each once."""
        return tuple(dict.fromkeys(trial for tried, _ in self.states for trial in tried.trials))


def state(claim: Claim, tried: Tried) -> Upshot:
    """Return whether the claim's relation holds under one condition.

    It holds only where it does against each other layout of the claim; those that were not compared leave it
    open. Raises ValueError for a comparison with a layout that is not the claim's.
    """
    if not tried.compared:
        return "untried"
    others = {side.name for side in claim.others}
    for each in tried.compared:
        if each.other not in others:
            raise ValueError(f"{claim.id} compares nothing with {each.other}")
    found = [_one(claim, each, tried.smallest) for each in tried.compared]
    limit = math.log1p(tried.smallest)
    if "fails" in found:
        return "fails"
    if "open" in found or others > {each.other for each in tried.compared}:
        return "open"
    if claim.relation != "best":
        return "holds"
    # None beats it; but where all are as good as it, it is not the best either.
    if all(_none(each, limit) for each in tried.compared):
        return "fails"
    worse = any(_better(claim, each)[1] < 0 and not _within(each, limit) for each in tried.compared)
    return "holds" if worse else "open"


def conclude(claim: Claim, support: Support, tried: Sequence[Tried]) -> Conclusion:
    """Return what may be said of ``claim`` after ``tried``, one for each condition.

    ``support``: whether its own figures show it. Where they don't, that is the word, and the sentence goes on
    with what was found here.
    """
    states = tuple((each, "untried" if claim.cannot else state(claim, each)) for each in tried)
    done = [(each, s) for each, s in states if s != "untried"]
    word, sentence = _here(claim, states, done)
    if support.word is Supported.NO:
        word, sentence = Word.NEVER, f"Its own figures do not show it: {support.why}. {sentence}"
    return Conclusion(word, sentence, states)


def _here(
    claim: Claim, states: Sequence[tuple[Tried, Upshot]], done: Sequence[tuple[Tried, Upshot]]
) -> tuple[Word, str]:
    if not done:
        reasons = dict.fromkeys(filter(None, [claim.cannot, *(each.untried for each, _ in states)]))
        return Word.CANNOT, f"It can't be tested here: {'; '.join(reasons) or 'nothing was tried'}."
    holding = [each for each, s in done if s == "holds"]
    failing = [each for each, s in done if s == "fails"]
    opened = [each for each, s in done if s == "open"]
    left = len(states) - len(done)
    why = "; ".join(dict.fromkeys(filter(None, (each.untried for each, _ in states))))
    rest = f" {left} of {len(states)} conditions were not tried{f': {why}' if why else ''}." if left else ""
    if not holding and not failing:
        least = max(each.smallest for each in opened)
        return (
            Word.TOO_SMALL,
            f"Too small to tell: differences below {least:.1%} could not be seen here.{rest}",
        )
    if not holding:
        few = f"; too small to tell with {_where(opened, failing)}" if opened else ""
        return Word.NO_LONGER, f"It does not hold here: {_evidence(failing[0])}{few}.{rest}"
    if not failing and not opened:
        return Word.HOLDS, f"It holds under {_count(len(holding))}: {_evidence(holding[0])}.{rest}"
    parts = [f"It holds only with {_where(holding, [*failing, *opened])}: {_evidence(holding[0])}."]
    if failing:
        parts.append(
            f"It does not hold with {_where(failing, [*holding, *opened])}: {_evidence(failing[0])}."
        )
    if opened:
        parts.append(f"It is too small to tell with {_where(opened, [*holding, *failing])}.")
    return Word.ONLY_IF, " ".join(parts) + rest


def _one(claim: Claim, each: Compared, smallest: float) -> Upshot:
    """Return whether the relation holds of one pair."""
    limit = math.log1p(smallest)
    low, high = _better(claim, each) if claim.relation == "best" else (_log(each.low), _log(each.high))
    if each.exact and each.ratio != 1:
        low, high = low - limit, high + limit
    if claim.relation == "best":
        return "holds" if high <= limit else "fails" if low > 0 else "open"
    if claim.relation == "equal":
        band = math.log1p(claim.within)
        return "holds" if -band <= low and high <= band else "fails" if low > band or high < -band else "open"
    if claim.relation == "more":  # the same question of the ratio turned over
        low, high = -high, -low
        bound = -math.log1p(claim.at_least)
    else:
        bound = math.log1p(-claim.at_least)
    if _none(each, limit) or low > bound or low >= 0:
        return "fails"
    return "holds" if high <= bound and high < 0 else "open"


def _better(claim: Claim, each: Compared) -> tuple[float, float]:
    """Return the interval of the ratio's logarithm; below 0 the claim's layout is the better."""
    low, high = _log(each.low), _log(each.high)
    return (low, high) if MEASURED[claim.metric].less else (-high, -low)


def _none(each: Compared, limit: float) -> bool:
    """Return whether there is no difference that matters; in a replay, none at all."""
    return each.ratio == 1 if each.exact else _within(each, limit)


def _within(each: Compared, limit: float) -> bool:
    return -limit <= _log(each.low) and _log(each.high) <= limit


def _log(value: float) -> float:
    return -math.inf if value <= 0 else math.log(value)


def flips(conclusion: Conclusion) -> str:
    """Return under which conditions it holds, does not, and can't be told; empty where all are the same."""
    by: dict[Upshot, list[Tried]] = {}
    for each, upshot in conclusion.states:
        by.setdefault(upshot, []).append(each)
    by.pop("untried", None)
    if len(by) < 2:
        return ""
    said: dict[Upshot, str] = {"holds": "holds", "fails": "does not", "open": "too small to tell"}
    return "; ".join(
        f"{words} with {_where(by[u], [t for other, ts in by.items() if other != u for t in ts])}"
        for u, words in said.items()
        if u in by
    )


def _where(these: Sequence[Tried], those: Sequence[Tried]) -> str:
    """Return in words what sets the conditions ``these`` apart from ``those``, by as few factors as do."""
    names = [f.name for f in fields(Condition)]
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, size):
            mine = dict.fromkeys(tuple(getattr(t.condition, n) for n in chosen) for t in these)
            other = {tuple(getattr(t.condition, n) for n in chosen) for t in those}
            if those and not other & mine.keys():
                return " or ".join(
                    ", ".join(_part(n, v) for n, v in zip(chosen, values, strict=True)) for values in mine
                )
    return " or ".join(t.condition.text for t in these)


def _part(name: str, value: object) -> str:
    match name:
        case "profile":
            return f"disks of {value}"
        case "arc":
            return f"an ARC of {format_size(value) if isinstance(value, int) else value}"
        case "openzfs":
            return f"OpenZFS {value}"
    return str(value)


def _count(n: int) -> str:
    return "the one condition tried" if n == 1 else f"all {n} conditions tried"


def _evidence(tried: Tried) -> str:
    """Return one condition's figures: the ratio to each other layout, with its interval."""
    ratios = "; ".join(
        against(c.ratio, c.other) + ("" if c.exact else f" ({c.low:.2f} … {c.high:.2f})")
        for c in tried.compared
    )
    cited = f" [{', '.join(tried.trials)}]" if tried.trials else ""
    return f"{tried.condition.text}: {ratios}{cited}"
