"""``ztune studies``: what is recorded, replayed, kept and shown; with a stand-in engine."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke
from synthetic_traces import STAND_IN, make_trace

from ztune import paths
from ztune.claims import found as findings
from ztune.claims import studies, study_sheets, thumb
from ztune.claims.found import EndRatio, MeasuredEnd
from ztune.cli import studies as command
from ztune.databases.workload import Workload
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.store.db import Store
from ztune.study.layout import with_settings
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace

LAYOUT = """
arc = "64M"

[[layout.pool]]
name = "tank"

[[layout.pool.vdev]]
profile = "hdd-7200"

[[layout.dataset]]
name = "tank/data"
roles = ["data"]

[[layout.dataset]]
name = "tank/wal"
roles = ["wal"]
"""
PUBLISHED = """
title = "Somebody's <b>"
year = 2020
database = "fio"
system = "a machine"
workload = "fio"
study = "mine"
conclusion = "Records of 16K are best."

[[table]]
name = "time"
quantity = "time of the job"
unit = "s"
metric = "time"
axes = ["data.recordsize"]
base = "128K"
figures = { "16K" = 50, "128K" = 100, "1M" = 400 }

[[table]]
name = "interrupts"
quantity = "interrupts"
unit = "count"
axes = ["data.recordsize"]
figures = { "128K" = 7 }
"""
READY = f"""
name = "mine"
workload = "fio"

[parameters]
numjobs = 2

[layout]
name = "defaults"
{LAYOUT}
[[layouts]]
name = "1 small records"
set = {{ "data.recordsize" = "8K" }}

[[layouts]]
name = "2 txg 1 s"
set = {{ "data.recordsize" = "8K", "tunable.zfs_txg_timeout" = 1 }}

[[layouts]]
name = "2 txg 30 s"
set = {{ "data.recordsize" = "8K", "tunable.zfs_txg_timeout" = 30 }}
"""


class Recorder:
    """Stands for what records a workload: notes what it was asked, and leaves a small trace."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error: ZtuneError | None = None

    def __call__(self, workload: Workload, out: Path) -> Trace:
        self.asked.append(workload.params.resolved())
        if self.error is not None:
            raise self.error
        return make_trace(out, workload=WorkloadInfo(**workload.info()))


def stand_in(home: Path, patch: pytest.MonkeyPatch) -> Recorder:
    """Write the study into a state directory, and have a recorder stand in for the real one."""
    (home / "studies/published").mkdir(parents=True, exist_ok=True)
    (home / "studies/published/mine.toml").write_text(PUBLISHED)
    (home / "studies/mine.toml").write_text(READY)
    found = Recorder()
    patch.setattr(command, "_record", found)
    patch.setattr("ztune.databases.fio.onhost.load.Fio.check", lambda _: "fio-3.33")
    return found


@pytest.fixture(autouse=True)
def recorder(home: Path, stand_in_engine: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return stand_in(home, monkeypatch)


@pytest.fixture(scope="module")
def swept_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory in which the study was run once, for those that only look at what came of it."""
    home = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZTUNE_HOME", str(home))
        patch.setenv("ZTUNE_ENGINE", str(STAND_IN))
        stand_in(home, patch)
        assert ran()["run"] == 16
    return home


@pytest.fixture
def swept(recorder: Recorder, home: Path, swept_once: Path) -> None:
    """A copy of it: the test's own."""
    shutil.copytree(swept_once, home, dirs_exist_ok=True)


def ran(*args: str, code: int = 0) -> dict[str, Any]:
    ended, out, err = invoke("studies", "run", "mine", *args, "--json")
    assert ended == code, err
    (answer,) = json.loads(out)
    assert isinstance(answer, dict)
    return answer


def mine() -> tuple[findings.FoundStudies, findings.FoundStudy]:
    with Store.open() as store:
        found = findings.read(store)
    one = found.study("mine")
    assert one is not None
    return found, one


def runs() -> list[tuple[str, str, int]]:
    with Store.open() as store:
        return [(r.id, r.status, len(store.trials(r.id))) for r in store.runs()]


def test_the_layouts_of_a_study() -> None:
    study = studies.find("mine")
    # The base has a published figure, so it is not asked for again.
    assert [each.name for each in study.layouts] == [
        "time/16K", "time/128K", "time/1M", "interrupts/128K",
        "mine: 1 small records", "mine: 2 txg 1 s", "mine: 2 txg 30 s",
    ]  # fmt: skip
    assert {"oltp", "mongo-restore", "ldap-import", "orientdb-import", "orientdb-graph"} < set(
        studies.names()
    )
    assert "openzfs-postgresql" not in studies.names()


def test_a_study_is_recorded_once_and_each_layout_replayed_once(recorder: Recorder) -> None:
    said = ran()
    # Seven layouts of its own, and nine record sizes, of which 8K, 16K, 128K and 1M are among them.
    assert (said["layouts"], said["run"], said["not_run"]) == (16, 16, [])
    assert "mine: 7 layouts, and 9 record sizes for each job" in invoke("studies", "run", "mine")[2]
    assert [p["numjobs"] for p in recorder.asked] == [2]
    trials = sum(count for *_, count in runs())
    assert trials == len(set(said["trials"].values())) == 11
    assert said["trials"]["time/128K"] == said["trials"]["interrupts/128K"]
    assert ran() == said and sum(count for *_, count in runs()) == trials and len(recorder.asked) == 1
    with Store.open() as store:
        for name, cited in said["trials"].items():
            run, _, number = cited.rpartition("/")
            (trial,) = (t for t in store.trials(run) if str(t.number) == number)
            assert trial.ok and trial.layout.profiles() == ("hdd-7200",) and trial.layout.arc == 64 << 20
            if name == "time/1M":
                assert trial.layout.settings()["data.recordsize"] == "1M"


@pytest.mark.usefixtures("swept")
def test_published_and_ours_are_ratios_to_the_same_row() -> None:
    _, one = mine()
    study = studies.find("mine")
    table, interrupts = study_sheets.published(study.publication, one)
    assert table.base == "128K" and [row.published for row in table.rows] == [0.5, 1.0, 4.0]
    # The stand-in's times: 10 s at 16K, 25 s at 128K, 40 s at 1M.
    assert [row.ours["modelled_s"] for row in table.rows] == [0.4, 1.0, 1.6]
    assert interrupts.main is None
    said = study_sheets.finding(study.publication, one)
    assert "Published best of time: 16K, ×0.50 of 128K." in said
    assert "Here least modelled time: 16K, ×0.40 of 128K. Most: 1M, ×1.60 of 128K." in said
    (own,) = study_sheets.unpublished(study.publication, one)
    assert [row.name for row in own.rows] == ["1 small records", "2 txg 1 s", "2 txg 30 s"]
    assert own.base == "time/128K" and own.rows[0].ours["modelled_s"] == 0.6
    counts = study_sheets.count_sheet(one, ["time/16K"])
    assert counts.rows[0][1] == "10.0 s" and counts.head[7] == "read-modify-write reads"


def test_what_was_cut_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Store.finish_trial
    calls: list[int] = []

    def cut(self: Store, *args: Any, **kwargs: Any) -> Any:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return finish(self, *args, **kwargs)

    monkeypatch.setattr(Store, "finish_trial", cut)
    code, out, err = invoke("studies", "run", "mine", "--jobs", "1")
    assert code == 130 and not out and "the same command goes on" in err
    # What is done is known already: a base alone has nothing beside it, two layouts have.
    assert sum(bool(each.trial) for each in mine()[1].layouts) >= 1
    ((run, status, _),) = runs()
    assert status == "interrupted" and mine()[0].sweeps == ()
    monkeypatch.setattr(Store, "finish_trial", finish)
    assert ran()["run"] == 16
    assert runs()[0][:2] == (run, "done") and sum(count for *_, count in runs()) == 11


def test_a_database_that_is_missing_is_a_sentence_and_the_others_go_on(
    recorder: Recorder, home: Path
) -> None:
    text = PUBLISHED.replace("Somebody's", "Another's")
    (home / "studies/published/other.toml").write_text(
        text.replace("[[table]]", "[[table]]\nparameters = { numjobs = 3 }")
    )
    recorder.error = MissingError("there is no fio here; `ztune setup fio` installs it")
    code, out, _ = invoke("studies", "run", "mine", "other")
    assert code == 1
    lines = out.splitlines()
    assert lines[:2] == [
        "mine: 0 of 7 layouts replayed", "  7 not: there is no fio here; `ztune setup fio` installs it",
    ]  # fmt: skip
    assert lines[2].startswith("other: 0 of ")
    assert runs() == [] and mine()[1].when == ""


def test_a_layout_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", 'crash="recordsize": "1048576"')
    said = ran(code=1)
    assert said["run"] == 14
    assert [left["layouts"] for left in said["not_run"]] == [2]
    assert "killed by SIGSEGV" in said["not_run"][0]["why"]
    sheet = study_sheets.ratio_sheet(study_sheets.published(studies.find("mine").publication, mine()[1])[0])
    assert "killed by SIGSEGV" in sheet.rows[2][3]


@pytest.mark.usefixtures("swept")
def test_a_trial_that_was_deleted_is_said() -> None:
    for run, *_ in runs():
        assert invoke("runs", "--delete", run, "--yes")[0] == 0
    assert {each.why for each in mine()[1].layouts} == {"its trial was deleted"}


@pytest.mark.usefixtures("swept")
def test_rules_of_thumb_are_scored_by_the_best_of_their_sweep() -> None:
    found, _ = mine()
    (sweep,) = (each for each in found.sweeps if each.sizes.role == "data")
    assert list(sweep.trials) == [str(4096 << n) for n in range(9)] and "ARC 64M" in sweep.condition
    assert sweep.best("modelled_s") == (16384, 10.0) and sweep.best("written")[0] == 4096
    # Writes of 8 KiB, pages of 8 KiB, one file of 4 MiB: at most 1M.
    assert sweep.chosen == {"page": 8192, "mean": 8192, "commonest": 8192, "files": 1 << 20}
    assert sweep.score("page", "modelled_s") == 1.5 and sweep.score("files", "modelled_s") == 4.0
    sheet = study_sheets.thumb_sheet(found.sweeps)
    assert sheet.rows[0][3] == "16K / 4K / 16K" and sheet.rows[0][4].startswith("8K: ×1.50 / ×2.0")
    assert sheet.rows[-1][0] == "worst of all"
    # The same sweep with another log says so.
    with Store.open() as store:
        replays = [(run, trial) for run in store.runs() for trial in store.trials(run.id)]
    other = [
        (run, replace(t, layout=with_settings(t.layout, {"wal.recordsize": "8K"}))) for run, t in replays
    ]
    both = thumb.sweeps([*replays, *other], {"data": sweep.sizes}, "mine", "fio")
    assert [each.condition for each in both] == [
        "hdd-7200, ARC 64M", "hdd-7200, ARC 64M, wal.recordsize=8K",
    ]  # fmt: skip


@pytest.mark.usefixtures("swept")
def test_a_sweep_of_an_engine_before_gives_way_to_the_new_ones() -> None:
    with contextlib.closing(sqlite3.connect(paths.database())) as held, held:
        held.execute("UPDATE trial SET engine_version = '0.0.1+before'")
    before = {run for run, *_ in runs()}
    ran()
    (sweep,) = (each for each in mine()[0].sweeps if each.sizes.role == "data")
    assert {cited.split("/")[0] for cited in sweep.trials.values()}.isdisjoint(before)


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        (
            thumb.RoleSizes("data", 1, None, 100.0, 1, 5_000_000.0),
            {"mean": 4096, "commonest": 4096, "files": 1 << 20},
        ),
        (
            thumb.RoleSizes("data", 1, 16384, 45_000.0, 65536, 23_000.0),
            {"page": 16384, "mean": 32768, "commonest": 65536, "files": 16384},
        ),
        (thumb.RoleSizes("data", 0, None, None, None, None), {}),
    ],
)
def test_a_rule_chooses_the_nearest_power_of_two(sizes: thumb.RoleSizes, chosen: dict[str, int]) -> None:
    assert thumb.choices(sizes) == chosen


def test_steps_are_joined_and_variants_are_not(home: Path) -> None:
    # The base has no published figure now, so it stands in the ready study alone.
    (home / "studies/published/mine.toml").write_text(PUBLISHED[: PUBLISHED.index("[[table]]")])
    ran()
    _, one = mine()
    steps = study_sheets.ladder(one)
    assert [(s.name, s.joined) for s in steps] == [
        ("defaults", True), ("1 small records", True), ("2 txg 1 s", False), ("2 txg 30 s", False),
    ]  # fmt: skip
    assert steps[1].values["modelled_s"] == 0.6


@pytest.mark.usefixtures("swept")
def test_what_was_found_is_a_file_that_can_be_read_again(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    code, said, _ = invoke("studies", "page", "--found", str(out))
    assert code == 0 and said == f"{out}\n"
    again = findings.load(out)
    assert again.studies == mine()[0].studies and again.sweeps == mine()[0].sweeps
    assert str(home) not in out.read_text()
    for text, sentence in (
        ("{", "is no JSON"),
        ("[]", "is not an object"),
        (out.read_text().replace('"openzfs"', '"zfs"', 1), '"zfs" is not a key here'),
    ):
        out.write_text(text)
        with pytest.raises(InputError, match=re.escape(sentence)):
            findings.load(out)


def test_the_page_shows_both_and_loads_nothing(tmp_path: Path) -> None:
    out = tmp_path / "studies.html"
    assert invoke("studies", "page", "--out", str(out))[0] == 0
    assert "Not run yet." in out.read_text()
    cited = ran()["trials"]["time/16K"]
    before = runs()
    assert invoke("studies", "page", "--out", str(out))[0] == 0
    page = out.read_text()
    assert "Somebody&#39;s &lt;b&gt;" in page
    assert cited in page and "×0.40" in page and "×0.50" in page and "published, s" in page
    assert "Ratios, not seconds" in page and "The ends, other file systems, were not run" not in page
    assert re.findall(r"<(?:link|img|iframe|object|script)[^>]*>", page) == ["<script>"]
    assert runs() == before  # it reads, and runs nothing


@pytest.mark.usefixtures("swept")
def test_json_is_what_the_page_shows() -> None:
    code, out, _ = invoke("studies", "page", "--json")
    told = json.loads(out)
    assert code == 0
    (one,) = (each for each in told["studies"] if each["study"] == "mine")
    assert {each["name"] for each in one["layouts"]} == {each.name for each in studies.find("mine").layouts}


def test_the_list_says_what_is_left() -> None:
    def listed() -> dict[str, Any]:
        rows = json.loads(invoke("studies", "list", "--json")[1])
        return {row["study"]: row for row in rows}["mine"]  # type: ignore[no-any-return]

    assert (listed()["run"], len(listed()["left"]), listed()["when"]) == (0, 7, "")
    ran()
    assert (listed()["run"], listed()["left"]) == (7, [])
    assert invoke("studies", "list")[0] == 0


def test_measured_ends_stand_beside_the_steps() -> None:
    from ztune.report import charts

    ends = [
        MeasuredEnd("ZFS defaults", "ZFS defaults", (EndRatio("ios", 1.0),), "emulated", ("abc/1",)),
        MeasuredEnd("ext4, buffered", "ZFS defaults",
                    (EndRatio("ios", 1.6, 1.5, 1.7), EndRatio("bytes", 0.4)), "emulated", ("abc/2", "abc/3")),
    ]  # fmt: skip
    sheet = study_sheets.end_sheet(ends)
    assert sheet.head == ("layout", "disk I/Os per operation", "bytes moved per operation", "trials")
    assert sheet.rows[1] == ("ext4, buffered", "×1.60 (1.50 … 1.70)", "×0.40", "abc/2, abc/3")

    chart = charts.ratios(
        [charts.RatioMarks("a", {"modelled_s": 1.0}, True), charts.RatioMarks("b", {"modelled_s": 0.5}, True),
         charts.RatioMarks("ext4", {"end_time": 0.8}, spans={"end_time": (0.7, 0.9)})],
        {"modelled_s": "modelled time", "end_time": "measured time"}, "steps",
    )  # fmt: skip
    assert chart.count('class="mark modelled_s"') == 2 and chart.count('class="mark end_time"') == 1
    assert 'class="series"' in chart and 'class="span"' in chart
    assert charts.ratios([], {"ours": "x"}, "none") == ""


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["run", "mne"], 'there is no study "mne" to run again; there are'),
        (["run", "openzfs-sqlite"], "there is no study"),
        (["run", "mine", "-p", "colour=red"], "-p colour: no parameter of fio"),
        (["run", "mine", "-p", "numjobs=none"], "numjobs"),
        (["page", "--out", "/nowhere/at/all.html"], "/nowhere/at"),
    ],
)
def test_bad_input_is_one_sentence(args: list[str], sentence: str) -> None:
    code, out, err = invoke("studies", *args)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert sentence in err
    assert runs() == []


@pytest.mark.usefixtures("swept")
def test_a_kept_file_that_is_damaged_is_named(home: Path) -> None:
    path = home / "study-trials/mine.json"
    path.write_text(path.read_text().replace('"kind"', '"sort"', 1))
    code, _, err = invoke("studies", "list")
    assert code == 2 and str(path) in err and "`ztune studies run mine` makes it anew" in err
    assert ran()["run"] == 16


def test_to_look_makes_nothing_in_the_state_directory(home: Path, tmp_path: Path) -> None:
    """It may be on a disk that can only be read: what is stored can be seen all the same."""
    invoke("runs")
    there = {path.name for path in home.iterdir()}
    for asked in (("list",), ("page", "--out", str(tmp_path / "page.html"))):
        assert invoke("studies", *asked)[0] == 0
    assert invoke("claims", "list")[0] == 0
    assert {path.name for path in home.iterdir()} == there


def test_a_base_that_is_no_row_is_refused(home: Path) -> None:
    path = home / "studies/published/mine.toml"
    path.write_text(PUBLISHED.replace('base = "128K"', 'base = "128k"'))
    code, _, err = invoke("studies", "run", "mine")
    assert code == 2 and "base" in err and 'there is no row "128k"' in err
