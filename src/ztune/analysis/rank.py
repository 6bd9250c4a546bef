"""The order of layouts: durability class first, then the objective with its tolerance.

docs/recommendation.md states the rule in words and gives an example.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ztune.analysis import demand, units
from ztune.analysis.metrics import REPLAYED, replayed
from ztune.analysis.need import QUIET
from ztune.analysis.paired import Ratio
from ztune.analysis.results import Failed, LayoutResult, Results
from ztune.analysis.stats import ratio
from ztune.errors import InputError
from ztune.study import DurabilityClass, default_setting
from ztune.study.durability import Bar

# What a gain of 1 % in a metric after the first may cost of those after it, in %. The objective's order says
# that the gain matters more; beyond twice as much it is a bad bargain all the same. The first metric is what
# the layout is for, and yet nobody takes three times the space for a twentieth of the time; where that is
# modelled time, it is what the layout is for as far as the job waits for its disks.
PRICE = 2.0
FIRST_PRICE = 20.0
EXACT: Mapping[str, float] = {}
"""``errors`` of what is no sample."""


def tolerance(metric: str, within: float, than: LayoutResult, errors: Mapping[str, float] = EXACT) -> float:
    """Return the share by which a layout may need more of ``metric`` than another and be as good.

    It is ``within``, and more where a sample tells the metric no better (``errors``), and for modelled time
    where the other's disks are hardly at work (``Need.quiet``): then it is the share of that.
    """
    share = max(within, errors.get(metric, 0.0))
    if metric == "modelled_s" and (need := than.need) is not None and (least := _value(than, metric)):
        share = max(share, within * need.quiet / least)
    return share


@dataclass(frozen=True)
class RankedLayout:
    """A layout in its place. ``rank`` is None for one that is not known to be as durable as is allowed.

    Nor for one that takes hardware which is not there: ``to_buy``, factors with their values. ``weak``:
    whether it is set apart for its durability.

    ``why``: why it stands there. ``note``: why it does not stand further ahead although it has less of a
    metric; "" where nothing held it back.

    Of trials: ``standing``: leader, worse, equal or open, as the run's last decision has it; "" without one.
    ``to_leader``: its ratio to the leader in the metric that decides; None for one that falls behind.
    ``lag``: how far it falls behind the pace of the job: "falls behind: 412 of 1,000/s"; else "".
    """

    rank: int | None
    result: LayoutResult
    why: str = ""
    note: str = ""
    standing: str = ""
    to_leader: Ratio | None = None
    lag: str = ""
    to_buy: Mapping[str, str] = field(default_factory=dict)
    weak: bool = False


def defaults_of(results: Sequence[LayoutResult], baseline: LayoutResult | None) -> dict[str, str]:
    """Return the value that counts as "the default" of each setting of ``results``.

    ZFS's own default; where ZFS has none (disks, sector size, ARC, which pool, parameters of the workload,
    settings of the database), the base layout's value.
    """
    out: dict[str, str] = {}
    for key in dict.fromkeys(key for result in results for key in result.settings):
        value = default_setting(key)
        if (value is None or key.startswith("database.")) and baseline is not None:
            value = baseline.settings.get(key, value)
        if value is not None:
            out[key] = value
    return out


def departures(settings: Mapping[str, str], defaults: Mapping[str, str]) -> int:
    """Return how many settings are not at their default; settings without a known default don't count."""
    return sum(1 for key, value in settings.items() if key in defaults and defaults[key] != value)


@dataclass(frozen=True)
class Pick:
    """The candidate that an objective picks, what decided, as a clause, and by hash what was held back, and
    why."""

    result: LayoutResult
    why: str
    held: Mapping[str, str] = field(default_factory=dict)


def select(
    candidates: Sequence[LayoutResult],
    minimise: Sequence[str],
    within: float,
    defaults: Mapping[str, str] | None = None,
    errors: Mapping[str, float] = EXACT,
) -> Pick:
    """Return what the objective picks from ``candidates``.

    Where time comes first, layouts that processors hold back (``demand.held``) leave. Then for each metric of
    ``minimise`` in turn, those within the ``tolerance`` (``within``, a share, 0.05 = 5 %) of the least stay,
    without those whose gain in it costs more than it brings (``_price``). After the first, ``errors`` (metric
    → share) may be more than that: what a sample can't tell decides nothing. Of those left after the last,
    which the objective can't tell apart, the one with the fewest departures from ``defaults`` wins; then the
    least first metric, then the name. Where another is as good as that one within the tolerances, and better
    by more in one of them, it is taken instead, once (``_instead``). Raises ValueError for no candidates.
    """
    usable = [c for c in candidates if all(c.value(m) is not None for m in minimise)]
    if not usable:
        raise ValueError("no candidate has all metrics of the objective")
    slow = demand.held(usable) if minimise[0] == "modelled_s" else {}
    pick = _by_turns(usable, minimise, within, defaults or {}, errors, slow)
    better = _instead(pick, [c for c in usable if c.hash not in slow], minimise, within, errors)
    if not better:
        return pick
    chosen = _by_turns(better, minimise, within, defaults or {}, errors, {}, begin=1).result
    _, words = max(_costs(pick.result, chosen, minimise[1:], within, errors))
    near = _near_by(pick.result, chosen, minimise[0], within)
    first, second = (f"as good as {c.name} within {near}, and costs" for c in (pick.result, chosen))
    return Pick(chosen, f"{first} less", {**pick.held, pick.result.hash: f"{second} {words}"})


def _instead(
    pick: Pick,
    candidates: Sequence[LayoutResult],
    minimise: Sequence[str],
    within: float,
    errors: Mapping[str, float],
) -> list[LayoutResult]:
    """Return those that are as good as what was picked, and better by more than the tolerance in a metric
    after the first, or in what processors take.

    The tolerance of the first metric counts from the least of all. So without this a layout that saves 2 % of
    time and writes twice the bytes would be picked where those 2 % happen to cross that line.
    """
    first, *later = minimise
    most = _value(pick.result, first) * (1 + tolerance(first, within, pick.result))
    return [
        c
        for c in candidates
        if c.hash not in pick.held
        and _value(c, first) <= most
        and _costs(pick.result, c, later, within, errors)
        and not _costs(c, pick.result, later, within, errors)
    ]


def _by_turns(
    left: Sequence[LayoutResult],
    minimise: Sequence[str],
    within: float,
    defaults: Mapping[str, str],
    errors: Mapping[str, float],
    slow: Mapping[str, str],
    begin: int = 0,
) -> Pick:
    """Return what the metrics of ``minimise`` from the one at ``begin`` on pick from ``left``, in turn.

    ``slow``: hash → why, of those that processors hold back.
    """
    held: dict[str, str] = {}
    if slow:
        ahead = _most([c for c in left if c.hash not in slow], minimise[0], within)
        held = {c.hash: slow[c.hash] for c in left if c.hash in slow and _value(c, minimise[0]) <= ahead}
        left = [c for c in left if c.hash not in slow]
    why = "the only one left"
    decided = False
    for position, metric in enumerate(minimise):
        if len(left) == 1:
            break
        if position < begin:
            continue
        unsure = errors if position else EXACT
        price = _pricing(left, metric, minimise[position + 1 :], within, unsure, first=not position)
        # The nearest are asked first: of many layouts, to hold each against each other takes long. The
        # tolerance counts from the least as long as one within it is worth its price.
        near: list[LayoutResult] = []
        for once in itertools.count():
            most = _most(left, metric, within, unsure)
            asked = [c for c in left if _value(c, metric) <= most]
            prices = {c.hash: said for c in asked if (said := price(c))}
            if once == 0:
                held |= prices
            left = [c for c in left if c.hash not in prices]
            near = [c for c in asked if c.hash not in prices]
            if near:
                break
        far = (c for c in left if _value(c, metric) > most and not price(c))
        # Of the first metric it is enough that there is one; how many there are is said of the others.
        left = [*near, *(far if position else itertools.islice(far, 1))]
        if len(near) < len(left):
            label = left[0].metric(metric).label
            if len(near) == 1:
                why = (
                    f"least {label}"
                    if position == 0
                    else f"least {label} of {len(left)} within {_share(within)}"
                )
                decided = True
        left = near
    if len(left) == 1:
        return Pick(left[0], why if decided else "least by the objective", held)
    chosen = min(
        left, key=lambda c: (departures(c.settings, defaults), _value(c, minimise[0]), c.name, c.hash)
    )
    others = len(left) - 1
    few = sorted(departures(c.settings, defaults) for c in left)
    start = "nearest to the defaults" if few[0] < few[1] else f"least {left[0].metric(minimise[0]).label}"
    return Pick(chosen, f"{start} of {others + 1} that the objective can't tell apart", held)


def _most(
    among: Sequence[LayoutResult], metric: str, within: float, errors: Mapping[str, float] = EXACT
) -> float:
    """Return how much of ``metric`` is as good as the least of it ``among`` layouts."""
    least = min(among, key=lambda c: _value(c, metric))
    return _value(least, metric) * (1 + tolerance(metric, within, least, errors))


def _pricing(
    among: Sequence[LayoutResult],
    metric: str,
    later: Sequence[str],
    within: float,
    errors: Mapping[str, float],
    first: bool,
) -> Callable[[LayoutResult], str]:
    """Return ``_price`` against ``among``, asked only of those that need more of ``metric`` by more than the
    tolerance: of hundreds of layouts that differ by little, hardly any do."""
    dearer = sorted(among, key=lambda c: _value(c, metric))
    needs = [_value(c, metric) for c in dearer]

    def price(candidate: LayoutResult) -> str:
        others = dearer[bisect_right(needs, _most([candidate], metric, within, errors)) :]
        return _price(candidate, others, metric, later, within, first) if others else ""

    return price


def _price(
    candidate: LayoutResult,
    others: Sequence[LayoutResult],
    metric: str,
    later: Sequence[str],
    within: float,
    first: bool,
) -> str:
    """Return what a gain in ``metric`` costs elsewhere, as a clause, where that is more than it brings.

    More: another of ``others`` needs x % more of ``metric``, and this one more than ``PRICE`` times x % more
    of a ``later`` one, or of processor and modelled time together, while it has less of none. Of the
    ``first`` metric it is ``FIRST_PRICE`` times, of modelled time in proportion to how much of the recorded
    time the other's disks are at work. Differences within the tolerance are none, nor are those of processor
    times within their spread. "" where no gain costs so much.
    """
    mine = _value(candidate, metric)
    worst, said = 1.0, ""
    for other in others:
        gain = ratio(_value(other, metric), mine) or float("inf")
        if any(_more(other, candidate, key, within) for key in later):
            continue
        limit = _first_price(other, metric) if first else PRICE
        for price, words in _costs(candidate, other, later, within):
            if (times := (price - 1) / (gain - 1) / limit) > worst:
                worst = times
                label = candidate.metric(metric).label
                said = f"{label} {units.times(1 / gain)} against {other.name} costs {words}"
    return said


def _first_price(other: LayoutResult, metric: str) -> float:
    """Return what 1 % less than another of the first metric may cost, in %."""
    need = other.need if metric == "modelled_s" else None
    share = min(1.0, need.times or 1.0) if need is not None else 1.0
    return max(PRICE, FIRST_PRICE * share)


def _costs(
    candidate: LayoutResult,
    other: LayoutResult,
    metrics: Sequence[str],
    within: float,
    errors: Mapping[str, float] = EXACT,
) -> list[tuple[float, str]]:
    """Return what ``candidate`` needs more of than ``other`` by more than the tolerance: how many times as
    much, with words, of ``metrics`` and of processor and modelled time together."""
    costs = [
        (price, f"{candidate.metric(key).label} {units.times(price)}")
        for key in metrics
        if (price := _more(candidate, other, key, within, errors))
    ]
    here, there = candidate.need, other.need
    if here and there and here.takes_more(there, within):
        took, instead = (n.both_text() for n in (here, there))
        costs.append((here.both / there.both, f"{took} of processor and modelled time instead of {instead}"))
    return costs


def _more(
    candidate: LayoutResult,
    other: LayoutResult,
    metric: str,
    within: float,
    errors: Mapping[str, float] = EXACT,
) -> float:
    """Return how many times as much of ``metric`` it needs as another; 0 where that is within the tolerance,
    or not known."""
    price = ratio(candidate.value(metric), other.value(metric))
    return price if price is not None and price > 1 + tolerance(metric, within, other, errors) else 0.0


def _near_by(one: LayoutResult, other: LayoutResult, metric: str, within: float) -> str:
    """Return by how much two layouts that are as good differ at most, for people."""
    small, large = sorted((_value(one, metric), _value(other, metric)))
    if large <= small * (1 + within) or (need := one.need) is None:
        return _share(within)
    return f"{units.show(within * QUIET, 'share')} of the recorded {units.seconds(need.recorded or 0.0)}"


def _value(candidate: LayoutResult, metric: str) -> float:
    value = candidate.value(metric)
    assert value is not None  # select() dropped those without
    return value


def _share(within: float) -> str:
    return units.show(within, "share")


def order(
    candidates: Sequence[LayoutResult],
    minimise: Sequence[str],
    within: float,
    defaults: Mapping[str, str] | None = None,
    errors: Mapping[str, float] = EXACT,
) -> list[RankedLayout]:
    """Rank all ``candidates``: place n is what ``select`` picks when places 1 … n−1 are taken away."""
    left = [c for c in candidates if all(c.value(m) is not None for m in minimise)]
    ranked: list[RankedLayout] = []
    notes: dict[str, str] = {}
    while left:
        pick = select(left, minimise, within, defaults, errors)
        notes = {**pick.held, **notes}  # the first time that it was held back says why
        chosen = pick.result
        ranked.append(RankedLayout(len(ranked) + 1, chosen, pick.why, notes.get(chosen.hash, "")))
        left = [c for c in left if c is not chosen]
    return ranked


def rank(
    collected: Results,
    minimise: Sequence[str] = ("modelled_s", "allocated", "written"),
    within: float = 0.05,
    bar: Bar | None = None,
    defaults: Mapping[str, str] | None = None,
    to_buy: Mapping[str, Mapping[str, str]] | None = None,
    errors: Mapping[str, float] = EXACT,
) -> tuple[tuple[RankedLayout, ...], tuple[Failed, ...]]:
    """Return the layouts of a run in order, and those that have no place: failed, or without a metric.

    Those of ``to_buy`` (hash → the hardware that is not there) follow the rest, without a rank; after them
    those that ``bar`` (default: nothing acknowledged may be lost) keeps out. ``within`` is a share (0.05 =
    5 %); ``errors``, what a sample can't tell, as ``select`` has it. Raises InputError as
    ``metrics.replayed`` does, and for a share outside 0 … 1.
    """
    keys = replayed(minimise)
    if not 0 <= within < 1:
        raise InputError(f"within is {within:g}; it is a share from 0 to below 1, such as 0.05 for 5 %")
    bar = bar or Bar(DurabilityClass.NOTHING)
    usable = [c for c in collected.layouts if all(c.value(k) is not None for k in keys)]
    lacking = [
        Failed(
            c.name,
            c.hash,
            c.trials,
            "the engine did not report " + ", ".join(REPLAYED[k].label for k in keys if c.value(k) is None),
            c.baseline,
        )
        for c in collected.layouts
        if c not in usable
    ]
    needs = to_buy or {}
    strong = [c for c in usable if bar.admits(c.layout)]
    own = order([c for c in strong if not needs.get(c.hash)], keys, within, defaults, errors)
    more = order([c for c in strong if needs.get(c.hash)], keys, within, defaults, errors)
    weak = order([c for c in usable if not bar.admits(c.layout)], keys, within, defaults, errors)
    apart = [
        replace(p, rank=None, to_buy=needs.get(p.result.hash, {}), weak=places is weak)
        for places in (more, weak)
        for p in places
    ]
    return (*own, *apart), (*collected.failed, *lacking)
