"""A run on several hosts against a stand-in for the trial program: blocks, what is said, what is kept."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from fake_place import JOB, FakePlace, layouts, study

from ztune.analysis.standing import standing
from ztune.errors import InputError
from ztune.places.placing import Placing
from ztune.places.rack import Rack
from ztune.places.ssh import Ssh
from ztune.report import measured
from ztune.results import export
from ztune.runs import failover, runner
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.store.db import Store
from ztune.store.records import Run, Trial


class FakeHost(FakePlace):
    """One of several; ``fails``: how often it can't be brought up again."""

    placing = Placing(parents={"*": "tank/ztune"})

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self.name = f"ssh://{name}"
        self.hello(host=name)

    def hello(self, **told: Any) -> None:
        (Path(self.state) / "hello.json").write_text(json.dumps(told))

    def took(self, seconds: dict[str, float], **more: Any) -> None:
        behaviour: dict[str, Any] = {name: {"seconds": s} for name, s in seconds.items()}
        self.behave(of={**behaviour, "*": {"spread": 0.002, **more}})


class Notes(Observer):
    def __init__(self, act: Callable[[Trial], object] = lambda trial: None) -> None:
        self.said: list[str] = []
        self.act = act

    def say(self, text: str) -> None:
        self.said.append(text)

    def trial(self, trial: Trial) -> None:
        self.act(trial)


@pytest.fixture(autouse=True)
def quick(home: Path, packed_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "PAUSE_S", 0.0)
    monkeypatch.setattr(failover, "AGAIN_S", 0.1)


@pytest.fixture
def hosts(tmp_path: Path) -> list[FakeHost]:
    return [FakeHost(tmp_path / name, name) for name in ("a", "b", "c")]


def rack(hosts: list[FakeHost]) -> Rack:
    return Rack("fleet.toml", tuple(cast(Ssh, host) for host in hosts))


def go(hosts: list[FakeHost], notes: Notes | None = None, **options: Any) -> tuple[Run, list[Trial]]:
    options.setdefault("blocks", (2, 2))
    with Store.open() as store:
        request = runner.Request(study(), layouts("8K"), JOB, rack(hosts), TrialOptions(**options), seed=3)
        run = runner.start(store, request, notes)
        return run, store.trials(run.id)


def whole(trials: list[Trial]) -> dict[str, int]:
    """Every block has each layout once, all on one host; return how many each host has."""
    assert all(t.ok for t in trials), [(t.target, t.error) for t in trials]
    blocks: dict[int, list[Trial]] = {}
    for trial in trials:
        blocks.setdefault(trial.block, []).append(trial)
    for block in blocks.values():
        assert sorted(t.layout_name for t in block) == ["8K", "base"]
        assert len({t.host for t in block}) == 1 and sum(t.is_baseline for t in block) == 1
    return dict(Counter(block[0].host for block in blocks.values()))


def test_each_host_runs_whole_blocks_and_the_run_names_them(hosts: list[FakeHost]) -> None:
    run, trials = go(hosts)
    counts = whole(trials)
    assert sum(counts.values()) == 6 and set(counts) == {"ssh://a", "ssh://b", "ssh://c"}
    assert run.status == "done" and run.where == "fleet.toml (ssh://a, ssh://b, ssh://c)"
    assert [h["kernel"] for h in run.target["hosts"]] == ["6.1.0"] * 3
    assert len({t.number for t in trials}) == 12 and all(host.left() == [] for host in hosts)
    # Each ran what the store says that it ran, and nothing twice.
    for host in hosts:
        ran = [spec["trial"] for spec in host.specs()]
        assert len(ran) == len(set(ran)) == 2 * counts[host.name]


def test_hosts_of_other_speeds_agree_on_a_winner(hosts: list[FakeHost]) -> None:
    for host, speed in zip(hosts, (1.0, 20.0, 0.1), strict=True):
        host.took({"base": 0.01 * speed, "8K": 0.005 * speed})
    run, trials = go(hosts, blocks=(3, 3))
    now = standing(run, trials)
    assert run.outcome["verdict"] == "resolved" and now.chosen is not None and now.chosen.name == "8K"
    ratio = now.chosen.against["time"]
    assert set(ratio.by_host) == {"ssh://a", "ssh://b", "ssh://c"}
    assert all(mean == pytest.approx(0.5, rel=0.02) for mean in ratio.by_host.values())
    assert "8K to the baseline, by host: ssh://a ×0.5" in measured.verdict(now)
    assert "measured on fleet.toml (ssh://a, ssh://b, ssh://c)" in measured.head(now)


def test_a_layout_that_wins_on_one_host_alone_is_not_recommended(hosts: list[FakeHost]) -> None:
    for host, gain in zip(hosts, (0.5, 1.0, 1.0), strict=True):
        host.took({"base": 0.01, "8K": 0.01 * gain})
    run, trials = go(hosts, blocks=(3, 3))
    now = standing(run, trials)
    assert run.outcome["verdict"] == "open" and run.outcome["leader_name"] == "8K"
    assert now.chosen is now.baseline
    assert "that it is better than base rests on ssh://a alone" in measured.verdict(now)
    json.dumps(measured.to_json(run, trials), allow_nan=False)


def test_a_host_that_does_not_come_back_gives_its_block_to_another(hosts: list[FakeHost]) -> None:
    hosts[1].behave(of={"*": {"lose": "measure"}})
    hosts[1].refuse = "no route to host"
    notes = Notes()
    run, trials = go(hosts, notes)
    counts = whole(trials)
    assert "ssh://b" not in counts and sum(counts.values()) == 6
    assert any("ssh://b is left out until it is back" in text for text in run.warnings)
    assert any("block 2 begins anew on" in text for text in notes.said)
    assert any(f"`ztune clean --run {run.id} --yes`" in text for text in notes.said)
    cut = [t for t in trials if t.attempts]
    assert len(cut) == 1 and cut[0].attempts[0]["error"] == "connection lost"


def test_a_host_that_comes_back_goes_on_with_its_block(hosts: list[FakeHost]) -> None:
    hosts[1].behave(of={"8K": {"lose": "measure", "once": True}})
    _, trials = go(hosts, blocks=(1, 1))
    assert whole(trials) == {"ssh://a": 1, "ssh://b": 1, "ssh://c": 1}
    assert hosts[1].left() == [] and hosts[1].ups == 2


def test_a_trial_that_outlives_its_connection_is_waited_for(hosts: list[FakeHost]) -> None:
    hosts[1].behave(of={"8K": {"lose": "measure", "once": True}, "clean": {"running": 2}})
    run, trials = go(hosts, blocks=(1, 1))
    assert whole(trials) == {"ssh://a": 1, "ssh://b": 1, "ssh://c": 1} and not run.warnings
    assert (Path(hosts[1].state) / "cleaned").read_text() == "xxx" and hosts[1].left() == []


def test_what_goes_on_for_long_in_a_clean_up_is_said(hosts: list[FakeHost]) -> None:
    waits = "zpool destroy zt still runs, after 60 s of at most 600"
    hosts[1].behave(of={"8K": {"lose": "measure", "once": True}, "clean": {"waits": waits}})
    notes = Notes()
    go(hosts, notes, blocks=(1, 1))
    assert f"clean-up: {waits}" in notes.said


def test_a_host_whose_trial_does_not_end_is_left_out(
    hosts: list[FakeHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "STILL_S", 0.0)
    monkeypatch.setattr(failover, "AGAIN_S", 600.0)
    hosts[1].behave(of={"*": {"lose": "measure"}, "clean": {"running": 1000}})
    run, trials = go(hosts, blocks=(1, 1))
    assert "ssh://b" not in whole(trials)
    assert any("a trial of this run still runs on ssh://b" in text for text in run.warnings)
    # Waited for once, not once for each attempt.
    assert (Path(hosts[1].state) / "cleaned").read_text() == "x"


def test_a_host_that_does_not_end_its_clean_up_keeps_nobody_waiting(
    hosts: list[FakeHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "CLEAN_S", 1.0)
    hosts[1].behave(of={"*": {"lose": "measure"}, "clean": {"hangs_s": 20}})
    run, trials = go(hosts, blocks=(1, 1))
    assert "ssh://b" not in whole(trials)
    assert "ssh://b did not come back within 1 s: it is left out" in run.warnings


def test_a_killed_trial_on_one_host_keeps_no_other_waiting(hosts: list[FakeHost]) -> None:
    """Its clean-up lasts until another host begins a trial."""
    hosts[1].behave(of={"8K": {"die": "measure", "once": True}, "clean": {"until": "released"}})

    def release(trial: Trial) -> None:
        if (Path(hosts[1].state) / "died-8K-measure").exists() and trial.host != "ssh://b":
            (Path(hosts[1].state) / "released").touch()

    _, trials = go(hosts, Notes(release), blocks=(4, 4))
    bad = [t for t in trials if not t.ok]
    assert [(t.layout_name, t.host) for t in bad] == [("8K", "ssh://b")] and hosts[1].left() == []
    assert (Path(hosts[1].state) / "cleaned").read_text() == "x"
    assert not (Path(hosts[1].state) / "in vain").exists()


def test_a_host_that_comes_back_with_another_kernel_is_another(hosts: list[FakeHost]) -> None:
    hosts[1].behave(of={"8K": {"lose": "measure", "once": True}})
    notes = Notes(lambda trial: hosts[1].hello(host="b", kernel="6.12.1"))
    run, trials = go(hosts, notes, blocks=(3, 3))
    counts = whole(trials)
    assert "ssh://b (kernel 6.12.1)" in counts and "ssh://b" not in counts
    assert any("has kernel 6.12.1, its results so far are from 6.1.0" in text for text in run.warnings)
    assert run.versions["kernel"] == "6.1.0 and 6.12.1"


def test_exported_rows_say_on_which_machine_each_ran(hosts: list[FakeHost]) -> None:
    for host, cpus in zip(hosts, (2, 8, 64), strict=True):
        host.hello(host=host.name, machine="x86_64", cpu=f"A Processor {cpus}", cpus=cpus, memory=cpus << 30)
    hosts[1].behave(of={"8K": {"lose": "measure", "once": True}})
    first = {"host": "b", "machine": "aarch64", "cpu": "A Processor 8", "cpus": 8, "memory": 8 << 30}
    hosts[1].hello(**first)
    notes = Notes(lambda trial: hosts[1].hello(**first, kernel="6.12.1"))
    run, trials = go(hosts, notes, blocks=(3, 3))
    with Store.open() as store:
        rows = {row.trial: row for row in export.rows(store, [run])}
    assert {t.host for t in trials} >= {"ssh://a", "ssh://b (kernel 6.12.1)", "ssh://c"}
    for trial in trials:
        row, name = rows[trial.number], trial.host.partition(" ")[0]
        cpus = {"ssh://a": 2, "ssh://b": 8, "ssh://c": 64}[name]
        assert (row.cpus, row.cpu, row.memory) == (cpus, f"A Processor {cpus}", cpus << 30)
        assert row.machine == ("aarch64" if name == "ssh://b" else "x86_64") and row.place == "ssh"
        assert row.kernel == ("Linux 6.12.1" if "kernel" in trial.host else "Linux 6.1.0")


def test_a_host_with_another_openzfs_is_not_used(hosts: list[FakeHost]) -> None:
    hosts[2].hello(openzfs={"kernel": "2.2.2", "tools": "2.2.2"})
    run, trials = go(hosts)
    assert set(whole(trials)) == {"ssh://a", "ssh://b"} and not hosts[2].specs()
    assert "ssh://c is not used: it has OpenZFS 2.2.2, this run 2.3.2-1" in run.warnings


def test_two_names_of_one_machine_are_refused(hosts: list[FakeHost]) -> None:
    hosts[2].hello(host="a")
    with pytest.raises(InputError, match=r"ssh://a and ssh://c in fleet\.toml are one machine, a"):
        go(hosts)
    with Store.open() as store:
        assert store.runs() == []


def test_a_host_that_hangs_is_cut_at_the_end_and_its_block_runs_elsewhere(
    hosts: list[FakeHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "LEAST_SLOW_S", 1.0)
    monkeypatch.setattr(failover, "SLOW", 1.0)
    hosts[1].behave(of={"*": {"hang": "measure"}})
    run, trials = go(hosts, blocks=(1, 1))
    counts = whole(trials)
    assert "ssh://b" not in counts and sum(counts.values()) == 3
    assert any("it is stopped, and not used any more" in text for text in run.warnings)
    assert hosts[1].left() == []


def left(run: Run) -> int:
    """How many trials said that they left a pool behind."""
    said = f"left alone: busy; `ztune clean --run {run.id}` shows what is still there"
    return sum("left behind by trial" in text and said in text for text in run.warnings)


def test_what_the_trial_of_a_host_that_was_cut_left_is_said(
    hosts: list[FakeHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "LEAST_SLOW_S", 1.0)
    monkeypatch.setattr(failover, "SLOW", 1.0)
    hosts[1].behave(of={"*": {"hang": "measure", "keep": True}})
    run, _ = go(hosts, blocks=(1, 1))
    assert left(run) == 1 and len(hosts[1].left()) == 1


def test_what_trials_left_that_ctrl_c_ended_is_said(hosts: list[FakeHost]) -> None:
    for host in hosts:
        host.behave(of={"*": {"hang": "measure", "keep": True}})

    def stop() -> None:
        until = time.monotonic() + 60
        while not all((Path(host.state) / "hanging").exists() for host in hosts):
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        go(hosts, blocks=(1, 1))
    thread.join()
    with Store.open() as store:
        run = store.run()
    assert run.status == "interrupted" and left(run) == 3


def test_a_run_that_was_cut_goes_on_without_a_host(hosts: list[FakeHost]) -> None:
    run, trials = go(hosts, time_limit_s=0.0)
    assert {t.status for t in trials} == {"pending"} and len(trials) == 6
    with Store.open() as store:
        store.note_run(run.id, options={**run.options, "time_limit_s": None})
        done = runner.resume(store, store.run(run.id), rack(hosts[:2]))
        counts = whole(store.trials(run.id))
    assert done.status == "done" and set(counts) == {"ssh://a", "ssh://b"}


def test_all_run_at_once(hosts: list[FakeHost]) -> None:
    """None begins its second trial before each has begun its first: they wait for each other."""
    together = threading.Barrier(3, timeout=60)
    seen: set[str] = set()

    class Meets(FakeHost):
        def put(self, local: Path) -> str:
            if threading.current_thread().name.startswith("trial on") and self.name not in seen:
                seen.add(self.name)
                together.wait()
            return super().put(local)

    several = [Meets(Path(host.state), host.name.removeprefix("ssh://")) for host in hosts]
    _, trials = go(cast(list[FakeHost], several), blocks=(1, 1))
    assert whole(trials) == {"ssh://a": 1, "ssh://b": 1, "ssh://c": 1} and len(seen) == 3
