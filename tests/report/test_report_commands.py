"""``ztune recommend`` and ``ztune report`` on stored runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import evidence as ev
import numpy as np
import pytest
from click.testing import CliRunner, Result
from synthetic_traces import make_trace

from ztune.cli.main import ztune
from ztune.cli.screen import ranking_json
from ztune.errors import InputError
from ztune.places import mounting
from ztune.store import environment
from ztune.store.db import Store
from ztune.study import Layout, Study
from ztune.trace import left_out, witness
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE, TraceWriter


@pytest.fixture(autouse=True)
def own_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stored(
    trace: Path = Path("/nowhere/oltp.trace"),
    sha: str = "0" * 64,
    status: str = "done",
    outcome: dict[str, Any] | None = None,
    recording: tuple[Path, str] | None = None,
) -> str:
    """Put the made-up evidence into the store and return the run's id. ``recording``: of each trial, in a run
    whose layouts have recordings of their own."""
    study = Study.model_validate({k: v for k, v in ev.run().study.items() if k != "profiles"})
    with Store.open() as store:
        run = store.create_run(
            kind="screen", study=study, trace_path=trace, trace_sha=sha, environment=environment.collect(),
            versions={"ztune": "0.1.0"}, seed=1, outcome=outcome,
        )  # fmt: skip
        for number, layout in enumerate(ev.layouts()[:8], start=1):
            trial = store.add_trial(run.id, layout, is_baseline=number == 1, recording=recording)
            store.start_trial(trial.id, {})
            if number == 8:
                store.finish_trial(trial.id, error="the pool ran out of space", wall_s=1.0)
            else:
                result = {
                    "engine": {"version": "0.1.0", "openzfs": "2.3.2"},
                    "measure": ev.toy_measure(layout),
                    "warnings": [],
                }
                store.finish_trial(trial.id, result=result, wall_s=2.0)
        if status != "running":
            store.finish_run(run.id, status)
    return run.id


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, list(words), standalone_mode=False)


def test_the_default_is_the_last_finished_run() -> None:
    first = stored()
    stored(status="interrupted")
    got = json.loads(call("recommend", "--json").stdout)
    assert got["subject"]["run"] == first


def test_json_goes_to_stdout_alone() -> None:
    stored()
    done = call("recommend", "--json", "--script", "layout.sh")
    assert json.loads(done.stdout)["layout_name"]
    assert "layout.sh" in done.stderr


def test_a_run_by_the_beginning_of_its_id() -> None:
    run = stored()
    assert json.loads(call("recommend", run[:4], "--json").stdout)["subject"]["run"] == run


def test_the_view_for_people() -> None:
    stored()
    text = call("recommend", "--why").output
    assert "recommended" in text
    assert "Failed" in text
    assert "The trace is no longer where the run read it" in " ".join(text.split())


def test_objective_and_tolerance_from_the_command_line() -> None:
    stored()
    got = json.loads(call("recommend", "--json", "--objective", "space,time", "--within", "2%").stdout)
    assert got["minimise"] == ["allocated", "modelled_s"]
    assert got["within"] == 0.02
    best = min(row["values"]["allocated"] for row in got["ranking"])
    chosen = next(row for row in got["ranking"] if row["recommended"])
    assert chosen["values"]["allocated"] <= best * 1.02


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--objective", "speed"], '"speed" can\'t be minimised'),
        (["--objective", " , "], "names nothing"),
        (["--objective", "time,cpu"], "have no cpu: the engine that replayed them did not measure it"),
        (["--within", "150%"], "a share from 0 to below 1"),
        (["--within", "some"], "a share from 0 to below 1"),
        (["nosuchrun"], 'there is no run "nosuchrun"'),
        (["--script", "no/such/folder/x.sh"], "can't write"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], message: str) -> None:
    stored()
    done = call("recommend", *words)
    assert isinstance(done.exception, InputError)
    assert done.exception.exit_code == 2
    assert message in str(done.exception)
    assert done.stdout == ""


def test_no_runs_yet() -> None:
    for command in ("recommend", "report"):
        done = call(command)
        assert isinstance(done.exception, InputError)
        assert "no runs" in str(done.exception)


def test_the_script_is_executable() -> None:
    stored()
    call("recommend", "--script", "layout.sh")
    assert os.access("layout.sh", os.X_OK)
    assert Path("layout.sh").read_text().startswith("#!/bin/sh\n")


def test_report_writes_one_file_and_prints_its_name(tmp_path: Path) -> None:
    run = stored()
    assert call("report").output == f"ztune-{run}.html\n"
    assert call("report", run, "--out", "x.html").output == "x.html\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "x.html", f"ztune-{run}.html"]
    assert "No histograms. The trace can" in Path("x.html").read_text()


def test_report_shows_the_trace_that_was_replayed_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "oltp.trace"
    writer = TraceWriter(path)
    events = np.zeros(1234, EVENT_DTYPE)
    events["dur"], events["op"], events["file2"], events["size"] = 10, Op.WRITE, -1, 8192
    events[-1]["op"], events[-1]["size"] = Op.FSYNC, 0
    writer.add_rows(events)
    writer.finish(
        duration_ns=30_000_000_000,
        recorder={"name": "synthetic"},
        files=[{"id": 0, "path": "/pg/base/1", "role": "data", "size_start": 1 << 20}],
        page_size={"data": 8192},
    )
    run = stored(path, Trace.open(path).sha)
    call("report", run, "--out", "x.html")
    page = Path("x.html").read_text()
    assert "1,233" in page and "<b>1</b> sync<" in page
    assert "No histograms" not in page
    other = stored(path, "f" * 64)
    call("report", other, "--out", "y.html")
    assert "is not the trace that was replayed" in Path("y.html").read_text()


@pytest.mark.parametrize("command", ["recommend", "report"])
def test_help_has_an_example(command: str) -> None:
    text = CliRunner().invoke(ztune, [command, "--help"]).output
    assert "Examples:" in text
    assert f"ztune {command}" in text


def test_what_the_trace_showed_is_said_when_the_trace_is_gone() -> None:
    seen = {"operations": 9000, "unit": "transaction", "clients": 2, "writes": 9000, "log": True, "syncs": 1}
    run = stored(outcome={"witness": seen})
    assert "9,000 transactions were acknowledged" in " ".join(call("recommend", run, "--why").output.split())
    nothing = stored(outcome={"witness": None})
    assert "acknowledged and" not in call("recommend", nothing, "--why").output


def test_what_the_trace_showed_is_said_of_the_layouts_that_replayed_it() -> None:
    seen = {"operations": 9000, "unit": "transaction", "clients": 2, "writes": 9000, "log": True, "syncs": 1}
    gone = Path("/nowhere/oltp.trace")
    run = stored(outcome={"witness": seen}, recording=(gone, "0" * 64))
    assert "9,000 transactions were acknowledged" in " ".join(call("recommend", run, "--why").output.split())
    other = stored(outcome={"witness": seen}, recording=(gone, "1" * 64))
    assert "9,000 transactions were acknowledged" not in " ".join(
        call("recommend", other, "--why").output.split()
    )


HEAVY = {"polars", "scipy", "numpy", "pyarrow", "jinja2", "psutil"}


@pytest.mark.parametrize(
    ("words", "there", "may"),
    [
        ("--help", "kept", set()),
        ("list profiles", "kept", set()),
        ("list layouts", "kept", set()),
        ("runs", "kept", set()),
        ("recommend", "gone", set()),
        ("recommend", "kept", set()),
        # A run of before it was kept what its trace shows: the trace is asked whether it contradicts.
        ("recommend", "older", {"numpy", "pyarrow"}),
        ("show last", "gone", set()),
        ("show last", "kept", set()),
    ],
)
def test_a_command_loads_no_library_that_it_does_not_use(
    tmp_path: Path, words: str, there: str, may: set[str]
) -> None:
    trace = make_trace(tmp_path / "my.trace")
    match there:
        case "gone":
            stored()
        case "older":
            stored(trace.path, trace.sha)
        case _:
            stored(trace.path, trace.sha, outcome={**witness.kept(trace), **left_out.kept(trace)})
    code = (
        "import sys\nfrom ztune.cli.main import ztune\n"
        "ztune.main(sys.argv[1:], standalone_mode=False)\n"
        f"print('loaded', *sorted({HEAVY - may!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "loaded"


def screen(*words: str) -> str:
    done = call("recommend", *words)
    assert done.exception is None, done.exception
    lines = done.stdout.splitlines()
    assert len(lines) <= 23 and all(len(line) <= 80 for line in lines), done.stdout
    return done.stdout


def test_the_screen_names_the_commands_with_the_same_flags() -> None:
    run = stored()
    shown = screen(run, "--objective", "written", "--within", "2%")
    assert f"ztune recommend {run} --objective written --within 2% --why" in shown
    assert f"ztune apply {run} --objective written --within 2%" in shown
    assert call("apply", run, "--objective", "written", "--within", "2%", "--export", "sh").exception is None
    assert len((call("recommend", "--script", "x.sh").stdout).splitlines()) <= 23


def test_why_takes_a_setting_a_run_or_nothing() -> None:
    run = stored()
    whole = call("recommend", run, "--why").output
    assert "Not tested" in whole and len(whole.splitlines()) > 60
    assert call("recommend", "--why", run).output == whole
    one = call("recommend", run, "--why", "data.recordsize").output
    assert one == call("recommend", "--why", "data.recordsize", run).output
    assert one.startswith("data.recordsize=") and len(one.splitlines()) < 12
    assert call("recommend", "--why", "slog", run).output.startswith("slog=none")
    of_roles = call("recommend", "--why", "recordsize", run).output
    assert of_roles.startswith(one) and "\nwal.recordsize=" in of_roles
    wrong = call("recommend", run, "--why", "data.volume")
    assert isinstance(wrong.exception, InputError) and "says nothing of it" in str(wrong.exception)


def test_one_form_at_a_time() -> None:
    run = stored()
    page = call("recommend", run, "--markdown").stdout
    assert page.startswith("### ") and "| where | set |" in page
    for words in (("--markdown", "--json"), ("--why", "--json"), ("--all", "--markdown")):
        done = call("recommend", run, *words)
        assert isinstance(done.exception, InputError)
        assert f"{' and '.join(words)} are two forms of one answer" in str(done.exception)
    both = call("recommend", run, "--why", "--all", "--json").exception
    assert str(both).startswith("--why and --json are two forms")


def bought() -> str:
    """Store a run whose only better layout takes a log device."""
    study = Study.model_validate({k: v for k, v in ev.run().study.items() if k != "profiles"})
    with Store.open() as store:
        run = store.create_run(
            kind="screen", study=study, trace_path=Path("/nowhere/x"), trace_sha="0" * 64,
            environment={}, versions={}, seed=1,
        )  # fmt: skip
        for number, layout in enumerate(x for x in ev.layouts() if x.name in {"base", "slog=nvme"}):
            trial = store.add_trial(run.id, layout, is_baseline=number == 0)
            store.start_trial(trial.id, {})
            engine = {"version": "0.1.0", "openzfs": "2.3.2"}
            measure = ev.toy_measure(layout)
            store.finish_trial(trial.id, result={"engine": engine, "measure": measure}, wall_s=1.0)
        store.finish_run(run.id, "done")
    return run.id


def test_every_command_goes_by_the_hardware_that_is_there() -> None:
    run = bought()
    shown = screen(run)
    assert "keep the base layout" in shown and "If bought  slog=nvme: disk work ×" in shown
    assert "slog=nvme" not in call("apply", run, "--export", "json").stdout
    call("report", run, "--out", "without.html")
    assert '<div class="name">base</div>' in Path("without.html").read_text()
    with Store.open() as store:
        listed = ranking_json(store.run(run), store.trials(run))["layouts"]
    assert [(one["rank"], one["to_buy"]) for one in listed] == [(1, {}), (None, {"slog": "nvme"})]
    have = ("--have", "slog=nvme")
    shown = screen(run, *have)
    assert "pool: slog=nvme (base none)" in shown and "If bought" not in shown
    assert f"ztune recommend {run} --have slog=nvme --why" in shown
    assert "slog=nvme" in call("apply", run, *have, "--export", "json").stdout
    call("report", run, *have, "--out", "with.html")
    page = Path("with.html").read_text()
    assert '<div class="name">slog=nvme</div>' in page and f"{run} --have slog=nvme --why" in page
    long = call("recommend", run, "--why").output
    assert "If you bought: what it would change" in long
    assert "--have slog=nvme" in long


@pytest.mark.parametrize("command", ["recommend", "apply", "report"])
def test_hardware_that_no_layout_takes_is_refused(command: str) -> None:
    run = bought()
    done = call(command, run, "--have", "slog=ssd-sata")
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == (
        f"--have slog=ssd-sata: no layout of run {run} takes that; beyond its base layout they take slog=nvme"
    )


def test_a_run_can_be_mounted_by_what_it_recommends_or_by_a_layout_that_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, asked = stored(), []

    class AskedError(Exception):
        """In place of a mount."""

    def mount(study: Study, layout: Layout, where: str, *_: object) -> None:
        asked.append((study.layout, layout.name, layout.hash, layout.arc))
        raise AskedError

    monkeypatch.setattr(mounting, "mount", mount)
    advice = json.loads(call("recommend", run, "--json").stdout)
    for words in ([run], [run[:5]], ["last"]):
        done = call("mount", *words, "dir")
        assert isinstance(done.exception, AskedError), done.exception
        layout, name, sha, _ = asked.pop()
        assert (name, sha) == (advice["layout_name"], advice["layout_hash"]) and layout.hash == sha
        assert f"run {run} recommends {name}" in done.stderr
    other = next(row for row in advice["ranking"] if not row["recommended"] and not row["baseline"])
    call("mount", run, "dir", "--layout", other["layout"], "--arc", "96M")
    _, name, sha, arc = asked.pop()
    assert name == other["layout"] and sha != other["hash"] and arc == 96 << 20
    with pytest.raises(InputError, match=f'run {run} has no layout "nope"'):
        raise call("mount", run, "dir", "--layout", "nope").exception or AssertionError
    # What is a study's name, or no name of anything, is none of a run.
    call("mount", "sqlite", "dir")
    assert asked.pop()[1] == "base"
    assert isinstance(call("mount", "nothing", "dir").exception, InputError)


def test_a_run_without_an_answer_is_not_mounted_but_by_a_layout_s_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = {"bytes": 0.9, "syncs": 0.0, "kinds": ["/db/*.ldb"], "more": 0}
    run, asked = stored(outcome={"left_out": left}), []
    monkeypatch.setattr(mounting, "mount", lambda study, layout, *_: asked.append(layout.name))
    done = call("mount", run, "dir")
    assert isinstance(done.exception, InputError) and "is in no replay" in str(done.exception) and not asked
    call("mount", run, "dir", "--layout", "base")
    assert asked == ["base"]
    assert "no answer, since most of what was recorded" in call("recommend", run).stdout
