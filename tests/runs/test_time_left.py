"""How long the rest takes, and where nothing tells."""

from __future__ import annotations

from ztune.runs.pace import TimeLeft


def test_replays_go_by_those_before_them() -> None:
    pace = TimeLeft()
    assert pace.left_s(3, [("load", 0.5, 3.0)]) is None
    pace.add({}, 10.0)
    assert pace.left_s(3, [("load", 0.5, 3.0)], at_once=2) == (3 * 10 + 5) / 2


def test_nothing_tells_how_long_a_replay_ages_its_pools() -> None:
    pace = TimeLeft()
    pace.add({}, 10.0)
    assert pace.left_s(3, [("measure", 0.5, 3.0), ("age", 0.1, 3.0)]) is None
    # Trials know how long their steps take.
    measured = TimeLeft()
    measured.add({"load": 1.0, "age": 5.0, "measure": 4.0}, 10.0)
    assert measured.left_s(0, [("age", 0.0, 3.0)]) is not None


def test_a_replay_that_takes_longer_than_the_others_tells_its_own_time() -> None:
    pace = TimeLeft()
    pace.add({}, 10.0)
    assert pace.left_s(0, [("measure", 0.5, 6.0)]) == 5
    assert pace.left_s(0, [("measure", 0.25, 60.0)]) == 180
    assert pace.left_s(0, [("measure", 0.0, 60.0)]) == 10
