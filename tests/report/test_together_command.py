"""``ztune recommend RUN RUN`` on stored screenings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evidence as ev
import pytest
from click.testing import CliRunner, Result

from ztune.advice.together import recommend_together
from ztune.advice.weights import JobWeight
from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.report import brief, source, together
from ztune.store import environment
from ztune.store.db import Store
from ztune.study import Layout, Study
from ztune.units import parse_size


@pytest.fixture(autouse=True)
def own_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def large_reads(layout: Layout) -> dict[str, Any]:
    """Return the measure of a job that likes large records, as a backup does."""
    measure = ev.toy_measure(layout)
    dataset = layout.dataset_of("data")
    assert dataset is not None
    measure["model"]["modelled_s"] = 120 * (131_072 / parse_size(dataset.properties["recordsize"])) ** 0.4
    return measure


def stored(trace: str, measure: Callable[[Layout], dict[str, Any]]) -> str:
    """Put a screening into the store and return its id."""
    study = Study.model_validate({k: v for k, v in ev.run().study.items() if k != "profiles"})
    with Store.open() as store:
        run = store.create_run(
            kind="screen", study=study, trace_path=Path(trace), trace_sha=trace * 8,
            environment=environment.collect(), versions={"ztune": "0.1.0"}, seed=1,
        )  # fmt: skip
        for number, layout in enumerate(ev.layouts()[:12], start=1):
            trial = store.add_trial(run.id, layout, is_baseline=number == 1)
            store.start_trial(trial.id, {})
            engine = {"version": "0.1.0", "openzfs": "2.3.2"}
            result = {"engine": engine, "measure": measure(layout), "warnings": []}
            store.finish_trial(trial.id, result=result, wall_s=2.0)
        store.finish_run(run.id, "done")
    return run.id


@pytest.fixture
def two(own_folder: None) -> tuple[str, str]:
    return stored("/oltp", ev.toy_measure), stored("/backup", large_reads)


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, list(words), standalone_mode=False)


def weights(oltp: str, backup: str, more: str = "") -> str:
    Path("weights.toml").write_text(
        f'[[job]]\nrun = "{oltp}"\nweight = 23\n\n[[job]]\nrun = "{backup}"\nweight = 1\n{more}'
    )
    return "weights.toml"


def test_one_layout_of_two_stored_screenings(two: tuple[str, str]) -> None:
    done = call("recommend", *two, "--why")
    text = " ".join(done.output.split())
    assert "Where jobs want different things" in text
    assert all(run in text for run in two)
    assert text.rindex("What to set for each role") < text.index("zfs set recordsize=")
    commands = json.loads(call("recommend", *two, "--json").stdout)["commands"]
    assert commands and all(" sync=standard " in line and " checksum=on " in line for line in commands)
    assert "leave out sync=standard where sync=always" in text


def test_weights_from_a_file_decide(two: tuple[str, str]) -> None:
    equal = json.loads(call("recommend", *two, "--json").stdout)
    oltp = json.loads(call("recommend", "--weights", weights(*two), "--json").stdout)
    backup = json.loads(call("recommend", "--weights", weights(*reversed(two)), "--json").stdout)
    assert [j["share"] for j in equal["jobs"]] == [0.5, 0.5]
    assert oltp["roles"][0]["properties"]["recordsize"] == "8K"
    assert backup["roles"][0]["properties"]["recordsize"] == "1M"
    # Each was tried alone, and never together.
    assert oltp["changes"] == {"data.recordsize": "8K", "data.compression": "zstd-3"}
    assert {j["run"]: j["evidence"] for j in oltp["jobs"]} == dict.fromkeys(two, "combined")


def test_one_run_answers_as_before(two: tuple[str, str]) -> None:
    got = json.loads(call("recommend", two[0], "--json").stdout)
    assert got["subject"]["run"] == two[0]
    assert "jobs" not in got


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "nosuchrun"], 'there is no run "nosuchrun"'),
        (["RUN", "RUN"], "is named twice"),
        (["RUN", "RUN2", "--script", "x.sh"], "--script goes with one run"),
        (["RUN", "--weights", "weights.toml"], "weights.toml names the runs; leave out"),
        (["--weights", "unknown.toml"], 'unknown.toml: there is no run "nosuchrun"'),
        (["--weights", "none.toml"], "none.toml can't be read"),
    ],
)
def test_bad_input_is_one_sentence(two: tuple[str, str], words: list[str], message: str) -> None:
    weights(*two)
    Path("unknown.toml").write_text(Path("weights.toml").read_text().replace(two[1], "nosuchrun"))
    done = call("recommend", *({"RUN": two[0], "RUN2": two[1]}.get(w, w) for w in words))
    assert isinstance(done.exception, InputError)
    assert done.exception.exit_code == 2
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.stdout == ""


def test_the_first_screen_of_several_jobs(two: tuple[str, str]) -> None:
    done = call("recommend", *two)
    assert done.exception is None, done.exception
    lines = done.stdout.splitlines()
    assert len(lines) <= 23 and all(len(line) <= 80 for line in lines), done.stdout
    text = " ".join(done.stdout.split())
    assert text.startswith("2 jobs: one layout for all")
    assert all(f"({run})" in text for run in two) and "Modelled time is the larger of" in text
    assert "Apply zfs set " in text and f"More ztune recommend {' '.join(two)} --why" in text
    page = call("recommend", *two, "--markdown").stdout
    assert page.startswith("### 2 jobs") and all(f"| {run} |" in page for run in two)
    again = call("recommend", *two, "--have", "slog=nvme").stdout
    assert "--have slog=nvme --why" in " ".join(again.split())


def test_many_jobs_have_no_room_and_are_counted(two: tuple[str, str]) -> None:
    joint = recommend_together([source.evidence(run).weighed(JobWeight(run, 1.0, False)) for run in two])
    job = joint.jobs[0]
    many = joint.model_copy(update={"jobs": [job.model_copy(update={"share": n / 66}) for n in range(1, 12)]})
    shown = [line.plain for line in brief.lines(together.brief(many, ["--weights", "jobs.toml"]))]
    assert len(shown) <= 23 and any("and 5 more: --why" in line for line in shown)
