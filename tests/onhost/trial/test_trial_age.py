"""The past of a trial's pools, on directories in place of pools."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ztune.errors import InputError, ZtuneError
from ztune.onhost.age import FILLER
from ztune.onhost.layout import Layout
from ztune.onhost.trial.age import MOST_FILLER, Aging, Draw, check
from ztune.onhost.trial.pools import Filled, Made, Pools
from ztune.study import generic
from ztune.study.layout import with_settings

MIB = 1 << 20


class Directories:
    """A pool of a fixed size that is a directory."""

    def __init__(self, layout: Layout, root: Path, size: int) -> None:
        self.root, self.size, self.snapshots, self.groups = root, size, list[str](), 0
        self.clones: list[tuple[str, int]] = []
        self.made = [Made(d, d.name, root / d.rest, d.pool) for d in (*layout.datasets, *layout.fillers())]
        for made in self.made:
            made.mountpoint.mkdir()

    def end_group(self) -> None:
        self.groups += 1

    def filled(self) -> dict[str, Filled]:
        used = sum(f.stat().st_size for f in self.root.rglob("*") if f.is_file())
        return {"tank": Filled(self.size, used, 3)}

    def snapshot(self, name: str) -> None:
        self.snapshots.append(name)

    def clone(self, snapshot: str, number: int) -> None:
        assert snapshot in self.snapshots
        self.clones.append((snapshot, number))


@pytest.fixture
def aging(tmp_path: Path) -> Callable[..., tuple[Aging, Directories]]:
    def make(age: str, size: int = 64 * MIB, **more: Any) -> tuple[Aging, Directories]:
        layout = with_settings(generic.build({"data", "wal", "source"}).layout, {"age": age, **more})
        pools = Directories(layout, tmp_path, size)
        for role, count in (("data", 3), ("wal", 1), ("source", 1)):
            for i in range(count):
                (tmp_path / role / f"file{i}").write_bytes(random.Random(i).randbytes(MIB + 100 * i))
        (tmp_path / "data" / "empty").touch()
        (tmp_path / "data" / "link").symlink_to(tmp_path / "source" / "file0")
        roles = {role: tmp_path / role for role in ("data", "wal", "source")}
        return Aging(layout, cast(Pools, pools), roles, 7, lambda text, share: None), pools

    return make


def test_the_numbers_drawn_are_those_of_the_published_generator() -> None:
    # The first of SplitMix64 from 1234567, as its authors' own program prints them.
    draw = Draw(1234567)
    assert [draw.below(1 << 64) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    assert sorted(Draw(3).shuffled(50)) == list(range(50)) != Draw(3).shuffled(50)


def test_files_hold_what_they_held_and_the_pool_is_as_full_as_asked(
    tmp_path: Path, aging: Callable[..., tuple[Aging, Directories]]
) -> None:
    old, pools = aging("fill 60% rewrites 4 snapshots 2 clones 1")
    before = {f: f.read_bytes() for r in ("data", "wal", "source") for f in (tmp_path / r).iterdir()}
    result = old.run()
    assert before == {f: f.read_bytes() for f in before}
    assert pools.snapshots == ["ztune-age-1", "ztune-age-2"]
    assert pools.clones == [("ztune-age-1", 1)]
    # Three files of data and one of the log, four times; the source is only read.
    assert result["rewritten"] == 4 * (4 * MIB + 300)
    assert result["commits"] == 4 * (1 + 2 + 2 + 1)
    (pool,) = result["pools"]
    assert 59 <= pool["capacity"] <= 60 and pool["fragmentation"] == 3
    assert pool["filler"] == sum(f.stat().st_size for f in (tmp_path / FILLER).iterdir())
    assert not any(
        (tmp_path / FILLER / f.name).read_bytes().strip(b"\0") for f in (tmp_path / FILLER).iterdir()
    )


def test_other_files_make_room_and_what_they_cannot_make_is_said(
    aging: Callable[..., tuple[Aging, Directories]],
) -> None:
    old, _pools = aging("fill 5% rewrites 1")
    with pytest.raises(
        ZtuneError, match=r"the age can't fit: .* take \d+ % of the pool tank, .* to be 5 % full"
    ):
        old.run()


def test_a_pool_without_room_is_one_sentence(
    aging: Callable[..., tuple[Aging, Directories]], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _pools = aging("fill 60%")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ZtuneError, match="the pool tank has no room left at a fill of 60 %"):
        old.run()


def test_a_pool_too_large_to_fill_is_refused() -> None:
    layout = with_settings(generic.build({"data"}).layout, {"age": "used"})
    check(layout, {"tank": Filled(MOST_FILLER, 0, 0)})
    with pytest.raises(
        InputError, match=r"to 80 % takes 819G, and ztune writes 64G at most; give its disks a size"
    ):
        check(layout, {"tank": Filled(1 << 40, 0, 0)})


def test_blocks_that_openzfs_would_not_write_again_are_refused() -> None:
    layout = with_settings(generic.build({"data"}).layout, {"age": "used", "data.checksum": "sha256"})
    with pytest.raises(
        InputError, match="with checksum=sha256 OpenZFS does not write a block that holds the same"
    ):
        check(layout, {"tank": Filled(4 << 30, 0, 0)})
    check(with_settings(layout, {"data.compression": "off"}), {"tank": Filled(4 << 30, 0, 0)})
