"""What single changes to a layout do: from pairs of layouts of one run, or said to be missing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ztune.advice.model import Change, Side, Verdict
from ztune.analysis import units
from ztune.analysis.effects import ABSENT, Pair, pair_to, pairs, span
from ztune.analysis.metrics import EXPLAIN, MAIN, Basis, table
from ztune.analysis.paired import Ratio
from ztune.analysis.results import LayoutResult
from ztune.analysis.standing import Standing
from ztune.analysis.stats import differs, ratio
from ztune.study import default_setting
from ztune.units import counted, listed

_NAMED = 3  # alternatives that a sentence about a setting at its default names
_QUOTED = 4  # metrics of trials that a sentence quotes


def matters(found: Ratio, resolution: float) -> bool:
    """Say whether a ratio differs from 1 by more than its interval and by more than ``resolution`` (a
    share)."""
    if not found.known or found.low <= 1 <= found.high:
        return False
    return max(found.mean, 1 / found.mean) > 1 + resolution


def compare(here: LayoutResult, other: LayoutResult, within: float, metrics: Iterable[str]) -> list[Side]:
    """Return ``metrics`` of two layouts side by side; those that one of them lacks are left out.

    Of trials, ratios are those within the blocks that both have.
    """
    sides = []
    for key in dict.fromkeys(metrics):
        a, b = here.value(key), other.value(key)
        found = None if here.basis == "modelled" else Pair("", here, other).paired(key)
        if a is None or b is None or (found is None and here.basis != "modelled"):
            continue
        shown = found is not None and found.shown
        sides.append(
            Side(
                metric=key,
                label=here.metric(key).named(here.basis),
                unit=here.metric(key).unit,
                here=a,
                other=b,
                ratio=ratio(b, a) if found is None else found.mean,
                matters=differs(other.estimates.get(key), here.estimates.get(key), within)
                if found is None
                else matters(found, within),
                low=found.low if found is not None and shown else None,
                high=found.high if found is not None and shown else None,
                blocks=1 if found is None else found.n,
            )
        )
    return sides


def judge(sides: Sequence[Side], metrics: Sequence[str], basis: Basis) -> Verdict:
    """Return what ``sides`` (other against here) say of the value here, looking at ``metrics`` alone."""
    worse = better = False
    for side in sides:
        if side.metric not in metrics or not side.matters:
            continue
        more = side.other > side.here if side.ratio is None else side.ratio > 1
        if more == (table(basis)[side.metric].less is not False):
            worse = True  # the other value needs more
        else:
            better = True
    if worse and better:
        return "trade-off"
    if worse:
        return "better"
    return "worse" if better else "too small to matter"


def phrase(sides: Sequence[Side]) -> str:
    """Return ``sides`` as words: "modelled time ×2.80 (35.7 s → 100 s), …"; of trials with the intervals."""
    parts = []
    for side in sides:
        text = side.label
        if side.ratio is not None:
            text += f" {units.times(side.ratio, side.low, side.high)}"
        if side.low is None:
            here, other = units.show(side.here, side.unit), units.show(side.other, side.unit)
            text += f" ({here} → {other})" if here != other else f" ({here})"
        parts.append(text)
    return ", ".join(parts)


@dataclass(frozen=True)
class Changes:
    """What the layouts of one run say of single changes to ``chosen``.

    ``metrics`` are compared; ``deciding`` of them are judged by and quoted.
    """

    chosen: LayoutResult
    layouts: tuple[LayoutResult, ...]
    defaults: Mapping[str, str]
    minimise: tuple[str, ...]
    within: float
    metrics: tuple[str, ...]
    deciding: tuple[str, ...]

    @classmethod
    def of(cls, now: Standing, chosen: LayoutResult) -> Changes:
        """Return what ``now`` says of changes to ``chosen``, one of its layouts."""
        layouts, defaults, minimise = now.found.layouts, now.defaults, now.minimise
        if now.basis == "modelled":
            return cls.replayed(chosen, layouts, defaults, minimise, now.within)
        return cls(chosen, layouts, defaults, minimise, now.within, (*minimise, *now.columns()), minimise)

    @classmethod
    def replayed(
        cls,
        chosen: LayoutResult,
        layouts: tuple[LayoutResult, ...],
        defaults: Mapping[str, str],
        minimise: tuple[str, ...],
        within: float,
    ) -> Changes:
        """Return what the replays of ``layouts`` say of changes to ``chosen``."""
        deciding = (*MAIN, *minimise)
        return cls(chosen, layouts, defaults, minimise, within, (*deciding, *EXPLAIN), deciding)

    @cached_property
    def pairs(self) -> list[Pair]:
        """All pairs of layouts that differ in one setting alone."""
        return pairs(self.layouts)

    @property
    def _modelled(self) -> bool:
        return self.chosen.basis == "modelled"

    @property
    def _tolerance(self) -> str:
        return units.show(self.within, "share") + ("" if self._modelled else " or their interval")

    @property
    def _done(self) -> str:
        return "screened" if self._modelled else "measured"

    def sides(self, here: LayoutResult, other: LayoutResult) -> list[Side]:
        """Return two layouts side by side."""
        return compare(here, other, self.within, self.metrics)

    def quoted(self, sides: Sequence[Side]) -> list[Side]:
        """Return the sides that a sentence quotes."""
        if self._modelled:
            return [s for s in sides if s.metric in self.deciding]
        return list(sides[:_QUOTED])

    def change(self, factor: str) -> Change:
        """Return what happens to the layout when ``factor`` alone goes back to its default.

        For a factor that is at its default: what was tried instead. Only pairs that differ in ``factor``
        alone are used; where a replay has none beside this layout, pairs in other contexts are quoted and
        said to be that.
        """
        value = self.chosen.settings.get(factor, ABSENT)
        default = self.defaults.get(factor)
        if default is None or value in (default, ABSENT):
            return self._alternatives(factor)
        beside = pair_to(self.layouts, self.chosen, factor, default)
        same = [p for p in self._from(factor) if p.after in (default, ABSENT)] if self._modelled else []
        if beside is None and not same:
            return Change(
                other=default,
                verdict="not screened alone" if self._modelled else "not measured alone",
                basis=self.chosen.basis,
                sentence=f"Not {self._done} alone: no two layouts of this run differ only in {factor} = "
                f"{value} or {default}.",
            )
        shown = beside or min(same, key=lambda p: _distance(p.a, self.chosen))
        sides = self.sides(shown.a, shown.b)
        verdict = judge(sides, self.deciding, self.chosen.basis)
        text = f"{self._start(sides, 'Back at', 'back at')} {default}: {phrase(self.quoted(sides))}."
        if verdict == "too small to matter":
            text += f" Differences within {self._tolerance} are too small to matter."
        if shown.b.durability != shown.a.durability:
            text += f" The durability class changes from {shown.a.durability} to {shown.b.durability}."
        if beside is None:
            text = (
                f"Not screened alone beside this layout. In another context ({shown.a.name}): "
                f"{text[0].lower()}{text[1:]}"
            )
            verdict = "not screened alone"
        low, high = _ends(sides)
        reach = span(same, self.minimise[0]) if same else None
        if reach is not None:
            low, high = reach.low, reach.high
            if len(same) > 1 and high > low * (1 + self.within):
                text += (
                    f" Over {len(same)} pairs {self.chosen.metric(self.minimise[0]).label} changes by "
                    f"{units.times(low)} to {units.times(high)}: it depends on the other settings."
                )
        return self._made(shown, default, verdict, sides, text, max(len(same), 1), beside is None, low, high)

    def _alternatives(self, factor: str) -> Change:
        """Return what other values of a factor at its default did: beside this layout, else, of replays, in
        other contexts."""
        own = default_setting(factor) is None or (factor.startswith("database.") and factor in self.defaults)
        start = "As in the base layout." if own else "The default."
        turned = self._from(factor)
        beside = [p for p in turned if p.a is self.chosen]
        found = beside
        if not found and self._modelled:  # one for each other value, from the context nearest to this layout
            nearest: dict[str, Pair] = {}
            for pair in sorted(turned, key=lambda p: _distance(p.a, self.chosen)):
                nearest.setdefault(pair.after, pair)
            found = list(nearest.values())
        if not found:
            other, sentence = "", f"No other value was {self._done}."
            if not self._modelled:
                sentence = "No other value was measured beside this layout."
            elif other := ", ".join(self._others(factor)):
                sentence = f"Screened with other changes only: {other}."
            sentence = f"{start} {sentence}"
            return Change(other=other, verdict="default", basis=self.chosen.basis, sentence=sentence)
        compared = [(pair, self.sides(pair.a, pair.b)) for pair in found]
        compared.sort(key=lambda item: (_ratio_of(item[1], self.minimise[0]), item[0].after))
        said = []
        for pair, sides in compared[:_NAMED]:
            quoted = self.quoted(sides)
            moved = [s for s in quoted if s.matters]
            words = ", ".join(f"{s.label} {units.times(s.ratio, s.low, s.high)}" for s in moved)
            # Named, since others, such as processor time, may have moved.
            words = words or f"{listed([s.label for s in quoted]) or 'nothing'} within {self._tolerance}"
            weaker = f"; durability {pair.b.durability}" if pair.b.durability != pair.a.durability else ""
            said.append(f"{pair.after} ({words}{weaker})")
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        best, sides = compared[0]
        where = self._start(sides, "Tried instead", "tried instead")
        if not beside:
            where = "Not varied beside this layout; in another context"
        text = f"{start} {where}: {'; '.join(said)}{more}."
        return self._made(best, best.after, "default", sides, text, len(found), not beside, *_ends(sides))

    def _others(self, factor: str) -> list[str]:
        """Return the values of ``factor`` that other layouts of the run have."""
        found = (c.settings.get(factor, ABSENT) for c in self.layouts)
        return [
            v for v in dict.fromkeys(found) if v not in (self.chosen.settings.get(factor, ABSENT), ABSENT)
        ]

    def _start(self, sides: Sequence[Side], alone: str, after: str) -> str:
        """Return how a sentence begins: of trials with what they are and how many blocks."""
        if self._modelled:
            return alone
        blocks = max((s.blocks for s in sides), default=0)
        return f"{self.chosen.basis.capitalize()} over {counted(blocks, 'block')}, {after}"

    def _made(
        self,
        pair: Pair,
        value: str,
        verdict: Verdict,
        sides: list[Side],
        sentence: str,
        count: int,
        elsewhere: bool,
        low: float | None,
        high: float | None,
    ) -> Change:
        return Change(
            other=value,
            verdict=verdict,
            sides=sides,
            here_layout=pair.a.name,
            other_layout=pair.b.name,
            trials=[*pair.a.trials, *pair.b.trials],
            elsewhere=elsewhere,
            pairs=count,
            low=low,
            high=high,
            sentence=sentence,
            basis=self.chosen.basis,
        )

    def _from(self, factor: str) -> list[Pair]:
        """Return the pairs in ``factor`` that have this layout's value on one side, seen from there."""
        value = self.chosen.settings.get(factor, ABSENT)
        return [
            p if p.before == value else p.flipped()
            for p in self.pairs
            if p.factor == factor and value in (p.before, p.after)
        ]

    def promising(self, own: Collection[str]) -> list[str]:
        """Return single changes that lowered the first metric beyond the tolerance, but were not tried here.

        Of layouts in ``own`` alone (hashes): those on the hardware that is there. A change starts from the
        value that the layout has and does not weaken durability. Each is given with its best ratio:
        "data.compression=zstd-3 (modelled time ×0.82)", the largest gain first.
        """
        metric = self.minimise[0]
        gains: dict[tuple[str, str], float] = {}
        for pair in (turned for p in self.pairs for turned in (p, p.flipped())):
            gain = pair.ratio(metric)
            if (
                gain is not None
                and pair.b.hash in own
                and pair.before == self.chosen.settings.get(pair.factor, ABSENT)
                and pair.matters(metric, self.within)
                and gain < 1
                and pair.b.judged.no_weaker(pair.a.judged)
                and pair_to(self.layouts, self.chosen, pair.factor, pair.after) is None
            ):
                key = pair.factor, pair.after
                gains[key] = min(gain, gains.get(key, gain))
        label = self.chosen.metric(metric).label
        return [
            f"{factor}={value} ({label} {units.times(gain)})"
            for (factor, value), gain in sorted(gains.items(), key=lambda item: item[1])
        ]


def _distance(a: LayoutResult, b: LayoutResult) -> int:
    keys = {*a.settings, *b.settings}
    return sum(1 for k in keys if a.settings.get(k) != b.settings.get(k))


def _ends(sides: Sequence[Side]) -> tuple[float | None, float | None]:
    return (sides[0].low, sides[0].high) if sides else (None, None)


def _ratio_of(sides: Sequence[Side], metric: str) -> float:
    """Return the ratio of ``metric``; of one that was nothing and is something now the largest there is."""
    found = next((s for s in sides if s.metric == metric), None)
    if found is None:
        return 0.0
    return math.inf if found.ratio is None else found.ratio
