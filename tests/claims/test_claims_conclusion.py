"""What trials say of a claim, in one word and a sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from claims_made import made
from hypothesis import given
from hypothesis import strategies as st

from ztune.analysis.paired import paired
from ztune.claims.claim import Claim, Relation
from ztune.claims.conclusion import Compared, Conclusion, Condition, Tried, Word, conclude, flips, state
from ztune.claims.support import Support, Supported, against

NOT_ENOUGH = Support(Supported.NOT_ENOUGH, "it has no figures")


def tried(
    *intervals: tuple[float, float], profile: str = "hdd-7200", arc: int = 64 << 20, openzfs: str = "2.3.2",
    smallest: float = 0.02, untried: str = "", place: str = "mount", **more: Any,
) -> Tried:  # fmt: skip
    compared = tuple(
        Compared(other, math.sqrt(low * high) if low * high else 1.0, low, high)
        for other, (low, high) in zip("bcde", intervals, strict=False)
    )
    return Tried(
        Condition(place, profile, arc, openzfs), compared, smallest, (f"t-{profile}-{arc >> 20}",), untried,
        **more,
    )  # fmt: skip


def less() -> Claim:
    return made("less", [90, 100])


FASTER, SAME, SLOWER, WIDE = (0.7, 0.8), (0.995, 1.01), (1.2, 1.3), (0.9, 1.1)


def found(*all_tried: Tried, support: Support = NOT_ENOUGH) -> Conclusion:
    return conclude(less(), support, all_tried)


@pytest.mark.parametrize(
    ("relation", "more", "intervals", "expected"),
    [
        ("less", {}, [FASTER], "holds"),
        ("less", {}, [SAME], "fails"),
        ("less", {}, [(0.99, 0.995)], "fails"),  # told from none, but it does not matter
        ("less", {}, [SLOWER], "fails"),
        ("less", {}, [WIDE], "open"),
        ("less", {"at_least": 0.2}, [(0.7, 0.79)], "holds"),
        ("less", {"at_least": 0.2}, [(0.85, 0.9)], "fails"),
        ("less", {"at_least": 0.2}, [(0.75, 0.9)], "open"),
        ("more", {}, [SLOWER], "holds"),
        ("more", {}, [FASTER], "fails"),
        ("more", {}, [SAME], "fails"),
        ("more", {"at_least": 0.5}, [(1.2, 1.3)], "fails"),
        ("more", {"at_least": 0.1}, [(1.2, 1.3)], "holds"),
        ("equal", {"within": 0.05}, [SAME], "holds"),
        ("equal", {"within": 0.05}, [FASTER], "fails"),
        ("equal", {"within": 0.05}, [(1.0, 1.2)], "open"),
        ("less", {}, [FASTER, SLOWER], "fails"),
        ("less", {}, [FASTER, WIDE], "open"),
        ("less", {}, [(0.0, math.inf)], "open"),  # a single run
        ("best", {}, [SAME, FASTER], "holds"),
        ("best", {}, [SAME, SAME], "fails"),
        ("best", {}, [FASTER, SLOWER], "fails"),
        ("best", {}, [FASTER, WIDE], "open"),
        ("best", {}, [SAME, (0.96, 1.01)], "open"),
        ("less", {}, [], "untried"),
    ],
)
def test_under_one_condition(
    relation: Relation, more: dict[str, float], intervals: list[tuple[float, float]], expected: str
) -> None:
    claim = made(relation, [1.0] * (len(intervals) + 1 or 2), more)
    assert state(claim, tried(*intervals)) == expected


@pytest.mark.parametrize(
    ("relation", "more", "ratio", "expected"),
    [
        ("less", {}, 0.85, "holds"),
        ("less", {}, 0.95, "open"),  # no replay is that exact
        ("less", {}, 1.0, "fails"),  # not a byte differs
        ("less", {}, 1.05, "open"),
        ("less", {}, 1.2, "fails"),
        ("less", {"at_least": 0.3}, 0.75, "open"),
        ("less", {"at_least": 0.3}, 0.6, "holds"),
        ("more", {}, 1.05, "open"),
        ("more", {}, math.inf, "holds"),
        ("more", {}, 0.0, "fails"),
        ("equal", {"within": 0.05}, 1.01, "open"),
        ("equal", {"within": 0.2}, 1.05, "holds"),
        ("equal", {"within": 0.05}, 1.0, "holds"),
        ("equal", {"within": 0.05}, 1.3, "fails"),
        ("best", {}, 0.8, "holds"),
        ("best", {}, 0.95, "open"),
        ("best", {}, 1.05, "open"),
        ("best", {}, 1.0, "fails"),
        ("best", {}, 1.2, "fails"),
    ],
)
def test_a_replay_tells_no_less_than_it_can(
    relation: Relation, more: dict[str, float], ratio: float, expected: str
) -> None:
    exact = replace(tried(smallest=0.1), compared=(Compared("b", ratio, ratio, ratio),))
    assert state(made(relation, [1.0, 1.0], more), exact) == expected


def test_where_it_flips() -> None:
    said = found(tried(FASTER), tried(SAME, profile="nvme"), tried(WIDE, profile="ssd-sata"))
    assert flips(said) == (
        "holds with disks of hdd-7200; does not with disks of nvme; too small to tell with disks of ssd-sata"
    )
    assert flips(found(tried(FASTER), tried(profile="nvme", untried="no room"))) == ""


def test_blocks_of_trials_become_a_comparison() -> None:
    ratio = paired({1: 0.75, 2: 0.76, 3: 0.74}, dict.fromkeys((1, 2, 3), 1.0))
    assert ratio is not None
    each = Compared.of("b", ratio)
    assert each.low < 0.74 < each.ratio < 0.76 < each.high
    assert state(less(), replace(tried(), compared=(each,))) == "holds"


def test_a_layout_that_was_not_compared_leaves_it_open() -> None:
    claim = made("less", [1, 1, 1])
    assert state(claim, tried(FASTER)) == "open"
    assert state(claim, tried(SLOWER)) == "fails"
    with pytest.raises(ValueError, match="compares nothing with c"):
        state(less(), tried(FASTER, FASTER))


def test_the_best_of_a_rate_is_the_highest() -> None:
    claim = made("best", [1, 1, 1], {"metric": "per_second"})
    assert state(claim, tried(SLOWER, SAME)) == "holds"
    assert state(claim, tried(FASTER, SAME)) == "fails"


def test_it_holds_under_every_condition() -> None:
    said = found(tried(FASTER), tried(FASTER, profile="nvme"))
    assert said.word is Word.HOLDS
    assert said.sentence == (
        "It holds under all 2 conditions tried: measured on a mount, disks of hdd-7200, an ARC of 64M, "
        "OpenZFS 2.3.2: 25.2% less than b (0.70 … 0.80) [t-hdd-7200-64]."
    )
    assert said.trials == ("t-hdd-7200-64", "t-nvme-64")


def test_it_holds_only_on_some_disks() -> None:
    said = found(
        tried(FASTER), tried(FASTER, arc=256 << 20), tried(SAME, profile="nvme"),
        tried(SLOWER, profile="nvme", arc=256 << 20), tried(WIDE, profile="ssd-sata"),
    )  # fmt: skip
    assert said.word is Word.ONLY_IF
    assert said.sentence.startswith("It holds only with disks of hdd-7200: measured on a mount, ")
    assert "It does not hold with disks of nvme: " in said.sentence
    assert said.sentence.endswith("It is too small to tell with disks of ssd-sata.")


def test_two_factors_are_named_where_one_does_not_tell() -> None:
    said = found(
        tried(FASTER), tried(SAME, arc=256 << 20), tried(SAME, profile="nvme"),
        tried(SAME, profile="nvme", arc=256 << 20),
    )  # fmt: skip
    assert said.sentence.startswith("It holds only with disks of hdd-7200, an ARC of 64M: ")


def test_conditions_are_named_in_few_words() -> None:
    said = found(
        *(tried(FASTER, arc=arc << 20) for arc in (64, 256)),
        *(tried(FASTER if arc == 64 else SAME, profile=p, arc=arc << 20)
          for p in ("ssd-sata", "nvme") for arc in (64, 256)),
    )  # fmt: skip
    assert said.sentence.startswith(
        "It holds only with disks of hdd-7200 or with disks of ssd-sata or nvme, an ARC of 64M: "
    )
    assert "It does not hold with disks of ssd-sata or nvme, an ARC of 256M: " in said.sentence


def test_ratios_in_words() -> None:
    assert against(1.0, "X") == "as much as X"
    assert against(0.5, "X") == "50.0% less than X"
    assert against(2.13, "X") == "2.1 times that of X"
    assert against(1505.0, "X") == "1,505 times that of X"


def test_an_upgrade_can_decide() -> None:
    said = found(tried(FASTER, openzfs="2.1.11"), tried(SAME, openzfs="2.4.4"))
    assert "It holds only with OpenZFS 2.1.11: " in said.sentence
    assert "It does not hold with OpenZFS 2.4.4: " in said.sentence


def test_it_does_not_hold_here_is_not_it_was_wrong_then() -> None:
    said = found(tried(SAME), tried(WIDE, profile="nvme"))
    assert said.word is Word.NO_LONGER
    assert said.sentence.startswith("It does not hold here: measured on a mount, disks of hdd-7200, ")
    assert "too small to tell with disks of nvme" in said.sentence
    assert "wrong" not in said.sentence


def test_too_small_to_tell_says_what_could_be_seen() -> None:
    said = found(tried(WIDE))
    assert said.sentence == (
        "Too small to tell: measured on a mount, disks of hdd-7200, an ARC of 64M, OpenZFS 2.3.2: "
        "0.5% less than b (0.90 … 1.10) [t-hdd-7200-64]."
    )
    said = found(
        tried(WIDE, smallest=0.04, place="replay"), tried(WIDE, profile="nvme", smallest=0.09, place="replay")
    )
    assert said.word is Word.TOO_SMALL
    assert said.sentence == "Too small to tell: differences below 9.0% could not be seen here."


def test_what_was_not_tried_is_said() -> None:
    said = found(tried(FASTER), tried(profile="nvme", untried="the disk is full"))
    assert said.word is Word.HOLDS
    assert said.sentence.endswith("1 of 2 conditions were not tried: the disk is full.")


def test_a_difference_that_is_clear_but_perhaps_not_large_enough_is_said() -> None:
    claim = replace(less(), at_least=0.25)
    said = conclude(claim, NOT_ENOUGH, [tried(FASTER)])
    assert said.word is Word.TOO_SMALL
    assert said.sentence.startswith("It goes the way that it says; whether by 25% is too small to tell: ")
    assert conclude(claim, NOT_ENOUGH, [tried((0.7, 1.1))]).sentence.startswith("Too small to tell: ")


def test_it_cannot_be_tested() -> None:
    said = found(tried(untried="mongod is not here"), tried(profile="nvme", untried="mongod is not here"))
    assert (said.word, said.sentence) == (Word.CANNOT, "It can't be tested here: mongod is not here.")
    assert found().word is Word.CANNOT
    gone = replace(less(), cannot="it is gone")
    assert conclude(gone, NOT_ENOUGH, [tried(FASTER)]).sentence == "It can't be tested here: it is gone."


def test_what_its_own_figures_never_showed_comes_first() -> None:
    no = Support(Supported.NO, "a has 0.3% less than b")
    said = found(tried(FASTER), support=no)
    assert said.word is Word.NEVER
    assert said.sentence.startswith(
        "Its own figures do not show it: a has 0.3% less than b. It holds under the one condition tried: "
    )
    assert said.states[0][1] == "holds"
    # The word is of its own figures: no modelled time makes a hint of it.
    assert not found(tried(EXACT[0], profile="nvme", unheld=True, **REPLAY), support=no).hint


INTERVAL = st.tuples(st.floats(0.2, 5), st.floats(1, 3)).map(lambda t: (t[0], t[0] * t[1]))


@given(INTERVAL, st.floats(0, 0.5))
def test_more_is_less_turned_over(interval: tuple[float, float], at_least: float) -> None:
    low, high = interval
    less = made("less", [1, 1], {"at_least": at_least})
    more = made("more", [1, 1], {"at_least": 1 / (1 - at_least) - 1})
    # Rounding may decide at the very bound.
    if not any(math.isclose(x, 1 - at_least, rel_tol=1e-9) for x in interval):
        assert state(less, tried((low, high))) == state(more, tried((1 / high, 1 / low)))


@given(st.lists(INTERVAL, min_size=1, max_size=6))
def test_the_word_agrees_with_the_states(intervals: list[tuple[float, float]]) -> None:
    said = found(*(tried(one, arc=(64 + i) << 20) for i, one in enumerate(intervals)))
    states = {s for _, s in said.states}
    assert (said.word is Word.HOLDS) == (states == {"holds"})
    assert (said.word is Word.NO_LONGER) == ("fails" in states and "holds" not in states)
    assert (said.word is Word.TOO_SMALL) == (states == {"open"})
    assert (said.word is Word.ONLY_IF) == ("holds" in states and len(states) > 1)


@given(INTERVAL)
def test_equal_and_less_never_hold_at_once(interval: tuple[float, float]) -> None:
    equal = state(made("equal", [1, 1], {"within": 0.02}), tried(interval))
    assert not (equal == "holds" and state(less(), tried(interval)) == "holds")


REPLAY: Any = {"place": "replay"}
EXACT = ((0.5, 0.5), (2.0, 2.0))


def test_measured_time_decides_over_modelled_time_of_the_same_disks() -> None:
    said = found(tried(EXACT[0], **REPLAY), tried(SLOWER))
    assert said.word is Word.NO_LONGER and not said.hint
    assert said.sentence.startswith("It does not hold here: measured on a mount, disks of hdd-7200, ")
    assert "By replay, which models time, it holds under the one condition." in said.sentence
    (differ,) = said.disagree
    assert differ == (
        "Measured and modelled disagree with disks of hdd-7200 and an ARC of 64M: 24.9% more than b "
        "(1.20 … 1.30) measured, 50.0% less than b modelled; no modelled time of this claim counts."
    )
    assert differ in said.sentence
    assert len(said.states) == 2 and len(said.trials) == 1
    assert flips(said) == ""


def test_what_was_measured_on_one_disk_says_nothing_of_another() -> None:
    said = found(
        tried((1.25, 1.25), **REPLAY), tried(SLOWER), tried(EXACT[0], profile="nvme", unheld=True, **REPLAY)
    )
    assert said.word is Word.ONLY_IF and not said.hint and not said.disagree
    assert said.sentence.startswith("It holds only with disks of nvme: by replay, disks of nvme, ")
    assert "It does not hold with disks of hdd-7200: measured on a mount" in said.sentence
    assert "What is modelled of flash or of latencies is a hint" in said.sentence
    assert len(said.states) == 3 and len(said.decided) == 2
    assert flips(said) == "holds with disks of nvme; does not with disks of hdd-7200"


def test_no_modelled_time_counts_where_one_contradicts_what_was_measured() -> None:
    nvme = tried(EXACT[0], profile="nvme", unheld=True, **REPLAY)
    said = found(tried(EXACT[0], **REPLAY), tried(SLOWER), nvme)
    assert said.word is Word.NO_LONGER and len(said.decided) == 1 and len(said.disagree) == 1
    # Under another condition, or within what a replay can tell, it contradicts nothing.
    for replay in (tried(EXACT[0], arc=1 << 30, **REPLAY), tried((1.19, 1.19), smallest=0.1, **REPLAY)):
        said = found(replay, tried(SLOWER), nvme)
        assert said.word is Word.ONLY_IF and not said.disagree


def test_what_was_measured_and_not_told_apart_is_too_small_whatever_a_replay_says() -> None:
    said = found(tried(WIDE), tried(EXACT[0], **REPLAY))
    assert said.word is Word.TOO_SMALL and len(said.disagree) == 1
    assert "(0.90 … 1.10)" in said.sentence and "it holds under the one condition" in said.sentence


def test_what_was_measured_is_cited_though_other_disks_were_replayed_before() -> None:
    said = found(tried((0.9, 0.9), profile="nvme", smallest=0.65, **REPLAY), tried(WIDE))
    assert said.word is Word.TOO_SMALL and said.sentence.startswith("Too small to tell: measured on a mount")


def test_counts_of_a_replay_stand_beside_those_of_trials() -> None:
    claim = replace(less(), metric="written")
    said = conclude(claim, NOT_ENOUGH, [tried(FASTER), tried(EXACT[1], profile="nvme", **REPLAY)])
    assert said.word is Word.ONLY_IF


def test_modelled_times_that_nobody_has_held_against_a_disk_are_a_hint() -> None:
    flash = tried(EXACT[0], profile="nvme", unheld=True, **REPLAY)
    said = found(flash)
    assert said.word is Word.HOLDS and said.hint and "That is a hint: nobody has held" in said.sentence
    # A hard disk too small to tell adds nothing; one that tells does.
    assert found(flash, tried(WIDE, **REPLAY)).hint
    said = found(flash, tried(EXACT[0], **REPLAY))
    assert not said.hint and "What is modelled of flash or of latencies is a hint" in said.sentence
    assert not found(tried(EXACT[0], **REPLAY)).hint
    # Measured time is none, whatever stands beside it.
    assert not found(flash, tried(FASTER)).hint


def test_how_far_two_recordings_of_a_job_lie_apart_is_said() -> None:
    known = found(tried(EXACT[0], scatter=0.013, **REPLAY), tried(EXACT[0], scatter=0.02, **REPLAY))
    assert "two of one job lie up to 2.0% apart" in known.sentence
    assert "is not known" in found(tried(EXACT[0], scatter="not known", **REPLAY)).sentence
    assert "recordings" not in found(tried(EXACT[0], **REPLAY)).sentence


def test_the_version_of_openzfs_may_be_what_sets_them_apart() -> None:
    said = found(
        tried(EXACT[0], openzfs="2.1.11", **REPLAY), tried(EXACT[0], openzfs="2.1.11", arc=1 << 30, **REPLAY),
        tried(EXACT[1], openzfs="2.4.4", **REPLAY), tried(EXACT[1], openzfs="2.4.4", arc=1 << 30, **REPLAY),
    )  # fmt: skip
    assert flips(said) == "holds with OpenZFS 2.1.11; does not with OpenZFS 2.4.4"
