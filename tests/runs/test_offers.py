"""Settings of the database that a screening tries on top of the layout that it found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from invoked import invoke
from synthetic_traces import make_trace

from ztune.cli import _tune
from ztune.databases import database
from ztune.databases.workload import JobWorkload, Workload
from ztune.errors import ZtuneError
from ztune.runs import offered, offers
from ztune.runs.offered import OfferedSettings
from ztune.store.db import Store
from ztune.study import Study, generic
from ztune.study.durability import judge
from ztune.study.layout import with_settings
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace

pytestmark = pytest.mark.usefixtures("home")
FULL, FRESH, PACKED = "full_page_writes=off", "wal_init_zero=off with wal_recycle=off", "wal_compression=pglz"

NOW = {"full_page_writes": "on", "wal_init_zero": "on", "wal_recycle": "on", "wal_compression": "off"}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Stands for the recorder: a job with full_page_writes=off writes half. Holds the settings recorded."""
    made: list[dict[str, str]] = []

    def record(workload: Workload, _recorder: str, path: Path) -> Trace:
        assert isinstance(workload, JobWorkload)
        settings = dict(workload.job.database)
        made.append(settings)
        if settings.get("wal_recycle") == "off":
            raise ZtuneError("the server did not start")
        writes = 60 if settings.get("full_page_writes") == "off" else 120
        result = {"operations": 100, "unit": "transaction"}
        info = WorkloadInfo(**{**workload.info(), "result": result})
        return make_trace(path, ("data", "wal"), writes=writes, workload=info)

    monkeypatch.setattr(_tune, "record_workload", record)
    monkeypatch.setattr(_tune, "_check_early", lambda *_: None)
    return made


def tune(folder: Path, *words: str) -> tuple[int, str, str]:
    return invoke("tune", "postgres-oltp", "--budget", "5", "--out", str(folder / "out"), *words)


def outcome() -> OfferedSettings:
    with Store.open() as store:
        return offered.kept(store.run().outcome)


def test_only_what_the_job_has_otherwise_is_offered() -> None:
    every = [offers.words(one) for one in offers.of_workload("postgres-oltp", {})]
    assert every == [FULL, FRESH, PACKED]
    less = offers.of_workload("postgres-oltp", {"full_page_writes": "off", "wal_compression": "lz4"})
    assert [offers.words(one) for one in less] == [FRESH]
    of_maria = [offers.words(one) for one in offers.of_workload("mariadb-oltp", {})]
    assert of_maria == ["innodb_doublewrite=0", "innodb_use_native_aio=0"]
    assert offers.of_workload("mariadb-oltp", {"doublewrite": "off", "native_aio": "off"}) == []
    assert offers.of_workload("fio", {}) == offers.of_workload("postgres-restore", {}) == []


def test_every_offer_is_judged_by_what_its_database_declares() -> None:
    """None is offered that would not be known: the guard would leave it out each time."""
    base = generic.build({"data", "wal"}).layout
    for one in database.every():
        for offer in one.facts.settings.offers:
            found = judge(with_settings(base, {f"database.{n}": v for n, v in offer.set.items()}))
            assert not found.unknown and found.klass == "nothing-acknowledged", offers.words(offer)


def study_with(**changes: str) -> Study:
    study = generic.build({"data", "wal"})
    return study.model_copy(
        update={"layout": with_settings(study.layout, {k.replace("__", "."): v for k, v in changes.items()})}
    )


def test_what_a_power_cut_could_damage_on_the_layout_found_is_not_tried() -> None:
    study = study_with()
    (full, *_) = offers.of_workload("postgres-oltp", {})
    whole, why = offers.on_top(study, with_settings(study.layout, {"data.recordsize": "8K"}), full)
    assert why == "" and whole.name == "data.recordsize=8K, database.full_page_writes=off"
    _, why = offers.on_top(study, with_settings(study.layout, {"data.recordsize": "4K"}), full)
    assert why == "full_page_writes=off with recordsize 4096 below the page size 8192: torn pages"


def test_one_is_tried_on_top_and_recommended_where_it_is_better(
    recorded: list[dict[str, str]], stand_in_engine: Path, tmp_path: Path
) -> None:
    code, out, err = tune(tmp_path)
    assert code == 0, err
    assert recorded == [{}, {"full_page_writes": "off"}]
    assert f"{FULL} is tried on top of the layout found, which takes another recording" in err
    assert "full_page_writes=off (base on)" in out
    text = " ".join(out.split())
    assert "full_page_writes=off rests on ZFS alone" in text
    assert outcome() == OfferedSettings((FULL,), {}, (FRESH, PACKED), NOW)
    with Store.open() as store:
        run = store.run()
        chosen = json.loads((tmp_path / "out" / "run.json").read_text())["recommendation"]
        assert run.status == "done" and chosen["per_operation"] == "transaction"
        assert chosen["searched"].endswith(
            f"Not tried: {FRESH} and {PACKED}; --settings 3 does, a recording each."
        )
        ours = [t for t in store.trials(run.id) if t.layout.database]
        assert {t.trace_sha for t in ours} != {""} and all(t.ok for t in ours)
    # The same job is not recorded twice, and the run goes on from what is stored.
    assert tune(tmp_path)[0] == 0 and recorded == [{}, {"full_page_writes": "off"}, {}]
    assert invoke("screen", "--resume", run.id)[0] == 0


def test_one_that_fails_leaves_the_answer_and_says_so(
    recorded: list[dict[str, str]], stand_in_engine: Path, tmp_path: Path
) -> None:
    code, _, err = tune(tmp_path, "--settings", "2")
    assert code == 0, err
    assert recorded[2] == {"full_page_writes": "off", "wal_init_zero": "off", "wal_recycle": "off"}
    assert f"{FRESH} is left out: the server did not start" in err
    # The next takes its place.
    assert recorded[3] == {"full_page_writes": "off", "wal_compression": "pglz"}
    assert outcome() == OfferedSettings((FULL, PACKED), {FRESH: "the server did not start"}, (), NOW)


def test_an_interruption_while_one_is_recorded_leaves_the_answer_of_the_search(
    recorded: list[dict[str, str]],
    stand_in_engine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain: Callable[[Workload, str, Path], Trace] = vars(_tune)["record_workload"]

    def record(workload: Workload, recorder: str, path: Path) -> Trace:
        if recorded:
            raise KeyboardInterrupt
        return plain(workload, recorder, path)

    monkeypatch.setattr(_tune, "record_workload", record)
    assert tune(tmp_path)[0] == 130
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"report.html", "apply.sh", "run.json"}
    with Store.open() as store:
        assert store.run().status == "done"
    code, out, err = invoke("recommend", "last")
    assert code == 0 and "full_page_writes" not in out.partition("Changes")[0], err


@pytest.mark.parametrize("words", [("--settings", "0"), ("--study", "postgres-oltp")])
def test_they_can_be_left_out(
    words: tuple[str, ...], recorded: list[dict[str, str]], stand_in_engine: Path, tmp_path: Path
) -> None:
    code, _, err = tune(tmp_path, *words)
    assert code == 0, err
    assert recorded == [{}] and outcome() == OfferedSettings((), {}, (FULL, FRESH, PACKED), {})


def test_a_recording_says_which_are_worth_trying_and_how(tmp_path: Path, stand_in_engine: Path) -> None:
    info = WorkloadInfo(name="postgres-oltp", parameters={"full_page_writes": "off"})
    trace = make_trace(tmp_path / "t.trace", ("data", "wal"), workload=info)
    assert offers.note(trace.manifest) == (
        f"Not tried, since it takes another recording: {FRESH} and {PACKED}. "
        "`ztune tune postgres-oltp` tries them on top of the layout it finds."
    )
    code, out, err = invoke("screen", str(trace.path), "--budget", "6")
    assert code == 0, err
    assert f"Not tried, since it takes another recording: {FRESH}" in " ".join(out.split())
    assert offers.note(make_trace(tmp_path / "u.trace").manifest) == ""  # nobody knows which database it is
