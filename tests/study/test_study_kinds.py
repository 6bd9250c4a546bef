"""ext4 and xfs as baselines, volumes and encryption: what they mean, and that nothing else changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ztune.onhost.properties import PROPERTIES, version_key
from ztune.onhost.tunables import TUNABLES
from ztune.runs.refine import back_to_default, differing
from ztune.runs.space import changed, describe
from ztune.study import DurabilityClass, Layout, default_setting, generic, load_study, optional_setting
from ztune.study.durability import judge
from ztune.study.layout import parse_layout, with_settings

ROOT = Path(__file__).parents[2]
NOTHING, SECONDS, NOT_KNOWN, CORRUPT = DurabilityClass
# Hashes of layouts as they were before these kinds existed: (study, named layout or the base) → hash.
BEFORE = {
    ("studies/postgres-oltp.toml", None): "f89b22c68eba",
    ("studies/postgres-oltp.toml", "16K zstd-3, log device"): "8368be74d684",
    ("studies/postgres-oltp-hdd-slog.toml", None): "8107854198a7",
    ("studies/postgres-oltp-hdd-slog.toml", "16K, metadata cached only"): "ba08a604dd36",
    ("studies/postgres-oltp-nvme.toml", "8K sectors, 8K records"): "3aaf61af8290",
    ("studies/postgres-oltp-ssd-sata.toml", "16K zstd-3, log device"): "75b24100e0a8",
    ("tests/study/good/everything.toml", None): "50b19b1a2636",
}


def base() -> Layout:
    return generic.build({"data", "wal", "temp"}, profile="ssd-sata").layout


@pytest.mark.parametrize(("path", "name"), BEFORE)
def test_hashes_of_older_layouts_stay(path: str, name: str | None) -> None:
    study = load_study(ROOT / path)
    layout = study.layout
    if name is not None:
        layout = with_settings(layout, next(n.set for n in study.layouts if n.name == name))
    assert layout.hash == BEFORE[path, name]


@pytest.mark.parametrize(
    ("change", "setting", "value"),
    [
        ({"pool.tank.filesystem": "ext4"}, "pool.tank.filesystem", "ext4"),
        ({"data.volume": "8G"}, "data.volume", "8G"),
        ({"data.encryption": "on"}, "data.encryption", "aes-256-gcm"),
        ({"data.compression": "default"}, None, None),
    ],
)
def test_each_kind_is_one_setting_and_can_be_taken_back(
    change: dict[str, object], setting: str | None, value: str | None
) -> None:
    plain = base()
    other = with_settings(plain, change)
    if setting is None:
        assert other.hash == plain.hash
        return
    assert differing(plain, other) == [setting]
    assert other.settings()[setting] == value
    assert other.hash != plain.hash
    assert optional_setting(setting) and setting not in plain.settings()
    # By name of the default, and by "default", which is how a search takes a setting back.
    for back in (default_setting(setting), "default"):
        assert with_settings(other, {setting: back}).hash == plain.hash
    assert plain.hash in {layout.hash for layout in back_to_default(plain, other)}
    named = changed(plain, {k: str(v) for k, v in change.items()})
    assert named.name == describe(plain, other) == f"{setting}={value}"
    assert parse_layout(json.loads(json.dumps(other.to_json()))) == other


def test_settings_that_no_layout_may_leave_out() -> None:
    for key in ("data.recordsize", "slog", "arc", "pool.tank.ashift", "wal.pool"):
        assert not optional_setting(key)
    for key in ("data.atime", "tunable.zfs_txg_timeout", "database.fsync"):
        assert optional_setting(key)


def test_a_volume_says_its_block() -> None:
    volume = with_settings(base(), {"data.volume": "8G"})
    data = volume.datasets[0]
    assert data.filesystem == "ext4" and data.properties["volblocksize"] == "16K"
    # The block's default differs between releases (8K before 2.2), so it is always spelled out.
    assert volume.to_json()["dataset"][0]["properties"]["volblocksize"] == "16K"
    xfs = with_settings(volume, {"data.filesystem": "xfs", "data.volblocksize": "8K"})
    assert differing(volume, xfs) == ["data.filesystem", "data.volblocksize"]
    assert differing(base(), with_settings(xfs, {"data.volume": "none"})) == []
    # In whatever order they are written.
    assert (
        with_settings(base(), {"data.filesystem": "xfs", "data.volume": "8G"}).datasets[0].volume == 8 << 30
    )


def test_the_defaults_of_the_kinds_have_the_hash_of_saying_nothing() -> None:
    raw = base().to_json()
    assert raw["pool"][0]["filesystem"] == "zfs" and raw["dataset"][0]["volume"] is None
    raw["dataset"][0]["properties"]["encryption"] = "off"
    assert parse_layout(raw).hash == base().hash
    for pool in raw["pool"]:
        del pool["filesystem"]
    for dataset in raw["dataset"]:
        del dataset["volume"], dataset["filesystem"]
    assert parse_layout(raw).hash == base().hash


@pytest.mark.parametrize("change", [{"pool.tank.filesystem": "ext4"}, {"pool.tank.filesystem": "xfs"},
                                    {"data.volume": "8G"}])  # fmt: skip
def test_in_place_file_systems_tear_pages(change: dict[str, object]) -> None:
    other = with_settings(base(), change)
    assert judge(other).klass == NOTHING
    torn = with_settings(other, {"database.full_page_writes": "off"})
    assert judge(torn).klass == CORRUPT
    assert "torn pages" in judge(torn).reasons[0]
    assert judge(with_settings(base(), {"database.full_page_writes": "off"})).klass == NOTHING


def test_durability_beside_the_kinds() -> None:
    ext4 = with_settings(base(), {"pool.tank.filesystem": "ext4"})
    assert any("no checksums" in reason for reason in judge(ext4).reasons)
    # What tunes ZFS decides nothing where there is no ZFS.
    assert judge(with_settings(ext4, {"tunable.zfs_nocacheflush": 1})).klass == NOTHING
    assert judge(with_settings(base(), {"tunable.zfs_nocacheflush": 1})).klass == CORRUPT
    # sync=disabled drops a volume's flushes as it drops a file's fsync.
    volumes = {"data.volume": "8G", "wal.volume": "1G", "data.sync": "disabled", "wal.sync": "disabled"}
    assert judge(with_settings(base(), volumes)).klass == SECONDS
    assert judge(with_settings(base(), {"data.encryption": "on"})).klass == NOTHING


def test_versions() -> None:
    assert version_key("zfs-2.3.2-2~bpo12+1") == (2, 3, 2) == version_key("2.3.2")
    assert version_key("2.10") > version_key("2.9.1")
    # A host that is asked may say anything.
    assert version_key("9" * 5000) and version_key("²") == ()
    assert PROPERTIES["compression"].needs("zstd-3") == "2.0"
    assert PROPERTIES["compression"].needs("lz4") == "0.8"
    assert PROPERTIES["direct"].needs("always") == "2.3"
    assert PROPERTIES["redundant_metadata"].needs("some") == "2.1.7"
    assert TUNABLES["l2arc_headroom"].default_in("2.1.11-1") == 2
    assert TUNABLES["l2arc_headroom"].default_in("2.3.2") == 8
    assert TUNABLES["zfs_txg_timeout"].path == "/sys/module/zfs/parameters/zfs_txg_timeout"
