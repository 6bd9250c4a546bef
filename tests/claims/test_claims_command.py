"""``ztune claims``: what is replayed, what is taken from the store, what is said; with a stand-in engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from claims_written import PUBLISHED, write
from invoked import invoke
from synthetic_traces import STAND_IN, make_trace

from ztune.claims import claim as known
from ztune.claims.recordings import Recordings
from ztune.claims.replaying import data_bytes
from ztune.cli import claims as command
from ztune.databases.workload import Workload
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.places import engine as engines
from ztune.places import engine_limits
from ztune.runs import screening
from ztune.store.db import Store
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace

ONE = ("--profile", "nvme", "--arc", "64M")


@pytest.fixture(autouse=True)
def made(home: Path, stand_in_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stand-in takes none, and what is available here is what other tests leave.
    monkeypatch.setattr(engine_limits, "memory_bytes", lambda: 4 << 30)
    (home / "studies/published/mine.toml").write_text(PUBLISHED)
    write(home, "small")


def said(*args: str, code: int = 0) -> list[dict[str, Any]]:
    ended, out, err = invoke("claims", "test", *args, "--json")
    assert ended == code, err
    answer = json.loads(out)
    assert isinstance(answer, list)
    return answer


def runs() -> list[tuple[str, str, list[str]]]:
    with Store.open() as store:
        return [(r.id, r.status, [t.status for t in store.trials(r.id)]) for r in store.runs()]


def test_every_condition_is_a_run_and_the_verdict_cites_its_trials(trace: Trace) -> None:
    (one,) = said("small", "--trace", str(trace.path), "--arc", "64M", "--arc", "1G")
    assert one["verdict"] == "holds" and "all 6 conditions" in one["says"]
    assert [(c["profile"], c["arc"] >> 20) for c in one["conditions"]] == [
        (p, a) for p in ("hdd-7200", "ssd-sata", "nvme") for a in (64, 1024)
    ]
    assert all(c["ratios"] == {"128K": 0.4} for c in one["conditions"])
    assert len(runs()) == 6 and all(r[1:] == ("done", ["ok", "ok"]) for r in runs())
    assert one["trials"] == [f"{run}/{n}" for run, *_ in runs() for n in (1, 2)]
    # The cited trials are what they should be.
    with Store.open() as store:
        first, second = store.trials(runs()[-1][0])
        assert first.layout.settings()["data.recordsize"] == "16K"
        assert second.layout.settings()["data.recordsize"] == "128K"
        assert first.layout.arc == 1 << 30 and first.layout.profiles() == ("nvme",)


def test_what_is_stored_is_not_replayed_again(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    before = said("small", "--trace", str(trace.path), *ONE)
    assert len(runs()) == 1
    assert said("small", "--trace", str(trace.path), *ONE)[0]["trials"] == before[0]["trials"]
    assert len(runs()) == 1
    # Other disks, another ARC and another engine are other trials.
    said("small", "--trace", str(trace.path), "--profile", "ssd-sata", "--arc", "64M")
    said("small", "--trace", str(trace.path), "--profile", "nvme", "--arc", "96M")
    monkeypatch.setenv("STAND_IN_VERSION", "0.0.2")
    assert said("small", "--trace", str(trace.path), *ONE)[0]["trials"] != before[0]["trials"]
    assert len(runs()) == 4


def test_claims_share_what_they_have_in_common(trace: Trace, home: Path) -> None:
    write(home, "other", "written")
    found = said("small", "other", "--trace", str(trace.path), *ONE)
    assert [one["claim"] for one in found] == ["small", "other"]
    assert found[0]["trials"] == found[1]["trials"] and len(runs()) == 1


def test_a_test_that_was_cut_goes_on(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Store.finish_trial
    calls: list[int] = []

    def cut(self: Store, *args: Any, **kwargs: Any) -> Any:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return finish(self, *args, **kwargs)

    monkeypatch.setattr(Store, "finish_trial", cut)
    code, out, err = invoke("claims", "test", "small", "--trace", str(trace.path), *ONE, "--jobs", "1")
    assert code == 130 and not out and "the same command goes on" in err
    ((run, status, states),) = runs()
    assert status == "interrupted" and sorted(states) == ["ok", "pending"]
    monkeypatch.setattr(Store, "finish_trial", finish)
    (one,) = said("small", "--trace", str(trace.path), *ONE)
    assert runs() == [(run, "done", ["ok", "ok"])]
    assert one["trials"] == [f"{run}/1", f"{run}/2"]


def test_a_layout_that_fails_is_named_and_tried_again(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", 'crash="recordsize": "16384"')
    (one,) = said("small", "--trace", str(trace.path), *ONE, code=1)
    assert one["verdict"] == "can't be tested here"
    assert '16K: the engine was killed by SIGSEGV: "ASSERT at dbuf.c:1 failed"' in one["says"]
    monkeypatch.delenv("STAND_IN")
    (one,) = said("small", "--trace", str(trace.path), *ONE)
    assert one["verdict"] == "holds" and len(runs()) == 1


def test_what_failed_with_another_engine_is_tried_with_this_one(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", 'crash="recordsize": "16384"')
    said("small", "--trace", str(trace.path), *ONE, code=1)
    monkeypatch.delenv("STAND_IN")
    monkeypatch.setenv("STAND_IN_VERSION", "0.0.2")
    (one,) = said("small", "--trace", str(trace.path), *ONE)
    assert one["verdict"] == "holds" and len(runs()) == 2


def test_show_and_list_have_the_last_verdict(trace: Trace) -> None:
    code, out, _ = invoke("claims", "show", "small")
    assert code == 0 and "`ztune claims test small` tests it." in out
    code, out, _ = invoke("claims", "test", "small", "--trace", str(trace.path), *ONE)
    assert code == 0 and "×0.40 of 128K, replayed" in out and "the one condition tried" in out
    code, out, _ = invoke("claims", "show", "small")
    ((run, *_),) = runs()
    assert code == 0 and "128K ×0.40" in out and f"{run}/1, {run}/2" in out
    listed = {one["claim"]: one for one in json.loads(invoke("claims", "list", "--json")[1])}
    assert listed["small"]["verdict"] == "holds" and listed["guide-slog"]["verdict"] is None
    assert invoke("claims", "list")[0] == 0


DAMAGED = ['{"claim": "sma', "[]", "{}", b"\xff\xfe"]
NO_NAME = '{"claim": 3, "verdict": "", "says": "", "when": "", "trials": [], "conditions": []}'


@pytest.mark.parametrize("text", [*DAMAGED, NO_NAME])
def test_a_damaged_verdict_is_named_and_keeps_no_run(trace: Trace, home: Path, text: str | bytes) -> None:
    said("small", "--trace", str(trace.path), *ONE)
    ((run, *_),) = runs()
    path = home / "verdicts/small.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for asked in (("claims", "show", "small"), ("claims", "list")):
        code, out, err = invoke(*asked)
        assert (code, out) == (2, ""), asked
        assert str(path) in err and "`ztune claims test small` makes it anew" in err
    assert invoke("runs", "--delete", run, "--yes")[0] == 0 and runs() == []
    (one,) = said("small", "--trace", str(trace.path), *ONE)
    assert one["verdict"] == "holds" and invoke("claims", "show", "small")[0] == 0


def test_a_verdict_under_another_name_keeps_no_run(trace: Trace, home: Path) -> None:
    said("small", "--trace", str(trace.path), *ONE)
    ((run, *_),) = runs()
    kept, copy = home / "verdicts/small.json", home / "verdicts/before.json"
    text = kept.read_text()
    kept.rename(copy)
    assert json.loads(invoke("runs", "--delete", run, "--json")[1])[0]["verdicts"] == []
    code, _, err = invoke("runs", "--delete", run, "--yes")
    assert (code, err, runs()) == (0, "", [])
    assert copy.read_text() == text and not kept.exists()


def test_a_run_of_claims_is_an_ordinary_run(trace: Trace) -> None:
    said("small", "--trace", str(trace.path), *ONE)
    code, out, err = invoke("show", "last", "--json")
    assert code == 0, err
    assert [t["layout_name"] for t in json.loads(out)["trials"]] == ["small: 16K", "small: 128K"]
    assert invoke("recommend", "last")[0] == 0


def test_a_claim_that_no_replay_answers_says_why(trace: Trace, home: Path) -> None:
    write(home, "processor", "cpu")
    (one,) = said("processor", "--trace", str(trace.path))
    assert one["says"] == "It can't be tested here: a replay doesn't tell CPU per op."
    assert runs() == []
    measured = "`ztune claims test processor --on mount`"
    assert f"{measured} measures it." in invoke("claims", "test", "processor")[1]
    (home / "verdicts" / "processor.json").unlink()
    assert f"{measured} tests it." in invoke("claims", "show", "processor")[1]


def test_the_arc_follows_the_data(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "large.trace", size=600 << 20)
    assert data_bytes(trace) == 600 << 20
    (one,) = said("small", "--trace", str(trace.path), "--profile", "nvme")
    assert [c["arc"] >> 20 for c in one["conditions"]] == [100, 1200]


def test_a_recording_of_something_else_is_refused(trace: Trace, home: Path) -> None:
    write(home, "clients", more=", parameters = { seconds = 5 }")
    (one,) = said("clients", "--trace", str(trace.path))
    assert "nobody knows of" in one["says"] and "seconds" in one["says"]


class Recorder:
    """Stands for what records a workload: notes what it was asked, and leaves a small trace."""

    def __init__(self, error: ZtuneError | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error = error

    def __call__(self, workload: Workload, out: Path) -> Trace:
        self.asked.append(workload.params.resolved())
        if self.error is not None:
            raise self.error
        return make_trace(out, writes=20 + len(self.asked), workload=WorkloadInfo(**workload.info()))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(command, "_record", found)
    monkeypatch.setattr("ztune.databases.fio.onhost.load.Fio.check", lambda _: "fio-3.33")
    return found


def test_a_workload_is_recorded_once_for_each_set_of_parameters(recorder: Recorder, home: Path) -> None:
    write(home, "again", "written")
    said("small", "again", *ONE)
    assert [p["seconds"] for p in recorder.asked] == [20]
    said("small", *ONE)
    assert len(recorder.asked) == 1
    said("small", *ONE, "--seconds", "7", "-p", "numjobs=2")
    assert [p["seconds"] for p in recorder.asked] == [20, 7] and recorder.asked[1]["numjobs"] == 2


def test_recordings_that_differ_need_their_work(recorder: Recorder, home: Path) -> None:
    write(home, "longer", more=", parameters = { seconds = 5 }")
    (one,) = said("longer", *ONE, code=1)
    # The first again, for what two recordings of one job differ by.
    assert [p["seconds"] for p in recorder.asked] == [20, 5, 20]
    assert "the number of operations of 16K is not known" in one["says"]


def test_what_is_not_here_is_a_reason_and_asked_once(recorder: Recorder, home: Path) -> None:
    recorder.error = MissingError("there is no fio here; `ztune setup fio` installs it")
    write(home, "again", "written")
    found = said("small", "again", *ONE, code=1)
    assert {one["verdict"] for one in found} == {"can't be tested here"}
    assert all("there is no fio here" in one["says"] for one in found)
    assert len(recorder.asked) == 1


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["smal"], 'there is no claim "smal". Did you mean "small"?'),
        (["small", "--arc", "1M"], "--arc 1M: 64M is the least, and 16T the most"),
        (["small", "--arc", "much"], "--arc much: 'much' is not a size"),
        (["small", "--profile", "tape"], "tape"),
        (["small", "-p", "colour=red"], "-p colour: no parameter of fio"),
        (["small", "-p", "numjobs=none"], "numjobs"),
        (["small", "--trace", "nowhere.trace"], "nowhere.trace"),
        (["small", "--trace", "x", "--seconds", "3"], "--seconds is for recording"),
    ],
)
def test_bad_input_is_one_sentence(args: list[str], sentence: str) -> None:
    code, out, err = invoke("claims", "test", *args)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert sentence in err
    assert runs() == []


def test_settings_of_the_database_are_recorded_with_them() -> None:
    asked: list[Any] = []

    def record(workload: Workload, out: Path) -> Trace:
        asked.append(workload)
        return make_trace(out, workload=WorkloadInfo(**workload.info()))

    claim = known.find("import-recordsize-32k")
    with mock.patch("ztune.databases.orientdb.onhost.embedded.OrientJob.check", return_value="OrientDB"):
        trace = Recordings(record, {"version": "1.6.4"}).of(claim, claim.subject)
    assert asked[0].job.database == {"storage.compressionMethod": "snappy"}
    assert trace.path.name.startswith("claims-orientdb-import-")


def test_too_little_memory_is_a_reason(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise InputError("an engine with such an ARC takes too much")

    monkeypatch.setattr(screening, "start", start)
    (one,) = said("small", "--trace", str(trace.path), *ONE, code=1)
    assert one["says"] == "It can't be tested here: 16K: an engine with such an ARC takes too much."


def test_the_version_of_openzfs_is_a_factor(
    trace: Trace, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    newer = tmp_path / "engine"
    newer.write_text(f'#!/bin/sh\nSTAND_IN_OPENZFS=2.4.4 exec {STAND_IN} "$@"\n')
    newer.chmod(0o755)
    asked: list[str] = []

    def both(words: str) -> list[engines.Engine]:
        asked.append(words)
        return [engines.check(), engines.check(newer)]

    monkeypatch.setattr("ztune.runs.versions.asked", both)
    write(home, "writes", "writes")
    (one,) = said("writes", "--trace", str(trace.path), *ONE, "--openzfs", "2.3,2.4")
    assert asked == ["2.3,2.4"]
    assert [c["openzfs"] for c in one["conditions"]] == ["2.3.2", "2.4.4"]
    assert len(runs()) == 2 and len(one["trials"]) == 4
    # Without a version it is this machine's own, and stored already; what was found with the other stands.
    (again,) = said("writes", "--trace", str(trace.path), *ONE)
    assert len(runs()) == 2
    assert {**again, "when": ""} == {**one, "when": ""}
    # Not with another job, nor when its trials are gone.
    (other,) = said("writes", "--seconds", "7", *ONE)
    assert [p["seconds"] for p in recorder.asked] == [7]
    assert [c["openzfs"] for c in other["conditions"]] == ["2.3.2"]
    (one,) = said("writes", "--trace", str(trace.path), *ONE, "--openzfs", "2.3,2.4")
    ((newest, *_),) = [
        r for r in runs() if r[0] in {t.partition("/")[0] for t in one["conditions"][1]["trials"]}
    ]
    assert invoke("runs", "--delete", newest, "--yes")[0] == 0
    (again,) = said("writes", "--trace", str(trace.path), *ONE)
    assert [c["openzfs"] for c in again["conditions"]] == ["2.3.2"]
    # What no replay can tell is said once.
    write(home, "processor", "cpu")
    (one,) = said("processor", "--trace", str(trace.path), *ONE, "--openzfs", "2.3,2.4")
    assert len(one["conditions"]) == 1


def test_progress_says_which_claim_of_how_many(
    trace: Trace, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, "other", "written")
    write(home, "third", "writes")
    monkeypatch.setattr(command, "_STORED_S", 0.0)
    code, out, err = invoke("claims", "test", "small", "other", "third", "--trace", str(trace.path), *ONE)
    assert code == 0
    assert "claim 1 of 3, small\n" in err and "claim 2 of 3, other, about " in err
    assert [line for line in out.splitlines() if line[0] != " "][:3] == [
        "small: holds (a hint)", "other: holds", "third: no longer holds",
    ]  # fmt: skip


def test_the_verdict_is_readable_at_80_columns(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = invoke("claims", "test", "small", "--trace", str(trace.path))
    assert code == 0 and "small: holds" in out, err
    assert max(map(len, out.splitlines())) <= 80
    _, out, _ = invoke("claims", "list")
    assert max(map(len, out.splitlines())) <= 80


def test_the_job_is_that_of_the_publication_and_its_study_and_the_user_goes_first() -> None:
    def parameters(name: str, **given: str) -> dict[str, Any]:
        claim = known.find(name)
        return Recordings(lambda *_: pytest.fail("nothing is recorded"), given).parameters(
            claim, claim.subject
        )

    found = parameters("graph-recordsize-64k")
    assert (found["version"], found["triples"]) == ("1.7.4", 43443)
    assert parameters("graph-zfs-compression-space")["version"] == "1.7.4"
    assert parameters("import-small-records")["version"] == "1.6.4"
    assert parameters("graph-recordsize-64k", version="3.2", triples="500")["version"] == "3.2"
    # Its publication's study is of another workload, which has a study of its own.
    for name in ("backup-uncompressed-512k", "archive-large-records", "lucene-8k"):
        found = parameters(name)
        assert (found["version"], found["triples"]) == ("1.7.4", 43443)
