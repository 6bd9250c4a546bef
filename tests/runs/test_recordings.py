"""Layouts that change the job itself: each is replayed on the recording that belongs to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from invoked import invoke
from synthetic_traces import STAND_IN, make_trace

from ztune.analysis.results import collect
from ztune.databases.workload import Workload
from ztune.errors import InputError
from ztune.places import engine as engines
from ztune.places.rerun import rerun
from ztune.results import export
from ztune.runs import recordings
from ztune.runs.asked import study_of_jobs, task
from ztune.runs.plan import RunJob
from ztune.runs.recordings import completed, jobs, key_of, varied
from ztune.runs.space import first_round
from ztune.store.db import Store
from ztune.study import DurabilityClass, Study, ready
from ztune.study.durability import judge
from ztune.study.layout import with_settings
from ztune.study.loader import load_study
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.writer import TraceWriter

pytestmark = pytest.mark.usefixtures("home")

STUDY = """
name = "load"
workload = "sqlite"
cross = [["workload.clients", "data.recordsize"]]

[parameters]
clients = 1
size = "8M"

[layout]
[[layout.pool]]
name = "tank"
[[layout.pool.vdev]]
profile = "ssd-sata"
[[layout.dataset]]
name = "tank/data"
roles = ["data", "wal", "temp"]

[axes]
"workload.clients" = [1, 8]
"data.recordsize" = ["16K", "64K"]
"""
PARAMETERS = {"clients": 1, "size": "8M"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "load.toml").write_text(STUDY)
    return tmp_path / "load.toml"


def wanted(file: Path) -> Study:
    return study_of_jobs(load_study(file), "sqlite", PARAMETERS, None, None)


def record(file: Path, *operations: int) -> list[Trace]:
    """Make what the jobs of the study would have recorded: as many writes as operations."""
    study = wanted(file)
    made = []
    for job, count in zip(jobs(study, "sqlite", PARAMETERS, first_round(study)), operations, strict=False):
        info = WorkloadInfo(**{
            **job.workload.info(), "result": {"operations": count, "unit": "transaction"},
        })  # fmt: skip
        made.append(make_trace(job.path, ("data", "wal"), writes=count, workload=info))
    return made


@pytest.fixture(scope="module")
def screened_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trace]]:
    """A state directory in which the study was screened once, on recordings of both jobs."""
    folder = tmp_path_factory.mktemp("screened")
    home, file = folder / "home", folder / "load.toml"
    file.write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZTUNE_HOME", str(home))
        patch.setenv("ZTUNE_ENGINE", str(STAND_IN))
        made = record(file, 40, 160)
        assert invoke("screen", str(made[0].path), "--study", str(file), "--budget", "6")[0] == 0
    return home, made


@pytest.fixture
def screened(
    home: Path,
    stand_in_engine: Path,
    screened_once: tuple[Path, list[Trace]],
    monkeypatch: pytest.MonkeyPatch,
) -> list[Trace]:
    """The recordings of that screening, whose state the test looks at."""
    monkeypatch.setenv("ZTUNE_HOME", str(screened_once[0]))
    return screened_once[1]


def test_a_value_that_the_base_has_is_the_base(file: Path) -> None:
    study = wanted(file)
    assert study.layout.workload == {"clients": "1"}
    names = [layout.name for layout in first_round(study)]
    assert names[0] == "base" and "workload.clients=1" not in names
    assert {layout.workload["clients"] for layout in first_round(study)} == {"1", "8"}
    # 1 | 8 clients × 16K | 64K | 128K
    assert len(first_round(study)) == 6 and varied(study) == ["workload.clients"]


def test_values_are_written_as_the_workload_writes_them(file: Path) -> None:
    file.write_text(
        STUDY.replace("[1, 8]", '[1, 8]\n"workload.size" = ["8192K", "uncached"]').replace("cross", "#")
    )
    study = wanted(file)
    assert study.axes["workload.size"] == ("8M", "uncached")
    assert study.layout.workload == {"clients": "1", "size": "8M"}


def test_each_job_has_its_folder_and_the_same_job_the_same(file: Path) -> None:
    study = wanted(file)
    found = jobs(study, "sqlite", PARAMETERS, first_round(study))
    assert [job.words for job in found] == ["workload.clients=1", "workload.clients=8"]
    assert len({job.path for job in found}) == 2 and not any(job.there for job in found)
    assert [job.path for job in jobs(study, "sqlite", PARAMETERS, first_round(study))] == [
        job.path for job in found
    ]
    assert found[0].key == key_of(study.layout)
    assert found[1].workload.params.clients == 8


def test_layouts_are_replayed_on_their_recordings_and_compared_per_operation(
    file: Path, stand_in_engine: Path
) -> None:
    base, other = record(file, 40, 160)
    code, out, err = invoke("screen", str(base.path), "--study", str(file), "--json", "--budget", "6")
    assert code == 0, err
    entries = json.loads(out)["layouts"]
    by_clients = {e["layout"]: e["trace"]["sha"] for e in entries}
    assert {sha for name, sha in by_clients.items() if "clients=8" in name} == {other.sha}
    assert {sha for name, sha in by_clients.items() if "clients=8" not in name} == {base.sha}
    with Store.open() as store:
        run = store.run()
        trials = store.trials(run.id)
        assert run.trace_sha == base.sha
        assert set(store.recordings(run.id)) == {str(base.path), str(other.path)}
    found = {c.name: c for c in collect(trials).layouts}
    # JSON has the recordings' totals, and beside them what ranks the layouts.
    of_one = {e["layout"]: (e["metrics"]["written"], e["per_operation"]) for e in entries}
    (total, mine), (also, theirs) = of_one["base"], of_one["workload.clients=8"]
    assert mine["written"] == total / 40 and theirs["written"] == also / 160 and "allocated" not in mine
    one, eight = found["base"], found["workload.clients=8"]
    assert (one.work, eight.work) == (40, 160) and one.per_operation
    # The stand-in's time is the same for both, so that of one operation is a quarter; space is not divided.
    assert eight.value("modelled_s") == pytest.approx((one.value("modelled_s") or 0) / 4)
    assert eight.value("allocated") == one.value("allocated")
    assert one.metric("modelled_s").label == "modelled time per op"
    _, text, _ = invoke("show", run.id)
    assert "time/op" in text and "of one transaction" in " ".join(text.split())


def test_a_trial_is_repeated_on_its_own_recording(screened: list[Trace]) -> None:
    base, other = screened
    with Store.open() as store:
        run = store.run()
        trial = next(t for t in store.trials(run.id) if t.trace_sha == other.sha)
    code, out, err = invoke("show", run.id, "--trial", str(trial.number), "--json")
    assert code == 0, err
    written = json.loads(out)
    again = rerun(written, other, engines.check()).result
    assert again is not None and again["measure"] == written["trial"]["result"]["measure"]
    with pytest.raises(InputError, match=rf"is not the trace of trial {trial.number} of run {run.id}"):
        rerun(written, base, engines.check())
    assert invoke("show", run.id, "--trial", str(trial.number), "--rerun")[0] == 0


def test_what_takes_a_missing_recording_is_left_out_with_what_makes_it(
    file: Path, stand_in_engine: Path
) -> None:
    (base,) = record(file, 40)
    code, out, err = invoke("screen", str(base.path), "--study", str(file), "--json")
    assert code == 0, err
    assert "Left out, since there is no recording of that job: workload.clients=8." in err
    assert f"`ztune tune sqlite --study {file}` makes it, and screens all of the study." in err
    found = json.loads(out)
    assert {one["changes"].get("data.recordsize") for one in found["layouts"]} == {None, "16K", "64K"}
    assert not any("workload.clients" in one["changes"] for one in found["layouts"])
    assert any("no recording of that job" in text for text in found["warnings"])


def test_layouts_and_crosses_that_take_a_missing_recording_are_left_out(
    file: Path, stand_in_engine: Path
) -> None:
    more = """
[[layouts]]
name = "both"
set = { "data.recordsize" = "64K", "workload.reads" = 9 }
[[layouts]]
name = "stays"
set = { "data.recordsize" = "32K", "data.compression" = "off" }
"""
    file.write_text(STUDY.replace("[1, 8]", '[1, 8]\n"data.logbias" = ["latency", "throughput"]') + more)
    base = record(file, 40)[0]
    study = wanted(file)
    found = recordings.replayable(study, base)
    assert [one.name for one in found.layouts] == ["stays"]
    assert found.axes.keys() == {"workload.clients", "data.recordsize", "data.logbias"}
    # What stays of the cross was recorded.
    assert found.axes["workload.clients"] == ("1",) and found.cross == study.cross
    assert 'workload.clients=8; layout "both"' in found.notes[-1]


@pytest.mark.parametrize(("flag", "value"), [("--role", "/db/*=data"), ("--windows", "1x5s")])
def test_what_is_of_a_recording_goes_with_one_that_is_named(
    file: Path, stand_in_engine: Path, flag: str, value: str
) -> None:
    code, _, err = invoke("screen", "--study", str(file), flag, value)
    assert code == 2 and err.startswith(f"ztune: {flag} ") and "of a recording; name its TRACE" in err


def test_a_study_of_nothing_but_jobs_that_were_not_recorded_is_refused(
    file: Path, trace: Trace, stand_in_engine: Path
) -> None:
    file.write_text(STUDY.replace('"data.recordsize" = ["16K", "64K"]', "").replace("cross", "#"))
    (base,) = record(file, 40)
    code, _, err = invoke("screen", str(base.path), "--study", str(file))
    assert code == 2 and 'study "load" leaves nothing to try' in err and "`ztune tune sqlite --study" in err
    code, _, err = invoke("screen", str(trace.path), "--study", str(file))
    assert code == 2 and "is of no workload that ztune could record again" in err
    with Store.open() as store:
        assert store.runs() == []


def test_of_a_trace_of_nobody_knows_what_the_rest_is_screened(
    file: Path, trace: Trace, stand_in_engine: Path
) -> None:
    code, _, err = invoke("screen", str(trace.path), "--study", str(file))
    assert code == 0 and "workload.clients=1, 8. " in err and "no workload that ztune could record" in err


def test_a_run_that_was_cut_goes_on_with_all_recordings(
    file: Path, stand_in_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, other = record(file, 40, 160)
    monkeypatch.setenv("STAND_IN", 'crash="recordsize": "65536"')
    assert invoke("screen", str(base.path), "--study", str(file), "--budget", "6")[0] == 1
    monkeypatch.setenv("STAND_IN", "")
    code, out, err = invoke("screen", "--resume", "last", "--json")
    assert code == 0, err
    assert [e["status"] for e in json.loads(out)["layouts"]] == ["ok"] * 6
    # Also where a recording moved meanwhile: one sentence, and the run stays as it was.
    other.path.rename(other.path.with_suffix(".gone"))
    with Store.open() as store:
        last = store.run().id
    code, _, err = invoke("screen", "--resume", last)
    assert code == 2 and other.path.name in err


def test_further_rounds_keep_to_what_was_recorded(file: Path, stand_in_engine: Path) -> None:
    file.write_text(STUDY.replace("cross", "#").replace("[1, 8]", '[1, 8]\n"workload.reads" = [4, 9]'))
    base, *_ = record(file, 40, 160, 80)
    code, out, err = invoke("screen", str(base.path), "--study", str(file), "--json")
    assert code == 0, err
    changes = [e["changes"] for e in json.loads(out)["layouts"]]
    assert {"data.recordsize": "16K", "workload.clients": "8"} in changes
    assert not any({"workload.clients", "workload.reads"} <= set(one) for one in changes)


def test_what_a_parameter_means_for_durability_counts(file: Path) -> None:
    axis = '[1, 8]\n"workload.synchronous" = ["full", "normal", "off"]'
    file.write_text(STUDY.replace("cross", "#").replace("[1, 8]", axis))

    def classes(study: Study) -> list[DurabilityClass]:
        values = ("full", "normal", "off")
        return [judge(with_settings(study.layout, {"workload.synchronous": v})).klass for v in values]

    expected = [DurabilityClass.NOTHING, DurabilityClass.LAST_SECONDS, DurabilityClass.CORRUPT]
    assert classes(wanted(file)) == expected
    # A base that is weaker itself does not weaken the others.
    weak = study_of_jobs(load_study(file), "sqlite", {**PARAMETERS, "synchronous": "normal"}, None, None)
    assert judge(weak.layout).klass is DurabilityClass.LAST_SECONDS
    assert classes(weak) == expected


def test_a_setting_that_the_workload_makes_is_the_bases() -> None:
    found = completed(ready.find("postgres-load"), "postgres-oltp", {"clients": 1}, settings=True)
    assert found.layout.database == {"full_page_writes": "on"}
    keys = {key_of(layout) for layout in first_round(found)}
    assert len(keys) == 4


def test_trials_run_the_job_of_their_layout(file: Path) -> None:
    asked = task(str(file), {}, (), None, None, native=True)
    eight = next(one for one in asked.layouts if one.workload["clients"] == "8")
    assert (
        asked.job.params["clients"] == 1
        and asked.job.under(asked.study.layout, asked.study.layout).params["clients"] == 1
    )
    job = asked.job.under(eight, asked.study.layout)
    assert job.params["clients"] == 8 and job.name == asked.job.name and job.version == asked.job.version
    assert {**job.params, "clients": 1} == asked.job.params
    plain = RunJob("sqlite", "x", {})
    assert plain.under(ready.find("sqlite").layout, ready.find("sqlite").layout) is plain


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"workload.client" = [1]', "has no parameter 'client'; did you mean 'clients'?"),
        ('"workload.clients" = [1, 0]', "parameter 'clients': input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_parameter_is_one_sentence_with_its_place(file: Path, line: str, said: str) -> None:
    file.write_text(STUDY.replace('"workload.clients" = [1, 8]', line).replace("cross", "#"))
    number = 1 + file.read_text().splitlines().index(line)
    with pytest.raises(InputError) as error:
        load_study(file)
    assert str(error.value).startswith(f'{file}:{number}: axes."workload.client') and said in str(error.value)


def test_a_wrong_parameter_of_the_base_is_said_where_it_stands(file: Path) -> None:
    file.write_text(STUDY.replace("[parameters]", "[parameters]\nduration = 5"))
    number = 1 + file.read_text().splitlines().index("duration = 5")
    with pytest.raises(
        InputError, match=rf"^{file}:{number}: parameters.duration: .*no parameter 'duration'"
    ):
        load_study(file)


@pytest.mark.usefixtures("needs_postgres")
def test_a_wrong_setting_says_which_layout_has_it(file: Path) -> None:
    text = STUDY.replace('workload = "sqlite"', 'workload = "postgres-oltp"').replace("cross", "#", 1)
    text = text.replace('"workload.clients" = [1, 8]', '"database.fsync" = ["on", "maybe"]')
    file.write_text(text)
    study = study_of_jobs(load_study(file), "postgres-oltp", {"clients": 1}, None, None)
    with pytest.raises(
        InputError, match=r'^layout "database.fsync=maybe" of study "load": .*fsync is .maybe.'
    ):
        jobs(study, "postgres-oltp", {"clients": 1}, first_round(study))


def test_a_cross_has_a_bound(file: Path) -> None:
    many = ", ".join(map(str, range(1, 201)))
    text = STUDY.replace('"workload.clients" = [1, 8]', f'"workload.clients" = [{many}]\n"arc" = [{many}]')
    text = text.replace("cross = [", 'cross = [["arc", "workload.clients"], ', 1)
    file.write_text(text)
    with pytest.raises(
        InputError, match=r"cross\[0\]: it makes 40,000 combinations, and 10,000 are the most"
    ):
        load_study(file)


def test_a_wrong_parameter_of_a_named_layout_is_found_too(file: Path) -> None:
    more = '\n[[layouts]]\nname = "x"\n[layouts.set]\n"workload.reads" = 3\n"workload.rate" = "fast"\n'
    file.write_text(STUDY + more)
    with pytest.raises(InputError, match=r'layouts\[0\].set."workload.rate": .*parameter .rate.'):
        load_study(file)


def test_parameters_of_no_workload_are_refused(file: Path) -> None:
    file.write_text(STUDY.replace('workload = "sqlite"', "").replace("cross", "#"))
    with pytest.raises(InputError, match="no workload is named, whose parameter that could be"):
        load_study(file)
    file.write_text(STUDY.replace("[axes]", "[layout.workload]\nclients = 4\n[axes]"))
    with pytest.raises(InputError, match=r"layout.workload: the base's parameters stand in \[parameters\]"):
        load_study(file)


def test_recordings_of_a_run(screened: list[Trace]) -> None:
    _, other = screened
    with Store.open() as store:
        found = recordings.of_run(store, store.run())
        assert [trace.sha for trace in found.values()] == [other.sha]


@pytest.mark.usefixtures("screened")
def test_a_load_that_won_is_recommended_as_such(tmp_path: Path) -> None:
    code, out, err = invoke("recommend", "last", "--json")
    assert code == 0, err
    found = json.loads(out)
    (load,) = [p for p in found["pools"] if p["setting"] == "workload.clients"]
    assert (load["subject"], load["value"]) == ("clients of the load", "8")
    assert "set it in the load" in load["reason"] and load["change"]["verdict"] == "better"
    assert found["per_operation"] == "transaction"
    (cost,) = [c for c in found["costs"] if c["label"] == "Bytes written per transaction"]
    with Store.open() as store:
        trial = next(t for t in store.trials(store.run().id) if t.layout_hash == found["layout_hash"])
    assert cost["value"] == pytest.approx(trial.measure["physical"]["write_bytes"] / 160)
    # Never as a property of ZFS.
    exported = {form: invoke("apply", "last", "--export", form) for form in ("sh", "ansible", "json")}
    assert {code for code, _, _ in exported.values()} == {0}
    for form in ("sh", "ansible"):
        done = [line for line in exported[form][1].splitlines() if not line.startswith("#")]
        assert done and not any("clients" in line for line in done)
    assert "# Left to you, in what the load does: clients = 8." in exported["ansible"][1]
    data = json.loads(exported["json"][1])
    assert data["workload"] == {"clients": "8"} and not any("clients" in line for line in data["create"])
    assert invoke("report", "last", "--out", str(tmp_path / "r.html"))[0] == 0
    page = (tmp_path / "r.html").read_text()
    assert "Modelled time per op" in page and "are of one transaction" in page


@pytest.mark.usefixtures("screened")
def test_rows_of_layouts_with_jobs_of_their_own() -> None:
    with Store.open() as store:
        rows = export.rows(store, [store.run()])
    by_clients = {row.changes: row for row in rows}
    eight = by_clients["workload.clients=8"]
    assert eight.settings["workload.clients"] == "8"
    assert eight.parameters == by_clients["base"].parameters, (
        "the job's own are the same in all rows of a run"
    )
    time = eight.named("modelled_s")
    assert time is not None and time.meaning == "modelled time per op"
    one = by_clients["base"].named("modelled_s")
    assert one is not None and time.value == pytest.approx(one.value / 4)


@pytest.mark.usefixtures("screened")
def test_what_a_replay_needed_is_of_its_whole_job() -> None:
    with Store.open() as store:
        trials = store.trials(store.run().id)
    found = {c.name: c for c in collect(trials).layouts}
    one, eight = found["base"].need, found["workload.clients=8"].need
    assert one is not None and eight is not None
    # The stand-in's engine takes as long for both jobs; an operation of the larger one has a quarter of it.
    assert one.disks == pytest.approx(eight.disks) == pytest.approx(trials[0].measure["model"]["modelled_s"])
    assert eight.both == pytest.approx(one.both / 4) and eight.both_text().endswith(" per op")


def test_jobs_that_tell_no_operations_stand_side_by_side(file: Path, stand_in_engine: Path) -> None:
    base, other = record(file, 40, 160)
    for trace in (base, other):
        manifest = json.loads((trace.path / "trace.json").read_text())
        manifest["workload"]["result"] = {}
        (trace.path / "trace.json").write_text(json.dumps(manifest))
    invoke("screen", str(base.path), "--study", str(file), "--budget", "6")
    code, out, err = invoke("recommend", "last", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["per_operation"] == ""
    assert any("not all say how many operations" in text for text in found["warnings"])


def test_a_size_that_a_layout_makes_relative_is_relative_to_the_bases_arc(file: Path) -> None:
    text = STUDY.replace("cross", "#").replace("[1, 8]", '[1, 8]\n"workload.size" = ["cached"]')
    file.write_text(text.replace("[layout]", '[layout]\narc = "256M"'))
    study = wanted(file)
    found = jobs(study, "sqlite", PARAMETERS, first_round(study))
    (cached,) = [job for job in found if "cached" in job.words]
    recorded = found[0].workload.info()["parameters"]  # as a recording of the base says them
    again = jobs(study, "sqlite", recorded, first_round(study))
    assert {job.path for job in again} == {job.path for job in found}
    assert cached.workload.info()["parameters"]["size"] == "128M"
    asked = task(str(file), {}, (), None, None, native=True)
    layout = next(one for one in asked.layouts if one.workload["size"] == "cached")
    assert asked.job.under(layout, asked.study.layout).params["size"] == "128M"


def test_parameters_that_weaken_durability_together_do_so_in_a_layout(file: Path) -> None:
    text = STUDY.replace(
        '["workload.clients", "data.recordsize"]', '["workload.journal_mode", "workload.synchronous"]'
    )
    text = text.replace(
        '"workload.clients" = [1, 8]',
        '"workload.journal_mode" = ["wal", "truncate"]\n"workload.synchronous" = ["full", "normal"]',
    )
    file.write_text(text)
    found = {
        (one.workload["journal_mode"], one.workload["synchronous"]): judge(one).klass
        for one in first_round(wanted(file))
    }
    assert found == {
        ("wal", "full"): DurabilityClass.NOTHING,
        ("truncate", "full"): DurabilityClass.NOTHING,
        ("wal", "normal"): DurabilityClass.LAST_SECONDS,
        ("truncate", "normal"): DurabilityClass.CORRUPT,
    }


def test_a_recording_of_another_job_is_not_the_bases(
    file: Path, tmp_path: Path, stand_in_engine: Path
) -> None:
    text = STUDY.replace("cross", "#").replace("[1, 8]", '[1]\n"database.synchronous" = ["full", "normal"]')
    file.write_text(text)
    base, other = record(file, 40, 80)
    code, _, err = invoke("screen", str(other.path), "--study", str(file))
    assert code == 2 and "is the recording of database.synchronous=normal" in err and str(base.path) in err
    # Nor one whose parameters say otherwise than the base layout.
    file.write_text(text.replace("[axes]", '[layout.database]\nsynchronous = "extra"\n[axes]'))
    info = base.manifest.workload
    elsewhere = make_trace(tmp_path / "mine.trace", ("data", "wal"), workload=info)
    code, _, err = invoke("screen", str(elsewhere.path), "--study", str(file))
    assert code == 2 and "was recorded with synchronous=full" in err and "has extra" in err


def test_results_are_of_one_operation_for_all_of_a_run_or_for_none(file: Path, stand_in_engine: Path) -> None:
    base, _ = record(file, 40, 0)
    invoke("screen", str(base.path), "--study", str(file), "--budget", "6")
    with Store.open() as store:
        rows = export.rows(store, [store.run()])
    assert {m.meaning for row in rows for m in row.metrics if m.name == "written"} == {"bytes written"}


def test_totals_of_different_jobs_are_said_beside_the_ranking(
    file: Path, tmp_path: Path, stand_in_engine: Path
) -> None:
    base, _ = record(file, 40, 0)
    invoke("screen", str(base.path), "--study", str(file), "--budget", "6")
    page = tmp_path / "r.html"
    assert invoke("report", "last", "--out", str(page))[0] == 0
    shown = [invoke(*words)[1] for words in (("show", "last"), ("recommend", "last", "--why"))]
    for text in (*shown, page.read_text()):
        assert "these are totals of different jobs. A job that did less looks better" in " ".join(
            text.split()
        )


def test_a_recording_that_was_cut_is_made_anew_also_where_it_was_recovered(file: Path) -> None:
    job = jobs(wanted(file), "sqlite", PARAMETERS, [])[0]
    partial = job.path.with_name(f"{job.path.name}.partial")

    def whole(_workload: Workload, path: Path) -> Trace:
        return make_trace(path, ("data", "wal"), workload=WorkloadInfo(**job.workload.info()))

    make_trace(job.path, ("data",), workload=None)  # as `ztune trace recover` makes it
    partial.mkdir()
    assert not job.there
    assert job.trace(whole).manifest.workload is not None and job.there
    assert not partial.exists()


def test_a_recording_that_is_under_way_is_left_alone(file: Path) -> None:
    job = jobs(wanted(file), "sqlite", PARAMETERS, [])[0]
    with TraceWriter(job.path) as writer:
        with pytest.raises(InputError, match="is being recorded just now"):
            job.trace(lambda *_: pytest.fail("recorded twice"))
        assert writer.partial.is_dir()
        with pytest.raises(InputError, match="is being recorded just now"):
            TraceWriter(job.path)
    writer.partial.mkdir()
    with pytest.raises(InputError, match=r"is of a recording that was cut; `ztune trace recover .* makes"):
        TraceWriter(job.path)
    writer.partial.rmdir()
    writer.partial.touch()
    with pytest.raises(InputError, match=r"\.partial is in the way; remove it or choose another name"):
        TraceWriter(job.path)


def test_a_recording_that_another_process_ends_meanwhile_stays(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs(wanted(file), "sqlite", PARAMETERS, [])[0]
    job.path.with_name(f"{job.path.name}.partial").mkdir()

    really = shutil.rmtree

    def remove(folder: Path, ignore_errors: bool = False) -> None:
        really(folder, ignore_errors)
        if folder.suffix == ".partial" and not job.path.exists():
            make_trace(job.path, ("data",), workload=WorkloadInfo(**job.workload.info()))

    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(InputError, match="exists already"):
        job.trace(lambda _, path: Trace.open(TraceWriter(path).path))
    assert job.there
