"""The terminal view of many hosts: what is worst, what has drifted, and who could not be asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ztune import output
from ztune.hosts.answer import NO_SIZES
from ztune.hosts.asking import HostAnswer
from ztune.hosts.drift import Drift
from ztune.hosts.ranked import RankedFinding, severities
from ztune.output import Text
from ztune.report.severity import SEVERITY
from ztune.units import counted, listed

TOP = 5
"""Rows that a first screen has room for, at 120 columns."""
_NAMED = 2


def show(answers: Sequence[HostAnswer], rows: Sequence[RankedFinding], *, everything: bool) -> None:
    """Print the summary, the table, and the hosts that could not be asked; without ``everything`` its top."""
    silent = [answer for answer in answers if answer.seen is None]
    asked = len(answers) - len(silent)
    by = severities(rows)
    words = [f"{severity} on {counted(by[severity], 'host')}" for severity in SEVERITY if by[severity]]
    summary = f"{counted(asked, 'host')} answered: {listed(words) if words else 'nothing to say'}."
    if silent:
        summary += f" {counted(len(silent), 'host')} could not be asked."
    output.echo(summary)
    shown = rows if everything else rows[:TOP]
    if shown:
        output.echo()
        output.print_table(
            ("hosts", "about", "finding", "what to do", "what that costs"),
            [
                (
                    _hosts(row.hosts, everything),
                    row.about,
                    Text(_text(row.finding.sentence, everything), style=SEVERITY[row.finding.severity]),
                    _text(row.finding.do, everything),
                    _text(row.finding.cost, everything),
                )
                for row in shown
            ],
            otherwise=120,
        )
    if len(rows) > len(shown):
        output.echo(
            f"\n{counted(len(rows) - len(shown), 'more finding')}: --all shows them, in whole sentences."
        )
    if silent:
        output.echo()
        reasons: dict[str, list[str]] = {}
        for answer in silent:
            reasons.setdefault(answer.why, []).append(answer.host.name)
        table = [(_hosts(hosts, everything), why) for why, hosts in reasons.items()]
        output.print_table(("not asked", "why"), table, otherwise=120)
    _show_hidden(answers, everything)


def _show_hidden(answers: Sequence[HostAnswer], everything: bool) -> None:
    """Print what hosts that answered could not tell, as to a user without rights: no finding is of that."""
    hidden: dict[str, list[str]] = {}
    for answer in answers:
        for limit in answer.seen.limits if answer.seen is not None else ():
            if limit != NO_SIZES:
                hidden.setdefault(limit, []).append(answer.host.name)
    if not hidden:
        return
    output.echo()
    if everything:
        rows = [(_hosts(hosts, everything), limit) for limit, hosts in hidden.items()]
        output.print_table(("hosts", "not known"), rows, otherwise=120)
        return
    some = len({host for hosts in hidden.values() for host in hosts})
    output.echo(f"Of {counted(some, 'host')} not all could be seen: --all says what, and why.")


def show_drift(drifted: Mapping[str, Sequence[Drift]], path: Path, *, everything: bool) -> None:
    """Print what is not as the recommendation in ``path`` says; hosts with the same drift share a row."""
    hosts: dict[Drift, list[str]] = {}
    for host, found in drifted.items():
        for drift in found:
            hosts.setdefault(drift, []).append(host)
    away = {host for found in hosts.values() for host in found}
    if not hosts:
        output.echo(f"As {path} recommends: {counted(len(drifted), 'host')}, no difference.\n")
        return
    output.echo(f"Not as {path} recommends: {len(away)} of {counted(len(drifted), 'host')}.\n")
    rows = sorted(hosts.items(), key=lambda one: (one[0].kind == "unknown", -len(one[1])))
    shown = rows if everything else rows[: 2 * TOP]
    output.print_table(
        ("hosts", "about", "what", "recommended", "found"),
        [(_hosts(names, everything), d.about, d.what, d.expected, d.found) for d, names in shown],
        otherwise=120,
    )
    if len(rows) > len(shown):
        output.echo(f"\n{counted(len(rows) - len(shown), 'more difference')}: --all shows them.")
    output.echo()


def _hosts(names: Sequence[str], everything: bool) -> str:
    if everything or len(names) <= _NAMED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def _text(text: str, everything: bool) -> str:
    return text if everything else first_sentence(text)


def first_sentence(text: str, ends: str = ".;") -> str:
    """Return the first sentence of a finding's text, up to one of ``ends``; what stands in backquotes is not
    cut.
    """
    hidden = re.sub(r"`[^`]*`", lambda match: "x" * len(match[0]), text)
    end = re.search(f"[{ends}] ", hidden)
    return text if end is None else text[: end.start()] + "."
