"""Blocks of several hosts: each counts the same, and what one host alone shows is not known."""

from __future__ import annotations

import json
import math
import random

import pytest

from ztune.analysis.intervals import of_means, student
from ztune.analysis.paired import paired
from ztune.analysis.resolve import decide, leader
from ztune.analysis.verdict import outcome, sentence

HOSTS = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c", 7: "a", 8: "b", 9: "c"}
SPEED = {"a": 1.0, "b": 3.0, "c": 0.2}  # the hosts themselves differ as they like


def values(ratio: dict[str, float], spread: float = 0.005, seed: int = 1) -> dict[str, dict[int, float]]:
    """Return two arms, of which the second takes so many times as long as the first on each host."""
    dice = random.Random(seed)
    made: dict[str, dict[int, float]] = {"one": {}, "two": {}}
    for block, host in HOSTS.items():
        made["one"][block] = SPEED[host] * math.exp(dice.gauss(0, spread))
        made["two"][block] = SPEED[host] * ratio[host] * math.exp(dice.gauss(0, spread))
    return made


def test_an_interval_by_hand() -> None:
    groups = [[0.10, 0.12], [0.20, 0.22], [0.30, 0.34]]
    mean, low, high, spread = of_means(groups, 0.95)
    assert mean == pytest.approx((0.11 + 0.21 + 0.32) / 3)
    inside = math.sqrt((2 * 0.01**2 + 2 * 0.01**2 + 2 * 0.02**2) / 3)
    assert spread == pytest.approx(inside)
    half = student(0.975, 3) * inside * math.sqrt(3 / 2) / 3
    assert (low, high) == pytest.approx((mean - half, mean + half))


def test_hosts_count_the_same_however_many_blocks_they_did() -> None:
    a = {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0, 5: 8.0}
    hosts = {1: "fast", 2: "fast", 3: "fast", 4: "fast", 5: "slow"}
    ratio = paired(a, dict.fromkeys(a, 1.0), hosts=hosts)
    assert ratio is not None and ratio.mean == pytest.approx(4.0)
    assert ratio.by_host == pytest.approx({"fast": 2.0, "slow": 8.0})
    # Four against one would say 2.6, and that the third arm is the best.
    third = dict.fromkeys(a, 3.0)
    assert leader({"a": a, "third": third}, hosts) == "third" and leader({"a": a, "third": third}) == "a"


def test_one_block_on_each_host_has_no_interval() -> None:
    ratio = paired({1: 2.0, 2: 2.1}, {1: 1.0, 2: 1.0}, hosts={1: "a", 2: "b"})
    assert ratio is not None and not ratio.known and ratio.n == 2
    assert ratio.to_json() == {"n": 2, "mean": ratio.mean}


def test_what_all_hosts_show_is_known_though_they_differ() -> None:
    found = decide(values({"a": 1.3, "b": 1.2, "c": 1.4}), hosts=HOSTS, looks=6)
    assert found is not None and found.verdict == "resolved" and found.leader == "one"
    ratio = found.others[0].ratio
    assert ratio is not None and ratio.without_one is not None and ratio.without_one[0] > 1
    json.dumps(outcome("time", found, "settled", {}), allow_nan=False)


def test_a_layout_that_wins_on_one_host_alone_is_not_the_winner() -> None:
    made = values({"a": 1.5, "b": 1.0, "c": 1.0})
    without = decide(made, looks=6)
    assert without is not None
    found = decide(made, hosts=HOSTS, looks=6)
    assert found is not None and found.verdict == "open" and found.leader == "one"
    other = found.others[0]
    assert other.ratio is not None and other.ratio.low > 1  # all hosts together would have called it worse
    assert (other.standing, other.only_on) == ("open", "a")
    said = outcome("time", found, "blocks", {"one": "16K", "two": "8K"})
    assert "that it is better than 8K rests on a alone" in sentence(said, 0.02)
    json.dumps(said, allow_nan=False)


def test_hosts_that_contradict_each_other_are_not_equal() -> None:
    made = values({"a": 1.1, "b": 1 / 1.1, "c": 1.0}, spread=0.001)
    found = decide(made, hosts=HOSTS)
    assert found is not None and found.others[0].standing == "open"
    same = decide(values({"a": 1.0, "b": 1.001, "c": 0.999}, spread=0.001), hosts=HOSTS)
    assert same is not None and same.verdict == "equal"


def test_the_same_against_the_same_is_not_called_different() -> None:
    wrong = 0
    for seed in range(300):
        found = decide(values({"a": 1.0, "b": 1.0, "c": 1.0}, spread=0.05, seed=seed), hosts=HOSTS)
        wrong += found is not None and found.verdict == "resolved"
    assert wrong <= 15 + 2 * math.sqrt(300 * 0.05 * 0.95)
