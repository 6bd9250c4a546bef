"""One layout judged by several jobs of a database: what it is worth to each of them, and the best for all.

Each job has a run of its own, so each tells of a layout in its own ratio to its own base layout. A layout
that a run had is *tried* there. Any other is *combined*: from the nearest layouts that the run had, times
what each change that is left did to layouts of that run which differ in it alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ztune.analysis import demand
from ztune.analysis.choose import as_good, plainest
from ztune.analysis.effects import ABSENT, Pair, pairs
from ztune.analysis.rank import departures, select
from ztune.analysis.results import LayoutResult
from ztune.analysis.standing import Standing
from ztune.analysis.stats import Estimate, ratio
from ztune.onhost.words import ROLES
from ztune.study import Layout, default_setting
from ztune.study.durability import Bar, judge
from ztune.study.layout import with_settings

_STARTS = 3  # layouts of each run, the best first, that a search begins with beside the base and the chosen
_ROUNDS = 20  # of going through all settings; a search that improves by every step ends long before

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Moved:
    """A metric under one layout / under another, in one job.

    ``low``, ``high``: of what was measured, its interval; of what is combined, the range over the ways to
    combine it; None where there is neither. ``counted``: the ratio that a choice goes by: 1 for a measured
    difference that is not known to be one.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    counted: float = 1.0


@dataclass(frozen=True)
class Worth:
    """What a layout is worth to one job, against the base layout of the job's run.

    ``moved``: one for each metric of the objective. ``tried``: the layout of the run that it is; None for a
    combination, which starts from ``nearest`` and changes ``changed``.
    """

    moved: tuple[Moved, ...]
    tried: LayoutResult | None
    nearest: tuple[LayoutResult, ...]
    changed: tuple[str, ...]


class JobField:
    """What the run of one job tells of layouts: all that compete in it, by their settings.

    ``metrics``: those of the run's objective that count, the first decides. ``factors``: the settings that
    mean something in this run: of a role only where the role has a dataset of its own.
    """

    def __init__(self, now: Standing, metrics: Sequence[str], bar: Bar) -> None:
        assert now.baseline is not None  # who calls has looked
        self.metrics = tuple(metrics)
        self.base = now.baseline
        shape = _shape(self.base.layout)
        found = [
            p.result
            for p in now.places
            if not p.lag
            and not p.to_buy
            and bar.admits(p.result.layout)
            and _shape(p.result.layout) == shape
            and all(p.result.value(m) is not None for m in self.metrics)
        ]
        slow = demand.held(found) if self.metrics[0] == "modelled_s" else {}
        self.layouts = tuple(c for c in found if c.hash not in slow)
        self.roles = frozenset(d.key for d in self.base.layout.datasets)
        self.companions = {r: d.key for d in self.base.layout.datasets for r in d.roles[1:]}
        keys = dict.fromkeys(key for c in self.layouts for key in c.settings if not key.endswith(".with"))
        self.values = {k: list(dict.fromkeys(setting(c.settings, k) for c in self.layouts)) for k in keys}
        self.varied = tuple(key for key, values in self.values.items() if len(values) > 1)
        self._by_key = {self._key(c.settings): c for c in self.layouts}
        self._pairs: dict[tuple[str, str, str], list[tuple[tuple[str, ...], Pair]]] = defaultdict(list)
        for pair in (turned for p in pairs(self.layouts) for turned in (p, p.flipped())):
            before, after = setting(pair.a.settings, pair.factor), setting(pair.b.settings, pair.factor)
            self._pairs[pair.factor, before, after].append((self._key(pair.a.settings), pair))
        self._known: dict[tuple[str, ...], Worth | None] = {}

    def _key(self, settings: Settings) -> tuple[str, ...]:
        return tuple(setting(settings, f) for f in self.varied)

    def asks(self, factor: str) -> bool:
        """Say whether ``factor`` means something here: not of a role or a pool that the run does not have."""
        head, _, rest = factor.partition(".")
        if head == "pool":
            pool = f"pool.{rest.rpartition('.')[0]}."
            return any(f.startswith(pool) for f in self.values)
        return head not in ROLES or head in self.roles

    def no_ratio(self) -> str | None:
        """Return a metric that is 0 under the base layout and not under all others: it has no ratios."""
        for metric in self.metrics:
            values = [c.value(metric) for c in (self.base, *self.layouts)]
            if values[0] == 0 and any(values):
                return metric
        return None

    def can(self, factor: str, value: str) -> bool:
        """Say whether the run tells anything of ``factor`` = ``value``, or need not."""
        if not self.asks(factor):
            return True
        return value in self.values.get(factor, [setting({}, factor)])

    def worth(self, settings: Settings) -> Worth | None:
        """Return what a layout with ``settings`` is worth; None where the run can't tell."""
        if not self.layouts or not all(
            self.can(f, setting(settings, f)) for f in settings if not f.endswith(".with")
        ):
            return None
        key = self._key(settings)
        if key not in self._known:
            self._known[key] = self._worth(key)
        found = self._known[key]
        if found is None or found.tried is None:
            return found
        apart = tuple(  # roles that share a dataset here, and would not have the same settings any more
            f"{role}.{f.partition('.')[2]}"
            for role, host in self.companions.items()
            for f in self.values
            if f.startswith(f"{host}.")
            and settings.get(f"{role}.{f.partition('.')[2]}", settings.get(f)) != settings.get(f)
        )
        return Worth(found.moved, None, (found.tried,), apart) if apart else found

    def _worth(self, key: tuple[str, ...]) -> Worth | None:
        tried = self._by_key.get(key)
        if tried is not None:
            against = Pair("", self.base, tried)
            return Worth(tuple(moved(against, m) for m in self.metrics), tried, (tried,), ())
        away = {other: sum(a != b for a, b in zip(key, other, strict=True)) for other in self._by_key}
        least = min(away.values())
        ways: list[tuple[LayoutResult, list[Moved], tuple[str, ...]]] = []
        for other, distance in away.items():
            if distance != least:
                continue
            start = self._by_key[other]
            changed = tuple(f for f, a, b in zip(self.varied, other, key, strict=True) if a != b)
            before = [other[self.varied.index(f)] for f in changed]
            steps = [
                self._step(key, f, b, m) for f, b in zip(changed, before, strict=True) for m in self.metrics
            ]
            if any(s is None for s in steps):
                continue
            total = []
            for i, metric in enumerate(self.metrics):
                parts = [moved(Pair("", self.base, start), metric)]
                parts += [s for s in steps[i :: len(self.metrics)] if s is not None]
                total.append(
                    Moved(math.prod(p.ratio for p in parts), counted=math.prod(p.counted for p in parts))
                )
            ways.append((start, total, changed))
        if not ways:
            return None
        found = tuple(_over([way[1][i] for way in ways]) for i in range(len(self.metrics)))
        return Worth(found, None, tuple(way[0] for way in ways), ways[0][2])

    def change(self, settings: Settings, factor: str, value: str) -> Moved | None:
        """Return what ``factor`` going to ``value`` does to a layout with ``settings``, in the first metric;
        None where the run can't tell."""
        before = setting(settings, factor)
        if not self.asks(factor) or before == value:
            return Moved(1.0)
        key = self._key({**settings, factor: value})
        return self._step(key, factor, before, self.metrics[0]) if factor in self.varied else None

    def _step(self, key: tuple[str, ...], factor: str, before: str, metric: str) -> Moved | None:
        """Return what ``factor`` going from ``before`` to that of ``key`` did, in the nearest contexts."""
        at = self.varied.index(factor)
        known = self._pairs.get((factor, before, key[at]))
        if not known:
            return None
        away = [
            (sum(i != at and a != b for i, (a, b) in enumerate(zip(key, here, strict=True))), pair)
            for here, pair in known
        ]
        least = min(distance for distance, _ in away)
        steps = [moved(pair, metric) for distance, pair in away if distance == least]
        # From nothing to something is no ratio, and nothing that stays nothing tells of no other layout.
        return _over(steps) if all(0 < step.ratio < math.inf for step in steps) else None


def setting(settings: Settings, factor: str) -> str:
    """Return the value of ``factor``; its default where ``settings`` leave it out."""
    found = settings.get(factor)
    if found is None:
        found = default_setting(factor)
    return ABSENT if found is None else found


def _shape(layout: Layout) -> list[tuple[str, ...]]:
    return sorted(d.roles for d in layout.datasets)


def moved(pair: Pair, metric: str) -> Moved:
    """Return ``metric`` of a pair's second layout / of its first, with the interval where there is one."""
    if pair.a is pair.b:
        return Moved(1.0)
    if pair.a.basis == "modelled":
        after, before = pair.b.estimates[metric], pair.a.estimates[metric]
        middle = ratio(after.median, before.median)
        if middle is None:  # from nothing to something
            return Moved(math.inf, counted=math.inf)
        if after.low is None or after.high is None or not before.low or not before.high:
            return Moved(middle, counted=middle)
        return Moved(middle, after.low / before.high, after.high / before.low, middle)
    if (nothing := _with_nothing(pair, metric)) is not None:
        return nothing
    found = pair.paired(metric)
    if found is None or not found.known:
        return Moved(1.0 if found is None else found.mean)
    settled = not found.low <= 1 <= found.high
    return Moved(found.mean, found.low, found.high, found.mean if settled else 1.0)


def _with_nothing(pair: Pair, metric: str) -> Moved | None:
    """Return a measured ratio of which blocks have 0 under one of the two layouts alone; None without such.

    Pairing by logarithms leaves these blocks out. So it is the ratio of the medians, without an interval, and
    counts where several blocks were measured and all say the same.
    """
    a, b = pair.a.values.get(metric, {}), pair.b.values.get(metric, {})
    both = a.keys() & b.keys()
    less = [b[k] == 0 for k in both if (a[k] == 0) != (b[k] == 0)]
    if not less:
        return None
    middle = ratio(median(b[k] for k in both), median(a[k] for k in both))
    found = math.inf if middle is None else middle
    settled = 1 < len(both) == len(less) and len(set(less)) == 1
    return Moved(found, counted=found if settled else 1.0)


def _over(ways: Sequence[Moved]) -> Moved:
    """Return several ways to know one ratio as one: the geometric mean, and the range where they differ."""
    ratios = [w.ratio for w in ways]
    if all(math.isclose(r, ratios[0], rel_tol=1e-9) for r in ratios):  # one step after the other, or turned
        return ways[0]
    return Moved(_mean(ratios), min(ratios), max(ratios), _mean([w.counted for w in ways]))


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, ratios))) if all(0 < r < math.inf for r in ratios) else fmean(ratios)


@dataclass(frozen=True)
class Candidate:
    """A joint layout. ``result.estimates``: the weighted mean, over the jobs, of each metric's ratio to the
    job's base layout. ``worths``: one for each job."""

    result: LayoutResult
    worths: tuple[Worth, ...]

    @property
    def tried(self) -> bool:
        """Whether every job has replayed or run it."""
        return all(w.tried is not None for w in self.worths)


class Search:
    """The search for one layout that serves all jobs. ``weights`` add up to 1, one for each of ``fields``.

    ``base``: the joint base layout; ``minimise``: the metrics' names, ``within`` the share below which
    differences don't matter.
    """

    def __init__(
        self,
        fields: Sequence[JobField],
        weights: Sequence[float],
        base: Layout,
        minimise: Sequence[str],
        within: float,
        bar: Bar,
    ) -> None:
        self.fields, self.weights, self.base = tuple(fields), tuple(weights), base
        self.minimise, self.within, self.bar = tuple(minimise), within, bar
        self._settings = base.settings()
        self.defaults = {key: default_setting(key) or value for key, value in self._settings.items()}
        # Per setting, what every run that the setting means something in can tell of.
        self.values: dict[str, list[str]] = {}
        for factor in dict.fromkeys(f for field in fields for f in field.varied):
            offered = dict.fromkeys(v for field in fields for v in field.values.get(factor, ()))
            self.values[factor] = [v for v in offered if all(field.can(factor, v) for field in fields)]
        self._seen: dict[tuple[tuple[str, str], ...], Candidate | None] = {}

    def candidate(self, changes: Settings) -> Candidate | None:
        """Return the joint base with ``changes``; None where a job can't tell, or where it is not durable
        enough."""
        changes = {k: v for k, v in changes.items() if setting(self._settings, k) != v}
        key = tuple(sorted(changes.items()))
        if key not in self._seen:
            self._seen[key] = self._made(changes)
        return self._seen[key]

    def _made(self, changes: Settings) -> Candidate | None:
        settings = {**self._settings, **changes}
        worths = [field.worth(settings) for field in self.fields]
        if any(w is None for w in worths):
            return None
        known = tuple(w for w in worths if w is not None)
        name = ", ".join(f"{k}={v}" for k, v in changes.items()) or "base"
        try:
            layout = with_settings(self.base, changes, name[:200])
        except ValueError:  # settings that are only valid with others
            return None
        if not self.bar.admits(layout):
            return None
        judged = judge(layout)
        basis = self.fields[0].base.basis
        estimates = {
            metric: Estimate(
                1,
                sum(w * worth.moved[i].counted for w, worth in zip(self.weights, known, strict=True)),
                basis=basis,
            )
            for i, metric in enumerate(self.minimise)
        }
        result = LayoutResult(
            name=layout.name, hash=layout.hash, layout=layout, settings=layout.settings(),
            durability=judged.klass, durability_reasons=judged.reasons, baseline=not changes, trials=(),
            estimates=estimates, measure={}, basis=basis,
        )  # fmt: skip
        return Candidate(result, known)

    def _beside(self, here: Candidate) -> list[Candidate]:
        """Return the candidates that differ from ``here`` in one setting."""
        changes = self.changes(here)
        found = (
            self.candidate({**changes, factor: value})
            for factor, values in self.values.items()
            for value in values
            if value != setting(here.result.settings, factor)
        )
        return [c for c in found if c is not None]

    def changes(self, here: Candidate) -> dict[str, str]:
        """Return the settings of ``here`` that are not the joint base's."""
        return {
            f: value
            for f in self.values
            if (value := setting(here.result.settings, f)) != setting(self._settings, f)
        }

    def _order(self, one: Candidate) -> tuple[float, bool, int, str]:
        first = one.result.value(self.minimise[0])
        assert first is not None
        return (first, not one.tried, departures(one.result.settings, self.defaults), one.result.name)

    def best(self, starts: Iterable[Settings]) -> Candidate | None:
        """Return the layout that the objective picks of all that lie on the way from the base and ``starts``
        to what is least; None where no start can be judged by all jobs.

        The same rule as for one run picks: ``rank.select``, then ``choose.plainest``. Where a layout that all
        jobs tried is as good as what is only combined, it goes before.
        """
        for start in ({}, *starts):
            kept = {f: v for f, v in start.items() if v in self.values.get(f, ())}
            current = self.candidate(kept)
            for _ in range(_ROUNDS if current is not None else 0):
                assert current is not None
                step = min(self._beside(current), key=self._order, default=current)
                if self._order(step)[0] >= self._order(current)[0]:
                    break
                current = step
        picked: Candidate | None = None
        while True:  # until all that lies beside the pick was looked at
            pool = [c for c in self._seen.values() if c is not None]
            if not pool:
                return None
            now = self._pick(pool)
            if now is picked:
                return now
            picked = now
            self._beside(now)

    def _pick(self, pool: Sequence[Candidate]) -> Candidate:
        def pick(among: Sequence[Candidate]) -> Candidate:
            by_hash = {c.result.hash: c for c in among}
            results = [c.result for c in by_hash.values()]
            first = select(results, self.minimise, self.within, self.defaults).result
            ranked = [first, *(r for r in results if r is not first)]
            return by_hash[plainest(ranked, self.minimise, self.within, self.defaults).hash]

        best = pick(pool)
        tried = [c for c in pool if c.tried]
        if best.tried or not tried:
            return best
        instead = pick(tried)
        good = as_good(instead.result, best.result, self.minimise, self.within)
        return instead if good else best


def starts(now: Standing) -> list[Settings]:
    """Return the settings of the layouts of one run with which a search begins: the chosen and the best."""
    first = [p.result for p in now.ranked[:_STARTS]]
    return [c.settings for c in (now.chosen, *first) if c is not None]
