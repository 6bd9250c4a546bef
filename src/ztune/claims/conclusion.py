"""What our trials say of a claim: it holds, holds only if …, or does not hold here.

Pure: what was measured comes in, one ``Tried`` for each condition; words go out. "Does not hold here" is
never "was wrong then": another machine, another version and often another database were tried. Of times,
what was measured decides over what a replay models of the same disks.
"""

from __future__ import annotations

import itertools
import math
import re
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
Scatter = float | Literal["not known"] | None


REPLAY = "replay"


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
    """What a comparison was made under. ``arc``: bytes; ``openzfs``: as the engine or module says it.

    ``place``: "replay", or that of trials in real time.
    """

    place: str
    profile: str
    arc: int
    openzfs: str

    @property
    def modelled(self) -> bool:
        """Whether its times come from a model."""
        return self.place == REPLAY

    @property
    def elsewhere(self) -> tuple[str, int, str]:
        """What it has in common with the same condition at another place."""
        # A module says its package's version as well: 2.3.2-1.
        return self.profile, self.arc, self.openzfs.partition("-")[0]

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
    difference. ``trials``: what the figures rest on. ``untried``: why there are none, in words; ``failed``:
    something went wrong, which would go well another time.

    ``instead``: what was measured in place of the time of a job that keeps a pace. ``unheld``: nobody has
    held such figures against a real disk. ``scatter``: how far two recordings of one job lie apart, a share,
    where the layouts are of different recordings: within ``smallest`` where it is known.
    """

    condition: Condition
    compared: tuple[Compared, ...] = ()
    smallest: float = 0.02
    trials: tuple[str, ...] = ()
    untried: str = ""
    failed: bool = False
    instead: str = ""
    unheld: bool = False
    scatter: Scatter = None


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What may be said of a claim. ``states``: of each condition, in the order they were given.

    ``decided``: those of them that the word rests on. ``hint``: it rests on nothing but modelled times that
    nobody has held against a real disk.
    ``disagree``: where what was measured and what was replayed differ, in sentences.
    """

    word: Word
    sentence: str
    states: tuple[tuple[Tried, Upshot], ...]
    decided: tuple[tuple[Tried, Upshot], ...] = ()
    hint: bool = False
    disagree: tuple[str, ...] = ()

    @property
    def trials(self) -> tuple[str, ...]:
        """The trials that it cites, each once."""
        return tuple(dict.fromkeys(trial for tried, _ in self.states for trial in tried.trials))


def joined(tried: Sequence[Tried], stands: Sequence[Tried]) -> tuple[Tried, ...]:
    """Return what was ``tried`` now with what ``stands`` of earlier, in one order: replays first, by version.

    What was tried again counts as it is now.
    """
    again = {each.condition for each in tried}
    every = [*tried, *(each for each in stands if each.condition not in again)]
    profiles = list(dict.fromkeys(each.condition.profile for each in every))
    return tuple(
        sorted(
            every,
            key=lambda each: (
                not each.condition.modelled,
                [int(part) for part in re.findall(r"\d+", each.condition.openzfs)],
                profiles.index(each.condition.profile),
                each.condition.arc,
            ),
        )
    )


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


def undecided(claim: Claim, tried: Tried) -> set[str]:
    """Return the other layouts whose comparison has to be known better for ``state`` to tell; none once it
    does.
    """
    if state(claim, tried) in ("holds", "fails"):
        return set()
    known = {each.other: _one(claim, each, tried.smallest) for each in tried.compared}
    others = {side.name for side in claim.others}
    return {name for name in others if known.get(name, "open") == "open"} or others


def conclude(claim: Claim, support: Support, tried: Sequence[Tried]) -> Conclusion:
    """Return what may be said of ``claim`` after ``tried``, one for each condition.

    ``support``: whether its own figures show it. Where they don't, that is the word, and the sentence goes on
    with what was found here.
    """
    states: States = tuple((each, "untried" if claim.cannot else state(claim, each)) for each in tried)
    decided = _deciding(claim, states)
    word, sentence = _here(claim, states, decided)
    beside = [pair for pair in states if pair[1] != "untried" and pair not in decided]
    differ = _disagreements(decided, beside)
    telling = [each for each, s in decided if s in ("holds", "fails")]
    hint = bool(telling) and all(each.unheld for each in telling)
    more = [_replayed(beside), *differ]
    if any(each.unheld for each in telling):
        what = "That" if hint else "What is modelled of flash or of latencies"
        more.append(f"{what} is a hint: {_UNHELD}.")
    more += [
        f"Its job keeps a pace, so it was measured by its {what}."
        for what in dict.fromkeys(each.instead for each, _ in decided if each.instead)
    ]
    more += _scatters(decided)
    sentence = " ".join(filter(None, [sentence, *more]))
    if support.word is Supported.NO:
        word, sentence = Word.NEVER, f"Its own figures do not show it: {support.why}. {sentence}"
        # What is a hint is what was found here, and that is not the word.
        hint = False
    return Conclusion(word, sentence, states, tuple(decided), hint, tuple(differ))


States = tuple[tuple[Tried, Upshot], ...]
_UNHELD = "nobody has held such modelled times against a real disk"


def _deciding(claim: Claim, states: Sequence[tuple[Tried, Upshot]]) -> list[tuple[Tried, Upshot]]:
    """Return the conditions that decide: of times, a replay counts only of disks that nothing was measured
    on, and none at all where one says other than what was measured under the same condition.
    """
    done = [pair for pair in states if pair[1] != "untried"]
    if not MEASURED[claim.metric].clock:
        return done
    beside = [each for each, _ in done if each.condition.modelled]
    measured = {each.condition.profile for each, _ in done if not each.condition.modelled}
    if any(_contradicts(one, each) for one, _ in done if not one.condition.modelled for each in beside):
        return [(each, s) for each, s in done if not each.condition.modelled]
    return [
        (each, s) for each, s in done if not (each.condition.modelled and each.condition.profile in measured)
    ]


def _replayed(beside: Sequence[tuple[Tried, Upshot]]) -> str:
    """Return what replays said of conditions that do not decide; empty without any."""
    if not beside:
        return ""
    found = _by_upshot(beside)
    if len(found) == 1:
        (upshot,) = found
        where = "the one condition" if len(beside) == 1 else f"all {len(beside)} conditions"
        said = {"holds": "holds", "fails": "does not hold", "open": "is too small to tell"}[upshot]
        return f"By replay, which models time, it {said} under {where}."
    return f"By replay, which models time, it {_apart(found)}."


def _disagreements(
    decided: Sequence[tuple[Tried, Upshot]], beside: Sequence[tuple[Tried, Upshot]]
) -> list[str]:
    """Return a sentence for each condition that was measured one way and replayed the other way."""
    return [
        f"Measured and modelled disagree with {_part('profile', measured.condition.profile)} and "
        f"{_part('arc', measured.condition.arc)}: {_ratios(measured)} measured, "
        f"{_ratios(modelled)} modelled; no modelled time of this claim counts."
        for measured, _ in decided
        for modelled, _ in beside
        if _contradicts(measured, modelled)
    ]


def _contradicts(measured: Tried, modelled: Tried) -> bool:
    """Return whether a replay of the condition that ``measured`` is of lies outside its interval, by more
    than a replay can tell."""
    if measured.condition.modelled or measured.condition.elsewhere != modelled.condition.elsewhere:
        return False
    limit, replays = math.log1p(modelled.smallest), {each.other: each for each in modelled.compared}
    return any(
        _log(replays[one.other].ratio) + limit < _log(one.low)
        or _log(replays[one.other].ratio) - limit > _log(one.high)
        for one in measured.compared
        if one.other in replays
    )


def _scatters(decided: Sequence[tuple[Tried, Upshot]]) -> list[str]:
    known = [each.scatter for each, _ in decided if isinstance(each.scatter, float)]
    if known:
        apart = f"two of one job lie up to {max(known):.1%} apart, which counts as no difference"
        return [f"Its layouts are of different recordings; {apart}."]
    if any(each.scatter is not None for each, _ in decided):
        return ["Its layouts are of different recordings; how far two of one job lie apart is not known."]
    return []


def _here(
    claim: Claim, states: Sequence[tuple[Tried, Upshot]], done: Sequence[tuple[Tried, Upshot]]
) -> tuple[Word, str]:
    if not done:
        reasons = dict.fromkeys(filter(None, [claim.cannot, *(each.untried for each, _ in states)]))
        return Word.CANNOT, f"It can't be tested here: {'; '.join(reasons) or 'nothing was tried'}."
    holding = [each for each, s in done if s == "holds"]
    failing = [each for each, s in done if s == "fails"]
    opened = [each for each, s in done if s == "open"]
    left = sum(s == "untried" for _, s in states)
    why = "; ".join(dict.fromkeys(filter(None, (each.untried for each, _ in states))))
    rest = f" {left} of {len(states)} conditions were not tried{f': {why}' if why else ''}." if left else ""
    if not holding and not failing:
        measured = next((each for each in opened if not each.condition.modelled), None)
        if measured is not None:
            what = "Too small to tell"
            if claim.at_least and _goes_its_way(claim, measured):
                what = f"It goes the way that it says; whether by {claim.at_least:.0%} is too small to tell"
            return Word.TOO_SMALL, f"{what}: {_evidence(measured)}.{rest}"
        least = max(each.smallest for each in opened)
        return (
            Word.TOO_SMALL,
            f"Too small to tell: differences below {least:.1%} could not be seen here.{rest}",
        )
    if not holding:
        few = f"; too small to tell {_where(opened, failing)}" if opened else ""
        return Word.NO_LONGER, f"It does not hold here: {_evidence(failing[0])}{few}.{rest}"
    if not failing and not opened:
        return Word.HOLDS, f"It holds under {_count(len(holding))}: {_evidence(holding[0])}.{rest}"
    parts = [f"It holds only {_where(holding, [*failing, *opened])}: {_evidence(holding[0])}."]
    if failing:
        parts.append(f"It does not hold {_where(failing, [*holding, *opened])}: {_evidence(failing[0])}.")
    if opened:
        parts.append(f"It is too small to tell {_where(opened, [*holding, *failing])}.")
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


def _goes_its_way(claim: Claim, tried: Tried) -> bool:
    """Return whether the claim's layout is on the side that it says of each other one, by however little."""
    if {each.other for each in tried.compared} != {side.name for side in claim.others}:
        return False
    less = claim.relation == "less"
    return claim.relation in ("less", "more") and all(
        _log(each.high) < 0 if less else _log(each.low) > 0 for each in tried.compared
    )


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
    """Return under which conditions it holds, does not, and can't be told; empty where all are the same.

    Of the conditions that decide.
    """
    found = _by_upshot(conclusion.decided)
    return _apart(found) if len(found) > 1 else ""


_SAID: dict[Upshot, str] = {"holds": "holds", "fails": "does not", "open": "too small to tell"}


def _by_upshot(states: Sequence[tuple[Tried, Upshot]]) -> dict[Upshot, list[Tried]]:
    by: dict[Upshot, list[Tried]] = {}
    for each, upshot in states:
        by.setdefault(upshot, []).append(each)
    return by


def _apart(by: dict[Upshot, list[Tried]]) -> str:
    return "; ".join(
        f"{words} {_where(by[u], [t for other, ts in by.items() if other != u for t in ts])}"
        for u, words in _SAID.items()
        if u in by
    )


def _where(these: Sequence[Tried], those: Sequence[Tried]) -> str:
    """Return in words what sets the conditions ``these`` apart from ``those``, by as few factors as do."""
    # The place says least: it is another way to look at the same.
    names = sorted((f.name for f in fields(Condition)), key=lambda name: name == "place")
    chosen: tuple[str, ...] = tuple(names)
    for size in range(1, len(names) + 1):
        for some in itertools.combinations(names, size):
            if those and not _values(those, some) & _values(these, some).keys():
                chosen = some
                break
        else:
            continue
        break
    mine, every = _values(these, chosen), _values([*these, *those], chosen)
    return " or ".join(
        " ".join(
            [
                *(_part(f[0], *f[1]) for f in group if f[0] == "place"),
                *_with([f for f in group if f[0] != "place"]),
            ]
        )
        for group in _grouped(chosen, list(mine), list(every))
    )


_Values = tuple[object, ...]
_Factor = tuple[str, _Values]
"""A factor and those of its values that are meant."""


def _values(tried: Sequence[Tried], names: Sequence[str]) -> dict[_Values, None]:
    """Return the values of the factors ``names``, in order and each once."""
    return dict.fromkeys(tuple(getattr(t.condition, n) for n in names) for t in tried)


def _grouped(names: Sequence[str], mine: Sequence[_Values], every: Sequence[_Values]) -> list[list[_Factor]]:
    """Return ``mine``, rows of values of the factors ``names``, as few groups of factors with their values.

    A factor is left out where all of its values in ``every`` are meant.
    """
    if not names:
        return [[]]
    by_rest: dict[frozenset[_Values], list[object]] = {}
    for first in dict.fromkeys(row[0] for row in mine):
        by_rest.setdefault(frozenset(row[1:] for row in mine if row[0] == first), []).append(first)
    groups = []
    for rest, firsts in by_rest.items():
        whole = dict.fromkeys(row[1:] for row in every if row[0] in firsts)
        wanted = [row for row in whole if row in rest]
        more = [[]] if len(wanted) == len(whole) else _grouped(names[1:], wanted, list(whole))
        groups += [[(names[0], tuple(firsts)), *factors] for factors in more]
    return groups


def _with(factors: Sequence[_Factor]) -> list[str]:
    return [f"with {', '.join(_part(f[0], *f[1]) for f in factors)}"] if factors else []


def _part(name: str, *values: object) -> str:
    match name:
        case "place":
            return " or ".join("by replay" if v == REPLAY else f"measured on a {v}" for v in values)
        case "profile":
            return f"disks of {_or(values)}"
        case "arc":
            return f"an ARC of {_or([format_size(v) if isinstance(v, int) else v for v in values])}"
        case "openzfs":
            return f"OpenZFS {_or(values)}"
    return _or(values)


def _or(values: Sequence[object]) -> str:
    return " or ".join(map(str, values))


def _count(n: int) -> str:
    return "the one condition tried" if n == 1 else f"all {n} conditions tried"


def _evidence(tried: Tried) -> str:
    """Return one condition's figures: the ratio to each other layout, with its interval."""
    rests = f" [{cited(tried.trials)}]" if tried.trials else ""
    return f"{tried.condition.text}: {_ratios(tried)}{rests}"


def cited(trials: Sequence[str]) -> str:
    """Return the trials for people; of many, those in a row as a range: "7f3k2a/1-6"."""
    if len(trials) < 5:
        return ", ".join(trials)
    runs: dict[str, list[int]] = {}
    for trial in trials:
        run, _, number = trial.rpartition("/")
        runs.setdefault(run, []).append(int(number))
    said = []
    for run, numbers in runs.items():
        # Numbers in a row have the same difference to their places.
        rows = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
        ends = [[n for _, n in row] for _, row in rows]
        said.append(f"{run}/" + ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ends))
    return "; ".join(said)


def _ratios(tried: Tried) -> str:
    return "; ".join(
        against(c.ratio, c.other) + ("" if c.exact else f" ({c.low:.2f} … {c.high:.2f})")
        for c in tried.compared
    )
