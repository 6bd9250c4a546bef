"""Whole trials on real ext4 and xfs, on loop devices: no ZFS is needed for them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from trial_support import HARNESS, TRIAL, Forks, Ran, clean, make_spec, parse_events, pool, run_trial

from ztune.onhost.host import mounts


def can_loop() -> bool:
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None


pytestmark = pytest.mark.skipif(not can_loop(), reason="needs root, loop devices and mkfs.ext4")


class Host:
    """The part of the host that a trial may touch, and whether it is as it was."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.files = folder / "files"
        self.files.mkdir()
        (self.files / "mine").write_text("a file of the user's")

    def spec(self, filesystem: str = "ext4", size: str = "320M", **changes: Any) -> dict[str, Any]:
        place = {"kind": "files", "dir": str(self.files), "disks": {"main": {"data": [[size]]}}}
        return make_spec(self.state, place, **{"layout.pool": [pool(filesystem=filesystem)], **changes})

    def require_untouched(self) -> None:
        assert [p.name for p in self.files.iterdir()] == ["mine"]
        assert not self.state.exists()
        assert not [m for m in mounts.table() if str(self.state) in str(m.point)]
        backing = []
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):  # another test's, that goes just now
                backing.append(path.read_text())
        assert not [b for b in backing if str(self.files) in b]
        assert not mounts.users(self.state)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_a_whole_trial_leaves_nothing(host: Host, filesystem: str) -> None:
    if shutil.which(f"mkfs.{filesystem}") is None:
        pytest.skip(f"mkfs.{filesystem} is missing")
    ran = run_trial(host.spec(filesystem))
    assert (ran.rc, ran.status, ran.errors) == (0, "ok", "")
    result = ran.result
    assert result["job"]["operations"] == 20
    assert result["job"]["checks"][0]["ok"]
    assert result["measure"]["operations"] == 20 and result["measure"]["seconds"] > 0
    assert result["measure"]["pools"] == [["zttest-main", filesystem, ["data"]]]
    assert set(result["steps"]) == {"prepare", "load", "settle", "measure"}
    # Cold: the file system was unmounted and mounted between the load and the measure.
    assert [c[0] for c in ran.commands].count("mount") == 2
    host.require_untouched()


def test_a_saved_state_is_copied_into_another_layout(host: Host, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    ran = run_trial(host.spec(start={"kind": "keep", "save": str(saved)}))
    assert ran.status == "ok"
    assert sorted(p.name for p in saved.iterdir()) == [".ztune-saved.json", "data.tar", "wal.tar"]
    with tarfile.open(saved / "data.tar") as archive:
        found = archive.extractfile("./digest")
        assert found is not None
        digest = found.read().decode()
    split = [
        {"name": "main/db", "roles": ["data"], "properties": {}},
        {"name": "main/log", "roles": ["wal"], "properties": {}},
    ]
    more: dict[str, Any] = {"start": {"kind": "copy", "from": str(saved)}, "layout.dataset": split}
    again = run_trial(host.spec(**more))
    assert (again.status, again.errors) == ("ok", "")
    # The copy is what was loaded, not a load of its own: the job read it and compared.
    assert {c["name"]: c["got"] for c in again.result["job"]["checks"]}["digest"] == digest
    other = host.spec(
        start={"kind": "copy", "from": str(saved)}, job={"name": "writer", "params": {"load": 5}}
    )
    assert "saved by another job or with other parameters" in run_trial(other).errors
    marker = saved / ".ztune-saved.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "version": 1}))
    assert (
        "saved by another version" in run_trial(host.spec(start={"kind": "copy", "from": str(saved)})).errors
    )
    wrong = host.spec(start={"kind": "copy", "from": str(tmp_path)})
    assert "is no saved state" in run_trial(wrong).errors
    host.require_untouched()


def test_directories_of_another_user_are_refused(host: Host, tmp_path: Path) -> None:
    """Root's files and states there could be swapped, or be somebody else's from the beginning."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    saved = theirs / "saved"
    saved.mkdir()
    saved.rmdir()
    os.chown(theirs, 65534, 65534)
    words = f"{theirs}.*belongs to user 65534"
    place = {"kind": "files", "dir": str(theirs), "disks": {"main": {"data": [["320M"]]}}}
    for changes, key in (
        ({"place": place}, "place.dir"),
        ({"start": {"kind": "keep", "save": str(saved)}}, "start.save"),
        ({"start": {"kind": "copy", "from": str(saved)}}, "start.from"),
        ({"start": {"kind": "copy", "from": str(theirs)}}, "start.from"),
    ):
        ran = run_trial({**host.spec(), **changes})
        assert ran.status == "failed" and re.search(f"{key}: {words}", ran.errors), ran.errors
        assert list(theirs.iterdir()) == []
        host.require_untouched()
    ran = run_trial({**host.spec(), "state": str(theirs / "state")})
    assert ran.rc == 2 and re.search(words, ran.errors), ran.errors
    # What is there under the run's name already, in a directory that all may write.
    host.files.chmod(0o1777)
    (host.files / "r-test").mkdir()
    os.chown(host.files / "r-test", 65534, 65534)
    ran = run_trial(host.spec())
    assert re.search("place.dir: .*r-test belongs to user 65534", ran.errors), ran.errors
    (host.files / "r-test").rmdir()
    host.require_untouched()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


_HELD = 8
"""How often a clean-up is done again, each after the 15 s that it waits for a device by itself."""


def cleaned(host: Host, clean: Callable[[Path], Ran] = clean) -> Ran:
    """Clean up until nobody outside holds what is to go, and return how the last one ended."""
    done = clean(host.state)
    for _ in range(_HELD):
        # Another test's mounts of its own may have a copy of this one, which holds the loop device.
        if "something has it open" not in done.errors:
            break
        done = clean(host.state)
    return done


def killed_and_cleaned(folder: Path, numbers: Iterator[int]) -> tuple[set[str], int]:
    """Kill a trial at each of ``numbers`` and clean up, until one is beyond its end.

    Returns what the last whole record of each journal was about, and the number that was beyond.
    """
    folder.mkdir()
    host, saved = Host(folder), folder / "saved"
    met: set[str] = set()
    server = Forks()
    for number in numbers:
        ran = server.run_trial(host.spec(start={"kind": "keep", "save": str(saved)}), kill=number)
        if ran.rc != -signal.SIGKILL:
            assert ran.status == "ok"
            host.require_untouched()
            server.close()
            return met, number
        journal = host.state / "state/r-test" / TRIAL / "journal.jsonl"
        if journal.exists():
            met.add(json.loads((journal.read_text().splitlines() or ['{"do":""}'])[-1])["do"])
        done = cleaned(host, server.clean)
        assert (done.rc, done.errors) == (0, ""), f"killed at {number}"
        host.require_untouched()
        # What was saved is the user's once it has its name; half of it is not left.
        assert not list(folder.glob("saved.partial*"))
        shutil.rmtree(saved, ignore_errors=True)
    raise AssertionError("numbers ended")


def test_a_trial_killed_at_any_record_is_undone_by_clean(tmp_path: Path) -> None:
    # Two at a time: each waits for the disk half of its time.
    with ThreadPoolExecutor(2) as pool_:
        found = list(
            pool_.map(lambda i: killed_and_cleaned(tmp_path / str(i), itertools.count(2 + i, 2)), range(2))
        )
    assert set().union(*(met for met, _ in found)) >= {
        "open", "step", "make", "made", "note", "remove", "removed", "close",
    }  # fmt: skip
    assert min(number for _, number in found) > 60


def test_a_new_trial_of_the_run_first_undoes_the_dead_one(host: Host) -> None:
    killed = run_trial(host.spec(), kill=25)
    assert killed.rc == -signal.SIGKILL and host.state.exists()
    again = run_trial(host.spec(trial="r-test-0002"))
    assert (again.status, again.errors) == ("ok", "")
    assert any("was cut; it is undone first" in str(e.get("text")) for e in again.events)
    host.require_untouched()


@pytest.mark.parametrize(
    ("fail", "sentence"),
    [
        ("load", "the load failed, as it was told to"),
        ("run", "the job failed, as it was told to"),
        ("stop", "writer did not stop within 1 s; it was killed"),
    ],
)
def test_a_job_that_fails_is_said_and_all_is_destroyed(host: Host, fail: str, sentence: str) -> None:
    ran = run_trial(host.spec(job={"name": "writer", "params": {"fail": fail}}))
    assert (ran.rc, ran.status) == (1, "failed")
    assert sentence in ran.errors
    host.require_untouched()


def test_data_larger_than_the_disk(host: Host) -> None:
    told = run_trial(host.spec(job={"name": "writer", "params": {"load": 1 << 30}}))
    assert "role data is larger than the disk: 1G of data" in told.errors
    found = run_trial(
        host.spec(size="64M", job={"name": "writer", "params": {"load": 1 << 27, "fail": "full"}})
    )
    assert "role data is larger than the disk" in found.errors and "is full" in found.errors
    host.require_untouched()


def test_a_foreign_mount_on_top_is_left_with_everything_below_it(host: Host) -> None:
    killed = run_trial(host.spec(), kill=25)
    assert killed.rc == -signal.SIGKILL
    point = next(m.point for m in mounts.table() if str(host.state) in str(m.point))
    subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True)
    (point / "mine").write_text("a file of the user's")
    try:
        done = clean(host.state)
        assert done.rc == 1
        assert f"{point}: left mounted: none (tmpfs)" in done.errors
        assert "loop" in done.errors and "still uses it" in done.errors
        assert (point / "mine").exists()
        assert list(host.files.rglob("main-data-0-0"))
    finally:
        subprocess.run(["umount", str(point)], check=True)
    assert cleaned(host).rc == 0
    host.require_untouched()


def test_another_file_beside_the_trial_s_is_left(host: Host) -> None:
    killed = run_trial(host.spec(), kill=25)
    assert killed.rc == -signal.SIGKILL
    theirs = next(host.files.rglob("main-data-0-0")).parent / "theirs"
    theirs.write_text("x")
    done = clean(host.state)
    assert done.rc == 1 and "it holds files that are not ours" in done.errors
    assert theirs.exists()
    theirs.unlink()
    assert cleaned(host).rc == 0
    host.require_untouched()


def begin(host: Host, child: str = "") -> subprocess.Popen[str]:
    """Start a trial whose job takes long, and return when it is being measured."""
    slow = {"name": "writer", "params": {"pause": 1.0, "records": 100, "child": child}}
    process = subprocess.Popen(
        [sys.executable, str(HARNESS), "run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(host.spec(job=slow)) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        event = json.loads(line)
        if event.get("step") == "measure" and event.get("state") == "begin":
            return process
    raise AssertionError("the trial ended before its measure")


def end(process: subprocess.Popen[str]) -> Ran:
    assert process.stdout
    out = process.stdout.read()
    return Ran(process.wait(60), parse_events(out), "")


@pytest.mark.parametrize("how", ["stop", "eof", "SIGTERM", "SIGINT", "SIGHUP"])
def test_stopped_in_order(host: Host, how: str) -> None:
    process = begin(host)
    assert process.stdin
    if how == "stop":
        process.stdin.write("stop\n")
        process.stdin.flush()
    elif how == "eof":
        process.stdin.close()
    else:
        process.send_signal(signal.Signals[how])
    ran = end(process)
    assert (ran.rc, ran.status) == (1, "stopped"), ran.errors
    host.require_untouched()


def test_a_reader_that_goes_away_stops_the_trial(host: Host) -> None:
    process = begin(host)
    assert process.stdin and process.stdout
    process.stdout.close()
    process.stdin.close()
    assert process.wait(60) == 1
    host.require_untouched()


def test_two_trials_of_a_run_do_not_overlap(host: Host) -> None:
    process = begin(host)
    second = run_trial(host.spec(trial="r-test-0002"))
    assert second.rc == 1 and "a trial of it is still running" in second.errors
    swept = clean(host.state)
    assert swept.rc == 1
    assert any("still running" in str(e.get("text")) for e in swept.events)
    assert process.poll() is None
    process.terminate()
    ran = end(process)
    assert ran.status == "stopped", ran.events
    host.require_untouched()


def test_what_the_job_s_program_left_behind_is_killed_by_clean(host: Host) -> None:
    """Its program ends with the trial; what that started goes on, and keeps the file system busy."""
    process = begin(host, child="sleep 600")
    wait_for(lambda: any(user.startswith("sleep ") for user in mounts.users(host.state)))
    process.kill()
    process.wait(60)
    wait_for(lambda: len(mounts.users(host.state)) == 1)
    assert mounts.users(host.state)[0].startswith("sleep ")
    # One that is no part of the job but stands there is not ours to kill.
    other = subprocess.Popen(["sleep", "600"], cwd=host.state)
    try:
        done = clean(host.state)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert (done.rc, done.errors) == (0, "")
    host.require_untouched()


def test_a_command_that_outlives_its_trial_keeps_the_lock(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zpool create goes on in the kernel when we are killed: clean must not look before it is done."""
    from ztune.onhost.events import Events
    from ztune.onhost.host import zfs
    from ztune.onhost.host.zfs import Commands
    from ztune.onhost.trial.lock import BusyError, RunLock

    monkeypatch.setattr(zfs, "which", lambda _name: "/bin/sleep")
    lock = RunLock(host.state, "r-x")
    lock.acquire()
    child = os.fork()
    if child == 0:
        with Path(os.devnull).open("w") as null:
            Commands(Events(null), keep_fds=[lock.fd])(["zpool", "30"])
        os._exit(0)
    deadline = time.monotonic() + 20
    while not (found := _children(child)) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.close(lock.fd)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    other = RunLock(host.state, "r-x")
    try:
        with pytest.raises(BusyError):
            other.acquire(0.3)
    finally:
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    assert other.acquire(20)
    other.release()
    host.require_untouched()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_bad_input_ends_with_2_and_makes_nothing(host: Host) -> None:
    for spec in ("not JSON", json.dumps(host.spec(run="../x")), json.dumps(host.spec(colour=1))):
        ran = run_trial(spec)
        assert (ran.rc, ran.status) == (2, "failed")
        assert ran.errors.startswith("spec: ")
    alone: dict[str, Any] = {"layout.dataset": [{"name": "main/db", "roles": ["data"], "properties": {}}]}
    without = host.spec(**alone)
    ran = run_trial(without)
    assert ran.rc == 2 and "uses the role wal, which no dataset of the layout has" in ran.errors
    host.require_untouched()


def test_zfs_is_asked_for_where_the_module_is_not_loaded(host: Host) -> None:
    if Path("/sys/module/zfs").exists():
        pytest.skip("the ZFS module is loaded here")
    ran = run_trial(host.spec("zfs"))
    assert ran.rc == 3 and "the ZFS module is not loaded on this host" in ran.errors
    host.require_untouched()
