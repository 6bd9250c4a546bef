"""What one setting does: pairs of layouts that differ in that setting alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ztune.analysis.metrics import EXPLAIN, MAIN
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.results import LayoutResult
from ztune.analysis.stats import differs, ratio
from ztune.study import optional_setting

# The value of a setting that one layout of a pair doesn't have at all, e.g. the log device's profile without
# one.
ABSENT = "(none)"


@dataclass(frozen=True)
class Pair:
    """Two layouts equal in every setting but ``factor``."""

    factor: str
    a: LayoutResult
    b: LayoutResult

    @property
    def before(self) -> str:
        """The setting's value in ``a``."""
        return self.a.settings.get(self.factor, ABSENT)

    @property
    def after(self) -> str:
        """The setting's value in ``b``."""
        return self.b.settings.get(self.factor, ABSENT)

    def ratio(self, metric: str) -> float | None:
        """Return metric(b) / metric(a): below 1 means ``b`` needs less."""
        return ratio(self.b.value(metric), self.a.value(metric))

    def tells(self, metric: str) -> bool:
        """Say whether ``metric`` may be printed: whether it is no percentile of too few calls, in neither."""
        return metric not in self.a.few_calls and metric not in self.b.few_calls

    def matters(self, metric: str, within: float) -> bool:
        """Say whether the two differ in ``metric`` by more than ``within`` and their intervals."""
        return differs(self.b.estimates.get(metric), self.a.estimates.get(metric), within)

    def paired(self, metric: str) -> Ratio | None:
        """Return metric(b) / metric(a) within the blocks that have both; None where none has."""
        a, b = self.a.values.get(metric), self.b.values.get(metric)
        return None if a is None or b is None else paired(b, a, hosts=self.a.hosts)

    def flipped(self) -> Pair:
        """Return the same pair seen from the other side."""
        return Pair(self.factor, self.b, self.a)


@dataclass(frozen=True)
class Span:
    """A ratio over several contexts: its median and range, and the layouts where the ends were seen."""

    median: float
    low: float
    high: float
    low_layout: str
    high_layout: str


@dataclass(frozen=True)
class Effect:
    """What changing ``factor`` from ``before`` to ``after`` did over all pairs that differ in it alone."""

    factor: str
    before: str
    after: str
    pairs: tuple[Pair, ...]
    spans: Mapping[str, Span]  # by metric; absent where no pair gives a ratio
    durability_changes: bool

    def depends(self, metric: str, within: float) -> bool:
        """Say whether the effect on ``metric`` depends on the other settings by more than ``within``."""
        span = self.spans.get(metric)
        return span is not None and span.high > span.low * (1 + within)


def settings_without(one: LayoutResult, keys: Collection[str]) -> frozenset[tuple[str, str]]:
    """Return the settings of ``one`` that are none of ``keys``: the same for layouts that differ in those."""
    return frozenset((key, value) for key, value in one.settings.items() if key not in keys)


def pairs(candidates: Sequence[LayoutResult]) -> list[Pair]:
    """Return all pairs that differ in exactly one setting, grouped by setting, in the candidates' order.

    A setting that only one of the two has counts as a difference. O(layouts × settings).
    """
    factors = list(dict.fromkeys(key for c in candidates for key in c.settings))
    found: list[Pair] = []
    for factor in factors:
        groups: dict[frozenset[tuple[str, str]], list[LayoutResult]] = defaultdict(list)
        for candidate in candidates:
            groups[settings_without(candidate, {factor})].append(candidate)
        for group in groups.values():
            for i, a in enumerate(group):
                for b in group[i + 1 :]:
                    if a.settings.get(factor, ABSENT) != b.settings.get(factor, ABSENT):
                        found.append(Pair(factor, a, b))
    return found


def from_baseline(results: Sequence[LayoutResult]) -> list[Pair]:
    """Return all pairs, each starting at the baseline's value where one of the two has it, by setting."""
    base = next((c for c in results if c.baseline), None)
    turned = [
        p.flipped() if base is not None and p.b.settings.get(p.factor) == base.settings.get(p.factor) else p
        for p in pairs(results)
    ]
    return sorted(turned, key=lambda p: (p.factor, p.before, p.after, p.a.name))


def effects(found: Iterable[Pair], reference: Mapping[str, str]) -> list[Effect]:
    """Return the effect of each value of each setting against the setting's value in ``reference``.

    Pairs between two values that both aren't the reference's are left out; a setting that ``reference`` lacks
    is compared with its absence.
    """
    grouped: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in found:
        base = reference.get(pair.factor, ABSENT)
        if pair.before == base:
            oriented = pair
        elif pair.after == base:
            oriented = pair.flipped()
        else:
            continue
        grouped[oriented.factor, oriented.before, oriented.after].append(oriented)
    return [
        Effect(
            factor,
            before,
            after,
            tuple(group),
            {m: s for m in (*MAIN, *EXPLAIN) if (s := span(group, m)) is not None},
            any(p.a.durability != p.b.durability for p in group),
        )
        for (factor, before, after), group in grouped.items()
    ]


def span(group: Sequence[Pair], metric: str) -> Span | None:
    """Return the median and range of ``metric``'s ratio over ``group``; None if no pair has one."""
    ratios = sorted(
        ((r, p.b.name) for p in group if p.tells(metric) and (r := p.ratio(metric)) is not None),
        key=lambda item: item[0],
    )
    if not ratios:
        return None
    middle = len(ratios) // 2
    median = ratios[middle][0] if len(ratios) % 2 else (ratios[middle - 1][0] + ratios[middle][0]) / 2
    return Span(median, ratios[0][0], ratios[-1][0], ratios[0][1], ratios[-1][1])


def pair_to(
    candidates: Sequence[LayoutResult], candidate: LayoutResult, factor: str, value: str | None
) -> Pair | None:
    """Return the pair of ``candidate`` and the layout that differs from it only by ``factor`` = ``value``.

    ``value`` None (or ABSENT) means: without that setting. Settings that layouts carry only where they are
    not the default (tunables, database knobs) are looked for in both forms.
    """
    without = {k: v for k, v in candidate.settings.items() if k != factor}
    wanted = [] if value is None or value == ABSENT else [{**without, factor: value}]
    if not wanted or optional_setting(factor):
        wanted.append(without)
    for other in candidates:
        if other is not candidate and dict(other.settings) in wanted:
            return Pair(factor, candidate, other)
    return None
