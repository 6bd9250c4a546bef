"""What nobody has declared is set apart, compared among its like, and promised nothing of."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import measured_trials
from evidence import layouts, manifest, run, trials

from ztune.advice.commands import script
from ztune.advice.recommend import recommend
from ztune.analysis.standing import standing
from ztune.onhost.declared import Declared
from ztune.output import Console
from ztune.report import brief, html, terminal
from ztune.runs import stopping
from ztune.runs.options import TrialOptions
from ztune.study import Layout
from ztune.study.layout import with_settings
from ztune.trace.witness import Witness

PROMISE = "A power cut loses nothing that the database has acknowledged"


def undeclared(found: list[Layout], declared: Declared | None = None) -> list[Layout]:
    """Return the layouts of a database of which nobody has declared anything."""
    return [replace(one, declared=declared or Declared()) for one in found]


def shown(recommendation: Any) -> str:
    out = io.StringIO()
    terminal.show(recommendation, Console(file=out, width=200), top=None)
    return out.getvalue()


def test_a_setting_that_nobody_declared_is_set_apart_however_fast() -> None:
    base, *others = layouts()
    odd = with_settings(base, {"database.flush_policy": "everysec"}, "odd")
    fast = trials([base, *others, odd])
    measure = next(t for t in fast if t.layout_name == "odd").measure
    measure["model"]["modelled_s"] /= 100
    r = recommend(run(), fast, manifest=manifest())
    assert r.layout_name != "odd" and "odd" not in [row.layout for row in r.ranking]
    [row] = [row for row in r.set_apart if row.layout == "odd"]
    assert row.durability == "not-known" and row.rank is None
    assert "weaker or not known" in r.weaker and "flush_policy=everysec: nobody has declared" in r.weaker
    text = shown(r)
    assert "not known: not comparable" in text and r.durability.sentence.startswith(PROMISE)


def test_layouts_of_an_undeclared_database_are_compared_among_themselves() -> None:
    known = recommend(run(), trials(layouts()), manifest=manifest())
    found = undeclared(layouts())
    r = recommend(run(), trials(found), manifest=manifest())
    # The same order as if all were known; what weakens ZFS's side is set apart as ever.
    assert [row.layout for row in r.ranking] == [row.layout for row in known.ranking]
    assert [row.layout for row in r.set_apart] == [row.layout for row in known.set_apart]
    assert r.layout_name == known.layout_name
    assert {row.durability for row in r.ranking} == {"not-known"}
    assert r.durability.sentence == "What a power cut loses is not known: nobody has declared it."
    page = html.render(run(), trials(found), r, None, "no trace")
    for text in (shown(r), page, script(r), r.model_dump_json()):
        assert PROMISE not in text and "nobody has declared" in text


def test_at_80_columns_a_durability_stands_in_the_row_of_its_layout() -> None:
    replayed = recommend(run(), trials(undeclared(layouts())), manifest=manifest())
    out = io.StringIO()
    Console(file=out, width=80).print(terminal.ranking(replayed, None))
    found = [line for line in out.getvalue().splitlines() if "not-known" in line and "crash" not in line]
    rows = [*replayed.ranking, *replayed.to_buy, *replayed.set_apart]
    assert len(found) == sum(row.durability == "not-known" for row in rows)
    assert all(re.match(r" *[\d–]+  [a-z]", line) and line.rstrip().endswith("iB") for line in found)


def test_a_known_layout_does_not_stand_beside_one_that_is_not() -> None:
    base, other, *_ = layouts()
    r = recommend(run(), trials([*undeclared([base]), other]), manifest=manifest())
    assert [row.layout for row in r.ranking] == ["base"]
    assert [row.layout for row in r.set_apart] == [other.name]


def test_a_failed_baseline_still_says_what_is_compared() -> None:
    base, one, two, *_ = undeclared(layouts())
    found = trials([base, one, two])
    found[0] = type(found[0])(**{**vars(found[0]), "status": "failed", "result": None, "error": "no room"})
    r = recommend(run(), found, manifest=manifest())
    assert {row.layout for row in r.ranking} == {one.name, two.name}


def test_measured_layouts_too() -> None:
    plain = Declared()
    base, good, odd = (
        replace(measured_trials.layout(name, **changes), declared=plain)
        for name, changes in (
            ("base", {}), ("good", {"data__recordsize": "8K"}), ("odd", {"database__appendfsync": "no"}),
        )
    )  # fmt: skip
    found = measured_trials.trials(
        [(base, {"seconds": 0.01}), (good, {"seconds": 0.008}), (odd, {"seconds": 0.001})], 4
    )
    asked = measured_trials.run()
    now = standing(asked, found)
    assert [(p.rank, p.result.name) for p in now.places] == [(1, "good"), (2, "base"), (None, "odd")]
    judged = stopping.judge(asked, found, TrialOptions())
    assert judged is not None and judged[1].leader == good.hash
    assert odd.hash not in [other.arm for other in judged[1].others]
    r = recommend(asked, found)
    assert r.durability.klass == "not-known" and PROMISE not in r.model_dump_json()


def test_a_trace_that_contradicts_the_promise_is_quoted() -> None:
    said = Witness(operations=5000, unit="transaction", clients=2, writes=5000, log=True, syncs=1)
    r = recommend(run(), trials(), manifest=manifest(), witness=said)
    assert r.durability.klass == "nothing-acknowledged"
    assert r.durability.sentence == (
        "By its settings a power cut loses nothing that the database has acknowledged, but the trace "
        "contradicts it: 5,000 transactions were acknowledged and 5,000 writes made with 1 sync."
    )
    page = html.render(run(), trials(), r, None, "")
    for text in (" ".join(shown(r).split()), page):
        assert "5,000 transactions were acknowledged" in text and PROMISE not in text
    # The first screen has it too, behind the dangers and what comes with a change.
    assert r.durability.sentence in [one.text for one in brief.warnings(r)]
    assert PROMISE not in str([one.text for one in brief.warnings(recommend(run(), trials()))])
    # Where nothing is promised there is nothing to contradict.
    unknown = recommend(run(), trials(undeclared(layouts())), manifest=manifest(), witness=said)
    assert unknown.durability.sentence.startswith("What a power cut loses is not known")
