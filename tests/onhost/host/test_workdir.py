"""The one door through which anything is deleted, and those who try to get other things through it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from ztune.errors import InputError, Refused
from ztune.onhost.host import workdir as module
from ztune.onhost.host.workdir import MARKER, WorkDir, leftovers, sweep


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.mkdir()
    (path / "photos").write_text("irreplaceable")
    return path


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    made = WorkDir.create("test", parent=tmp_path)
    (made.sub("data") / "file").write_text("x")
    return made


def test_made_and_removed(work: WorkDir, tmp_path: Path) -> None:
    assert work.path.parent == tmp_path and (work.path / MARKER).exists()
    work.remove()
    assert not work.path.exists()
    work.remove()


def test_links_inside_are_not_followed(work: WorkDir, precious: Path) -> None:
    (work.path / "data" / "link").symlink_to(precious)
    (work.path / "link").symlink_to(precious / "photos")
    work.remove()
    assert (precious / "photos").read_text() == "irreplaceable"


def test_kept_when_asked(tmp_path: Path) -> None:
    work = WorkDir.create("test", parent=tmp_path, keep=True)
    work.remove()
    assert work.path.exists()
    assert sweep(tmp_path) == [] and work.path.exists()


def test_refuses_a_symlink_in_its_place(work: WorkDir, precious: Path) -> None:
    shutil.rmtree(work.path)
    work.path.symlink_to(precious)
    with pytest.raises(Refused, match="symbolic link"):
        work.remove()
    assert (precious / "photos").exists()


def test_refuses_a_symlink_on_the_way(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    work = WorkDir.create("test", parent=parent)
    parent.rename(tmp_path / "moved")
    parent.symlink_to(tmp_path / "moved")
    with pytest.raises(Refused, match="on the way"):
        work.remove()
    assert (tmp_path / "moved" / work.path.name / MARKER).exists()


def test_refuses_without_marker(work: WorkDir) -> None:
    (work.path / MARKER).unlink()
    with pytest.raises(Refused, match="no marker"):
        work.remove()
    assert (work.path / "data" / "file").exists()


def test_refuses_another_directory_in_its_place_even_with_the_marker(work: WorkDir, tmp_path: Path) -> None:
    marker = (work.path / MARKER).read_text()
    # Moved away, not deleted: a deleted inode's number may be given out again at once.
    work.path.rename(tmp_path / "aside")
    work.path.mkdir()
    (work.path / MARKER).write_text(marker)
    (work.path / "thesis").write_text("years of work")
    with pytest.raises(Refused, match="taken the place"):
        work.remove()
    assert (work.path / "thesis").exists()


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", "not json", '{"format": "ztune-workdir-2"}', "\x00" * 10]
)
def test_refuses_a_marker_that_is_not_ours(work: WorkDir, content: str) -> None:
    (work.path / MARKER).write_text(content)
    with pytest.raises(Refused, match="marker"):
        work.remove()
    assert (work.path / "data" / "file").exists()


def test_refuses_another_work_directorys_marker(work: WorkDir, tmp_path: Path) -> None:
    other = WorkDir.create("test", parent=tmp_path)
    shutil.copy(other.path / MARKER, work.path / MARKER)
    with pytest.raises(Refused, match="not the one we wrote"):
        work.remove()


def test_refuses_a_marker_that_is_a_link_or_a_pipe(work: WorkDir, tmp_path: Path) -> None:
    (work.path / MARKER).rename(tmp_path / "marker")
    (work.path / MARKER).symlink_to(tmp_path / "marker")
    with pytest.raises(Refused, match="no marker"):
        work.remove()
    (work.path / MARKER).unlink()
    os.mkfifo(work.path / MARKER)
    with pytest.raises(Refused, match="not one of ours"):
        work.remove()


def test_refuses_the_parent_and_foreign_directories(work: WorkDir, tmp_path: Path, precious: Path) -> None:
    work.path = tmp_path
    with pytest.raises(Refused):
        work.remove()
    for path in (tmp_path, precious, Path("/"), Path("/tmp")):
        with pytest.raises(Refused):
            WorkDir.adopt(path)
    assert precious.exists()


def test_refuses_a_directory_whose_name_does_not_carry_the_id(work: WorkDir, tmp_path: Path) -> None:
    work.path.rename(tmp_path / "ztune-test-000000000000")
    with pytest.raises(Refused, match="name does not carry"):
        WorkDir.adopt(tmp_path / "ztune-test-000000000000")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_refuses_a_wrong_owner(work: WorkDir) -> None:
    os.chown(work.path, 65534, 65534)
    with pytest.raises(Refused, match="belongs to user 65534"):
        work.remove()
    os.chown(work.path, 0, 0)
    os.chown(work.path / MARKER, 65534, 65534)
    with pytest.raises(Refused, match="marker"):
        work.remove()


def test_refuses_a_mount_point_inside(work: WorkDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_mount_points", lambda: [Path("/"), work.path / "data" / "mnt"])
    with pytest.raises(Refused, match="mount point"):
        work.remove()
    assert (work.path / "data" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_refuses_a_real_bind_mount(work: WorkDir, precious: Path) -> None:
    target = work.sub("with blank")
    if subprocess.run(["mount", "--bind", precious, target], capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(Refused, match="mount point"):
            work.remove()
        assert (precious / "photos").exists()
    finally:
        subprocess.run(["umount", target], check=True)
    work.remove()
    assert (precious / "photos").exists() and not work.path.exists()


def test_bad_parent_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name an existing one"):
        WorkDir.create("test", parent=tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        WorkDir.create("test", parent=tmp_path / "file")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", MARKER])
def test_sub_directories_stay_inside(work: WorkDir, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        work.sub(name)


def dead(tmp_path: Path, **change: object) -> Path:
    """Make what a killed ztune leaves behind."""
    code = (
        "import os, sys; from pathlib import Path; from ztune.onhost.host.workdir import WorkDir;"
        "w = WorkDir.create('dead', parent=Path(sys.argv[1])); "
        "w.sub('data'); print(w.path, flush=True); os._exit(1)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
    ).stdout
    path = Path(out.strip())
    if change:
        marker = json.loads((path / MARKER).read_text())
        (path / MARKER).write_text(json.dumps({**marker, **change}))
    return path


def test_leftovers_of_dead_runs_are_swept_and_those_of_living_are_not(work: WorkDir, tmp_path: Path) -> None:
    path = dead(tmp_path)
    assert leftovers(tmp_path) == [path]
    new = WorkDir.create("test", parent=tmp_path)
    assert not path.exists() and work.path.exists() and new.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="a process namespace of its own needs root")
def test_that_of_a_run_in_another_container_is_no_leftover(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ztune.onhost.host.workdir import WorkDir;"
        "w = WorkDir.create('test', parent=Path(sys.argv[1])); print(w.path, flush=True); input()"
    )
    there = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code, tmp_path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with there:
        assert there.stdout is not None
        path = Path(there.stdout.readline().strip())
        assert leftovers(tmp_path) == [] and sweep(tmp_path) == [] and path.is_dir()
        there.kill()
        there.stdout.read()  # Until the other one is killed too: without its input it would tidy up itself.
    until(lambda: sweep(tmp_path) == [path], "the directory of the dead process was swept")
    assert not path.exists()


def test_that_of_an_older_ztune_stays(tmp_path: Path) -> None:
    """It has no lock that could tell whether somebody has it."""
    dead(tmp_path, format="ztune-workdir")
    assert sweep(tmp_path) == []


def test_a_directory_somebody_works_in_is_no_leftover(tmp_path: Path) -> None:
    path = dead(tmp_path)
    sleeper = subprocess.Popen(["sleep", "60"], cwd=path / "data")
    try:
        assert leftovers(tmp_path) == []
    finally:
        sleeper.kill()
        sleeper.wait()
    assert leftovers(tmp_path) == [path]


def test_foreign_directories_with_a_fitting_name_are_no_leftovers(tmp_path: Path, precious: Path) -> None:
    precious.rename(tmp_path / "ztune-test-0123456789ab")
    (tmp_path / "ztune-test-0123456789ac").symlink_to("/")
    assert leftovers(tmp_path) == [] and sweep(tmp_path) == []
    assert (tmp_path / "ztune-test-0123456789ab" / "photos").exists()


def test_an_exit_without_cleanup_still_removes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ztune.onhost.host.workdir import WorkDir;"
        "w = WorkDir.create('test', parent=Path(sys.argv[1])); print(w.path); raise SystemExit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout.strip()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_parent_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """They could move the database away, and put another in its place."""
    theirs = tmp_path / "theirs"
    (theirs / "below").mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    for parent in (theirs, theirs / "below"):
        with pytest.raises(InputError, match=f"work directory: {theirs}.* belongs to user 65534"):
            WorkDir.create("test", parent=parent)
    assert list(theirs.rglob("*")) == [theirs / "below"]
