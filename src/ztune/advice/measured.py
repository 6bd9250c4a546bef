"""From the trials of a measured run to a recommendation; the form is that of one from replays.

Every number says what it is: "measured", or "emulated" where the lab had no hardware virtualisation (then
operations and bytes are real, seconds are not). What a screening of the same layouts said stands beside it,
apart and marked as modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ztune.advice.crash_evidence import cited
from ztune.advice.evidence import change as modelled_change
from ztune.advice.evidence import defaults_of
from ztune.advice.facts import dataset_facts
from ztune.advice.hazards import hazards, reason
from ztune.advice.model import (
    Change,
    Confidence,
    Cost,
    Durability,
    FailedRow,
    Level,
    PoolAdvice,
    PropertyAdvice,
    Recommendation,
    RoleAdvice,
    Row,
    Side,
    Verdict,
)
from ztune.advice.subject import subject
from ztune.analysis import units
from ztune.analysis.candidates import Candidate, collect
from ztune.analysis.effects import ABSENT, pairs
from ztune.analysis.measured import MEASURES, PREDICTED, Cell, in_user_space, limits
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.verdict import Standing, columns, standing
from ztune.errors import InputError
from ztune.store.records import Run, Trial
from ztune.study import Dataset, DurabilityClass, Layout, default_setting
from ztune.study.properties import PROPERTIES
from ztune.trace.witness import Witness

MEANING = {
    DurabilityClass.NOTHING: "A power cut loses nothing that the database has acknowledged as committed.",
    DurabilityClass.LAST_SECONDS: (
        "A power cut can lose the last seconds of acknowledged commits; the database stays consistent."
    ),
    DurabilityClass.NOT_KNOWN: "What a power cut loses is not known: nobody has declared it.",
    DurabilityClass.CORRUPT: "A power cut can leave the database corrupt.",
}
_NAMED = 3  # alternatives that a sentence about a setting at its default names
_SHOWN = 4  # measures that a sentence quotes
# Settings of a pool that are always spoken of, by the last word of their factor.
_POOL = {
    "data": ("Data vdevs", "The disks that the layout ran on."),
    "slog": ("Log device (SLOG)", "Where a commit waits for its log record."),
    "l2arc": ("Cache device (L2ARC)", "Keeps what the ARC lets go; each block on it costs memory."),
    "special": ("Special vdev", "Holds metadata, and small blocks if special_small_blocks says so."),
    "ashift": ("Sector size", "Set when a vdev is made; it can't be changed."),
    "filesystem": ("File system", "ZFS, or another one in its place as a baseline."),
}


def recommend_measured(run: Run, trials: Sequence[Trial], screened: Sequence[Trial] = ()) -> Recommendation:
    """Return what a measured run supports. ``screened``: trials of the screening that its layouts came from.

    Raises InputError if no layout has a result, or none is durable enough.
    """
    found = standing(run, trials)
    chosen = found.recommended()
    if chosen is None:
        first = found.failed[0] if found.failed else None
        why = f'the first that failed is "{first.name}": {first.reason}' if first else "nothing ran yet"
        raise InputError(f"run {run.id} has no layout with a result to recommend; {why}")
    base = found.measured.baseline
    modelled = _Modelled(screened, run, chosen.hash)
    candidate = _candidate(chosen)
    workload = str(run.job.get("workload") or run.study.get("workload") or "") or None
    sides = [] if base is None or base is chosen else _sides(found, base, chosen, columns(found))
    roles = [
        advice
        for dataset in chosen.layout.datasets
        for advice in _roles(found, chosen, dataset, candidate, workload, modelled)
    ]
    return Recommendation(
        basis=found.clock,
        subject=subject(run, chosen.layout, workload, openzfs=found.measured.openzfs),
        minimise=list(found.goals),
        within=found.resolution,
        layout_name=chosen.name,
        layout=chosen.layout.to_json(),
        layout_hash=chosen.hash,
        trials=list(chosen.trials),
        first=found.leader.name if found.leader is not None else chosen.name,
        verdict=_verdict(found, chosen, sides),
        against_baseline=sides,
        roles=roles,
        pools=_pools(found, chosen, modelled),
        costs=_costs(chosen, base),
        durability=Durability(
            klass=str(chosen.durability),
            allowed=str(run.objective.durability),
            sentence=promise(chosen.layout, None),
            reasons=[
                text[:1].upper() + text[1:].rstrip(".") + "." for text in chosen.layout.durability_reasons()
            ],
        ),
        weaker=_weaker(found, chosen),
        crash_tests=cited((p.cell.durability for p in found.places), workload),
        hazards=hazards(candidate, workload),
        warnings=list(dict.fromkeys([*run.warnings, *found.measured.warnings])),
        confidence=_confidence(found, chosen),
        not_tested=_not_tested(found, chosen, workload),
        ranking=[_row(found, p.cell, p.rank, chosen) for p in found.places if p.rank is not None],
        set_apart=[_row(found, p.cell, None, chosen) for p in found.places if p.rank is None],
        failed=[
            FailedRow(layout=f.name, hash=f.hash, trials=list(f.trials), reason=f.reason)
            for f in found.failed
        ],
        effects=[],
    )


class _Modelled:
    """What a screening says of the same layout, if there was one."""

    def __init__(self, trials: Sequence[Trial], run: Run, chosen: str) -> None:
        self.candidates = collect(trials).candidates
        self.chosen = next((c for c in self.candidates if c.hash == chosen), None)
        self.pairs = pairs(self.candidates) if self.chosen is not None else []
        baseline = next((c for c in self.candidates if c.baseline), None)
        self.defaults = defaults_of(self.candidates, baseline)
        self.minimise = run.objective.minimise
        self.within = run.objective.within

    def change(self, factor: str) -> Change | None:
        """Return the modelled evidence for a setting of the chosen layout; None if it was not screened."""
        if self.chosen is None:
            return None
        found = modelled_change(
            self.chosen, factor, self.defaults, self.candidates, self.pairs, self.minimise, self.within
        )
        return found if found.sides else None


def promise(layout: Layout, witness: Witness | None) -> str:
    """Say what a power cut loses under ``layout``, and what the trace says against it."""
    klass = layout.durability()
    against = witness.against(layout.declared) if witness else ""
    if klass is DurabilityClass.NOTHING and against:
        return f"By its settings a power cut loses nothing that the database has acknowledged, but {against}."
    return MEANING[klass]


def set_apart(count: int) -> str:
    """Say how many layouts don't compete, and why."""
    verb = "layouts are" if count > 1 else "layout is"
    return f"{count} {verb} set apart for a durability that is weaker or not known"


def label(key: str, found: Standing) -> str:
    """Return a measure's name; seconds of an emulated lab are never shown without that word."""
    measure = MEASURES[key]
    return measure.label + (" (emulated)" if measure.clock and found.clock == "emulated" else "")


def matters(ratio: Ratio, resolution: float) -> bool:
    """Say whether a ratio differs from 1 by more than its interval and than ``resolution``, a share."""
    if not ratio.known or ratio.low <= 1 <= ratio.high:
        return False
    return max(ratio.mean, 1 / ratio.mean) > 1 + resolution


def _ratio(other: Cell, here: Cell, key: str) -> Ratio | None:
    if key not in other.values or key not in here.values:
        return None
    return paired(other.values[key], here.values[key])


def _sides(found: Standing, here: Cell, other: Cell, keys: Iterable[str]) -> list[Side]:
    out = []
    for key in dict.fromkeys(keys):
        ratio = _ratio(other, here, key)
        a, b = here.value(key), other.value(key)
        if ratio is None or a is None or b is None:
            continue
        out.append(
            Side(
                metric=key,
                label=label(key, found),
                unit=MEASURES[key].unit,
                here=a,
                other=b,
                ratio=ratio.mean,
                matters=matters(ratio, found.resolution),
                low=ratio.low if ratio.known else None,
                high=ratio.high if ratio.known else None,
                blocks=ratio.n,
            )
        )
    return out


def _phrase(sides: Sequence[Side], most: int = _SHOWN) -> str:
    parts = []
    for side in sides[:most]:
        text = f"{side.label} {units.times(side.ratio)}"
        if side.low is not None and side.high is not None:
            text += f" ({units.times(side.low).lstrip('×')} … {units.times(side.high).lstrip('×')})"
        parts.append(text)
    return ", ".join(parts)


def _judge(sides: Sequence[Side], goals: Sequence[str]) -> Verdict:
    looked = [s for s in sides if s.metric in goals and s.matters and s.ratio is not None]
    worse = any(((s.ratio or 1) > 1) == (MEASURES[s.metric].less is not False) for s in looked)
    better = any(((s.ratio or 1) < 1) == (MEASURES[s.metric].less is not False) for s in looked)
    if worse and better:
        return "trade-off"
    return "better" if worse else "worse" if better else "too small to matter"


def _beside(found: Standing, chosen: Cell, factor: str) -> list[tuple[str, Cell]]:
    """Return the layouts that differ from ``chosen`` in ``factor`` alone, each with its value."""
    mine = {k: v for k, v in chosen.settings.items() if k != factor}
    return [
        (c.settings.get(factor, default_setting(factor) or ABSENT), c)
        for c in found.measured.cells
        if c is not chosen
        and {k: v for k, v in c.settings.items() if k != factor} == mine
        and c.settings.get(factor) != chosen.settings.get(factor)
    ]


def _change(found: Standing, chosen: Cell, factor: str) -> Change:
    """Return what was measured when ``factor`` alone was another: its default, else what was tried."""
    default = default_setting(factor)
    base = found.measured.baseline
    if default is None and base is not None:
        default = base.settings.get(factor)
    value = chosen.settings.get(factor, default or ABSENT)
    others = _beside(found, chosen, factor)
    keys = [*found.goals, *columns(found)]
    word = "Emulated" if found.clock == "emulated" else "Measured"
    at_default = value == default or default is None
    wanted = [c for v, c in others if v == default]
    if not at_default and not wanted:
        return Change(
            other=default or "",
            verdict="not measured alone",
            basis=found.clock,
            sentence=f"Not measured alone: no layout of this run differs only in {factor} = {value} or "
            f"{default}.",
        )
    if not at_default:
        sides = _sides(found, chosen, wanted[0], keys)
        blocks = max((s.blocks for s in sides), default=0)
        verdict = _judge(sides, found.goals)
        text = f"{word} over {blocks} blocks, back at {default}: {_phrase(sides)}."
        if verdict == "too small to matter":
            text += f" No difference beyond {units.show(found.resolution, 'share')} and the interval."
        if wanted[0].durability != chosen.durability:
            text += f" The durability class changes from {chosen.durability} to {wanted[0].durability}."
        return _made(found, chosen, wanted[0], default or "", verdict, sides, text, 1)
    if not others:
        return Change(
            other="",
            verdict="default",
            basis=found.clock,
            sentence="No other value was measured beside this layout.",
        )
    found_sides = [(v, c, _sides(found, chosen, c, keys)) for v, c in others]
    found_sides.sort(key=lambda item: (item[2][0].ratio or 1.0) if item[2] else 1.0)
    said = "; ".join(f"{v} ({_phrase(s, 2)})" for v, _, s in found_sides[:_NAMED])
    more = f" and {len(found_sides) - _NAMED} more" if len(found_sides) > _NAMED else ""
    v, c, sides = found_sides[0]
    return _made(
        found, chosen, c, v, "default", sides, f"{word}, tried instead: {said}{more}.", len(found_sides)
    )


def _made(
    found: Standing,
    here: Cell,
    other: Cell,
    value: str,
    verdict: Verdict,
    sides: list[Side],
    text: str,
    pairs: int,
) -> Change:
    first = sides[0] if sides else None
    return Change(
        other=value,
        verdict=verdict,
        sides=sides,
        here_layout=here.name,
        other_layout=other.name,
        trials=[*here.trials, *other.trials],
        pairs=pairs,
        low=first.low if first else None,
        high=first.high if first else None,
        sentence=text,
        basis=found.clock,
    )


def _candidate(cell: Cell) -> Candidate:
    """Return a measured layout as the knowledge base asks for it: by a replay's names, as far as measured."""
    results = list(cell.results.values())
    measure = results[len(results) // 2].get("measure") if results else None
    names = {**PREDICTED, "amplification": "write_amplification", "compression": "compression_ratio"}
    return Candidate(
        name=cell.name,
        hash=cell.hash,
        layout=cell.layout,
        settings=cell.settings,
        durability=cell.durability,
        durability_reasons=tuple(cell.layout.durability_reasons()),
        baseline=cell.baseline,
        trials=cell.trials,
        # Per operation, unlike a replay's: only what the rules ask for, ratios, may be looked up.
        estimates={
            names[k]: e for k, e in cell.estimates.items() if k in {"amplification", "compression", "space"}
        },
        measure=measure if isinstance(measure, Mapping) else {},
    )


def _roles(
    found: Standing,
    chosen: Cell,
    dataset: Dataset,
    candidate: Candidate,
    workload: str | None,
    modelled: _Modelled,
) -> list[RoleAdvice]:
    zfs = chosen.layout.pool(dataset.pool).filesystem == "zfs"
    facts = dataset_facts(candidate, dataset, workload)
    properties = []
    for name, value in dataset.properties.items():
        known = PROPERTIES[name]
        if not zfs or (dataset.volume is not None and not known.volumes):
            continue
        if name == "special_small_blocks" and not facts["special"]:
            continue
        factor = f"{dataset.key}.{name}"
        why, source = reason(name, facts)
        properties.append(
            PropertyAdvice(
                name=name,
                value=value,
                default=known.default,
                is_default=value == known.default,
                reason=why,
                source=source,
                change=_change(found, chosen, factor),
                modelled=modelled.change(factor),
            )
        )
    space = _space(candidate, dataset.name)
    return [
        RoleAdvice(
            role=role,
            dataset=dataset.name,
            with_roles=[r for r in dataset.roles if r != role],
            properties=properties,
            other_properties={},
            allocated=space.get("used"),
            files=space.get("files"),
            logical=space.get("logical"),
            compression_ratio=space.get("ratio"),
            written=None,
        )
        for role in dataset.roles
    ]


def _space(candidate: Candidate, name: str) -> dict[str, float]:
    space = candidate.measure.get("space")
    rows = space.get("by_dataset") if isinstance(space, Mapping) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, Mapping) and row.get("name") == name:
            return {
                k: float(v) for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)
            }
    return {}


def _pools(found: Standing, chosen: Cell, modelled: _Modelled) -> list[PoolAdvice]:
    varied = {
        key
        for c in found.measured.cells
        for key in {*c.settings, *chosen.settings}
        if c.settings.get(key) != chosen.settings.get(key)
    }
    out = []
    many = len(chosen.layout.used_pools()) > 1
    unused = {p.name for p in chosen.layout.pools} - {p.name for p in chosen.layout.used_pools()}
    for key in sorted({*chosen.settings, *varied}):
        head, _, tail = key.rpartition(".")
        name = key.split(".")[1] if key.startswith("pool.") else chosen.layout.pools[0].name
        pool_key = key.startswith("pool.") or key in _POOL
        if pool_key and (
            name in unused or (tail in {"l2arc", "special", "filesystem"} and key not in varied)
        ):
            continue
        value = chosen.settings.get(key, default_setting(key) or ABSENT)
        if pool_key and tail in _POOL:
            subject, why = _POOL[tail]
            subject += f" of pool {name}" if many else ""
        elif key == "arc":
            subject, why = "ARC", "The memory that the ARC had; what it keeps is not read again."
        elif key.startswith("tunable."):
            subject, why = tail, "A parameter of the kernel module."
        elif key.startswith("database."):
            subject, why = tail, "A setting of the database itself."
        elif tail in {"pool", "volume", "filesystem"} and key in varied:
            subject = {"pool": "Pool", "volume": "Volume", "filesystem": "File system on the volume"}[tail]
            subject, why = f"{subject} of {head}", "Where the role lives."
        else:
            continue
        out.append(
            PoolAdvice(
                subject=subject,
                setting=key,
                value=value,
                reason=why,
                change=_change(found, chosen, key),
                modelled=modelled.change(key),
            )
        )
    return out


def _costs(chosen: Cell, base: Cell | None) -> list[Cost]:
    def before(key: str) -> float | None:
        return None if base is None or base is chosen else base.value(key)

    out = []
    for key, topic, words in (
        ("space", "space", "{} allocated at the end."),
        ("written", "wear", "{} written for each operation of the job."),
        ("amplification", "wear", "The disks write {} bytes for each byte that the database writes."),
    ):
        value = chosen.value(key)
        if value is not None:
            measure = MEASURES[key]
            out.append(
                Cost(
                    subject="space" if topic == "space" else "wear",
                    label=measure.label[:1].upper() + measure.label[1:],
                    value=value,
                    unit=measure.unit,
                    baseline=before(key),
                    sentence=words.format(units.show(value, measure.unit)),
                )
            )
    arc = chosen.layout.arc
    out.append(
        Cost(
            subject="memory",
            label="ARC",
            value=float(arc),
            unit="bytes",
            baseline=None if base is None or base is chosen else float(base.layout.arc),
            sentence=f"The ARC was limited to {units.amount(arc)}.",
        )
    )
    return out


def _verdict(found: Standing, chosen: Cell, sides: Sequence[Side]) -> str:
    count = sum(p.rank is not None for p in found.places)
    layouts = f"{count} layout{'s' if count != 1 else ''}"
    base = found.measured.baseline
    if base is None:
        return f"{chosen.name} comes first of {layouts}; the baseline has no result to compare with."
    if chosen is base:
        return f"Keep the baseline ({chosen.name}): of {layouts} none is known to be better."
    return f"{chosen.name} instead of {base.name}: {_phrase(sides)}. Chosen among {layouts}."


def _weaker(found: Standing, chosen: Cell) -> str:
    apart = [p.cell for p in found.places if p.rank is None]
    if not apart or not found.goals:
        return ""
    key = found.goals[0]
    best = min(apart, key=lambda c: c.value(key) or float("inf"))
    ratio = _ratio(best, chosen, key)
    gain = (
        ""
        if ratio is None
        else f" {label(key, found)} {units.times(ratio.mean)} of the recommended layout's;"
    )
    return (
        f"{set_apart(len(apart))}; the best, {best.name} ({best.durability}), has{gain} it is not comparable."
    )


def _confidence(found: Standing, chosen: Cell) -> Confidence:
    weak: list[str] = []
    limited: list[str] = []
    notes: list[str] = []
    run = found.run
    caution = found.caution()
    if caution is not None:
        limited.append(caution)
    if len(chosen.trials) < 2:
        weak.append("The recommended layout ran once: nothing is known of how much its runs differ.")
    base = found.measured.baseline
    if base is None:
        weak.append("The baseline has no result, so nothing is compared with where you are today.")
    if found.outcome.get("verdict") == "open":
        limited.append("The run ended before the best layout was known beyond doubt: more blocks are needed.")
    if run.status in {"interrupted", "failed"}:
        limited.append(f"The run is not complete: {found.measured.pending} trials did not run.")
    note = limits(run, found.measured.cells)
    if note is not None:
        notes.append(note)
        if not limited:
            limited.append("What your disks do beyond their profile is not in it.")
    equal = [p.cell.name for p in found.places if p.standing == "equal" and p.cell is not chosen]
    if equal:
        notes.append(
            f"Equal within {units.show(found.resolution, 'share')}: {', '.join(equal)}; any of them will do."
        )
    level: Level = "weak" if weak else "limited" if limited else "good"
    zfs = "OpenZFS in user space" if in_user_space(run) else "real ZFS"
    sentence = {
        "good": f"Good: measured with the real database on {zfs}, and repeated until it was resolved.",
        "limited": f"Limited: measured on {zfs}, with the gaps below.",
        "weak": "Weak: too little was measured. Run more blocks before you act on it.",
    }[level]
    return Confidence(level=level, sentence=sentence, reasons=[*weak, *limited, *notes])


def _not_tested(found: Standing, chosen: Cell, workload: str | None) -> list[str]:
    cells = found.measured.cells
    same: dict[str, list[str]] = {}
    for dataset in chosen.layout.datasets:
        for name in dataset.properties:
            key = f"{dataset.key}.{name}"
            if len({c.settings.get(key) for c in cells}) == 1:
                same.setdefault(dataset.key, []).append(name)
    out = []
    if same:
        varied = "; ".join(f"{role}: {', '.join(names)}" for role, names in same.items())
        out.append(f"Properties with one value in all layouts: {varied}.")
    out.append(
        "An aged pool: each trial starts on an empty one, without fragmentation, snapshots or other tenants."
    )
    out.append(
        f"Other workloads than {workload or 'this one'}, "
        "such as backups, imports and long reports; other sizes."
    )
    return out


def _row(found: Standing, cell: Cell, rank: int | None, chosen: Cell) -> Row:
    base = found.measured.baseline
    reference = dict(base.settings) if base is not None else {}
    place = next(p for p in found.places if p.cell is cell)
    why = {
        "leader": "leads",
        "worse": "worse than the leader",
        "equal": "equal to the leader",
        "open": "not resolved",
    }.get(place.standing, "")
    if place.lag:
        why = f"{why}: {place.lag}" if why else place.lag
    return Row(
        rank=rank,
        layout=cell.name,
        hash=cell.hash,
        trials=list(cell.trials),
        baseline=cell.baseline,
        recommended=cell is chosen,
        durability=str(cell.durability),
        front=False,
        values={k: e.median for k, e in cell.estimates.items()},
        ranges={
            k: (e.low, e.high) for k, e in cell.estimates.items() if e.low is not None and e.high is not None
        },
        replays=len(cell.trials),
        differs={
            k: cell.settings.get(k, "default")
            for k in sorted({*cell.settings, *reference})
            if cell.settings.get(k) != reference.get(k)
        }
        if reference
        else {},
        why=why,
    )
