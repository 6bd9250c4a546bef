"""What is killed, slow or full in the middle of a screening: real processes, real kills.

Each fault once by default; twenty times, at moments that differ, with ``--long``.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import distributed
import pytest
from children import environment
from fleets import StartedFleet, few_layouts, started
from invoked import invoke
from synthetic_traces import make_trace
from waiting import until

from ztune.fleet import connect, roster
from ztune.fleet import executor as fleet_executor
from ztune.places import engine as engines
from ztune.places.channel import Lost
from ztune.runs import screening
from ztune.runs.observer import Observer
from ztune.runs.options import ScreenOptions
from ztune.store.db import Store
from ztune.store.records import Run, Trial

ROUNDS = pytest.mark.parametrize(
    "rounds", [1, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
OPTIONS = ScreenOptions(jobs=1, budget=4, only=True, seed=3)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a host's name of its own takes root")


class Faulty(Observer):
    """Does something when the third layout begins; counts how often each ends."""

    def __init__(self, act: Callable[[], object], after_s: float) -> None:
        self.act, self.after_s = act, after_s
        self.begun = 0
        self.ended: Counter[int] = Counter()

    def trial(self, trial: Trial) -> None:
        self.begun += 1
        if self.begun == 3:
            threading.Timer(self.after_s, self.act).start()

    def finished(self, trial: Trial, steps: Mapping[str, float]) -> None:
        self.ended[trial.id] += 1


class Scene:
    """A fleet of two workers whose engines take a second, a trace, and what its layouts count."""

    counts: ClassVar[dict[str, Any]] = {}
    """On this machine alone; every test's trace is the same one."""

    def __init__(self, folder: Path, fleet: StartedFleet) -> None:
        self.fleet, self.trace = fleet, make_trace(folder / "t.trace")
        self.said: list[str] = []
        self.random = random.Random(folder.name)

    def workers(self) -> None:
        """Start those that are missing."""
        for name in {"one", "two"} - set(self.fleet.processes):
            self.fleet.worker(name, STAND_IN="slow=1")

    def screen(self, observer: Observer, run: Run | None = None) -> Run:
        with Store.open() as store, connect.fleet(self.fleet.address, self.said.append) as executor:
            engine = engines.check()
            if run is not None:
                return screening.resume(
                    store, run, self.trace, engine, ScreenOptions(budget=4, only=True), observer=observer,
                    executor=executor,
                )  # fmt: skip
            return screening.start(
                store, self.trace, few_layouts(), engine, OPTIONS, observer=observer, executor=executor
            )

    def check(self, run: Run, faulty: Faulty | None = None) -> None:
        """Each layout has the result that it has on one machine, and was counted once; nothing runs on."""
        with Store.open() as store:
            assert run.status == "done"
            if not self.counts:
                alone = screening.start(store, self.trace, few_layouts(), engines.check(), OPTIONS)
                self.counts.update({t.layout_hash: t.result for t in store.trials(alone.id)})
            for trial in store.trials(run.id):
                result = dict(trial.result or {})
                assert result.pop("ran_on")
                assert result == self.counts[trial.layout_hash]
            assert len(store.trials(run.id)) == 4
        assert faulty is None or set(faulty.ended.values()) == {1}
        until(lambda: not self.fleet.engines(), "engines end")

    def moment(self) -> float:
        """Return a moment within the second that a layout takes."""
        return self.random.uniform(0, 1)


@pytest.fixture(scope="module")
def started_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedFleet]:
    with started(tmp_path_factory.mktemp("fleet") / "run") as fleet:
        yield fleet


@pytest.fixture
def scene(started_fleet: StartedFleet, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("ZTUNE_ENGINE", str(started_fleet.engine))
    scene = Scene(tmp_path, started_fleet)
    scene.workers()
    return scene


@ROUNDS
def test_a_worker_is_killed(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        faulty = Faulty(lambda: scene.fleet.kill("one"), scene.moment())
        run = scene.screen(faulty)
        scene.check(run, faulty)
        assert "one" not in scene.fleet.processes
        scene.workers()
    # What the killed one left is removed by the next of its state directory.
    scene.check(scene.screen(Observer()))
    assert not list((scene.fleet.folder / "home-one" / "scratch").glob("trial-*"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_worker_is_retired(scene: Scene) -> None:
    """As a cluster's manager does it: it has the time to answer, and what it had begun has not failed."""

    def retire() -> None:
        with distributed.Client(scene.fleet.address, set_as_default=False) as client:
            client.retire_workers(names=["one"])

    for _ in range(20):
        faulty = Faulty(retire, scene.moment())
        run = scene.screen(faulty)
        scene.check(run, faulty)
        scene.fleet.kill("one")
        scene.workers()


@ROUNDS
def test_a_worker_is_killed_and_is_back_at_once(scene: Scene, rounds: int) -> None:
    """Under the address that it had: what it had begun is not waited for, and it is asked anew."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    scene.fleet.kill("one")
    scene.fleet.worker("one", port=port, STAND_IN="slow=1")

    def again() -> None:
        scene.fleet.kill("one")
        scene.fleet.worker("one", port=port, STAND_IN="slow=1")

    for _ in range(rounds):
        faulty = Faulty(again, scene.moment())
        scene.check(scene.screen(faulty), faulty)


@ROUNDS
def test_the_client_is_killed(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        command = [sys.executable, "-m", "ztune.cli.main", "screen", str(scene.trace.path), "--budget", "1",
                   "--on", scene.fleet.address]  # fmt: skip
        process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        until(scene.fleet.engines, "an engine")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        until(lambda: not scene.fleet.engines(), "the workers end what nobody waits for")
        code, _, err = invoke("screen", str(scene.trace.path), "--resume", "--on", scene.fleet.address)
        assert code == 0, err
        with Store.open() as store:
            assert [t.status for t in store.trials(store.run().id)] == ["ok"]


@ROUNDS
def test_ctrl_c(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        with pytest.raises(KeyboardInterrupt):
            scene.screen(Faulty(lambda: os.kill(os.getpid(), signal.SIGINT), scene.moment()))
        assert not scene.fleet.engines()
        with Store.open() as store:
            run = store.run()
            assert run.status == "interrupted" and not any(
                t.status == "running" for t in store.trials(run.id)
            )
        scene.check(scene.screen(Observer(), run))


@needs_root
@ROUNDS
def test_a_host_with_a_full_disk(scene: Scene, rounds: int) -> None:
    for _ in range(rounds):
        home = scene.fleet.folder / "home-full"
        home.mkdir(exist_ok=True)
        scene.fleet.worker("full", before=f"hostname full; mount -t tmpfs -o size=2m,mode=700 none {home}")
        until(lambda: "Registered to" in scene.fleet.log("full"), "the worker")
        faulty = Faulty(lambda: None, 0)
        scene.check(scene.screen(faulty), faulty)
        scene.fleet.kill("full")
        (scene.fleet.folder / "full.log").unlink()
    why = [line for line in scene.said if "on full is not used" in line]
    assert len(why) == rounds and "of a recording do not fit into" in why[0]


@needs_root
@ROUNDS
def test_a_slow_host(scene: Scene, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_executor, "_LEAST_SLOW_S", 1.0)
    for _ in range(rounds):
        scene.fleet.worker("slow", before="hostname slow", STAND_IN="slow=600")
        until(lambda: "Registered to" in scene.fleet.log("slow"), "the worker")
        faulty = Faulty(lambda: None, 0)
        run = scene.screen(faulty)
        scene.check(run, faulty)
        with Store.open() as store:
            assert all((t.result or {})["ran_on"] != "slow" for t in store.trials(run.id))
        scene.fleet.kill("slow")
        (scene.fleet.folder / "slow.log").unlink()


@ROUNDS
def test_the_scheduler_is_killed(scene: Scene, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cancels with its end is no layout's fault, however late it is seen that it is gone."""
    monkeypatch.setattr(roster, "_LOOK_S", 8.0)
    monkeypatch.setattr(connect, "_CONNECT_S", 3.0)
    for _ in range(rounds):
        faulty = Faulty(lambda: scene.fleet.kill("scheduler"), scene.moment())
        with pytest.raises(Lost, match="scheduler of the fleet does not answer"):
            scene.screen(faulty)
        until(lambda: not scene.fleet.engines(), "the workers end with their scheduler")
        with Store.open() as store:
            run = store.run()
            assert run.status == "interrupted" and not any(
                t.status == "running" for t in store.trials(run.id)
            )
        for name in ("one", "two"):
            scene.fleet.kill(name)
        scene.fleet.scheduler()
        scene.workers()
        faulty_again = Faulty(lambda: None, 0)
        scene.check(scene.screen(faulty_again, run))
        assert not set(faulty.ended) & set(faulty_again.ended)
