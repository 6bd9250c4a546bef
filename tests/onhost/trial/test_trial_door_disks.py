"""What the door wipes of a disk that a dead trial had: its own labels, and nothing else. On loop devices."""

from __future__ import annotations

import hashlib
import io
import os
import random
import struct
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zfs_labels

from ztune.errors import Refused
from ztune.onhost.events import Events
from ztune.onhost.fields import to_json
from ztune.onhost.host import devices, filesystems, labels
from ztune.onhost.host.about import boot_id
from ztune.onhost.host.zfs import Commands, Zfs
from ztune.onhost.trial.door import Door
from ztune.onhost.trial.journal import Thing

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs root and loop devices"
)
SIZE = 64 << 20
LARGE = 320 << 20  # mkfs.xfs makes none on less than 300 MiB
STATE = Path("/var/tmp/ztune")
POOL = "zt1-main"
LINUX = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4")
Content = Mapping[int, bytes]


class Scene:
    """A disk that a trial took when it was empty, and the trial's door."""

    def __init__(self, file: Path, size: int) -> None:
        self.file = file
        with file.open("wb") as image:
            image.truncate(size)
        argv = ["losetup", "--find", "--show", str(file)]
        self.node = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        self.disk = devices.Disk.of(self.node)
        zfs = Zfs(Commands(Events(io.StringIO())))
        self.door = Door(zfs, run="r-1", trial="r-1-1", state=STATE, directory=STATE / "r-1/r-1-1")

    def write(self, *contents: Content) -> None:
        fd = os.open(self.node, os.O_RDWR)
        for content in contents:
            for at, data in content.items():
                os.pwrite(fd, data, at if at >= 0 else SIZE + at)
        os.fsync(fd)
        os.close(fd)

    def digest(self) -> str:
        subprocess.run(["blockdev", "--flushbufs", self.node], check=True)
        with Path(self.node).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()

    def release(self, **facts: Any) -> None:
        known = {**to_json(self.disk), "pool": POOL, "class": "data", **facts}
        self.door.remove(Thing(f"disk:{self.node}", "disk", known, made=True, boot=boot_id()))

    def refused(self, **facts: Any) -> str:
        """Return why the disk is left alone, and make sure that it is: byte for byte."""
        before = self.digest()
        with pytest.raises(Refused) as caught:
            self.release(**facts)
        assert self.digest() == before
        said = str(caught.value)
        assert said.startswith(f"disk {self.node}: left alone: ")
        return said

    def labels(self, *, whole: bool, **more: object) -> None:
        """Write the four labels of a pool of the trial, on the bare disk or in a partition."""
        start, size = 0, SIZE
        if whole:
            self.write(zfs_labels.whole_disk(SIZE))
            with Path(self.node).open("rb") as content:
                found = labels.gpt(content.fileno())
            assert found
            start, size = found[0].start, found[0].size
        values = {"version": 5000, "name": POOL, "state": 2, "pool_guid": 77, "comment": self.door.token}
        self.write(zfs_labels.four(start, size, zfs_labels.nvlist(**{**values, **more})))


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(tmp_path / "disk", getattr(request, "param", SIZE))
    yield made
    subprocess.run(["losetup", "-d", made.node], check=True)


def ocfs2() -> Content:
    """Return the beginning of an OCFS2 volume: the headers that keep OCFS1 off, and the super-block."""
    return {0: b"\0" * 8 + b"this is an ocfs2 volume", 512: b"this is an ocfs2 volume", 8192: b"OCFSV2\0\0"}


def noise(at: int, size: int) -> Content:
    """Return what a plain dm-crypt volume looks like."""
    return {at: random.Random(1).randbytes(size)}


UNKNOWN = {
    "plain dm-crypt": noise(0, 4 << 20),
    "OCFS2": ocfs2(),
    "GFS2": {65536: struct.pack(">IIQ", 0x01161970, 1, 0)},
    "raw InnoDB": {0: struct.pack(">IIII", 0x5EAF00D, 0, 0xFFFFFFFF, 0xFFFFFFFF), 16384: b"\x11" * 16384},
    "VMFS": {1 << 20: struct.pack("<I", 0xC001D00D)},
    "the last byte": {-1: b"\1"},
    "a byte in the tail": {-(16 << 20): b"\1"},
}


@pytest.mark.parametrize("content", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_is_not_known_is_left_alone(scene: Scene, content: Content) -> None:
    scene.write(content)
    said = scene.refused(pool_begun=True)
    assert "it holds data that ztune does not know, at byte " in said
    assert said.endswith(
        "; if nobody needs it, overwrite its first and last 16 MiB with zeros, then clean again"
    )


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (zfs_labels.table(SIZE, LINUX), "a partition table (GPT)"),
        (zfs_labels.whole_disk(SIZE), "a partition table (GPT)"),
        ({510: b"\x55\xaa"}, "a partition table (MBR) or boot sector"),
    ],
    ids=["of Linux", "of ZFS", "MBR"],
)
def test_a_partition_table_without_a_label_of_ours_is_left_alone(
    scene: Scene, content: Content, name: str
) -> None:
    scene.write(content)
    assert f"it holds {name}; if nobody needs it, " in scene.refused(pool_begun=False)
    assert f"it holds {name}; if nobody needs it, " in scene.refused()


def test_the_table_of_a_pool_that_was_just_begun_is_ours(scene: Scene) -> None:
    scene.write(zfs_labels.whole_disk(SIZE))
    scene.release(pool_begun=True)
    devices.require_free(scene.node)


@pytest.mark.parametrize("content", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_such_a_table_with_anything_else_is_not(scene: Scene, content: Content) -> None:
    start = 1 << 20  # of the partition, where all these are at home too
    # The last byte of all is the table's.
    shifted = {at + start if at >= 0 else at - start if at == -1 else at: d for at, d in content.items()}
    scene.write(zfs_labels.whole_disk(SIZE), shifted)
    assert "it holds a partition table (GPT); " in scene.refused(pool_begun=True)


def test_a_table_of_others_is_not_one_of_a_pool_just_begun(scene: Scene) -> None:
    scene.write(zfs_labels.table(SIZE, LINUX))
    assert "it holds a partition table (GPT); " in scene.refused(pool_begun=True)


@pytest.mark.parametrize("more", [{}, {"comment": ""}], ids=["finished", "without its comment"])
@pytest.mark.parametrize("whole", [True, False])
def test_our_labels_are_wiped(scene: Scene, whole: bool, more: dict[str, object]) -> None:
    scene.labels(whole=whole, **more)
    scene.release()
    devices.require_free(scene.node)


@pytest.mark.parametrize("content", [ocfs2(), noise(0, 1 << 20)], ids=["OCFS2", "plain dm-crypt"])
@pytest.mark.parametrize("start", [0, 1 << 20])
def test_labels_of_ours_below_what_somebody_made_since(scene: Scene, start: int, content: Content) -> None:
    scene.labels(whole=start > 0)
    scene.write({start + at: data for at, data in content.items()})
    assert "somebody wrote over what this trial made on it; " in scene.refused()


def test_labels_of_others_are_left_alone(scene: Scene) -> None:
    scene.labels(whole=False, comment="mine", name="tank")
    assert 'it carries a label of the ZFS pool "tank"' in scene.refused()


@pytest.mark.parametrize("scene", [LARGE], indirect=True)
@pytest.mark.parametrize("type", ["ext4", "xfs"])
def test_our_file_system_is_wiped_and_another_is_not(scene: Scene, type: str) -> None:
    own, label = filesystems.new_identity()
    filesystems.make(Commands(Events(io.StringIO())), type, scene.node, own, label)
    other, _ = filesystems.new_identity()
    assert f"it holds an {type} file system that is not ours" in scene.refused(uuid=other, label=label)
    scene.release(uuid=own, label=label)
    devices.require_free(scene.node)


def test_an_empty_disk_has_nothing_to_wipe(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "wipe_edges", lambda _fd, _size: pytest.fail("it was written to"))
    scene.release()
    devices.require_free(scene.node)
