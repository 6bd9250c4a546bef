from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from invoked import invoke
from synthetic_traces import make_trace
from waiting import until

from ztune import paths
from ztune.cli.main import ztune
from ztune.errors import InputError, MissingError
from ztune.places import engine as engines
from ztune.places import engine_limits, engine_run
from ztune.places.engine_run import EngineRoom
from ztune.places.executor import LocalExecutor
from ztune.places.replay import Replay
from ztune.places.rerun import rerun
from ztune.runs import screening
from ztune.runs.observer import Observer
from ztune.runs.options import ScreenOptions
from ztune.store.db import Store
from ztune.store.records import Trial
from ztune.study import Study, generic
from ztune.study.adjust import adjusted
from ztune.study.layout import with_settings
from ztune.trace.manifest import RecorderInfo, TraceFile
from ztune.trace.reader import Trace
from ztune.trace.witness import kept
from ztune.trace.writer import TraceWriter

pytestmark = pytest.mark.usefixtures("home")

ZTUNE = [sys.executable, "-c", "from ztune.cli.main import main; main()"]


def scratch_is_empty(home: Path) -> bool:
    return not list((home / "scratch").iterdir())


def test_searches_ranks_and_proves(stand_in_engine: Path, trace: Trace, home: Path) -> None:
    code, out, err = invoke("screen", str(trace.path), "--json", "--jobs", "2", "--budget", "38")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["status"] == "done"
    with Store.open() as store:
        outcome = store.run().outcome
    assert kept(trace).items() <= outcome.items()
    # It stopped before the budget did, and says why.
    assert answer["search"] == outcome["search"]
    assert outcome["search"]["reason"] == "enough" and outcome["search"]["chance"] <= 0.05
    assert 4 < outcome["search"]["tried"] < 38
    best = next(entry for entry in answer["layouts"] if "slog" not in entry["changes"])
    # The stand-in's bottom: 16K; zstd-3 takes least space among equals in time.
    found = {key: best["changes"][key] for key in ("data.recordsize", "data.compression")}
    assert found == {"data.recordsize": "16K", "data.compression": "zstd-3"}
    assert any(entry["baseline"] for entry in answer["layouts"])
    # For every property of the winner the pair with this property alone at its default was tried.
    changes = [entry["changes"] for entry in answer["layouts"]]
    for key in best["changes"]:
        assert {k: v for k, v in best["changes"].items() if k != key} in changes
    # What has to be bought was tried once, on top of what was found.
    assert sum("slog" in entry for entry in changes) == 1
    assert scratch_is_empty(home)


def test_the_best_are_tried_on_aged_pools_last(stand_in_engine: Path, trace: Trace) -> None:
    words = ["screen", str(trace.path), "--json", "--jobs", "2", "--budget", "6", "--no-elsewhere"]
    young = json.loads(invoke(*words)[1])
    code, out, err = invoke(*words, "--age", "used, fill 50% rewrites 1")
    assert code == 0, err
    answer = json.loads(out)
    old = [entry for entry in answer["layouts"] if "age" in entry["changes"]]
    # The base and the three best, at each of both ages, beside all that is tried without.
    assert sorted(entry["changes"]["age"] for entry in old) == ["fill 50% rewrites 1"] * 4 + ["used"] * 4
    assert len(answer["layouts"]) == len(young["layouts"]) + 8
    assert all(entry["rank"] is None and entry["status"] == "ok" for entry in old)
    assert min(entry["trial"] for entry in old) > len(young["layouts"])
    assert {"age": "used"} in [entry["changes"] for entry in old]
    assert [text.partition(":")[0] for text in answer["aged"]] == ["The choice does not change with age"] * 2


def test_a_study_of_aged_pools_is_searched_and_proved(
    stand_in_engine: Path, trace: Trace, tmp_path: Path
) -> None:
    study = tmp_path / "aged.toml"
    study.write_text("""
name = "aged"
[layout]
age = "used"
[[layout.pool]]
name = "tank"
vdev = [{ profile = "hdd-7200" }]
[[layout.dataset]]
name = "tank/data"
roles = ["data"]
[[layout.dataset]]
name = "tank/wal"
roles = ["wal"]
[axes]
"data.recordsize" = ["16K", "8K"]
"data.compression" = ["off"]
""")
    code, out, err = invoke("screen", str(trace.path), "--study", str(study), "--json", "--age", "new")
    assert code == 0, err
    answer = json.loads(out)
    changes = [entry["changes"] for entry in answer["layouts"]]
    assert {"data.recordsize": "16K", "age": "new"} in changes
    # What is ranked, and what proves it, is as old as the study says.
    ranked = [entry["changes"] for entry in answer["layouts"] if entry["rank"] is not None]
    assert {"data.recordsize": "16K"} in ranked and not any("age" in one for one in ranked)


def test_the_best_are_tried_beside_a_neighbour_last(stand_in_engine: Path, trace: Trace) -> None:
    words = ["screen", str(trace.path), "--json", "--jobs", "2", "--budget", "6", "--no-elsewhere"]
    usual = json.loads(invoke(*words)[1])
    code, out, err = invoke(*words, "--with", f"{trace.path}@0.25")
    assert code == 0, err
    answer = json.loads(out)
    assert [entry["layout"] for entry in answer["layouts"]] == [entry["layout"] for entry in usual["layouts"]]
    with Store.open() as store:
        run = store.run()
        others = [t for t in store.trials(run.id) if t.condition]
    # The base and the three best, each with both jobs and with the neighbour alone.
    assert sorted(t.condition for t in others) == ["both"] * 4 + ["neighbour"] * 4
    assert all(t.ok and not t.is_baseline for t in others)
    assert len({t.layout_hash for t in others}) == 4
    jobs = [row["job"] for row in answer["beside"]]
    assert len(jobs) == 12 and jobs[2::3] == ["both"] * 4
    # The neighbour is the same recording, so that together they are twice as much.
    mine, other, both = answer["beside"][:3]
    assert mine["ios"] == other["ios"] and both["ios"]["beside"] == 2 * mine["ios"]["alone"] > 0
    assert len(answer["neighbour"]) == 1 and "beside" in answer["neighbour"][0]
    spec = next(t.spec for t in others if t.condition == "both")
    assert spec is not None and len(spec["files"]) == 2 * len([f for f in trace.manifest.files if f.role])
    # And again from the record alone.
    record = json.loads(invoke("show", run.id, "--trial", str(others[0].number), "--json")[1])
    assert rerun(record, trace, engines.check()).result == others[0].result


def test_how_far_the_choice_carries_is_tried_last(stand_in_engine: Path, trace: Trace) -> None:
    words = ["screen", str(trace.path), "--json", "--budget", "5", "--arc", "256M"]
    code, out, err = invoke(*words)
    assert code == 0, err
    answer = json.loads(out)
    with Store.open() as store:
        run = store.run()
        others = [t for t in store.trials(run.id) if t.condition]
    # The base, the best and the next best, with half and twice the ARC.
    assert sorted(t.condition for t in others) == ["half the ARC"] * 3 + ["twice the ARC"] * 3
    assert {t.spec["arc_max"] >> 20 for t in others if t.spec} == {128, 512}
    assert {t.layout.arc >> 20 for t in others} == {256}
    assert min(t.number for t in others) > len(answer["layouts"])
    assert answer["carries"].startswith("The choice with half the ARC")
    assert len(answer["elsewhere"]) >= 6
    plain = json.loads(invoke(*words, "--no-elsewhere")[1])
    assert plain["carries"] == "" and plain["elsewhere"] == []
    assert [e["layout"] for e in plain["layouts"]] == [e["layout"] for e in answer["layouts"]]
    # OpenZFS takes no smaller ARC than 64M.
    invoke(*words[:-2])
    with Store.open() as store:
        found = [t for t in store.trials(store.run().id) if t.condition]
        least = store.run().resolved_study.layout.arc
    assert {t.condition for t in found} == {"twice the ARC"} and least == 64 << 20


def test_a_neighbour_that_failed_is_tried_again_on_resume(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "crash=ztune-neighbour")
    code, out, _ = invoke("screen", str(trace.path), "--json", "--budget", "3", "--with", str(trace.path))
    assert code == 1 and json.loads(out)["beside"] == []
    assert "is not known" in json.loads(out)["neighbour"][0]
    monkeypatch.delenv("STAND_IN")
    code, out, err = invoke("screen", str(trace.path), "--json", "--resume")
    assert code == 0, err
    assert json.loads(out)["beside"] and "does not change" in json.loads(out)["neighbour"][0]
    code, _, err = invoke("screen", "--resume", "last", "--with", str(trace.path))
    assert code == 2 and "--with can't be changed" in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nothere.trace", "there is no trace nothere.trace"),
        ("{}@soon", "write TRACE@SECONDS"),
        ("{}@9000", "write a smaller @START"),
    ],
)
def test_a_neighbour_that_can_not_be_is_one_sentence(
    stand_in_engine: Path, trace: Trace, given: str, said: str
) -> None:
    code, _, err = invoke("screen", str(trace.path), "--with", given.format(trace.path))
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1
    assert "no runs yet" in invoke("runs")[1]


def test_table_without_json(stand_in_engine: Path, trace: Trace) -> None:
    code, out, err = invoke("screen", str(trace.path), "--budget", "3", "--name", "mine")
    assert code == 0, err
    assert "data.recordsize=8K" in out and "mine" in out
    assert "modelled" in out


def test_an_arc_that_no_engine_has_is_refused_before_a_run_is_stored(
    stand_in_engine: Path, trace: Trace
) -> None:
    study = generic.build({"data", "wal"}).to_json()
    study["axes"], study["cross"] = {"arc": ["64M", "16T"]}, []
    options = ScreenOptions(budget=4, jobs=1)
    for asked in (Study.model_validate(study), adjusted(generic.build({"data", "wal"}), arc="16T")):
        with Store.open() as store:
            with pytest.raises(
                InputError, match=r"an ARC of 16T takes about \d+ MiB of memory, and each of 1"
            ):
                screening.start(store, trace, asked, engines.check(), options)
            assert store.runs() == []


def test_budget_bounds_the_layouts(stand_in_engine: Path, trace: Trace) -> None:
    _, out, _ = invoke("screen", str(trace.path), "--json", "--budget", "4")
    answer = json.loads(out)
    assert answer["search"]["tried"] == 4
    # The pairs that prove the recommendation are no more again; then comes the log device.
    assert 4 < len(answer["layouts"]) <= 4 + 4 + 1
    assert len(json.loads(invoke("screen", str(trace.path), "--json", "--budget", "1")[1])["layouts"]) == 1


def test_crash_marks_one_layout_and_the_others_go_on(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", 'crash="recordsize": "8192"')
    code, out, err = invoke("screen", str(trace.path), "--json", "--budget", "8")
    assert code == 1
    layouts = json.loads(out)["layouts"]
    # The engine is told of bytes, whichever role's.
    bad = [
        entry
        for entry in layouts
        if "8K" in (entry["changes"].get("data.recordsize"), entry["changes"].get("wal.recordsize"))
    ]
    assert {entry["status"] for entry in bad} == {"failed"}
    assert bad[0]["error"] == 'the engine was killed by SIGSEGV: "ASSERT at dbuf.c:1 failed"'
    assert {entry["status"] for entry in layouts if entry not in bad} == {"ok"}
    assert "data.recordsize=8K" in err


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_engine_that_was_killed_is_tried_once_more(
    stand_in_engine: Path, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    monkeypatch.setenv("STAND_IN", f"kill-once={tmp_path / 'killed'}")
    code, out, _ = invoke("screen", str(trace.path), "--json", "--budget", "3", "--jobs", jobs)
    assert (tmp_path / "killed").exists() and code == 0
    assert {entry["status"] for entry in json.loads(out)["layouts"]} == {"ok"}
    # What is killed each time has failed, and it is said of what, and what to do.
    monkeypatch.setenv("STAND_IN", 'kill="recordsize": "8192"')
    code, out, _ = invoke("screen", str(trace.path), "--json", "--budget", "8", "--jobs", jobs)
    bad = [entry["error"] for entry in json.loads(out)["layouts"] if entry["status"] == "failed"]
    assert code == 1 and bad
    for error in bad:
        assert error.startswith("the engine was killed by SIGKILL: most likely by the kernel, as memory ran")
        assert "twice" in error and "--arc" in error


def test_layouts_for_which_there_is_no_room_at_once_run_by_themselves(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = generic.build({"data", "wal"})
    target = Replay(trace, engines.check(), jobs=2)
    work = target.work(target.spec(study, study.layout, 1))
    free = 3 * (work.contents + work.filler)  # of one the pools and their image take two thirds
    monkeypatch.setattr(EngineRoom, "backing_of", lambda *_, **__: "file")
    monkeypatch.setattr(engine_limits, "disk_bytes", lambda _: free)
    words = ("screen", str(trace.path), "--json", "--budget", "4", "--jobs", "2")
    code, out, err = invoke(*words)
    assert code == 0, err
    assert {entry["status"] for entry in json.loads(out)["layouts"]} == {"ok"}
    # Where there is none for any by itself, one sentence says so.
    free //= 3
    code, _, err = invoke(*words)
    assert code == 2 and "the pools of a layout may take up to" in err
    with Store.open() as store:
        assert {t.status for t in store.trials(store.run().id)} == {"pending"}


def test_one_layout_without_room_does_not_end_the_others(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_run.limits

    def limits(work: engine_run.EngineWork, *rest: Any, **more: Any) -> dict[str, Any]:
        if '"recordsize": "8192"' in json.dumps(work.spec):
            raise InputError("the pools of a layout may take up to 9 MiB")
        return real(work, *rest, **more)

    monkeypatch.setattr(engine_run, "limits", limits)
    code, out, _ = invoke("screen", str(trace.path), "--json", "--budget", "8", "--jobs", "1")
    found = json.loads(out)["layouts"]
    failed = {e["error"] for e in found if e["status"] == "failed"}
    assert code == 1 and failed == {"the pools of a layout may take up to 9 MiB"}
    assert sum(e["status"] == "ok" for e in found) > 3


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ("refuse", 'the engine refused the layout: "recordsize is odd"'),
        ("garbage", "the engine's result is not the JSON it should be"),
    ],
)
def test_other_failures(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch, wish: str, sentence: str
) -> None:
    monkeypatch.setenv("STAND_IN", f'{wish}="recordsize": "8192"')
    code, out, _ = invoke("screen", str(trace.path), "--json", "--budget", "3")
    assert code == 1
    assert [e["error"] for e in json.loads(out)["layouts"] if e["status"] == "failed"] == [sentence]


def test_timeout(stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("STAND_IN", 'hang="recordsize": "8192"')
    code, out, _ = invoke("screen", str(trace.path), "--json", "--budget", "3", "--timeout", "3")
    assert code == 1
    failed = [e for e in json.loads(out)["layouts"] if e["status"] == "failed"]
    assert len(failed) == 1 and failed[0]["error"].startswith("the engine did not finish in 3 s")
    assert scratch_is_empty(home)


def test_where_all_failed_nothing_is_promised(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = invoke("screen", str(trace.path), "--budget", "2")
    assert code == 0 and "says what to set, and why" in out
    monkeypatch.setenv("STAND_IN", 'crash="recordsize"')
    code, out, err = invoke("screen", str(trace.path), "--budget", "2", "--seed", "9")
    assert code == 1 and "no layout has a result" in err and "says what to set" not in out


def test_failed_layouts_are_tried_again_on_resume_and_finished_ones_are_not(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", 'crash="recordsize": "65536"')
    invoke("screen", str(trace.path), "--budget", "8")
    with Store.open() as store:
        before = {t.number: t for t in store.trials(store.run().id)}
    monkeypatch.delenv("STAND_IN")
    code, _, err = invoke("screen", str(trace.path), "--resume", "--json")
    assert code == 0, err
    with Store.open() as store:
        assert len(store.runs()) == 1
        after = {t.number: t for t in store.trials(store.run().id)}
    assert all(t.ok for t in after.values())
    for number, trial in before.items():
        assert (after[number].started == trial.started) == trial.ok
    code, _, err = invoke("screen", str(trace.path), "--resume")
    assert code == 2 and "was cut" in err


# SIGTERM becomes the same interruption; `test_stop` sends it to each command that takes long.
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_interrupted_and_resumed(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch, home: Path, number: int
) -> None:
    monkeypatch.setenv("STAND_IN", "slow=0.6")
    process = subprocess.Popen(
        [*ZTUNE, "screen", str(trace.path), "--budget", "8", "--jobs", "2"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (home / "ztune.db").exists():
            with Store.open() as store:
                if store.runs() and any(t.ok for t in store.trials(store.run().id)):
                    break
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    with Store.open() as store:
        run = store.run()
        assert run.status == "interrupted"
        assert err.splitlines()[-1] == f"ztune: interrupted; `ztune screen --resume {run.id}` goes on"
        done = {t.number for t in store.trials(run.id) if t.ok}
        assert {"ok"} <= {t.status for t in store.trials(run.id)} <= {"ok", "pending"}
    assert done
    assert scratch_is_empty(home)
    assert not _engines_of(home)
    monkeypatch.delenv("STAND_IN")
    code, out, err = invoke("screen", "--resume", run.id, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["run"] == run.id and answer["search"]["tried"] == 8 <= len(answer["layouts"])
    assert all(e["status"] == "ok" for e in answer["layouts"])


class StoppedTwice(LocalExecutor):
    """Interrupted while it stops what the first interruption left running."""

    def stop(self) -> None:
        super().stop()
        raise KeyboardInterrupt


class Interrupting(Observer):
    """Interrupts the first layout."""

    def trial(self, trial: Trial) -> None:
        raise KeyboardInterrupt


def test_a_second_interruption_leaves_no_layout_running(stand_in_engine: Path, trace: Trace) -> None:
    with Store.open() as store:
        with pytest.raises(KeyboardInterrupt):
            screening.start(
                store, trace, generic.build({"data", "wal"}), engines.check(), ScreenOptions(budget=2),
                observer=Interrupting(), executor=StoppedTwice(),
            )  # fmt: skip
        run = store.run()
        assert run.status == "interrupted"
        assert {t.status for t in store.trials(run.id)} == {"pending"}


def _engines_of(home: Path) -> list[str]:
    """Return the command lines of processes that still work below ``home``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(home) in line and "stand_in" in line:
                found.append(line)
    return found


def test_killed_ztune_takes_its_engines_along(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("STAND_IN", "slow=60")
    process = subprocess.Popen(
        [*ZTUNE, "screen", str(trace.path), "--budget", "2"], stderr=subprocess.DEVNULL
    )
    # Seen once is enough: a program has no command line for a moment as it turns into another.
    until(lambda: _engines_of(home), "an engine", 200)  # beside tests that keep the disk from answering
    process.kill()
    process.wait()
    until(lambda: not _engines_of(home), "the end of the engines", 10)
    # The next screening sweeps what the killed one left, and can go on with its run.
    monkeypatch.delenv("STAND_IN")
    code, _, err = invoke("screen", str(trace.path), "--resume")
    assert code == 0, err
    assert scratch_is_empty(home)


def test_another_engine_version_does_not_resume(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", 'crash="recordsize": "8192"')
    invoke("screen", str(trace.path), "--budget", "3")
    monkeypatch.setenv("STAND_IN_VERSION", "0.0.2")
    code, _, err = invoke("screen", str(trace.path), "--resume")
    assert code == 2
    assert "version 0.0.1 of the engine, here is 0.0.2" in err and "not to be mixed" in err


def test_another_trace_does_not_resume(stand_in_engine: Path, trace: Trace, tmp_path: Path) -> None:
    other = make_trace(tmp_path / "o.trace", writes=41)
    invoke("screen", str(trace.path), "--budget", "2")
    with Store.open() as store:
        run = store.run().id
    code, _, err = invoke("screen", str(other.path), "--resume", run)
    assert code == 2 and "another trace" in err


def test_run_that_a_live_process_works_on_is_not_resumed(stand_in_engine: Path, trace: Trace) -> None:
    invoke("screen", str(trace.path), "--budget", "2")
    with Store.open() as store:
        run = store.run()
        store.resume_run(run.id)  # this test's own process now works on it
        done = subprocess.run(
            [*ZTUNE, "screen", str(trace.path), "--resume", run.id], capture_output=True, text=True
        )
    assert done.returncode == 2 and f"process {os.getpid()}" in done.stderr


def test_show_json_suffices_to_run_again(stand_in_engine: Path, trace: Trace) -> None:
    invoke("screen", str(trace.path), "--budget", "4", "--seed", "77")
    code, out, _ = invoke("show", "last", "--trial", "3", "--json")
    assert code == 0
    record = json.loads(out)
    assert record["run"]["seed"] == 77 and record["trial"]["spec"]["seed"] == 77
    outcome = rerun(record, trace, engines.check())
    assert outcome.result == record["trial"]["result"]
    for text in (json.dumps(record["trial"]["spec"]),):
        assert str(trace.path.parent) not in text  # nothing of this machine in the spec
    code, out, _ = invoke("show", record["run"]["id"], "--trial", "3", "--rerun", "--json")
    assert code == 0
    assert all(row["stored"] == row["again"] for row in json.loads(out)["compared"])


def test_runs_and_show(stand_in_engine: Path, trace: Trace) -> None:
    assert "no runs yet" in invoke("runs")[1]
    invoke("screen", str(trace.path), "--budget", "3")
    rows = json.loads(invoke("runs", "--json")[1])
    [row] = rows
    assert row["layouts"] == row["ok"] >= 3 and (row["failed"], row["status"]) == (0, "done")
    assert rows[0]["id"] in invoke("runs")[1]
    full = json.loads(invoke("show", "--json")[1])
    assert full["environment"]["kernel"] and full["versions"]["engine"] == "0.0.1"
    assert Study.model_validate(full["study"]).name == "generic"
    assert len(full["trials"]) == row["ok"] and full["trials"][0]["is_baseline"]
    assert "trial 1 of run" in invoke("show", "last", "--trial", "1")[1]
    code, _, err = invoke("show", "nosuch")
    assert code == 2 and 'no run "nosuch"' in err


def test_trace_without_roles(stand_in_engine: Path, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "n.trace") as writer:
        file = TraceFile(id=0, path="/etc/passwd", role=None, size_start=9, size_end=9)
        writer.finish(duration_ns=10**9, recorder=RecorderInfo(name="synthetic"), files=[file])
    code, _, err = invoke("screen", str(tmp_path / "n.trace"))
    assert code == 2
    assert "no file in" in err and "--role" in err


def test_roles_that_leave_nothing_leave_no_trace_behind(stand_in_engine: Path, trace: Trace) -> None:
    code, _, err = invoke("screen", str(trace.path), "--role", "**=-")
    assert code == 2 and err.count("\n") == 1
    assert f"--role leaves no file of {trace.path} a role" in err
    assert not list(paths.traces().glob("*.trace"))


def test_role_without_dataset(stand_in_engine: Path, tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "b.trace", roles=("data", "backup"))
    code, _, err = invoke("screen", str(trace.path), "--study", "postgres-oltp")
    assert code == 2
    assert 'role backup has no dataset in layout "base"' in err
    with Store.open() as store:
        assert store.runs() == []


def test_database_knobs_cannot_be_replayed(stand_in_engine: Path, trace: Trace) -> None:
    study = generic.build({"data", "wal"})
    study = study.model_copy(update={"axes": {**study.axes, "database.full_page_writes": ("off",)}})
    with (
        Store.open() as store,
        pytest.raises(InputError, match=r"changes database\.full_page_writes: a recorded trace"),
    ):
        screening.start(store, trace, study, engines.check(), ScreenOptions(budget=99))


def test_properties_the_engine_lacks_cannot_be_varied(stand_in_engine: Path, trace: Trace) -> None:
    study = generic.build({"data", "wal"})
    target = Replay(trace, engines.check())
    with pytest.raises(InputError, match="changes xattr of tank/data, which the replay engine does not have"):
        target.check(study, with_settings(study.layout, {"data.xattr": "dir"}, "x"))
    with pytest.raises(InputError, match="changes zil_nocacheflush, which the replay engine does not have"):
        target.check(study, with_settings(study.layout, {"tunable.zil_nocacheflush": 1}, "x"))
    # In the base they are handed on to the commands, and kept from the engine.
    changes = {"data.xattr": "dir", "tunable.zil_nocacheflush": 1, "tunable.zfs_txg_timeout": 9}
    base = with_settings(study.layout, changes)
    study = study.model_copy(update={"layout": base})
    target.check(study, base)
    spec = target.spec(study, base, 1)
    assert spec["tunables"] == {"zfs_txg_timeout": 9} and "xattr" not in spec["datasets"][0]["properties"]


def test_no_more_is_announced_than_there_are_layouts(stand_in_engine: Path, trace: Trace) -> None:
    rounds: list[tuple[int, int]] = []

    class Watcher(Observer):
        def round(self, number: int, waiting: int, more: int) -> None:
            rounds.append((waiting, more))

    both: dict[str, object] = {"axes": {"data.recordsize": ("128K", "16K")}, "cross": ()}
    study = generic.build({"data", "wal"}).model_copy(update=both)
    with Store.open() as store:
        options = ScreenOptions(budget=32)
        screening.start(store, trace, study, engines.check(), options, observer=Watcher())
    assert rounds[0] == (1, 1)  # the base, and 16K
    assert len(rounds) > 2 and {more for _, more in rounds[1:]} == {0}


def test_progress_reaches_the_observer(stand_in_engine: Path, trace: Trace) -> None:
    seen: list[tuple[str, float]] = []

    class Watcher(Observer):
        def step(self, trial: Trial, step: str, state: str, share: float, text: str) -> None:
            seen.append((step, share))

    with Store.open() as store:
        screening.start(
            store,
            trace,
            generic.build({"data", "wal"}),
            engines.check(),
            ScreenOptions(budget=1),
            observer=Watcher(),
        )
    assert seen == [("load", 0.5), ("measure", 1.0)]


def test_profile_and_arc_from_the_command_line(stand_in_engine: Path, trace: Trace) -> None:
    code, _, err = invoke("screen", str(trace.path), "--budget", "1", "--profile", "nvme", "--arc", "1.5G")
    assert code == 0, err
    with Store.open() as store:
        spec = store.trials(store.run().id)[0].spec
    assert spec is not None
    assert spec["arc_max"] == 3 << 29
    assert spec["pools"][0]["vdevs"][0]["disks"][0]["profile"] == "nvme"
    assert spec["profiles"]["nvme"]["read_us"] == 77
    for flags, sentence in (
        (("--profile", "floppy"), 'there is no profile "floppy"'),
        (("--profile", "./floppy"), './floppy: the file of a profile has a name that ends in ".toml"'),
        (("--arc", "lots"), "--arc lots: 'lots' is not a size"),
        (("--study", "postgres"), 'there is no study "postgres"'),
    ):
        code, _, err = invoke("screen", str(trace.path), *flags)
        assert code == 2 and sentence in err, err


def test_missing_engine(trace: Trace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(tmp_path / "none"))
    with pytest.raises(MissingError, match="ZTUNE_ENGINE names"):
        engines.check()
    code, _, err = invoke("screen", str(trace.path))
    assert code == 3 and "ZTUNE_ENGINE" in err
    refuses = tmp_path / "refuses"
    refuses.write_text('#!/bin/sh\necho "struct size differs" >&2\nexit 4\n')
    refuses.chmod(0o755)
    monkeypatch.setenv("ZTUNE_ENGINE", str(refuses))
    with pytest.raises(MissingError, match="fails its version: struct size differs"):
        engines.check()


def test_a_trace_is_needed(stand_in_engine: Path) -> None:
    code, _, err = invoke("screen")
    assert code == 2 and "which trace?" in err
    code, _, err = invoke("screen", "nowhere.trace")
    assert code == 2 and "nowhere.trace" in err


@pytest.mark.parametrize("name", ["screen", "runs", "show", "list"])
def test_help_has_an_example(name: str) -> None:
    result = CliRunner().invoke(ztune, [name, "--help"])
    assert result.exit_code == 0
    assert f"  ztune {name}" in result.output


def test_memory_decides_the_backing(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    study = generic.build({"data", "wal"})
    target = Replay(trace, engines.check())
    spec = target.spec(study, study.layout, 1)
    assert target.room.backing_of(target.work(spec), spec) == "memory"

    class Little:
        available = 300 << 20

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Little)
    # What a run may take is fixed when it begins: its own engines must not make less of it.
    assert target.room.backing_of(target.work(spec), spec) == "memory"
    for backing, found in ((None, "file"), ("memory", "memory")):
        other = Replay(trace, engines.check(), backing=backing)
        assert other.room.backing_of(other.work(spec), spec) == found
        # Of an image only what is written anew takes memory.
        assert other.room.backing_of(other.work(spec), spec, mapped=True) == "memory"
    assert (
        Replay(trace, engines.check(), backing="file").room.backing_of(target.work(spec), spec, mapped=True)
        == "file"
    )
    filled = replace(target.work(spec), filler=1 << 30)
    assert EngineRoom(1, 300 << 20).backing_of(filled, spec, mapped=True) == "file"


def test_spec_is_the_contract(stand_in_engine: Path, trace: Trace) -> None:
    study = generic.build({"data", "wal"})
    layout = with_settings(
        study.layout, {"data.recordsize": "16K", "slog": "mirror 2 nvme", "tunable.zfs_txg_timeout": 9}, "x"
    )
    spec = Replay(trace, engines.check()).spec(study, layout, 3)
    assert spec["pools"] == [
        {
            "name": "tank",
            "ashift": 12,
            "vdevs": [
                {"class": "data", "kind": "stripe", "disks": [{"profile": "hdd-7200", "size": 4 << 40}]},
                {"class": "log", "kind": "mirror", "disks": [{"profile": "nvme", "size": 2 << 40}] * 2},
            ],
        }
    ]
    assert spec["datasets"][0] == {
        "name": "tank/data",
        "properties": {
            "recordsize": "16384",
            "compression": "lz4",
            "checksum": "on",
            "logbias": "latency",
            "sync": "standard",
            "primarycache": "all",
            "secondarycache": "all",
            "redundant_metadata": "all",
            "special_small_blocks": "0",
            "copies": "1",
        },
    }
    assert spec["files"][1] == {"id": 1, "dataset": "tank/wal", "size": 4 << 20, "content": "wal"}
    assert spec["tunables"] == {"zfs_txg_timeout": 9}
    assert (spec["seed"], spec["version"]) == (3, 1)
    assert set(spec["profiles"]) == {"hdd-7200", "nvme"} and "source" not in spec["profiles"]["nvme"]
