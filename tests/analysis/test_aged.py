"""Whether the choice changes on an aged pool: said, and no more than is known."""

from __future__ import annotations

from typing import Any

import evidence as ev
import pytest

from ztune.advice.recommend import recommend
from ztune.analysis.standing import standing
from ztune.report import brief, terminal
from ztune.store.records import Trial
from ztune.study.layout import parse_layout, with_settings

BASE = parse_layout(ev.base_layout())


def trials(times: dict[tuple[str, str], float | None]) -> list[Trial]:
    """Return a trial for each (record size, age) and its seconds; None: it failed."""
    out = []
    for n, ((size, age), seconds) in enumerate(times.items(), 1):
        changes = {**({} if size == "base" else {"data.recordsize": size}), "age": age}
        layout = with_settings(BASE, changes, f"{size} {age}".removesuffix(" new"))
        measure: dict[str, Any] = {
            "model": {"modelled_s": seconds, "trace_s": 60.0},
            "space": {"allocated": 1e9, "logical": 2e9},
            "physical": {"write_bytes": 1e9},
        }
        base = size == "base" and age == "new"
        if seconds is None:
            out.append(ev.trial(layout, n, None, "failed", error="the age can't fit", baseline=base))
        else:
            out.append(ev.trial(layout, n, measure, baseline=base))
    return out


YOUNG: dict[tuple[str, str], float | None] = {
    ("base", "new"): 20.0,
    ("8K", "new"): 10.0,
    ("16K", "new"): 14.0,
}


USED = "on a pool that is used (80 % full, rewritten 5 times)"
HELD = (
    f"The choice does not change with age: {USED}, the order of the best 3 is the same; 8K comes to 12.0 s "
    "there, and without that age to 10.0 s."
)
TURNED = f"The choice changes with age: {USED}, 16K is better with 15.0 s; 8K comes to 21.0 s there"


@pytest.mark.parametrize(
    ("base", "small", "large", "said"),
    [
        (22.0, 12.0, 15.0, HELD),
        (13.0, 12.0, 15.0, "no other of the best is better"),
        (22.0, 21.0, 15.0, TURNED),
        (22.0, None, 15.0, "is not known. 8K used has no result there: the age can't fit."),
    ],
)
def test_what_age_does_is_said(base: float, small: float | None, large: float, said: str) -> None:
    found = trials({**YOUNG, ("base", "used"): base, ("8K", "used"): small, ("16K", "used"): large})
    r = recommend(ev.run(), found)
    assert len(r.aged) == 1 and said in r.aged[0], r.aged
    # An aged pool is another question: it neither ranks nor is recommended.
    assert r.layout_name == "8K" and len(r.ranking) == 3 and not r.failed
    assert all("age" not in change.setting for change in r.changes)
    assert standing(ev.run(), found).found.pending == 0


def test_nothing_is_said_without_aged_trials() -> None:
    r = recommend(ev.run(), trials(YOUNG))
    assert r.aged == []
    assert "age" not in str(terminal.ranking(r))


def test_an_age_that_was_tried_is_not_called_untested() -> None:
    found = trials({**YOUNG, ("base", "used"): 22.0, ("8K", "used"): 12.0, ("16K", "used"): 15.0})
    said = recommend(ev.run(), found).not_tested
    assert "Pools of other ages than these: new; used (80 % full, rewritten 5 times)." in said
    assert any(text.startswith("An aged pool:") for text in recommend(ev.run(), trials(YOUNG)).not_tested)


def test_the_first_screen_has_the_age_at_which_the_choice_changes() -> None:
    used = {("base", "used"): 22.0, ("8K", "used"): 12.0, ("16K", "used"): 15.0}
    old = {("base", "old"): 33.0, ("8K", "old"): 31.0, ("16K", "old"): 15.0}
    said = brief.of(recommend(ev.run(), trials({**YOUNG, **used, **old}))).aged
    assert said is not None and said.more == 1
    assert said.text.startswith("The choice changes with age: on a pool that is old")
