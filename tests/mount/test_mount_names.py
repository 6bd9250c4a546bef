"""Names, directories and links: what OpenZFS on Linux does with them, through the mount."""

from __future__ import annotations

import errno
import os
import random
import socket
import stat
from functools import partial
from pathlib import Path

import pytest
from mount_children import Child, Signal, fails, in_child
from mount_ground import Ground
from mount_libc import RENAME_EXCHANGE, RENAME_NOREPLACE, Directory, rename

pytestmark = pytest.mark.timeout(120)

NAME_MAX = 255


def text(path: Path, words: str) -> Path:
    path.write_text(words)
    return path


# --- rename ---------------------------------------------------------------------------------------


def test_rename_over_a_file_replaces_it_at_once(place: Path) -> None:
    old, new = text(place / "old", "old"), text(place / "new", "new")
    inode = old.stat().st_ino
    with new.open() as replaced:
        old.rename(new)
        assert os.listdir(place) == ["new"]
        assert new.read_text() == "old" and new.stat().st_ino == inode
        assert replaced.read() == "new" and os.fstat(replaced.fileno()).st_nlink == 0


def test_a_file_that_is_renamed_over_is_never_missing(place: Path) -> None:
    """What every database does with its control file: a reader sees the old one or the new one."""
    target = text(place / "control", "0" * 100)
    ready = Signal()

    def replace() -> int:
        ready.say()
        for n in range(1, 301):
            text(place / "control.tmp", str(n) * 100).rename(target)
        return n

    writer = Child(replace)
    ready.wait()
    seen = set()
    for _ in range(300):
        found = target.read_text()
        assert found and found == found[: len(found) // 100] * 100
        seen.add(found)
    assert writer.result() == 300
    assert target.read_text() == "300" * 100 and os.listdir(place) == ["control"]


def test_rename_over_an_empty_directory(place: Path) -> None:
    (place / "old").mkdir()
    text(place / "old" / "inside", "x")
    (place / "new").mkdir()
    (place / "old").rename(place / "new")
    assert os.listdir(place) == ["new"] and os.listdir(place / "new") == ["inside"]


def test_what_rename_refuses(place: Path) -> None:
    (place / "full").mkdir()
    file = text(place / "full" / "file", "x")
    (place / "empty").mkdir()
    with fails(errno.ENOTEMPTY, errno.EEXIST):  # POSIX allows both
        (place / "empty").rename(place / "full")
    with fails(errno.EISDIR):
        file.rename(place / "empty")
    with fails(errno.ENOTDIR):
        (place / "empty").rename(file)
    with fails(errno.ENOENT):
        (place / "nothing").rename(place / "empty")
    with fails(errno.ENOENT):
        file.rename(place / "no" / "where")
    with fails(errno.ENOTDIR):
        file.rename(file / "below")
    assert sorted(os.listdir(place)) == ["empty", "full"] and file.read_text() == "x"


def test_a_directory_does_not_move_into_itself(place: Path) -> None:
    deep = place / "a" / "b" / "c"
    deep.mkdir(parents=True)
    for target in (place / "a" / "a", place / "a" / "b" / "a", deep / "a"):
        with fails(errno.EINVAL):
            (place / "a").rename(target)
    with fails(errno.ENOTEMPTY, errno.EEXIST):  # the other way: over its own ancestor
        deep.rename(place / "a")
    assert deep.is_dir()


def test_a_directory_moves_to_another_parent(place: Path) -> None:
    one, two = place / "one", place / "two"
    (one / "child" / "grandchild").mkdir(parents=True)
    two.mkdir()
    assert (one.stat().st_nlink, two.stat().st_nlink) == (3, 2)
    fd = os.open(one / "child", os.O_RDONLY)
    (one / "child").rename(two / "moved")
    assert (one.stat().st_nlink, two.stat().st_nlink) == (2, 3)
    above = os.open("..", os.O_RDONLY, dir_fd=fd)
    assert os.fstat(above).st_ino == two.stat().st_ino
    os.close(above)
    os.close(fd)
    assert os.listdir(two / "moved") == ["grandchild"]
    one.rmdir()


def test_rename_of_two_links_to_one_file_does_nothing(place: Path) -> None:
    one = text(place / "one", "x")
    os.link(one, place / "two")
    one.rename(place / "two")
    assert sorted(os.listdir(place)) == ["one", "two"] and one.stat().st_nlink == 2


def test_rename_in_a_directory_to_its_own_name(place: Path) -> None:
    one = text(place / "one", "x")
    one.rename(one)
    assert one.read_text() == "x" and one.stat().st_nlink == 1


@pytest.fixture
def flags_known(place: Path) -> None:
    """OpenZFS has the flags of renameat2 since 2.2; before, EINVAL is its answer."""
    probe = text(place / "probe", "")
    try:
        rename(probe, place / "probed", RENAME_NOREPLACE)
    except OSError as error:
        assert error.errno == errno.EINVAL, error
        pytest.skip("this OpenZFS has no flags of renameat2, and says EINVAL as it should")
    (place / "probed").unlink()


@pytest.mark.usefixtures("flags_known")
def test_rename_that_may_not_replace(place: Path) -> None:
    one, two = text(place / "one", "1"), text(place / "two", "2")
    with fails(errno.EEXIST):
        rename(one, two, RENAME_NOREPLACE)
    assert (one.read_text(), two.read_text()) == ("1", "2")
    rename(one, place / "three", RENAME_NOREPLACE)
    assert sorted(os.listdir(place)) == ["three", "two"]


@pytest.mark.usefixtures("flags_known")
def test_rename_that_exchanges(place: Path) -> None:
    one, two = place / "one", place / "two"
    (one / "sub").mkdir(parents=True)
    two.mkdir()
    text(two / "file", "x")
    text(two / "inner", "y")
    rename(one / "sub", two / "file", RENAME_EXCHANGE)  # a directory and a file, between directories
    assert (one / "sub").read_text() == "x" and (two / "file").is_dir()
    assert (one.stat().st_nlink, two.stat().st_nlink) == (2, 3)
    with fails(errno.ENOENT):
        rename(two / "inner", two / "nothing", RENAME_EXCHANGE)
    with fails(errno.EINVAL):
        rename(two / "inner", two / "nothing", RENAME_EXCHANGE | RENAME_NOREPLACE)
    assert (two / "inner").read_text() == "y"


def test_rename_and_link_do_not_cross_datasets(ground: Ground, place: Path, other: Path) -> None:
    if place.stat().st_dev == other.stat().st_dev:
        assert not ground.zfs, "each dataset is a file system of its own"
        pytest.skip("both directories are on one file system")
    file = text(place / "file", "x")
    with fails(errno.EXDEV):
        file.rename(other / "file")
    with fails(errno.EXDEV):
        os.link(file, other / "file")
    (place / "dir").mkdir()
    with fails(errno.EXDEV):
        (place / "dir").rename(other / "dir")
    assert os.listdir(other) == [] and file.read_text() == "x"


# --- links ----------------------------------------------------------------------------------------


def test_hard_links(place: Path) -> None:
    one = text(place / "one", "first")
    (place / "sub").mkdir()
    two = place / "sub" / "two"
    os.link(one, two)
    a, b = one.stat(), two.stat()
    assert a.st_ino == b.st_ino and a.st_nlink == b.st_nlink == 2
    with two.open("a") as file:
        file.write(" second")
    two.chmod(0o640)
    assert one.read_text() == "first second" and stat.S_IMODE(one.stat().st_mode) == 0o640
    with fails(errno.EEXIST):
        os.link(one, two)
    with fails(errno.EPERM):
        os.link(place / "sub", place / "loop")
    one.unlink()
    assert two.stat().st_nlink == 1 and two.read_text() == "first second"


def test_many_links_to_one_file(place: Path) -> None:
    one = text(place / "one", "x")
    for n in range(1000):
        os.link(one, place / f"link{n}")
    assert one.stat().st_nlink == 1001
    for n in range(0, 1000, 2):
        (place / f"link{n}").unlink()
    assert one.stat().st_nlink == 501
    assert {entry.stat().st_ino for entry in os.scandir(place)} == {one.stat().st_ino}


def test_a_directory_counts_its_subdirectories(place: Path) -> None:
    for n in range(10):
        (place / f"d{n}").mkdir()
    assert place.stat().st_nlink == 12
    text(place / "file", "x")
    (place / "d3").rmdir()
    assert place.stat().st_nlink == 11


def test_symlinks(place: Path) -> None:
    target = text(place / "target", "x")
    link = place / "link"
    link.symlink_to("target")
    assert link.read_text() == "x" and os.readlink(link) == "target"
    found = link.lstat()
    assert stat.S_ISLNK(found.st_mode) and found.st_size == len("target")
    assert found.st_ino != target.stat().st_ino and target.stat().st_nlink == 1
    with fails(errno.EEXIST):
        link.symlink_to("elsewhere")
    os.link(link, place / "both", follow_symlinks=False)
    assert os.readlink(place / "both") == "target" and link.lstat().st_nlink == 2
    target.unlink()
    with fails(errno.ENOENT):
        link.read_text()
    assert link.is_symlink()
    with fails(errno.EINVAL):
        os.readlink(place)
    with fails(errno.ELOOP):
        os.open(link, os.O_RDONLY | os.O_NOFOLLOW)


def test_symlinks_in_a_circle_and_long_ones(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with fails(errno.ELOOP):
        (place / "a").stat()
    for length in (1, 60, 200, 1000, 4095):
        path = place / f"long{length}"
        path.symlink_to("x" * length)
        assert os.readlink(path) == "x" * length and path.lstat().st_size == length


# --- unlink while open ----------------------------------------------------------------------------


def test_a_file_that_is_unlinked_while_open_works_on(each: Path) -> None:
    path = text(each / "gone", "before")
    fd = os.open(path, os.O_RDWR)
    path.unlink()
    assert os.listdir(each) == [], "no stand-in for the open file may be seen"
    with fails(errno.ENOENT):
        path.stat()
    found = os.fstat(fd)
    assert found.st_nlink == 0 and found.st_size == 6
    assert os.pread(fd, 100, 0) == b"before"
    blob = random.Random(1).randbytes(300_000)
    assert os.pwrite(fd, blob, 1 << 20) == len(blob)
    os.fsync(fd)
    assert os.pread(fd, len(blob), 1 << 20) == blob
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, 3)
    assert os.pread(fd, 100, 0) == b"bef" and stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    text(path, "another")  # the name is free again
    assert os.pread(fd, 100, 0) == b"bef" and path.stat().st_ino != found.st_ino
    os.close(fd)
    assert path.read_text() == "another"


def test_a_directory_can_go_while_a_file_of_it_is_open(place: Path) -> None:
    (place / "dir").mkdir()
    path = text(place / "dir" / "gone", "still here")
    with path.open() as file:
        path.unlink()
        (place / "dir").rmdir()
        assert os.listdir(place) == [] and file.read() == "still here"


def test_another_process_keeps_an_unlinked_file(place: Path) -> None:
    path = text(place / "gone", "still here")
    opened, unlinked = Signal(), Signal()

    def keep() -> tuple[int, str]:
        with path.open("r+") as file:
            opened.say()
            unlinked.wait()
            file.seek(0, os.SEEK_END)
            file.write(", and longer")
            file.flush()
            file.seek(0)
            return os.fstat(file.fileno()).st_nlink, file.read()

    child = Child(keep)
    opened.wait()
    path.unlink()
    unlinked.say()
    assert child.result() == (0, "still here, and longer")


def test_a_directory_that_is_removed_while_open(place: Path) -> None:
    gone = place / "gone"
    gone.mkdir()
    fd = os.open(gone, os.O_RDONLY)
    gone.rmdir()
    with fails(errno.ENOENT):
        os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)


# --- directories ----------------------------------------------------------------------------------


def test_mkdir_and_rmdir(place: Path) -> None:
    one = place / "one"
    one.mkdir(mode=0o750)
    assert stat.S_IMODE(one.stat().st_mode) == 0o750
    with fails(errno.EEXIST):
        one.mkdir()
    with fails(errno.ENOENT):
        (place / "no" / "where").mkdir()
    file = text(one / "file", "x")
    with fails(errno.ENOTEMPTY):
        one.rmdir()
    with fails(errno.ENOTDIR):
        file.rmdir()
    with fails(errno.ENOTDIR):
        (file / "below").mkdir()
    with fails(errno.EISDIR):
        one.unlink()
    file.unlink()
    one.rmdir()
    with fails(errno.ENOENT):
        one.rmdir()
    with fails(errno.ENOENT):
        (place / "file").unlink()


def test_only_one_of_many_makes_a_directory(place: Path) -> None:
    start = Signal()

    def make() -> bool:
        start.wait()
        try:
            (place / "one").mkdir()
        except FileExistsError:
            return False
        return True

    children = [Child(make) for _ in range(8)]
    start.say(8)
    assert sum(child.result() for child in children) == 1


def test_names_of_255_bytes(place: Path) -> None:
    names = ["n" * NAME_MAX, "é" * (NAME_MAX // 2), "数" * (NAME_MAX // 3), "😀" * (NAME_MAX // 4)]
    for name in names:
        text(place / name, name)
    assert sorted(os.listdir(place)) == sorted(names)
    assert all((place / name).read_text() == name for name in names)
    for length in (NAME_MAX + 1, 300, 1000, 1023, 1024, 4000):
        path = place / ("n" * length)
        with fails(errno.ENAMETOOLONG):
            path.stat()
        with fails(errno.ENAMETOOLONG):
            path.write_text("")
        with fails(errno.ENAMETOOLONG):
            path.mkdir()
        with fails(errno.ENAMETOOLONG):
            path.symlink_to("x")
        with fails(errno.ENAMETOOLONG):
            (place / names[0]).rename(path)
        with fails(errno.ENAMETOOLONG):
            os.link(place / names[0], path)
    assert sorted(os.listdir(place)) == sorted(names)
    assert os.statvfs(place).f_namemax == NAME_MAX


def test_names_are_bytes(place: Path) -> None:
    """Neither case nor Unicode's forms nor a broken encoding makes two names one."""
    names = [
        b"name",
        b"NAME",
        "\u00e9".encode(),
        "e\u0301".encode(),
        b"\xff\xfe",
        b" ",
        b"new\nline",
        b"...",
        b"-",
        b"*",
    ]
    top = os.fsencode(place)
    for name in names:
        with open(os.path.join(top, name), "wb") as file:
            file.write(name)
    assert sorted(os.listdir(top)) == sorted(names)
    for name in names:
        with open(os.path.join(top, name), "rb") as file:
            assert file.read() == name


def test_a_path_far_longer_than_path_max(place: Path) -> None:
    """Two hundred levels of fifty bytes, walked by descriptor."""
    part = "d" * 50
    here = os.open(place, os.O_RDONLY)
    for _ in range(200):
        os.mkdir(part, dir_fd=here)
        below = os.open(part, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    fd = os.open("file", os.O_CREAT | os.O_RDWR, dir_fd=here)
    os.write(fd, b"deep")
    assert os.pread(fd, 10, 0) == b"deep"
    os.close(fd)
    os.unlink("file", dir_fd=here)
    levels = 0
    top = place.stat().st_ino
    while os.fstat(here).st_ino != top:
        above = os.open("..", os.O_RDONLY, dir_fd=here)
        os.close(here)
        os.rmdir(part, dir_fd=above)
        here = above
        levels += 1
    os.close(here)
    assert levels == 200 and os.listdir(place) == []


def test_fsync_of_a_directory(place: Path) -> None:
    text(place / "file", "x")
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.fdatasync(fd)
    os.close(fd)


# --- reading directories --------------------------------------------------------------------------


def test_what_a_directory_says_of_its_entries(place: Path) -> None:
    text(place / "file", "x")
    (place / "dir").mkdir()
    (place / "link").symlink_to("file")
    os.mkfifo(place / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(place)
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
    found = {entry.name: entry for entry in os.scandir(place)}
    assert sorted(found) == ["dir", "fifo", "file", "link", "socket"]
    assert found["file"].is_file() and found["dir"].is_dir() and found["link"].is_symlink()
    assert not found["fifo"].is_file() and not found["fifo"].is_dir()
    for name, entry in found.items():
        assert entry.inode() == (place / name).lstat().st_ino


def test_thousands_of_files_in_one_directory(place: Path) -> None:
    count = 3000
    names = [f"relation-{n * 7919 % count:06}.dat" for n in range(count)]
    for n, name in enumerate(names):
        fd = os.open(place / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, str(n).encode())
        os.close(fd)
    assert sorted(os.listdir(place)) == sorted(names)
    inodes = {entry.inode() for entry in os.scandir(place)}
    assert len(inodes) == count
    for n in range(0, count, 97):
        assert (place / names[n]).read_text() == str(n)
    for name in names[::2]:
        (place / name).unlink()
    assert sorted(os.listdir(place)) == sorted(names[1::2])
    with fails(errno.ENOTEMPTY):
        place.rmdir()


def test_reading_a_directory_that_changes(place: Path) -> None:
    """What is there all the time is seen once, whatever comes and goes meanwhile (POSIX: readdir)."""
    stays = {f"stays-{n:04}" for n in range(1000)}
    goes = [f"goes-{n:04}" for n in range(1000)]
    for name in [*stays, *goes]:
        (place / name).touch()
    stream = Directory(place)
    seen: list[str] = []
    come = 0
    while (found := stream.read()) is not None:
        seen.append(found)
        if len(seen) % 3 == 0 and goes:
            (place / goes.pop()).unlink()
        if len(seen) % 5 == 0 and come < 500:
            (place / f"comes-{come:04}").touch()
            come += 1
    stream.close()
    kept = [name for name in seen if name.startswith("stays")]
    assert len(kept) == len(set(kept)) and set(kept) == stays
    assert len(seen) == len(set(seen)), "a name came twice"


def test_removing_everything_while_reading(place: Path) -> None:
    """What ``rm -r`` does; a position that shifts with each removal would leave files behind."""
    for n in range(2000):
        (place / f"file-{n}").touch()
    removed = 0
    with os.scandir(place) as entries:
        for entry in entries:
            os.unlink(entry.path)
            removed += 1
    assert removed == 2000 and os.listdir(place) == []


def test_positions_in_a_directory(place: Path) -> None:
    names = {f"file-{n}" for n in range(700)}
    for name in names:
        (place / name).touch()
    stream = Directory(place)
    order: list[tuple[int, str]] = []
    while True:
        where = stream.tell()
        found = stream.read()
        if found is None:
            break
        order.append((where, found))
    assert {name for _, name in order} == names | {".", ".."}
    for n in (350, 1, 699, 2, 500, 0):
        stream.seek(order[n][0])
        assert stream.read() == order[n][1]
        if n + 1 < len(order):
            assert stream.read() == order[n + 1][1]
    stream.seek(order[600][0])
    assert stream.rest() == [name for _, name in order[600:]]
    (place / "new").touch()
    (place / order[400][1]).unlink()
    stream.rewind()
    assert set(stream.rest()) == (names | {"new"}) - {order[400][1]}
    stream.close()


def test_two_readers_of_one_directory_do_not_disturb_each_other(place: Path) -> None:
    names = {f"file-{n}" for n in range(400)}
    for name in names:
        (place / name).touch()
    one, two = Directory(place), Directory(place)
    first = [one.read() for _ in range(150)]
    assert set(two.rest()) == names
    assert {name for name in [*first, *one.rest()] if name not in (".", "..")} == names
    one.close()
    two.close()


def test_a_directory_is_filled_by_several_processes(place: Path) -> None:
    def fill(who: int) -> int:
        for n in range(300):
            (place / f"{who}-{n}").write_text(f"{who}")
            if n % 3 == 0:
                (place / f"{who}-{n}").rename(place / f"{who}-{n}-moved")
            elif n % 3 == 1:
                (place / f"{who}-{n}").unlink()
        return who

    children = [Child(partial(fill, who)) for who in range(4)]
    assert [child.result() for child in children] == [0, 1, 2, 3]
    wanted = {f"{w}-{n}{'-moved' if n % 3 == 0 else ''}" for w in range(4) for n in range(300) if n % 3 != 1}
    assert set(os.listdir(place)) == wanted


# --- other kinds of files -------------------------------------------------------------------------


def test_a_unix_socket_as_postgres_and_mariadb_have_it(place: Path) -> None:
    path = place / ".s.PGSQL.5432"
    assert len(str(path)) < 108
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o777)
        server.listen()
        assert stat.S_ISSOCK(path.stat().st_mode)

        def talk() -> bytes:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(b"hello")
                return client.recv(10)

        child = Child(talk)
        wire, _ = server.accept()
        assert wire.recv(10) == b"hello"
        wire.sendall(b"yes")
        assert child.result() == b"yes"
        wire.close()
        with fails(errno.EADDRINUSE), socket.socket(socket.AF_UNIX) as second:
            second.bind(str(path))
    with fails(errno.ECONNREFUSED), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    with fails(errno.ENXIO):
        os.open(path, os.O_RDONLY)
    path.unlink()


def test_a_fifo_between_processes(place: Path) -> None:
    path = place / "fifo"
    os.mkfifo(path, 0o600)
    found = path.stat()
    assert stat.S_ISFIFO(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    child = Child(lambda: path.write_bytes(b"through the fifo"))
    assert path.read_bytes() == b"through the fifo"
    assert child.result() == 16


@pytest.mark.usefixtures("needs_users")
def test_device_nodes_and_plain_mknod(place: Path) -> None:
    os.mknod(place / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(place / "disk", 0o600 | stat.S_IFBLK, os.makedev(259, 65537))
    found = (place / "null").stat()
    assert stat.S_ISCHR(found.st_mode) and (os.major(found.st_rdev), os.minor(found.st_rdev)) == (1, 3)
    found = (place / "disk").stat()
    assert stat.S_ISBLK(found.st_mode) and (os.major(found.st_rdev), os.minor(found.st_rdev)) == (259, 65537)
    os.mknod(place / "plain", 0o640 | stat.S_IFREG)
    assert stat.S_ISREG((place / "plain").stat().st_mode)
    with fails(errno.EEXIST):
        os.mknod(place / "plain", 0o640 | stat.S_IFREG)
    place.chmod(0o777)
    with fails(errno.EPERM):
        in_child(lambda: os.mknod(place / "forbidden", stat.S_IFCHR, os.makedev(1, 3)), uid=65534)


# --- all of it over a restart ---------------------------------------------------------------------


def test_everything_is_the_same_after_a_restart(ground: Ground, place: Path) -> None:
    """Each kind of file, with its metadata, is in the pool and not in the program's memory."""
    (place / "dir" / "sub").mkdir(parents=True)
    (place / "dir").chmod(0o2750)
    file = text(place / "dir" / "file", "content" * 5000)
    file.chmod(0o4711)
    os.link(file, place / "hard")
    (place / "link").symlink_to("dir/file")
    (place / "long-link").symlink_to("x" * 3000)
    os.mkfifo(place / "fifo")
    with file.open("r+b") as sparse:
        sparse.truncate(10 << 20)
    for n in range(200):
        (place / "dir" / "sub" / f"{n}").touch()
    os.setxattr(file, "user.word", b"value")
    os.setxattr(place / "dir", "user.large", b"v" * 3000)
    if os.geteuid() == 0:
        os.mknod(place / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.chown(place / "hard", 1234, 70000)
        os.chown(place / "link", 4321, 99, follow_symlinks=False)
        file.chmod(0o4711)
    os.utime(file, ns=(1_000_000_001, 4_102_444_800_123_456_789))
    os.utime(place / "dir", ns=(5, 7))

    def seen() -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for folder, dirs, files in os.walk(place):
            for name in [*dirs, *files, "."]:
                path = Path(folder, name)
                s = path.lstat()
                kind = stat.S_IFMT(s.st_mode)
                inner: object = None
                if kind == stat.S_IFREG:
                    inner = path.read_bytes()
                elif kind == stat.S_IFLNK:
                    inner = os.readlink(path)
                elif kind == stat.S_IFDIR:
                    inner = sorted(os.listdir(path))
                attributes = (
                    {}
                    if kind not in (stat.S_IFREG, stat.S_IFDIR)
                    else {key: os.getxattr(path, key) for key in os.listxattr(path)}
                )
                found[str(path.relative_to(place))] = (
                    s.st_mode, s.st_ino, s.st_nlink, s.st_uid, s.st_gid, s.st_size, s.st_rdev,
                    s.st_mtime_ns, s.st_ctime_ns, inner, attributes,
                )  # fmt: skip
        return found

    before = seen()
    ground.restart()
    after = seen()
    assert sorted(before) == sorted(after)
    for name, facts in before.items():
        assert after[name] == facts, name
