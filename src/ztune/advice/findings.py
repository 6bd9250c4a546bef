"""What an observation gives reason to say: the rules of findings.toml that hold for it.

A rule that holds gives a finding, with the numbers that prove it. One that can't be decided, because a fact
is not known, gives none and is listed by ``undecided``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from ztune.advice.fact import NUMBERS, Subject, Unit, shown
from ztune.advice.observed_facts import NAMES, SCOPES, subjects
from ztune.advice.observed_roles import NO_ROLE
from ztune.advice.rules import SEVERITIES, Form, Rule, RuleError, Severity, holds, load_form, missing, say
from ztune.observe import roles_by_use
from ztune.observe.model import Observation

FORM = Form(
    scopes=tuple((scope, tuple(facts)) for scope, facts in SCOPES.items()),
    always=tuple(NAMES.items()),
    required=frozenset({
        "id", "scope", "severity", "about", "asks", "when", "sentence", "evidence", "do", "cost", "source",
    }),
    optional=frozenset({"why"}),
    strict=True,
)  # fmt: skip


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return self.model_dump(mode="json")


class Evidence(_Part):
    """One fact that proves a finding."""

    fact: str
    words: str
    """What it is."""
    value: bool | int | float | str | list[str]
    unit: Unit
    text: str
    """The value as people read it, with its unit."""


class Finding(_Part):
    """One thing to say."""

    id: str
    severity: Severity
    scope: str
    """role, dataset, pool, database or host."""
    about: dict[str, str]
    """Names what it speaks of: {"role": "data", "dataset": "tank/pg", "pool": "tank"}."""
    subject: str
    """The same in words: "role data (tank/pg)"."""
    topic: str
    """The property, setting or thing in question: "recordsize"."""
    sentence: str
    evidence: list[Evidence]
    do: str
    """What to do; commands and settings stand in backquotes."""
    cost: str
    """What that would cost in space, wear, memory or durability."""
    source: str


class Undecided(_Part):
    """A rule that could not be decided."""

    id: str
    missing: list[str]
    """The facts that were not known."""
    subjects: list[str]
    """What it was asked of; empty where nothing of its kind was seen."""
    sentence: str


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of findings.toml; raises RuleError."""
    found = load_form("findings", FORM)
    for rule in found:
        _numbers_only(rule.when, rule)
    return found


def findings(observation: Observation) -> list[Finding]:
    """Return all that can be said, the worst first, otherwise in the order of the rules."""
    seen = subjects(observation)
    found = [
        _finding(rule, subject)
        for rule in rules()
        for subject in _asked(rule, seen)
        if holds(rule.when, subject.facts) is True
    ]
    return sorted(found, key=lambda f: SEVERITIES.index(f.severity))


def unknown_roles(observation: Observation) -> str:
    """Return, as a sentence, that not one file's role is known and what to do; empty where one is.

    Without it "none of the rules fires" would read as "all is well".
    """
    used = [g for g in observation.of_kind("role") if g.reads.calls or g.writes.calls]
    if not used or any(group.name != NO_ROLE for group in used) or observation.files:
        return ""
    own = [g for g in observation.of_kind("file") if not roles_by_use.of_system(g.name)]
    files = sorted(own, key=lambda g: -roles_by_use.moved(g))
    more = roles_by_use.sentence(roles_by_use.proposals(files, observation.seconds))
    if not more and files:
        more = f"Most was read and written in {', '.join(g.name for g in files[:3])}."
    return (
        "No file's role is known, so no rule about record sizes or the log could be asked: say what the "
        f"files are with --role 'GLOB=ROLE' (docs/roles.md). {more}"
    ).rstrip()


def undecided(observation: Observation) -> list[Undecided]:
    """Return the rules that could not be decided, each with the facts that were missing.

    A rule about something that was looked for and is not there (pools on a host without ZFS) is decided.
    """
    seen = subjects(observation)
    found: list[Undecided] = []
    for rule in rules():
        asked = _asked(rule, seen)
        if not asked and _could_be(rule.scope, observation):
            found.append(
                Undecided(
                    id=rule.id,
                    missing=[rule.scope],
                    subjects=[],
                    sentence=f"It is open whether {rule.asks}: no {rule.scope} was seen.",
                )
            )
        open_for: dict[tuple[str, ...], list[str]] = {}
        for subject in asked:
            unknown = missing(rule.when, subject.facts)
            if unknown:
                open_for.setdefault(unknown, []).append(subject.label)
        for unknown, labels in open_for.items():
            words = "; ".join(SCOPES[rule.scope][name].words for name in unknown)
            found.append(
                Undecided(
                    id=rule.id,
                    missing=list(unknown),
                    subjects=labels,
                    sentence=f"It is open for {', '.join(labels)} whether {rule.asks}. Not known: {words}.",
                )
            )
    return found


def _asked(rule: Rule, seen: list[Subject]) -> list[Subject]:
    return [subject for subject in seen if subject.scope == rule.scope]


def _could_be(scope: str, observation: Observation) -> bool:
    """Return whether there may be something of this scope although none was seen."""
    if scope in {"dataset", "pool"}:
        return observation.zfs is None and observation.source != "live"
    return True


def _finding(rule: Rule, subject: Subject) -> Finding:
    known = SCOPES[rule.scope]
    evidence = [
        Evidence(
            fact=name,
            words=known[name].words,
            value=subject.facts[name],
            unit=known[name].unit,
            text=shown(subject.facts[name], known[name].unit),
        )
        for name in rule.evidence
        if subject.facts[name] is not None
    ]
    return Finding(
        id=rule.id,
        severity=rule.severity,
        scope=rule.scope,
        about=subject.about,
        subject=subject.label,
        topic=rule.about,
        sentence=say(rule.sentence, subject.facts),
        evidence=evidence,
        do=say(rule.do, subject.facts),
        cost=say(rule.cost, subject.facts),
        source=rule.source,
    )


def _numbers_only(condition: Any, rule: Rule) -> None:
    """Raise RuleError where a number is compared with a fact that is none, or with one of another unit."""
    for inner in (*condition.get("all", ()), *condition.get("any", ())):
        _numbers_only(inner, rule)
    if "not" in condition:
        _numbers_only(condition["not"], rule)
    facts = SCOPES[rule.scope]
    for operator in ("lt", "le", "gt", "ge"):
        if operator in condition and facts[condition["fact"]].unit not in NUMBERS:
            raise RuleError(f"findings.toml, {rule.id}: {condition['fact']} is no number")
