"""A ranking and a recommendation on a terminal, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from ztune.advice.model import (
    Hazard,
    PoolAdvice,
    PropertyAdvice,
    Recommendation,
    RoleAdvice,
    Row,
)
from ztune.analysis import units
from ztune.analysis.elsewhere import Elsewhere
from ztune.analysis.standing import standing
from ztune.analysis.stats import ratio
from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.output import Console, Text
from ztune.report import measured, neighbours
from ztune.report.fitting import Fitting
from ztune.report.predictions import predicted_load
from ztune.report.severity import SEVERITY, grouped
from ztune.report.source import RunEvidence
from ztune.study.layout import parse_layout

TOP = 12  # rows of the ranking unless all are asked for
PREDICTED = 5  # rows of what is predicted, unless all are asked for
_LAYOUT = 16  # characters of a layout's name that a line of what is predicted has at least
NOTES = 3  # layouts of which it is said why they stand no further ahead, unless all are asked for


def ranking_table(
    rows: Sequence[Row], baseline: Row | None, top: int | None = TOP, per_operation: bool = False
) -> Fitting:
    """Return the ranked layouts as a table; with ``top``, the first so many and the base layout.

    All numbers are modelled or counted in the replay. ``per_operation``: they are of one operation.
    """
    base = None if baseline is None else baseline.values.get("modelled_s")
    # Short: with durability beside them, longer ones would not fit into 80 columns.
    heads = ("time/op", "vs base", "space", "written/op")
    return measured.places(
        heads if per_operation else ("modelled", "vs base", "space", "written"),
        [
            measured.Line(
                row.rank,
                row.layout,
                row.recommended,
                Text("  (base)" if row.baseline else "", style="dim"),
                row.durability,
                (
                    row.text("modelled_s", "s"),
                    units.times(ratio(row.values.get("modelled_s"), base)),
                    row.text("allocated", "bytes"),
                    row.text("written", "bytes"),
                ),
            )
            for i, row in enumerate(rows)
            if top is None or i < top or row.baseline or row.recommended
        ],
    )


def _but(first: Row) -> str:
    return f" Row 1 comes first, but {first.passed_over}." if first.passed_over else ""


def _left_out(r: Recommendation) -> list[RenderableType]:
    """Return what must be said above any layout: how much of the recording no replay has."""
    if r.left_out is None:
        return []
    head = "No answer for the recorded database. " if r.no_answer else ""
    tail = " The layouts below are those of the rest." if r.no_answer else ""
    style = SEVERITY["danger" if r.left_out.most else "warning"]
    return [Text(f"{head}{r.left_out.sentence}{tail}\n", style=style)]


def ranking(r: Recommendation, top: int | None = TOP) -> RenderableType:
    """Return the whole ranking: the layouts in order, those set apart, those that failed."""
    baseline = next((row for row in [*r.ranking, *r.set_apart] if row.baseline), None)
    per = bool(r.per_operation)
    parts: list[RenderableType] = _left_out(r)
    parts += [
        Text(f"Recommended: {row.layout}, row {row.rank}.{_but(r.ranking[0])}\n")
        for row in r.ranking[1:]
        if row.recommended and not r.no_answer
    ]
    rows = r.ranking
    if r.no_answer:  # the best of what is not the recorded job
        rows = [row.model_copy(update={"recommended": False}) for row in rows]
    parts.append(ranking_table(rows, baseline, top, per))
    if said := r.of_one():
        parts.append(Text(said, style="yellow" if r.totals_of_jobs else "dim"))
    parts += [one for row in r.ranking for one in measured.passed_over(row.layout, row.passed_over)]
    hidden = 0 if top is None else max(0, len(r.ranking) - top)
    if hidden:
        parts.append(Text(f"{len(r.ranking)} layouts in all; --all shows the rest", style="dim"))
    parts += predicted(r, top)
    notes = [row for row in r.ranking if row.note]
    parts += [
        Text(f"held back: {row.layout}: {row.note}", style="dim")
        for i, row in enumerate(notes)
        if top is None or i < NOTES
    ]
    if top is not None and len(notes) > NOTES:
        parts.append(Text(f"held back: {len(notes) - NOTES} more; --all says why", style="dim"))
    parts += [
        Text(f"\n{text}", style="yellow" if "changes" in text else "") for text in (*r.aged, *r.neighbour)
    ]
    base = None if baseline is None else baseline.layout
    if r.sampled:
        parts.append(Text(f"\n{r.sampled}"))
    if r.carries:
        parts.append(Text(f"\n{r.carries}", style="yellow" if "ot with " in r.carries else ""))
    parts += neighbours.table(r.beside, None if top is None else {r.layout_name, base})
    if r.outpaced:
        parts.append(Text(f"\n{r.outpaced}", style="yellow"))
    parts += if_bought(r)
    if r.to_buy and top is None:
        parts.append(Text("\nLayouts with hardware to buy: not ranked, nor recommended", style="bold"))
        parts.append(ranking_table(r.to_buy, baseline, top, per))
    if r.set_apart:
        parts.append(Text("\nSet apart: weaker durability, or not known: not comparable", style="bold"))
        parts.append(ranking_table(r.set_apart, baseline, top, per))
        for klass in dict.fromkeys(row.durability for row in r.set_apart):
            parts.append(Text(f"{klass}: {' '.join(r.crash_tests[klass])}", style="dim"))
    if r.failed:
        parts.append(Text("\nFailed", style="bold red"))
        parts += [Text(f"  {f.layout}: {f.reason}") for f in r.failed]
    return Group(*parts)


def predicted(r: Recommendation, top: int | None = TOP) -> list[RenderableType]:
    """Return what the replays predict of the recorded load under the ranked layouts; nothing where results
    don't say, or are of different jobs."""
    found = predicted_load(r, None if top is None else min(top, PREDICTED))
    if found is None:
        return []
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("layout", overflow="fold", min_width=_LAYOUT)
    for head in found.heads:
        table.add_column(Text(head), justify="right", no_wrap=True)
    for row, cells in found.rows:
        table.add_row(str(row.rank), Text(row.layout), *cells)
    fitting = Fitting(
        table,
        (1, _LAYOUT),
        [Text(f"{row.rank}  {row.layout}") for row, _ in found.rows],
        found.heads,
        [cells for _, cells in found.rows],
    )
    return [
        Text("\nPredicted for the recorded load", style="bold"),
        fitting,
        Text(found.meaning, style="dim"),
    ]


def if_bought(r: Recommendation) -> list[RenderableType]:
    """Return what hardware would change that is not there; nothing where no layout takes any."""
    if not r.if_bought:
        return []
    # Without processor time, and without intervals, since these have no room at 80 columns.
    shown = [[h for h in p.headlines if h.name != "CPU"] for p in r.if_bought]
    heads = list(dict.fromkeys(h.label for found in shown for h in found))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("hardware", overflow="fold", min_width=16)
    for head in heads:
        word = max(map(len, head.split()))  # as narrow as it can be, so that all have room
        table.add_column(Text(head), justify="right", min_width=max(8, word), max_width=max(8, word))
    names, rows = [], []
    for bought, found in zip(r.if_bought, shown, strict=True):
        cells = {h.label: units.times(h.side.ratio) for h in found}
        names.append(Text(measured.settings_text(bought.hardware)))
        rows.append([cells.get(head, "–") for head in heads])
        table.add_row(names[-1], *rows[-1])
    title = Text("\nIf you bought: what it would change", style="bold")
    more = []
    for p in r.if_bought:
        what = measured.settings_text(p.hardware)
        if p.differs:
            more.append(_indent(f"{what} was tried with {measured.settings_text(p.differs)}", 0, "dim"))
        elif p.beside != r.layout_name:
            more.append(_indent(f"{what} stands beside {p.beside}, not the recommended layout", 0, "dim"))
    tail = Text(
        "If you have it: --have " + measured.settings_text(r.if_bought[0].hardware).split(", ")[0],
        style="dim",
    )
    return [title, Fitting(table, (16,), names, heads, rows), *more, tail]


def explained(r: Recommendation, setting: str) -> RenderableType:
    """Return why one setting (a factor, such as data.recordsize) is what it is, and what was tried instead.

    A property without a role (recordsize) is explained for each role. Raises InputError for one that the
    recommendation says nothing of.
    """
    properties = {f"{a.role}.{p.name}": p for a in r.first_roles for p in a.properties}
    pools = {p.setting: p for p in r.pools}
    role, _, name = setting.partition(".")
    asked = setting
    if not name and (of_roles := [key for key in properties if key.partition(".")[2] == setting]):
        return Group(*(explained(r, key) for key in of_roles))
    if (dataset := parse_layout(r.layout).dataset_of(role)) is not None:
        setting = f"{dataset.key}.{name}"
    found = properties.get(setting) or pools.get(setting)
    if found is None:
        known = [*properties, *pools]
        raise InputError(
            f"--why {asked}: the recommendation of run {r.subject.run} says nothing of it; it does of "
            f"{', '.join(known)}.{suggest(asked, known)}"
        )
    now = next((c.now for c in r.changes if c.setting == setting), None)
    head = Text(f"{asked}={found.value}", style="bold")
    head.append("" if now is None else f"  (base {now})", style="dim")
    return Group(head, *_reasons(found))


def _reasons(found: PropertyAdvice | PoolAdvice) -> list[RenderableType]:
    parts: list[RenderableType] = [_indent(found.reason)] if found.reason else []
    if found.change is not None and found.change.sentence:
        parts.append(_indent(found.change.sentence))
    if found.modelled is not None:
        parts.append(_indent(f"Modelled, by screening: {found.modelled.sentence}"))
    if isinstance(found, PropertyAdvice):
        parts.append(_indent(f"ZFS's default is {found.default}. {found.source}".strip(), style="dim"))
    return parts


def recommendation(r: Recommendation) -> RenderableType:
    """Return the recommendation: verdict, what to set for each role and why, costs, hazards, how sure."""
    head = "Of what is not left out: " if r.no_answer else ""
    parts: list[RenderableType] = [Text(f"{head}{r.verdict}", style="bold")]
    for row in [*r.ranking, *r.set_apart]:
        if row.recommended:
            parts += [Text(f"  {key} = {value}") for key, value in row.differs.items()]
    tail = f"Replayed through OpenZFS {r.subject.openzfs}; all times are modelled, none is measured."
    if r.basis != "modelled":
        said = r.evidence()
        tail = f"{said[:1].upper()}{said[1:]}."
    parts.append(Text(tail, style="dim"))
    for dataset in r.first_roles:
        parts += [Text(), *_dataset(dataset)]
    parts += [Text(), _heading("Pool and memory")]
    for advice in r.pools:
        line = Text.assemble("  ", (advice.subject, "bold"), ": ", advice.value)
        parts += [line, _indent(advice.reason, 4)]
        told = advice.change
        if told is not None and (told.pairs or told.other or told.verdict != "default"):
            parts.append(_indent(told.sentence, 4))
    parts += [Text(), _heading("Cost")]
    for cost in r.costs:
        before = ""
        if cost.baseline is not None and cost.subject != "memory":
            change = units.times(ratio(cost.value, cost.baseline))
            before = f" Base layout: {units.show(cost.baseline, cost.unit)} ({change})."
        parts.append(_indent(cost.sentence + before))
    if r.clear:
        parts += [Text(), _heading("Differs clearly"), *map(_indent, r.clear)]
    parts += [Text(), _heading(f"Durability: {r.durability.klass}"), _indent(r.durability.sentence)]
    parts += [_indent(text) for text in (*r.durability.reasons, *r.crash_tests[r.durability.klass])]
    if r.weaker:
        parts.append(_indent(r.weaker))
    if r.hazards:
        parts += [Text(), _heading("Know before you set it")]
        parts += [_hazard(h) for h in grouped(r.hazards)]
    if r.warnings:
        parts += [Text(), _heading("Warnings of the trace and the replay")]
        parts += [_indent(text) for text in r.warnings]
    parts += [Text(), _heading(f"How sure: {r.confidence.level}"), _indent(r.confidence.sentence)]
    parts += [_indent(text) for text in r.confidence.reasons]
    if r.sampled:
        parts += [Text(), _heading("Sampled"), _indent(r.sampled)]
    if r.carries:
        parts += [Text(), _heading("Elsewhere"), _indent(r.carries)]
        parts += [_indent(text) for text in elsewhere(r)]
    parts += [Text(), _heading("Not tested")]
    parts += [_indent(text) for text in r.not_tested]
    return Group(*parts)


def elsewhere(r: Recommendation) -> list[str]:
    """Return the figures of what was tried elsewhere, a sentence for each condition."""
    out = []
    for condition in dict.fromkeys(row.condition for row in r.elsewhere):
        found = [row for row in r.elsewhere if row.condition == condition]
        parts = [
            f"{row.layout} {_there(row)} (as ranked {units.show(row.before, row.unit)})" for row in found
        ]
        out.append(f"With {condition}: {'; '.join(parts)}.")
    return out


def _there(row: Elsewhere) -> str:
    if row.after is not None:
        return units.show(row.after, row.unit)
    return f"no result, since {row.why}" if row.why else "no result"


def said(item: PropertyAdvice) -> bool:
    """Say whether a property deserves a line of its own: it is not at its default, or it was varied."""
    return not item.is_default or bool(item.change.pairs or item.change.other)


def _dataset(advice: RoleAdvice) -> list[RenderableType]:
    roles = " + ".join([advice.role, *advice.with_roles])
    title = Text.assemble((roles, "bold green"), ("  on ", "dim"), (advice.dataset, "bold"))
    if advice.allocated is not None:
        title.append(f"  {units.amount(advice.allocated)} allocated", style="dim")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column("property", no_wrap=True)
    table.add_column("why", overflow="fold")
    for item in advice.properties:
        if not said(item):
            continue
        style = "bold" if not item.is_default else ""
        why = Text(item.reason)
        if item.change.sentence:
            why.append(("\n" if item.reason else "") + item.change.sentence, style="dim")
        if item.modelled is not None:
            why.append(f"\nModelled, by screening: {item.modelled.sentence}", style="dim")
        table.add_row(Text(f"{item.name}={item.value}", style=style), why)
    rest = [f"{i.name}={i.value}" for i in advice.properties if not said(i)]
    rest += [f"{k}={v} (not modelled)" for k, v in advice.other_properties.items()]
    parts: list[RenderableType] = [title, Padding(table, (0, 0, 0, 2))]
    if rest:
        parts.append(_indent("At the default, not varied: " + ", ".join(rest), style="dim"))
    return parts


def _hazard(hazard: Hazard) -> RenderableType:
    text = Text.assemble((f"{hazard.severity}: ", SEVERITY[hazard.severity]), hazard.sentence)
    return Padding(text, (0, 0, 0, 2))


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _indent(text: str, by: int = 2, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, by))


def show(
    r: Recommendation, console: Console | None = None, top: int | None = TOP, found: RunEvidence | None = None
) -> None:
    """Print the ranking and the recommendation to ``console`` (default: stdout).

    ``found``: the run, whose ranking has intervals and predictions where it was measured.
    """
    out = console or Console(highlight=False)
    parts: list[RenderableType] = []
    if found is not None and found.run.measured:
        now = standing(found.run, found.trials)
        parts += [measured.ranking(now), *if_bought(r), Text(), recommendation(r)]
        predicted = measured.predictions(now, found.screened)
        parts += [] if predicted is None else [Text(), predicted]
    else:
        parts += [ranking(r, top), Text(), recommendation(r)]
    out.print(Group(*parts))
