"""Which disks a trial takes: real block devices (loop), with real signatures of other programs."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from zfs_labels import nvlist

from ztune.errors import InputError
from ztune.onhost.host import devices, labels

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs root and loop devices"
)
SIZE = 320 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "disk"
    with file.open("wb") as image:
        image.truncate(SIZE)
    node = subprocess.run(
        ["losetup", "--find", "--show", "-P", str(file)], capture_output=True, text=True, check=True
    ).stdout.strip()
    yield node
    subprocess.run(["losetup", "-d", node], check=True)


def write(node: str, at: int, data: bytes) -> None:
    fd = os.open(node, os.O_RDWR)
    os.pwrite(fd, data, at if at >= 0 else SIZE + at)
    os.fsync(fd)
    os.close(fd)


def refusal(node: str) -> str:
    with pytest.raises(InputError) as caught:
        devices.require_free(node)
    return str(caught.value)


def test_an_empty_disk_is_free_and_known_again(disk: str) -> None:
    found = devices.require_free(disk)
    assert found.size == SIZE
    assert found.node == disk
    assert found.identity.endswith("/disk")
    assert devices.Disk.of(disk) == found


def test_through_a_link_it_is_the_same_disk(disk: str, tmp_path: Path) -> None:
    link = tmp_path / "by-id"
    link.symlink_to(disk)
    one, two = devices.require_free(disk), devices.require_free(str(link))
    assert two.node == one.node and two.path == str(link)
    with pytest.raises(InputError, match="are the same device"):
        devices.require_different([one, two])


@pytest.mark.parametrize(
    "mkfs", ["mkfs.ext4 -q", "mkfs.xfs -q", "mkswap", "mkfs.btrfs -q", "pvcreate -q", "mkfs.vfat"]
)
def test_what_another_program_made_is_named(disk: str, mkfs: str) -> None:
    program, *flags = mkfs.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing")
    done = subprocess.run([program, *flags, disk], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{program}: {done.stderr.strip()}")
    text = refusal(disk)
    name = {"mkswap": "swap area", "pvcreate": "LVM", "mkfs.vfat": "FAT"}.get(
        program, program.partition(".")[2]
    )
    assert "is not empty: it holds a" in text and name in text


def test_a_partition_table(disk: str) -> None:
    """One partition for Linux in a GPT, and a DOS table without any."""
    entry = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4").bytes_le + uuid.uuid4().bytes_le
    entry += struct.pack("<QQ", 2048, 4095) + bytes(80)
    header = b"EFI PART" + struct.pack(
        "<IIIIQQQQ", 0x10000, 92, 0, 0, 1, SIZE // 512 - 1, 34, SIZE // 512 - 34
    )
    header += uuid.uuid4().bytes_le + struct.pack("<QIII", 2, 4, 128, 0)
    write(disk, 512, header)
    write(disk, 1024, entry)
    assert "it holds a partition table (GPT)" in refusal(disk)
    fd = os.open(disk, os.O_RDWR)
    assert labels.gpt(fd) == [
        labels.Partition(uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4"), 2048 * 512, 2048 * 512)
    ]
    assert labels.whole_disk_pool(fd) == (False, None)
    devices.wipe_edges(fd, SIZE)
    os.close(fd)
    write(disk, 510, b"\x55\xaa")
    assert "it holds a partition table (MBR) or boot sector" in refusal(disk)


@pytest.mark.parametrize("at", [0, 1, 511, 4096, (2 << 20) - 1, -1, -(16 << 20)])
def test_a_single_byte_that_nobody_can_name_is_enough(disk: str, at: int) -> None:
    write(disk, at, b"\1")
    assert f"at byte {at if at >= 0 else SIZE + at};" in refusal(disk)


@pytest.mark.parametrize(
    ("at", "data", "name"),
    [
        (0, b"LUKS\xba\xbe", "LUKS"),
        (4096, struct.pack("<I", 0xA92B4EFC), "md RAID"),
        (SIZE - 0x10000, struct.pack("<I", 0xA92B4EFC), "md RAID"),
        (SIZE - 8192, struct.pack("<I", 0xA92B4EFC), "md RAID"),
        (512, b"LABELONE", "LVM"),
        (32, b"ORCLDISK", "Oracle ASM"),
        (0, b"bluestore block device", "Ceph"),
        (0x10040, b"_BHRfS_M", "btrfs"),
    ],
)
def test_signatures_by_their_bytes(disk: str, at: int, data: bytes, name: str) -> None:
    write(disk, at, data)
    assert name in refusal(disk)


@pytest.mark.parametrize("at", [0, labels.LABEL, SIZE - 2 * labels.LABEL, SIZE - labels.LABEL])
def test_any_of_the_four_zfs_labels_is_found(disk: str, at: int) -> None:
    packed = nvlist(
        version=5000, name="tank", state=1, pool_guid=(1 << 64) - 5, hostname="other", comment="mine"
    )
    write(disk, at + (16 << 10), packed)
    assert 'a label of the ZFS pool "tank" (exported)' in refusal(disk)
    fd = os.open(disk, os.O_RDONLY)
    found = labels.pool_label(fd, 0, SIZE)
    os.close(fd)
    assert found == labels.PoolLabel("tank", str((1 << 64) - 5), 1, "mine", "other")


def test_damaged_labels_are_no_labels() -> None:
    packed = nvlist(name="tank", pool_guid=7)
    for length in range(len(packed)):
        with pytest.raises(ValueError):
            labels.parse_nvlist(packed[:length])
    assert labels.parse_nvlist(packed) == {"name": "tank", "pool_guid": 7}


def test_a_mounted_disk_and_a_held_one(disk: str, tmp_path: Path) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    own = str(uuid.uuid4())
    subprocess.run(["mkfs.ext4", "-q", "-U", own, "-L", "mine", disk], check=True)
    fd = os.open(disk, os.O_RDONLY)
    assert labels.filesystem(fd) == labels.FilesystemLabel("ext4", own, "mine")
    os.close(fd)
    point = tmp_path / "mnt"
    point.mkdir()
    subprocess.run(["mount", disk, str(point)], check=True)
    try:
        assert f"is in use: {disk} is mounted at {point}" in refusal(disk)
    finally:
        subprocess.run(["umount", str(point)], check=True)
    held = os.open(disk, os.O_RDONLY | os.O_EXCL)
    try:
        assert "is in use: the kernel holds it, and it carries an ext4 file system (mine)" in refusal(disk)
    finally:
        os.close(held)


def test_what_is_no_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert "not a block device" in refusal(str(tmp_path / "file"))
    assert "No such file" in refusal(str(tmp_path / "none"))
    assert "not a block device" in refusal("/dev/null")


def test_after_wiping_the_edges_it_is_as_before(disk: str) -> None:
    for at in (0, 1 << 20, -512, -(8 << 20)):
        write(disk, at, b"x" * 512)
    fd = os.open(disk, os.O_RDWR)
    devices.wipe_edges(fd, SIZE)
    os.close(fd)
    devices.require_free(disk)
