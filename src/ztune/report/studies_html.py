"""The page of the studies: what was published beside what the stored trials show, in one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ztune import __version__
from ztune.claims import publication, study_sheets
from ztune.claims.accuracy import smallest
from ztune.claims.found import COUNTS, FoundStudies, FoundStudy, FoundVerdict
from ztune.claims.publication import Publication
from ztune.claims.study_sheets import LadderStep, RatioTable, StudySheet
from ztune.report import charts, html
from ztune.report.charts import RatioMarks
from ztune.units import format_size

_PUBLISHED = {"published": "published", "ours": "here, modelled", "written": "bytes written here"}
_STEPS = {
    "modelled_s": "modelled time",
    "written": "bytes written",
    "read": "bytes read",
    "end_time": "measured time",
    "end_ios": "disk I/Os, measured",
    "end_bytes": "bytes moved, measured",
}


def render(found: FoundStudies) -> str:
    """Return the page as the text of an HTML file. All text from outside is escaped."""
    return html.page(
        "studies.html.j2",
        version=__version__,
        style=Markup(html.data("style.css") + html.data("studies.css")),
        script=Markup(html.data("script.js")),
        found=found,
        overview=study_sheets.overview(found),
        studies=[_study(study, found.openzfs) for study in found.studies],
        advice=[
            {"source": publication.find(each.publication), "claims": _claims(each.verdicts, found.openzfs)}
            for each in found.advice
        ],
        thumb=study_sheets.thumb_sheet(found.sweeps),
        sample=charts.mark_sample,
        time_share=smallest(COUNTS["modelled_s"]),
        job_share=smallest(COUNTS["job_s"]),
    )


def _study(study: FoundStudy, openzfs: str) -> dict[str, Any]:
    source = publication.find(study.study)
    told = study_sheets.published(source, study)
    own = study_sheets.unpublished(source, study)
    steps = study_sheets.ladder(study)
    return {
        "name": study.study,
        "source": source,
        "run": study,
        "jobs": [_job(job.workload, job.version, job.data, job.seconds) for job in study.jobs],
        "finding": study_sheets.finding(source, study),
        "counts": study_sheets.verdict_counts(study.verdicts),
        "tables": [*(_table(t, study) for t in told), *(_table(t, study) for t in own if not steps)],
        "steps": None if not steps else _steps(steps, own[0], study, source),
        "claims": _claims(study.verdicts, openzfs),
    }


def _claims(verdicts: Sequence[FoundVerdict], openzfs: str) -> dict[str, Any]:
    return {
        "verdicts": study_sheets.verdict_sheet(verdicts),
        "where": _or_none(study_sheets.condition_sheet(verdicts, openzfs)),
        "beside": _or_none(study_sheets.beside_sheet(verdicts)),
        "tested": any(v.verdict for v in verdicts),
    }


def _job(workload: str, version: str, data: int, seconds: float) -> str:
    return f"{workload} ({version}), {format_size(data >> 20 << 20)} of data, recorded for {seconds:.0f} s"


def _table(table: RatioTable, study: FoundStudy) -> dict[str, Any]:
    rows = []
    for row in table.rows:
        marks: dict[str, float] = {}
        ours = None if table.main is None else row.ours[table.main]
        if row.published:
            marks["published"] = row.published
        if ours:
            marks["ours"] = 1 / ours if table.inverse else ours
        if row.ours["written"] and not table.inverse and table.main in ("job_s", "modelled_s"):
            marks["written"] = row.ours["written"]
        rows.append(RatioMarks(row.name, marks))
    kinds = {k: v for k, v in _PUBLISHED.items() if any(k in row.marks for row in rows)}
    many = len(rows) > 1 and bool(kinds)
    names = [f"{table.name}/{row.name}" if table.unit else f"{table.name}: {row.name}" for row in table.rows]
    return {
        "table": table,
        "sheet": study_sheets.ratio_sheet(table),
        "chart": charts.ratios(rows, kinds, f"{table.name}: ratios to {table.base}") if many else "",
        "kinds": kinds if many else {},
        "counts": _or_none(study_sheets.count_sheet(study, names)),
    }


def _steps(
    steps: list[LadderStep], table: RatioTable, study: FoundStudy, source: Publication
) -> dict[str, Any]:
    rows = []
    for step in steps:
        marks = {k: v for k, v in step.values.items() if v}
        spans = {
            f"end_{r.metric}": (r.low, r.high)
            for r in (() if step.end is None else step.end.ratios)
            if r.low is not None and r.high is not None
        }
        name = step.name if step.end is None else f"{step.name} (measured)"
        rows.append(RatioMarks(name, marks, step.joined, spans))
    names = [f"{table.name}: {row.name}" for row in table.rows]
    return {
        **_table(table, study),
        "chart": charts.ratios(rows, _STEPS, f"{study.study}: step by step, ratios to {steps[0].name}"),
        "kinds": {k: v for k, v in _STEPS.items() if any(k in row.marks for row in rows)},
        "counts": _or_none(study_sheets.count_sheet(study, names)),
        "ends": (ends := [step.end for step in steps if step.end is not None]),
        "end_sheet": study_sheets.end_sheet(ends),
        "stand_in": source.stand_in,
    }


def _or_none(sheet: StudySheet) -> StudySheet | None:
    return sheet if sheet.rows else None
