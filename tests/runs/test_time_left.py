"""How long the rest takes, and where nothing tells."""

from __future__ import annotations

from ztune.runs.pace import TimeLeft


def test_replays_go_by_those_before_them() -> None:
    pace = TimeLeft()
    assert pace.left_s(3, [("load", 0.5)]) is None
    pace.add({}, 10.0)
    assert pace.left_s(3, [("load", 0.5)], at_once=2) == (3 * 10 + 5) / 2


def test_nothing_tells_how_long_a_replay_ages_its_pools() -> None:
    pace = TimeLeft()
    pace.add({}, 10.0)
    assert pace.left_s(3, [("measure", 0.5), ("age", 0.1)]) is None
    # Trials know how long their steps take.
    measured = TimeLeft()
    measured.add({"load": 1.0, "age": 5.0, "measure": 4.0}, 10.0)
    assert measured.left_s(0, [("age", 0.0)]) is not None
