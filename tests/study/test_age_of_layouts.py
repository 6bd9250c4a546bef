from __future__ import annotations

from dataclasses import replace

import pytest

from ztune.onhost.age import FILLER, NAMED, Age, age_table
from ztune.onhost.fields import from_json
from ztune.onhost.layout import Layout
from ztune.places.engine_spec import aged, engine_spec
from ztune.runs.search import LayoutSearch
from ztune.runs.space import describe, first_round
from ztune.study import default_setting, generic
from ztune.study.layout import parse_layout, with_settings
from ztune.study.study import Study

BASE = generic.build({"data", "wal"}).layout


@pytest.mark.parametrize(
    "text", [*NAMED, "fill 50% rewrites 3", "rewrites 2 snapshots 1 clones 1 write 16K", "fill 20%"]
)
def test_an_age_survives_being_written(text: str) -> None:
    layout = with_settings(BASE, {"age": text})
    assert layout.settings().get("age", "new") == text
    assert parse_layout(layout.to_json()) == layout
    assert from_json(Layout, layout.to_json()) == layout
    assert describe(BASE, layout) == (BASE.name if text == "new" else f"age={text}")


def test_a_new_layout_is_what_it_was_before_there_were_ages() -> None:
    assert with_settings(BASE, {"age": "new"}).hash == BASE.hash
    assert "age" not in BASE.to_json() and "age" not in BASE.settings() and default_setting("age") == "new"
    assert age_table({"fill": "0%", "rewrites": 0}) is None
    old = with_settings(BASE, {"age": "used"})
    # Clones came later: an age without any is what it was.
    assert old.hash != BASE.hash and "clones" not in old.canonical()["age"]


@pytest.mark.parametrize(
    ("age", "said"),
    [
        ("rewrites 2 snapshots 1 clones 2", "2 clones are made of 1 snapshots"),
        ("clones 1", "1 clones are made of 0 snapshots"),
        ({"rewrites": 2, "snapshots": 1, "clones": -1}, '"-1" is not a whole number'),
    ],
)
def test_clones_are_made_of_snapshots(age: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        with_settings(BASE, {"age": age})


def test_a_clone_has_a_name_of_its_own() -> None:
    table = BASE.to_json()
    table["dataset"][0]["name"] = "tank/ztune-clone-1-0"
    with pytest.raises(ValueError, match="tank/ztune-clone-1-0 is the name of a clone"):
        parse_layout({**table, "age": "used"})


def test_one_key_of_an_age_changes_alone() -> None:
    layout = with_settings(with_settings(BASE, {"age": "used"}), {"age.fill": "90%"})
    assert layout.age == replace(NAMED["used"] or Age(), fill=90)


def test_ext4_has_no_age() -> None:
    with pytest.raises(ValueError, match="pool tank is ext4; an age is one of ZFS pools alone"):
        with_settings(BASE, {"pool.tank.filesystem": "ext4", "age": "used"})


def test_what_fills_a_pool_is_a_dataset_of_the_engine_alone() -> None:
    study = generic.build({"data", "wal"})
    old = with_settings(BASE, {"age": "used"})
    names = {d["name"]: d.get("filler", False) for d in engine_spec(study, old, 1)["datasets"]}
    assert names == {"tank/data": False, "tank/wal": False, f"tank/{FILLER}": True}
    assert [d.name for d in old.datasets] == ["tank/data", "tank/wal"]
    assert not with_settings(BASE, {"age": "rewrites 2"}).fillers()


@pytest.mark.parametrize(
    ("shape", "bytes_", "each"),
    [
        ("hdd-7200", 100 << 20, 2 << 30),
        ("hdd-7200", 1 << 30, 4 << 30),
        ("mirror 2 hdd-7200", 1 << 30, 4 << 30),
        ("2 hdd-7200", 1 << 30, 2 << 30),
        ("raidz2 4 hdd-7200", 1 << 30, 2 << 30),
        ("hdd-7200:8G", 1 << 30, 8 << 30),
    ],
)
def test_an_aging_pool_is_cut_to_its_database_and_its_disk_is_not(shape: str, bytes_: int, each: int) -> None:
    study = generic.build({"data", "wal"})
    old = with_settings(BASE, {"age": "used", "pool.tank.data": shape})
    spec = aged(engine_spec(study, old, 1), old, {"tank/data": bytes_ // 2, "tank/wal": bytes_ // 2})
    disks = [d for v in spec["pools"][0]["vdevs"] for d in v["disks"]]
    assert {d["size"] for d in disks} == {each}
    whole = study.profiles["hdd-7200"].size
    assert {d.get("span", d["size"]) for d in disks} == {each if ":" in shape else whole}


def test_an_age_is_no_choice() -> None:
    raw = generic.build({"data"}).to_json()
    study = Study.model_validate({**raw, "axes": {**raw["axes"], "age": ["used", "old"]}})
    assert all(layout.age is None for layout in first_round(study))
    search = LayoutSearch(study, lambda layout: True)
    assert all(search.layout(cell).age is None for cell in search.space.cells())
