"""What has to be bought for a layout, and what has not."""

from __future__ import annotations

import pytest

from ztune.study import parse_layout
from ztune.study.hardware import bought
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
