"""What of a study can't come to anything is said before its first layout is tried."""

from __future__ import annotations

import pytest

from ztune.errors import InputError
from ztune.runs import feasible
from ztune.study import Study, advised, generic
from ztune.study.advised import REPLAY


def with_checksum(value: str, axes: dict[str, list[str]]) -> Study:
    raw = generic.build({"data"}).to_json()
    raw["layout"]["dataset"][0]["properties"]["checksum"] = value
    return Study.model_validate({**raw, "axes": axes, "cross": [], "profiles": {}})


def test_a_space_in_which_nothing_can_be_recommended_is_refused() -> None:
    with pytest.raises(InputError, match=r"each has checksum=off"):
        feasible.check(with_checksum("off", {"data.recordsize": ["8K"]}), 10)
    assert feasible.check(with_checksum("off", {"data.checksum": ["on"]}), 10) == []


def test_a_budget_that_leaves_settings_untried_is_said() -> None:
    study = generic.build({"data"})
    settings = len(study.axes)
    assert feasible.check(study, settings + 1) == []
    (said,) = feasible.check(study, settings)
    assert f"The budget of {settings} is small" in said and f"varies {settings} settings" in said
    # A value that the base has takes no layout.
    assert feasible.check(with_checksum("on", {"data.checksum": ["on"]}), 1) == []


def test_advice_for_which_there_is_no_room_is_said() -> None:
    study = advised.beside(generic.build({"data", "wal"}), ["openzfs-guide"], "postgresql", REPLAY).study
    (said,) = [text for text in feasible.check(study, 1) if "no room for" in text]
    assert "no room for advice:openzfs-guide:" in said and "--budget 2 or more tries all advice" in said
    assert not any("no room for" in text for text in feasible.check(study, 2))
