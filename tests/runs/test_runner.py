"""A whole run against a stand-in for the trial program: order, storing, failures, cuts, early stopping."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from children import environment
from fake_place import JOB, FakePlace, layouts, study

from ztune.analysis.standing import standing
from ztune.analysis.verdict import sentence
from ztune.databases import registry
from ztune.databases.fio.workload import Fio
from ztune.databases.postgresql.onhost.oltp import PostgresOltp
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.declared import Declared
from ztune.places import channel
from ztune.places.channel import Lost
from ztune.runs import failover, runner
from ztune.runs import trial as one_trial
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.runs.plan import workload_job
from ztune.runs.runner import Request
from ztune.store import series
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import DurabilityClass
from ztune.study.durability import judge


@pytest.fixture(autouse=True)
def no_pauses(home: Path, packed_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "PAUSE_S", 0.0)


@pytest.fixture
def place(tmp_path: Path) -> FakePlace:
    return FakePlace(tmp_path / "there")


class Notes(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.stored: list[int] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def finished(self, trial: Trial, steps: Mapping[str, float]) -> None:
        with Store.open() as other:  # what another process sees at this moment
            self.stored.append(sum(t.status in {"ok", "failed"} for t in other.trials(trial.run_id)))
        self.ended.append((trial.layout_name, trial.status))


def go(place: FakePlace, *sizes: str, notes: Notes | None = None, seed: int = 3, **options: Any) -> Run:
    options.setdefault("blocks", (2, 2))
    with Store.open() as store:
        request = Request(study(), layouts(*sizes), JOB, place, TrialOptions(**options), seed=seed)
        return runner.start(store, request, notes)


def trials(run: Run) -> list[Trial]:
    with Store.open() as store:
        return store.trials(run.id)


class Waits(Notes):
    """Notes what is waited for, and what a place was asked meanwhile."""

    def __init__(self, place: FakePlace) -> None:
        super().__init__()
        self.place = place
        self.waited: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def waits(self, what: str) -> Iterator[None]:
        before = self.place.ups
        yield
        self.waited.append((what, before, self.place.ups))


def test_who_waits_for_a_place_to_come_up_is_told_of_it(place: FakePlace) -> None:
    """Over ssh that may take half a minute: nothing had been said."""
    notes = Waits(place)
    run = go(place, "8K", notes=notes)
    assert notes.waited == [("waiting for fake", 0, 1)]
    with Store.open() as store:
        store.finish_run(run.id, "interrupted")
        runner.resume(store, run, place, notes)
    assert notes.waited[1:] == [("waiting for fake", 1, 2), ("removing what trials left on fake", 2, 2)]


def test_where_disks_count_their_work_that_is_how_long_they_were_busy(place: FakePlace) -> None:
    """And not the kernel's count; of a disk that does not answer the kernel's stays."""
    place.worked = [{"/dev/sda": 10.0}, {"/dev/sda": 2510.0, "/dev/sdb": 7.0}, {}, {"/dev/sda": 3000.0}]
    first, second = trials(go(place, "8K", blocks=(1, 1)))
    assert first.result is not None and second.result is not None
    (row,) = first.result["measure"]["by_vdev"]
    assert (row["busy_ms"], row["kernel_busy_ms"]) == (2500.0, 1500)
    (row,) = second.result["measure"]["by_vdev"]
    assert row["busy_ms"] == 1500 and "kernel_busy_ms" not in row
    assert place.told == ["window", "window", "measured"] * 2, "disks hurry once everything has been read"


def test_every_layout_runs_once_in_every_block_and_each_is_stored_at_once(place: FakePlace) -> None:
    notes = Notes()
    run = go(place, "8K", "16K", notes=notes, blocks=(3, 3))
    assert run.status == "done" and run.kind == "run" and run.trace_path == ""
    found = trials(run)
    assert [t.status for t in found] == ["ok"] * 9
    for block in (1, 2, 3):
        assert sorted(t.layout_name for t in found if t.block == block) == ["16K", "8K", "base"]
    assert len({tuple(t.layout_name for t in found if t.block == b) for b in (1, 2, 3)}) > 1  # shuffled
    assert notes.stored == list(range(1, 10))
    assert [t.number for t in found] == list(range(1, 10))
    assert place.left() == []
    specs = place.specs()
    assert [s["trial"] for s in specs] == [f"{run.id}-{n:04d}" for n in range(1, 10)]
    assert specs[0]["format"] == "ztune-trial" and specs[0]["start"] == {"kind": "load"}
    assert specs[0]["job"] == {"name": JOB.name, "params": JOB.params, "database": {}}
    assert {s["seed"] for s in specs} == {4, 5, 6}  # a seed for each block
    assert found[0].spec == specs[0]  # repeatable from its record
    assert series.read(found[0], "arc")["hits"] == [1.0, 2.0]
    assert found[0].warnings == [] and found[0].openzfs_version == "2.3.2-1"
    assert run.target["name"] == "fake" and run.versions["kernel"] == "6.1.0"


def test_a_rate_is_found_once_with_the_base_layout_and_all_trials_have_it(place: FakePlace) -> None:
    notes = Notes()
    job = replace(JOB, params={**JOB.params, "busy": 60, "rate": 20.0})
    with Store.open() as store:
        request = Request(study(), layouts("8K"), job, place, TrialOptions(blocks=(2, 2)))
        run = runner.start(store, request, notes)
    first, *rest = place.specs()
    assert first["layout"]["name"] == "base" and first["trial"].endswith("-0000")
    assert first["job"]["params"]["busy"] == 60
    assert len(rest) == 4 == len(trials(run))
    assert all((s["job"]["params"]["busy"], s["job"]["params"]["rate"]) == (0, 812.5) for s in rest)
    # What it takes to repeat the run is in its record, and how the rate was found.
    assert run.job["params"]["rate"] == 812.5 and run.job["params"]["busy"] == 0
    assert run.job["calibration"]["busy"] == 0.59
    assert any(text.startswith("rate 812.5/s kept 2 processors 59 % busy") for text in notes.said)
    assert place.left() == []


def test_without_such_a_rate_no_trial_runs(place: FakePlace) -> None:
    place.behave(of={"base": {"fail": "measure"}})
    job = replace(JOB, params={**JOB.params, "busy": 60})
    with Store.open() as store, pytest.raises(ZtuneError, match="busy=60: no room on the disk"):
        runner.start(store, Request(study(), layouts("8K"), job, place, TrialOptions(blocks=(1, 1))))
    assert len(place.specs()) == 1 and place.left() == []
    with Store.open() as store:
        run = store.run("last")
        assert run.status == "failed" and {t.status for t in store.trials(run.id)} == {"pending"}


def test_a_place_gives_parameters_that_the_layout_does_not_set(place: FakePlace) -> None:
    with Store.open() as store:
        base = layouts()[0]
        own = replace(base, name="own", tunables={"zfs_txg_timeout": 7})
        runner.start(store, Request(study(), [base, own], JOB, place, TrialOptions(blocks=(1, 1)), seed=3))
    given = {s["layout"]["name"]: s["layout"]["tunables"] for s in place.specs()}
    assert given == {
        "base": {"zfs_dirty_data_max": base.arc, "zfs_txg_timeout": 1},
        "own": {"zfs_dirty_data_max": base.arc, "zfs_txg_timeout": 7},
    }


@pytest.mark.parametrize(
    ("workload", "setting", "value", "said"),
    [
        ("sqlite", "synchronous", "ful", "database setting synchronous is 'ful'; it is one of off, normal"),
        ("sqlite", "synchronus", "full", "did you mean 'synchronous'?"),
        ("postgres-oltp", "full_page_writes", "of course", "it is one of on, off"),
        ("postgres-backup", "port", "5433", "can't be chosen by a layout: it is reached by its own socket"),
        ("mariadb-oltp", "innodb_doublewrite", "maybe", "it is one of on, off"),
        ("rocksdb", "compresion_type", "zstd", "rocksdb has no setting 'compresion_type'"),
        ("mongo-restore", "log.enabled", "perhaps", "it is one of true, false"),
        ("orientdb-graph", "storage.callFsync", "perhaps", "it is one of true, false"),
        ("ldap-import", "no-such", "1", "no setting 'no-such' that a layout could choose"),
        ("fio", "direct", "1", "fio has no database whose settings a layout could choose"),
    ],
)
def test_a_wrong_setting_of_the_database_is_said_before_anything_starts(
    place: FakePlace, workload: str, setting: str, value: str, said: str
) -> None:
    base = layouts()[0]
    wrong = replace(base, name="wrong", database={setting: value})
    job = replace(workload_job(registry.make(workload)), roles=("data", "wal"))
    with Store.open() as store, pytest.raises(InputError, match=re.escape(said)) as caught:
        runner.start(store, Request(study(), [base, wrong], job, place, TrialOptions(blocks=(1, 1)), seed=3))
    assert str(caught.value).startswith('layout "wrong": ')
    assert place.specs() == []


def test_settings_that_servers_take_pass() -> None:
    """PostgreSQL's Booleans may be cut short, and what ztune does not know is the server's to judge."""
    settings = {"fsync": "t", "full_page_writes": "OFF", "wal_compression": "zstd", "work_mem": "4MB"}
    PostgresOltp(registry.make("postgres-oltp").params.resolved(), settings).check_settings()


def test_what_is_declared_of_durability_stays_here(place: FakePlace) -> None:
    with Store.open() as store:
        base = replace(layouts()[0], declared=Declared())
        other = replace(base, name="other", tunables={"zfs_txg_timeout": 7})
        request = Request(study(), [base, other], JOB, place, TrialOptions(blocks=(1, 1)), seed=3)
        run = runner.start(store, request)
    # A trial's own reader takes no key that it does not know.
    assert [s for s in place.specs() if "durability" in s["layout"]] == []
    assert judge(trials(run)[0].layout).klass is DurabilityClass.NOT_KNOWN


def test_the_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    def names(where: str, seed: int) -> list[str]:
        return [t.layout_name for t in trials(go(FakePlace(tmp_path / where), "8K", "16K", "32K", seed=seed))]

    first, again, other = names("a", 3), names("b", 3), names("c", 4)
    assert first == again != other


def test_the_first_block_begins_with_the_baseline(place: FakePlace) -> None:
    run = go(place, "8K", blocks=(8, 8))
    begins = [next(t for t in trials(run) if t.block == block).is_baseline for block in range(1, 9)]
    assert begins[0] and not all(begins)  # further blocks begin with any


def test_a_clear_winner_ends_the_run_early(place: FakePlace) -> None:
    place.behave(of={"*": {"spread": 0.01}, "8K": {"seconds": 0.005}})
    run = go(place, "8K", blocks=(3, 8))
    assert run.outcome["reason"] == "settled" and run.outcome["verdict"] == "resolved"
    assert run.outcome["leader_name"] == "8K" and run.outcome["measure"] == "time"
    assert len(trials(run)) < 16
    assert "8K has the least time per op" in sentence(run.outcome, 0.02)


def test_equal_layouts_end_the_run_early(place: FakePlace) -> None:
    place.behave(of={"*": {"spread": 0.0005}})
    run = go(place, "8K", blocks=(3, 8))
    assert (run.outcome["reason"], run.outcome["verdict"]) == ("settled", "equal")
    assert len(trials(run)) == 6


def test_an_unresolved_run_says_how_many_more_it_takes(place: FakePlace) -> None:
    place.behave(of={"*": {"spread": 0.2}})
    run = go(place, "8K", blocks=(2, 3), seed=5)
    assert (run.outcome["reason"], run.outcome["verdict"]) == ("blocks", "open")
    assert run.outcome["needed"] > 3
    more = run.outcome["needed"] - 3
    words = f"about {more} more run{'' if more == 1 else 's'} of each"
    assert words in sentence(run.outcome, 0.02)


def test_settled_layouts_do_not_run_on(place: FakePlace) -> None:
    # 16K is far behind at once; base and 8K are too noisy to tell apart.
    place.behave(of={"*": {"spread": 0.03}, "16K": {"seconds": 0.1, "spread": 0.0}})
    found = trials(go(place, "8K", "16K", blocks=(3, 6)))
    count = {n: sum(t.layout_name == n for t in found) for n in ("base", "8K", "16K")}
    assert count["16K"] < count["base"] == count["8K"]


def test_a_failed_layout_is_marked_and_the_others_go_on(place: FakePlace) -> None:
    place.behave(of={"8K": {"fail": "load"}})
    run = go(place, "8K", "16K", blocks=(3, 3))
    assert run.status == "done"
    bad = [t for t in trials(run) if t.layout_name == "8K"]
    # Twice is enough to know.
    assert [(t.status, t.error) for t in bad] == [("failed", "no room on the disk")] * 2
    assert bad[0].result is not None and bad[0].result["commands"][0]["command"][0] == "zpool"
    assert sum(t.ok for t in trials(run)) == 6 and place.left() == []


def test_all_failed_is_a_failed_run(place: FakePlace) -> None:
    place.behave(of={"*": {"fail": "prepare"}})
    run = go(place, "8K")
    assert run.status == "failed" and len(trials(run)) == 2


def test_what_fails_alike_each_time_is_not_tried_with_all_layouts(place: FakePlace) -> None:
    place.behave(of={"*": {"fail": "prepare"}})
    with pytest.raises(
        ZtuneError, match=r"^[5-8] layouts failed alike, .*: no room on the disk; `ztune run --r"
    ):
        go(place, "8K", "16K", "32K", "64K", "256K", "512K", "1M", "2M")
    with Store.open() as store:
        run = store.run()
        assert run.status == "failed" and place.left() == []
        ended = [t for t in store.trials(run.id) if t.status != "pending"]
        assert 5 <= len(ended) < 9 and all(t.status == "failed" for t in ended)
        assert any(t.is_baseline for t in ended)
        place.behave()
        assert runner.resume(store, run, place).status == "done"
    # The baseline that comes to an end says that it is not the place.
    sizes = ("8K", "16K", "32K", "64K", "256K", "512K")
    place.behave(of={name: {"fail": "prepare"} for name in sizes})
    assert go(place, *sizes).status == "done"


@pytest.mark.parametrize("step", ["prepare", "load", "settle", "measure", "collect", "destroy"])
def test_a_trial_program_that_is_killed_is_cleaned_up_after(place: FakePlace, step: str) -> None:
    place.behave(of={"8K": {"die": step, "once": True}})
    run = go(place, "8K")
    assert run.status == "done" and place.left() == []
    first = next(t for t in trials(run) if t.layout_name == "8K")
    assert first.status == "failed" and "exit code -9" in (first.error or "")


@pytest.mark.parametrize("what", ["stuck", "hang"])
def test_a_trial_that_was_silent_for_too_long_failed_for_that(
    place: FakePlace, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One that has to be killed, and one that stops when it is told to: neither is the user's stop."""
    monkeypatch.setattr(one_trial, "SILENCE_S", 5.0)
    monkeypatch.setattr(one_trial, "_LOOK_S", 0.1)
    monkeypatch.setattr(channel, "CLOSE_S", 1.0)
    place.behave(of={"8K": {what: "measure"}})
    run = go(place, "8K", blocks=(1, 1))
    assert run.status == "done" and place.left() == []
    bad = next(t for t in trials(run) if t.layout_name == "8K")
    assert (bad.status, bad.error) == ("failed", "it said nothing for 0 hours, and was ended")


@pytest.mark.parametrize("step", ["load", "measure"])
def test_a_lost_place_is_brought_up_again_and_the_trial_repeated(place: FakePlace, step: str) -> None:
    place.behave(of={"8K": {"lose": step, "once": True}})
    notes = Notes()
    run = go(place, "8K", notes=notes)
    found = trials(run)
    assert [t.status for t in found] == ["ok"] * 4 and place.ups == 2 and place.left() == []
    cut = [t for t in found if t.attempts]
    assert len(cut) == 1 and cut[0].attempts[0]["error"] == "connection lost"
    assert cut[0].spec is not None and cut[0].spec["trial"].endswith("-1")  # its own directory there
    assert any("was cut: connection lost" in text for text in notes.said)


def test_a_layout_that_takes_the_place_down_every_time_is_marked(place: FakePlace) -> None:
    place.behave(of={"8K": {"lose": "measure"}})
    run = go(place, "8K", "16K")
    assert run.status == "done" and place.left() == []
    bad = [t for t in trials(run) if t.layout_name == "8K"]
    assert all(t.status == "failed" and "cut 2 times" in (t.error or "") for t in bad)


def test_a_place_that_stays_away_leaves_a_run_to_resume(place: FakePlace) -> None:
    place.behave(of={"8K": {"lose": "measure", "once": True}})
    place.refuse = "host nowhere does not answer"
    with pytest.raises(Lost, match=r"does not answer; `ztune run --resume \w+` goes on"):
        go(place, "8K")
    with Store.open() as store:
        run = store.run()
        assert run.status == "interrupted" and place.left()
        place.refuse = None
        done = runner.resume(store, run, place)
        assert done.status == "done" and [t.status for t in store.trials(run.id)] == ["ok"] * 4
    assert place.left() == []


def test_ctrl_c_stops_in_order(place: FakePlace) -> None:
    place.behave(of={"8K": {"hang": "measure"}})

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not (Path(place.state) / "hanging").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        go(place, "8K")
    assert place.left() == []
    place.behave(of={})
    with Store.open() as store:
        run = store.run()
        assert run.status == "interrupted"
        assert {t.status for t in store.trials(run.id)} <= {"ok", "pending"}
        assert runner.resume(store, run, place).status == "done"
        assert all(t.ok for t in store.trials(run.id))


def test_kill_9_of_ztune_itself_loses_nothing_that_ended(
    place: FakePlace, home: Path, tmp_path: Path
) -> None:
    place.behave(of={"8K": {"hang": "measure"}})
    script = tmp_path / "go.py"
    script.write_text(
        "from pathlib import Path\n"
        "import fake_place\n"
        "FakePlace = fake_place.FakePlace; FakePlace.behave = lambda self, **_: None\n"
        "from ztune.store.db import Store\n"
        "from ztune.runs import runner\n"
        "from ztune.runs.options import TrialOptions\n"
        f"place = FakePlace(Path({place.state!r}))\n"
        "request = runner.Request(fake_place.study(), fake_place.layouts('8K'), fake_place.JOB, place,\n"
        "    TrialOptions(blocks=(2, 2)), seed=1)\n"
        "with Store.open() as store: runner.start(store, request)\n"
    )
    victim = subprocess.Popen([sys.executable, str(script)], env=environment())
    deadline = time.monotonic() + 60
    while not (Path(place.state) / "hanging").exists():
        assert victim.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    victim.kill()
    victim.wait()
    place.behave(of={})
    with Store.open() as store:
        run = store.run()
        assert run.status == "running" and not store.is_live(run)
        before = [t.number for t in store.trials(run.id) if t.ok]
        done = runner.resume(store, run, place)
        assert done.status == "done"
        found = store.trials(run.id)
        assert all(t.ok for t in found) and len(found) == 4
        assert [t.number for t in found if t.ok and not t.attempts] >= before
        assert sum(len(t.attempts) for t in found) == 1
    deadline = time.monotonic() + 10
    while place.left() and time.monotonic() < deadline:
        time.sleep(0.05)  # the orphan saw the end of its input and tidies up by itself
    assert place.left() == []


def test_resume_refuses_another_openzfs(place: FakePlace) -> None:
    run = go(place, "8K")
    (Path(place.state) / "hello.json").write_text('{"openzfs": {"kernel": "2.1.11", "tools": "2.1.11"}}')
    with (
        Store.open() as store,
        pytest.raises(InputError, match=r"made under openzfs 2.3.2-1, fake has 2.1.11 now"),
    ):
        runner.resume(store, run, place)


def test_a_time_limit_ends_the_run_between_trials(place: FakePlace) -> None:
    run = go(place, "8K", blocks=(4, 4), time_limit_s=0.0)
    assert run.status == "failed" and all(t.status == "pending" for t in trials(run))


def test_an_aa_run_has_the_same_layout_twice(place: FakePlace) -> None:
    place.behave(of={"*": {"spread": 0.02}})
    run = go(place, blocks=(3, 3), aa=True)
    found = trials(run)
    assert [t.block for t in found] == [1, 1, 2, 2, 3, 3] and len({t.layout_hash for t in found}) == 1
    assert {t.arm for t in found} == {study().layout.hash, study().layout.hash + "+1"}
    assert sum(t.is_baseline for t in found) == 3


def test_what_a_trial_waits_for_reaches_the_view_and_no_other_line_does(place: FakePlace) -> None:
    class Waiting(Notes):
        def step(self, trial: Trial, step: str, state: str, share: float, text: str) -> None:
            if state == "wait":
                self.said.append(f"{trial.layout_name}, {step}: {text}")

    place.behave(of={"8K": {"waits": "zdb -L zt still runs, after 60 s of at most 1800"}})
    notes = Waiting()
    go(place, "8K", blocks=(1, 1), notes=notes)
    assert [s for s in notes.said if "still runs" in s or "mounted" in s] == [
        "8K, measure: zdb -L zt still runs, after 60 s of at most 1800"
    ]


def test_devices_that_a_pool_got_between_two_trials_are_said_once(place: FakePlace) -> None:
    """A log device made the layouts after it quicker, and nothing said so."""
    before, after = ["mirror-0", "sda", "sdb"], ["mirror-0", "sda", "logs", "nvme0"]
    place.behave(of={"*": {"devices": before}})

    class Adds(Notes):
        def finished(self, trial: Trial, steps: Mapping[str, float]) -> None:
            super().finished(trial, steps)
            if trial.number == 2:
                place.behave(of={"*": {"devices": after}})

    run = go(place, "8K", "16K", notes=Adds())
    (warning,) = run.warnings
    assert warning == (
        "pool tank has other devices than in trial 2 from trial 3 on: logs came, nvme0 came, sdb left; "
        "what was measured before and after does not compare"
    )


def test_what_could_not_be_destroyed_is_said(place: FakePlace) -> None:
    place.behave(of={"8K": {"keep": True}})
    notes = Notes()
    run = go(place, "8K", blocks=(1, 1), notes=notes)
    said = next(s for s in notes.said if "left behind" in s)
    assert "pool zt: left alone: busy" in said and said in run.warnings
    left = next(t for t in trials(run) if t.layout_name == "8K")
    assert left.left == ["pool zt: left alone: busy"]
    assert left.warnings[-1] == "it left behind: pool zt: left alone: busy"


def test_what_a_trial_measured_counts_also_where_it_left_something(place: FakePlace) -> None:
    place.behave(of={"8K": {"keep": True}})
    run = go(place, "8K", blocks=(2, 2))
    assert [t.status for t in trials(run)] == ["ok"] * 4 and run.outcome["verdict"] == "equal"
    assert place.left() == []  # the clean-up took it


def test_what_a_trial_measured_counts_also_where_its_series_cannot_be_kept(
    place: FakePlace, home: Path
) -> None:
    home.mkdir()
    (home / "series").write_text("no directory")
    run = go(place, "8K", blocks=(1, 1))
    assert run.status == "done" and [t.status for t in trials(run)] == ["ok", "ok"]
    assert all(t.series == () for t in trials(run))
    assert [w for w in run.warnings if "series of trial 1 are not kept" in w]


def test_a_rate_counts_also_where_finding_it_left_something(place: FakePlace) -> None:
    place.behave(of={"base": {"keep": True}})
    job = replace(JOB, params={**JOB.params, "busy": 60, "rate": 20.0})
    with Store.open() as store:
        request = Request(study(), layouts("8K"), job, place, TrialOptions(blocks=(1, 1)))
        run = runner.start(store, request)
    assert run.job["params"]["rate"] == 812.5 and "pool zt: left alone" in run.warnings[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"blocks": (5, 2)}, "MIN:MAX"),
        ({"blocks": (0, 2)}, "MIN:MAX"),
        ({"resolution": 0.0}, "it is a share"),
    ],
)
def test_bad_options_are_found_before_a_run_is_stored(place: FakePlace, options: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        go(place, "8K", **options)
    with Store.open() as store:
        assert store.runs() == []


def test_a_load_that_cannot_be_slowed_down_is_refused_before_a_run_is_stored(place: FakePlace) -> None:
    place.described = {**place.described, "dilation": 20.0}
    slow = replace(JOB, params=Fio({"rate_iops": 30}).resolved())
    with pytest.raises(InputError, match="too low to be slowed down 20 times"), Store.open() as store:
        runner.start(store, Request(study(), layouts("8K"), slow, place))
    with Store.open() as store:
        assert store.runs() == []


def test_a_place_that_cannot_give_its_disks_is_brought_up_again(
    place: FakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ztune.errors import MissingError, ZtuneError

    calls: list[str] = []
    plain = place.place_spec

    def broken(layout: Any) -> dict[str, Any]:
        calls.append(layout.name)
        if len(calls) == 2:
            raise ZtuneError("the pool of the last trial is still there")
        if layout.name == "16K":
            raise MissingError("no disk for a special vdev")
        return plain(layout)

    monkeypatch.setattr(place, "place_spec", broken)
    run = go(place, "8K", "16K", blocks=(1, 1))
    found = {t.layout_name: t for t in trials(run)}
    assert (found["16K"].status, found["16K"].error) == ("failed", "no disk for a special vdev")
    assert found["base"].ok and found["8K"].ok and place.ups == 2
    assert [a["error"] for t in found.values() for a in t.attempts] == [
        "the pool of the last trial is still there"
    ]


def test_resume_cleans_up_before_it_asks_for_room(
    place: FakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left may be what fills the disk."""
    run = go(place, "8K")
    (Path(place.state) / "made-before").touch()

    def full(*_: object) -> None:
        raise MissingError("no room for the mounts' disks")

    monkeypatch.setattr(place, "check", full)
    with Store.open() as store, pytest.raises(MissingError, match="no room"):
        runner.resume(store, run, place)
    assert place.left() == []


def test_a_stop_ends_the_run_whatever_the_trial_makes_of_it(
    place: FakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cut fails, and says so: the layouts that wait must not be tried because of it."""

    def cut(*_: object) -> one_trial.Ended:
        return one_trial.Ended(status="failed", error="the client did not end", error_step="load", asked=True)

    monkeypatch.setattr(one_trial, "run", cut)
    with Store.open() as store:
        with pytest.raises(KeyboardInterrupt):
            runner.start(
                store, Request(study(), layouts("8K"), JOB, place, TrialOptions(blocks=(1, 1)), seed=1)
            )
        run = store.run()
        assert run.status == "interrupted"
        assert [t.status for t in store.trials(run.id)] == ["pending", "pending"]


def test_a_load_that_fails_is_not_tried_again_for_the_next_layout(
    place: FakePlace, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ztune.runs import prepared

    loads = []

    def fails(*_: object) -> Path:
        loads.append(1)
        raise ZtuneError("the client died")

    monkeypatch.setattr(place, "shared", str)
    monkeypatch.setattr(prepared, "prepare", fails)
    monkeypatch.setattr(prepared, "require_room", lambda *_: None)
    run = go(place, "8K", "16K", blocks=(1, 1))
    with Store.open() as store:
        found = store.trials(run.id)
    assert [t.error for t in found] == ["the database can't be loaded on this host: the client died"] * 3
    assert len(loads) == 1


def test_another_question_than_the_best_decides_who_runs_again_and_when_it_is_enough(
    place: FakePlace,
) -> None:
    asked: list[int] = []

    def undecided(run: Run, known: Sequence[Trial]) -> set[str]:
        """Four blocks of 16K, whatever was measured."""
        asked.append(max(t.block for t in known))
        return {layouts("16K")[1].hash} if asked[-1] < 4 else set()

    with Store.open() as store:
        options = TrialOptions(blocks=(2, 8))
        run = runner.start(
            store, Request(study(), layouts("8K", "16K"), JOB, place, options, seed=3, undecided=undecided)
        )
    assert run.outcome["reason"] == "settled" and asked == [1, 2, 3, 4]
    ran = {block: sorted(t.layout_name for t in trials(run) if t.block == block) for block in (1, 2, 3, 4)}
    # The fewest blocks hold all; then the baseline, and who is asked for.
    assert ran == {1: ["16K", "8K", "base"], 2: ["16K", "8K", "base"], 3: ["16K", "base"], 4: ["16K", "base"]}


def test_a_run_that_is_done_goes_on_for_another_question(place: FakePlace) -> None:
    with Store.open() as store:
        options = TrialOptions(blocks=(2, 4))
        run = runner.start(store, Request(study(), layouts("8K"), JOB, place, options, seed=3))
        before = max(t.block for t in store.trials(run.id))
        wanted = layouts("8K")[1].hash
        again = runner.resume(store, run, place, undecided=lambda *_: {wanted})
    assert again.status == "done" and again.outcome["reason"] == "blocks"
    assert before < max(t.block for t in trials(run)) == 4


def test_with_a_neighbour_each_block_has_each_job_alone_and_both(place: FakePlace) -> None:
    job = JOB.with_neighbour(replace(JOB, workload="backup"))
    shared = study().model_copy(update={"layout": replace(study().layout, neighbour=JOB.roles)})
    beside = [replace(layout, neighbour=JOB.roles) for layout in layouts("8K")]
    with Store.open() as store:
        options = TrialOptions(blocks=(2, 2))
        run = runner.start(store, Request(shared, beside, job, place, options, seed=3))
        found = store.trials(run.id)
    assert run.status == "done" and len(found) == 2 * 2 * 3
    for block in (1, 2):
        ran = [(t.layout_name, t.condition) for t in found if t.block == block]
        assert sorted(ran) == sorted(
            (name, condition) for name in ("8K", "base") for condition in ("", "both", "neighbour")
        )
    assert {(t.condition, t.spec["job"]["params"]["which"]) for t in found if t.spec} == {
        ("", "first"), ("both", "both"), ("neighbour", "neighbour")
    }  # fmt: skip
    # All of them on the same datasets, and the load is the same whichever runs.
    assert all(t.spec["layout"]["neighbour"] == list(JOB.roles) for t in found if t.spec)
    assert "which" not in run.job["params"] and run.job["beside"] == "backup"
    assert sum(t.is_baseline for t in found) == 2
    now = standing(run, found)
    assert [len(p.result.trials) for p in now.ranked] == [2, 2]


def test_a_load_that_finds_its_own_rate_has_no_neighbour() -> None:
    busy = replace(JOB, params={**JOB.params, "busy": 0.5})
    with pytest.raises(InputError, match="give it a rate instead"):
        JOB.with_neighbour(busy)


def test_a_command_that_clean_tries_again_and_again_is_said_once() -> None:
    destroy = {"event": "log", "text": "", "command": ["zfs", "destroy", "tank/a"], "rc": 1}
    events = [destroy, {"event": "log", "text": "tank/a is busy", "waits": True}, destroy, destroy]
    channel = SimpleNamespace(
        lines=lambda: map(json.dumps, events), wait=lambda: 0, close=lambda: None, stderr_tail=lambda: ""
    )
    said: list[str] = []
    place: Any = SimpleNamespace(open=lambda _words: channel)
    one_trial._clean(place, "program", "/state", said.append, 1.0, said.append)
    assert said == ["zfs destroy tank/a", "tank/a is busy"]
