"""From the trials of a run to a recommendation. docs/recommendation.md states the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ztune.advice import trust
from ztune.advice.choose import as_good, plainest
from ztune.advice.crash_evidence import cited
from ztune.advice.evidence import change, compare, phrase, promising
from ztune.advice.facts import L2ARC_HEADER_BYTES, dataset_facts
from ztune.advice.hazards import hazards, reason
from ztune.advice.measured import MEANING, promise, recommend_measured, set_apart
from ztune.advice.model import (
    Cost,
    Durability,
    EffectRow,
    FailedRow,
    PropertyAdvice,
    Recommendation,
    RoleAdvice,
    Row,
    Side,
)
from ztune.advice.pools import pool_advice
from ztune.advice.standing import standing
from ztune.advice.subject import subject
from ztune.analysis import units
from ztune.analysis.candidates import Candidate, Collected
from ztune.analysis.effects import Effect, Pair, effects, pairs
from ztune.analysis.metrics import EXPLAIN, MAIN, METRICS
from ztune.analysis.pareto import front
from ztune.analysis.rank import Ranked, Ranking
from ztune.analysis.stats import ratio
from ztune.errors import InputError
from ztune.store.records import Run, Trial
from ztune.study import Dataset, Objective
from ztune.study.properties import PROPERTIES, REPLAYED
from ztune.trace.manifest import Manifest
from ztune.trace.witness import Witness
from ztune.units import parse_size


def recommend(
    run: Run,
    trials: Sequence[Trial],
    objective: Objective | None = None,
    manifest: Manifest | None = None,
    layout_hash: str | None = None,
    screened: Sequence[Trial] = (),
    witness: Witness | None = None,
) -> Recommendation:
    """Return the recommendation that the finished ``trials`` of ``run`` support.

    ``objective`` defaults to the run's. ``manifest`` is the trace's, for its warnings, page sizes and
    workload; all else comes from the records. ``layout_hash``: this layout instead of the objective's choice,
    such as the one that was best when measured. ``witness``: what the trace says of acknowledgments, which
    may contradict what the settings promise. Of a measured run all rests on what was measured, and
    ``screened``, the trials of the screening that its layouts came from, stands beside it. Raises InputError
    if no layout finished, or none is durable enough.
    """
    if run.measured:
        return recommend_measured(run, trials, screened)
    goal = objective or run.objective
    now = standing(trials, goal)
    collected, ranking, defaults, allowed = now.collected, now.ranking, now.defaults, now.allowed
    if not collected.candidates:
        raise InputError(_nothing(run, collected))
    if not ranking.ranked:
        raise InputError(
            f"run {run.id} has no layout of durability class {goal.durability} or better, "
            "so there is nothing to recommend; add a layout with sync=standard and checksum=on to the study, "
            "or set the objective's durability to the class you can live with"
        )
    wanted = [c for c in collected.candidates if c.hash == layout_hash]
    chosen = wanted[0] if wanted else plainest(ranking, defaults)
    baseline = ranking.baseline
    found = pairs(collected.candidates)
    seconds = trust.trace_seconds(collected, manifest)
    workload = _workload(run, manifest)

    roles = [
        advice
        for dataset in chosen.layout.datasets
        for advice in _roles(chosen, dataset, collected, defaults, found, ranking, workload, manifest)
    ]
    pools = pool_advice(
        chosen, collected.candidates, defaults, found, ranking.minimise, ranking.within, seconds
    )
    unscreened = list(
        dict.fromkeys(
            f"{r.dataset.rpartition('/')[2]}.{p.name}"
            for r in roles
            for p in r.properties
            if p.change.verdict == "not screened alone"
        )
    ) + [p.setting for p in pools if p.change is not None and p.change.verdict == "not screened alone"]
    untried = promising(chosen, collected.candidates, found, ranking.minimise[0], ranking.within)
    sides = (
        []
        if baseline is None
        else compare(baseline, chosen, ranking.within, (*MAIN, *ranking.minimise, *EXPLAIN))
    )
    on_front = {c.hash for c in front([r.candidate for r in ranking.ranked])}
    reference = dict(baseline.settings) if baseline is not None else defaults

    return Recommendation(
        subject=subject(
            run, chosen.layout, workload, openzfs=collected.openzfs, engine=collected.engine, trace_s=seconds
        ),
        minimise=list(ranking.minimise),
        within=ranking.within,
        layout_name=chosen.name,
        layout=chosen.layout.to_json(),
        layout_hash=chosen.hash,
        trials=list(chosen.trials),
        first=ranking.ranked[0].candidate.name,
        verdict=_verdict(chosen, ranking, sides),
        against_baseline=sides,
        roles=roles,
        pools=pools,
        costs=_costs(chosen, baseline, manifest),
        durability=Durability(
            klass=str(chosen.durability),
            allowed=str(allowed),
            sentence=promise(chosen.layout, witness),
            reasons=[_sentence(text) for text in chosen.durability_reasons],
        ),
        weaker=_weaker(chosen, ranking),
        crash_tests=cited((c.durability for c in collected.candidates), workload),
        hazards=hazards(chosen, workload, manifest),
        warnings=trust.warnings(run, chosen, baseline, manifest),
        outpaced=trust.outpaced(ranking, chosen),
        confidence=trust.confidence(run, ranking, collected, chosen, manifest, unscreened, untried),
        not_tested=trust.not_tested(collected, chosen, manifest),
        ranking=[_row(r, chosen, on_front, reference) for r in ranking.ranked],
        set_apart=[_row(r, chosen, set(), reference, apart=True) for r in ranking.weaker],
        failed=[
            FailedRow(layout=f.name, hash=f.hash, trials=list(f.trials), reason=f.reason)
            for f in ranking.failed
        ],
        effects=[_effect(e, ranking.within) for e in effects(found, reference)],
    )


def _nothing(run: Run, collected: Collected) -> str:
    if collected.failed:
        first = collected.failed[0]
        return (
            f"run {run.id} has nothing to recommend: all {len(collected.failed)} layouts failed, the first "
            f'("{first.name}") with: {first.reason}'
        )
    return (
        f"run {run.id} has no finished layout yet, so there is nothing to recommend; `ztune runs` shows "
        "how far it is"
    )


def _workload(run: Run, manifest: Manifest | None) -> str | None:
    if manifest is not None and manifest.workload is not None:
        return manifest.workload.name
    name = run.study.get("workload")
    return name if isinstance(name, str) else None


def _verdict(chosen: Candidate, ranking: Ranking, sides: Sequence[Side]) -> str:
    count = len(ranking.ranked)
    layouts = f"{count} layout{'s' if count != 1 else ''}"
    share = units.show(ranking.within, "share")
    baseline = ranking.baseline
    if baseline is None:
        return (
            f"{chosen.name} is the best of {layouts} by the objective; "
            "the base layout has no result to compare with."
        )
    if chosen is baseline:
        key = ranking.minimise[0]
        quicker = [
            r.candidate
            for r in ranking.ranked
            if r.note and not as_good(baseline, r.candidate, ranking.minimise[:1], ranking.within)
        ]
        if quicker:
            names = ", ".join(c.name for c in quicker[:3])
            return (
                f"Keep the base layout ({chosen.name}): what has less {METRICS[key].label} is held back, "
                f"as the ranking says ({names}{' and others' if len(quicker) > 3 else ''})."
            )
        return (
            f"Keep the base layout ({chosen.name}): "
            f"by the objective no other of {layouts} is better by more than {share}."
        )
    text = f"{chosen.name} instead of {baseline.name}: {phrase(sides, MAIN)}. Chosen among {layouts}."
    if chosen is not ranking.best and ranking.best is not None:
        text += (
            f" {ranking.best.name} comes first in the ranking, but by no more than {share}, and is "
            "further from the defaults."
        )
    return text


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _weaker(chosen: Candidate, ranking: Ranking) -> str:
    key = ranking.minimise[0]
    label = METRICS[key].label
    parts = []
    stronger = [r.candidate for r in ranking.ranked if r.candidate.durability.rank < chosen.durability.rank]
    if stronger:
        best = stronger[0]
        change_ = units.percent(ratio(best.value(key), chosen.value(key)))
        parts.append(
            f"The best layout of the stronger class {best.durability} is {best.name}: "
            f"{label} {change_} against the one recommended here, which the objective allows."
        )
    if ranking.weaker:
        best = min((r.candidate for r in ranking.weaker), key=lambda c: c.value(key) or 0.0)
        gain = ratio(best.value(key), chosen.value(key))
        apart = set_apart(len(ranking.weaker))
        if gain is None or gain >= 1:
            parts.append(f"{apart}; none has less {label}.")
        else:
            why = (best.durability_reasons or (MEANING[best.durability],))[0].rstrip(".")
            parts.append(
                f"{apart}; the best, {best.name} ({best.durability}), "
                f"has {label} {units.percent(gain)}. It is not comparable: {why}."
            )
    return " ".join(parts)


def _roles(
    chosen: Candidate,
    dataset: Dataset,
    collected: Collected,
    defaults: Mapping[str, str],
    found: Sequence[Pair],
    ranking: Ranking,
    workload: str | None,
    manifest: Manifest | None,
) -> list[RoleAdvice]:
    facts = dataset_facts(chosen, dataset, workload, manifest)
    properties = []
    for name in REPLAYED:
        if name == "special_small_blocks" and not facts["special"]:
            continue
        if name == "secondarycache" and not facts["l2arc"] and dataset.properties[name] == "all":
            continue
        value, default = dataset.properties[name], PROPERTIES[name].default
        why, source = reason(name, facts)
        properties.append(
            PropertyAdvice(
                name=name,
                value=value,
                default=default,
                is_default=value == default,
                reason=why,
                source=source,
                change=change(
                    chosen,
                    f"{dataset.key}.{name}",
                    defaults,
                    collected.candidates,
                    found,
                    ranking.minimise,
                    ranking.within,
                ),
            )
        )
    space = _named(chosen.measure, ("space", "datasets"), dataset.name)
    writes = _named(chosen.measure, ("by_dataset",), dataset.name)
    return [
        RoleAdvice(
            role=role,
            dataset=dataset.name,
            with_roles=[r for r in dataset.roles if r != role],
            properties=properties,
            other_properties={k: v for k, v in dataset.properties.items() if k not in REPLAYED},
            allocated=_number(space, "allocated"),
            files=_number(space, "files"),
            logical=_number(space, "logical"),
            compression_ratio=_number(space, "compressratio"),
            written=_number(writes, "write_bytes"),
        )
        for role in dataset.roles
    ]


def _named(measure: Mapping[str, Any], path: tuple[str, ...], name: str) -> Mapping[str, Any]:
    node: Any = measure
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    for entry in node if isinstance(node, list) else []:
        if isinstance(entry, Mapping) and entry.get("name") == name:
            return entry
    return {}


def _number(entry: Mapping[str, Any], key: str) -> float | None:
    value = entry.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _costs(chosen: Candidate, baseline: Candidate | None, manifest: Manifest | None) -> list[Cost]:
    out: list[Cost] = []

    def base(key: str) -> float | None:
        return None if baseline is None or baseline is chosen else baseline.value(key)

    space = chosen.value("allocated")
    if space is not None:
        # Results of older engines don't say how large the files are, only the records that hold them.
        files = _number(chosen.measure.get("space", {}), "files")
        text = f"{units.amount(space)} allocated"
        if files:
            text += f" for {units.amount(files)} of files"
            if (shrink := chosen.value("compression_ratio")) is not None:
                text += f", compressed {shrink:.2f}×"
        out.append(
            Cost(
                subject="space",
                label="Space",
                value=space,
                unit="bytes",
                baseline=base("allocated"),
                sentence=text + ".",
            )
        )
    wear = chosen.value("write_amplification")
    if wear is not None:
        out.append(
            Cost(
                subject="wear",
                label="Bytes written per byte asked",
                value=wear,
                unit="ratio",
                baseline=base("write_amplification"),
                sentence=f"The disks write {wear:.2f} bytes for each byte that the database writes.",
            )
        )
    written, work = chosen.value("written"), _operations(manifest)
    if written is not None and work is not None:
        number, unit = work
        before = base("written")
        out.append(
            Cost(
                subject="wear",
                label=f"Bytes written per {unit}",
                value=written / number,
                unit="bytes",
                baseline=None if before is None else before / number,
                sentence=(
                    f"{units.amount(written / number)} written per {unit}, "
                    f"over {units.count(number)} recorded."
                ),
            )
        )
    out.append(_memory(chosen, baseline))
    return out


def _operations(manifest: Manifest | None) -> tuple[float, str] | None:
    """Return how many operations the workload did while it was recorded, and their name ("transaction")."""
    if manifest is None or manifest.workload is None:
        return None
    result = manifest.workload.result
    number, unit = result.get("operations"), result.get("unit")
    if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
        return None
    return float(number), unit if isinstance(unit, str) and unit else "operation"


def _memory(chosen: Candidate, baseline: Candidate | None) -> Cost:
    layout = chosen.layout
    sizes = [parse_size(d.properties["recordsize"]) for d in layout.datasets]
    text = f"The ARC was limited to {units.amount(layout.arc)}."
    node = chosen.measure.get("l2arc")
    cached = node.get("size_end") if isinstance(node, Mapping) else None
    if any(v.class_ == "cache" for p in layout.used_pools() for v in p.vdevs):
        smallest = min(sizes)
        text += (
            f" Each block on the cache device takes {L2ARC_HEADER_BYTES} bytes of it: "
            f"{units.amount(2**30 / smallest * L2ARC_HEADER_BYTES)} per GiB cached at recordsize "
            f"{smallest >> 10}K"
        )
        if isinstance(cached, int | float) and cached > 0:
            text += (
                f", up to {units.amount(cached / smallest * L2ARC_HEADER_BYTES)} for the "
                f"{units.amount(cached)} cached here"
            )
        text += "."
    largest = max(sizes)
    text += (
        f" A change to part of a record holds the whole record in memory until it is written: up to "
        f"{units.amount(largest)} for each."
    )
    return Cost(
        subject="memory",
        label="ARC",
        value=float(layout.arc),
        unit="bytes",
        baseline=None if baseline is None or baseline is chosen else float(baseline.layout.arc),
        sentence=text,
    )


def _row(
    ranked: Ranked, chosen: Candidate, on_front: set[str], reference: Mapping[str, str], apart: bool = False
) -> Row:
    candidate = ranked.candidate
    differs = {
        key: candidate.settings.get(key, "default")
        for key in sorted({*candidate.settings, *(k for k in reference if k in chosen.settings)})
        if candidate.settings.get(key) != reference.get(key) and not _same_default(key, candidate, reference)
    }
    return Row(
        rank=None if apart else ranked.rank,
        layout=candidate.name,
        hash=candidate.hash,
        trials=list(candidate.trials),
        baseline=candidate.baseline,
        recommended=candidate is chosen,
        durability=str(candidate.durability),
        front=candidate.hash in on_front,
        values={k: e.median for k, e in candidate.estimates.items()},
        ranges={
            k: (e.low, e.high)
            for k, e in candidate.estimates.items()
            if e.low is not None and e.high is not None
        },
        replays=len(candidate.trials),
        differs=differs,
        why=ranked.why,
        note=ranked.note,
    )


def _same_default(key: str, candidate: Candidate, reference: Mapping[str, str]) -> bool:
    """Say whether a setting that only one side carries is absent because it is at its default."""
    return key not in candidate.settings and key not in reference


def _effect(effect: Effect, within: float) -> EffectRow:
    return EffectRow(
        factor=effect.factor,
        before=effect.before,
        after=effect.after,
        pairs=len(effect.pairs),
        ratios={m: (s.median, s.low, s.high) for m, s in effect.spans.items()},
        ends={m: (s.low_layout, s.high_layout) for m, s in effect.spans.items()},
        depends=effect.depends("modelled_s", within),
        durability_changes=effect.durability_changes,
    )
