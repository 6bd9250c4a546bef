"""What can be observed, and what is said when it can't."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ztune.errors import InputError
from ztune.observe import subjects
from ztune.onhost.host import mounts

GONE = 4_194_304  # above every process id (pid_max is at most this)


def test_exactly_one_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"one of --pid, --unit, --dataset and --path$"):
        subjects.choose()
    with pytest.raises(InputError, match="not with --pid and --path at once"):
        subjects.choose(pid=1, path="/")


def test_a_process_and_its_children() -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert shell.stdout is not None
        shell.stdout.readline()
        subject = subjects.choose(pid=shell.pid)
        assert subject.words == f"process {shell.pid} (sh) and its child"
        assert subject.now() == (shell.pid,) and not subject.by_files
    finally:
        os.killpg(shell.pid, 9)
    os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
    assert subject.now() == ()  # ended, though its parent has not waited for it
    shell.wait()
    shell.stdout.close()


def test_no_such_process() -> None:
    with pytest.raises(InputError, match=f"^there is no process {GONE}$"):
        subjects.choose(pid=GONE)


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cgroup"
    (root / "system.slice").mkdir(parents=True)
    (root / "cgroup.procs").write_text("1\n")
    monkeypatch.setattr(subjects, "CGROUPS", (str(root), str(tmp_path / "none")))
    monkeypatch.setattr(subjects, "SYSTEMD", root)
    return root / "system.slice"


def group(folder: Path, *pids: int) -> None:
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_a_unit_by_its_control_group(cgroups: Path) -> None:
    group(cgroups / "mariadb.service", os.getpid())
    group(cgroups / "mariadb.service" / "below", os.getppid())
    subject = subjects.choose(unit="mariadb")
    assert set(subject.pids) == {os.getpid(), os.getppid()}
    assert subject.words == "unit mariadb.service with 2 processes"
    (cgroups / "mariadb.service" / "cgroup.procs").write_text(f"{os.getpid()}\n{GONE - 1}\n")
    assert GONE - 1 in subject.now()  # it started another


def test_units_without_processes(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(cgroups / "postgresql.service")
    group(cgroups / "system-postgresql.slice" / "postgresql@15-main.service", os.getpid())
    with pytest.raises(
        InputError, match=r"postgresql.service has no processes; these do: postgresql@15-main.service$"
    ):
        subjects.choose(unit="postgresql")
    assert subjects.choose(unit="postgresql@15-main").pids == (os.getpid(),)
    with pytest.raises(InputError, match=r"^the unit nothing.service is not running here"):
        subjects.choose(unit="nothing")
    with pytest.raises(InputError, match="is no name of a systemd unit"):
        subjects.choose(unit="../../etc")
    monkeypatch.setattr(subjects, "SYSTEMD", cgroups / "none")
    with pytest.raises(
        InputError, match="as systemd does not run this host; name the server's process by --pid"
    ):
        subjects.choose(unit="nothing")


def test_datasets_by_their_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [
        mounts.MountInfo(Path("/"), "/", "ext4", "/dev/sda1", (8, 1)),
        mounts.MountInfo(Path("/srv/pg"), "/", "zfs", "tank/pg", (0, 50)),
        mounts.MountInfo(Path("/srv/pg/wal"), "/", "zfs", "tank/pg/wal", (0, 51)),
        mounts.MountInfo(Path("/srv/pg/.zfs/snapshot/a"), "/", "zfs", "tank/pg@a", (0, 52)),
        mounts.MountInfo(Path("/srv/pg2"), "/", "zfs", "tank/pg2", (0, 53)),
        mounts.MountInfo(Path("/jail/pg"), "/", "zfs", "tank/pg", (0, 50)),
    ]
    monkeypatch.setattr(mounts, "table", lambda: table)
    subject = subjects.choose(dataset="tank/pg")
    assert subject.devices == (50, 51) and subject.by_files
    assert subject.words == "dataset tank/pg and 1 dataset below it"
    with pytest.raises(InputError, match=r"^no dataset tank/none is mounted on this host, nor one below it$"):
        subjects.choose(dataset="tank/none")


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^there is no folder {tmp_path}/none$"):
        subjects.choose(path=tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is no folder; name the folder that the file is in"):
        subjects.choose(path=tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path)
    subject = subjects.choose(path=tmp_path / "link")
    assert subject.name == str(tmp_path.resolve())
    assert [root.inode for root in subject.roots] == [tmp_path.stat().st_ino]
    assert subject.devices == (subject.roots[0].device,)


def test_a_folder_with_file_systems_below() -> None:
    below = {m.device for m in mounts.table() if Path("/sys") == m.point or Path("/sys") in m.point.parents}
    if len(below) < 2:
        pytest.skip("nothing is mounted below /sys")
    assert len(subjects.choose(path="/sys").devices) >= 2


def test_record_sizes_come_from_zfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "zfs"
    program.write_text(
        "#!/bin/sh\n"
        'test "$*" = "get -Hp -o name,property,value,source recordsize tank/pg tank/wal" || exit 1\n'
        "printf 'tank/pg\\trecordsize\\t16384\\tlocal\\ntank/wal\\trecordsize\\t131072\\tdefault\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    table = [
        mounts.MountInfo(Path("/srv/pg"), "/", "zfs", "tank/pg", (0, 50)),
        mounts.MountInfo(Path("/srv/wal"), "/", "zfs", "tank/wal", (8, 3)),
        mounts.MountInfo(Path("/"), "/", "ext4", "/dev/sda1", (8, 1)),
    ]
    monkeypatch.setattr(mounts, "table", lambda: table)
    assert subjects.record_sizes() == {50: 16384, 8 << 20 | 3: 131072}
