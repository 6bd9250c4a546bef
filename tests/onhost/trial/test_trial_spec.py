from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trial_support import make_spec, pool

from ztune.errors import InputError
from ztune.onhost.host import about
from ztune.onhost.trial import spec as specs
from ztune.study.layout import parse_layout

DISKS: dict[str, Any] = {"kind": "disks", "disks": {"main": {"data": [["/dev/sdx"]]}}}


def parse(**changes: Any) -> specs.Spec:
    place = changes.pop("place", DISKS)
    state = changes.pop("state", "/var/tmp/ztune")
    return specs.parse(json.dumps(make_spec(state, place, **changes)))


def test_a_layout_as_the_study_writes_it_is_taken() -> None:
    layout = parse_layout(
        {
            "arc": "128M",
            "pool": [
                {
                    "name": "main",
                    "vdev": [
                        {"kind": "mirror", "disks": 2, "profile": "hdd-7200"},
                        {"class": "log", "profile": "nvme", "size": "16G"},
                    ],
                },
                {"name": "unused", "vdev": [{"profile": "nvme"}]},
            ],
            "dataset": [{"name": "main/db", "roles": ["data", "wal"], "recordsize": "16K"}],
            "tunables": {"zfs_txg_timeout": 10},
        }
    )
    place = {"kind": "disks", "disks": {"main": {"data": [["/dev/a", "/dev/b"]], "log": [["/dev/c"]]}}}
    found = parse(layout=layout.to_json(), place=place)
    assert [p.name for p in found.layout.pools] == ["main"]
    assert found.layout.arc == 128 << 20
    assert found.layout.datasets[0].properties["recordsize"] == "16K"
    assert found.place.disks["main"] == {"data": (("/dev/a", "/dev/b"),), "log": (("/dev/c",),)}
    assert found.directory == Path("/var/tmp/ztune/places/r-test/r-test-0001")
    assert found.home == Path("/var/tmp/ztune/state/r-test/r-test-0001")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": "x"}, 'spec: format: "x" is not "ztune-trial"'),
        ({"version": 2}, "spec: version: 2 is not 1, the one that this program knows"),
        ({"extra": 1}, '"extra" is not a key here'),
        ({"run": "../etc"}, "spec: run: "),
        ({"trial": "a/b"}, "spec: trial: "),
        ({"state": "relative"}, "is not an absolute path without .."),
        ({"state": "/a/../etc"}, "is not an absolute path without .."),
        ({"seed": -1}, "spec: seed: -1 is not a whole number"),
        ({"dilation": float("1e9")}, "spec: dilation: 1e+09 is not a number from 0.001 to 10000"),
        ({"settle": "hot"}, 'spec: settle: "hot" is not one of cold, warm'),
        ({"start": {"kind": "copy"}}, 'spec: start: "from" is missing'),
        ({"start": {"kind": "load", "save": "/x"}}, '"save" does not go with kind load'),
        ({"layout.arc": "64M"}, "spec: layout.arc: "),
        ({"layout.colour": 1}, '"colour" is not a key here'),
        ({"layout.dataset": []}, "is not a list with at least one entry"),
        (
            {"layout.dataset": [{"name": "other/db", "roles": ["data"]}]},
            "pool other, which the layout does not",
        ),
        ({"layout.dataset": [{"name": "main/a b", "roles": ["data"]}]}, "is not a dataset name"),
        ({"layout.dataset": [{"name": "main/-o", "roles": ["Data"]}]}, "is not a role"),
        (
            {"layout.dataset": [{"name": "main/x", "roles": ["data"], "properties": {"mountpoint": "/etc"}}]},
            "mountpoint is the trial's own to set",
        ),
        (
            {
                "layout.dataset": [
                    {"name": "main/x", "roles": ["data"], "properties": {"recordsize": "8K -f"}}
                ]
            },
            "is not a property and its value",
        ),
        (
            {"layout.dataset": [{"name": f"main/{i}", "roles": ["data"]} for i in "ab"]},
            "dataset[1].roles: role data lives on main/a and on main/b; a role has one dataset",
        ),
        ({"layout.pool": [pool(filesystem="btrfs")]}, "is not one of zfs, ext4, xfs"),
        (
            {
                "layout.pool": [
                    pool(filesystem="ext4", vdev=[{"class": "data", "kind": "mirror", "disks": 2}])
                ]
            },
            "pool[0].vdev: pool main is ext4, which takes one disk and nothing else",
        ),
        (
            {
                "layout.pool": [pool(filesystem="ext4")],
                "layout.dataset": [{"name": "main/x", "roles": ["data"], "volume": "1G"}],
            },
            "main/x is on ext4, which has no volumes",
        ),
        ({"layout.tunables": {"../x": 1}}, "is not a module parameter"),
        ({"place": {"kind": "disks", "disks": {}}}, 'pool "main" of the layout has no disks'),
        ({"place": {"kind": "disks", "disks": {"main": {"data": [["sdx"]]}}}}, "is not an absolute path"),
        (
            {"place": {"kind": "disks", "disks": {"main": {"data": [["/dev/a", "/dev/b"]]}}}},
            "does not fit the layout, which has 1 disks there",
        ),
        ({"place": {"kind": "files", "disks": {"main": {"data": [["1G"]]}}}}, '"dir" is missing'),
        (
            {"place": {"kind": "files", "dir": "/x", "disks": {"main": {"data": [["1M"]]}}}},
            "is too small; ZFS takes disks of 64M and more",
        ),
        ({"place": {"kind": "parent", "parents": {}}}, 'pool "main" of the layout has no parent'),
        ({"place": {"kind": "parent", "parents": {"main": "tank@snap"}}}, "is not a dataset name"),
    ],
)
def test_each_fault_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(**changes)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "null", "[" * 100_000])
def test_what_is_no_spec_at_all(text: str) -> None:
    with pytest.raises(InputError, match=r"^spec: "):
        specs.parse(text)


def test_patience_is_the_host_s_unless_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"kind": "parent", "parents": {"main": "tank/ztune"}}
    for accelerator, wanted in (("none", 1.0), ("kvm", 1.0), ("tcg", 50.0)):
        monkeypatch.setattr(about, "accelerator", lambda name=accelerator: name)
        assert specs.parse(json.dumps(make_spec(tmp_path, place))).patience == wanted
        assert specs.parse(json.dumps(make_spec(tmp_path, place, patience=7))).patience == 7.0
