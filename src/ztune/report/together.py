"""The recommendation for several jobs on a terminal, readable at 80 columns."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from ztune.advice.commands import UNSEEN
from ztune.advice.joint_model import JobAdvice, JobRatio, JointRecommendation
from ztune.advice.model import Level, SettingChange
from ztune.advice.together import ALWAYS
from ztune.analysis import units
from ztune.onhost.properties import PROPERTIES
from ztune.output import Console, Text, json_text
from ztune.report.brief import Brief, BriefFigure, BriefSaid, role_lines, setting_groups, short_name
from ztune.report.severity import SEVERITY, grouped

_COLUMNS = 5  # properties that have a column; the others stand below
_COMMANDS = 3  # that the first screen has
_JOBS = 6
_LEVELS: tuple[Level, ...] = ("good", "fair", "limited", "weak")
_WIDTH = 76  # of a command, so that it can be pasted from 80 columns


def show(r: JointRecommendation, console: Console | None = None) -> None:
    """Print the recommendation to ``console`` (default: stdout)."""
    (console or Console(highlight=False)).print(view(r))


def view(r: JointRecommendation) -> RenderableType:
    """Return the verdict, the jobs, where they disagree, what is to be known, and last the table of roles."""
    parts: list[RenderableType] = [Text(r.verdict, style="bold"), Text(_basis(r), style="dim")]
    parts += [Text(), _heading("What it is worth to each job"), _jobs(r.jobs)]
    parts += [_indent(_combined(job), "dim") for job in r.jobs if job.evidence == "combined"]
    if r.conflicts:
        parts += [Text(), _heading("Where jobs want different things"), _conflicts(r)]
    if r.untried:
        parts += [Text(), _heading("Not chosen, since other runs did not try it")]
        for u in r.untried:
            lacking = ", ".join(u.lacking)
            parts.append(
                _indent(f"{u.setting}={u.value}: {units.times(u.ratio)} for run {u.run}; not in {lacking}")
            )
    parts += [Text(), _heading(f"Durability: {r.durability.klass}"), _indent(r.durability.sentence)]
    parts += [_indent(text) for text in r.durability.reasons]
    if r.hazards:
        parts += [Text(), _heading("Know before you set it")]
        parts += [
            Padding(Text.assemble((f"{h.severity}: ", SEVERITY[h.severity]), h.sentence), (0, 0, 0, 2))
            for h in grouped(r.hazards)
        ]
    parts += [Text(), _heading("Notes"), *(_indent(text) for text in r.notes)]
    if r.evidence == "combined":
        parts.append(_indent("To prove it, add this layout to the study that each recording is screened by:"))
        parts.append(_indent(proof(r), "dim"))
    parts += [Text(), _heading("What to set for each role"), _roles(r)]
    parts += [_indent(f"{name} = {value}") for name, value in r.pool.items()]
    parts += [Text(), _heading("Commands, once POOL/… are your datasets' names")]
    parts += [_indent(" \\\n    ".join(textwrap.wrap(line, _WIDTH - 4))) for line in r.commands]
    parts.append(_indent("recordsize and compression change what is written from then on.", "dim"))
    parts.append(_indent(UNSEEN, "dim"))
    return Group(*parts)


def brief(r: JointRecommendation, words: Sequence[str]) -> Brief:
    """Return the first screen; ``words``: the runs and flags that the recommendation was asked by."""
    changes = [SettingChange(setting=k, now=r.now[k], value=v) for k, v in r.changes.items()]
    weakest = max((job.confidence for job in r.jobs), key=_LEVELS.index)
    how = (
        "every job tried this layout"
        if r.evidence == "tried"
        else "combined from effects: no run had this layout whole, so prove it first"
    )
    said = [h.sentence for h in grouped(r.hazards)]
    if r.durability.klass != "nothing-acknowledged":
        said.insert(0, f"{r.durability.klass}: {r.durability.sentence}")
    again = "ztune recommend " + " ".join(map(shlex.quote, words))
    return Brief(
        head=f"{len(r.jobs)} jobs: " + ("one layout for all" if changes else "keep the base layout"),
        evidence=_basis(r),
        roles=tuple(role_lines(setting_groups(changes, [row.roles for row in r.roles]))),
        figures=tuple(_figures(r)) if changes else (),
        meaning=_meaning(r) if changes else "",
        level=f"{weakest}, the weakest of the jobs",
        sure=BriefSaid(f"{how[:1].upper()}{how[1:]}.", len(r.notes)),
        searched=None,
        warning=BriefSaid(said[0], len(said) - 1, SEVERITY["warning"]) if said else None,
        bought=None,
        commands=(*_apply(r, changes), ("More", f"{again} --why")),
        keeps=not changes,
    )


def _figures(r: JointRecommendation) -> list[BriefFigure]:
    """Return what the layout is worth to each job; the heaviest first where not all have room."""
    jobs = r.jobs if len(r.jobs) <= _JOBS else sorted(r.jobs, key=lambda job: -job.share)[:_JOBS]
    out = []
    for job in jobs:
        ratio = job.joint_ratio.ratio
        less = ratio is not None and ratio * (1 + r.within) < 1
        kind: Literal["less", "more", ""] = (
            "less" if less else "more" if ratio is None or ratio > 1 + r.within else ""
        )
        change = f"{_times(job.joint_ratio)} {job.label}"
        out.append(BriefFigure(f"{job.workload or job.name} ({job.run})", "", "", change, kind, True))
    if len(jobs) < len(r.jobs):
        out.append(BriefFigure(f"and {len(r.jobs) - len(jobs)} more: --why", "", "", "", matters=True))
    return out


def _apply(r: JointRecommendation, changes: Sequence[SettingChange]) -> list[tuple[str, str]]:
    """Return a ``zfs set`` of what changes for each dataset, their names to be filled in."""
    found = []
    for row in r.roles:
        mine = [(short_name(c.setting), c) for c in changes if c.setting.startswith(f"{row.roles[0]}.")]
        words = [f"{n}={c.value}" for n, c in mine if n in PROPERTIES and not PROPERTIES[n].at_creation]
        if words:
            found.append(f"zfs set {' '.join(words)} POOL/{row.roles[0].upper()}")
    if len(found) > _COMMANDS:
        return [("Apply", "--why ends with the commands")]
    return [("" if i else "Apply", text) for i, text in enumerate(found)]


def _meaning(r: JointRecommendation) -> str:
    text = f"Weighted mean {units.times(r.ratio)} of their base layouts."
    if r.minimise[0] == "modelled_s":
        text += " Modelled time is the larger of disk work and waiting; throughput is not predicted."
    return text


def proof(r: JointRecommendation) -> str:
    """Return the layout as a study's TOML; a study leaves out the roles that it does not have."""
    # A string of JSON is one of TOML.
    quoted = {json_text(key): json_text(value) for key, value in r.changes.items()}
    wanted = "".join(f"{key} = {value}\n" for key, value in quoted.items())
    return f'[[layouts]]\nname = "together"\n[layouts.set]\n{wanted}'.rstrip()


def _basis(r: JointRecommendation) -> str:
    zfs = f"OpenZFS {r.openzfs}".strip()
    if r.basis == "modelled":
        return f"Replayed through {zfs}; all times are modelled, none is measured."
    return f"Measured on {zfs}" + (" in an emulated lab" if r.basis == "emulated" else "") + "."


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _times(found: JobRatio | None) -> str:
    return "–" if found is None else units.times(found.ratio, found.low, found.high)


def _jobs(jobs: list[JobAdvice]) -> RenderableType:
    table = _table("run", "job", "share", "metric", "alone", "together", "evidence")
    for job in jobs:
        table.add_row(
            job.run,
            Text(job.workload or job.name),
            units.show(job.share, "share"),
            job.label,
            _times(job.alone_ratio),
            Text(_times(job.joint_ratio), style="bold"),
            job.evidence,
        )
    parts: list[RenderableType] = [Padding(table, (0, 0, 0, 2))]
    for job in jobs:
        cost = "" if job.costs is None else f": together it is {units.times(job.costs)} of that"
        said = f'Alone, run {job.run} recommends "{job.alone}" (how sure: {job.confidence}){cost}.'
        parts.append(_indent(said, "dim"))
    return Group(*parts)


def _combined(job: JobAdvice) -> str:
    more = f" ({len(job.nearest)} such layouts)" if job.nearest[1:] else ""
    start, other = f'"{job.nearest[0]}"{more}', ", ".join(job.changed)
    return (
        f"Run {job.run} never tried it: combined from {start} and what {other} did elsewhere; what settings "
        "do to each other is not in it. Where there is a range, it is over the ways to combine."
    )


def _conflicts(r: JointRecommendation) -> RenderableType:
    table = _table("setting", *(f"{job.run}" for job in r.jobs), "wanted by")
    for conflict in r.conflicts:
        for choice in conflict.choices:
            mark = " ← chosen" if choice.chosen else ""
            table.add_row(
                Text(f"{conflict.setting}={choice.value}{mark}", style="bold" if choice.chosen else ""),
                *(_times(choice.ratios.get(job.run)) for job in r.jobs),
                ", ".join(choice.wanted_by) or "–",
            )
    return Group(
        Padding(table, (0, 0, 0, 2)),
        _indent("Each ratio: the job's metric with this value instead of the chosen one.", "dim"),
    )


def _roles(r: JointRecommendation) -> RenderableType:
    names = list(dict.fromkeys([*ALWAYS, *(n for row in r.roles for n in row.properties)]))
    heads, rest = names[:_COLUMNS], names[_COLUMNS:]
    table = _table("role", *heads, "from")
    for row in r.roles:
        source = "all runs" if len(row.runs) == len(r.jobs) else ", ".join(row.runs)
        table.add_row(
            Text(", ".join(row.roles), style="bold green"),
            *(row.properties.get(n, "–") for n in heads),
            source + ("; combined" if row.evidence == "combined" else ""),
        )
    parts: list[RenderableType] = [Padding(table, (0, 0, 0, 2))]
    for row in r.roles:
        more: Mapping[str, str] = {n: row.properties[n] for n in rest if n in row.properties}
        if more:
            said = ", ".join(f"{n}={v}" for n, v in more.items())
            parts.append(_indent(f"{row.roles[0]}: {said}", "dim"))
    return Group(*parts)


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _indent(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 2))
