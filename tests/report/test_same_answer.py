"""The same measured run gives the same recommendation by every door."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence as ev
import pytest
from click.testing import CliRunner
from measured_trials import result

from ztune.advice.recommend import recommend
from ztune.analysis.results import collect
from ztune.analysis.verdict import outcome
from ztune.cli import _tune
from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.report import html, measured
from ztune.runs.options import TrialOptions
from ztune.runs.stopping import judge
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.store.series import SeriesRows
from ztune.study import Layout, Objective, Study
from ztune.study.layout import with_settings

STUDY = Study.model_validate({k: v for k, v in ev.run().study.items() if k != "profiles"})
BASE = STUDY.layout
SMALL = with_settings(BASE, {"data.recordsize": "8K"}, "8K")
LOG = with_settings(BASE, {"slog": "nvme"}, "log device")
BOTH = with_settings(BASE, {"data.recordsize": "8K", "slog": "nvme"}, "8K, log device")
LAYOUTS = [BASE, SMALL, LOG, BOTH]
# A replay finds the log device best. Seconds per operation with the real database say otherwise.
CLEAR = {"base": 0.020, "8K": 0.008, "log device": 0.019, "8K, log device": 0.012}
NONE = {**dict.fromkeys(CLEAR, 0.020), "8K": 0.0199}


@pytest.fixture(autouse=True)
def own_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


def stored(
    seconds: dict[str, float],
    environment: dict[str, Any] | None = None,
    cpu: dict[str, float] | None = None,
    have: dict[str, str] | None = None,
) -> tuple[Run, Run]:
    """Store a screening and the run that measured its layouts; return both."""
    options = {"resolution": 0.02, "blocks": [3, 8], "have": have or {}}
    with Store.open() as store:
        made: dict[str, Any] = {"study": STUDY, "environment": environment or {"kernel": "6.1"}, "seed": 1}
        versions = {"ztune": "0.1.0", "openzfs": "2.3.2"}
        first = store.create_run(
            kind="tune", trace_path=Path("/nowhere/x.trace"), trace_sha="0" * 64, **made,
            versions={**versions, "engine": "0.1.0"},
        )  # fmt: skip
        for layout in LAYOUTS:
            trial = store.add_trial(first.id, layout, is_baseline=layout is BASE)
            store.start_trial(trial.id, {})
            engine = {"version": "0.1.0", "openzfs": "2.3.2"}
            replayed = {"engine": engine, "measure": ev.toy_measure(layout), "warnings": []}
            store.finish_trial(trial.id, result=replayed, wall_s=1.0)
        store.finish_run(first.id, "done")
        second = store.create_run(
            kind="run", versions=versions, target={"kind": "local", "name": "local", "accel": "kvm"},
            job={"workload": "postgres-oltp", "params": {}}, options=options,
            source_run=first.id, **made,
        )  # fmt: skip
        dice = random.Random(3)
        for block in range(1, 6):
            for layout in LAYOUTS:
                trial = store.add_trial(second.id, layout, is_baseline=layout is BASE, block=block)
                store.start_trial(trial.id, {})
                took = seconds[layout.name] * (1 + dice.gauss(0, 0.002))
                used = (cpu or {}).get(layout.name, 0.005) * (1 + dice.gauss(0, 0.002))
                measured = result(took, cpu=used)
                store.finish_trial(trial.id, result=measured, wall_s=1.0, openzfs="2.3.2")
        trials = store.trials(second.id)
        found = judge(store.run(second.id), trials, TrialOptions())
        assert found is not None
        names = {t.arm: t.layout_name for t in trials}
        store.note_run(second.id, outcome=outcome(*found, "settled", names))
        store.finish_run(second.id, "done")
        return store.run(first.id), store.run(second.id)


def told(*words: str) -> str:
    done = CliRunner().invoke(ztune, list(words), standalone_mode=False)
    assert done.exception is None, done.exception
    return done.stdout


@pytest.mark.parametrize(("seconds", "wins"), [(CLEAR, SMALL), (NONE, BASE)])
def test_every_door_gives_the_same_answer(tmp_path: Path, seconds: dict[str, float], wins: Layout) -> None:
    screened, run = stored(seconds)
    asked = json.loads(told("recommend", run.id, "--json"))
    answer = asked["recommendation"]
    assert (answer["layout_name"], answer["basis"]) == (wins.name, "measured")
    assert asked["recommended"] == {"layout": wins.name, "hash": wins.hash, "text": answer["verdict"]}
    # apply
    exported = json.loads(told("apply", run.id, "--export", "json"))
    assert wins.name in json.dumps(exported) and "modelled: the recorded I/O" not in json.dumps(exported)
    # report
    told("report", run.id, "--out", "r.html")
    page = Path("r.html").read_text()
    assert f'<div class="name">{wins.name}</div>' in page and "Recommended layout, measured" in page
    # the terminal
    lines = [line for line in told("recommend", run.id, "--why").splitlines() if "◀ recommended" in line]
    assert len(lines) == 1 and wins.name in lines[0]
    # tune --on, when the trials are done
    plan = _tune.TuneOptions("postgres-oltp", {}, tmp_path, None, None, (), None, None, 0, None, "auto", ())
    with Store.open() as store:
        written = _tune._write(plan, screened.id, Path("/nowhere/x.trace"), store, run)
    assert written.recommendation.model_dump(mode="json") == answer
    assert json.loads((tmp_path / "run.json").read_text())["recommendation"] == answer
    assert (tmp_path / "report.html").read_text() == page
    assert "none is measured" in (tmp_path / "screened.html").read_text()
    told("recommend", run.id, "--script", "again.sh")
    assert (tmp_path / "apply.sh").read_text() == Path("again.sh").read_text()


def test_no_door_has_an_answer_without_a_result_of_the_baseline() -> None:
    with Store.open() as store:
        run = store.create_run(
            kind="run", study=STUDY, environment={"kernel": "6.1"}, seed=1, versions={"openzfs": "2.3.2"},
            target={"kind": "local", "name": "local"}, job={"workload": "sqlite", "params": {}},
            options={"resolution": 0.02, "blocks": [3, 8]},
        )  # fmt: skip
        for layout in (SMALL, BASE):
            trial = store.add_trial(run.id, layout, is_baseline=layout is BASE, block=1)
            if layout is SMALL:
                store.start_trial(trial.id, {})
                store.finish_trial(trial.id, result=result(0.01), wall_s=1.0, openzfs="2.3.2")
        store.finish_run(run.id, "done")
    why = f"the baseline has no result yet; `ztune run --resume {run.id}` goes on"
    for words in (["recommend"], ["recommend", "--why"], ["apply"], ["apply", "--export", "json"]):
        done = CliRunner().invoke(ztune, [words[0], run.id, *words[1:]], standalone_mode=False)
        assert isinstance(done.exception, InputError) and str(done.exception) == why
    shown = told("show", run.id)
    assert "T" + why[1:] + "." in shown and "recommended" not in shown
    told("report", run.id, "--out", "r.html")
    page = Path("r.html").read_text()
    assert "The baseline has no result yet" in page and '<div class="name">No result</div>' in page
    with Store.open() as store:
        assert measured.to_json(run, store.trials(run.id))["recommended"] is None


def test_a_screening_that_was_measured_goes_by_the_measurement(home: Path) -> None:
    screened, run = stored(CLEAR)
    which = f"run {screened.id} screened these layouts; this goes by run {run.id}, which measured them"
    for words in (("recommend", "--json"), ("apply", "--export", "json")):
        done = CliRunner().invoke(ztune, [words[0], screened.id, *words[1:]], standalone_mode=False)
        assert done.stdout == told(words[0], run.id, *words[1:]) and which in done.stderr
    # Another objective orders replays: what was measured has none of them.
    asked = json.loads(told("recommend", screened.id, "--json", "--objective", "space"))
    assert asked["basis"] == "modelled"
    better = f"Run {run.id} has measured layouts of this screening since: go by that."
    assert asked["warnings"][0] == better
    told("report", screened.id, "--out", "s.html")
    assert better in Path("s.html").read_text()
    with Store.open() as store:  # a run that was cut is no better evidence than a whole screening
        store.finish_run(run.id, "interrupted")
    assert json.loads(told("recommend", screened.id, "--json"))["basis"] == "modelled"


def test_a_recommendation_of_a_screening_loads_only_what_it_uses() -> None:
    screened, _ = stored(CLEAR)
    with Store.open() as store:
        alone = store.create_run(
            kind="screen", trace_path=Path("/nowhere/x.trace"), trace_sha="0" * 64, study=STUDY,
            environment={}, versions={}, seed=1,
        )  # fmt: skip
        for t in store.trials(screened.id):
            trial = store.add_trial(alone.id, t.layout, is_baseline=t.is_baseline)
            store.start_trial(trial.id, {})
            store.finish_trial(trial.id, result=t.result or {}, wall_s=1.0)
        store.finish_run(alone.id, "done")
    heavy = ("numpy", "scipy", "pyarrow", "polars", "tarfile", "lz4", "ztune.databases.registry")
    code = (
        "import sys; from ztune.cli.main import ztune; "
        f"ztune(['recommend', '{alone.id}'], standalone_mode=False); "
        f"print('loaded', [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("missing", ["cpu", "kernel", "memory_bytes"])
def test_a_run_whose_environment_lacks_something_is_shown(missing: str) -> None:
    words = {"kernel": "6.1", "cpu": "a processor", "memory_bytes": "2048 MiB"}
    known = {**words, "memory_bytes": 2 << 30}
    _, run = stored(CLEAR, {key: value for key, value in known.items() if key != missing})
    said = ", ".join(text for key, text in words.items() if key != missing)
    assert f"machine     {said}\n" in told("show", run.id)


def test_what_screening_said_stands_beside_as_prediction() -> None:
    _, run = stored(CLEAR)
    answer = json.loads(told("recommend", run.id, "--json"))["recommendation"]
    data = next(r for r in answer["roles"] if r["role"] == "data")
    size = next(p for p in data["properties"] if p["name"] == "recordsize")
    assert (size["change"]["basis"], size["modelled"]["basis"]) == ("measured", "modelled")
    text = " ".join(told("recommend", run.id, "--why").split())
    assert "Modelled, by screening:" in text
    assert "Screening's prediction against the measurement" in text


@pytest.mark.parametrize("columns", ["80", "160"])
def test_the_first_row_says_why_it_is_not_the_one(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, run = stored(NONE)
    first = json.loads(told("recommend", run.id, "--json"))["recommendation"]["ranking"][0]
    assert not first["recommended"] and first["passed_over"] == "is not known to be better than the baseline"
    rows = told("recommend", run.id, "--why").splitlines()
    assert any(
        first["layout"] in row and "is not known to be better than the baseline" in row for row in rows
    )


def test_a_measured_run_is_asked_for_the_least_processor_time() -> None:
    least = {"base": 0.005, "8K": 0.009, "log device": 0.004, "8K, log device": 0.008}
    screened, run = stored(CLEAR, cpu=least, have=ev.WITH_LOG["have"])
    assert json.loads(told("recommend", run.id, "--json"))["recommended"]["layout"] == "8K"
    for words in (("--objective", "cpu"), ("--objective", "cpu,time")):
        asked = json.loads(told("recommend", run.id, "--json", *words))
        answer = asked["recommendation"]
        assert (asked["recommended"]["layout"], asked["goals"][0]) == ("log device", "cpu_all")
        assert (answer["layout_name"], answer["minimise"][0]) == ("log device", "cpu_all")
        assert [row["layout"] for row in answer["ranking"]] == sorted(least, key=least.__getitem__)
        assert "the least CPU per op with ZFS" in told("recommend", run.id, *words, "--why")
    again = told("apply", run.id, "--objective", "cpu", "--export", "json")
    assert "log device" in again
    with pytest.raises(InputError, match=r"layouts of run \w+ have no cpu: .* screen the trace again"):
        CliRunner().invoke(
            ztune,
            ["recommend", screened.id, "--objective", "cpu"],
            standalone_mode=False,
            catch_exceptions=False,
        )
    with pytest.raises(InputError, match="--within orders replays; a measured run has its own resolution"):
        CliRunner().invoke(
            ztune, ["recommend", run.id, "--within", "1%"], standalone_mode=False, catch_exceptions=False
        )


def test_what_no_trial_knows_is_not_minimised() -> None:
    _, run = stored(CLEAR)
    with Store.open() as store:
        trials = [
            replace(t, result={**(t.result or {}), "measure": {"seconds": 1.0}}) for t in store.trials(run.id)
        ]
    with pytest.raises(InputError, match=f"no trial of run {run.id} knows cpu, so it can't be minimised"):
        recommend(run, trials, Objective(minimise=("cpu",)))


def test_the_first_of_a_screening_says_so_too() -> None:
    flattered = with_settings(BASE, {"data.logbias": "throughput"}, "throughput")
    measure = ev.toy_measure(BASE)
    less = {**measure, "physical": {**measure["physical"], "write_bytes": 1e6}}
    trials = [ev.trial(BASE, 1, measure, baseline=True), ev.trial(flattered, 2, less)]
    found = recommend(ev.run(), trials)
    assert (found.layout_name, found.ranking[0].layout) == ("base", "throughput")
    assert found.ranking[0].passed_over == "a short replay flatters its logbias=throughput"
    assert "throughput comes first in the ranking, but a short replay flatters its" in found.verdict


def test_each_estimate_says_what_it_rests_on() -> None:
    screened, run = stored(CLEAR)

    def bases(of: list[Trial], **asked: Any) -> set[str]:
        return {e.basis for c in collect(of, **asked).layouts for e in c.estimates.values()}

    with Store.open() as store:
        assert bases(store.trials(screened.id)) == {"modelled"}
        assert bases(store.trials(run.id)) == {"measured"}
        assert bases(store.trials(run.id), basis="emulated") == {"emulated"}


def test_a_measured_run_without_a_result_has_a_report_all_the_same() -> None:
    _, run = stored(CLEAR)
    with Store.open() as store:
        lost = [replace(t, status="failed", error="no room", result=None) for t in store.trials(run.id)]
    page = html.render(run, lost, None)
    assert '<div class="name">No result</div>' in page and "no room" in page
    assert 'id="reasons"' not in page and 'id="commands"' not in page


def test_another_file_system_has_reasons_and_no_commands() -> None:
    _, run = stored(CLEAR)
    plain = with_settings(BASE, {"pool.tank.filesystem": "ext4"}, "ext4")
    with Store.open() as store:
        trials = [
            replace(t, layout=plain, layout_hash=plain.hash, layout_name="ext4") if t.layout == SMALL else t
            for t in store.trials(run.id)
        ]
    names = {t.arm: t.layout_name for t in trials}
    found = judge(run, trials, TrialOptions())
    assert found is not None
    made = replace(run, outcome=outcome(*found, "settled", names))
    page = html.render(made, trials, recommend(made, trials))
    assert '<div class="name">ext4</div>' in page
    assert 'id="reasons"' in page and 'id="commands"' not in page


def test_disks_over_time_are_drawn_or_said_to_be_unknown(home: Path) -> None:
    _, run = stored(CLEAR)
    with Store.open() as store:
        trials = store.trials(run.id)
    page = html.render(run, trials, recommend(run, trials))
    assert 'id="disks"' in page and "Not known: the probe series was off" in page
    assert 'id="processes"' not in page  # stored by a ztune that did not count them
    rows = SeriesRows()
    counters = ("reads", "read_bytes", "writes", "write_bytes", "flushes", "busy_s")
    columns = ["t", *(f"tank/data-0/0 {name}" for name in counters)]
    rows.add("disks", columns, [[0.0] * 7, [1.0, 5, 4096, 5, 8192, 2, 0.5], [2.0, 9, 8192, 9, 9999, 3, 0.6]])
    refs = tuple(rows.write(run.id, 1))
    told = {
        "by_process": [
            {
                **{"name": "postgres: <b>", "processes": 2, "user_s": 0.5, "system_s": 0.25},
                **{"read_calls": None, "write_calls": 1234, "read_bytes": 1, "write_bytes": 1},
                **{"voluntary_switches": 7, "involuntary_switches": 3},
            }
        ],
        "interrupts": {"nvme0q": 4711},
        "softirqs": None,
    }
    seen = [replace(t, series=refs, result={**(t.result or {}), "probes": {"cpu": told}}) for t in trials]
    page = html.render(run, seen, recommend(run, seen))
    assert "Not known: the probe series" not in page and page.count('class="series hue0" points') == 6
    assert "Queues and waits are not known" in page and "30%" in page
    assert "postgres: &lt;b&gt;" in page and "1,234" in page and "nvme0q 4,711" in page
    assert "the probe syscalls was off" in page
