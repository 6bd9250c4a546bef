from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ztune.errors import disk_error
from ztune.onhost.host import shared_files


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a[1].json"
    path.write_text("old")
    with pytest.raises(RuntimeError), shared_files.replacing(path) as partial:
        partial.write_text("new")
        raise RuntimeError
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]
    with shared_files.replacing(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and [*tmp_path.iterdir()] == [path]


def test_what_a_killed_process_left_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ztune.onhost.host.shared_files import replacing\n"
        f"with replacing(Path({str(tmp_path)!r}, sys.argv[1])) as p: (p / 'x').mkdir(parents=True); print(p, "
        "flush=True); input()"
    )
    # A number of a process says nothing: that of one in another container is not in our /proc.
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []

    def begin(name: str) -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [*elsewhere, sys.executable, "-c", code, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    living, theirs = begin("state")
    killed, left = begin("state")
    with living, killed:
        killed.kill()
        killed.communicate()
        with shared_files.replacing(tmp_path / "state") as partial:
            partial.mkdir()
        assert theirs.is_dir() and not left.exists() and (tmp_path / "state").is_dir()
        living.communicate("")
    assert [*tmp_path.iterdir()] == [tmp_path / "state"]


def test_who_waits_for_a_lock_that_is_removed_takes_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = path.open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)

    def remove() -> None:
        path.unlink()
        holder.close()

    with (
        shared_files.locked(path, waiting=remove),
        pytest.raises(BlockingIOError),
        shared_files.locked(path, wait=False),
    ):
        pass


def test_a_lock_waits_says_so_once_or_refuses(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys; from pathlib import Path; from ztune.onhost.host.shared_files import locked\n"
        f"with locked(Path({str(path)!r})): print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        for shared in (False, True):
            with pytest.raises(BlockingIOError), shared_files.locked(path, shared=shared, wait=False):
                pass
        said: list[str] = []

        def waiting() -> None:
            said.append("waiting")
            assert other.stdin is not None
            other.stdin.close()

        with shared_files.locked(path, waiting=waiting):
            assert said == ["waiting"]
    with (
        shared_files.locked(path, shared=True),
        shared_files.locked(path, shared=True, waiting=lambda: pytest.fail("readers wait for each other")),
    ):
        pass


def test_an_error_of_a_write_names_what_was_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, shared_files.replacing(tmp_path / "pool.bin"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as that of write(2), which has no name
    said = disk_error(caught.value)
    where = tmp_path / "pool.bin"
    assert str(said) == (
        f"{where}: it can't be written: No space left on device; make room there, then run it again"
    )


def test_a_lock_that_is_a_link_empties_nothing(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("irreplaceable")
    (tmp_path / "x.lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"), shared_files.locked(tmp_path / "x.lock"):
        pass
    (tmp_path / ".x.1.partial.lock").symlink_to(precious)
    with shared_files.replacing(tmp_path / "x") as made:  # which looks for what was left
        made.write_text("whole")
    assert (tmp_path / "x").read_text() == "whole"
    assert precious.read_text() == "irreplaceable"
