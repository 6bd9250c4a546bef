"""The tables of docs/studies.md: ``python -m ztune.claims.studies_docs docs/studies.md`` makes them.

From ``studies-found.json`` beside the page, which ``ztune studies page --found`` writes. Replaces what stands
between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ztune.analysis import units
from ztune.analysis.metrics import MEASURED
from ztune.claims import claim, publication, study_sheets
from ztune.claims import found as findings
from ztune.claims.found import FoundStudies, FoundStudy, FoundVerdict
from ztune.claims.study_sheets import RatioTable, StudySheet
from ztune.study.docs import fill_tables

_LEFT_OUT = ("busy_s",)


def tables(found: FoundStudies) -> dict[str, list[str]]:
    """Return name → lines of every table; a study's has its name, with _ for -."""
    made = f"Made from trials of {found.made[:10]} with ztune {found.ztune} on {found.machine}."
    return {
        "overview": [*_wrapped(made), "", *markdown(study_sheets.overview(found))],
        **{study.study.replace("-", "_"): _study(study, found.openzfs) for study in found.studies},
        "advice": _advice(found),
        "thumb": markdown(study_sheets.thumb_sheet(found.sweeps)),
    }


def _study(study: FoundStudy, openzfs: str) -> list[str]:
    source = publication.find(study.study)
    about = (source.conclusion, source.stand_in, source.scale and f"Scale: {source.scale}")
    # A version may be of a job that ran before another one could be had.
    jobs = dict.fromkeys(f"{job.workload} with {job.version}" for job in study.jobs)
    lines = [*_wrapped(" ".join(filter(None, about))), ""]
    lines += [*_wrapped(f"Recorded: {'; '.join(jobs)}."), ""] if jobs else []
    lines += [*_wrapped(study_sheets.finding(source, study)), ""]
    steps = {step.name: step for step in study_sheets.ladder(study)}
    for table in (*study_sheets.published(source, study), *study_sheets.unpublished(source, study)):
        if not table.run:
            continue
        told = f"{table.quantity}{f', published in {table.unit}' if table.unit else ''}"
        lines += [*_wrapped(f"**{table.name}**: {told}. Ratios to {table.base}."), ""]
        lines += [*markdown(_sheet(table)), ""]
    ends = [step.end for step in steps.values() if step.end is not None]
    if ends:
        how = ", in a lab without hardware virtualisation" if ends[0].basis == "emulated" else ""
        lines += _wrapped(
            f"The other file systems, measured with the real database{how}; ratios to {ends[0].base}:"
        )
        lines += ["", *markdown(study_sheets.end_sheet(ends)), ""]
    elif steps:
        lines += ["The other file systems, its ends, were not run.", ""]
    return lines + (_claims(study.verdicts, openzfs) or ["Its claims were not tested in this run."])


def _claims(verdicts: Sequence[FoundVerdict], openzfs: str) -> list[str]:
    """Return the tables of those claims that were tested."""
    tested = [v for v in verdicts if v.verdict]
    if not tested:
        return []
    claims = claim.every()
    said = tuple(
        (f"`{v.claim}`", v.sentence, v.own_figures, _tried_by(claims[v.claim]), v.verdict) for v in tested
    )
    lines = markdown(StudySheet(("claim", "sentence", "own figures", "tried by", "verdict"), said, 5))
    doubts = [
        line
        for v in tested
        if (doubt := claims[v.claim].doubt)
        for line in textwrap.wrap(f"- `{v.claim}`: {doubt}", 110, subsequent_indent="  ")
    ]
    if doubts:
        lines += ["", "What the verdicts leave open:", "", *doubts]
    where = study_sheets.condition_sheet(verdicts, openzfs)
    if where.rows:
        lines += ["", "Where it holds:", "", *markdown(where)]
    beside = study_sheets.beside_sheet(verdicts)
    if beside.rows:
        lines += ["", "Where a time is too small to tell, counts of a replay:", "", *markdown(beside)]
    return lines


def _tried_by(one: claim.Claim) -> str:
    """Return the figure that the verdict is of, and of nothing else."""
    return MEASURED[one.metric].label


def _advice(found: FoundStudies) -> list[str]:
    lines: list[str] = []
    for each in found.advice:
        source = publication.find(each.publication)
        about = f"**{source.database}**: {source.title}, {source.year}. {source.stand_in}".rstrip()
        claims = _claims(each.verdicts, found.openzfs) or ["Not tested in this run."]
        lines += [*_wrapped(about), "", *claims, ""]
    return lines[:-1]


def _sheet(table: RatioTable) -> StudySheet:
    told = ("published",) if table.unit else ()
    shown = [metric for metric in table.ratios if metric not in _LEFT_OUT]
    rows = []
    for row in table.rows:
        figure = (units.times(row.published),) if told else ()
        ours = tuple(units.times(row.ours[m]) for m in shown)
        rows.append((row.name, *figure, *ours, row.trial or row.why))
    return StudySheet(("layout", *told, *(study_sheets.HEADS[m] for m in shown), "trial"), tuple(rows))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)


def markdown(sheet: StudySheet) -> list[str]:
    """Return ``sheet`` as the lines of a Markdown table."""
    head = [cell if cell else " " for cell in sheet.head]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    return lines + [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in sheet.rows
    ]


def fill(page: Path) -> str:
    """Return the text of ``page`` with every table made anew. Raises InputError for a damaged file beside
    it, ValueError for an unknown table."""
    return fill_tables(page.read_text(), tables(findings.load(page.with_name("studies-found.json"))))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(fill(path))
