"""What changes when one property goes back to its default: from screened pairs, or said to be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ztune.advice.model import Change, Side, Verdict
from ztune.analysis import units
from ztune.analysis.candidates import Candidate
from ztune.analysis.effects import ABSENT, Pair, pair_to, span
from ztune.analysis.metrics import EXPLAIN, MAIN, METRICS
from ztune.analysis.stats import differs, ratio
from ztune.study import default_setting

# How many alternatives a sentence about a property at its default names.
_NAMED = 3


def defaults_of(candidates: Sequence[Candidate], baseline: Candidate | None) -> dict[str, str]:
    """Return the value that counts as "the default" of each setting of ``candidates``.

    ZFS's own default; where ZFS has none (disks, sector size, ARC, which pool), the base layout's value.
    """
    out: dict[str, str] = {}
    for candidate in candidates:
        for key in candidate.settings:
            if key in out:
                continue
            value = default_setting(key)
            if value is None and baseline is not None:
                value = baseline.settings.get(key)
            if value is not None:
                out[key] = value
    return out


def compare(here: Candidate, other: Candidate, within: float, metrics: Sequence[str]) -> list[Side]:
    """Return ``metrics`` of two layouts side by side; those that one of them lacks are left out."""
    sides = []
    for key in dict.fromkeys(metrics):
        a, b = here.value(key), other.value(key)
        if a is None or b is None:
            continue
        sides.append(
            Side(
                metric=key,
                label=METRICS[key].label,
                unit=METRICS[key].unit,
                here=a,
                other=b,
                ratio=ratio(b, a),
                matters=differs(other.estimates.get(key), here.estimates.get(key), within),
            )
        )
    return sides


def judge(sides: Sequence[Side], metrics: Sequence[str]) -> Verdict:
    """Return what ``sides`` (other against here) say of the value here, looking at ``metrics`` alone."""
    looked = [s for s in sides if s.metric in metrics and s.matters]
    worse = [s for s in looked if s.other > s.here]  # the other value needs more
    better = [s for s in looked if s.other < s.here]
    if worse and better:
        return "trade-off"
    if worse:
        return "better"
    return "worse" if better else "too small to matter"


def phrase(sides: Sequence[Side], metrics: Sequence[str] = MAIN) -> str:
    """Return ``sides`` as words: "modelled time +180% (35.7 s → 100 s), space −12% (…)"."""
    parts = []
    for side in sides:
        if side.metric in metrics:
            here, other = units.show(side.here, side.unit), units.show(side.other, side.unit)
            change = "" if side.ratio is None else f" {units.times(side.ratio)}"
            parts.append(
                f"{side.label}{change}" + (f" ({here} → {other})" if here != other else f" ({here})")
            )
    return ", ".join(parts)


def change(
    candidate: Candidate,
    factor: str,
    defaults: Mapping[str, str],
    candidates: Sequence[Candidate],
    pairs: Sequence[Pair],
    minimise: Sequence[str],
    within: float,
) -> Change:
    """Return what happens to ``candidate`` when ``factor`` alone goes back to its default.

    For a factor that is at its default: what was tried instead. ``pairs`` are all pairs of the run. Only
    pairs that differ in ``factor`` alone are used; without one beside this layout, pairs in other contexts
    are quoted and said to be that.
    """
    value = candidate.settings.get(factor, ABSENT)
    default = defaults.get(factor)
    metrics = (*MAIN, *minimise)
    if default is None or value in (default, ABSENT):
        return _alternatives(candidate, factor, pairs, minimise, within)

    beside = pair_to(candidates, candidate, factor, default)
    same = [
        p if p.before == value else p.flipped()
        for p in pairs
        if p.factor == factor
        and value in (p.before, p.after)
        and _is_default(p.after if p.before == value else p.before, default)
    ]
    if beside is None and not same:
        return Change(
            other=default,
            verdict="not screened alone",
            sentence=f"Not screened alone: no two layouts of this run differ only in {factor} = {value} or "
            f"{default}.",
        )
    shown = beside or min(same, key=lambda p: _distance(p.a, candidate))
    sides = compare(shown.a, shown.b, within, (*metrics, *EXPLAIN))
    verdict = judge(sides, metrics)
    reach = span(same, minimise[0])
    text = f"Back at {default}: {phrase(sides, metrics)}."
    if verdict == "too small to matter":
        text += f" Differences within {units.show(within, 'share')} are too small to matter."
    if shown.b.durability != shown.a.durability:
        text += f" The durability class changes from {shown.a.durability} to {shown.b.durability}."
    if beside is None:
        text = (
            f"Not screened alone beside this layout. In another context ({shown.a.name}): "
            f"{text[0].lower()}{text[1:]}"
        )
        verdict = "not screened alone"
    if reach is not None and len(same) > 1 and reach.high > reach.low * (1 + within):
        text += (
            f" Over {len(same)} pairs {METRICS[minimise[0]].label} changes by {units.times(reach.low)} to "
            f"{units.times(reach.high)}: it depends on the other settings."
        )
    return Change(
        other=default,
        verdict=verdict,
        sides=sides,
        here_layout=shown.a.name,
        other_layout=shown.b.name,
        trials=[*shown.a.trials, *shown.b.trials],
        elsewhere=beside is None,
        pairs=max(len(same), 1),
        low=None if reach is None else reach.low,
        high=None if reach is None else reach.high,
        sentence=text,
    )


def promising(
    chosen: Candidate, candidates: Sequence[Candidate], pairs: Sequence[Pair], metric: str, within: float
) -> list[str]:
    """Return single changes that lowered ``metric`` beyond ``within``, but were not tried on ``chosen``.

    A change starts from the value that ``chosen`` has and does not weaken durability. Each is given with its
    best ratio: "data.compression=zstd-3 (modelled time −18%)", the largest gain first.
    """
    gains: dict[tuple[str, str], float] = {}
    for pair in (turned for p in pairs for turned in (p, p.flipped())):
        gain = pair.ratio(metric)
        if (
            gain is not None
            and pair.before == chosen.settings.get(pair.factor, ABSENT)
            and pair.matters(metric, within)
            and gain < 1
            and pair.b.judged.no_weaker(pair.a.judged)
            and pair_to(candidates, chosen, pair.factor, pair.after) is None
        ):
            key = pair.factor, pair.after
            gains[key] = min(gain, gains.get(key, gain))
    label = METRICS[metric].label
    return [
        f"{factor}={value} ({label} {units.times(gain)})"
        for (factor, value), gain in sorted(gains.items(), key=lambda item: item[1])
    ]


def _is_default(value: str, default: str) -> bool:
    return value in (default, ABSENT)  # tunables at their default are not among a layout's settings


def _distance(a: Candidate, b: Candidate) -> int:
    keys = {*a.settings, *b.settings}
    return sum(1 for k in keys if a.settings.get(k) != b.settings.get(k))


def _alternatives(
    candidate: Candidate, factor: str, pairs: Sequence[Pair], minimise: Sequence[str], within: float
) -> Change:
    """Return what other values of a factor at its default did: beside this layout, else in other contexts."""
    start = "The default." if default_setting(factor) is not None else "As in the base layout."
    value = candidate.settings.get(factor, ABSENT)
    turned = [
        p if p.before == value else p.flipped()
        for p in pairs
        if p.factor == factor and value in (p.before, p.after)
    ]
    beside = [p for p in turned if p.a is candidate]
    found = beside
    if not found:  # one pair for each other value, from the context nearest to this layout
        nearest: dict[str, Pair] = {}
        for pair in sorted(turned, key=lambda p: _distance(p.a, candidate)):
            nearest.setdefault(pair.after, pair)
        found = list(nearest.values())
    if not found:
        return Change(other="", verdict="default", sentence=f"{start} No other value was screened.")
    found.sort(key=lambda p: (p.ratio(minimise[0]) or 0.0, p.after))
    said = []
    for pair in found[:_NAMED]:
        moved = [s for s in compare(pair.a, pair.b, within, (*MAIN, *minimise)) if s.matters]
        words = ", ".join(f"{s.label} {units.times(s.ratio)}" for s in moved)
        words = words or f"nothing beyond {units.show(within, 'share')}"
        weaker = f"; durability {pair.b.durability}" if pair.b.durability != pair.a.durability else ""
        said.append(f"{pair.after} ({words}{weaker})")
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    where = "Tried instead" if beside else "Not varied beside this layout; in another context"
    best = found[0]
    return Change(
        other=best.after,
        verdict="default",
        sides=compare(best.a, best.b, within, (*MAIN, *minimise, *EXPLAIN)),
        here_layout=best.a.name,
        other_layout=best.b.name,
        trials=[*best.a.trials, *best.b.trials],
        elsewhere=not beside,
        pairs=len(found),
        sentence=f"{start} {where}: {'; '.join(said)}{more}.",
    )
