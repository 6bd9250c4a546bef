"""A plan as text for people, readable at 80 columns."""

from __future__ import annotations

import textwrap

from ztune.advice.host import canonical
from ztune.advice.plan import Plan, Target
from ztune.analysis import units
from ztune.analysis.units import sentence
from ztune.units import counted

_WIDTH = 80


def render(plan: Plan) -> str:
    """Return the whole plan: what changes, what it leaves alone, what is left to people."""
    out = [f'Plan for {plan.host} (OpenZFS {plan.version}): layout "{plan.layout}" of run {plan.run}']
    out += _wrap(f"Its numbers are {plan.evidence}.")
    for target in plan.targets:
        out += ["", *_target(plan, target)]
    if plan.unmapped:
        out += [
            "",
            *_wrap(f"Not touched, since no --dataset names where it lives: {', '.join(plan.unmapped)}."),
        ]
    known = ", as far as it is known" if plan.unknown else ""
    out += ["", f"Durability: {plan.before} now, {plan.after} then{known}"]
    out += [line for reason in plan.reasons for line in _wrap(sentence(reason), "  ")]
    if plan.weaker:
        out += _wrap(
            f"This is weaker than what you have: --yes alone does not do it, --accept-durability "
            f"{plan.after} is needed as well.",
            "  ",
        )
    for title, texts, commands in (
        ("It can't be done as it is", [f"{text}." for text in plan.refused], ()),
        ("The pool: never changed by ztune", plan.pool, plan.pool_commands),
        ("The database and the kernel module: never changed by ztune", plan.restart, plan.restart_commands),
        ("Know before you do it", plan.hazards, ()),
        ("Warnings of the run", plan.warnings, ()),
    ):
        if lines := [line for text in texts for line in _wrap(text, "  - ")]:
            out += ["", title, *lines, *(f"      {command}" for command in commands)]
    return "\n".join(out)


def closing(plan: Plan) -> str:
    """Return the last line of a plan that was only shown."""
    count = len(plan.settings)
    if not count:
        return (
            "There is nothing to change: all properties are as the layout has them. "
            "What was written before they were set stays as it is until it is written anew."
        )
    return f"Nothing was changed. With --yes: {counted(count, 'change')}, undo file first."


def _target(plan: Plan, target: Target) -> list[str]:
    here = target.dataset
    kind = "volume" if here.is_volume else "file system"
    about = [kind, f"{units.amount(here.number('referenced'))} there"]
    if here.text("mountpoint"):
        about.append(f"mountpoint {here.text('mountpoint')}")
    out = [f"{', '.join(target.roles)} on {here.name}  ({', '.join(about)})"]
    for setting in target.settings:
        before = canonical(setting.name, setting.before.value)
        if setting.dataset != here.name:
            said = f"{setting.dataset} keeps {setting.name}={before}: set there first. {setting.why}"
            out += _wrap(said, "  - ")
            continue
        if setting.keeps:
            out.append(f"  {setting.name:20} {before} stays: set here, so that it follows no dataset above")
            continue
        out.append(f"  {setting.name:20} {before} ({setting.before.source})  →  {setting.value}")
        out += _wrap(setting.why, "      ") if setting.why else []
    if not target.settings and not target.impossible:
        out.append("  nothing to change")
    if target.already:
        out += _wrap(f"As the layout has it already: {', '.join(target.already)}.", "  ")
    for text in (*target.kept, *target.impossible):
        out += _wrap(f"{text}.", "  - ")  # it begins with a name, which has no capital
    for text in target.following:
        out += _wrap(text, "  - ")
    if target.rewrite:
        out.append("  What is there already")
        out += [line for text in target.rewrite for line in _wrap(text, "    ")]
        out += [f"      {command}" for command in target.commands]
    return out


def _wrap(text: str, indent: str = "") -> list[str]:
    text = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
