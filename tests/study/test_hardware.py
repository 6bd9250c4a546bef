"""What has to be bought for a layout, and what has not."""

from __future__ import annotations

import pytest

from ztune.errors import InputError
from ztune.study import parse_layout
from ztune.study.hardware import Hardware, bought, check_have, parse_have
from ztune.study.layout import with_settings

BASE = parse_layout(
    {
        "arc": "1G",
        "pool": [
            {"name": "tank", "vdev": [{"profile": "hdd-7200"}]},
            {"name": "logs", "vdev": [{"profile": "hdd-7200"}]},
        ],
        "dataset": [{"name": "tank/data", "roles": ["data"]}, {"name": "tank/wal", "roles": ["wal"]}],
    }
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"data.recordsize": "8K", "wal.logbias": "throughput"}, {}),
        ({"slog": "nvme", "data.recordsize": "8K"}, {"slog": "nvme"}),
        ({"l2arc": "ssd-sata"}, {"l2arc": "ssd-sata"}),
        ({"special": "nvme", "data.special_small_blocks": "16K"}, {"special": "nvme"}),
        ({"arc": "2G"}, {"arc": "2G"}),
        ({"arc": "512M"}, {}),
        ({"wal.pool": "logs"}, {"wal.pool": "logs"}),
        ({"pool.tank.data": "nvme"}, {"pool.tank.data": "nvme"}),
        ({"pool.logs.data": "nvme"}, {}),  # nothing lives there
        ({"pool.tank.ashift": 9}, {}),
        ({"tunable.zfs_txg_timeout": 30}, {}),
    ],
)
def test_what_is_bought(changes: dict[str, object], expected: dict[str, str]) -> None:
    assert bought(BASE, with_settings(BASE, changes)) == expected


def test_what_the_base_has_is_not_bought() -> None:
    base = with_settings(BASE, {"slog": "nvme", "wal.pool": "logs"})
    assert bought(base, base) == {}
    assert bought(base, with_settings(base, {"slog": "none", "wal.pool": "tank"})) == {}
    assert bought(base, with_settings(base, {"pool.logs.data": "nvme"})) == {"pool.logs.data": "nvme"}


@pytest.mark.parametrize(
    ("have", "changes", "expected"),
    [
        ({"slog": "nvme"}, {"slog": "nvme"}, {}),
        ({"slog": "nvme"}, {"slog": "mirror 2 nvme"}, {"slog": "mirror 2 nvme"}),
        ({"slog": "nvme"}, {"slog": "nvme", "l2arc": "nvme"}, {"l2arc": "nvme"}),
        ({"arc": "8G"}, {"arc": "4G"}, {}),
        ({"arc": "2G"}, {"arc": "4G"}, {"arc": "4G"}),
        ({"wal.pool": "logs"}, {"wal.pool": "logs"}, {}),
        ({"wal.pool": "logs"}, {"wal.pool": "logs", "pool.logs.data": "nvme"}, {"pool.logs.data": "nvme"}),
        # To have a pool for both roles takes none of the base's away.
        ({"data.pool": "logs", "wal.pool": "logs"}, {"wal.pool": "logs"}, {}),
        ({"wal.pool": "nosuch"}, {"wal.pool": "logs"}, {"wal.pool": "logs"}),  # of another base
    ],
)
def test_what_is_there_is_not_lacking(
    have: dict[str, str], changes: dict[str, object], expected: dict[str, str]
) -> None:
    assert Hardware(BASE, have).lacking(with_settings(BASE, changes)) == expected


def test_what_the_user_has_is_read() -> None:
    assert parse_have(["slog=mirror 2 nvme", "arc=8192M"], BASE) == {"slog": "mirror 2 nvme", "arc": "8G"}
    assert parse_have([], BASE) == {}


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("slog", "write FACTOR=VALUE"),
        ("slog=", "write FACTOR=VALUE"),
        ("data.recordsize=8K", "a setting and no hardware"),
        ("arc=512M", "the base layout has that already"),
        ("slogg=nvme", '"slogg" is not a factor'),
        ("wal.pool=nosuch", "the layout's pools are tank, logs"),
        ("arc=much", "much"),
    ],
)
def test_what_is_no_hardware_is_refused_in_one_sentence(word: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        parse_have([word], BASE)
    assert str(caught.value).startswith(f"--have {word}: ") and "\n" not in str(caught.value)
    with pytest.raises(InputError, match="slog is named twice"):
        parse_have(["slog=nvme", "slog=ssd-sata"], BASE)


def test_what_no_layout_takes_is_refused_with_what_is_meant() -> None:
    layouts = [
        with_settings(BASE, changes) for changes in ({"slog": "nvme"}, {"arc": "8G"}, {"wal.pool": "logs"})
    ]
    assert check_have({"slog": "nvme", "arc": "8G"}, BASE, layouts, "x") == []
    assert check_have({"arc": "16G"}, BASE, layouts, "x") == []  # more than enough
    (unused,) = check_have({"l2arc": "nvme", "arc": "8G"}, BASE, layouts, "study x")
    assert unused == "--have l2arc=nvme: no layout of study x varies l2arc, so it changes nothing."
    taken = "beyond its base layout they take slog=nvme, arc=8G, wal.pool=logs"
    with pytest.raises(InputError, match=f"^--have slog=floppy: no layout of study x takes that; {taken}$"):
        check_have({"slog": "floppy"}, BASE, layouts, "study x")
    with pytest.raises(InputError, match=r'wal.pool=logs. Did you mean "slog=nvme"\?$'):
        check_have({"slog": "nvm"}, BASE, layouts, "study x")


def test_a_device_of_a_pool_that_the_base_leaves_unused_is_hardware_beside_that_pool() -> None:
    with pytest.raises(InputError, match=r"^--have pool\.logs\.slog=nvme: "):
        parse_have(["pool.logs.slog=nvme"], BASE)
    have = parse_have(["pool.logs.slog=nvme", "wal.pool=logs"], BASE)
    assert have == {"wal.pool": "logs", "pool.logs.slog": "nvme"}
    both = with_settings(BASE, have)
    assert Hardware(BASE, have).lacking(both) == {}
    assert Hardware(BASE, {}).lacking(both) == {"wal.pool": "logs"}
