"""A layout that is stored keeps its hash and its JSON, whichever side of the trial program reads it."""

from __future__ import annotations

import json
from typing import Any

from ztune.onhost import fields
from ztune.onhost.layout import Layout
from ztune.study import Study, load_study, parse_layout, ready
from ztune.study.durability import judge

# As version 1 of the store has it: written before volumes, other file systems and declarations were there.
OLD: dict[str, Any] = {
    "name": "old",
    "description": "",
    "arc": 1 << 28,
    "pool": [
        {
            "name": "tank",
            "ashift": 12,
            "vdev": [
                {"class": "data", "kind": "mirror", "disks": 2, "profile": "hdd-7200", "size": None},
                {"class": "log", "kind": "stripe", "disks": 1, "profile": "nvme", "size": 16 << 30},
            ],
        }
    ],
    "dataset": [{"name": "tank/db", "roles": ["data", "wal"], "properties": {"recordsize": "16K"}}],
    "tunables": {"zfs_txg_timeout": 5, "zfs_nocacheflush": 1},
    "database": {"full_page_writes": "off"},
}
OLD_HASH = "a1e2ed5f4929"


def test_an_old_layout_keeps_its_hash() -> None:
    assert parse_layout(OLD).hash == OLD_HASH


def test_both_sides_read_the_same_layout() -> None:
    declared = {"default": "last-seconds", "settings": {"flush": {"no": "corrupt"}}, "neutral": ["threads"]}
    for raw in (OLD, {**OLD, "durability": declared}):
        ours = parse_layout(raw)
        stored = json.loads(json.dumps(ours.to_json()))
        assert parse_layout(stored) == ours
        theirs = fields.from_json(Layout, stored)
        assert theirs == ours and theirs.hash == ours.hash
        assert judge(theirs) == judge(ours)


def test_a_ready_study_s_layout_is_the_same_inside_it_and_alone() -> None:
    for file in ready.files().values():
        study = load_study(file)
        whole = json.loads(json.dumps(study.to_json()))
        assert fields.from_json(Layout, study.layout.to_json()) == study.layout
        assert Study.model_validate(whole).layout == study.layout
        assert parse_layout(whole["layout"]).hash == study.layout.hash
