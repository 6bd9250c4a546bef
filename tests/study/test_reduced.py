"""Taking out of a study what can't be built or told."""

from __future__ import annotations

from ztune.study import Study, generic
from ztune.study.reduced import merged, noted, without


def study() -> Study:
    raw = generic.build({"data", "wal", "temp"}).to_json()
    raw["cross"] = [["data.recordsize", "wal.recordsize", "data.compression"]]
    raw["layouts"] = [
        {"name": "tuned", "set": {"data.recordsize": "16K", "wal.recordsize": "1M"}},
        {"name": "log", "set": {"wal.logbias": "throughput"}},
    ]
    return Study.model_validate(raw)


def test_values_and_axes_go_with_the_layouts_that_set_them() -> None:
    left = without(study(), {"wal.recordsize": None, "data.recordsize": ["8K"]}, "why")
    assert "wal.recordsize" not in left.axes and "8K" not in left.axes["data.recordsize"]
    assert left.cross == (("data.recordsize", "data.compression"),)
    assert [named.name for named in left.layouts] == ["log"]
    assert left.notes == ("why",) and left.profiles.keys() == study().profiles.keys()
    kept = without(study(), {"wal.recordsize": None}, "why", layouts=False)
    assert [named.name for named in kept.layouts] == ["tuned", "log"]


def test_merged_roles_have_the_first_one_s_dataset() -> None:
    left = merged(study(), [{"wal", "data"}], "why")
    assert [dataset.roles for dataset in left.layout.datasets] == [("data", "wal"), ("temp",)]
    assert not any(key.startswith("wal.") for key in left.axes) and "temp.recordsize" in left.axes
    assert left.cross == (("data.recordsize", "data.compression"),)
    assert [(named.name, dict(named.set)) for named in left.layouts] == [
        ("tuned", {"data.recordsize": "16K"})
    ]
    assert merged(study(), [{"wal", "index"}], "why").layout == study().layout


def test_a_note_stands_once() -> None:
    assert noted(noted(study(), ["a", "b"]), ["b", "c"]).notes == ("a", "b", "c")
