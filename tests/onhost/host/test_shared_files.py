from __future__ import annotations

import errno
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
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        theirs = tmp_path / f".state.{living.pid}.partial"
        theirs.write_text("half")
        dead = tmp_path / ".state.4194999.partial"  # beyond the largest number of a process
        (dead / "folder").mkdir(parents=True)
        with shared_files.replacing(tmp_path / "state") as partial:
            partial.mkdir()
        assert theirs.exists() and not dead.exists() and (tmp_path / "state").is_dir()
        living.communicate(b"")


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
