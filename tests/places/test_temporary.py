"""What a ztune that was killed left in /tmp and in memory is removed, and nothing that may be another's."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import children
import pytest
from click.testing import CliRunner
from fake_place import FakePlace

from ztune import paths, temporary
from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.onhost.host import shared_files
from ztune.places import bundle, named
from ztune.temporary import CONNECTION, LOCK, PROGRAM, Temporary, left, left_here

OTHER = 65534
NAME = f"{CONNECTION}abcd_123"
MAKE = """
import sys
from pathlib import Path
from ztune.temporary import Temporary
made = Temporary.make(sys.argv[1], Path(sys.argv[2]))
(made.path / "file").write_text("some")
print(made.path, flush=True)
input()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /tmp: all may write there, and remove only what is theirs."""
    for name in ("tmp", "shm"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o1777)
    monkeypatch.setattr(temporary, "TMP", tmp_path / "tmp")
    monkeypatch.setattr(temporary, "MEMORY", tmp_path / "shm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "tmp"


def begin(prefix: str, parent: Path, *before: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [*before, sys.executable, "-c", MAKE, prefix, str(parent)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=children.environment(),
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(prefix: str, parent: Path) -> Path:
    """What a process that was killed left."""
    process, path = begin(prefix, parent)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and (path / "file").exists()
    return path


def as_left(path: Path, mark: bytes = b"ztune\n") -> Path:
    """Make ``path`` look like one that was left."""
    path.mkdir(mode=0o700)
    (path / LOCK).write_bytes(mark)
    (path / LOCK).chmod(0o600)
    (path / "kept").touch()
    return path


def test_one_that_ends_in_order_leaves_nothing(tmp: Path) -> None:
    made = Temporary.make(CONNECTION, tmp)
    (made.path / "below").mkdir()
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700 and left(tmp) == []
    made.remove()
    made.remove()
    assert list(tmp.iterdir()) == []


def test_the_next_one_removes_what_was_left_of_its_kind(tmp: Path) -> None:
    connection, program = killed(CONNECTION, tmp), killed(PROGRAM, tmp)
    assert left(tmp) == sorted([connection, program])
    made = Temporary.make(CONNECTION, tmp)
    assert sorted(tmp.iterdir()) == sorted([made.path, program])
    made.remove()


def test_each_kind_is_known_when_it_was_left(tmp: Path) -> None:
    kinds = [f"ztune-{name}-" for name in ("ssh", "trial", "lab", "disks", "warming", "results")]
    made = [as_left(tmp / f"{kind}abcd_123") for kind in kinds]
    assert left(tmp) == sorted(made)


def test_where_others_could_swap_it_nothing_large_is_put(
    tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "TMP", tmp_path)
    assert temporary.disk() == tmp
    (tmp_path / "link").symlink_to(tmp)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    assert temporary.disk() == tmp
    tmp.chmod(0o777)
    assert temporary.disk() == tmp_path


def test_that_of_a_living_one_stays_wherever_it_runs(tmp: Path) -> None:
    # A number of a process says nothing: that of one in another container is not in our /proc.
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []
    process, path = begin(CONNECTION, tmp, *elsewhere)
    with process:
        Temporary.make(CONNECTION, tmp).remove()
        assert (path / "file").exists() and left(tmp) == []
        process.kill()
        process.communicate()
    for _ in range(100):
        if left(tmp) == [path]:  # where it ran elsewhere it is killed with who began it
            break
        time.sleep(0.05)
    Temporary.make(CONNECTION, tmp).remove()
    assert list(tmp.iterdir()) == []


def test_what_a_process_works_with_stays_until_that_ends(tmp: Path) -> None:
    path = killed(PROGRAM, tmp)
    (path / "program").write_text("input()")
    with subprocess.Popen([sys.executable, str(path / "program")], stdin=subprocess.PIPE) as trial:
        while b"program" not in Path(f"/proc/{trial.pid}/cmdline").read_bytes():
            pass
        assert left(tmp) == []
        Temporary.make(PROGRAM, tmp).remove()
        assert (path / "program").exists()
    assert left(tmp) == [path]


def test_where_processes_are_hidden_nothing_is_known_to_have_ended(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(PROGRAM, tmp)
    read = Path.read_bytes

    def hidden(path: Path) -> bytes:
        if path.name == "cmdline" and path.parent.name == "1":
            raise PermissionError
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", hidden)
    assert left(tmp) == []
    monkeypatch.undo()
    assert len(left(tmp)) == 1


@pytest.mark.parametrize(
    "how", ["no lock", "no mark", "other mark", "held", "fifo", "link", "two names", "open"]
)
def test_what_is_not_beyond_doubt_left_stays(tmp: Path, tmp_path: Path, how: str) -> None:
    path = as_left(tmp / NAME, {"no mark": b"", "other mark": b"ztune\nmore"}.get(how, b"ztune\n"))
    lock, held = path / LOCK, None
    if how == "held":
        held = lock.open("r+")
        fcntl.flock(held, fcntl.LOCK_EX)
    elif how == "two names":
        os.link(lock, tmp_path / "another")
    elif how == "open":
        path.chmod(0o777)
    elif how in ("no lock", "fifo", "link"):
        lock.rename(tmp_path / "another")
        if how == "fifo":
            os.mkfifo(lock, 0o600)
        elif how == "link":
            lock.symlink_to(tmp_path / "another")
    assert left(tmp) == [] == left_here()
    temporary.remove_left_here()
    Temporary.make(CONNECTION, tmp).remove()
    assert (path / "kept").exists()
    if held is not None:
        held.close()
        assert left(tmp) == [path]


def test_names_that_it_does_not_give_are_nothing(tmp: Path, tmp_path: Path) -> None:
    for name in (f"{CONNECTION}short", f"{NAME}.old", "ztune-other-abcd1234", f"{CONNECTION}ABCD1234"):
        as_left(tmp / name)
    as_left(tmp_path / "mine")
    (tmp / NAME).symlink_to(tmp_path / "mine")
    (tmp / f"{PROGRAM}abcd1234").touch()
    assert left(tmp) == [] and left(tmp / "missing") == []
    temporary.remove_left_here()
    assert (tmp_path / "mine" / "kept").exists() and len(list(tmp.iterdir())) == 6


@needs_root
def test_nothing_of_another_user_is_believed(tmp: Path, tmp_path: Path) -> None:
    theirs = as_left(tmp / NAME)
    for path in (theirs, theirs / LOCK):
        os.chown(path, OTHER, OTHER)
    # In one of ours, which they can't have got into.
    lock = as_left(tmp / f"{CONNECTION}11111111") / LOCK
    os.chown(lock, OTHER, OTHER)
    assert left(tmp) == []
    Temporary.make(CONNECTION, tmp).remove()
    assert (theirs / "kept").exists() and lock.exists()
    # Where they may rename what is ours, nothing is.
    os.chown(tmp, OTHER, OTHER)
    as_left(tmp / f"{CONNECTION}22222222")
    assert left(tmp) == []


@needs_root
def test_a_mount_point_below_it_stays(tmp: Path) -> None:
    path = as_left(tmp / NAME)
    (path / "m").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(path / "m")], check=False)
    if done.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (path / "m" / "data").touch()
        temporary.remove_left_here()
        assert (path / "m" / "data").exists()
    finally:
        subprocess.run(["umount", str(path / "m")], check=True)
    temporary.remove_left_here()
    assert not path.exists()


def test_a_program_in_memory_of_a_killed_ztune(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dead,) = [killed(PROGRAM, temporary.MEMORY)]

    def full(*_: object) -> Path:
        raise InputError("no room")

    monkeypatch.setattr(paths, "below", full)
    path = bundle.build()
    assert path.parent.parent == temporary.MEMORY and path.exists() and not dead.exists()
    assert left(temporary.MEMORY) == []


@pytest.fixture
def lab(home: Path) -> Iterator[Path]:
    """A folder of the lab's that was left, and one that lives."""
    dead = paths.scratch() / f"{paths.GUEST}boot-0123456789ab"
    dead.mkdir()
    shared_files.lock_of(dead).touch()
    with shared_files.temporary(paths.scratch(), f"{paths.GUEST}kvm-") as living:
        living.mkdir()
        yield dead
        assert living.exists()


def test_clean_names_what_was_left_and_removes_it(
    tmp: Path, tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "make", lambda *_: FakePlace(tmp_path / "place"))
    engine = paths.scratch() / f"{paths.ENGINE}0123456789ab"
    engine.mkdir()
    (engine / "data-0").write_text("a pool's disk, where memory was short")
    shared_files.lock_of(engine).touch()
    dead = [killed(CONNECTION, tmp), killed(PROGRAM, temporary.MEMORY), lab, engine]
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(ztune, ["clean", "--on", "mount"])
    assert done.exit_code == 0, done.output
    for path in dead:
        assert f"a ztune that was killed left: {path}\n" in done.stderr
    assert "--yes removes it" in done.stderr
    assert [path for path in before if not path.exists()] == []
    done = CliRunner().invoke(ztune, ["clean", "--on", "mount", "--json"])
    assert json.loads(done.stdout)["temporary"] == [str(path) for path in dead]
    done = CliRunner().invoke(ztune, ["clean", "--on", "mount", "--yes"])
    assert done.exit_code == 0 and f"removed what a ztune that was killed left: {lab}\n" in done.stderr
    assert not any(path.exists() for path in dead)
    assert "was killed" not in CliRunner().invoke(ztune, ["clean", "--on", "mount", "--yes"]).stderr


def test_the_lab_removes_what_a_boot_that_was_killed_left(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ztune.lab import accel, guest

    seen = []

    def look(folder: Path, *_: object) -> str:
        seen.append((folder.parent, folder.stat().st_mode & 0o777, lab.exists()))
        return ""

    for module, inner, call in ((accel, "_probe_in", "probe"), (guest, "_save_in", "_save")):
        lab.mkdir(exist_ok=True)
        shared_files.lock_of(lab).touch()
        monkeypatch.setattr(module, inner, look)
        getattr(module, call)(*([None] if call == "probe" else [None, None, None]))
    assert seen == [(paths.scratch(), 0o700, False)] * 2
    assert [path.name for path in paths.scratch().iterdir() if "boot" in path.name] == []
