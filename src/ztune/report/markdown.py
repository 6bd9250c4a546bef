"""A recommendation as GitHub-flavoured Markdown, for an issue or a wiki: the first screen, uncut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ztune.advice.joint_model import JointRecommendation
from ztune.advice.model import Recommendation, Row
from ztune.analysis import units
from ztune.analysis.metrics import table
from ztune.report import brief as briefs
from ztune.report import together as joint_report
from ztune.report.measured import settings_text

_MEASURES = 4  # columns of the ranking


def of(r: Recommendation, flags: Sequence[str] = ()) -> str:
    """Return the recommendation for one run; ``flags``: words that the commands shall repeat."""
    shown = briefs.of(r, flags)
    out = _head(shown)
    out += _listed("Differs clearly", r.clear)
    out += _listed(f"How sure: {r.confidence.level}", [r.confidence.sentence, *r.confidence.reasons])
    out += _listed("Know before you set it", [said.text for said in briefs.warnings(r)])
    out += _listed("If you bought", [p.sentence for p in r.if_bought])
    out += _ranking(r)
    return "\n".join([*out, *_commands(shown)])


def together(r: JointRecommendation, words: Sequence[str]) -> str:
    """Return the recommendation for several jobs; ``words``: the runs and flags that it was asked by."""
    shown = joint_report.brief(r, words)
    out = _head(shown)
    rows = [
        (job.run, job.workload or job.name, units.show(job.share, "share"), job.label,
         units.times(job.alone_ratio.ratio), units.times(job.joint_ratio.ratio), job.evidence)
        for job in r.jobs
    ]  # fmt: skip
    heads = ("run", "job", "share", "metric", "alone", "together", "evidence")
    out += ["", "**What it is worth to each job**", "", *_table(heads, rows)]
    out += _listed("Know before you set it", [h.sentence for h in r.hazards])
    out += _listed("Notes", r.notes)
    return "\n".join([*out, *_commands(shown), "", "```sh", *r.commands, "```"])


def _head(shown: briefs.Brief) -> list[str]:
    out = [f"### {escaped(shown.head)}", "", escaped(shown.evidence), ""]
    rows = [
        (escaped(role.where), "; ".join(map(_code, role.settings)) or briefs.AS_THE_BASE)
        for role in shown.roles
    ]
    if shown.no_answer is not None:
        out += [f"**{escaped(shown.no_answer.text)}**"]
    if rows:
        out += _table(("where", "set"), rows, raw=(0, 1))
    if shown.figures:
        heads = ("figure", "base") if shown.keeps else ("figure", "base", "recommended", "change")
        out += [
            "",
            *_table(heads, [(f.label, f.base, f.then, f.change)[: len(heads)] for f in shown.figures]),
        ]
    return [*out, "", shown.meaning] if shown.meaning else out


def _ranking(r: Recommendation) -> list[str]:
    """Return all layouts: ranked, then on hardware to buy, then set apart."""
    metrics = table(r.basis, bool(r.per_operation))
    rows = [*r.ranking, *r.to_buy, *r.set_apart]
    known = [k for k in (*r.minimise, *metrics) if any(k in row.values for row in rows)]
    keys = list(dict.fromkeys(known))[:_MEASURES]

    def mark(row: Row) -> str:
        words = [
            "recommended" if row.recommended else "",
            "base" if row.baseline else "",
            "" if row.durability == "nothing-acknowledged" else row.durability,
            f"to buy: {settings_text(row.to_buy)}" if row.to_buy else "",
        ]
        return ", ".join(filter(None, words))

    lines = [
        ("" if row.rank is None else str(row.rank), row.layout, mark(row),
         *(row.text(k, metrics[k].unit) for k in keys))
        for row in rows
    ]  # fmt: skip
    heads = ("#", "layout", "", *(metrics[k].named(r.basis) for k in keys))
    return ["", "<details><summary>All layouts</summary>", "", *_table(heads, lines), "", "</details>"]


def _commands(shown: briefs.Brief) -> list[str]:
    return ["", "```sh", *(command for _, command in shown.commands), "```"]


def _listed(title: str, texts: Sequence[str]) -> list[str]:
    return ["", f"**{escaped(title)}**", "", *(f"- {escaped(text)}" for text in texts)] if texts else []


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], raw: Sequence[int] = ()) -> list[str]:
    """Return a table; columns in ``raw`` are Markdown already."""
    out = [f"| {' | '.join(map(escaped, heads))} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        cells = [cell if i in raw else escaped(cell) for i, cell in enumerate(row)]
        out.append(f"| {' | '.join(cells)} |")
    return out


def escaped(text: str) -> str:
    """Return plain text as Markdown: names from outside have no power over the page, `code` stays code."""
    pieces = re.sub(r"\s+", " ", text).split("`")
    if len(pieces) % 2 == 0:  # a backquote without its pair is none of ours
        pieces = [text.replace("`", "'")]
    return "".join(_code(p) if i % 2 else _PLAIN.sub(r"\\\1", p) for i, p in enumerate(pieces))


# What Markdown or GitHub would take for more than text; underscores within a word are none.
_PLAIN = re.compile(r"([\\*\[\]<>|#@~]|^[-+]|(?<!\w)_|_(?!\w))")


def _code(text: str) -> str:
    """Return text as a code span that also stands in a table."""
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`"
