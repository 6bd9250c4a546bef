"""``ztune claims test --on mount``: what is run, what is taken from the store, and what is said; with
stand-ins for the engine, for what records and for the place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from claims_written import PUBLISHED, write
from fake_place import FakePlace
from invoked import invoke
from synthetic_traces import make_trace

from ztune.claims import claim as known
from ztune.claims.measuring import takes_trials
from ztune.cli import claims as command
from ztune.databases.workload import Workload
from ztune.errors import MissingError, ZtuneError
from ztune.runs import failover
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace

ONE = ("--on", "mount", "--profile", "nvme", "--arc", "64M", "--blocks", "2:3")


@pytest.fixture(autouse=True)
def place(
    home: Path, packed_once: None, stand_in_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakePlace:
    (home / "studies/published/mine.toml").write_text(PUBLISHED)
    write(home, "small")
    found = FakePlace(tmp_path / "there")

    def record(workload: Workload, out: Path) -> Trace:
        # Of its own job, so that the recordings of two jobs differ, whenever they are written.
        info = {**workload.info(), "result": {"operations": 20}}
        return make_trace(out, writes=20, workload=WorkloadInfo(**info))

    monkeypatch.setattr(command, "_record", record)
    monkeypatch.setattr("ztune.places.named.make", lambda *_: found)
    monkeypatch.setattr(failover, "PAUSE_S", 0.0)
    monkeypatch.setattr("ztune.databases.fio.onhost.load.Fio.check", lambda _: "fio-3.33")
    return found


def said(*args: str, code: int = 0) -> dict[str, Any]:
    ended, out, err = invoke("claims", "test", *args, "--json")
    assert ended == code, err
    (one,) = json.loads(out)
    assert isinstance(one, dict)
    return one


def measured() -> list[Run]:
    with Store.open() as store:
        return [run for run in store.runs() if run.measured]


def test_the_job_runs_in_blocks_and_the_verdict_cites_its_trials(place: FakePlace) -> None:
    place.behave(of={"small: 16K": {"seconds": 0.01}, "small: 128K": {"seconds": 0.0245}})
    one = said("small", *ONE)
    assert one["verdict"] == "holds" and not one["hint"] and one["disagree"] == []
    replayed, real = one["conditions"]
    assert (replayed["measured"], replayed["hint"], replayed["ratios"]) == (False, True, {"128K": 0.4})
    assert (real["place"], real["profile"], real["arc"] >> 20) == ("fake", "nvme", 64)
    assert real["measured"] and not real["hint"] and real["ratios"]["128K"] == pytest.approx(0.4082, rel=1e-3)
    low, high = real["intervals"]["128K"]
    assert low <= 0.4083 and high >= 0.4081 and real["smallest"] == 0.02
    (run,) = measured()
    assert real["trials"] == [f"{run.id}/{n}" for n in (1, 2, 3, 4)]
    assert [s["layout"]["name"] for s in place.specs()[:2]].count("small: 16K") == 1
    assert place.left() == []
    # All is there: nothing runs again.
    again = said("small", *ONE)
    assert again["conditions"] == one["conditions"] and len(measured()) == 1
    code, out, _ = invoke("claims", "show", "small")
    assert code == 0 and all(word in out for word in ("measured", "replayed", "×0.41 ("))


def test_measured_time_decides_and_where_both_disagree_is_said(place: FakePlace) -> None:
    place.behave(of={"small: 16K": {"seconds": 0.02}, "small: 128K": {"seconds": 0.01}})
    one = said("small", *ONE)
    assert one["verdict"] == "no longer holds"
    (differ,) = one["disagree"]
    assert "60.0% less than 128K modelled; no modelled time of this claim counts" in differ
    assert differ in one["says"]
    code, out, _ = invoke("claims", "test", "small", *ONE)
    assert code == 0 and "×2.00 (2.00 … 2.00) of 128K, measured" in out and "×0.40 of 128K, replayed" in out
    assert "Measured and modelled disagree" in out


def test_what_is_not_told_apart_in_the_most_blocks_is_too_small(place: FakePlace) -> None:
    place.behave(of={"*": {"spread": 0.2}})
    one = said("small", *ONE)
    assert one["verdict"] == "too small to tell"
    (run,) = measured()
    with Store.open() as store:
        assert max(t.block for t in store.trials(run.id)) == 3
    low, high = one["conditions"][1]["intervals"]["128K"]
    assert f"({low:.2f} … {high:.2f})" in one["says"]
    # As often as was asked for; with more blocks another run goes on looking.
    said("small", *ONE)
    assert len(measured()) == 1
    said("small", *ONE[:-1], "2:4")
    assert len(measured()) == 2


def test_a_test_that_was_cut_goes_on(place: FakePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Store.finish_trial
    calls: list[int] = []

    def cut(self: Store, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:  # two replays and two trials before it
            raise KeyboardInterrupt
        return finish(self, *args, **kwargs)

    monkeypatch.setattr(Store, "finish_trial", cut)
    code, out, err = invoke("claims", "test", "small", *ONE)
    assert code == 130 and not out and "the same command goes on" in err
    (run,) = measured()
    assert run.status == "interrupted"
    monkeypatch.setattr(Store, "finish_trial", finish)
    said("small", *ONE)
    (again,) = measured()
    assert again.id == run.id and again.status == "done" and place.left() == []


def test_a_trial_that_fails_is_a_reason_and_exit_code_1(place: FakePlace) -> None:
    place.behave(of={"small: 128K": {"fail": "load"}})
    one = said("small", *ONE, code=1)
    real = one["conditions"][1]
    assert real["failed"] and "128K: no room on the disk" in real["untried"]
    # The replay is what there is, and it stays one.
    assert one["verdict"] == "holds" and one["hint"] and "That is a hint" in one["says"]
    # Once it works it is tried again.
    place.behave(of={"small: 128K": {"seconds": 0.02}})
    assert said("small", *ONE)["conditions"][1]["ratios"]["128K"] == pytest.approx(0.5)
    assert len(measured()) == 1


def test_a_recording_that_fails_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*_: Any) -> Trace:
        raise ZtuneError("the recorder was killed")

    monkeypatch.setattr(command, "_record", record)
    one = said("small", "--profile", "nvme", "--arc", "64M", code=1)
    assert one["verdict"] == "can't be tested here" and "the recorder was killed" in one["says"]
    assert [c["failed"] for c in one["conditions"]] == [True]


def test_a_claim_that_no_replay_answers_is_measured(place: FakePlace, home: Path) -> None:
    write(home, "processor", "cpu")
    assert takes_trials(known.find("processor")) and not takes_trials(known.find("guide-postgresql-8k"))
    one = said("processor", *ONE)
    assert one["conditions"][0]["untried"] == "a replay doesn't tell CPU per op"
    assert one["conditions"][1]["ratios"] == {"128K": 1.0}
    assert one["verdict"] == "no longer holds"


def test_jobs_that_no_setting_of_the_database_tells_apart_are_not_run(home: Path) -> None:
    write(home, "longer", more=", parameters = { seconds = 5 }")
    one = said("longer", *ONE)
    assert "its layouts differ in the job's seconds" in one["conditions"][-1]["untried"]
    assert not one["conditions"][-1]["failed"] and measured() == []


def test_claims_of_the_same_layouts_share_their_trials(place: FakePlace, home: Path) -> None:
    place.behave(of={"small: 16K": {"seconds": 0.01}, "small: 128K": {"seconds": 0.02}})
    write(home, "rate", "per_second")
    said("small", *ONE)
    one = said("rate", *ONE)
    assert len(measured()) == 1 and one["conditions"][1]["ratios"]["128K"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--on", "lab"), '--on is "lab"; claims are tried on a mount: --on mount'),
        (("--on", "mount", "--trace", "x"), "--trace is replayed as it is; --on runs the claim's own job"),
        (("--on", "mount", "--blocks", "none"), "--blocks"),
        (("--blocks", "3:8"), "--blocks goes with --on, which is not given"),
        (("--resolution", "1%"), "--resolution goes with --on, which is not given"),
    ],
)
def test_bad_input_is_one_sentence(args: tuple[str, ...], sentence: str) -> None:
    code, out, err = invoke("claims", "test", "small", *args)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and sentence in err


def test_a_machine_that_can_t_mount_is_exit_code_3(place: FakePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any) -> None:
        raise MissingError("the kernel shows no /dev/fuse: `sudo modprobe fuse`")

    monkeypatch.setattr(type(place), "__enter__", lacking)
    code, out, err = invoke("claims", "test", "small", *ONE)
    assert (code, out) == (3, "") and err.splitlines() == [
        "ztune: the kernel shows no /dev/fuse: `sudo modprobe fuse`"
    ]


def test_a_verdict_whose_run_is_deleted_says_so(place: FakePlace) -> None:
    place.behave(of={"small: 16K": {"seconds": 0.01}, "small: 128K": {"seconds": 0.02}})
    said("small", *ONE)
    (run,) = measured()
    code, out, _ = invoke("runs", "--delete", run.id)
    assert code == 0 and "cited by the verdict on small, which will say" in out
    assert "gone" not in invoke("claims", "show", "small")[1]
    code, out, _ = invoke("runs", "--delete", run.id, "--yes", "--json")
    assert code == 0 and json.loads(out)[0]["verdicts"] == ["small"]
    code, out, _ = invoke("claims", "show", "small")
    assert code == 0 and "holds (its trials are gone)" in out and f"Deleted since: {run.id}." in out
    assert "small: holds (its trials are gone)" in invoke("claims", "list")[1]
    # Tested anew, it cites what there is.
    one = said("small", *ONE)
    assert one["gone"] == [] and f"{run.id}/1" not in one["trials"]


def test_a_job_that_keeps_a_pace_is_measured_by_its_latency(
    place: FakePlace, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both do as much per second; what an operation takes differs.
    monkeypatch.setattr("ztune.claims.measuring.pace", lambda _: object())
    place.behave(of={"small: 16K": {"seconds": 0.01}, "small: 128K": {"seconds": 0.02}})
    one = said("small", *ONE)
    assert one["conditions"][1]["instead"] == "mean latency"
    assert "Its job keeps a pace, so it was measured by its mean latency." in one["says"]
    write(home, "rate", "per_second")
    one = said("rate", *ONE, code=1)
    assert "its job does as much per second as it is asked to" in one["conditions"][1]["untried"]
