"""Owners, modes, extended attributes, times."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mount_children import fails, in_child
from mount_ground import Ground, Mounted, spec
from mount_libc import getxattr, listxattr

pytestmark = pytest.mark.timeout(120)

ALICE, BOB, TEAM = 61001, 61002, 61100
NS = 10**9


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def owned(path: Path, uid: int, gid: int, bits: int, content: bytes = b"content") -> Path:
    path.write_bytes(content)
    os.chown(path, uid, gid)
    path.chmod(bits)
    return path


# --- modes and owners -----------------------------------------------------------------------------


def test_modes(place: Path) -> None:
    file = place / "file"
    file.touch()
    for bits in (0o000, 0o644, 0o777, 0o1777, 0o2755, 0o4711, 0o7777):
        file.chmod(bits)
        assert mode(file) == bits
    place.chmod(0o3775)
    assert mode(place) == 0o3775
    place.chmod(0o755)


def test_the_umask(place: Path) -> None:
    def make() -> None:
        os.umask(0o027)
        os.close(os.open(place / "file", os.O_CREAT | os.O_WRONLY, 0o666))
        (place / "dir").mkdir(0o777)
        os.mkfifo(place / "fifo", 0o666)
        (place / "link").symlink_to("file")

    in_child(make)
    assert [mode(place / name) for name in ("file", "dir", "fifo")] == [0o640, 0o750, 0o640]
    assert mode(place / "link") == 0o777


@pytest.mark.usefixtures("needs_users")
class TestUsers:
    def test_a_new_file_is_its_makers(self, place: Path) -> None:
        place.chmod(0o777)

        def make() -> None:
            (place / "file").write_bytes(b"x")
            (place / "dir").mkdir()
            (place / "link").symlink_to("file")
            os.mkfifo(place / "fifo")

        in_child(make, uid=ALICE, gid=TEAM)
        for name in ("file", "dir", "link", "fifo"):
            found = (place / name).lstat()
            assert (found.st_uid, found.st_gid) == (ALICE, TEAM), name

    def test_owners_change(self, place: Path) -> None:
        file = owned(place / "file", ALICE, TEAM, 0o644)
        found = file.stat()
        assert (found.st_uid, found.st_gid) == (ALICE, TEAM)
        os.chown(file, -1, 7)
        assert (file.stat().st_uid, file.stat().st_gid) == (ALICE, 7)
        os.chown(file, 4_000_000_000, 4_000_000_001)
        assert (file.stat().st_uid, file.stat().st_gid) == (4_000_000_000, 4_000_000_001)
        (place / "link").symlink_to("file")
        os.chown(place / "link", BOB, BOB, follow_symlinks=False)
        assert (place / "link").lstat().st_uid == BOB and file.stat().st_uid == 4_000_000_000

    def test_who_may_change_owners_and_modes(self, place: Path) -> None:
        file = owned(place / "file", ALICE, ALICE, 0o644)
        with fails(errno.EPERM):
            in_child(lambda: os.chown(file, BOB, -1), uid=ALICE)
        with fails(errno.EPERM):
            in_child(lambda: os.chown(file, -1, TEAM), uid=ALICE)
        in_child(lambda: os.chown(file, -1, TEAM), uid=ALICE, groups=[TEAM])  # a group of one's own
        assert file.stat().st_gid == TEAM
        with fails(errno.EPERM):
            in_child(lambda: file.chmod(0o777), uid=BOB)
        with fails(errno.EPERM):
            in_child(lambda: os.utime(file, ns=(1, 1)), uid=BOB)
        with fails(errno.EACCES):
            in_child(lambda: os.utime(file), uid=BOB)  # now: who may write may
        file.chmod(0o646)
        in_child(lambda: os.utime(file), uid=BOB)
        assert mode(file) == 0o646

    def test_who_may_read_and_write(self, place: Path) -> None:
        file = owned(place / "file", ALICE, TEAM, 0o640)
        assert in_child(file.read_bytes, uid=ALICE) == b"content"
        assert in_child(file.read_bytes, uid=BOB, gid=TEAM) == b"content"
        assert in_child(file.read_bytes, uid=BOB, groups=[5, TEAM]) == b"content"
        with fails(errno.EACCES):
            in_child(file.read_bytes, uid=BOB)
        with fails(errno.EACCES):
            in_child(lambda: file.write_bytes(b"x"), uid=BOB, gid=TEAM)
        with fails(errno.EACCES):
            in_child(lambda: os.truncate(file, 0), uid=BOB, gid=TEAM)
        file.chmod(0o077)
        with fails(errno.EACCES):  # the owner's bits are the ones that count
            in_child(file.read_bytes, uid=ALICE)
        assert file.read_bytes() == b"content", "root may"
        assert in_child(lambda: os.access(file, os.R_OK | os.W_OK | os.X_OK), uid=BOB)
        assert not in_child(lambda: os.access(file, os.R_OK), uid=ALICE)

    def test_rights_are_asked_for_at_open_only(self, place: Path) -> None:
        """A descriptor goes on when the mode changes; git and many others create files that
        they can't open again.
        """
        place.chmod(0o777)

        def work() -> bytes:
            fd = os.open(place / "file", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o400)
            os.write(fd, b"read-only from the start")
            os.fchmod(fd, 0o000)
            os.pwrite(fd, b"READ", 0)
            os.ftruncate(fd, 9)
            os.fsync(fd)
            found = os.pread(fd, 100, 0)
            os.close(fd)
            with fails(errno.EACCES):
                os.open(place / "file", os.O_RDONLY)
            return found

        assert in_child(work, uid=ALICE) == b"READ-only"
        fd = os.open(owned(place / "given", ALICE, ALICE, 0o600), os.O_RDWR)
        assert in_child(lambda: os.pwrite(fd, b"CONTENT", 0) and os.pread(fd, 10, 0), uid=BOB) == b"CONTENT"
        os.close(fd)

    def test_directories(self, place: Path) -> None:
        team = place / "team"
        team.mkdir()
        (team / "file").write_bytes(b"x")
        os.chown(team, ALICE, TEAM)
        team.chmod(0o770)
        for gid, groups in ((TEAM, ()), (BOB, (9, TEAM))):
            in_child((team / f"new-{gid}").touch, uid=BOB, gid=gid, groups=groups)
        in_child(lambda: (team / "file").rename(team / "renamed"), uid=BOB, groups=[TEAM])
        in_child(lambda: (team / "renamed").unlink(), uid=BOB, groups=[TEAM])
        with fails(errno.EACCES):
            in_child(lambda: os.listdir(team), uid=BOB)
        with fails(errno.EACCES):
            in_child(lambda: (team / f"new-{TEAM}").stat(), uid=BOB)
        team.chmod(0o774)  # read without search: names only
        assert sorted(in_child(lambda: os.listdir(team), uid=BOB)) == [f"new-{BOB}", f"new-{TEAM}"]
        with fails(errno.EACCES):
            in_child(lambda: (team / f"new-{TEAM}").stat(), uid=BOB)
        team.chmod(0o775)
        assert in_child(lambda: (team / f"new-{TEAM}").stat().st_uid, uid=BOB) == BOB
        with fails(errno.EACCES):
            in_child(lambda: (team / f"new-{TEAM}").unlink(), uid=ALICE + 7)
        with fails(errno.EACCES):
            in_child(lambda: (team / "mine").mkdir(), uid=ALICE + 7)

    def test_a_sticky_directory(self, place: Path) -> None:
        place.chmod(0o1777)
        owned(place / "file", ALICE, ALICE, 0o666)
        in_child(lambda: (place / "bobs").touch(), uid=BOB)
        with fails(errno.EPERM):
            in_child(lambda: (place / "file").unlink(), uid=BOB)
        with fails(errno.EPERM):
            in_child(lambda: (place / "file").rename(place / "taken"), uid=BOB)
        with fails(errno.EPERM):
            in_child(lambda: (place / "bobs").rename(place / "file"), uid=BOB)
        in_child(lambda: (place / "file").rename(place / "moved"), uid=ALICE)
        in_child(lambda: (place / "moved").unlink(), uid=ALICE)

    def test_a_setgid_directory_hands_down_its_group(self, place: Path) -> None:
        team = place / "team"
        team.mkdir()
        os.chown(team, ALICE, TEAM)
        team.chmod(0o2777)

        def make() -> None:
            (team / "file").touch()
            (team / "dir").mkdir(0o755)
            (team / "dir" / "below").touch()
            (team / "link").symlink_to("file")

        in_child(make, uid=BOB)
        for name in ("file", "dir", "dir/below", "link"):
            found = (team / name).lstat()
            assert (found.st_uid, found.st_gid) == (BOB, TEAM), name
        assert mode(team / "dir") == 0o2755 and mode(team / "file") == 0o644

    def test_writing_takes_away_setuid(self, place: Path) -> None:
        def write(path: Path) -> None:
            with path.open("r+b") as file:
                file.write(b"x")

        file = owned(place / "write", ALICE, ALICE, 0o6777)
        in_child(lambda: write(file), uid=ALICE)
        assert mode(file) == 0o777
        file = owned(place / "truncate", ALICE, ALICE, 0o6777)
        in_child(lambda: os.truncate(file, 1), uid=BOB)
        assert mode(file) == 0o777
        file = owned(place / "chown", ALICE, ALICE, 0o6777)
        in_child(lambda: os.chown(file, -1, TEAM), uid=ALICE, groups=[TEAM])
        assert mode(file) == 0o777 and file.stat().st_gid == TEAM
        file = owned(place / "chmod", ALICE, TEAM, 0o755)
        in_child(lambda: file.chmod(0o2755), uid=ALICE)  # not of that group
        assert mode(file) == 0o755
        file = owned(place / "root", ALICE, ALICE, 0o6777)
        write(file)
        assert mode(file) == 0o6777, "root is trusted"

    def test_what_was_written_by_another_does_not_run_with_its_rights(self, place: Path) -> None:
        """Nor for the second for which the kernel may believe what it knows of a file."""
        program = Path("/usr/bin/id").read_bytes()
        file = owned(place / "id", 0, 0, 0o4777, program)
        assert mode(file) == 0o4777

        def write_and_run() -> str:
            with file.open("r+b") as opened:
                opened.write(program)
            return subprocess.run([file, "-u"], capture_output=True, text=True, check=True).stdout

        assert in_child(write_and_run, uid=BOB) == f"{BOB}\n"

    @pytest.mark.parametrize("writer", [0, BOB])
    def test_writing_takes_away_capabilities(self, place: Path, writer: int) -> None:
        file = owned(place / "file", ALICE, ALICE, 0o777)
        name, raw = "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)  # CAP_NET_RAW
        os.setxattr(file, name, raw)
        assert os.getxattr(file, name) == raw
        with file.open("r+b") as opened:
            in_child(lambda: os.write(opened.fileno(), b"x"), uid=writer)
        with fails(errno.ENODATA):
            os.getxattr(file, name)

    def test_a_database_runs_as_its_own_user(self, place: Path) -> None:
        """What initdb does in a directory that was handed over, with 0700 all the way."""
        home = place / "data"
        home.mkdir()
        os.chown(home, ALICE, ALICE)
        home.chmod(0o700)

        def work() -> int:
            os.umask(0o077)
            (home / "base" / "1").mkdir(parents=True)
            for n in range(50):
                (home / "base" / "1" / str(n)).write_bytes(bytes(8192))
            (home / "base" / "1" / "0").rename(home / "base" / "1" / "renamed")
            return len(os.listdir(home / "base" / "1"))

        assert in_child(work, uid=ALICE) == 50
        with fails(errno.EACCES):
            in_child(lambda: os.listdir(home), uid=BOB)
        assert mode(home / "base" / "1" / "renamed") == 0o600


# --- extended attributes --------------------------------------------------------------------------


def test_attributes(place: Path) -> None:
    file = place / "file"
    file.touch()
    assert os.listxattr(file) == []
    os.setxattr(file, "user.one", b"1")
    os.setxattr(file, "user.empty", b"")
    os.setxattr(file, "user.binary", bytes(range(256)))
    assert sorted(os.listxattr(file)) == ["user.binary", "user.empty", "user.one"]
    assert [os.getxattr(file, f"user.{n}") for n in ("one", "empty", "binary")] == [
        b"1",
        b"",
        bytes(range(256)),
    ]
    with fails(errno.EEXIST):
        os.setxattr(file, "user.one", b"2", os.XATTR_CREATE)
    with fails(errno.ENODATA):
        os.setxattr(file, "user.two", b"2", os.XATTR_REPLACE)
    os.setxattr(file, "user.one", b"a longer value than before", os.XATTR_REPLACE)
    os.setxattr(file, "user.two", b"2", os.XATTR_CREATE)
    os.setxattr(file, "user.two", b"")
    assert (
        os.getxattr(file, "user.one") == b"a longer value than before"
        and os.getxattr(file, "user.two") == b""
    )
    os.removexattr(file, "user.one")
    for call in (os.getxattr, os.removexattr):
        with fails(errno.ENODATA):
            call(file, "user.one")
    assert sorted(os.listxattr(file)) == ["user.binary", "user.empty", "user.two"]


def test_a_mount_says_what_its_dataset_has(ground: Ground) -> None:
    """Who records a database there asks for it, as of the kernel's ZFS with `zfs get`."""
    if not ground.zfs:
        pytest.skip("it is no mount of ZFS")
    assert len(getxattr(ground.small, "ztune.compression", 0)) == len("off")
    assert [os.getxattr(top, "ztune.compression") for top in (ground.small, ground.large)] == [b"off", b"lz4"]
    assert os.listxattr(ground.large) == []
    with fails(errno.ERANGE):
        getxattr(ground.small, "ztune.compression", 2)
    with fails(errno.ENODATA):
        os.getxattr(ground.small, "ztune.nothing")


def test_buffers_for_attributes(place: Path) -> None:
    file = place / "file"
    file.touch()
    os.setxattr(file, "user.word", b"0123456789")
    assert len(getxattr(file, "user.word", 0)) == 10, "size 0 asks how long it is"
    assert getxattr(file, "user.word", 10) == b"0123456789" == getxattr(file, "user.word", 1000)
    with fails(errno.ERANGE):
        getxattr(file, "user.word", 9)
    assert listxattr(file, 0) == len("user.word") + 1 == listxattr(file, 1000)
    with fails(errno.ERANGE):
        listxattr(file, 5)


def test_large_and_many_attributes(ground: Ground, place: Path) -> None:
    file, r = place / "file", random.Random(1)
    file.touch()
    values = {f"user.name-{n}": r.randbytes(n * 7) for n in range(40 if ground.zfs else 10)}
    for name, value in values.items():
        os.setxattr(file, name, value)
    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == values
    for size in (3000, 30_000) if ground.zfs else (3000,):  # ext4 has room for a block
        value = r.randbytes(size)
        os.setxattr(place, "user.large", value)
        assert os.getxattr(place, "user.large") == value
    long_name = "user." + "n" * 250
    os.setxattr(place, long_name, b"v")
    assert os.getxattr(place, long_name) == b"v"
    with fails(errno.ERANGE):
        os.setxattr(place, long_name + "n", b"v")
    with fails(errno.E2BIG, errno.ENOSPC):
        os.setxattr(place, "user.huge", bytes(65_537))


def test_the_largest_attribute(ground: Ground, place: Path) -> None:
    """All of a file's have 64 KiB; the kernel's ZFS puts more into a hidden directory, a mount refuses it."""
    if not ground.zfs:
        pytest.skip("ext4 has room for a block")
    value = random.Random(1).randbytes(65_536)
    os.setxattr(place, "user.large", value[:60_000])
    assert os.getxattr(place, "user.large") == value[:60_000]
    for name in ("user.large", "user.second"):
        with fails(errno.ENOSPC):
            os.setxattr(place, name, value)
    assert os.getxattr(place, "user.large") == value[:60_000] and os.listxattr(place) == ["user.large"]


def test_where_attributes_may_be(place: Path) -> None:
    file = place / "file"
    file.touch()
    (place / "link").symlink_to("file")
    (place / "dir").mkdir()
    os.setxattr(place / "dir", "user.dir", b"d")
    os.setxattr(place / "link", "user.through", b"t")
    assert os.listxattr(file) == ["user.through"] and os.listxattr(place / "dir") == ["user.dir"]
    with fails(errno.EPERM):
        os.setxattr(place / "link", "user.own", b"x", follow_symlinks=False)
    with fails(errno.EOPNOTSUPP):
        os.setxattr(file, "nonsense.name", b"x")
    fd = os.open(file, os.O_RDWR)
    os.setxattr(fd, "user.descriptor", b"by fd")
    file.unlink()
    assert os.getxattr(fd, "user.descriptor") == b"by fd"
    os.close(fd)


@pytest.mark.usefixtures("needs_users")
def test_who_may_see_attributes(place: Path) -> None:
    file = owned(place / "file", ALICE, ALICE, 0o600)
    os.setxattr(file, "user.secret", b"s")
    os.setxattr(file, "trusted.root", b"r")
    assert os.getxattr(file, "trusted.root") == b"r"
    with fails(errno.EACCES):
        in_child(lambda: os.getxattr(file, "user.secret"), uid=BOB)
    assert in_child(lambda: os.getxattr(file, "user.secret"), uid=ALICE) == b"s"
    assert in_child(lambda: os.listxattr(file), uid=ALICE) == ["user.secret"]
    with fails(errno.EPERM):
        in_child(lambda: os.setxattr(file, "trusted.mine", b"x"), uid=ALICE)
    file.chmod(0o644)
    with fails(errno.EACCES):
        in_child(lambda: os.setxattr(file, "user.other", b"x"), uid=BOB)


# --- times ----------------------------------------------------------------------------------------


def test_times_are_kept_to_the_nanosecond(place: Path) -> None:
    file = place / "file"
    file.touch()
    (place / "link").symlink_to("file")
    for ns in (1, 999_999_999, 1_234_567_890_123_456_789, 2_147_483_648 * NS + 7, 4_102_444_800 * NS + 1):
        os.utime(file, ns=(ns, ns + 1))
        found = file.stat()
        assert (found.st_atime_ns, found.st_mtime_ns) == (ns, ns + 1)
    os.utime(file, ns=(-86_400 * NS, -NS))
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (-86_400 * NS, -NS)
    os.utime(place / "link", ns=(3, 4), follow_symlinks=False)
    assert (place / "link").lstat().st_mtime_ns == 4 and file.stat().st_mtime_ns == -NS
    before = file.stat().st_ctime_ns
    os.utime(file, ns=(5, 6))
    assert file.stat().st_ctime_ns >= before
    os.utime(file)
    assert abs(file.stat().st_mtime_ns - time.time_ns()) < 3600 * NS


def set_back(path: Path) -> tuple[int, int]:
    """Set the times of ``path`` to long ago; return mtime and ctime. What touches it then is seen."""
    os.utime(path, ns=(NS, NS))
    time.sleep(0.015)  # a kernel's clock for file times moves every few milliseconds
    found = path.lstat()
    return found.st_mtime_ns, found.st_ctime_ns


def test_what_moves_the_times_of_a_file(place: Path) -> None:
    file = place / "file"
    file.write_bytes(b"content")
    fd = os.open(file, os.O_RDWR)
    changes: dict[str, tuple[Callable[[], object], bool | None]] = {
        "write": (lambda: os.pwrite(fd, b"C", 0), True),
        "append": (lambda: os.pwrite(fd, b"longer", 7), True),
        "chmod": (lambda: os.fchmod(fd, 0o600), False),
        "link": (lambda: os.link(file, place / "link"), False),
        "unlink": (lambda: (place / "link").unlink(), False),
        "rename": (lambda: file.rename(file), None),
        "xattr": (lambda: os.setxattr(fd, "user.x", b"x"), False),
        "truncate": (lambda: os.ftruncate(fd, 3), True),
    }
    for name, (change, content) in changes.items():
        mtime, ctime = set_back(file)
        change()
        found = os.fstat(fd)
        if content is None:
            continue
        assert found.st_ctime_ns > ctime, name
        assert (found.st_mtime_ns > mtime) is content, name
        assert found.st_atime_ns == NS or found.st_atime_ns > ctime, name
    mtime, ctime = set_back(file)
    assert os.pread(fd, 10, 0) == b"Con"
    found = os.fstat(fd)
    assert (found.st_mtime_ns, found.st_ctime_ns) == (mtime, ctime), "reading"
    assert found.st_atime_ns >= NS
    os.close(fd)


def test_what_moves_the_times_of_a_directory(place: Path) -> None:
    folder = place / "dir"
    folder.mkdir()
    outside = place / "outside"
    outside.touch()
    changes: dict[str, Callable[[], object]] = {
        "create": lambda: (folder / "file").touch(),
        "mkdir": lambda: (folder / "sub").mkdir(),
        "symlink": lambda: (folder / "link").symlink_to("x"),
        "link": lambda: os.link(outside, folder / "hard"),
        "rename within": lambda: (folder / "hard").rename(folder / "harder"),
        "rename into": lambda: outside.rename(folder / "in"),
        "rename out": lambda: (folder / "in").rename(place / "out"),
        "unlink": lambda: (folder / "file").unlink(),
        "rmdir": lambda: (folder / "sub").rmdir(),
    }
    for name, change in changes.items():
        mtime, ctime = set_back(folder)
        change()
        found = folder.stat()
        assert found.st_mtime_ns > mtime and found.st_ctime_ns > ctime, name
    mtime, ctime = set_back(folder)
    (folder / "harder").write_bytes(b"what is in a file is no matter of its directory")
    assert sorted(os.listdir(folder)) == ["harder", "link"]
    assert (folder.stat().st_mtime_ns, folder.stat().st_ctime_ns) == (mtime, ctime)


def test_new_files_are_new(place: Path) -> None:
    before = time.time_ns() - NS  # the file system's clock may be behind by a tick
    (place / "file").touch()
    (place / "dir").mkdir()
    for name in ("file", "dir"):
        found = (place / name).stat()
        assert before <= found.st_mtime_ns <= time.time_ns() + NS
        assert found.st_ctime_ns >= before and found.st_atime_ns >= before


@pytest.mark.parametrize(("said", "moves"), [({"atime": "on"}, True), ({"atime": "off"}, False), ({}, False)])
def test_atime_is_heeded(own_mount: Callable[..., Mounted], said: dict[str, str], moves: bool) -> None:
    told = spec()
    told["datasets"][0]["properties"] |= {**said, "relatime": "off"}
    made = own_mount(told)
    file = made.small / "read"
    file.write_bytes(b"x" * 10)
    now = time.time_ns()
    os.utime(file, ns=(now - 50 * NS, now - 100 * NS))
    before = file.stat().st_atime_ns
    assert file.read_bytes() == b"x" * 10
    assert (file.stat().st_atime_ns > before) is moves
