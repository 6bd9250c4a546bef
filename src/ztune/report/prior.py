"""An answer without a recording, in the terminal: one screen of 24 lines of 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ztune import output
from ztune.analysis import units
from ztune.databases.database import Database
from ztune.onhost.words import ROLES
from ztune.priors.prior import DISKS, Prior, SetInPrint
from ztune.units import counted, format_size

WIDTH = 80
_MOST_SETS = 3
_DISKS = {"hdd": "7200 rpm disks", "ssd": "SATA SSDs", "nvme": "NVMe SSDs"}


def show(prior: Prior, of: Database) -> None:
    """Print ``prior``, an answer on the database ``of``."""
    for text in lines(prior, of):
        output.echo(text)


def to_json(prior: Prior, of: Database) -> dict[str, Any]:
    """Return ``prior`` as JSON values; of the runs what they are, not their figures."""
    found = asdict(prior)
    for run in found["runs"]:
        run["layouts"] = len(run.pop("figures"))
    return {"prior": True, "title": of.facts.title, **found, "commands": list(_commands(prior, of))}


def lines(prior: Prior, of: Database) -> list[str]:
    """Return the screen, line by line."""
    asked = prior.question
    where = [_DISKS[asked.disks]]
    if asked.raid != "stripe":
        where.append(asked.raid)
    if asked.memory:
        where.append(f"{format_size(asked.memory)} of memory")
    if asked.size:
        where.append(f"{format_size(asked.size)} of data")
    own = any(run.own for run in prior.runs)
    what = "A PRIOR, in part from runs of yours" if own else "A PRIOR, not measured on your load"
    out = [*_wrapped(f"{_capital(of.facts.title)} on {', '.join(where)}: {what}.")]
    out += _answer(prior) if prior.settings else [*_wrapped(_nothing(prior))]
    shown = sorted(prior.in_print, key=lambda one: one.name)
    shown = [one for one in shown if one.name != "zfs-defaults" or not prior.settings]
    if shown:
        out += ["", "In print: theirs, not ours (all of it and sources: `ztune list advice NAME`)"]
        for one in shown[:_MOST_SETS]:
            out.append(_set(one))
            if not prior.settings:
                out += _source(one)
        if len(shown) > _MOST_SETS:
            out.append(f"  and {', '.join(one.name for one in shown[_MOST_SETS:])}")
        never = [setting.partition(".")[2] for one in shown[:_MOST_SETS] for setting in one.weaker]
        if never:
            out += _wrapped(
                f"* with what no answer here has: {', '.join(dict.fromkeys(never))}", "    ", "  "
            )
    out += ["", *_wrapped(f"Not known: {'; '.join(prior.unknown)}.", "  ")]
    heads = ("Measure ours:", "Your server:", "")
    return [*out, *(f"{head:<16}{one}" for head, one in zip(heads, _commands(prior, of), strict=True))]


def _answer(prior: Prior) -> Iterator[str]:
    own = [run for run in prior.runs if run.own]
    loads = {run.load for run in prior.runs}
    kinds = Counter(run.basis for run in prior.runs)
    said = " and ".join(f"{n} {basis}" for basis, n in sorted(kinds.items()))
    of = ", ".join(sorted({run.workload or "your recordings" for run in prior.runs}))
    yield from _wrapped(
        f"From {counted(len(prior.runs), 'run')} ({said}) of {counted(len(loads), 'load')} ({of}); "
        f"{len(own) or 'none'} of them yours." + "".join(f" {_capital(note)}." for note in prior.notes)
    )
    yield ""
    shared = {role: key for run in prior.runs for role, key in run.shared.items()}
    for role, settings in prior.settings.items():
        beside = [one for one, key in shared.items() if key == role and one not in prior.settings]
        name = "+".join([role, *beside])
        yield from _wrapped(f"  {name:<9} " + "  ".join(f"{k}={v}" for k, v in settings.items()), " " * 12)
    several = len(prior.runs) > 1
    parts = [
        f"{label} {units.times(*value) if several else units.times(value[0])}"
        for label, value in (("time", prior.time), ("space", prior.space), ("written", prior.written))
        if value is not None
    ]
    if parts:
        ends = " (least … most)" if several else ""
        yield from _wrapped(f"Against ZFS's defaults{ends}: {', '.join(parts)}.")
    off = prior.off
    if off is None:
        yield from _wrapped("How far that is from the best on another load: not known, there is one only.")
    else:
        yield from _wrapped(
            f"Chosen without the load that it is tried on, it is within 5 % of the best time in "
            f"{off.near} of {counted(off.runs, 'run')}, at worst {units.times(off.worst)}."
        )


def _nothing(prior: Prior) -> str:
    if prior.in_print:
        return "Nothing was run that would say; what follows is what others print."
    return (
        "Nothing was run that would say, and no set of advice speaks of it: keep ZFS's defaults, and measure."
    )


def _set(one: SetInPrint) -> str:
    """Return one line on a set: the values that tell sets apart; `ztune list advice` has all of it."""
    parts = []
    for role in ROLES:
        here = {k.partition(".")[2]: v for k, v in one.settings.items() if k.partition(".")[0] == role}
        if words := [_word(name, here[name]) for name in _TOLD if name in here]:
            parts.append(" ".join([role, *words]))
    more = any(k.partition(".")[2] not in _TOLD for k in one.settings)
    told = f"time {units.times(one.times)} of ours; " if one.times is not None else ""
    name = f"{one.name}{' *' if one.weaker else ''}"
    text = f"  {name:<16} {told}{', '.join(parts) or 'nothing set'}"
    if len(text) > WIDTH - 3:
        return text[: WIDTH - 2].rpartition(" ")[0] + " …"
    return text + (", …" if more else "")


def _source(one: SetInPrint) -> list[str]:
    """Return where a set comes from, an address on a line of its own where it fits."""
    out = textwrap.wrap(
        f"{one.title} ({one.as_of})", WIDTH, initial_indent="    ", max_lines=1, placeholder=" …"
    )
    return [*out, f"    {one.url}"] if one.url and len(one.url) <= WIDTH - 4 else out


_TOLD = ("recordsize", "compression", "primarycache", "logbias")


def _word(name: str, value: str) -> str:
    if name in ("primarycache", "logbias"):
        return f"{name}={value}"
    if name != "compression":
        return value
    return {"off": "uncompressed", "on": "lz4"}.get(value, value)


def _commands(prior: Prior, of: Database) -> Iterator[str]:
    asked = prior.question
    workload = next(iter(of.facts.workloads), "WORKLOAD")
    profile = DISKS[asked.disks]
    yield f"ztune tune {workload} --profile {profile}"
    yield "sudo ztune record --share --pid PID --seconds 60 --out my.trace"
    arc = f" --arc {format_size(asked.memory // 2)}" if asked.memory else ""
    yield f"ztune screen my.trace --profile {profile}{arc}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _wrapped(text: str, later: str = "", first: str = "") -> Iterator[str]:
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=later,
        break_long_words=False, break_on_hyphens=False, drop_whitespace=True,
    )  # fmt: skip
