"""Probes at work on this host, without ZFS: what they count, and that one that fails harms nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ztune.errors import InputError, ZtuneError
from ztune.onhost import probes
from ztune.onhost.events import Events
from ztune.onhost.host.zfs import Commands, which
from ztune.onhost.probes import calls, devzfs, disks, measure, procfs, vdevs
from ztune.onhost.probes.context import Context, DatasetContext, DeviceContext, PoolContext
from ztune.onhost.probes.probe import HELPERS, Probe, ProbeCost

OFF = dict.fromkeys(probes.PROBES, False)


class Scene:
    """A trial's context on a directory of this host, with what was warned of and sent."""

    def __init__(self, folder: Path, options: dict[str, Any], pids: list[int]) -> None:
        self.said: list[str] = []
        self.rows: dict[str, list[list[float]]] = {}
        data = folder / "data"
        data.mkdir()
        pool = PoolContext("zt-main", "main", "ext4", "", (), True)
        self.context = Context(
            **{"run": "r-1", "trial": "r-1-1", "seed": 1, "state": folder},  # type: ignore[arg-type]
            options=options,
            pools=(pool,),
            datasets=(
                DatasetContext("zt-main/db", "main/db", ("data",), data, "zt-main", "ext4", False, ""),
            ),
            role_dirs={"data": data},
            command=Commands(Events((folder / "events").open("w"))),
            pids=lambda: pids,
            warn=self.said.append,
            series=lambda name, _columns, rows: self.rows.setdefault(name, []).extend(map(list, rows)),
        )


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Writes 100 × 8 KiB and burns some processor time in a child when told to; the child ends when told."""
    work = (
        "import os, time; fd = os.open('data/x', os.O_RDWR | os.O_CREAT)\n"
        "for i in range(100): os.write(fd, bytes(8192))\n"
        "until = time.process_time() + 0.3\n"
        "while time.process_time() < until: pass\n"
        "os.write(1, b'burnt\\n'); os.read(0, 4)\n"
    )
    script = 'read go; "$1" -S -c "$2"; echo done; read end'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", sys.executable, work],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def work(process: subprocess.Popen[bytes], seen: Callable[[], None] = lambda: None) -> None:
    """Have the job done; its child ends after ``seen`` returned."""
    assert process.stdin and process.stdout
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"burnt\n"
    seen()
    process.stdin.write(b"end\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"done\n"


def test_what_the_job_did_and_nothing_else(tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    wanted: dict[str, Any] = OFF | {"cpu": {"interval": 0.05}, "series": {"interval": 0.05}, "space": True}
    scene = Scene(tmp_path, wanted, [job.pid])
    running = probes.start(scene.context)
    window = measure.begin(scene.context)
    work(job)
    # What this process does meanwhile is none of the job's.
    (tmp_path / "other").write_bytes(bytes(10 << 20))
    window.close()
    running.freeze()
    (tmp_path / "data/late").write_bytes(b"after the window")
    measured = window.end()
    found = running.stop()
    assert scene.said == []
    assert set(found) == {"cpu", "series", "space"}
    assert measured["logical"]["source"] == "processes"
    assert 100 * 8192 <= measured["logical"]["write_bytes"] < 110 * 8192
    assert 100 <= measured["logical"]["writes"] < 110
    # Each of the two is counted in whole ticks of 10 ms.
    assert 0.28 <= measured["cpu"]["user_s"] + measured["cpu"]["system_s"] < 5
    cpu = found["cpu"]["job"]
    assert cpu["user_s"] + cpu["system_s"] == pytest.approx(
        measured["cpu"]["user_s"] + measured["cpu"]["system_s"], abs=0.05
    )
    assert cpu["processes"] == 1 and cpu["threads_seen"] == 2
    assert measured["zil"] == {} and measured["arc"] == {} and measured["seconds"] > 0.3
    assert found["space"]["data"]["files"] == 2
    assert found["series"]["samples"] == len(scene.rows["host"]) >= 2
    times = [row[0] for row in scene.rows["host"]]
    assert times == sorted(times)
    assert running.stop() is found


def test_what_an_ended_process_did_is_its_own_and_not_its_parent_s(
    tmp_path: Path, job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, looks = procfs.processes, threading.Semaphore(0)

    def look(pids: Iterable[int]) -> dict[procfs.Task, procfs.ProcessCounters]:
        found = processes(pids)
        looks.release()
        return found

    def look_twice() -> None:
        # How often the probe looks depends on what a look costs; the first to end may have begun before.
        while looks.acquire(blocking=False):
            pass
        assert looks.acquire(timeout=60) and looks.acquire(timeout=60)

    monkeypatch.setattr(procfs, "processes", look)
    scene = Scene(tmp_path, OFF | {"cpu": {"interval": 0.02}}, [job.pid])
    running = probes.start(scene.context)
    work(job, look_twice)
    cpu = running.stop()["cpu"]
    assert scene.said == []
    rows = {row["name"]: row for row in cpu["by_process"]}
    child = next(row for name, row in rows.items() if name.startswith("python"))
    assert child["processes"] == 1 and 100 <= child["write_calls"] < 110
    assert child["user_s"] + child["system_s"] >= 0.2
    # The kernel adds the child's calls to the shell, which waited for it.
    assert cpu["job"]["io"]["syscw"] >= 100 and rows["sh"]["write_calls"] < 10
    assert rows["sh"]["voluntary_switches"] >= 1
    assert sum(row["voluntary_switches"] for row in rows.values()) == cpu["job"]["voluntary_switches"]
    assert scene.context.names[job.pid] == "sh"


def test_a_title_says_which_process_of_a_server_it_is() -> None:
    for title, name in (
        ("bash: walwriter ", "bash: walwriter"),
        ("bash: ztune postgres [local] UPDATE", "bash: session"),
        ("bash: walsender ztune 127.0.0.1(4711) streaming", "bash: session"),
        ("/usr/bin/bash", "bash"),
    ):
        with subprocess.Popen(
            ["bash", "-c", 'exec -a "$0" bash -c "read x; true"', title], stdin=subprocess.PIPE
        ) as process:
            wanted = title.encode()
            until = time.monotonic() + 10
            while time.monotonic() < until:
                if Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(wanted + b"\0"):
                    break
                time.sleep(0.01)
            assert procfs.called(process.pid, "bash") == name
            process.kill()
    assert procfs.called(2**30, "gone") == "gone"


def test_a_host_without_interrupts_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise FileNotFoundError("/proc/interrupts")

    monkeypatch.setattr(procfs, "interrupts", missing)
    scene = Scene(tmp_path, OFF | {"cpu": True}, [os.getpid()])
    found = probes.start(scene.context).stop()["cpu"]
    assert found["interrupts"] is None and found["softirqs"] is None and scene.said == []


def test_helpers_are_no_part_of_the_job() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert child.pid in procfs.descendants([os.getpid()])
        HELPERS.add(child.pid)
        assert child.pid not in procfs.descendants([os.getpid()])
        with_it = procfs.job([os.getpid()])
        assert with_it.processes == len(procfs.descendants([os.getpid()]))
    finally:
        HELPERS.discard(child.pid)
        child.kill()
        child.wait()


class Fails(Probe):
    """Raises where it is told to."""

    name: ClassVar[str] = "fails"
    measures: ClassVar[str] = "nothing"
    cost: ClassVar[ProbeCost] = "none"
    default: ClassVar[bool] = True
    where: ClassVar[str] = ""
    abandoned: ClassVar[int] = 0

    def _maybe(self, where: str) -> None:
        if where == type(self).where:
            raise OSError(5, "the disk\nis gone", where)

    def begin(self) -> None:
        self._maybe("begin")

    def freeze(self) -> None:
        self._maybe("freeze")

    def finish(self) -> dict[str, Any]:
        self._maybe("finish")
        return {"ok": True}

    def abandon(self) -> None:
        type(self).abandoned += 1
        self._maybe("abandon")


@pytest.mark.parametrize("where", ["begin", "freeze", "finish"])
def test_one_that_fails_is_a_warning_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setitem(probes.PROBES, "fails", Fails)
    monkeypatch.setattr(Fails, "where", where)
    monkeypatch.setattr(Fails, "abandoned", 0)
    scene = Scene(tmp_path, OFF | {"cpu": True, "space": True, "fails": True}, [os.getpid()])
    found = probes.start(scene.context).stop()
    assert set(found) == {"cpu", "space"}
    assert scene.said == [f"probe fails is left out: [Errno 5] the disk is gone: '{where}'"]
    assert Fails.abandoned == 1


def test_a_probe_that_fails_before_its_thread_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> procfs.HostCounters:
        raise OSError("no /proc here")

    monkeypatch.setattr(procfs, "host", broken)
    scene = Scene(tmp_path, OFF | {"cpu": True, "series": True}, [])
    assert probes.start(scene.context).stop() == {}
    assert sorted(scene.said) == [
        "probe cpu is left out: no /proc here",
        "probe series is left out: no /proc here",
    ]


def test_a_failed_trial_ends_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probes.PROBES, "fails", Fails)
    monkeypatch.setattr(Fails, "where", "abandon")
    scene = Scene(tmp_path, OFF | {"fails": True, "cpu": True, "series": True}, [os.getpid()])
    import threading

    before = threading.active_count()
    running = probes.start(scene.context)
    assert threading.active_count() == before + 2
    running.abandon()
    assert threading.active_count() == before
    assert len(scene.said) == 1 and scene.said[0].startswith("probe fails could not be ended: ")
    assert running.stop() == {}


def test_a_signal_while_they_begin_ends_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Fails):
        def begin(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(probes.PROBES, "fails", Stopped)
    monkeypatch.setattr(Stopped, "abandoned", 0)
    import threading

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        probes.start(Scene(tmp_path, {}, [os.getpid()]).context)
    assert threading.active_count() == before and Stopped.abandoned == 2


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"colour": True}, 'probes: there is no probe "colour"; there are: cpu, datasets, disks, '),
        ({"cpu": "yes"}, "probes.cpu: 'yes' is neither true nor false nor an object of options"),
        ({"cpu": {"speed": 1}}, 'probes.cpu: there is no option "speed"; there are: interval'),
        ({"disks": {"interval": 1}}, 'probes.disks: there is no option "interval"; there are: none'),
        ({"cpu": {"interval": 0}}, "probes.cpu.interval: 0 is not a number from 0.01 to 1000000"),
        ({"cpu": {"interval": True}}, "probes.cpu.interval: True is not a number"),
        ({"series": {"interval": float("nan")}}, "probes.series.interval: nan is not a number"),
    ],
)
def test_bad_input_is_one_sentence(wanted: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        probes.resolve(wanted)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_on_by_default() -> None:
    assert set(probes.resolve({})) == {name for name, kind in probes.PROBES.items() if kind.default}
    assert {name for name, kind in probes.PROBES.items() if kind.cost == "large" and kind.default} == set()
    assert probes.resolve({"zdb": {"timeout": 60}})["zdb"] == {"timeout": 60}
    assert "cpu" not in probes.resolve({"cpu": False})


def test_one_that_cannot_be_used_says_why_only_when_asked_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"iostat": True}, [])
    found = probes.start(scene.context).stop()
    assert not {"iostat", "kstat", "txgs", "datasets", "zdb"} & set(found)
    assert scene.said == ["probe iostat is left out: no pool of this layout is of ZFS"]


def leaf(guid: int, reads: int, writes: int, path: str = "/dev/x") -> vdevs.Leaf:
    return vdevs.Leaf(guid, path, "disk", "data", reads, reads * 8192, writes, writes * 8192, 0, {}, {})


def test_counters_that_begin_anew_are_said() -> None:
    """A device that was reopened in the window counts from 0: the kernel's count stands in, or none."""
    number = (8, 0)
    device = disks.Device("main", "data", "data-0/0", "/dev/x", number, 7, True)
    before = disks.DiskReading(
        {7: leaf(7, 50, 50)}, {number: procfs.DiskCounters(reads=10, writes=10, flushes=1)}
    )
    after = disks.DiskReading(
        {7: leaf(7, 3, 60)}, {number: procfs.DiskCounters(reads=14, writes=30, flushes=3)}
    )
    rows, warnings = disks.compare([device], before, after)
    assert (rows[0]["reads"], rows[0]["writes"], rows[0]["flushes"], rows[0]["source"]) == (
        4,
        20,
        2,
        "diskstats",
    )
    assert "began to count anew" in warnings[0]
    rows, warnings = disks.compare([device], before, disks.DiskReading({}, {}))
    assert rows[0]["reads"] is None and "could not be counted" in warnings[0]
    assert disks.total(rows)["writes"] is None
    rows, warnings = disks.compare([device], before, disks.DiskReading({7: leaf(7, 60, 51)}, after.disks))
    assert (rows[0]["reads"], rows[0]["writes"], rows[0]["write_bytes"], warnings) == (10, 1, 8192, [])


def test_a_pool_that_zfs_tells_nothing_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(pool: str) -> dict[str, Any]:
        raise ZtuneError(f"pool {pool}: the ZFS module gives no counters: No such file or directory")

    monkeypatch.setattr(devzfs, "pool_stats", nothing)
    scene = Scene(tmp_path, {}, [])
    given = DeviceContext("data", 0, "/dev/none", "/dev/none")
    pool = PoolContext("zt-main", "main", "zfs", "1", (given,), True)
    import dataclasses

    (device,) = disks.find(dataclasses.replace(scene.context, pools=(pool,)))
    assert (device.guid, device.number, device.name) == (0, None, "data-0/0")
    assert "where a flush counts as a write" in scene.said[0]


@pytest.fixture(params=["bpftrace", "perf"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program that the probe watches with: the only one that it finds."""
    name = str(request.param)
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if which(name) is None:
        pytest.skip(f"needs {name}")
    monkeypatch.setattr(calls, "which", lambda asked: which(asked) if asked == name else None)
    return name


def test_system_calls_of_the_job_s_children(tmp_path: Path, job: subprocess.Popen[bytes], tool: str) -> None:
    scene = Scene(tmp_path, OFF | {"syscalls": True}, [job.pid])
    running = probes.start(scene.context)
    if scene.said:
        pytest.skip(f"{tool} can't watch here: {scene.said[0]}")
    assert len(HELPERS) == 1
    work(job)
    running.freeze()
    found = running.stop()["syscalls"]
    assert found["method"] == tool and found["calls"]["write"]["calls"] >= 100
    assert (
        sum(one.get("write", {"calls": 0})["calls"] for one in found["by_process"].values())
        == (found["calls"]["write"]["calls"])
    )
    assert found["calls"]["execve"]["calls"] == 1 and found["calls"]["wait4"]["seconds"] >= 0.3
    assert not HELPERS and not (tmp_path / "syscalls.perf").exists()


def test_watching_that_is_abandoned_leaves_nothing(
    tmp_path: Path, job: subprocess.Popen[bytes], tool: str
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as short as it gets
    scene = Scene(tmp_path, OFF | {"syscalls": True}, [job.pid])
    running = probes.start(scene.context)
    (helper,) = HELPERS or {0}
    running.abandon()
    time.sleep(0.05)
    assert not HELPERS and not Path(f"/proc/{helper}/exe").exists()
    assert not (tmp_path / "syscalls.perf").exists()
    assert len(os.listdir("/proc/self/fd")) <= open_before + 2  # noqa: PTH208 - the events' file, perf's words
