"""Files by role: what is counted, how sampling errs, and what ZFS allocates. On real ZFS: tests/lab."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from ztune.errors import InputError
from ztune.observe import files as module
from ztune.observe.allocation import HEADER, Allocation
from ztune.observe.files import files
from ztune.observe.model import Compressed, ObservedFiles, ObservedVdev
from ztune.trace.compressibility import compressor
from ztune.trace.roles import RoleRules

DATA = RoleRules.parse(["*.dat=data", "*.log=wal"], builtin=False)


def table(size: int, seed: int) -> bytes:
    """Runs that compress well and runs that don't, of very different lengths."""
    rng = random.Random(seed)
    found = bytearray()
    while len(found) < size:
        if rng.random() < 0.4:
            found += rng.randbytes(rng.randrange(1000, 60000))
        else:
            found += b"".join(b"%d,row %d;" % (i, i % 7) for i in range(rng.randrange(100, 5000)))
    return bytes(found[:size])


def of(found: tuple[ObservedFiles, ...], role: str) -> ObservedFiles:
    (one,) = [f for f in found if f.role == role]
    return one


# --- allocation


@pytest.mark.parametrize(
    ("sectors", "disks", "parity", "allocated"),
    [(1, 5, 1, 2), (2, 5, 1, 4), (4, 5, 1, 6), (32, 5, 1, 40), (1, 6, 2, 3), (2, 6, 2, 6), (32, 10, 2, 42)],
)
def test_raidz_sectors(sectors: int, disks: int, parity: int, allocated: int) -> None:
    # By hand: rows of (disks − parity) data sectors with parity each, rounded up to a multiple of parity + 1.
    assert Allocation(4096, disks, parity).allocated(sectors * 4096 - 100) == allocated * 4096


@pytest.mark.parametrize(
    ("allocation", "size", "allocated"),
    [
        (Allocation(512), 513, 1024),
        (Allocation(4096), 0, 0),
        (Allocation(4096, 3, 1), 4096, 8192),
        # One of data, one of parity, and so on: 2 + 1, padded to a multiple of 2.
        (Allocation(4096, 3, 1), 8192, 16384),
        (Allocation(4096, 6, 2), 131072, 48 * 4096),
        (Allocation(4096, 6, 2, draid=True), 4096, 6 * 4096),
        (Allocation(4096, 6, 2, draid=True), 131072, 48 * 4096),
    ],
)
def test_what_is_allocated(allocation: Allocation, size: int, allocated: int) -> None:
    assert allocation.allocated(size) == allocated


def test_a_block_must_save_an_eighth_and_a_sector() -> None:
    four = Allocation(4096)
    assert four.stored(131072, 114688) == 114688 and four.stored(131072, 114689) == 131072
    assert four.stored(8192, 4096) == 4096 and four.stored(8192, 4097) == 8192
    # No whole sector to be saved, but the pointer itself holds 112 bytes.
    assert four.stored(4096, 113) == 4096 and four.stored(4096, 112) == 0
    assert four.stored(131072, 113) == 4096 and four.stored(131072, 0) == 0
    assert four.stored(8192, None) == 8192 and four.stored(512, None) == 4096
    small = Allocation(512)
    assert small.stored(4096, 3584) == 3584 and small.stored(4096, 3585) == 4096


def test_parity_is_off_in_what_du_shows() -> None:
    # 128 KiB on 3 disks: 32 + 16 sectors; 8 KiB: 4 sectors, which look like 10.6 KiB.
    raidz = Allocation(4096, 3, 1)
    assert raidz.used(raidz.allocated(131072)) == pytest.approx(131072, rel=0.01)
    assert raidz.used(raidz.allocated(8192)) == pytest.approx(8192 * 4 / 3, rel=0.02)
    assert Allocation(4096).used(8192) == 8192


@pytest.mark.parametrize(
    ("sectors", "kind", "name", "disks", "takes", "ideal"),
    [
        # Two sectors and a parity sector are three, padded to four; 32 have eight rows of parity.
        (2, "raidz1", "raidz1-0", 5, 4 / 2, 5 / 4),
        (32, "raidz1", "raidz1-0", 5, 40 / 32, 5 / 4),
        # A dRAID row is 4 data and 2 parity sectors, also for one sector of data.
        (1, "draid2", "draid2:4d:11c:1s-0", 11, 6.0, 6 / 4),
        (5, "draid2", "draid2:4d:11c:1s-0", 11, 12 / 5, 6 / 4),
    ],
)
def test_parity_and_padding(
    sectors: int, kind: str, name: str, disks: int, takes: float, ideal: float
) -> None:
    vdev = ObservedVdev(name=name, kind=kind, ashift=12, disks=("x",) * disks)
    blocks = Allocation.of(vdev)
    assert (blocks.expansion(sectors * 4096), blocks.ideal) == (takes, ideal)


@pytest.mark.parametrize(
    ("kind", "name", "disks"),
    [
        ("mirror", "mirror-0", 2),
        ("raidz1", "raidz1-0", 0),
        ("draid1", "x", 9),
        ("raidz", "raidz-0", 3),
        ("draid9", "draid9:1d:3c", 3),
        ("draid1", f"draid1:{'9' * 5000}d:", 3),
    ],
)
def test_no_padding_where_it_is_not_known(kind: str, name: str, disks: int) -> None:
    vdev = ObservedVdev(name=name, kind=kind, ashift=12, disks=("x",) * disks)
    assert Allocation.of(vdev) == Allocation(4096)


def test_allocation_of_a_vdev() -> None:
    disks = tuple("abcdef")
    assert Allocation.of(ObservedVdev(name="raidz2-0", kind="raidz2", ashift=13, disks=disks)) == Allocation(
        8192, 6, 2
    )
    assert Allocation.of(ObservedVdev(name="mirror-0", kind="mirror", ashift=9, disks=disks)) == Allocation(
        512
    )
    draid = Allocation.of(ObservedVdev(name="draid2:4d:11c:1s-0", kind="draid2", ashift=12, disks=disks))
    assert draid == Allocation(4096, 6, 2, draid=True) and draid.unit == 16384 and str(draid) == "draid2 of 6"
    assert Allocation.of(ObservedVdev(name="sda", kind="disk")) == Allocation(4096)
    assert str(Allocation(4096, 6, 2)) == "raidz2 of 6"


# --- counting


def test_counts_sizes_and_holes(tmp_path: Path) -> None:
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    (inner / "a.dat").write_bytes(b"x" * 5000)
    (tmp_path / "empty.dat").touch()
    with (tmp_path / "sparse.dat").open("wb") as file:
        file.truncate(10 << 20)
        file.seek(4 << 20)
        file.write(b"y" * 65536)
    os.link(inner / "a.dat", tmp_path / "again.dat")
    (tmp_path / "w.log").write_bytes(b"z" * 70000)
    (tmp_path / "unknown").write_bytes(b"1")
    found, limits = files([tmp_path, inner], rules=DATA)
    data = of(found, "data")
    assert (data.count, data.bytes) == (3, 5000 + (10 << 20))
    assert data.sizes == {0: 1, 4096: 1, 8 << 20: 1}
    assert data.allocated == sum(
        512 * (tmp_path / p).stat().st_blocks for p in ("deep/er/a.dat", "empty.dat", "sparse.dat")
    )
    assert data.sparse == 1 and data.hole_bytes == (10 << 20) - 65536
    assert of(found, "wal").sizes == {65536: 1} and of(found, "wal").sparse == 0
    assert [text for text in limits if "no known role" in text] == [
        "1 file plays no known role, and is left out"
    ]


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    root = tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "secret.dat").write_bytes(b"x" * 100)
    (root / "folder").symlink_to(outside)
    (root / "file.dat").symlink_to(outside / "secret.dat")
    found, limits = files([root], {str(root / "file.dat"): "data"}, rules=DATA)
    assert found == ()
    assert len(limits) == 1 and limits[0].startswith("2 links were not followed, such as")


def test_listed_files_have_their_given_roles(tmp_path: Path) -> None:
    path = tmp_path / "what.ever"
    path.write_bytes(b"x" * 10)
    found, _limits = files([], {str(path): "temp", str(tmp_path / "gone"): "data", "/dev/null": "data"})
    assert [(f.role, f.count) for f in found] == [("temp", 1)]


def test_preallocated_logs_are_told_by_name(tmp_path: Path) -> None:
    wal = tmp_path / "pg_wal"
    wal.mkdir()
    for name in ("000000010000000000000001", "000000010000000000000002", "00000001.history"):
        (wal / name).write_bytes(b"\0" * 8192)
    (tmp_path / "ib_logfile0").write_bytes(b"\0" * 8192)
    found, limits = files([tmp_path])
    assert of(found, "wal").preallocated == 3 and of(found, "wal").count == 4
    # Zeros say nothing about how the log compresses.
    assert of(found, "wal").compressed == () and any("no block but of zeros" in text for text in limits)


def test_the_access_time_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(table(100_000, 1))
    os.utime(path, (1_000_000_000, 1_700_000_000))
    files([tmp_path], rules=DATA)
    assert path.stat().st_atime == 1_000_000_000 and path.stat().st_mtime == 1_700_000_000


def test_time_is_bounded_and_said(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"{i}.dat").write_bytes(b"x")
    found, limits = files([tmp_path], rules=DATA, seconds=0.0)
    assert sum(f.count for f in found) < 200
    assert any("were looked through for 0 s only" in text for text in limits)


def test_that_time_was_over_is_said_only_where_it_was(tmp_path: Path) -> None:
    # A new log: written at its beginning alone, and read in larger pieces somewhere else.
    path = tmp_path / "1.dat"
    path.write_bytes(random.Random(1).randbytes(8 << 20))
    with path.open("r+b") as file:
        file.truncate(512 << 20)
    found, limits = files([tmp_path], rules=DATA, recordsizes=(4096, 1 << 20))
    (role,) = found
    assert {one.recordsize for one in role.compressed} == {4096}
    (said,) = [text for text in limits if "compressed at" in text]
    assert said.endswith("at 1 of 2 record sizes only: at the others all blocks that were drawn are zeros")


# --- compressing


def exact(contents: list[bytes], size: int, how: str, allocation: Allocation) -> float:
    """The ratio over all blocks."""
    run = compressor(how)
    logical = stored = 0
    for content in contents:
        for at in range(0, len(content), size):
            block = content[at : at + size]
            logical += len(block)
            block = block.ljust(-(-len(block) // 512) * 512 if len(content) <= size else size, b"\0")
            stored += allocation.stored(len(block), len(run(block)) + HEADER.get(how.partition("-")[0], 0))
    return logical / stored


def pick(found: ObservedFiles, size: int, how: str) -> Compressed:
    (one,) = [c for c in found.compressed if (c.recordsize, c.algorithm) == (size, how)]
    return one


def test_small_data_is_measured_whole(tmp_path: Path) -> None:
    contents = [table(size, i) for i, size in enumerate((300_000, 5000, 131072, 100, 700_000))]
    for i, content in enumerate(contents):
        (tmp_path / f"{i}.dat").write_bytes(content)
    raidz = Allocation(4096, 3, 1)
    found, limits = files(
        [tmp_path], rules=DATA, allocations={"data": raidz}, algorithms=["off", "lz4", "zstd-9"]
    )
    data = of(found, "data")
    assert not limits and (data.sector, data.parity) == (4096, "raidz1 of 3")
    for size in (8192, 131072):
        for how in ("lz4", "zstd-9"):
            assert pick(data, size, how).stored_ratio == pytest.approx(
                exact(contents, size, how, raidz), rel=0.02
            )
    # Without compression parity and padding are all that there is: 8 KiB take 16.
    assert pick(data, 8192, "off").stored_ratio == pytest.approx(0.5, rel=0.05)
    assert pick(data, 8192, "off").ratio == 1


def test_the_interval_holds_what_all_blocks_give(tmp_path: Path) -> None:
    content = table(48 << 20, 3)
    (tmp_path / "big.dat").write_bytes(content)
    plain = Allocation(4096)
    right = {size: exact([content], size, "zstd-3", plain) for size in (8192, 131072)}
    held = 0
    for seed in range(12):
        found, _limits = files(
            [tmp_path], rules=DATA, recordsizes=list(right), algorithms=["zstd-3"], seed=seed
        )  # fmt: skip
        for size, ratio in right.items():
            one = pick(of(found, "data"), size, "zstd-3")
            assert one.low < one.stored_ratio < one.high and one.stored_ratio == pytest.approx(
                ratio, rel=0.15
            )
            held += one.low <= ratio <= one.high
    # 95 % of 24; fewer than 19 would come by chance once in a thousand times.
    assert held >= 19


def test_places_are_drawn_evenly_over_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACES", 20_000)
    for i, size in enumerate((1000, 10_000, 100_000)):
        (tmp_path / f"{i}.dat").write_bytes(b"x" * size)
    walk = module._Walk(DATA, np.random.default_rng(1), 1e18)
    walk.add(tmp_path)
    drawn = [place for place in walk.roles["data"].places if place is not None]
    assert len(drawn) == 20_000
    for size in (1000, 10_000, 100_000):
        share = sum(place[1] == size for place in drawn) / 20_000
        assert share == pytest.approx(size / 111_000, abs=0.006 if size > 1000 else 0.003)
    assert all(0 <= place[2] < place[1] for place in drawn)


def test_the_same_seed_gives_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_bytes(table(1 << 20, 5))
    one, again = (files([tmp_path], rules=DATA, algorithms=["lz4"], seed=4) for _ in range(2))
    assert one == again


def test_an_unknown_algorithm_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown compression 'lzma'"):
        files([tmp_path], algorithms=["lzma"])


def test_small_files_weigh_as_much_as_their_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for i in range(512):
        (tmp_path / f"{i}.dat").write_bytes(rng.bytes(16384))
    (tmp_path / "large.dat").write_bytes(b"".join(rng.bytes(4096) + bytes(12288) for _ in range(512)))
    shares = []
    for seed in range(8):
        found, _limits = files([tmp_path], rules=DATA, recordsizes=[131072], algorithms=["lz4"], seed=seed)
        shares.append(1 / pick(of(found, "data"), 131072, "lz4").ratio)
    # Half of the bytes don't compress, of the others three quarters are gone.
    assert np.mean(shares) == pytest.approx((1 + 0.25) / 2, abs=0.05)
