"""A guest whose kernel runs in user mode: it is the lab's like any other, with disks from its beginning."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.disk import server
from ztune.errors import ZtuneError
from ztune.lab import Guest, build_user_mode, image
from ztune.lab.image import Image
from ztune.lab.uml import GuestDisk, Uml, check_rights
from ztune.study import profiles

pytestmark = pytest.mark.slow
GIB = 1 << 30


@pytest.fixture(scope="module")
def user_mode_image() -> Image:
    try:
        check_rights()
        return image.find(user_mode=True)
    except ZtuneError as error:
        pytest.skip(f"no guest in user mode here: {error}")


@pytest.fixture
def guest(user_mode_image: Image, tmp_path: Path) -> Iterator[Guest]:
    """A guest with a plain disk and one that has the times of an hdd-7200."""
    plain = tmp_path / "plain"
    with plain.open("wb") as out:
        out.truncate(GIB)
    shaped = server.start(profiles.find("hdd-7200"), GIB, tmp_path / "back", tmp_path / "nbd")
    disks = [GuestDisk("plain", plain), GuestDisk("shaped", server.guest_socket(tmp_path / "nbd"), 7200)]
    with shaped, Guest.in_user_mode(user_mode_image, 1024, disks) as up:
        yield up


def test_it_has_openzfs_the_host_s_files_and_its_disks(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("here")
    assert guest.run(["cat", f"/host{tmp_path}/word"], check=True).stdout == b"here"
    assert guest.image.openzfs.encode() in guest.run(["zpool", "version"], check=True).stdout
    for disk, turns in (("plain", "0"), ("shaped", "1")):
        path, _, size, rotational = guest.run(["@disk", disk, "5"], check=True).stdout.decode().split()
        assert (path, size, rotational) == (f"/dev/disk/by-id/ztune-{disk}", str(GIB), turns)


def test_the_host_s_files_cannot_be_written(guest: Guest, tmp_path: Path) -> None:
    """Nor where root in the guest mounts them for writing: this host's kernel refuses."""
    (tmp_path / "mine").write_text("mine")
    for before in ("true", "mount -o remount,rw /host", "mount -t hostfs -o / none /mnt"):
        place = "/mnt" if "/mnt" in before else "/host"
        write = f"{before} && echo theirs > {place}{tmp_path}/mine; rm {place}{tmp_path}/mine"
        refused = guest.run(["sh", "-c", write])
        assert refused.returncode and b"Read-only" in refused.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_pool_is_made_and_each_sync_waits_for_the_disk(guest: Guest) -> None:
    """7200 revolutions a minute are 120 a second: so many syncs one after the other it can do."""
    script = (
        "zpool create -o ashift=12 t /dev/disk/by-id/ztune-shaped && cd /t && "
        "date +%s.%N && for i in $(seq 100); do dd if=/dev/zero of=f$i bs=4k count=1 oflag=sync status=none; "
        "done && date +%s.%N && cd / && zpool export t"
    )
    began, ended = map(float, guest.run(["sh", "-c", script], check=True).stdout.split())
    assert ended - began > 100 / 240


READER = """
import mmap, os, random, sys, time
device, seconds, readers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
for reader in range(readers):
    if os.fork() == 0:
        file = os.open(device, os.O_RDONLY | os.O_DIRECT)
        page, dice = mmap.mmap(-1, 8192), random.Random(reader)
        until = time.time() + seconds
        while time.time() < until:
            os.preadv(file, [page], dice.randrange(8192) * 8192)
        os._exit(0)
for _ in range(readers):
    os.wait()
"""


def test_two_who_read_do_not_go_in_step(user_mode_image: Image, tmp_path: Path) -> None:
    """Each goes on when its own answer is there: but for the first, a read finds the other's under way.

    Through QEMU's client of NBD every second read found none: an answer was kept until the next one came.
    """
    shaped = server.start(profiles.find("hdd-7200"), GIB, tmp_path / "back", tmp_path / "nbd", dilation=4)
    disks = [GuestDisk("shaped", server.guest_socket(tmp_path / "nbd"), 7200)]
    with shaped, Guest.in_user_mode(user_mode_image, 1024, disks) as guest:
        python = f"/host{Path(sys.executable).resolve()}"
        before = shaped.stats()["queue_depth"]
        words = [python, "-c", READER, "/dev/disk/by-id/ztune-shaped", "4", "2"]
        guest.run(words, check=True, timeout=60)
        depth = shaped.stats()["queue_depth"]
    alone = depth[0] - before[0]
    assert sum(depth) - sum(before) > 50 and alone < 0.25 * (sum(depth) - sum(before)), (before, depth)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Kernel panic - not syncing: map_memory(0x6a0, 3, 0x5b, 4096, 1, 1, 1) failed, err = -12",
         "is in more pieces than this host maps"),
        ("Kernel panic - not syncing: zfs: allocating", "has ended: Kernel panic - not syncing: zfs"),
        ("reboot: System halted", "has ended: reboot: System halted"),
    ],
)  # fmt: skip
def test_its_last_words_say_what_to_do(said: str, words: str, tmp_path: Path) -> None:
    uml = Uml.__new__(Uml)
    uml.console, uml.process = tmp_path / "console", subprocess.Popen(["true"])
    uml.console.write_text(f"Linux version 6.1\n{said}\n")
    assert words in uml.last_words()


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.c").write_text("one two")
    build_user_mode.edit(tmp_path, (build_user_mode.Edit("file.c", "one", "1"),))
    assert (tmp_path / "file.c").read_text() == "1 two"
    for file in ("file.c", "other.c"):
        with pytest.raises(ZtuneError, match=f"{file} is not as expected"):
            build_user_mode.edit(tmp_path, (build_user_mode.Edit(file, "one", "1"),))
