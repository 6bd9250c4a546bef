from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ztune.onhost.properties import PROPERTIES, REPLAYED, STATED, parse_property
from ztune.onhost.tunables import TUNABLES, parse_tunable
from ztune.runs.refine import back_to_default, differing
from ztune.runs.space import describe, differences, first_round
from ztune.study import DurabilityClass, Layout, Study, default_setting, generic
from ztune.study.durability import Bar, Judgement, judge
from ztune.study.layout import parse_layout, with_settings
from ztune.units import format_size, parse_size


def layout(**changes: object) -> Layout:
    base = generic.build({"data", "wal", "temp"}).layout
    return with_settings(base, {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("text", "size"),
    [("8K", 8192), ("1M", 1 << 20), ("64m", 64 << 20), ("7.5G", 15 << 29), (512, 512), ("512", 512), ("0", 0),
     ("1MiB", 1 << 20), ("2TB", 2 << 40), ("4096B", 4096)],
)  # fmt: skip
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "K", "8Q", "-1", -1, "1.5", "0.3K", True, None, 1.5, "8K8", "1e3", "٣K" * 9]
)
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(0, 1 << 62))
def test_sizes_survive_being_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_canonical_values() -> None:
    for given_, canonical in (
        ("on", "lz4"),
        ("zstd", "zstd-3"),
        ("gzip", "gzip-6"),
        ("zstd-fast", "zstd-fast-1"),
    ):
        assert parse_property("compression", given_) == ("compression", canonical)
    assert parse_property("checksum", "fletcher4")[1] == "on"
    assert parse_property("recsize", 131072) == ("recordsize", "128K")


def test_defaults_are_valid_and_canonical() -> None:
    for name, known in PROPERTIES.items():
        assert parse_property(name, known.default) == (name, known.default)
    for name, tunable in TUNABLES.items():
        if tunable.default is not None:
            assert parse_tunable(name, tunable.text(tunable.default)) == tunable.default


def test_the_engine_replays_the_eleven_properties_of_its_contract() -> None:
    stated = {
        "recordsize", "compression", "checksum", "logbias", "sync", "primarycache", "secondarycache",
        "redundant_metadata", "special_small_blocks", "copies",
    }  # fmt: skip
    assert set(STATED) == stated and set(REPLAYED) == {*stated, "direct"}


def test_what_not_every_version_has_is_said_of_a_dataset_only_where_the_study_says_it() -> None:
    base, past = layout(), layout(data__direct="disabled")
    assert "direct" not in base.datasets[0].properties and "data.direct" not in base.settings()
    assert past.datasets[0].properties["direct"] == "disabled" and past.hash != base.hash
    assert layout(data__direct="standard").hash == base.hash == with_settings(
        past, {"data.direct": "standard"}
    ).hash  # fmt: skip


def test_hash_is_of_the_meaning() -> None:
    base = layout()
    assert base.hash == layout(data__compression="on").hash == layout(tunable__zfs_txg_timeout=5).hash
    assert base.hash == replace(base, name="other").hash
    others = [
        layout(data__recordsize="64K"),
        layout(slog="nvme"),
        layout(tunable__zfs_txg_timeout=6),
        layout(arc="1G"),
    ]
    assert len({base.hash, *(o.hash for o in others)}) == 5
    assert len(base.hash) == 12


def test_one_change_is_one_setting() -> None:
    base = layout()
    for changes in (
        {"data.recordsize": "8K"},
        {"wal.logbias": "throughput"},
        {"slog": "mirror 2 nvme"},
        {"l2arc": "nvme"},
        {"tunable.zfs_txg_timeout": 1},
        {"pool.tank.ashift": 9},
        {"pool.tank.data": "raidz1 3 hdd-7200"},
        {"arc": "1G"},
        {"database.full_page_writes": "off"},
        {"data.atime": "off"},
    ):
        other = with_settings(base, changes)
        assert differing(base, other) == list(changes)
        back = with_settings(
            other, {key: base.settings().get(key, "default") for key in changes if key != "data.atime"}
        )
        assert back.hash == base.hash or "data.atime" in changes


def test_settings_and_names() -> None:
    other = layout(data__recordsize="8K", slog="nvme")
    assert describe(layout(), other) == "data.recordsize=8K, slog=nvme"
    assert other.settings()["slog"] == "nvme"
    assert default_setting("data.recordsize") == "128K"
    assert default_setting("slog") == "none"
    assert default_setting("tunable.zfs_txg_timeout") == "5"
    assert default_setting("pool.tank.ashift") is None


def test_layouts_are_frozen_and_strict() -> None:
    with pytest.raises(FrozenInstanceError):
        layout().arc = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="set twice"):
        parse_layout(
            {
                "pool": [{"name": "a", "vdev": [{"profile": "nvme"}]}],
                "dataset": [{"name": "a/b", "roles": ["data"], "recsize": "8K", "recordsize": "16K"}],
            }
        )
    with pytest.raises(FrozenInstanceError):
        layout().datasets[0].volume = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="is not a vdev"):
        layout(slog="mirror of two nvme")
    with pytest.raises(ValueError, match="at least one data vdev"):
        layout(pool__tank__data="none")
    with pytest.raises(ValueError, match='no pool "tonk"'):
        layout(pool__tonk__ashift=12)


def durability(**changes: object) -> tuple[DurabilityClass, list[str]]:
    found = layout(**changes)
    return judge(found).klass, list(judge(found).reasons)


def test_durability_classes() -> None:
    nothing, seconds, _, corrupt = DurabilityClass
    base = durability()
    assert base[0] == nothing and "hdd-7200) have a volatile write cache" in base[1][0] and len(base[1]) == 1
    # Data and log unsynced together on one pool: one consistent moment some seconds ago.
    klass, reasons = durability(data__sync="disabled", wal__sync="disabled")
    assert klass == seconds and "last 5 s" in reasons[0]
    assert not any("loses nothing acknowledged" in reason for reason in reasons)
    klass, reasons = durability(data__sync="disabled", wal__sync="disabled", tunable__zfs_txg_timeout=30)
    assert klass == seconds and "last 30 s" in reasons[0]
    # One of them alone: they come back at different moments.
    assert durability(wal__sync="disabled")[0] == corrupt
    assert durability(data__sync="disabled")[0] == corrupt
    # What need not survive may be unsynced.
    assert durability(temp__sync="disabled") == base
    assert durability(data__checksum="off")[0] == corrupt
    assert durability(tunable__zfs_nocacheflush=1)[0] == corrupt
    assert durability(tunable__zil_nocacheflush=1)[0] == seconds
    # A longer txg interval loses nothing acknowledged; it is a note.
    klass, reasons = durability(tunable__zfs_txg_timeout=30)
    assert klass == nothing and "30 s back instead of 5" in reasons[0]
    klass, reasons = durability(data__logbias="throughput")
    assert klass == nothing and "cut short" in reasons[0]
    assert durability(temp__logbias="throughput") == durability()
    klass, reasons = durability(slog="nvme")
    assert klass == nothing and "not mirrored" in reasons[0]
    assert durability(slog="mirror 2 nvme") == base
    assert durability(database__synchronous_commit="off")[0] == seconds
    assert durability(database__fsync="off")[0] == corrupt
    assert durability(database__full_page_writes="off", data__recordsize="4K")[0] == corrupt
    klass, reasons = durability(database__full_page_writes="off")
    assert klass == nothing and "only because ZFS" in reasons[0]
    # SQLite, RocksDB, WiredTiger and InnoDB in their own words.
    assert durability(database__synchronous="off")[0] == corrupt
    assert durability(database__synchronous="NORMAL", database__journal_mode="WAL")[0] == seconds
    # Without WAL, and SQLite's own default is without, NORMAL may damage the database.
    for mode in ({}, *({"database__journal_mode": mode} for mode in ("delete", "truncate", "persist"))):
        klass, reasons = durability(database__synchronous="normal", **mode)
        assert klass == corrupt and "without journal_mode=wal" in reasons[0]
    assert durability(database__synchronous="full") == base
    klass, reasons = durability(database__journal_mode="DELETE")
    assert klass == seconds and "undoes the last commit" in reasons[0]
    assert durability(database__journal_mode="delete", database__synchronous="extra") == base
    assert durability(database__journal_mode="truncate", database__synchronous="full") == base
    assert durability(database__sync="false")[0] == seconds
    # How long ago the last checkpoint, snapshot or FlushWAL was, nothing here bounds by seconds.
    klass, reasons = durability(**{"database__log.enabled": "false", "database__checkpoint.wait": "0"})
    assert klass == corrupt and "after the last checkpoint" in reasons[0]
    for save in ({}, {"database__save": ""}, {"database__save": "3600 1"}):
        klass, reasons = durability(database__appendonly="no", **save)
        assert klass == corrupt and "after the last snapshot" in reasons[0]
    assert durability(database__manual_wal_flush="true", database__sync="true")[0] == seconds
    klass, reasons = durability(database__manual_wal_flush="true", database__sync="false")
    assert klass == corrupt and "after the last FlushWAL" in reasons[0]
    assert durability(database__innodb_flush_method="O_DIRECT_NO_FSYNC")[0] == corrupt
    assert durability(database__innodb_flush_method="O_DIRECT") == base
    assert durability(database__innodb_doublewrite="0", data__recordsize="8K")[0] == corrupt
    small = durability(
        database__innodb_doublewrite="0", database__innodb_page_size="8K", data__recordsize="8K"
    )
    assert small[0] == nothing


@pytest.mark.parametrize("setting", ["full_page_writes", "innodb_doublewrite"])
def test_all_that_holds_pages_counts_for_torn_pages(setting: str) -> None:
    def of(data: str = "16K", pool: str = "tank", **index: str) -> Judgement:
        disks = [{"profile": "nvme"}]
        return judge(
            parse_layout(
                {
                    "pool": [
                        {"name": "tank", "vdev": disks},
                        {"name": "other", "filesystem": "ext4", "vdev": disks},
                    ],
                    "dataset": [
                        {"name": "tank/data", "roles": ["data"], "recordsize": data},
                        {"name": f"{pool}/index", "roles": ["index"], **index},
                        {"name": "tank/wal", "roles": ["wal"], "recordsize": "4K"},
                        {"name": "tank/temp", "roles": ["temp"], "recordsize": "4K"},
                    ],
                    "database": {setting: "off"},
                }
            )
        )

    assert of().klass is DurabilityClass.NOTHING
    for found in (of(recordsize="4K"), of(data="4K"), of(data="4K", recordsize="4K")):
        assert found.klass is DurabilityClass.CORRUPT and "with recordsize 4096 below" in found.reasons[0]
    for found in (of(pool="other"), of(volume="1G")):
        assert found.klass is DurabilityClass.CORRUPT and "on ext4, which writes in place" in found.reasons[0]


def on_disks(profile: str, caches: dict[str, str] | None = None, **changes: object) -> Judgement:
    table = with_settings(
        layout(pool__tank__data=profile), {k.replace("__", "."): v for k, v in changes.items()}
    )
    return judge(replace(table, disks=caches or {}))


def test_what_disks_do_with_flushes_is_part_of_durability() -> None:
    nothing, seconds, _, corrupt = DurabilityClass
    found = on_disks("raid-ignores-flushes")
    assert (
        found.klass == corrupt and "the disks of pool tank (raid-ignores-flushes) ignore" in found.reasons[0]
    )
    assert on_disks("mirror 2 raid-ignores-flushes").klass == corrupt
    # The log alone: what was acknowledged is lost, and the pool is there.
    found = on_disks("nvme", slog="raid-ignores-flushes")
    assert found.klass == seconds and "the log devices of pool tank" in found.reasons[0]
    assert on_disks("nvme", special="raid-ignores-flushes").klass == corrupt
    # What an L2ARC holds is elsewhere too.
    assert on_disks("nvme", l2arc="raid-ignores-flushes").klass == nothing
    for name in ("nvme", "flash-card", "raid-protected"):
        assert on_disks(name) == Judgement(nothing, (), ())
    # With a protected cache flushes may be left out, and only then.
    found = on_disks("raid-protected", tunable__zfs_nocacheflush=1)
    assert found.klass == nothing and "safe only as long as" in found.reasons[0]
    assert on_disks("raid-protected", tunable__zil_nocacheflush=1).klass == nothing
    for name in ("hdd-7200", "usb-slow", "raid-ignores-flushes"):
        assert on_disks(name, tunable__zfs_nocacheflush=1).klass == corrupt
    assert on_disks("raid-protected", slog="ssd-sata", tunable__zil_nocacheflush=1).klass == seconds


def test_caches_that_nobody_has_declared_are_not_known() -> None:
    for found in (on_disks("usb-slow"), on_disks("mine"), on_disks("mine", {"mine": "not-known"})):
        assert found.klass == DurabilityClass.NOTHING and len(found.disks) == 1
        assert "nobody has declared that the disks of pool tank" in found.reasons[0]
    assert on_disks("mine", {"mine": "protected"}) == on_disks("nvme")
    # The study's own profile of that name, not the shipped one.
    assert on_disks("nvme", {"nvme": "ignores-flushes"}).klass == DurabilityClass.CORRUPT
    # It changes what is said of a layout, not what the layout is.
    plain = layout()
    declared = replace(plain, disks={"hdd-7200": "protected"})
    assert declared.hash == plain.hash and parse_layout(declared.to_json()) == declared


def test_a_sync_does_not_flush_what_direct_io_wrote_to_other_disks_than_the_log() -> None:
    """docs/durability.md, "What was found in OpenZFS"."""
    nothing, _, _, corrupt = DurabilityClass

    def of(direct: tuple[str, ...] = ("data",), **changes: object) -> Judgement:
        return judge(replace(layout(**changes), direct=direct))

    assert of().klass == nothing  # one disk: the log's flush is the data's
    found = of(slog="nvme")
    assert found.klass == corrupt and "Direct I/O on tank/data" in found.reasons[0]
    two: dict[str, Any] = {"pool__tank__data": "stripe 2 hdd-7200"}
    for exposed in ({"special": "nvme"}, two):
        assert of(**exposed).klass == corrupt
    one: dict[str, Any] = {"pool__tank__data": "mirror 2 hdd-7200", "slog": "none"}
    for safe in ({"data__direct": "disabled"}, one):
        assert of(**{"slog": "nvme", **safe}).klass == nothing
    # A role that is not read and written so, and one that nobody misses.
    assert of((), slog="nvme").klass == of(("temp",), slog="nvme").klass == nothing
    assert of((), slog="nvme", wal__direct="always").klass == corrupt
    # What survives a power cut by itself need not be flushed.
    found = of(slog="nvme", pool__tank__data="raid-protected")
    assert found.klass == nothing and "safe only as long as" in " ".join(found.reasons)
    # The database's own setting counts more than what was recorded under another.
    assert of(slog="nvme", database__innodb_flush_method="fsync").klass == nothing
    assert of((), slog="nvme", database__innodb_flush_method="O_DIRECT").klass == corrupt
    # It changes what is said of a layout, not what the layout is.
    plain = layout()
    asking = replace(plain, direct=("data",))
    assert asking.hash == plain.hash and parse_layout(asking.to_json()) == asking
    with pytest.raises(ValueError, match='"dta" is not a role'):
        replace(plain, direct=("dta",))


def test_a_base_that_is_exposed_in_direct_io_lets_nothing_else_in() -> None:
    def of(**changes: object) -> Layout:
        return replace(layout(**changes), direct=("data",))

    base = of(slog="nvme")
    bar = Bar.of(DurabilityClass.NOTHING, base)
    assert bar.admits(base) and bar.admits(of(slog="nvme", data__recordsize="16K"))
    assert bar.admits(of(slog="nvme", data__direct="disabled")) and bar.admits(of())
    weaker: tuple[dict[str, Any], ...] = (
        {"data__sync": "disabled", "wal__sync": "disabled"},
        {"wal__sync": "disabled"},
        {"tunable__zfs_nocacheflush": 1},
        {"data__checksum": "off"},
    )
    for weak in weaker:
        assert not bar.admits(of(slog="nvme", **weak)), weak
    assert not Bar.of(DurabilityClass.NOTHING, of()).admits(base)
    exposed, unsynced = judge(base), judge(of(data__sync="disabled", wal__sync="disabled"))
    assert not unsynced.no_weaker(exposed) and judge(of()).no_weaker(exposed)


def test_durability_over_two_pools() -> None:
    base = parse_layout(
        {
            "pool": [{"name": n, "vdev": [{"profile": "nvme"}]} for n in ("a", "b")],
            "dataset": [
                {"name": "a/data", "roles": ["data"], "sync": "disabled"},
                {"name": "b/wal", "roles": ["wal"], "sync": "disabled"},
            ],
        }
    )
    # Two pools come back at two transaction groups.
    assert judge(base).klass == DurabilityClass.CORRUPT
    assert DurabilityClass.NOTHING.rank < DurabilityClass.LAST_SECONDS.rank < DurabilityClass.CORRUPT.rank


def study() -> Study:
    return generic.build({"data", "wal"})


def test_first_round_is_base_then_single_changes_then_crosses() -> None:
    layouts = first_round(study())
    assert layouts[0].name == "base"
    singles = [f for f in layouts if len(differing(layouts[0], f)) == 1]
    assert len(singles) == 5 + 2 + 1 + 1 + 3 + 1 + 1
    assert layouts[1 : 1 + len(singles)] == singles
    pairs = [f for f in layouts if len(differing(layouts[0], f)) == 2]
    assert len(pairs) == 5 * 2
    assert len(layouts) == 1 + len(singles) + len(pairs)
    assert len({f.hash for f in layouts}) == len(layouts)


def test_back_to_default_gives_every_one_property_pair() -> None:
    base = study().layout
    best = with_settings(
        base, {"data.recordsize": "16K", "slog": "nvme", "tunable.zfs_txg_timeout": 9, "arc": "1G"}
    )
    neighbours = back_to_default(base, best)
    assert sorted(differing(best, n) for n in neighbours) == [
        ["arc"], ["data.recordsize"], ["slog"], ["tunable.zfs_txg_timeout"],
    ]  # fmt: skip
    for n in neighbours:
        (key,) = differing(best, n)
        assert n.settings().get(key) == (base.settings().get(key) if key == "arc" else _default(key, n))
    assert back_to_default(base, base) == []


def test_an_age_is_no_property_to_put_back_to_default() -> None:
    aged = with_settings(study().layout, {"age": "used"})
    assert back_to_default(aged, aged) == []
    neighbours = back_to_default(aged, with_settings(aged, {"data.recordsize": "16K"}))
    assert [n.age for n in neighbours] == [aged.age]
    assert differences(aged, study().layout) == {"age": "new"}


def _default(key: str, _: Layout) -> str | None:
    return None if key.startswith("tunable.") else default_setting(key)


def test_a_neighbour_that_is_impossible_is_left_out() -> None:
    base = study().layout
    best = with_settings(base, {"special": "nvme", "data.special_small_blocks": "8K"})
    assert [differing(best, n) for n in back_to_default(base, best)] == [["data.special_small_blocks"]]
