"""Which rules of hazards.toml and reasons.toml apply to a layout."""

from __future__ import annotations

from ztune.advice.facts import DATASET_FACTS, dataset_facts, layout_facts
from ztune.advice.model import Hazard
from ztune.advice.rules import Facts, Rule, holds, load, say
from ztune.analysis.results import LayoutResult
from ztune.trace.manifest import Manifest

_ORDER = {"danger": 0, "warning": 1, "note": 2}


def hazard_rules() -> tuple[Rule, ...]:
    """Return the rules of hazards.toml."""
    return load("hazards", DATASET_FACTS)


def firing(rules: tuple[Rule, ...], scope: str, facts: Facts) -> list[Hazard]:
    """Return what the rules of ``scope`` say about ``facts``."""
    return [
        Hazard(id=r.id, severity=r.severity, about=r.about, sentence=say(r.sentence, facts), source=r.source)
        for r in rules
        if r.scope == scope and holds(r.when, facts) is True
    ]


def hazards(
    result: LayoutResult, workload: str | None = None, manifest: Manifest | None = None
) -> list[Hazard]:
    """Return all hazards of a layout, the worst first, each sentence once."""
    rules = hazard_rules()
    found = firing(rules, "layout", layout_facts(result, workload, manifest))
    for dataset in result.layout.datasets:
        found += firing(rules, "dataset", dataset_facts(result, dataset, workload, manifest))
    unique = {(h.id, h.sentence): h for h in found}
    return sorted(unique.values(), key=lambda h: _ORDER[h.severity])


def reason(name: str, facts: Facts) -> tuple[str, str]:
    """Return (why, source) for the value of property ``name`` on a dataset with ``facts``, or two blanks.

    Roles that share a dataset have the reasons of the first: a log beside data does not decide its records.
    """
    first = next(iter(facts.get("roles") or ()), "")
    for rule in load("reasons", DATASET_FACTS):
        if rule.about == name and rule.role in ("", first) and holds(rule.when, facts) is True:
            return say(rule.sentence, facts), rule.source
    return "", ""
