"""From the trials of a run to a recommendation. docs/recommendation.md states the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ztune.advice import clear, guard, trust
from ztune.advice.costs import costs
from ztune.advice.crash_evidence import cited
from ztune.advice.evidence import Changes, compare, phrase
from ztune.advice.facts import database_of, dataset_facts
from ztune.advice.hazards import hazards, reason
from ztune.advice.headlines import headlines, meaning, purchases
from ztune.advice.job import title, workload_of
from ztune.advice.model import (
    EffectRow,
    FailedRow,
    LayoutDurability,
    PropertyAdvice,
    Recommendation,
    RecordedFilesLeftOut,
    RecordedPace,
    RoleAdvice,
    Row,
    SettingChange,
    Side,
    StudiedSubject,
)
from ztune.advice.pools import modelled_change, pool_advice
from ztune.analysis import aged, elsewhere, neighbours, sampled, units
from ztune.analysis.basis import in_user_space
from ztune.analysis.choose import as_good
from ztune.analysis.effects import ABSENT, Effect, effects
from ztune.analysis.metrics import MAIN, number_at
from ztune.analysis.pareto import front
from ztune.analysis.rank import RankedLayout, defaults_of
from ztune.analysis.results import LayoutResult, Results, collect
from ztune.analysis.standing import Standing, standing
from ztune.databases.database import logs_among
from ztune.errors import InputError
from ztune.onhost.properties import PROPERTIES, REPLAYED
from ztune.onhost.words import ROLES
from ztune.runs import offered
from ztune.store.records import Run, Trial
from ztune.study import Dataset, DurabilityClass, Layout, Objective, default_setting
from ztune.study.durability import judge
from ztune.trace.manifest import Manifest
from ztune.units import counted

if TYPE_CHECKING:
    from ztune.trace.left_out import LeftOut
    from ztune.trace.witness import Witness

MEANING = {
    DurabilityClass.NOTHING: "A power cut loses nothing that the database has acknowledged as committed.",
    DurabilityClass.LAST_SECONDS: (
        "A power cut can lose the last seconds of acknowledged commits; the database stays consistent."
    ),
    DurabilityClass.NOT_KNOWN: "What a power cut loses is not known: nobody has declared it.",
    DurabilityClass.CORRUPT: (
        "A power cut can leave the database corrupt, or take far more than its last seconds."
    ),
}


def recommend(
    run: Run,
    trials: Sequence[Trial],
    objective: Objective | None = None,
    manifest: Manifest | None = None,
    screened: Sequence[Trial] = (),
    witness: Witness | None = None,
    left_out: LeftOut | None = None,
) -> Recommendation:
    """Return the recommendation that the finished ``trials`` of ``run`` support.

    ``objective`` defaults to the run's. ``manifest`` is the trace's, for its warnings, page sizes and
    workload; all else comes from the records. ``witness``: what the trace says of acknowledgments, which may
    contradict what the settings promise. ``left_out``: how much of the trace no replay has. Of a measured run
    all rests on what was measured, and ``screened``, the trials of the screening that its layouts came from,
    stands beside it as prediction. Raises InputError if no layout finished, none is durable enough, or a
    measured run is given another ``within``.
    """
    if run.measured and objective is not None and objective.within != run.objective.within:
        raise InputError("--within orders replays; a measured run has its own resolution")
    now = standing(run, trials, objective)
    chosen, baseline = now.chosen, now.baseline
    if chosen is None:
        raise InputError(_nothing(now))
    guard.check(chosen.layout, now.found.base_layout, now.allowed)
    modelled = now.basis == "modelled"
    left_out = left_out if modelled else None  # who measured had the database itself
    found = Changes.of(now, chosen)
    own = {p.result.hash for p in now.places if not p.to_buy}
    foretold = _screened(run, screened, chosen)
    beside = neighbours.rows(now, trials) if modelled else []
    seconds = trust.trace_seconds(now.found, manifest) if modelled else None
    workload = workload_of(run, manifest)
    roles = [
        advice
        for dataset in chosen.layout.datasets
        for advice in _roles(found, dataset, workload, manifest, foretold)
    ]
    pools = pool_advice(found, foretold, seconds)
    unscreened = list(
        dict.fromkeys(
            f"{dataset.key}.{p.name}"
            for dataset in chosen.layout.datasets
            for r in roles
            for p in r.properties
            if r.role == dataset.key and p.change.verdict == "not screened alone"
        )
    ) + [p.setting for p in pools if p.change is not None and p.change.verdict == "not screened alone"]
    sides: list[Side] = []
    if baseline is not None and (modelled or baseline is not chosen):
        sides = compare(baseline, chosen, now.within, found.metrics if modelled else now.columns())
    on_front = {c.hash for c in front([p.result for p in now.ranked])} if modelled else set()
    reference = now.defaults if baseline is None else baseline.settings
    rows = [_row(now, p, on_front, reference) for p in now.places]
    apart = {p.result.hash for p in now.weaker}
    figures = [] if baseline is None else headlines(now, baseline, chosen)
    return Recommendation(
        basis=now.basis,
        subject=_subject(now, chosen.layout, workload, seconds, manifest),
        minimise=list(now.minimise),
        within=now.within,
        per_operation=_operation(now.found),
        totals_of_jobs=now.found.several and not now.found.per_operation,
        layout_name=chosen.name,
        layout=chosen.layout.to_json(),
        layout_hash=chosen.hash,
        trials=list(chosen.trials),
        first=(now.first or chosen).name,
        verdict=_verdict(now, chosen, found.quoted(sides)),
        changes=_changes(chosen, now.found.base_layout, now.defaults, offered.kept(run.outcome).now),
        headlines=figures,
        meaning=meaning(now, figures, manifest),
        against_baseline=sides,
        roles=roles,
        pools=pools,
        costs=costs(chosen, baseline, manifest),
        durability=LayoutDurability(
            klass=str(chosen.durability),
            allowed=str(now.allowed),
            sentence=promise(chosen.layout, witness),
            reasons=[units.sentence(text) for text in chosen.durability_reasons],
        ),
        weaker=_weaker(now, chosen),
        crash_tests=cited((c.durability for c in now.found.layouts), database_of(workload, manifest)),
        hazards=hazards(chosen, workload, manifest),
        warnings=trust.warnings(now, manifest, left_out),
        clear=clear.sentences(now, chosen),
        searched=trust.searched(now),
        aged=aged.sentences(now, trials) if modelled else [],
        neighbour=neighbours.sentences(now, trials) if modelled else [],
        beside=beside,
        sampled=sampled.sentence(run, trials) if modelled else "",
        carries=elsewhere.sentence(now, trials) if modelled else "",
        elsewhere=elsewhere.rows(now, trials) if modelled else [],
        outpaced=trust.outpaced(now, manifest) if modelled else "",
        left_out=_left_out(left_out),
        recorded=_recorded(manifest) if modelled and not now.found.several else None,
        confidence=trust.confidence(
            now, chosen, manifest, unscreened, found.promising(own) if modelled else (), left_out
        ),
        not_tested=trust.not_tested(
            now, chosen, workload, manifest, aged.tried(now, trials), bool(beside or run.job.get("beside"))
        ),
        ranking=[row for row in rows if row.rank is not None],
        set_apart=[row for row in rows if row.hash in apart],
        if_bought=purchases(now, chosen),
        to_buy=[row for row in rows if row.rank is None and row.hash not in apart],
        failed=[
            FailedRow(layout=f.name, hash=f.hash, trials=list(f.trials), reason=f.reason) for f in now.failed
        ],
        effects=[_effect(e, now.within) for e in effects(found.pairs, reference)] if modelled else [],
    )


def _left_out(found: LeftOut | None) -> RecordedFilesLeftOut | None:
    if found is None:
        return None
    return RecordedFilesLeftOut(
        bytes=found.bytes, syncs=found.syncs, files=list(found.kinds), most=found.most,
        sentence=found.sentence(),
    )  # fmt: skip


def _recorded(manifest: Manifest | None) -> RecordedPace | None:
    """Return how fast the recorded workload went; None where it did not count its operations."""
    if manifest is None or manifest.workload is None:
        return None
    result = manifest.workload.result
    rate = number_at(result, "per_second")
    if not rate:
        return None
    offered = bool(number_at(result, "offered_per_second"))
    return RecordedPace(
        per_second=rate,
        unit=str(result.get("unit") or "operation"),
        offered=offered,
        waits=manifest.recorder.waits and bool(logs_among(manifest.files)),
    )


def _changes(
    chosen: LayoutResult, base: Layout | None, defaults: Mapping[str, str], own: Mapping[str, str]
) -> list[SettingChange]:
    """Return what is to be set: all in which ``chosen`` differs from ``base`` (None: from the defaults).

    ``own``: settings that the recorded database has anyway → their values.
    """
    now, wanted = defaults if base is None else base.settings(), chosen.settings
    now = {**{key: value for n, value in own.items() if (key := f"database.{n}") in wanted}, **now}
    pairs = {
        key: tuple(side.get(key, default_setting(key) or ABSENT) for side in (now, wanted))
        for key in sorted({*now, *wanted})
    }
    return [
        SettingChange(setting=key, now=before, value=value)
        for key, (before, value) in pairs.items()
        if before != value
    ]


def _operation(found: Results) -> str:
    """Return what one operation of the jobs is called where totals are divided by them, else ""."""
    if not found.per_operation:
        return ""
    jobs = [one.get("job") for c in found.layouts for one in c.results.values()]
    called = {str(job.get("unit")) for job in jobs if isinstance(job, Mapping)}
    return called.pop() if len(called) == 1 else "operation"


def _nothing(now: Standing) -> str:
    run, found = now.run, now.found
    if now.lacking:
        return now.lacking
    if now.to_buy:
        needs = [f"{k}={v}" for k, v in now.to_buy[0].to_buy.items()]
        return (
            f"run {run.id} has results only of layouts with hardware that its base layout leaves unused "
            f"({', '.join(needs)}), so there is nothing to recommend; if you have it, add --have {needs[0]}"
        )
    unknown = [key for key in now.minimise if all(c.value(key) is None for c in found.layouts)]
    if found.layouts and unknown:
        return (
            f"the layouts of run {run.id} have no {unknown[0]}: the engine that replayed them did not "
            "measure it; screen the trace again, or minimise something else"
        )
    if found.layouts and now.minimise:
        return (
            f"run {run.id} has no layout of durability class {now.allowed} or better, so there is nothing to "
            "recommend; add a layout with sync=standard and checksum=on to the study, or set the objective's "
            "durability to the class you can live with"
        )
    if found.failed:
        first = found.failed[0]
        return (
            f"run {run.id} has nothing to recommend: all {len(found.failed)} layouts failed, the first "
            f'("{first.name}") with: {first.reason}'
        )
    return (
        f"run {run.id} has no finished layout yet, so there is nothing to recommend; `ztune runs` shows "
        "how far it is"
    )


def _screened(run: Run, trials: Sequence[Trial], chosen: LayoutResult) -> Changes | None:
    """Return what a screening says of changes to the layout that was chosen by measuring."""
    found = collect(trials)
    here = next((c for c in found.layouts if c.hash == chosen.hash), None)
    if here is None:
        return None
    goal, defaults = run.objective, defaults_of(found.layouts, found.baseline)
    minimise = tuple(goal.minimise)
    return Changes.replayed(here, found.layouts, defaults, minimise, goal.within)


def _subject(
    now: Standing, layout: Layout, workload: str | None, trace_s: float | None, manifest: Manifest | None
) -> StudiedSubject:
    run = now.run
    profiles = run.study.get("profiles")
    profiles = profiles if isinstance(profiles, Mapping) else {}
    described = {}
    for name in layout.profiles():
        entry = profiles.get(name)
        described[name] = str(entry.get("description", "")) if isinstance(entry, Mapping) else ""
    return StudiedSubject(
        run=run.id,
        kind=run.kind,
        name=run.name,
        created=run.created,
        study=str(run.study.get("name", run.name)),
        title=title(run, manifest),
        workload=workload,
        database=database_of(workload, manifest) or "",
        trace=run.trace_path,
        trace_s=trace_s,
        engine=now.found.engine,
        openzfs=now.found.openzfs,
        seed=run.seed,
        environment=run.environment,
        versions=run.versions,
        command=run.command,
        profiles=described,
        base=_base(now.found.base_layout, own=manifest is not None and manifest.workload is None),
        place=_place(run),
        made_by=run.made_by,
    )


def _base(layout: Layout | None, *, own: bool) -> str:
    """Return what the base layout is; ``own``: of a database whose datasets nobody looked at."""
    if layout is None:
        return ""
    properties = {k: v for k, v in layout.settings().items() if k.partition(".")[0] in ROLES}
    if any(default_setting(key) not in (None, value) for key, value in properties.items()):
        return "the study's layout"
    return "ZFS's defaults, not your datasets" if own else "ZFS's defaults"


def _place(run: Run) -> str:
    """Return where the trials of a run ran; a mount's disks are modelled unless it was asked otherwise."""
    if not run.measured:
        return ""
    paced = in_user_space(run) and run.target.get("disks") != "instant"
    return run.where + (", modelled disks" if paced else "")


def promise(layout: Layout, witness: Witness | None) -> str:
    """Say what a power cut loses under ``layout``, and what the trace says against it."""
    judged = judge(layout)
    klass = judged.klass
    against = witness.against(layout.declared) if witness else ""
    if klass is DurabilityClass.NOTHING and judged.disks and not against:
        against = f"nobody has declared that the disks of {' and '.join(judged.disks)} keep what is flushed"
    if klass is DurabilityClass.NOTHING and against:
        return f"By its settings a power cut loses nothing that the database has acknowledged, but {against}."
    if klass is DurabilityClass.LAST_SECONDS and judged.disks:
        disks = " and ".join(judged.disks)
        return f"{MEANING[klass]} It takes disks that keep what is flushed: {disks} may not."
    return MEANING[klass]


def _verdict(now: Standing, chosen: LayoutResult, sides: Sequence[Side]) -> str:
    count = len(now.ranked)
    layouts = counted(count, "layout")
    baseline = now.baseline
    if baseline is None:
        return f"{chosen.name} comes first of {layouts}; the base layout has no result to compare with."
    first = ""
    if now.passed_over and now.first is not None:
        first = f" {now.first.name} comes first in the ranking, but {now.passed_over}."
    if chosen is not baseline:
        quoted = [s for s in sides if s.metric in MAIN] if now.basis == "modelled" else sides
        return f"{chosen.name} instead of {baseline.name}: {phrase(quoted)}. Chosen among {layouts}.{first}"
    if now.basis != "modelled":
        return f"Keep the base layout ({chosen.name}): of {layouts} none is known to be better."
    key = now.minimise[0]
    held = [p.result for p in now.ranked if p.note]
    quicker = [c for c in held if not as_good(baseline, c, now.minimise[:1], now.within)]
    if quicker:
        names = ", ".join(c.name for c in quicker[:3]) + (" and others" if len(quicker) > 3 else "")
        return (
            f"Keep the base layout ({chosen.name}): what has less {now.label(key)} is held back, "
            f"as the ranking says ({names}).{first}"
        )
    share = units.show(now.within, "share")
    return (
        f"Keep the base layout ({chosen.name}): by the objective no other of {layouts} is better by "
        f"more than {share}.{first}"
    )


def _weaker(now: Standing, chosen: LayoutResult) -> str:
    """Return what layouts of another durability class would gain, or ""."""
    if not now.minimise:
        return ""
    key = now.minimise[0]
    parts = []

    def against(other: LayoutResult) -> Side | None:
        return next(iter(compare(chosen, other, now.within, [key])), None)

    stronger = [p.result for p in now.ranked if p.result.durability.rank < chosen.durability.rank]
    if stronger and (side := against(stronger[0])) is not None:
        parts.append(
            f"The best layout of the stronger class {stronger[0].durability} is {stronger[0].name}: "
            f"{phrase([side])} against the one recommended here, which the objective allows."
        )
    if now.weaker:
        verb = "layouts are" if len(now.weaker) > 1 else "layout is"
        apart = f"{len(now.weaker)} {verb} set apart for a durability that is weaker or not known"
        best = min((p.result for p in now.weaker), key=lambda c: c.value(key) or 0.0)
        side = against(best)
        if side is None or side.ratio is None or side.ratio >= 1:
            parts.append(f"{apart}; none has less {now.label(key)}.")
        else:
            why = (best.durability_reasons or (MEANING[best.durability],))[0].rstrip(".")
            parts.append(
                f"{apart}; the best, {best.name} ({best.durability}), has {side.label} "
                f"{units.times(side.ratio, side.low, side.high)}. It is not comparable: {why}."
            )
    return " ".join(parts)


def _roles(
    found: Changes,
    dataset: Dataset,
    workload: str | None,
    manifest: Manifest | None,
    screened: Changes | None,
) -> list[RoleAdvice]:
    chosen = found.chosen
    modelled = chosen.basis == "modelled"
    facts = dataset_facts(chosen, dataset, workload, manifest)
    # A replay models some properties; trials had them all, as far as the file system has them.
    names = [n for n in REPLAYED if n in dataset.properties] if modelled else [*dataset.properties]
    if chosen.layout.pool(dataset.pool).filesystem != "zfs":
        names = []
    properties = []
    for name in names:
        if dataset.volume is not None and not modelled and not PROPERTIES[name].volumes:
            continue
        if name == "special_small_blocks" and not facts["special"]:
            continue
        value, default = dataset.properties[name], PROPERTIES[name].default
        if modelled and name == "secondarycache" and not facts["l2arc"] and value == "all":
            continue
        why, source = reason(name, facts)
        factor = f"{dataset.key}.{name}"
        properties.append(
            PropertyAdvice(
                name=name,
                value=value,
                default=default,
                is_default=value == default,
                reason=why,
                source=source,
                change=found.change(factor),
                modelled=modelled_change(screened, factor),
            )
        )
    space = _named(chosen, ("space", "datasets" if modelled else "by_dataset"), dataset.name)
    writes = _named(chosen, ("by_dataset",), dataset.name) if modelled else {}
    other = {k: v for k, v in dataset.properties.items() if k not in REPLAYED} if modelled else {}
    return [
        RoleAdvice(
            role=role,
            dataset=dataset.name,
            with_roles=[r for r in dataset.roles if r != role],
            properties=properties,
            other_properties=other,
            allocated=number_at(space, "allocated" if modelled else "used"),
            files=number_at(space, "files"),
            logical=number_at(space, "logical"),
            compression_ratio=number_at(space, "compressratio" if modelled else "ratio"),
            written=number_at(writes, "write_bytes"),
        )
        for role in dataset.roles
    ]


def _named(result: LayoutResult, path: Sequence[str], name: str) -> Mapping[str, object]:
    """Return the entry called ``name`` of a list in a layout's measure; empty without one."""
    node: object = result.measure
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    for entry in node if isinstance(node, list) else []:
        if isinstance(entry, Mapping) and entry.get("name") == name:
            return entry
    return {}


def _row(now: Standing, place: RankedLayout, on_front: set[str], reference: Mapping[str, str]) -> Row:
    result = place.result
    return Row(
        rank=place.rank,
        layout=result.name,
        hash=result.hash,
        trials=list(result.trials),
        baseline=result.baseline,
        recommended=result is now.chosen,
        durability=str(result.durability),
        front=result.hash in on_front and place.rank is not None,
        values={k: e.median for k, e in result.estimates.items()},
        few_calls=result.few_calls,
        ranges={
            k: (e.low, e.high)
            for k, e in result.estimates.items()
            if e.low is not None and e.high is not None
        },
        replays=len(result.trials),
        differs={
            key: result.settings.get(key, "default")
            for key in sorted({*result.settings, *reference})
            if result.settings.get(key) != reference.get(key)
        },
        why=place.why,
        note=place.note,
        passed_over=now.passed_over if result is now.first else "",
        to_buy=dict(place.to_buy),
    )


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
