"""The file of findings is checked strictly; what the condition language tells of itself."""

from __future__ import annotations

from typing import Any

import pytest

from ztune.advice.findings import FORM, rules
from ztune.advice.rules import RuleError, certain, missing, numbers, parse, say

SYNC = '{ fact = "sync", eq = "disabled" }'
GOOD = {
    "id": '"a"',
    "scope": '"dataset"',
    "severity": '"note"',
    "about": '"sync"',
    "asks": '"fsync is off"',
    "when": SYNC,
    "sentence": '"sync is {sync} on {dataset}."',
    "evidence": '["sync"]',
    "do": '"Nothing."',
    "cost": '"Nothing."',
    "source": '"zfsprops(7)"',
}


def text(**changes: str | None) -> str:
    entry = {**GOOD, **changes}
    return "[[rule]]\n" + "\n".join(f"{key} = {value}" for key, value in entry.items() if value is not None)


def test_a_good_rule_is_read() -> None:
    (rule,) = parse(text(), "x.toml", FORM)
    assert (rule.id, rule.scope, rule.evidence, rule.do) == ("a", "dataset", ("sync",), "Nothing.")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cost": None}, r"missing \['cost'\]"),
        ({"evidence": None}, r"missing \['evidence'\]"),
        ({"colour": '"red"'}, r"unknown \['colour'\]"),
        ({"severity": '"fatal"'}, "severity is danger, warning or note"),
        ({"scope": '"layout"'}, "scope is role or dataset or pool or database or host"),
        ({"when": '{ fact = "snyc", eq = "disabled" }'}, 'no fact "snyc"'),
        ({"when": '{ fact = "write_calls", gt = 0 }'}, 'no fact "write_calls"'),  # of a role only
        ({"when": '{ fact = "sync", gt = "x" }'}, "compares with a number"),
        ({"when": '{ fact = "sync", in = "x" }'}, "in takes a list"),
        ({"when": '{ fact = "sync", known = "yes" }'}, "known takes true or false"),
        ({"when": '{ fact = "sync", eq = "x", times = 2 }'}, "times is a number"),
        ({"evidence": "[]"}, "evidence is a list of facts"),
        ({"evidence": '["snyc"]'}, 'evidence names "snyc"'),
        ({"sentence": '"{snyc}."'}, 'sentence names "snyc", which is no fact'),
        ({"do": '"{sync:colour}"'}, 'shows "sync" as "colour"'),
        ({"cost": '"{logbias}"'}, 'cost names "logbias", which may be unknown'),
        ({"do": '""'}, "do is a text"),
        ({"when": f"{{ all = [{SYNC}, {{ fact = 'fragmentation', ge = 64 }}] }}"}, "needs a why"),
        ({"when": f"{{ all = [{SYNC}, {{ fact = 'pool_free', lt = '@slop', times = 2 }}] }}"}, "needs a why"),
    ],
)  # fmt: skip
def test_a_rule_that_is_wrong_is_refused_by_name(changes: dict[str, str | None], says: str) -> None:
    with pytest.raises(RuleError, match=f"x.toml, a: .*{says}"):
        parse(text(**changes), "x.toml", FORM)


def test_an_id_is_used_once() -> None:
    with pytest.raises(RuleError, match="used twice"):
        parse(text() + "\n" + text(), "x.toml", FORM)


def test_every_rule_has_whole_sentences_and_a_source() -> None:
    for rule in rules():
        assert rule.sentence.endswith("."), rule.id
        assert rule.cost.endswith("."), rule.id
        assert not rule.asks.endswith("."), rule.id
        assert rule.source, rule.id
        assert bool(rule.why) == bool(numbers(rule.when)), rule.id


A, B = {"fact": "a", "eq": 1}, {"fact": "b", "gt": "@c"}


@pytest.mark.parametrize(
    ("condition", "facts", "open_"),
    [
        (A, {"a": 1}, ()),
        (A, {}, ("a",)),
        (B, {"b": 2}, ("c",)),
        ({"all": [A, B]}, {"a": 2}, ()),
        ({"all": [A, B]}, {"a": 1, "c": 1}, ("b",)),
        ({"any": [A, B]}, {"a": 1}, ()),
        ({"any": [A, B]}, {"a": 2}, ("b", "c")),
        ({"not": {"all": [A, A]}}, {}, ("a",)),
    ],
)
def test_what_leaves_a_condition_open(
    condition: dict[str, Any], facts: dict[str, Any], open_: tuple[str, ...]
) -> None:
    assert missing(condition, facts) == open_


@pytest.mark.parametrize(
    ("condition", "sure"),
    [
        (B, {"b", "c"}),
        ({"all": [A, B]}, {"a", "b", "c"}),
        ({"any": [A, {"all": [A, B]}]}, {"a"}),
        ({"not": A}, {"a"}),
        ({"not": {"any": [A, B]}}, set()),
        ({"fact": "a", "known": True}, {"a"}),
        ({"fact": "a", "known": False}, set()),
    ],
)
def test_what_a_true_condition_makes_sure(condition: dict[str, Any], sure: set[str]) -> None:
    assert certain(condition) == sure


def test_numbers_are_those_that_someone_chose() -> None:
    condition = {
        "all": [
            {"fact": "a", "ge": 0.5},
            {"fact": "b", "gt": 0},
            {"not": {"fact": "c", "lt": "@d", "times": 4}},
        ]
    }
    assert numbers(condition) == [0.5, 4]
    assert numbers({"fact": "a", "eq": True}) == []


def test_sentences_show_counts_shares_and_seconds() -> None:
    facts = {"n": 18257, "s": 0.125, "t": 0.0042}
    assert say("{n:count} {s:share} {t:seconds}", facts) == "18,257 12.5% 4.20 ms"
