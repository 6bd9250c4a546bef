"""One layout for all jobs of a database, out of several runs. docs/recommendation.md states the rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from ztune.advice import guard
from ztune.advice.commands import check_answer, settable_unseen
from ztune.advice.hazards import hazards
from ztune.advice.joint_base import WeighedRun, check_same, in_common, joint_base, openzfs_of
from ztune.advice.joint_model import (
    Choice,
    Conflict,
    JobAdvice,
    JobRatio,
    JointRecommendation,
    RestsOn,
    RoleRow,
    Untried,
)
from ztune.advice.model import Hazard, LayoutDurability
from ztune.advice.recommend import promise
from ztune.analysis import units
from ztune.analysis.effects import Pair
from ztune.analysis.joint import Candidate, JobField, Moved, Search, Worth, moved, setting, starts
from ztune.analysis.metrics import number_at
from ztune.analysis.standing import Standing, standing
from ztune.errors import InputError
from ztune.onhost.properties import PROPERTIES, REPLAYED
from ztune.onhost.words import ROLES
from ztune.study import Layout
from ztune.study.durability import Bar
from ztune.units import listed

ALWAYS = ("recordsize", "logbias", "compression")
"""The properties that the table of roles always has; others where a run varied them or they are set."""


def recommend_together(jobs: Sequence[WeighedRun]) -> JointRecommendation:
    """Return the one layout that serves all ``jobs``, two or more, best by their weights.

    Raises InputError with one sentence where the runs can't be judged together: another version of OpenZFS,
    other disks, another ARC, modelled beside measured, no value of a setting in common, or one has no answer.
    """
    for job in jobs:
        check_answer(job.alone)
    nows = [standing(j.run, j.trials, j.objective) for j in jobs]
    ids = [j.run.id for j in jobs]
    check_same(jobs, nows)
    minimise, within = _objective(ids, nows)
    bar = _bar(ids, jobs, nows)
    columns = [minimise if now.minimise[: len(minimise)] == minimise else now.minimise[:1] for now in nows]
    fields = [JobField(now, keys, bar) for now, keys in zip(nows, columns, strict=True)]
    for run, field in zip(ids, fields, strict=True):
        if not field.layouts:
            raise InputError(
                f"run {run} has no layout of durability class {bar.worst} or better, which the strictest of "
                "the jobs asks for; add one with sync=standard to its study"
            )
        if (metric := field.no_ratio()) is not None:
            raise InputError(
                f"{metric} is 0 under the base layout of run {run}, so no other layout of it has a ratio to "
                f"that; weigh the jobs by another metric, with --objective"
            )
    base, notes = joint_base(ids, [now.found.base_layout for now in nows])
    base = in_common(ids, fields, base)
    shares = _shares(jobs, nows)
    search = Search(fields, shares, base, minimise, within, bar)
    best = search.best([s for now in nows for s in starts(now)])
    if best is None:
        raise InputError(
            f"no layout can be judged by all of runs {listed(ids)}: they vary the same settings in too "
            "different contexts; screen them by one study"
        )
    guard.check(best.result.layout, base, bar.worst)
    rows = [_job(*row, best) for row in zip(jobs, nows, fields, shares, best.worths, strict=True)]
    ratio = best.result.value(minimise[0])
    assert ratio is not None  # the search ordered by it
    evidence: RestsOn = "tried" if best.tried else "combined"
    conflicts = list(_conflicts(ids, search, best))
    roles = _roles(ids, search, best.result.layout)
    notes = [*_notes(jobs, nows, fields), *notes]
    changes = search.changes(best)
    return JointRecommendation(
        basis=nows[0].basis,
        openzfs=openzfs_of(jobs[0].run, nows[0]),
        minimise=list(minimise),
        within=within,
        evidence=evidence,
        verdict=_verdict(best, changes, ratio, len(jobs)),
        ratio=ratio,
        layout=best.result.layout.to_json(),
        layout_hash=best.result.hash,
        changes=changes,
        now={factor: setting(base.settings(), factor) for factor in changes},
        jobs=rows,
        roles=roles,
        pool={f: setting(best.result.settings, f) for f in search.values if f.partition(".")[0] not in ROLES},
        conflicts=conflicts,
        untried=list(_untried(ids, search, best)),
        durability=_durability(jobs, best, bar),
        hazards=_hazards(jobs, best),
        notes=notes,
        commands=_commands(roles, best.result.layout),
    )


def _objective(ids: Sequence[str], nows: Sequence[Standing]) -> tuple[tuple[str, ...], float]:
    """Return the metrics that order joint layouts, and the tolerance. Of measured runs the first decides."""
    keys, within = nows[0].minimise, max(now.within for now in nows)
    if nows[0].basis != "modelled":
        return keys[:1], within
    for run, now in zip(ids, nows, strict=True):
        if now.minimise != keys:
            raise InputError(
                f"run {ids[0]} minimises {', '.join(keys)} and run {run} {', '.join(now.minimise)}; "
                f"say which, with --objective {','.join(keys)}"
            )
    return keys, within


def _bar(ids: Sequence[str], jobs: Sequence[WeighedRun], nows: Sequence[Standing]) -> Bar:
    """Return what a joint layout must hold at a power cut: the strictest of what the jobs ask for."""
    bars = [
        Bar.of((job.objective or job.run.objective).durability, now.found.base_layout)
        for job, now in zip(jobs, nows, strict=True)
    ]
    for run, bar in zip(ids, bars, strict=True):
        if bar.unknown != bars[0].unknown:
            raise InputError(
                f"what a power cut loses is declared otherwise in run {ids[0]} than in run {run} "
                f"({', '.join(bars[0].unknown or bar.unknown)}); declare the same in both studies"
            )
    worst = min((bar.worst for bar in bars), key=lambda c: c.rank)
    return replace(bars[0], worst=worst, direct=any(bar.direct for bar in bars))


def _shares(jobs: Sequence[WeighedRun], nows: Sequence[Standing]) -> list[float]:
    """Return what share of the whole each job is: its weight, or its times a day × its seconds today."""
    weights = []
    for job, now in zip(jobs, nows, strict=True):
        seconds: float | None = 1.0
        if job.per_day:
            base = now.baseline
            assert base is not None  # checked
            seconds = (
                (base.value("modelled_s") or 0.0) * (base.work or 1.0)
                if base.basis == "modelled"
                else number_at(base.measure, "seconds")
            )
        if not seconds:
            raise InputError(
                f"run {job.run.id} does not say how long its job takes under the base layout, so per_day has "
                "no meaning for it; give the jobs a weight"
            )
        weights.append(job.weight * seconds)
    return [w / sum(weights) for w in weights]


def _ratio(found: Moved) -> JobRatio:
    finite = found.ratio < float("inf")
    return JobRatio(ratio=found.ratio if finite else None, low=found.low, high=found.high)


def _job(
    job: WeighedRun, now: Standing, field: JobField, share: float, worth: Worth, best: Candidate
) -> JobAdvice:
    metric = field.metrics[0]
    assert now.chosen is not None  # checked
    alone, joint = moved(Pair("", field.base, now.chosen), metric), worth.moved[0]
    return JobAdvice(
        run=job.run.id,
        name=job.run.name,
        workload=job.workload,
        share=share,
        metric=metric,
        label=now.label(metric),
        minimise=list(now.minimise),
        alone=now.chosen.name,
        alone_ratio=_ratio(alone),
        joint_ratio=_ratio(joint),
        costs=joint.ratio / alone.ratio if alone.ratio and joint.ratio < float("inf") else None,
        evidence="combined" if worth.tried is None else "tried",
        trials=[] if worth.tried is None else list(worth.tried.trials),
        nearest=[] if worth.tried is not None else [c.name for c in worth.nearest],
        changed=list(worth.changed),
        confidence=job.alone.confidence.level,
    )


def _roles(ids: Sequence[str], search: Search, layout: Layout) -> list[RoleRow]:
    varied = {f.partition(".")[2] for f in search.values if f.partition(".")[0] in ROLES}
    rows = []
    for dataset in layout.datasets:
        zfs = layout.pool(dataset.pool).filesystem == "zfs"
        shown = [
            name
            for name in (*ALWAYS, *(n for n in dataset.properties if n not in ALWAYS))
            if name in ALWAYS or name in varied or dataset.properties[name] != PROPERTIES[name].default
        ]
        here = [(run, f) for run, f in zip(ids, search.fields, strict=True) if dataset.key in f.roles]
        tried = all(
            any(
                all(
                    setting(c.settings, f"{dataset.key}.{n}")
                    == dataset.properties.get(n, PROPERTIES[n].default)
                    for n in REPLAYED
                )
                for c in field.layouts
            )
            for _, field in here
        )
        rows.append(
            RoleRow(
                roles=list(dataset.roles),
                dataset=dataset.name,
                properties={n: dataset.properties[n] for n in shown} if zfs else {},
                runs=[run for run, _ in here],
                evidence="tried" if tried else "combined",
            )
        )
    return rows


def _conflicts(ids: Sequence[str], search: Search, best: Candidate) -> Iterator[Conflict]:
    """Yield the settings of which two jobs want different values: each loses by the other's."""
    settings, more = best.result.settings, 1 + search.within
    for factor, values in search.values.items():
        now = setting(settings, factor)
        asked = {r: f for r, f in zip(ids, search.fields, strict=True) if f.asks(factor)}
        table: dict[str, dict[str, Moved]] = {}
        for value in values:
            found = {run: field.change(settings, factor, value) for run, field in asked.items()}
            known = {run: m for run, m in found.items() if m is not None}
            if len(known) == len(asked):
                table[value] = known
        if now not in table:
            continue
        wants = {
            run: min(table, key=lambda v, run=run: (table[v][run].counted, v != now))  # type: ignore[misc]
            for run in asked
        }
        apart = any(
            table[wants[b]][a].counted > table[wants[a]][a].counted * more
            and table[wants[a]][b].counted > table[wants[b]][b].counted * more
            for a, b in combinations(asked, 2)
        )
        if apart:
            yield Conflict(
                setting=factor,
                choices=[
                    Choice(
                        value=value,
                        chosen=value == now,
                        ratios={run: _ratio(m) for run, m in table[value].items()},
                        wanted_by=[run for run, wanted in wants.items() if wanted == value],
                    )
                    for value in table
                    if value == now or value in wants.values()
                ],
            )


def _untried(ids: Sequence[str], search: Search, best: Candidate) -> Iterator[Untried]:
    """Yield the best value of each setting that helps one job and that another's run did not have."""
    settings = best.result.settings
    for run, field in zip(ids, search.fields, strict=True):
        for factor in field.varied:
            found = [
                (m.counted, value)
                for value in field.values[factor]
                if value not in search.values.get(factor, ())
                and (m := field.change(settings, factor, value)) is not None
                and m.counted * (1 + search.within) < 1
            ]
            if found:
                ratio, value = min(found)
                lacking = [r for r, f in zip(ids, search.fields, strict=True) if not f.can(factor, value)]
                yield Untried(setting=factor, value=value, run=run, ratio=ratio, lacking=lacking)


def _notes(jobs: Sequence[WeighedRun], nows: Sequence[Standing], fields: Sequence[JobField]) -> list[str]:
    notes = []
    for job in jobs:
        if job.measured_by:
            notes.append(
                f"Run {job.measured_by} has measured layouts of run {job.run.id} since: where all jobs were "
                "measured, name those runs."
            )
        if job.run.status != "done":
            notes.append(f"Run {job.run.id} is not complete.")
        if job.alone.left_out is not None:
            notes.append(f"Run {job.run.id}: {job.alone.left_out.sentence}")
        if job.alone.confidence.level == "weak":
            notes.append(
                f"The evidence of run {job.run.id} is weak; `ztune recommend {job.run.id}` says why."
            )
    engines = dict.fromkeys(now.found.engine for now in nows)
    if len(engines) > 1:
        notes.append(f"The runs are of engines {listed([*engines])}; each ratio is within one of them.")
    bought = [job.run.id for job, now in zip(jobs, nows, strict=True) if now.to_buy]
    if bought:
        notes.append(
            f"Layouts with hardware to buy are left out; `ztune recommend {bought[0]}` says what they bring."
        )
    for a, b in combinations(jobs, 2):
        if a.run.trace_sha and a.run.trace_sha == b.run.trace_sha:
            notes.append(f"Runs {a.run.id} and {b.run.id} replayed one recording: its job counts twice.")
    for (i, one), (k, other) in combinations(enumerate(fields), 2):
        for factor in one.values:
            here, there = setting(one.base.settings, factor), setting(other.base.settings, factor)
            if other.asks(factor) and here != there:
                notes.append(
                    f"The base layouts differ in {factor} ({here} in run {jobs[i].run.id}, {there} in "
                    f"{jobs[k].run.id}): each ratio is to the run's own."
                )
    caution = nows[0].caution()
    if caution is not None:
        notes.append(caution)
    done = "replayed" if nows[0].basis == "modelled" else "run"
    notes.append(f"Each job was {done} alone: what two jobs do to each other at the same time is not in it.")
    return notes


def _verdict(best: Candidate, changes: Mapping[str, str], ratio: float, count: int) -> str:
    said = ", ".join(f"{k}={v}" for k, v in changes.items())
    if not changes:
        return f"Keep the base layout for all {count} jobs: no other is known to be better by their weights."
    how = (
        "every job tried it"
        if best.tried
        else "combined from effects: no run had it whole, so prove it before you rely on it"
    )
    return (
        f"One layout for {count} jobs: {said}. Weighted mean over the jobs {units.times(ratio)} of "
        f"their base layouts; {how}."
    )


def _durability(jobs: Sequence[WeighedRun], best: Candidate, bar: Bar) -> LayoutDurability:
    layout = best.result.layout
    plain = promise(layout, None)
    said = [promise(layout, job.witness) for job in jobs]
    return LayoutDurability(
        klass=str(best.result.durability),
        allowed=str(bar.worst),
        sentence=next((s for s in said if s != plain), plain),
        reasons=[units.sentence(text) for text in best.result.durability_reasons],
    )


def _hazards(jobs: Sequence[WeighedRun], best: Candidate) -> list[Hazard]:
    order = {"danger": 0, "warning": 1, "note": 2}
    found = [h for job in jobs for h in hazards(best.result, job.workload, job.manifest)]
    unique = {(h.id, h.sentence): h for h in found}
    return sorted(unique.values(), key=lambda h: order[h.severity])


def _commands(roles: Sequence[RoleRow], layout: Layout) -> list[str]:
    """Return a ``zfs set`` for each dataset, its name to be filled in, as all commands have it for those of
    which nothing is known: with ``sync`` and ``checksum`` too, which the promise of durability rests on."""
    lines = []
    for row in roles:
        dataset = next(d for d in layout.datasets if d.name == row.dataset)
        if row.properties:  # it is on ZFS
            words = [f"{name}={value}" for name, value in settable_unseen(dataset, layout).items()]
            lines.append(f"zfs set {' '.join(words)} POOL/{row.roles[0].upper()}")
    return lines
