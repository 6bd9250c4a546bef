"""Knowledge as data: a small, safe condition language for TOML, and sentences filled in from facts.

A condition is a table: ``{fact = "recordsize", lt = "@page"}`` compares a fact with a value, or with another
fact where the value is text that begins with "@"; ``all``, ``any`` (lists) and ``not`` combine conditions.
Operators: eq, ne, lt, le, gt, ge, in (the fact is one of a list), has (the fact is a list that holds the
value), known (true/false: the fact has a value). ``times`` multiplies the right side of a comparison of
numbers.

A comparison with a fact that is not known is neither true nor false; a rule fires only when its condition is
true.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any, Literal

from ztune.analysis.units import amount
from ztune.units import format_size

Facts = Mapping[str, Any]
Severity = Literal["danger", "warning", "note"]
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge", "in", "has", "known")


class RuleError(ValueError):
    """A rule file is wrong. A fault of ours, or of whoever edited the file; never of the user's input."""


@dataclass(frozen=True)
class Rule:
    """One piece of knowledge: when it applies, what to say, and who says so."""

    id: str
    scope: str  # whose facts: "dataset" or "layout"
    severity: Severity
    about: str  # the property or subject it speaks of
    when: Mapping[str, Any]
    sentence: str
    source: str
    role: str = ""  # for reasons: only where the dataset holds this role


def holds(condition: Mapping[str, Any], facts: Facts) -> bool | None:
    """Return whether ``condition`` is true for ``facts``; None where an unknown fact leaves it open."""
    if "all" in condition:
        answers = [holds(c, facts) for c in condition["all"]]
        return False if False in answers else None if None in answers else True
    if "any" in condition:
        answers = [holds(c, facts) for c in condition["any"]]
        return True if True in answers else None if None in answers else False
    if "not" in condition:
        answer = holds(condition["not"], facts)
        return None if answer is None else not answer
    left = facts.get(condition["fact"])
    operator = next(op for op in OPERATORS if op in condition)
    if operator == "known":
        return (left is not None) is condition["known"]
    right = condition[operator]
    if isinstance(right, str) and right.startswith("@"):
        right = facts.get(right[1:])
    if left is None or right is None:
        return None
    if "times" in condition:
        right = right * condition["times"]
    match operator:
        case "eq":
            return bool(left == right)
        case "ne":
            return bool(left != right)
        case "lt":
            return bool(left < right)
        case "le":
            return bool(left <= right)
        case "gt":
            return bool(left > right)
        case "ge":
            return bool(left >= right)
        case "in":
            return left in right
    return right in left


def check(condition: Any, known: Sequence[str], where: str) -> None:
    """Raise RuleError, naming ``where``, unless ``condition`` is well formed and uses ``known`` facts."""
    if not isinstance(condition, Mapping):
        raise RuleError(f"{where}: a condition is a table, not {condition!r}")
    for word in ("all", "any"):
        if word in condition:
            if set(condition) != {word} or not isinstance(condition[word], list) or not condition[word]:
                raise RuleError(f"{where}: {word} stands alone and holds a list of conditions")
            for inner in condition[word]:
                check(inner, known, where)
            return
    if "not" in condition:
        if set(condition) != {"not"}:
            raise RuleError(f"{where}: not stands alone")
        check(condition["not"], known, where)
        return
    operators = [op for op in OPERATORS if op in condition]
    if "fact" not in condition or len(operators) != 1:
        raise RuleError(
            f"{where}: a comparison has a fact and one of {', '.join(OPERATORS)}; this has {dict(condition)}"
        )
    extra = set(condition) - {"fact", "times", *operators}
    if extra:
        raise RuleError(f"{where}: unknown word {', '.join(sorted(extra))}")
    right = condition[operators[0]]
    named = [condition["fact"], *([right[1:]] if isinstance(right, str) and right.startswith("@") else [])]
    for fact in named:
        if fact not in known:
            raise RuleError(f'{where}: there is no fact "{fact}"')


def say(sentence: str, facts: Facts) -> str:
    """Return ``sentence`` with each ``{fact}`` filled in; ``{fact:size}`` and ``{fact:amount}`` take bytes.

    ``size`` is exact, as ZFS writes it ("8K"), ``amount`` has three digits ("1.50 GiB"). Lists are joined by
    commas.
    """
    out: list[str] = []
    for text, name, spec, _ in Formatter().parse(sentence):
        out.append(text)
        if name is None:
            continue
        value = facts.get(name)
        if spec == "size" and isinstance(value, int):
            out.append(format_size(value))
        elif spec == "amount" and isinstance(value, int | float):
            out.append(amount(value))
        elif isinstance(value, list | tuple):
            out.append(", ".join(str(v) for v in value))
        elif isinstance(value, float):
            out.append(f"{value:.3g}")
        else:
            out.append("?" if value is None else str(value))
    return "".join(out)


@cache
def load(name: str, known: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules of ``src/ztune/advice/NAME.toml``, in the file's order; raises RuleError."""
    raw = tomllib.loads(files("ztune.advice").joinpath(f"{name}.toml").read_text("utf-8"))
    rules: list[Rule] = []
    seen: set[str] = set()
    for entry in raw["rule"]:
        where = f"{name}.toml, {entry.get('id', '?')}"
        missing = {"id", "about", "when", "sentence", "source"} - set(entry)
        extra = set(entry) - {"id", "scope", "severity", "about", "when", "sentence", "source", "role"}
        if missing or extra:
            raise RuleError(f"{where}: missing {sorted(missing)}, unknown {sorted(extra)}")
        if entry["id"] in seen:
            raise RuleError(f"{where}: the id is used twice")
        seen.add(entry["id"])
        rule = Rule(**{"scope": "dataset", "severity": "note", **entry})
        if rule.scope not in {"dataset", "layout"} or rule.severity not in {"danger", "warning", "note"}:
            raise RuleError(f"{where}: scope is dataset or layout, severity is danger, warning or note")
        check(rule.when, known, where)
        for _, field, _, _ in Formatter().parse(rule.sentence):
            if field is not None and field not in known:
                raise RuleError(f'{where}: the sentence names "{field}", which is no fact')
        rules.append(rule)
    return tuple(rules)
