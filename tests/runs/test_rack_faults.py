"""Trials on several hosts, of which one is cut off, killed, slow, full or changed: real sshd, real trials.

Each fault once by default; twenty times, at moments that differ, with ``--long`` (``--rounds 5``: five times;
``--seed b``: at others). The hosts are namespaces of
this machine, and their file systems ext4 and xfs on loop devices: a trial on them is made, journalled and
destroyed as one on ZFS is.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from children import environment
from invoked import invoke
from rack_hosts import WHY_NOT, RackHost, RackHosts, rack_hosts
from waiting import until

from ztune.places import rack as racks
from ztune.runs import asked, failover, runner
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.store.db import Store
from ztune.store.records import Run, Trial

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
ROUNDS = pytest.mark.parametrize(
    "rounds",
    ["once", pytest.param("often", marks=[pytest.mark.long, pytest.mark.timeout(7200)])],
    indirect=True,
)
STUDY = """
name = "small"
workload = "sqlite"
[layout]
name = "ext4"
arc = "64M"
[[layout.pool]]
name = "main"
filesystem = "ext4"
[[layout.pool.vdev]]
profile = "ssd-sata"
[[layout.dataset]]
name = "main/db"
roles = ["data", "wal", "temp"]
[[layouts]]
name = "xfs"
set = { "pool.main.filesystem" = "xfs" }
"""
PARAMS = {"seconds": "1", "size": "2M", "warmup": "0"}
WAIT_S = 240.0


class Faulty(Observer):
    """Does something once, ``after_s`` after the first trial of ``host`` began."""

    def __init__(self, host: str, act: Callable[[], object], after_s: float) -> None:
        self.host, self.act, self.after_s = f"ssh://{host}", act, after_s
        self.done = False
        self.said: list[str] = []
        self.threads: list[threading.Thread] = []

    def trial(self, trial: Trial) -> None:
        if not self.done and trial.host == self.host:
            self.done = True
            self.threads.append(threading.Timer(self.after_s, self.act))
            self.threads[0].start()

    def say(self, text: str) -> None:
        self.said.append(text)

    def heard(self, words: str) -> bool:
        return any(words in text for text in self.said)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


class Scene:
    """Three hosts, a study of two layouts, and what must be true after whatever happened."""

    def __init__(self, rack: RackHosts, folder: Path, seed: str) -> None:
        self.rack, self.folder = rack, folder
        self.study = folder / "small.toml"
        self.study.write_text(STUDY)
        self.file = rack.file(folder / "fleet.toml")
        self.random = random.Random(folder.name + seed)
        self.clear: dict[str, list[str]] = {host.name: [] for host in rack.hosts}
        for host in rack.hosts:
            # What a test before has left, as it failed, is no business of this one.
            if host.process is None or not host.answers() or host.left():
                host.renew()

    def host(self) -> RackHost:
        return self.random.choice(self.rack.hosts)

    def moment(self) -> float:
        """Return a moment within a trial."""
        return self.random.uniform(0, 3)

    def start(self, observer: Observer, blocks: int = 1) -> Run:
        task = asked.task(str(self.study), PARAMS, (), None, None, native=False, on=str(self.file))
        options = TrialOptions(blocks=(blocks, blocks))
        request = runner.Request(task.study, task.layouts, task.job, racks.read(self.file), options)
        with Store.open() as store:
            return runner.start(store, request, observer)

    def resume(self, run: Run, observer: Observer) -> Run:
        with Store.open() as store:
            return runner.resume(store, run, racks.Rack.of(run.target), observer)

    def check(self, run: Run, blocks: int = 3) -> list[Trial]:
        """Every block is whole, on one host and counted once; nothing is left anywhere."""
        with Store.open() as store:
            run = store.run(run.id)
            found = store.trials(run.id)
        assert run.status == "done", [(t.number, t.target, t.status, t.error) for t in found]
        assert [t.status for t in found] == ["ok"] * (2 * blocks), [(t.target, t.error) for t in found]
        assert Counter((t.block, t.layout_name) for t in found) == {
            (block, name): 1 for block in range(1, blocks + 1) for name in ("ext4", "xfs")
        }
        hosts_of: dict[int, set[str]] = {}
        for trial in found:
            hosts_of.setdefault(trial.block, set()).add(trial.host)
        assert all(len(hosts) == 1 for hosts in hosts_of.values()), hosts_of
        self.clean(run)
        return found

    def clean(self, run: Run) -> None:
        """What a host that was away has left is destroyed once it is there again; nothing else is touched."""
        for host in self.rack.hosts:
            if host.process is None:
                host.start()
        # A trial whose client is gone tidies up by itself; what hung here goes on now, and ends.
        until(lambda: not any(p for h in self.rack.hosts for p in h.running()), "trials end", WAIT_S)
        until(
            lambda: not any(t.name.startswith("trial on") for t in threading.enumerate()),
            "threads end",
            WAIT_S,
        )
        until(lambda: not any(p for h in self.rack.hosts for p in h.running()), "trials end", WAIT_S)
        if any(host.left() for host in self.rack.hosts):
            code, out = invoke("clean", "--run", run.id, "--yes")[:2]
            assert code == 0, out
        assert {host.name: host.left() for host in self.rack.hosts} == self.clear
        assert all(
            (host.own / "srv/theirs").read_text() == "a file of the user's" for host in self.rack.hosts
        )


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RackHosts]:
    folder = tmp_path_factory.mktemp("rack")
    for path in (folder, *folder.parents):
        if path.owner() == "root" and str(path).startswith(str(tmp_path_factory.getbasetemp().parent)):
            path.chmod(path.stat().st_mode | 0o011)
    with rack_hosts(folder) as hosts:
        yield hosts


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return 1 if request.param == "once" else int(request.config.getoption("--rounds"))


@pytest.fixture
def scene(
    rack: RackHosts,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Scene:
    monkeypatch.setenv("PATH", f"{rack.bin}:{os.environ['PATH']}")
    monkeypatch.setattr(failover, "PAUSE_S", 0.3)
    monkeypatch.setattr(failover, "AGAIN_S", 0.5)
    return Scene(rack, tmp_path, str(request.config.getoption("--seed")))


@pytest.mark.long  # by default: the next one, whose trial goes on meanwhile
@ROUNDS
def test_a_cable_is_pulled_and_plugged_in_again(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        host = scene.host()

        def act(host: RackHost = host) -> None:
            host.cut()
            time.sleep(scene.random.choice([0.2, 5.0, 9.0]))
            host.mend()

        faulty = Faulty(host.name, act, scene.moment())
        run = scene.start(faulty)
        faulty.join()
        scene.check(run)


@ROUNDS
def test_a_trial_that_goes_on_after_its_connection_was_cut_is_waited_for(scene: Scene, rounds: int) -> None:
    """It hangs meanwhile, so it is there still when its host can be reached again."""
    for _ in range(rounds):
        host = scene.host()

        def act(host: RackHost = host) -> None:
            host.hang(whole=False)
            host.cut()
            time.sleep(5)
            host.mend()
            time.sleep(scene.random.uniform(1, 8))
            host.hang(whole=False, on=False)

        faulty = Faulty(host.name, act, scene.moment())
        run = scene.start(faulty)
        faulty.join()
        scene.check(run)


@ROUNDS
def test_a_host_is_switched_off_and_comes_back_with_another_kernel(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        host = scene.host()

        def act(host: RackHost = host) -> None:
            host.kill()
            time.sleep(scene.random.uniform(0, 5))
            host.start(kernel="--uname-2.6")

        faulty = Faulty(host.name, act, scene.moment())
        run = scene.start(faulty, blocks=2)
        faulty.join()
        found = scene.check(run, blocks=6)
        labels = {t.host for t in found if t.host.startswith(f"ssh://{host.name}")}
        if faulty.heard("has kernel 2.6"):
            changed = next(text for text in faulty.said if "has kernel 2.6" in text)
            assert "counts as another host's" in changed
            assert any(label.startswith(f"ssh://{host.name} (kernel 2.6") for label in labels) or not labels
        host.kill()
        host.start()


@ROUNDS
def test_a_host_whose_disk_is_full(scene: Scene, rounds: int) -> None:
    for number in range(rounds):
        host = scene.host()
        # Where pools go there is too little room, or where journals go there is none.
        where = ["/srv", "/var/lib"][number % 2]
        fill = f"head -c 2M /dev/zero >{where}/theirs || true" if number % 2 else ""
        host.kill()
        host.start(f"mount -t tmpfs -o size=2m,mode=755 none {where}\n{fill}")
        faulty = Faulty(host.name, lambda: None, 0)
        run = scene.start(faulty)
        assert faulty.heard(f"ssh://{host.name} is not used any more"), faulty.said
        host.kill()
        found = scene.check(run)
        assert host.name not in {t.host.removeprefix("ssh://") for t in found}


@ROUNDS
def test_a_host_that_hangs_or_is_slow_hurts_nobody(
    scene: Scene, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "LEAST_SLOW_S", 4.0)
    monkeypatch.setattr(failover, "STOP_S", 4.0)
    monkeypatch.setattr(failover, "STILL_S", 4.0)
    for number in range(rounds):
        host = scene.host()
        # All of it, so that ssh finds it lost; or the trial alone, which then answers no more.
        whole = bool(number % 2)

        def act(host: RackHost = host, whole: bool = whole) -> None:
            host.hang(whole=whole)

        faulty = Faulty(host.name, act, scene.moment())
        run = scene.start(faulty)
        faulty.join()
        host.hang(whole=whole, on=False)
        scene.check(run)


@ROUNDS
def test_ctrl_c_stops_all_and_cleans_all(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        faulty = Faulty("db1", lambda: os.kill(os.getpid(), signal.SIGINT), scene.moment())
        with pytest.raises(KeyboardInterrupt):
            scene.start(faulty)
        with Store.open() as store:
            run = store.run()
            assert run.status == "interrupted", faulty.said
            assert {t.status for t in store.trials(run.id)} <= {"ok", "pending"}, faulty.said
        assert {host.name: host.left() for host in scene.rack.hosts} == scene.clear, faulty.said
        done = [t.number for t in _ok(run)]
        scene.check(scene.resume(run, Observer()))
        assert all(not t.attempts for t in _ok(run) if t.number in done)


def test_ctrl_c_as_a_trial_begins_leaves_none_that_runs(scene: Scene) -> None:
    class Interrupted(Observer):
        def trial(self, trial: Trial) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scene.start(Interrupted())
    with Store.open() as store:
        run = store.run()
        assert run.status == "interrupted"
        assert {t.status for t in store.trials(run.id)} == {"pending"}
    scene.check(scene.resume(run, Observer()))


@ROUNDS
def test_ztune_is_killed(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        words = [sys.executable, "-m", "ztune.cli.main", "run", str(scene.study), "--on", str(scene.file)]
        words += ["--blocks", "1:1", *(w for k, v in PARAMS.items() for w in ("-p", f"{k}={v}"))]
        with subprocess.Popen(words, env={**environment(), "PATH": os.environ["PATH"]}) as victim:
            until(lambda: _began() or victim.poll() is not None, "a trial", WAIT_S)
            time.sleep(scene.moment())
            victim.kill()
        with Store.open() as store:
            run = store.run()
            assert run.status == "running" and not store.is_live(run)
        done = {t.number: t.started for t in _ok(run)}
        resumed = scene.resume(run, Observer())
        again = {t.number: t.started for t in _ok(resumed)}
        assert done.items() <= again.items()
        scene.check(resumed)
        with Store.open() as store:
            store.delete_runs([run.id])


def _began() -> bool:
    with Store.open() as store:
        runs = store.runs()
        return bool(runs) and any(t.status in ("running", "ok") for t in store.trials(runs[-1].id))


def _ok(run: Run) -> list[Trial]:
    with Store.open() as store:
        return [t for t in store.trials(run.id) if t.ok]
