"""The space of layouts under which a timed job did more or less, so that its files are larger or smaller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from measured_trials import layout, result, run, trials

from ztune.advice.recommend import recommend
from ztune.analysis.results import collect
from ztune.analysis.same_files import space
from ztune.analysis.verdict import judge, outcome
from ztune.onhost.layout import Layout
from ztune.store.records import Trial

MIB = 1 << 20
BASE, FAST = layout("base"), layout("fast", data__recordsize="8K")


def done(operations: int, data: float, wal: float, ratio: float = 0.5, roles: Any = None) -> dict[str, Any]:
    """A trial that left files of so many MiB, which take ``ratio`` of it and 1 MiB of the pool's own."""
    made = result(operations=operations)
    rows: list[dict[str, Any]] = [
        {"roles": list(names), "files": int(size * MIB), "used": int(size * MIB * ratio)}
        for names, size in zip(roles or (("data",), ("wal",)), (data, wal), strict=True)
    ]
    made["measure"]["space"] |= {"allocated": sum(row["used"] for row in rows) + MIB, "by_dataset": rows}
    return made


def test_space_is_that_of_the_files_that_the_base_has() -> None:
    base = done(1000, 100, 20)
    # Ten times the rows: 360 MiB more of data, and a log that is no larger.
    found = space(done(10_000, 460, 20), base)
    assert found == pytest.approx(60 * MIB * 241 / 240)  # and its share of the pool's own
    # A layout that packs twice as tight is told from one that does not.
    assert space(done(10_000, 460, 20, 0.25), base) == pytest.approx(30 * MIB * 121 / 120)


def test_files_of_roles_that_share_a_dataset_in_one_of_them_are_taken_together() -> None:
    shared = done(10_000, 480, 0, roles=(("data", "wal"), ("temp",)))
    assert space(shared, done(1000, 100, 20)) == pytest.approx(60 * MIB * 241 / 240)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (done(1010, 130, 20), done(1000, 100, 20)),  # the same work: what differs is the layout's
        (result(operations=2000), done(1000, 100, 20)),  # an older result says nothing of its files
        (done(2000, 130, 20), {"measure": {}}),
    ],
)
def test_what_did_the_same_or_is_not_known_stays_as_it_is(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert space(one, other) is None


def measured(chosen: Layout, made: dict[str, Any]) -> list[Trial]:
    """Three blocks of the base and ``chosen``, which did ten times as much and has these files."""
    found = trials([(BASE, {}), (chosen, {"seconds": 0.001})], 3)
    for trial in found:
        space_of = done(1000, 100, 20) if trial.is_baseline else made
        assert trial.result is not None
        for part in ("job", "measure"):
            trial.result[part]["operations"] = space_of[part]["operations"]
        trial.result["measure"]["space"] = space_of["measure"]["space"]
    return found


def test_a_faster_layout_is_not_called_larger() -> None:
    found = collect(measured(FAST, done(10_000, 460, 20)), "measured")
    base, fast = found.layouts
    assert base.value("space") == base.value("space_all") == 61 * MIB
    assert fast.value("space_all") == 241 * MIB and fast.value("space") == pytest.approx(60.25 * MIB)
    assert fast.against["space"].mean == pytest.approx(60.25 / 61)
    made = run(options={"blocks": [3, 3], "resolution": 0.02})
    answer = judge(made, found, 0.02, 1)
    assert answer is not None
    made = replace(made, outcome=outcome(*answer, "blocks", {c.arm: c.name for c in found.layouts}))
    said = recommend(made, measured(FAST, done(10_000, 460, 20)))
    (figure,) = (h.side for h in said.headlines if h.name == "space")
    assert figure.metric == "space" and not figure.matters and figure.other == pytest.approx(60.25 * MIB)
    (cost,) = (c for c in said.costs if c.subject == "space")
    assert cost.sentence == (
        "241 MiB allocated at the end, 60.2 MiB for the files that the base layout had then: "
        "it did more or less."
    )


def test_a_job_with_other_settings_has_files_of_its_own() -> None:
    other = layout("pages", database__page_size="65536")
    (_, found) = collect(measured(other, done(10_000, 460, 20)), "measured").layouts
    assert found.value("space") == 241 * MIB
