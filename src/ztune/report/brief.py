"""A recommendation on one screen: what to set, what that changes, how sure, one warning, and the commands.

The terminal, the HTML report and Markdown show the same. ``lines`` fits it into a terminal of 24 lines of 80
columns, one of them for the prompt, and says where something is left out.
"""

from __future__ import annotations

import bisect
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.cells import cell_len

from ztune.advice.headlines import moved
from ztune.advice.model import Headline, Recommendation, SettingChange
from ztune.advice.recommend import MEANING
from ztune.analysis import units
from ztune.onhost.words import ROLES, DurabilityClass
from ztune.output import Console, Text
from ztune.report.measured import settings_text
from ztune.report.severity import SEVERITY, grouped
from ztune.store.db import by_others
from ztune.study.layout import parse_layout
from ztune.units import counted, listed

WIDTH = 80
WIDEST = 100
ROOM = 23
_MORE = "--why"
_LABEL = 11  # columns of what stands before each part
AS_THE_BASE = "as the base"
_PLACES = {
    "mount": " in user space",
    "mount, modelled disks": " in user space, modelled disks",
    "lab": " in a virtual machine",
    "local": " on this host",
}
_TIED = "\ue000"  # stands for a space at which a line is not broken
_SENTENCES = re.compile(r"(?<=[.:!?]) (?=[A-Z`\"])")
# What is no role: the settings of pools, memory and so on, by the first word of the factor.
_OTHERS = {
    "arc": "memory", "tunable": "module", "database": "database", "workload": "load",
    "pool": "pool", "slog": "pool", "l2arc": "pool", "special": "pool",
}  # fmt: skip


@dataclass(frozen=True)
class BriefRole:
    """What to set where: ``settings`` as "recordsize=16K (base 128K)"; empty: as in the base layout."""

    where: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class BriefFigure:
    """One figure of the base layout and of what is recommended, as text.

    ``kind``: "less" or "more" where it matters.
    """

    label: str
    base: str
    then: str
    change: str
    kind: Literal["less", "more", ""] = ""
    matters: bool = False
    bars: tuple[float, float] | None = None  # of both, as shares of the larger


@dataclass(frozen=True)
class BriefSaid:
    """A sentence, and how many more of its kind there are."""

    text: str
    more: int = 0
    style: str = ""


@dataclass(frozen=True)
class Brief:
    """What one screen has to say; ``commands``: what each does, in one word, and the command.

    ``no_answer``: why there is nothing to set; then it has no roles and no figures.
    """

    head: str
    evidence: str
    roles: tuple[BriefRole, ...]
    figures: tuple[BriefFigure, ...]
    meaning: str
    level: str
    sure: BriefSaid
    searched: BriefSaid | None
    warning: BriefSaid | None
    bought: BriefSaid | None
    commands: tuple[tuple[str, str], ...]
    keeps: bool = False
    aged: BriefSaid | None = None
    neighbour: BriefSaid | None = None
    sampled: BriefSaid | None = None
    carries: BriefSaid | None = None
    no_answer: BriefSaid | None = None
    clear: BriefSaid | None = None


def of(r: Recommendation, flags: Sequence[str] = ()) -> Brief:
    """Return the first screen of a recommendation; ``flags``: words that the commands shall repeat."""
    keeps = not r.changes
    count = counted(len(r.ranking), "layout")
    answer = f"keep the base layout, of {count}" if keeps else f"the best of {count}"
    if not keeps and not r.headlines:
        answer += "; the base layout has no result"
    run = f"run {r.subject.run}{by_others(r.subject.made_by)}"
    job = f"{r.subject.title}, {run}"
    if r.no_answer:
        return _without_answer(r, job, flags)
    return Brief(
        head=f"{job}: {answer}",
        evidence=_evidence(r),
        roles=tuple(_roles(r)),
        figures=tuple(_figure(h, keeps) for h in r.headlines),
        meaning=r.meaning,
        level=r.confidence.level,
        sure=_sure(r),
        clear=BriefSaid(r.clear[0], len(r.clear) - 1) if r.clear else None,
        searched=BriefSaid(r.searched) if r.searched else None,
        warning=_warning(r),
        bought=_bought(r),
        commands=tuple(_commands(r, flags)),
        keeps=keeps,
        aged=_changing_first(r.aged),
        neighbour=_changing_first(r.neighbour),
        sampled=BriefSaid(r.sampled) if r.sampled else None,
        carries=BriefSaid(r.carries) if r.carries else None,
    )


def _without_answer(r: Recommendation, job: str, flags: Sequence[str]) -> Brief:
    """Return the screen of a run whose replays have less than half of what was recorded."""
    found = [said for said in warnings(r) if said.text != r.no_answer]
    own = shlex.quote(r.subject.trace)
    return Brief(
        head=f"{job}: no answer, since most of what was recorded is in no replay",
        evidence=_evidence(r),
        roles=(),
        figures=(),
        meaning="",
        level=r.confidence.level,
        sure=BriefSaid(
            f"What is best for the rest, of {counted(len(r.ranking), 'layout')}, may be bad for all.",
            len(r.confidence.reasons) - 1,
        ),
        searched=None,
        warning=BriefSaid(found[0].text, len(found) - 1, found[0].style) if found else None,
        bought=None,
        commands=(
            ("Roles", f"ztune trace roles {own} --proposed"),
            ("Then", f"ztune screen {own}"),
            ("Leave out", f"ztune screen {own} --role 'GLOB=-'"),
            *_commands(r, flags)[-1:],
        ),
        no_answer=BriefSaid(r.no_answer, style=SEVERITY["danger"]),
    )


def _changing_first(sentences: Sequence[str]) -> BriefSaid | None:
    """Return of several sentences one that says that the choice changes, where there is one."""
    found = sorted(sentences, key=lambda text: " changes " not in text)
    return BriefSaid(found[0], more=len(found) - 1) if found else None


def _evidence(r: Recommendation) -> str:
    base = f" Base: {r.subject.base}." if r.subject.base else ""
    return f"{_measured_or_not(r)}{base}"


def _measured_or_not(r: Recommendation) -> str:
    zfs = f"OpenZFS {r.subject.openzfs}".strip()
    if r.basis == "modelled":
        disks = " and ".join(r.subject.profiles) or "modelled"
        return f"Modelled by replay through {zfs} on {disks} disks; no time is measured."
    if r.basis == "measured":
        zfs += _PLACES.get(r.subject.place, f" at {r.subject.place}" if r.subject.place else "")
    runs = counted(len(r.trials), "run")
    if r.basis == "emulated":
        return f"Measured in an emulated lab: its seconds are those of no machine. {zfs}, {runs}."
    return f"Measured: real database, {zfs}, {runs}."


def setting_groups(
    changes: Iterable[SettingChange], datasets: Iterable[Sequence[str]]
) -> list[tuple[str, list[SettingChange]]]:
    """Return (where, what) for each dataset, named by its roles, and for what is no role; ``where`` of a
    dataset stands first and has no changes where it stays as it is."""
    found: dict[str, list[SettingChange]] = {roles[0]: [] for roles in datasets}
    names = {roles[0]: ", ".join(roles) for roles in datasets}
    for change in changes:
        head = change.setting.partition(".")[0]
        key = head if head in ROLES else _OTHERS.get(head, head)
        found.setdefault(key, []).append(change)
    return [(names.get(key, key), listed) for key, listed in found.items()]


def short_name(setting: str) -> str:
    """Return a factor without what its group says already: "data.recordsize" → "recordsize"."""
    head, _, rest = setting.partition(".")
    return rest if head in ROLES or head in {"tunable", "database", "workload"} else setting


def _roles(r: Recommendation) -> list[BriefRole]:
    return role_lines(setting_groups(r.changes, [(a.role, *a.with_roles) for a in r.first_roles]))


def role_lines(groups: Iterable[tuple[str, Sequence[SettingChange]]]) -> list[BriefRole]:
    """Return a line for each group; those with the same settings share one, and those that stay as they are
    the last."""
    found: dict[tuple[str, ...], list[str]] = {}
    for where, changes in groups:
        said = tuple(f"{short_name(c.setting)}={c.value} (base {c.now})" for c in changes)
        found.setdefault(said, []).append(where)
    ordered = sorted(found.items(), key=lambda entry: not entry[0])
    return [BriefRole(", ".join(names), settings) for settings, names in ordered]


def _figure(h: Headline, keeps: bool) -> BriefFigure:
    side = h.side
    base, then = units.show(side.here, side.unit), units.show(side.other, side.unit)
    if keeps:
        return BriefFigure(h.label, base, "", "")
    change, same, most = units.times(side.ratio, side.low, side.high), units.times(1), 0.0
    if side.unit == "share":  # of a whole: of next to nothing the double is nothing
        points, most = 100 * (side.other - side.here), 1.0
        change, same = (f"{p:+.1f} points".replace("-", "−") for p in (points, 0.0))
    if side.here == side.other:
        change = "as base"
    elif not side.matters:
        change = "as base" if change == same else f"as base ({change})"
    most = max(most, side.here, side.other)
    kind: Literal["less", "more", ""] = ""
    if side.matters:
        better = (side.other < side.here) != (h.name == "throughput")
        kind = "less" if better else "more"
    bars = (side.here / most, side.other / most) if most > 0 else None
    return BriefFigure(h.label, base, then, change, kind, side.matters, bars)


def _sure(r: Recommendation) -> BriefSaid:
    """Return the first thing that limits the evidence; without one, what it rests on."""
    # What is said of the search has a line of its own.
    reasons = [text for text in r.confidence.reasons if not r.searched.startswith(text)]
    if r.confidence.level in ("good", "fair"):
        text = r.confidence.sentence.partition(": ")[2]
        return BriefSaid(text[:1].upper() + text[1:], len(reasons))
    decide = r.confidence.reasons[: len(r.confidence.reasons) - r.confidence.notes]
    first = next((text for text in reasons if text in decide), "")
    if not first and len(reasons) < len(r.confidence.reasons):
        return BriefSaid("Too little was searched.", len(reasons))
    return BriefSaid(first or r.confidence.sentence, max(0, len(reasons) - 1))


def warnings(r: Recommendation) -> list[BriefSaid]:
    """Return all that is warned of, the most important first."""
    changed = {short_name(c.setting) for c in r.changes}
    hazards = sorted(grouped(r.hazards), key=lambda h: h.about not in changed)
    out = []
    if r.left_out is not None:
        style = SEVERITY["danger" if r.left_out.most else "warning"]
        out.append(BriefSaid(r.left_out.sentence, style=style))
    rows = [*r.ranking, *r.set_apart]
    weak = r.durability.klass != "nothing-acknowledged"
    as_base = any(row.baseline and row.durability == r.durability.klass for row in rows)
    said = f"{r.durability.klass}{', as the base' if as_base else ''}: {r.durability.sentence}"
    out += [BriefSaid(said, style=SEVERITY["danger"])] if weak and not as_base else []
    out += [BriefSaid(h.sentence, style=SEVERITY["danger"]) for h in hazards if h.severity == "danger"]
    if r.totals_of_jobs:
        out.append(BriefSaid(r.of_one(), style=SEVERITY["warning"]))
    # What comes with a change goes before what the base layout has as well.
    mild = [h for h in hazards if h.severity == "warning"]
    out += [BriefSaid(h.sentence, style=SEVERITY["warning"]) for h in mild if h.about in changed]
    out += [BriefSaid(said, style=SEVERITY["warning"])] if weak and as_base else []
    if not weak and r.durability.sentence != MEANING[DurabilityClass.NOTHING]:
        out.append(BriefSaid(r.durability.sentence, style=SEVERITY["warning"]))  # what speaks against it
    rest = [text for text in r.warnings if r.left_out is None or text != r.left_out.sentence]
    out += [BriefSaid(text, style=SEVERITY["warning"]) for text in rest]
    out += [BriefSaid(h.sentence, style=SEVERITY["warning"]) for h in mild if h.about not in changed]
    return out + [BriefSaid(h.sentence, style=SEVERITY["note"]) for h in hazards if h.severity == "note"]


def _warning(r: Recommendation) -> BriefSaid | None:
    found = warnings(r)
    return BriefSaid(found[0].text, len(found) - 1, found[0].style) if found else None


def _bought(r: Recommendation) -> BriefSaid | None:
    if not r.if_bought:
        return None
    first, more = r.if_bought[0], len(r.if_bought) - 1
    hardware = settings_text(first.hardware)
    # What else was changed, or which layout it stood beside, has no room here.
    if first.differs:
        hardware += f", tried with {counted(len(first.differs), 'other setting')}"
    elif first.beside != r.layout_name:
        hardware += ", beside another layout"
    return BriefSaid(f"{hardware}: {moved(first.headlines)}.", more)


def _commands(r: Recommendation, flags: Sequence[str]) -> list[tuple[str, str]]:
    run, words = r.subject.run, "".join(f" {shlex.quote(w)}" for w in flags)
    out = []
    layout = parse_layout(r.layout)
    if r.changes and all(p.filesystem == "zfs" for p in layout.used_pools()):
        heads = {c.setting.partition(".")[0] for c in r.changes}
        changed = [d.key for d in layout.datasets if d.key in heads]
        if changed:
            asked = "".join(f" --dataset {key}=POOL/DATASET" for key in changed)
            out.append(("Apply", f"ztune apply {run}{words}{asked}"))
        else:
            out.append(("Apply", f"ztune recommend {run}{words} --script layout.sh"))
    return [*out, ("More", f"ztune recommend {run}{words} --why")]


_NARROW = 60  # columns


# How much room each part gets, from the whole of it to the least: the first that fits is taken.
@dataclass(frozen=True)
class _Fit:
    blanks: int = 3  # before how sure, before the figures, before what to set
    text: int = 3  # lines of a sentence
    figures: bool = True  # all figures, not only those that matter
    role: int = 4  # lines of one role
    roles: int = 99  # how many of them


_FITS = (
    _Fit(),
    _Fit(blanks=2),
    _Fit(blanks=2, text=2),
    _Fit(blanks=1, text=2),
    _Fit(blanks=0, text=2),
    _Fit(blanks=0, text=2, role=2),
    _Fit(blanks=0, text=2, role=2, figures=False),
    _Fit(blanks=0, text=1, role=2, figures=False),
    _Fit(blanks=0, text=1, role=1, figures=False),
    *(_Fit(blanks=0, text=1, role=1, figures=False, roles=n) for n in range(12, -1, -1)),
)


def lines(brief: Brief, width: int = WIDTH, room: int = ROOM) -> list[Text]:
    """Return the screen as lines of at most ``width`` columns, at most ``room`` of them if it can be done;
    what is left out is said. On a narrow terminal, which has few words in a line, no setting is."""
    width = max(40, width)
    for fit in _FITS:
        if width < _NARROW:
            fit = replace(fit, role=99, roles=99)
        out = _lines(brief, width, fit)
        if len(out) <= room:
            break
    return out


def _lines(brief: Brief, width: int, fit: _Fit) -> list[Text]:
    out = [Text(line, "bold") for line in _fold(brief.head, width, 2)]
    out += [Text(line, "dim") for line in _fold(brief.evidence, width, 2)]
    out += [Text()] * (fit.blanks > 2)
    first = True
    for role in brief.roles[: fit.roles]:
        out += _role(role, width, fit.role, "Set" if first else "")
        first = False
    if brief.roles[fit.roles :]:
        left = ", ".join(role.where for role in brief.roles[fit.roles :])
        out += _part("", [_cut(f"and {left}: {_MORE}", width - _LABEL)], "dim")
    figures = _figures(brief, width, fit)
    out += [Text()] * (fit.blanks > 1 and bool(figures))
    out += figures
    out += [Text()] * (fit.blanks > 0)
    sure = replace(brief.sure, text=f"{brief.level}. {brief.sure.text}")
    for label, said in (
        ("Left out", brief.no_answer), ("Differs", brief.clear), ("How sure", sure),
        ("Search", brief.searched), ("Age", brief.aged),
        ("Beside", brief.neighbour), ("Sampled", brief.sampled), ("Elsewhere", brief.carries),
        ("Warning", brief.warning), ("If bought", brief.bought),
    ):  # fmt: skip
        if said is not None:
            tail = f" ({said.more} more: {_MORE})" if said.more else ""
            whole = said is brief.no_answer  # what there is to say: there is room for it
            text = said.text.removeprefix("Left out: ") if whole else said.text
            folded = _fold(text, width - _LABEL, 9 if whole else fit.text, tail)
            out += _part(label, folded, said.style if whole or label == "Warning" else "")
    for label, command in brief.commands:
        out += _part(label, _command(command, width - _LABEL), "cyan")
    return out


def _part(label: str, folded: Sequence[str], style: str = "") -> list[Text]:
    return [_label(label if i == 0 else "").append(line, style or None) for i, line in enumerate(folded)]


def _label(label: str) -> Text:
    return Text().append(f"{label:{_LABEL}}", "bold")


def _role(role: BriefRole, width: int, most: int, label: str) -> list[Text]:
    room = width - _LABEL
    if not role.settings:
        return _part(label, _fold(f"{role.where}: {AS_THE_BASE}", room, most, hang=2), "dim")
    for shown in range(len(role.settings), -1, -1):
        left = len(role.settings) - shown
        # One that is longer than a line is broken before what it is now.
        fitting = (s.replace(" ", _TIED) if cell_len(s) < room - 2 else s for s in role.settings[:shown])
        said = ", ".join(fitting)
        if left:
            said += f"{' and ' if shown else ''}{left} more: {_MORE}"
        text = f"{role.where if most > 1 else _cut(role.where, room // 2)}: {said}"
        folded = _wrapped(text, room, 2)
        if len(folded) <= most:
            break
    return _part(label, [_cut(line.replace(_TIED, " "), room) for line in folded[:most]])


def _figures(brief: Brief, width: int, fit: _Fit) -> list[Text]:
    shown = [f for f in brief.figures if fit.figures or f.matters] or list(brief.figures[:2])
    if not shown:
        return []
    labels = [_cut(f.label, (width - _LABEL) // 2) for f in shown]
    name, base, then = (
        max(map(cell_len, column)) for column in (labels, [f.base for f in shown], [f.then for f in shown])
    )
    out = []
    head = "Base" if brief.keeps else "Changes"
    for label, figure in zip(labels, shown, strict=True):
        values = (f"  {figure.base:>{base}}" if base else "") + (f" → {figure.then:{then}}" if then else "")
        line = _label(head).append(label + " " * (name - cell_len(label)) + values)
        change = Text(f"  {figure.change}" if figure.change else "")
        change.stylize({"less": "green", "more": "yellow", "": ""}[figure.kind])
        if width < _NARROW and line.cell_len + change.cell_len > width:
            out.append(_label(head).append(_cut(figure.label, width - _LABEL)))
            line = _label("").append(values)
        line.append_text(change).truncate(width, overflow="ellipsis")
        out.append(line)
        head = ""
    meaning = brief.meaning
    if left := [f.label for f in brief.figures if f not in shown]:
        verb = "is" if len(left) == 1 else "are"
        meaning = f"{units.capital(listed(left))} {verb} as in the base. {meaning}".rstrip()
    if meaning:
        out += _part("", _fold(meaning, width - _LABEL, min(2, fit.text + 1)), "dim")
    return out


def _fold(text: str, width: int, most: int, tail: str = "", hang: int = 0) -> list[str]:
    """Return ``text`` and ``tail`` in at most ``most`` lines: whole sentences as far as they fit, where these
    are half of the room, else words and "…"."""
    sentences = _SENTENCES.split(text)
    end = tail or f" ({_MORE})"
    for count in range(len(sentences), 0, -1):
        said, whole = " ".join(sentences[:count]), count == len(sentences)
        if not whole and 2 * cell_len(said) < width * most:
            break
        folded = _wrapped(said + (tail if whole else end), width, hang)
        if len(folded) <= most:
            return folded
    words = text.split(" ")[: width * most]  # more have no room

    def cut(count: int) -> list[str]:
        return _wrapped(f"{' '.join(words[:count])} …{end}", width, hang)

    # A word more never takes fewer lines.
    fitting = bisect.bisect_right(range(1, len(words) + 1), most, key=lambda count: len(cut(count)))
    return cut(fitting) if fitting else [_cut(text, width)]


def _wrapped(text: str, width: int, hang: int = 0) -> list[str]:
    """Return ``text`` in lines of at most ``width`` columns of a terminal."""
    console = Console(width=width)
    whole = Text(re.sub(r"[\n\t]", " ", text))
    found = [line.plain.rstrip() for line in whole.wrap(console, width)] or [""]
    if not hang or len(found) == 1:
        return found
    below = Text(whole.plain[len(found[0]) :].strip()).wrap(console, width - hang)
    return [found[0], *(" " * hang + line.plain.rstrip() for line in below)]


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    out = Text(text)
    out.truncate(max(1, width), overflow="ellipsis")
    return out.plain


def _command(command: str, width: int, most: int = 2) -> list[str]:
    r"""Return a command in at most two lines that can be pasted; datasets that have no room become "…"."""
    start, *datasets = command.split(" --dataset ")
    pieces = [start, *(f"--dataset {d}" for d in datasets)]
    folded = [pieces[0]]
    for piece in pieces[1:]:
        if cell_len(folded[-1]) + cell_len(piece) + 3 <= width:
            folded[-1] += f" {piece}"
        else:
            folded[-1] += " \\"
            folded.append(f"  {piece}")
    if len(folded) > most:
        folded = [f"{start} --dataset …   (one for each role)"]
    return [part for line in folded for part in _wrapped(line, width)]
