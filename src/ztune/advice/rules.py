"""Knowledge as data: a small, safe condition language for TOML, and sentences filled in from facts.

A condition is a table: ``{fact = "recordsize", lt = "@page"}`` compares a fact with a value, or with another
fact where the value is text that begins with "@"; ``all``, ``any`` (lists) and ``not`` combine conditions.
Operators: eq, ne, lt, le, gt, ge, in (the fact is one of a list), has (the fact is a list that holds the
value), known (true/false: the fact has a value). ``times`` multiplies the right side of a comparison of
numbers.

A comparison with a fact that is not known is neither true nor false; a rule fires only when its condition is
true. ``missing`` names the facts that leave a condition open, ``certain`` those that must be known where it
is true.

A file of rules has a ``Form``: which keys a rule must or may have, which scopes there are, and the facts of
each. Hazards and reasons speak of layouts, findings of observations.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any, Literal

from ztune.analysis.units import amount, count, show
from ztune.units import format_size

Facts = Mapping[str, Any]
Severity = Literal["danger", "warning", "note"]
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge", "in", "has", "known")
SEVERITIES = ("danger", "warning", "note")  # the worst first
SPECS = ("", "size", "amount", "count", "share", "seconds")


class RuleError(ValueError):
    """A rule file is wrong. A fault of ours, or of whoever edited the file; never of the user's input."""


@dataclass(frozen=True)
class Rule:
    """One piece of knowledge: when it applies, what to say, and who says so."""

    id: str
    scope: str  # whose facts: one of its form's scopes
    severity: Severity
    about: str  # the property or subject it speaks of
    when: Mapping[str, Any]
    sentence: str
    source: str
    role: str = ""  # for reasons: only where it is the first of the dataset
    asks: str = ""  # for findings: the condition in words, as it ends "whether …"
    evidence: tuple[str, ...] = ()  # the facts that prove it
    do: str = ""
    cost: str = ""  # of doing it
    why: str = ""  # where the condition's numbers come from


@dataclass(frozen=True)
class Form:
    """What the rules of a file look like. ``scopes`` → the facts that rules of that scope may ask for.

    ``strict``: the texts of a rule may name only facts that must be known when it fires, so that no sentence
    has a gap, and a condition with a number other than 0 needs a ``why``.
    """

    scopes: tuple[tuple[str, tuple[str, ...]], ...]
    default_scope: str = ""
    required: frozenset[str] = frozenset({"id", "about", "when", "sentence", "source"})
    optional: frozenset[str] = frozenset({"scope", "severity", "role"})
    strict: bool = False
    always: tuple[tuple[str, frozenset[str]], ...] = ()  # scope → facts that its subjects always have


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


def missing(condition: Mapping[str, Any], facts: Facts) -> tuple[str, ...]:
    """Return the unknown facts that leave ``condition`` open, in its order; none where it is decided."""
    if holds(condition, facts) is not None:
        return ()
    found: list[str] = []
    for inner in _inner(condition):
        found += missing(inner, facts)
    if "fact" in condition:
        found += [fact for fact in _named(condition) if facts.get(fact) is None]
    return tuple(dict.fromkeys(found))


def certain(condition: Mapping[str, Any]) -> frozenset[str]:
    """Return the facts that are known whenever ``condition`` is true."""
    if "all" in condition:
        return frozenset().union(*(certain(inner) for inner in condition["all"]))
    if "any" in condition:
        return frozenset.intersection(*(certain(inner) for inner in condition["any"]))
    if "not" in condition:
        # A comparison that is false was decided, so its facts are known; of more than one, any may be.
        inner = condition["not"]
        return frozenset(_named(inner)) if "fact" in inner and "known" not in inner else frozenset()
    return frozenset() if condition.get("known") is False else frozenset(_named(condition))


def numbers(condition: Mapping[str, Any]) -> list[float]:
    """Return the numbers in ``condition`` that someone had to choose: all but 0."""
    found: list[float] = []
    for inner in _inner(condition):
        found += numbers(inner)
    for word in (*OPERATORS, "times"):
        value = condition.get(word)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float) and not isinstance(item, bool) and item != 0:
                found.append(item)
    return found


def _inner(condition: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        *condition.get("all", ()),
        *condition.get("any", ()),
        *([condition["not"]] if "not" in condition else []),
    ]


def _named(comparison: Mapping[str, Any]) -> list[str]:
    right = next((comparison[op] for op in OPERATORS if op in comparison), None)
    return [comparison["fact"], *([right[1:]] if isinstance(right, str) and right.startswith("@") else [])]


def check(condition: object, known: Sequence[str], where: str) -> None:
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
    operator = operators[0]
    extra = set(condition) - {"fact", "times", operator}
    if extra:
        raise RuleError(f"{where}: unknown word {', '.join(sorted(extra))}")
    for fact in _named(condition):
        if fact not in known:
            raise RuleError(f'{where}: there is no fact "{fact}"')
    right = condition[operator]
    compared = isinstance(right, str) and right.startswith("@")
    if operator == "in" and not isinstance(right, list) and not compared:
        raise RuleError(f"{where}: in takes a list, not {right!r}")
    if operator == "known" and not isinstance(right, bool):
        raise RuleError(f"{where}: known takes true or false, not {right!r}")
    if operator in {"lt", "le", "gt", "ge"} and not compared and not _number(right):
        raise RuleError(f"{where}: {operator} compares with a number or an @fact, not {right!r}")
    if "times" in condition and not (_number(condition["times"]) and (compared or _number(right))):
        raise RuleError(f"{where}: times is a number and multiplies a number")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def say(sentence: str, facts: Facts) -> str:
    """Return ``sentence`` with each ``{fact}`` filled in, and each ``{fact:spec}`` as its spec says.

    ``size`` takes bytes and is exact, as ZFS writes it ("8K"); ``amount`` takes bytes and has three digits
    ("1.50 GiB"); ``count`` has separators ("18,257"); ``share`` takes 0 to 1 and gives per cent; ``seconds``
    takes s. Lists are joined by commas. Between backquotes, where commands stand, a name is quoted as a shell
    needs it: ZFS takes blanks in one.
    """
    out: list[str] = []
    code = False
    for text, name, spec, _ in Formatter().parse(sentence):
        out.append(text)
        code ^= text.count("`") % 2 == 1
        if name is not None:
            value = _value(facts.get(name), spec or "")
            out.append(shlex.quote(value) if code and isinstance(facts.get(name), str) else value)
    return "".join(out)


def _value(value: object, spec: str) -> str:
    if spec == "size" and isinstance(value, int):
        return format_size(value)
    if isinstance(value, int | float):
        match spec:
            case "amount":
                return amount(value)
            case "count":
                return count(value)
            case "share":
                return show(value, "share")
            case "seconds":
                return show(value, "s")
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    if isinstance(value, float):
        return f"{value:.3g}"
    return "?" if value is None else str(value)


def fields(text: str) -> list[tuple[str, str]]:
    """Return the (fact, spec) that a sentence names."""
    return [(name, spec or "") for _, name, spec, _ in Formatter().parse(text) if name is not None]


@cache
def load(name: str, known: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules about layouts in ``src/ztune/advice/NAME.toml``, in the file's order.

    Both scopes, dataset and layout, may ask for all ``known`` facts. Raises RuleError.
    """
    return load_form(name, Form(scopes=(("dataset", known), ("layout", known)), default_scope="dataset"))


@cache
def load_form(name: str, form: Form) -> tuple[Rule, ...]:
    """Return the rules of ``src/ztune/advice/NAME.toml``, in the file's order; raises RuleError."""
    return parse(files("ztune.advice").joinpath(f"{name}.toml").read_text("utf-8"), f"{name}.toml", form)


def parse(text: str, file: str, form: Form) -> tuple[Rule, ...]:
    """Return the rules in a file's ``text``; raises RuleError, naming ``file`` and the rule."""
    raw = tomllib.loads(text)
    rules: list[Rule] = []
    seen: set[str] = set()
    for entry in raw.get("rule", ()):
        where = f"{file}, {entry.get('id', '?')}"
        absent = form.required - set(entry)
        extra = set(entry) - form.required - form.optional
        if absent or extra:
            raise RuleError(f"{where}: missing {sorted(absent)}, unknown {sorted(extra)}")
        if entry["id"] in seen:
            raise RuleError(f"{where}: the id is used twice")
        seen.add(entry["id"])
        _texts(entry, where)
        evidence = tuple(entry.get("evidence", ()))
        rule = Rule(**{"scope": form.default_scope, "severity": "note", **entry, "evidence": evidence})
        scopes = dict(form.scopes)
        if rule.scope not in scopes or rule.severity not in SEVERITIES:
            raise RuleError(f"{where}: scope is {' or '.join(scopes)}, severity is danger, warning or note")
        known = scopes[rule.scope]
        check(rule.when, known, where)
        for fact in evidence:
            if fact not in known:
                raise RuleError(f'{where}: the evidence names "{fact}", which is no fact')
        _fields(rule, known, form, where)
        if form.strict and numbers(rule.when) and not rule.why:
            raise RuleError(f"{where}: the condition has a number, so the rule needs a why")
        rules.append(rule)
    return tuple(rules)


def _texts(entry: Mapping[str, Any], where: str) -> None:
    for key, value in entry.items():
        if key == "evidence":
            if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
                raise RuleError(f"{where}: evidence is a list of facts")
        elif key != "when" and (not isinstance(value, str) or (not value and key != "role")):
            raise RuleError(f"{where}: {key} is a text, not {value!r}")


def _fields(rule: Rule, known: Sequence[str], form: Form, where: str) -> None:
    sure = certain(rule.when) | dict(form.always).get(rule.scope, frozenset())
    for key in ("sentence", "do", "cost"):
        for field, spec in fields(getattr(rule, key)):
            if field not in known:
                raise RuleError(f'{where}: the {key} names "{field}", which is no fact')
            if spec not in SPECS:
                raise RuleError(
                    f'{where}: the {key} shows "{field}" as "{spec}", which is no way to show one'
                )
            if form.strict and field not in sure:
                raise RuleError(
                    f'{where}: the {key} names "{field}", which may be unknown when it fires: ask for it'
                )
