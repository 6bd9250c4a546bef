"""The report as one HTML file: styles, script and drawings inside, nothing loaded from anywhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ztune import __version__, output
from ztune.advice import commands
from ztune.advice.job import title
from ztune.advice.model import Recommendation
from ztune.analysis import units
from ztune.analysis.metrics import MAIN, table
from ztune.analysis.standing import standing
from ztune.analysis.stats import ratio
from ztune.errors import InputError
from ztune.report import brief as briefs
from ztune.report import charts, effects, measured_html, neighbours
from ztune.report.predictions import predicted_load
from ztune.report.severity import grouped
from ztune.report.source import RunEvidence
from ztune.report.terminal import elsewhere, said
from ztune.store.db import by_others
from ztune.store.records import Run, Trial
from ztune.study.layout import parse_layout
from ztune.trace.figures import GroupSummary, Summary, Transfers
from ztune.units import format_size

if TYPE_CHECKING:
    import jinja2

# Sections that only one kind of run has.
_NONE: dict[str, Any] = {
    "compared": [],
    "interactions": [],
    "causes": "",
    "plot": "",
    "cautions": [],
    "outcome": "",
}
# The columns of the table of roles: those that a DBA looks for first. The others follow in the details.
_COLUMNS = ("recordsize", "compression", "logbias", "sync", "primarycache")


def render(
    run: Run,
    trials: Sequence[Trial],
    recommendation: Recommendation | None,
    summary: Summary | None = None,
    trace_missing: str = "",
    screened: Sequence[Trial] = (),
    flags: Sequence[str] = (),
) -> str:
    """Return the report as the text of an HTML file. All text from outside is escaped.

    ``recommendation`` None: of a measured run without a result. ``summary`` is what the trace shows; without
    it the histograms are left out and ``trace_missing`` says why. ``screened``: the trials of the screening
    that a measured run took its layouts from. ``flags``: words that the commands repeat.
    """
    r = recommendation
    shown = None if r is None else briefs.of(r, flags)
    sections = (
        measured_html.sections(standing(run, trials), trials, screened)
        if run.measured or r is None
        else _replayed(r, trials, summary, trace_missing)
    )
    return page(
        "report.html.j2",
        r=r,
        run=run,
        measured=run.measured,
        version=__version__,
        style=Markup(data("style.css")),  # ours, not escaped: it holds no text from outside
        script=Markup(data("script.js")),
        heading=_heading(run, r),
        brief=shown,
        bought_heads=[]
        if r is None
        else list(dict.fromkeys(h.label for p in r.if_bought for h in p.headlines)),
        picture="" if shown is None else charts.now_and_then(shown.figures),
        narrow="" if shown is None else charts.now_and_then(shown.figures, 360, stacked=True),
        datasets=[] if r is None else _datasets(r),
        properties=_COLUMNS,
        create="" if r is None or not _settable(r) else _multiline(commands.create_commands(r)),
        shell="" if r is None or not _settable(r) else commands.script(r),
        hazards=[] if r is None else grouped(r.hazards),
        chosen=next((row for row in r.ranking if row.recommended), None) if r else None,
        **{**_NONE, **sections},
    )


def of(found: RunEvidence, flags: Sequence[str] = ()) -> str:
    """Return the report of a run and its recommendation; ``flags``: words that its commands repeat.

    Raises InputError where a screening has no result; that of a measured run then shows what failed.
    """
    recommendation: Recommendation | None = None
    try:
        recommendation = found.recommend()
    except InputError:
        if not found.run.measured:
            raise
    return render(
        found.run,
        found.trials,
        recommendation,
        found.summary(),
        found.trace_missing,
        found.screened,
        flags,
    )


def _settable(r: Recommendation) -> bool:
    """Whether there are commands for the layout: not for another file system in the place of ZFS, nor where
    it is no answer."""
    return not r.no_answer and all(p.filesystem == "zfs" for p in parse_layout(r.layout).used_pools())


def _replayed(
    r: Recommendation, trials: Sequence[Trial], summary: Summary | None, trace_missing: str
) -> dict[str, Any]:
    """Return what the template's sections of screenings show."""
    baseline = next((row for row in [*r.ranking, *r.set_apart] if row.baseline), None)
    metrics = table("modelled", bool(r.per_operation))
    return {
        "per": " per op" if r.per_operation else "",
        "count_unit": metrics["read_ops"].unit,
        "rule": rule(r),
        "elsewhere": elsewhere(r),
        "rows": r.ranking,
        "predicted": predicted_load(r),
        "base_time": None if baseline is None else baseline.values.get("modelled_s"),
        "plot": charts.trade_off(r.ranking, [*r.to_buy, *r.set_apart], " per op" if r.per_operation else ""),
        "effects": effects.table(effects.replayed(r.effects, metrics), {m: metrics[m].label for m in MAIN}),
        "workload": [_histogram(g) for g in summary.roles if g.reads.count or g.writes.count]
        if summary
        else [],
        "trace_missing": trace_missing,
        "replay_s": sum(t.wall_s or 0.0 for t in trials),
        # The base and the best once more on other pools, or beside another job, are no further layouts.
        "finished": len({_at_any_age(t) for t in trials if t.ok}),
        "total": len({_at_any_age(t) for t in trials}),
    }


def _at_any_age(trial: Trial) -> str:
    """Return what a trial's layout is but for the age of its pools."""
    return replace(trial.layout, age=None).hash


def rule(r: Recommendation) -> str:
    """Return the objective as a clause: "least modelled time; within 5% of it least space; …"."""
    words = []
    metrics = table("modelled", bool(r.per_operation))
    than = "it, or of a fifth of the recorded time," if r.minimise[0] == "modelled_s" else "it"
    for i, key in enumerate(r.minimise):
        start = "" if i == 0 else f"within {units.show(r.within, 'share')} of {than} " if i == 1 else "then "
        words.append(f"{start}least {metrics[key].label}")
    if len(words) > 1:
        words.append("a gain in a later one may not cost more than twice its share of those after it")
    if r.minimise[0] == "modelled_s":
        words.append("not first what processors hold back")
    return "; ".join(words)


def page(template: str, **values: object) -> str:
    """Return a report's page. Text from outside is escaped, its control characters are written out."""
    return output.shown(environment().get_template(template).render(**values))


@cache
def environment() -> jinja2.Environment:
    """Return what all reports' templates are rendered with."""
    import jinja2  # here, as who imports this need not write a page

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(data),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters.update(
        amount=units.amount,
        seconds=units.seconds,
        count=units.count,
        times=units.times,
        size=format_size,
        sentence=units.capital,
        code=_code,
        by_others=by_others,
    )
    made.globals.update(
        show=units.show,
        times=units.times,
        ratio=ratio,
        beside_heads=neighbours.HEADS,
        beside_note=neighbours.NOTE,
        beside_cells=neighbours.cells,
        beside_measured_heads=neighbours.MEASURED_HEADS,
        beside_measured_note=neighbours.MEASURED_NOTE,
        beside_measured_cells=neighbours.measured_cells,
    )
    return made


def _code(text: str) -> Markup:
    """Return text with what stands in backquotes as code."""
    parts = text.split("`")
    pieces = (Markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(parts))
    return Markup("").join(pieces)


def data(name: str) -> str:
    """Return the text of a file beside this module: a template, the styles, the script."""
    return files("ztune.report").joinpath(name).read_text("utf-8")


def _heading(run: Run, r: Recommendation | None) -> str:
    return f"ZFS layout for {title(run, None) if r is None else r.subject.title}"


def _datasets(r: Recommendation) -> list[dict[str, Any]]:
    """Return one entry for each dataset with its roles, in the layout's order."""
    return [
        {
            "name": advice.dataset,
            "roles": [advice.role, *advice.with_roles],
            "advice": advice,
            "values": {p.name: p for p in advice.properties},
            "shown": [p for p in advice.properties if said(p)],
            "rest": [p for p in advice.properties if not said(p)],
        }
        for advice in r.first_roles
    ]


def _multiline(lines: Sequence[Sequence[str]]) -> str:
    """Return commands quoted for a shell, with one option a line, as they are read best."""
    out = []
    for words in lines:
        text = " ".join(shlex.quote(w) for w in words[:2])
        for word in words[2:]:
            text += " " if text.endswith("-o") else " \\\n    "
            text += shlex.quote(word)
        out.append(text)
    return "\n\n".join(out)


def _histogram(group: GroupSummary) -> dict[str, Any]:
    """Return one role's sizes of reads and writes as rows, small to large; widths are shares of the most."""
    bounds = sorted({*group.reads.sizes, *group.writes.sizes})  # empty buckets between are left out
    most = max([1, *group.reads.sizes.values(), *group.writes.sizes.values()])

    def cell(transfers: Transfers, bound: int) -> dict[str, Any]:
        number = transfers.sizes.get(bound, 0)
        return {"count": number, "width": round(number / most * 60, 2)}

    return {
        "group": group,
        "files": charts.file_sizes(group.file_sizes, group.file_size_bytes),
        "rows": [
            {"size": format_size(b), "read": cell(group.reads, b), "write": cell(group.writes, b)}
            for b in bounds
        ],
    }
