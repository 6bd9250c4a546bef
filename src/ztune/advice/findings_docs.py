"""The tables of docs/findings.md, from the rules: ``python -m ztune.advice.findings_docs docs/findings.md``.

Replaces what stands between ``<!-- findings: NAME -->`` and ``<!-- end -->``; the rest of the page is written
by hand. With ``--check`` nothing is written, and exit code 1 says that the page is not current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ztune.advice.fact import shown
from ztune.advice.findings import rules
from ztune.advice.observed_facts import SCOPES
from ztune.advice.rules import OPERATORS, Rule, fields

_SIGNS = {"eq": "=", "ne": "≠", "lt": "<", "le": "≤", "gt": ">", "ge": "≥", "in": "one of", "has": "holds"}


def index() -> list[str]:
    """Return the table of all rules: id, severity, scope and what each asks."""
    rows = ["| finding | severity | of each | when |", "| --- | --- | --- | --- |"]
    return rows + [f"| [`{r.id}`](#{r.id}) | {r.severity} | {r.scope} | {_cell(r.asks)} |" for r in rules()]


def sections() -> list[str]:
    """Return a section for each rule."""
    out: list[str] = []
    for rule in rules():
        rows = {
            "severity": rule.severity,
            "about": f"{rule.about}, of each {rule.scope}",
            "when": in_words(rule.when, rule.scope),
            "numbers": rule.why,
            "says": _texts(rule, rule.sentence),
            "evidence": ", ".join(f"`{name}`" for name in rule.evidence),
            "do": _texts(rule, rule.do),
            "cost": _texts(rule, rule.cost),
            "source": rule.source,
        }
        out += [f"### {rule.id}", "", f"{rule.asks[0].upper()}{rule.asks[1:]}.", "", "| | |", "| --- | --- |"]
        out += [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value]
        out.append("")
    return out[:-1]


def facts() -> list[str]:
    """Return the table of facts: name, unit, the smallest scope that has it, meaning."""
    rows = ["| fact | unit | of each | what it says |", "| --- | --- | --- | --- |"]
    seen: set[str] = set()
    for scope in ("host", "pool", "dataset", "role", "database"):
        for name, fact in SCOPES[scope].items():
            if name not in seen:
                seen.add(name)
                rows.append(f"| `{name}` | {fact.unit} | {scope} | {_cell(fact.words)} |")
    return rows


def in_words(condition: Mapping[str, Any], scope: str, inner: bool = False) -> str:
    """Return a condition as text: "`recordsize` ≥ 4 × `fit` and `sequential` < 50%"."""
    for word, joint in (("all", " and "), ("any", " or ")):
        if word in condition:
            text = joint.join(in_words(c, scope, True) for c in condition[word])
            return f"({text})" if inner and len(condition[word]) > 1 else text
    if "not" in condition:
        return f"not ({in_words(condition['not'], scope)})"
    name = condition["fact"]
    operator = next(op for op in OPERATORS if op in condition)
    if operator == "known":
        return f"`{name}` is {'known' if condition['known'] else 'not known'}"
    if condition[operator] == "":
        return f"`{name}` is known"
    times = f"{condition['times']} × " if "times" in condition else ""
    return f"`{name}` {_SIGNS[operator]} {times}{_right(condition[operator], name, scope)}"


def _right(value: Any, name: str, scope: str) -> str:
    if isinstance(value, str):
        return f"`{value[1:]}`" if value.startswith("@") else value
    if isinstance(value, list):
        return ", ".join(_right(item, name, scope) for item in value)
    return shown(value, SCOPES[scope][name].unit)


def _texts(rule: Rule, text: str) -> str:
    """Return a text of a rule with each {fact:spec} as {fact}."""
    for name, spec in fields(text):
        text = text.replace("{" + name + (f":{spec}" if spec else "") + "}", "{" + name + "}")
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def fill(text: str) -> str:
    """Return ``text`` with everything between its marks made anew; ValueError for an unknown mark."""
    made = {"index": index(), "rules": sections(), "facts": facts()}

    def one(match: re.Match[str]) -> str:
        if match[1] not in made:
            raise ValueError(f'there is nothing called "{match[1]}" to fill in')
        return "\n".join([f"<!-- findings: {match[1]} -->", "", *made[match[1]], "", "<!-- end -->"])

    return re.sub(r"<!-- findings: (\w+) -->.*?<!-- end -->", one, text, flags=re.DOTALL)


def main(arguments: list[str]) -> int:
    """Fill the page named by the last of ``arguments``, or with --check say whether it is current."""
    page = Path(arguments[-1])
    old = page.read_text(encoding="utf-8")
    new = fill(old)
    if "--check" in arguments:
        return 0 if new == old else 1
    page.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
