"""Files that the user names: whole or not at all, and nothing else is replaced by them."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from ztune import files
from ztune.cli.main import ztune
from ztune.errors import InputError, ZtuneError


def node(path: Path, kind: int, major: int, minor: int) -> Path:
    try:
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error.strerror}")
    return path


def open_to_all(folder: Path) -> Path:
    """Make a directory that everybody may write to, as /tmp."""
    made = folder / "shared"
    made.mkdir()
    made.chmod(0o1777)
    return made


def test_a_regular_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "x.sh"
    files.write(target, "one", executable=True)
    assert target.read_text() == "one"
    assert target.stat().st_mode & 0o100
    files.write(target, b"two")
    assert target.read_text() == "two"
    with pytest.raises(InputError, match="can't write"):
        files.write(tmp_path / "no" / "x", "three")
    with pytest.raises(KeyboardInterrupt), files.writing(target) as file:
        file.write(b"half of it")
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["x.sh"]
    assert target.read_text() == "two"


def test_a_name_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    target = tmp_path / ("x" * 255)
    files.write(target, "one")
    assert target.read_text() == "one"


def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old")
    target.chmod(0o640)
    files.write(target, "new")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o640)
    umask = os.umask(0o077)
    try:
        files.write(tmp_path / "fresh", "x", executable=True)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes other users' files")
def test_a_file_of_another_user_stays_theirs(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old")
    target.chmod(0o600)
    os.chown(target, 65534, 65534)
    files.write(target, "new")
    found = target.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65534, 65534, 0o600)


def test_a_pipe_that_is_swapped_for_a_link_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious, pipe, opened = tmp_path / "precious", tmp_path / "pipe", os.open
    precious.write_text("irreplaceable")
    os.mkfifo(pipe)

    def swapped(path: os.PathLike[str], *args: int, **more: int) -> int:
        if path == pipe:
            pipe.unlink()
            pipe.symlink_to(precious)
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(InputError, match="something else has taken its place"):
        files.write(pipe, "text")
    assert precious.read_text() == "irreplaceable"


def test_bytes_that_are_not_utf8_are_shown_in_text(tmp_path: Path) -> None:
    files.write(tmp_path / "x", "of " + os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "x").read_text() == "of caf\\udce9"


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    device = node(tmp_path / "null", stat.S_IFCHR, 1, 3)
    before = device.lstat()
    files.write(device, "text", executable=True)
    after = device.lstat()
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_rdev, after.st_ino, after.st_mode) == (before.st_rdev, before.st_ino, before.st_mode)
    assert list(tmp_path.iterdir()) == [device]


def test_a_full_device_is_one_sentence(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "full", stat.S_IFCHR | 0o600, os.makedev(1, 7))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error.strerror}")
    with pytest.raises(ZtuneError, match=r"/full: it can't be written: No space left on device") as caught:
        files.write(tmp_path / "full", "text")
    assert caught.value.exit_code == 1
    assert stat.S_ISCHR((tmp_path / "full").lstat().st_mode)


def test_a_disk_is_refused(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 255))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error.strerror}")
    with pytest.raises(InputError, match=r"it is a disk; name a file"):
        files.write(tmp_path / "disk", "text")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    files.write(pipe, "through it")
    reader.join()
    assert got == [b"through it"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "report.html"
    target.write_text("old")
    target.chmod(0o600)
    middle, link = tmp_path / "middle", tmp_path / "link"
    middle.symlink_to("there/report.html")
    link.symlink_to(middle)
    files.write(link, "new")
    assert link.is_symlink() and middle.is_symlink()
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o600)
    dangling = tmp_path / "dangling"
    dangling.symlink_to("there/other")
    files.write(dangling, "made")
    assert dangling.is_symlink() and (tmp_path / "there" / "other").read_text() == "made"
    assert sorted(p.name for p in target.parent.iterdir()) == ["other", "report.html"]


def test_a_link_to_a_device_leads_to_it(tmp_path: Path) -> None:
    device = node(tmp_path / "null", stat.S_IFCHR, 1, 3)
    (tmp_path / "link").symlink_to(device)
    files.write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and stat.S_ISCHR(device.lstat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a link of another user")
def test_another_users_link_where_everybody_may_write_is_not_followed(tmp_path: Path) -> None:
    shared, secret = open_to_all(tmp_path), tmp_path / "secret"
    secret.write_text("mine")
    (shared / "r.html").symlink_to(secret)
    os.lchown(shared / "r.html", 65534, 65534)
    with pytest.raises(InputError, match="symbolic link of another user"):
        files.write(shared / "r.html", "report")
    assert secret.read_text() == "mine"
    os.lchown(shared / "r.html", 0, 0)
    files.write(shared / "r.html", "report")
    assert secret.read_text() == "report"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of another user")
def test_nothing_of_another_users_is_taken_where_everybody_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whose the file stays could change a script that root runs next, and reads what goes through the pipe.
    shared = open_to_all(tmp_path)
    (shared / "apply.sh").write_text("theirs")
    os.mkfifo(shared / "pipe")
    monkeypatch.delenv("SUDO_UID", raising=False)
    for name in ("apply.sh", "pipe"):
        os.chown(shared / name, 65534, 65534)
        (tmp_path / name).symlink_to(shared / name)  # a link of ours does not make it ours
        with pytest.raises(InputError, match="it is something of another user"):
            files.write(tmp_path / name, "text")
        with pytest.raises(InputError, match="it is something of another user"):
            files.check(shared / name)
        with pytest.raises(InputError, match="it is something of another user"):
            files.write(shared / name, "text", executable=True)
    assert (shared / "apply.sh").read_text() == "theirs"
    # Who could have sudo do anything gains nothing; a report of theirs is made again.
    monkeypatch.setenv("SUDO_UID", "65534")
    files.write(shared / "apply.sh", "ours")
    assert (shared / "apply.sh").read_text() == "ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a directory of another user")
def test_a_folder_that_was_made_just_now_is_ours_whoever_is_said_to_own_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on NFS, which calls what root makes nobody's.
    shared = open_to_all(tmp_path)
    os.chown(shared, 65534, 65534)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert files.make_folder(shared / "out" / "new")
    assert not files.make_folder(shared / "out" / "new")
    with pytest.raises(InputError, match="it is something of another user"):
        files.make_folder(shared / "out")
    (shared / "out" / "file").touch()
    with pytest.raises(FileExistsError):
        files.make_folder(shared / "out" / "file")


def test_a_link_that_is_put_there_after_the_look_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, secret, look = open_to_all(tmp_path), tmp_path / "secret", Path.lstat
    secret.write_text("mine")

    def swapped(path: Path) -> os.stat_result:
        try:
            return look(path)
        finally:
            if path.name == "r.html" and not os.path.lexists(path):
                path.symlink_to(secret)

    monkeypatch.setattr(Path, "lstat", swapped)
    files.write(shared / "r.html", "report")
    assert secret.read_text() == "mine"
    assert not (shared / "r.html").is_symlink() and (shared / "r.html").read_text() == "report"


def test_a_directory_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is a directory; name a file"):
        files.write(tmp_path, "text")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="can't write"):
        files.write(loop, "text")


def test_what_cannot_be_written_is_known_before_the_work(tmp_path: Path) -> None:
    assert not files.check(tmp_path / "new")
    (tmp_path / "old").write_text("x")
    assert files.check(tmp_path / "old")
    os.mkfifo(tmp_path / "pipe")
    assert not files.check(tmp_path / "pipe")
    for bad, why in ((tmp_path, "is a directory"), (tmp_path / "no" / "x", "its directory does not exist")):
        with pytest.raises(InputError, match=why):
            files.check(bad)
    seen = CliRunner().invoke(
        ztune, ["observe", "--pid", "1", "--out", str(tmp_path / "no" / "x")], standalone_mode=False
    )
    assert "does not exist" in str(seen.exception)


def test_every_command_that_writes_a_file_leaves_a_device_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `observe` reads what other tools print, so it needs no rights; the others take the same function.
    device = node(tmp_path / "null", stat.S_IFCHR, 1, 3)
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "writes.txt").write_text("@:\n[4K, 8K)             120 |@@@@@@@@@@@@@@@@@|\n")
    words = ["observe", "--from", str(tmp_path / "writes.txt"), "--as", "write-sizes"]
    for flag in ("--out", "--save"):
        done = CliRunner().invoke(ztune, [*words, flag, str(device)], standalone_mode=False)
        assert done.exception is None, done.exception
        assert stat.S_ISCHR(device.lstat().st_mode), flag


def test_what_has_no_end_is_read_no_further_than_such_a_file_is_long(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read(tmp_path / "file", 5) == b"12345"
    with pytest.raises(InputError, match="has more than 0 MiB, so it is another kind of file"):
        files.read(tmp_path / "file", 4)
    (tmp_path / "zero").symlink_to("/dev/zero")
    for words in (
        ("apply", "--undo", str(tmp_path / "zero")),
        ("observe", "--seconds", "1", "--hosts", str(tmp_path / "zero")),
        ("observe", "--from", str(tmp_path / "zero"), "--format", "ztune"),
    ):
        done = CliRunner().invoke(ztune, words, standalone_mode=False)
        assert isinstance(done.exception, InputError), words
        assert "zero has more than" in str(done.exception), words
