"""What was found of the studies as tables and sentences, for the page and for docs/studies.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ztune.analysis import units
from ztune.claims import publication, thumb
from ztune.claims.accuracy import JOB_TIME, smallest
from ztune.claims.conclusion import REPLAY, Upshot
from ztune.claims.found import (
    BESIDE_TIME,
    COUNTS,
    FoundCondition,
    FoundLayout,
    FoundStudies,
    FoundStudy,
    FoundVerdict,
    MeasuredEnd,
)
from ztune.claims.publication import Publication, Table
from ztune.claims.thumb import RecordSizeSweep
from ztune.study import ready
from ztune.units import format_size

RATIOS = ("job_s", "modelled_s", "busy_s", "written", "read", "allocated")
"""Metrics that are shown as ratios to a table's base; the first where the base's job went as fast as it
could."""
HEADS = {
    "job_s": "job's time", "modelled_s": "modelled time", "busy_s": "busiest disk",
    "written": "bytes written", "read": "bytes read", "allocated": "space", "write_ops": "writes",
    "read_ops": "reads", "rmw_reads": "read-modify-write reads", "zil_bytes": "ZIL",
    "flushes": "flushes", "arc_misses": "ARC misses",
}  # fmt: skip
_TIMES = {"job_s": "predicted time", "modelled_s": "modelled time"}


@dataclass(frozen=True)
class StudySheet:
    """A table for people. The first ``words`` columns are text, the others figures."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


@dataclass(frozen=True)
class RatioRow:
    """One layout beside its table's base, for a table and a chart: ratios, None where there is none.

    ``ours``: metric → ratio. ``figure``: as published, with its unit. ``why``: why there is no trial.
    """

    name: str
    set: str
    figure: str
    published: float | None
    ours: dict[str, float | None]
    trial: str
    why: str


@dataclass(frozen=True)
class RatioTable:
    """A published table beside ours, or layouts that have no published figures.

    ``main``: the metric of ours that stands for what was published; None where a replay has no such.
    ``inverse``: whether the published figure is the more the better, a rate.
    """

    name: str
    quantity: str
    unit: str
    base: str
    main: str | None
    inverse: bool
    rows: tuple[RatioRow, ...]
    note: str = ""

    @property
    def ratios(self) -> tuple[str, ...]:
        """The metrics that are shown of it."""
        return RATIOS if any(row.ours["job_s"] is not None for row in self.rows) else RATIOS[1:]

    @property
    def run(self) -> int:
        """How many layouts have a trial."""
        return sum(bool(row.trial) for row in self.rows)


@dataclass(frozen=True)
class LadderStep:
    """A step from the defaults to the last recommendation. ``joined``: it is kept by those after it;
    ``end``: another database or file system, measured and not modelled."""

    name: str
    values: dict[str, float | None]
    joined: bool
    end: MeasuredEnd | None = None


def published(source: Publication, found: FoundStudy) -> list[RatioTable]:
    """Return each published table of a study beside what was found here."""
    return [_published(source, table, found) for table in source.table]


def _published(source: Publication, table: Table, found: FoundStudy) -> RatioTable:
    base = source.base_of(table)
    figure, mine = source.rows()[base][1].value, found.layout(base)
    out = []
    for name, row in table.all_rows().items():
        one = found.layout(f"{table.name}/{name}")
        out.append(_row(name, f"{row.value:,.10g}", row.value / figure, one, mine))
    return RatioTable(
        name=table.name,
        quantity=table.quantity,
        unit=table.unit,
        base=base.removeprefix(f"{table.name}/"),
        main=_main(table, mine),
        inverse=table.metric == "per_second",
        rows=tuple(out),
        note=table.note,
    )


def _row(
    name: str, figure: str, told: float | None, one: FoundLayout | None, base: FoundLayout | None
) -> RatioRow:
    ours = {metric: _over(one, base, metric) for metric in RATIOS}
    if one is None:
        return RatioRow(name, "", figure, told, ours, "", "not run")
    return RatioRow(name, one.set, figure, told, ours, one.trial, one.why)


def _main(table: Table, base: FoundLayout | None) -> str | None:
    """Return the metric of ours that stands for what ``table`` has."""
    if table.metric in ("time", "per_second"):
        return _time_of(base)
    return "allocated" if table.metric == "space" else None


def _time_of(base: FoundLayout | None) -> str:
    """Return the metric that says how long the job of a table with this base takes."""
    return "job_s" if base is not None and "job_s" in base.counts else "modelled_s"


def _over(one: FoundLayout | None, base: FoundLayout | None, metric: str) -> float | None:
    if one is None or base is None or metric not in one.counts or metric not in base.counts:
        return None
    a, b = one.counts[metric], base.counts[metric]
    return 1.0 if a == b else a / b if b else None


def unpublished(source: Publication, found: FoundStudy) -> list[RatioTable]:
    """Return the layouts of the ready studies that have no published figure, a table for each of these
    studies."""
    by: dict[str, list[FoundLayout]] = {}
    for layout in found.layouts:
        if layout.kind == "ready":
            by.setdefault(layout.name.split(": ", 1)[0], []).append(layout)
    out = []
    for study, layouts in by.items():
        own = f"{study}: {ready.find(study).layout.name}" if study in ready.files() else ""
        bases = [each for each in layouts if each.name == own]
        first = next(
            (t for t in source.table if (t.workload or source.workload) == layouts[0].workload), None
        )
        base = bases[0] if bases else None
        if base is None and first is not None:
            base = found.layout(source.base_of(first))
        rows = tuple(_row(e.name.split(": ", 1)[1], "", None, e, base) for e in layouts)
        name = "" if base is None else base.name.split(": ", 1)[-1]
        out.append(
            RatioTable(study, "layouts without a published figure", "", name, _time_of(base), False, rows)
        )
    return out


def ratio_sheet(table: RatioTable) -> StudySheet:
    """Return a table of ratios: what was published first, if anything was."""
    told = bool(table.unit)
    head = (
        "layout",
        *((f"published, {table.unit}", "published") if told else ()),
        *(HEADS[m] for m in table.ratios),
    )
    rows = []
    for row in table.rows:
        left_out = [row.why or "not run", *("–",) * (len(table.ratios) - 1)]
        ours = [units.times(row.ours[m]) for m in table.ratios] if row.trial else left_out
        rows.append((row.name, *((row.figure, units.times(row.published)) if told else ()), *ours, row.trial))
    return StudySheet((*head, "trial"), tuple(rows))


def count_sheet(found: FoundStudy, names: Sequence[str]) -> StudySheet:
    """Return what each of the layouts ``names`` made OpenZFS do."""
    ran = [one for name in names if (one := found.layout(name)) is not None and one.trial]
    shown = [key for key in COUNTS if key != JOB_TIME.key or any(key in one.counts for one in ran)]
    rows = [(one.name, *(_shown(one, key) for key in shown), one.trial) for one in ran]
    return StudySheet(("layout", *(HEADS[key] for key in shown), "trial"), tuple(rows))


def _shown(layout: FoundLayout, key: str) -> str:
    value = layout.counts.get(key)
    unit = "bytes" if key in ("written", "read", "zil_bytes", "allocated") else COUNTS[key].unit
    return "–" if value is None else units.show(value, unit)


def ladder(found: FoundStudy) -> list[LadderStep]:
    """Return the numbered layouts of a ready study as steps, each over its base; none where it has no such.

    Of several layouts with one number the first is a step and the others are variants; where they set the
    same factor to different values all are variants, which the study tried and left.
    """
    study = ready.find(found.study) if found.study in ready.files() else None
    if study is None or not any(re.match(r"\d+ ", each.name) for each in study.layouts):
        return []
    base = found.layout(f"{found.study}: {study.layout.name}")
    if base is None or not base.trial:
        return []
    numbers = {each.name: each.name.split(" ", 1)[0] for each in study.layouts}
    sets = {each.name: dict(each.set) for each in study.layouts}
    seen: set[str] = set()
    steps = [LadderStep(study.layout.name, _values(base, base), True)]
    for name, number in numbers.items():
        same = [sets[other] for other, n in numbers.items() if n == number and other != name]
        alternative = any(s.keys() == sets[name].keys() for s in same)
        joined = number not in seen and not alternative
        seen.add(number)
        steps.append(LadderStep(name, _values(found.layout(f"{found.study}: {name}"), base), joined))
    ends = [LadderStep(e.name, {f"end_{r.metric}": r.ratio for r in e.ratios}, False, e) for e in found.ends]
    return [*steps, *ends]


END_HEADS = {"time": "time", "ios": "disk I/Os per operation", "bytes": "bytes moved per operation"}
"""What is said of a measured end."""


def end_sheet(ends: Sequence[MeasuredEnd]) -> StudySheet:
    """Return what was measured of other file systems, each over the same base."""
    metrics = dict.fromkeys(ratio.metric for end in ends for ratio in end.ratios)
    rows = []
    for end in ends:
        by = {ratio.metric: units.times(ratio.ratio, ratio.low, ratio.high) for ratio in end.ratios}
        rows.append((end.name, *(by.get(metric, "–") for metric in metrics), ", ".join(end.trials)))
    return StudySheet(("layout", *(END_HEADS[metric] for metric in metrics), "trials"), tuple(rows))


def _values(one: FoundLayout | None, base: FoundLayout) -> dict[str, float | None]:
    return {metric: _over(one, base, metric) for metric in ("modelled_s", "written", "read")}


def overview(found: FoundStudies) -> StudySheet:
    """Return the first table: each study, what it concluded, what we find, and how its claims came out."""
    rows = []
    for study in found.studies:
        source = publication.find(study.study)
        rows.append(
            (
                f"{study.study}, {source.year}",
                source.conclusion,
                finding(source, study),
                verdict_counts(study.verdicts),
            )
        )
    return StudySheet(("study", "what it concluded", "what we find", "its claims"), tuple(rows), 4)


def verdict_counts(verdicts: Sequence[FoundVerdict]) -> str:
    """Return how many claims came out how: "3 hold, 1 holds only if …"."""
    if not verdicts:
        return "none"
    counts = Counter(each.verdict or "not tested" for each in verdicts)
    return ", ".join(f"{n} × {word}" for word, n in counts.most_common())


def finding(source: Publication, study: FoundStudy) -> str:
    """Return in a sentence or two what the steps show, or the first table that was run."""
    if steps := [step for step in ladder(study) if step.joined and step.values["modelled_s"]]:
        return _climbed(steps)
    tables = [t for t in published(source, study) if t.main in _TIMES and t.run > 1]
    own = [t for t in unpublished(source, study) if t.run > 1]
    if not tables and not own:
        return "Not run yet."
    table = (tables or own)[0]
    told = [row for row in table.rows if row.published is not None]
    parts = []
    if told and tables:
        pick = max if table.inverse else min
        best = pick(told, key=lambda row: row.published or 0.0)
        parts.append(f"Published best of {table.name}: {best.name}, {_than(best.published, table.base)}.")
    key = table.main or "modelled_s"
    ours = [row for row in table.rows if row.ours[key] is not None]
    times = [row.ours[key] or 1.0 for row in ours]
    spread, least, what = max(times) / min(times) - 1, smallest(COUNTS[key]), _TIMES[key]
    if spread <= least:
        parts.append(
            f"Here {what}s differ by at most {spread:.1%}, less than the {least:.0%} that a replay can tell."
        )
    else:
        low = min(ours, key=lambda row: row.ours[key] or 1.0)
        high = max(ours, key=lambda row: row.ours[key] or 1.0)
        less, more = low.ours[key] or 1.0, high.ours[key] or 1.0
        parts.append(
            f"Here least {what}: {low.name}, {_than(less, table.base)}."
            if less < 1 / (1 + least)
            else f"Here none has clearly less {what} than {table.base}."
        )
        if more > 1 + least:
            parts.append(f"Most: {high.name}, {_than(more, table.base)}.")
    wrote = [row for row in ours if row.ours["written"] is not None]
    if wrote:
        one = min(wrote, key=lambda row: row.ours["written"] or 1.0)
        parts.append(f"Least written: {one.name}, {_than(one.ours['written'], table.base)}.")
    return " ".join(parts)


def _climbed(steps: Sequence[LadderStep]) -> str:
    times = [step.values["modelled_s"] or 1.0 for step in steps]
    gains = [(b / a, step.name) for a, b, step in zip(times, times[1:], steps[1:], strict=False)]
    if not gains:
        return "Only the defaults were run."
    most, name = min(gains)
    wrote = steps[-1].values["written"]
    told = "" if wrote is None else f", and {units.times(wrote)} of its bytes written"
    return (
        f"All steps together take {units.times(times[-1])} of the modelled time of {steps[0].name}{told}. "
        f"The largest is {name}, {units.times(most)} of the one before."
    )


def _than(ratio: float | None, base: str) -> str:
    return "the base itself" if ratio == 1 else f"{units.times(ratio)} of {base}"


def verdict_sheet(verdicts: Sequence[FoundVerdict]) -> StudySheet:
    """Return claims with their verdicts and the trials that they cite."""
    rows = []
    for each in verdicts:
        cited = ", ".join(each.trials[:4]) + (
            f" and {len(each.trials) - 4} more" if len(each.trials) > 4 else ""
        )
        rows.append(
            (each.claim, each.sentence, each.own_figures, each.verdict or "not tested", each.says, cited)
        )
    return StudySheet(
        ("claim", "sentence", "own figures", "verdict", "what it rests on", "trials"), tuple(rows), 6
    )


_STATES: dict[Upshot, str] = {"holds": "yes", "fails": "no", "open": "?"}


def condition_sheet(verdicts: Sequence[FoundVerdict], own: str) -> StudySheet:
    """Return for each claim that was tested where it holds: a column for each kind of disks by replay with
    the version ``own`` of OpenZFS, one for what was measured, and one for what other versions change.
    """
    tested = [each for each in verdicts if each.conditions]
    replayed = [one for each in tested for one in each.conditions if one.place == REPLAY]
    disks = sorted({one.disks for one in replayed if one.openzfs == own}, key=_disk_order)
    rows = []
    for each in tested:
        by = {
            name: [c for c in each.conditions if (c.place, c.disks, c.openzfs) == (REPLAY, name, own)]
            for name in disks
        }
        measured: dict[str, list[FoundCondition]] = {}
        for one in each.conditions:
            if one.place != REPLAY:
                measured.setdefault(one.disks, []).append(one)
        told = "; ".join(f"{name}: {_by_arc(found)}" for name, found in measured.items())
        cells = [_by_arc(by[name]) for name in disks]
        rows.append((each.claim, each.verdict, *cells, told or "–", _versions(each, own)))
    other = () if not replayed else (f"OpenZFS other than {own}",)
    head = ("claim", "verdict", *disks, "measured", *other)
    return StudySheet(head, tuple(row[: len(head)] for row in rows), len(head))


def beside_sheet(verdicts: Sequence[FoundVerdict]) -> StudySheet:
    """Return what a replay counted for the claims whose time can't be told: ratios of the claim's layout."""
    rows = [
        (
            each.claim, one.other, f"{one.disks}, {format_size(one.arc)}",
            *(units.times(one.ratios.get(metric)) for metric in BESIDE_TIME),
        )
        for each in verdicts
        for one in each.counts
    ]  # fmt: skip
    return StudySheet(("claim", "over", "disks, ARC", *(HEADS[m] for m in BESIDE_TIME)), tuple(rows), 3)


def _disk_order(name: str) -> tuple[int, str]:
    order = ("hdd-7200", "hdd-10k", "ssd-sata", "nvme")
    return order.index(name) if name in order else len(order), name


def _by_arc(found: Sequence[FoundCondition]) -> str:
    """Return in a word or few what came of conditions that differ in their ARC alone."""
    by: dict[Upshot, list[str]] = {}
    for one in sorted(found, key=lambda one: one.arc):
        by.setdefault(one.state, []).append(format_size(one.arc))
    if len(by) < 2:
        return "".join(_STATES[state] for state in by) or "–"
    return "; ".join(f"{_STATES[state]} with {', '.join(arcs)}" for state, arcs in by.items())


def _versions(verdict: FoundVerdict, own: str) -> str:
    """Return where replays by other versions came out otherwise than by ``own``."""
    here = {
        (one.disks, one.arc): one.state
        for one in verdict.conditions
        if one.place == REPLAY and one.openzfs == own
    }
    others = [
        one
        for one in verdict.conditions
        if one.place == REPLAY and one.openzfs != own and (one.disks, one.arc) in here
    ]
    if not others:
        return "–"
    differ: dict[tuple[str, str], list[FoundCondition]] = {}
    for one in others:
        if one.state != here[one.disks, one.arc]:
            differ.setdefault((one.openzfs, one.disks), []).append(one)
    versions = ", ".join(dict.fromkeys(one.openzfs for one in others))
    if not differ:
        return f"{versions}: the same"
    return "; ".join(f"{version}, {disks}: {_by_arc(found)}" for (version, disks), found in differ.items())


def thumb_sheet(sweeps: Sequence[RecordSizeSweep]) -> StudySheet:
    """Return the rules of thumb: what each chooses, and its time, bytes written and bytes read over the best
    of the sweep; in the end the median and the worst of each rule."""
    head = ("job", "role", "disks", "best", *thumb.RULES.values())
    rows = []
    for each in sweeps:
        best = " / ".join(format_size(each.best(metric)[0]) for metric in thumb.METRICS)
        cells = [_choice(each, rule) for rule in thumb.RULES]
        rows.append((each.job, each.sizes.role, each.condition, best, *cells))
    if sweeps:
        for label, pick in (("median", median), ("worst", max)):
            cells = []
            for rule in thumb.RULES:
                by = [[s for e in sweeps if (s := e.score(rule, m)) is not None] for m in thumb.METRICS]
                cells.append(" / ".join(units.times(pick(of)) if of else "–" for of in by))
            rows.append((f"{label} of all", "", "", "", *cells))
    return StudySheet(head, tuple(rows), 4)


def _choice(sweep: RecordSizeSweep, rule: str) -> str:
    size = sweep.chosen.get(rule)
    if size is None:
        return "–"
    scores = [sweep.score(rule, metric) for metric in thumb.METRICS]
    if all(score is None for score in scores):
        return f"{format_size(size)}: not tried"
    return f"{format_size(size)}: {' / '.join(units.times(score) for score in scores)}"
