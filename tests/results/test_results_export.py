"""Stored runs as rows: everything that compares them is there, and nothing private."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import exported_runs as runs
import pytest
import stored_runs
from synthetic_traces import make_trace

from ztune.errors import InputError
from ztune.report import results_html
from ztune.results import export, file, private
from ztune.results.merge import merge
from ztune.results.row import WITHHELD, ResultRow
from ztune.store.connection import Connection, ReadOnlyError
from ztune.store.db import Store
from ztune.trace.manifest import MANIFEST


@pytest.fixture
def rows(home: Path) -> list[ResultRow]:
    return runs.exported()


def test_nothing_private_is_in_rows_file_or_page(rows: list[ResultRow], tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    file.write(path, rows)
    texts = [
        json.dumps([dataclasses.asdict(row) for row in rows]),
        repr(file.read(path)),
        results_html.render(rows, {}),
    ]
    assert [runs.PRIVATE in text for text in texts] == [False] * 3
    assert runs.PRIVATE.encode() not in path.read_bytes()
    # The word was in what the rows were made from.
    with Store.open() as store:
        whole = [(run, store.trials(run.id)) for run in store.runs()]
    assert len(re.findall(runs.PRIVATE, repr(whole))) > 100


def test_a_replay_is_told_by_what_it_changes(rows: list[ResultRow]) -> None:
    base, other, failed = rows[:3]
    assert (base.place, base.run_basis, base.baseline, base.changes) == ("replay", "modelled", True, "base")
    assert (other.changes, other.layout, other.baseline) == ("data.recordsize=16K", 2, False)
    assert (other.workload, other.database, other.openzfs) == ("postgres-oltp", "postgresql", "2.3.2-1")
    assert (other.disks, other.device) == ("mirror 2 hdd-7200, log own-flash", "hdd")
    assert (other.kernel, other.cpu, other.cpus, other.memory) == (
        "Linux 6.1.0-28", "A Processor 9000", 8, 32 << 30,
    )  # fmt: skip
    assert other.arc == 128 << 20 and other.settings["data.pool"] == "pool1"
    assert other.settings["data.recordsize"] == "16K" and other.durability == "not-known"
    written = other.named("written")
    assert written is not None and written.unit == "bytes" and written.basis == "modelled"
    assert (failed.status, failed.metrics) == ("failed", ())


def test_what_the_database_is_set_to_is_told_only_where_ztune_knows_the_words(rows: list[ResultRow]) -> None:
    told = {k: v for k, v in rows[0].settings.items() if k.startswith("database.")}
    assert told == {
        "database.full_page_writes": "off",
        "database.archive_command": WITHHELD,
        "database.shared_buffers": "64M",
    }


def test_a_trial_has_its_own_machine_and_measured_figures(rows: list[ResultRow]) -> None:
    first, second, again, _ = rows[3:]
    assert (first.place, first.run_basis, first.machine, first.cpus) == ("ssh", "measured", "aarch64", 4)
    assert (first.kernel, first.openzfs, first.database_version) == ("Linux 6.12.3-1", "2.2.7-1", "15.18")
    # Whose disks they are, nobody said.
    assert (first.disks, first.device) == ("", "")
    assert [(r.block, r.layout) for r in (first, second, again)] == [(1, 1), (1, 2), (2, 1)]
    assert first.parameters == {
        "scale": 25, "size": "400M", "content": "text", "script": WITHHELD, "full_page_writes": True,
    }  # fmt: skip
    # What a layout changes of the job is the layout's: merging would refuse a run of two jobs.
    assert second.parameters == first.parameters and second.settings["workload.clients"] == "4"
    assert len(merge({"": rows}).rows) == len(rows)
    time = second.named("time")
    assert time is not None and time.value == pytest.approx(0.02) and time.basis == "measured"


def test_seconds_of_an_emulated_lab_are_told_apart_from_its_counts(home: Path) -> None:
    row = runs.exported(kind="lab", accel="tcg")[3]
    assert (row.place, row.run_basis, row.disks) == ("lab", "emulated", "mirror 2 hdd-7200, log own-flash")
    assert {m.basis for m in row.metrics if m.name in ("time", "p99")} == {"emulated"}
    assert {m.basis for m in row.metrics if m.name in ("written", "space")} == {"measured"}


def test_disks_that_nobody_waits_for_are_none(home: Path) -> None:
    row = runs.exported(kind="mount", disks="instant")[3]
    assert (row.place, row.disks, row.device) == ("mount", "instant", "")


def test_the_same_layout_has_the_same_hash_in_every_store(
    rows: list[ResultRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(runs, "PRIVATE", "tank")
    there = runs.exported()
    assert [row.layout_hash for row in there] == [row.layout_hash for row in rows]
    assert len({row.layout_hash for row in rows}) == 4
    assert there[0].origin != rows[0].origin


def test_trials_that_wait_are_left_out(home: Path) -> None:
    with Store.open() as store:
        run = stored_runs.new_run(store)
        store.add_trial(run.id, stored_runs.study().layout)
        assert export.rows(store, [run]) == []


def test_the_database_of_a_recorded_trace_is_told_by_its_files(home: Path, tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.trace")
    made = trace.path / MANIFEST
    text = made.read_text()
    assert '"/db/data/1"' in text and '"/db/wal/1"' in text
    made.write_text(text.replace('"/db/data/1"', '"/db/base/1/2"').replace('"/db/wal/1"', '"/db/pg_wal/0"'))
    trace = type(trace).open(trace.path)
    with Store.open() as store:
        run = stored_runs.new_run(store, trace_path=trace.path, trace_sha=trace.sha)
        trial = store.add_trial(run.id, stored_runs.study().layout, is_baseline=True)
        store.finish_trial(trial.id, error="no", wall_s=1.0)
        (row,) = export.rows(store, [run])
        assert (row.database, row.workload) == ("postgresql", "")
        other = stored_runs.new_run(store, trace_path=trace.path, trace_sha="0" * 64)
        trial = store.add_trial(other.id, stored_runs.study().layout)
        store.finish_trial(trial.id, error="no", wall_s=1.0)
        assert export.rows(store, [other])[0].database == ""


def test_whose_database_a_command_runs_nobody_knows(home: Path) -> None:
    with Store.open() as store:
        run = runs.measured(store)
        job = {"workload": "command", "params": {"file_text": "secret", "seed": 1}, "version": "Mine 3.1"}
        store.note_run(run.id, job=job)
        row = export.rows(store, [store.run(run.id)])[0]
    assert (row.database, row.database_version, row.workload) == ("", "", "command")
    assert row.parameters == {"file_text": "withheld", "seed": 1}


def test_a_store_keeps_its_id(home: Path) -> None:
    with Store.open() as store:
        first = store.origin()
    with Store.open() as store:
        assert store.origin() == first
    assert re.fullmatch("[0-9a-f]{16}", first)


def test_a_store_without_an_id_that_can_not_be_written_has_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open() as store:
        path = store.path
        store._db.execute("DROP TABLE origin")
        for column in ("trace_path", "trace_sha"):
            store._db.execute(f"ALTER TABLE trial DROP COLUMN {column}")
        for column in ("made_by", "works_on", "origin"):
            store._db.execute(f"ALTER TABLE run DROP COLUMN {column}")
        store._db.execute("ALTER TABLE run ADD COLUMN pid_started REAL")
        store._db.execute("PRAGMA user_version = 2")
    execute = Connection.execute

    def refused(self: Connection, sql: str, values: object = ()) -> object:
        if not self.why_read_only and sql.startswith(("BEGIN", "PRAGMA journal_mode")):
            raise ReadOnlyError("the disk is read-only")
        return execute(self, sql, values)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "execute", refused)
    with Store.open(path) as store, pytest.raises(ReadOnlyError, match="the disk is read-only"):
        store.origin()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("PostgreSQL 15.18 (Debian 15.18-0+deb12u1)", "15.18"),
        ("389-Directory/2.3.1", "2.3.1"),
        ("2.3.2-1~bpo12+1", "2.3.2-1"),
        ("2.4.99-alice", "2.4.99"),
        ("", ""),
        (None, ""),
        ("alice", ""),
    ],
)
def test_of_a_version_the_number_is_told(text: object, shown: str) -> None:
    assert private.version(text) == shown


def test_of_a_kernel_system_and_number_are_told() -> None:
    assert private.kernel("FreeBSD 14.1-RELEASE") == "FreeBSD 14.1"
    assert private.kernel("6.1.0-28-amd64") == "Linux 6.1.0-28"
    assert private.kernel("alice") == ""


def test_a_text_is_withheld_unless_it_is_the_default() -> None:
    given = {"job": "/home/alice/x.fio", "distribution": "random", "rw": "alice", "bs": "8K", "gone": "alice"}
    assert private.parameters("fio", given) == {"job": WITHHELD, "rw": WITHHELD, "bs": "8K"}


def test_a_profile_of_the_users_by_the_name_of_one_of_ours_is_told_as_own() -> None:
    from ztune.study import profiles

    ours = {name: profiles.find(name) for name in ("nvme", "hdd-7200", "ssd-sata")}
    changed = ours["nvme"].model_copy(update={"read_us": 9.0})
    more = ours["ssd-sata"].model_copy(update={"name": "alice"})
    assert private.profile_names({**ours, "nvme": changed, "alice": more}) == {
        "alice": "own-flash", "hdd-7200": "hdd-7200", "nvme": "own-flash-2", "ssd-sata": "ssd-sata",
    }  # fmt: skip


def test_no_more_is_read_than_results_take(
    rows: list[ResultRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows that are alike compress to nothing: a megabyte of another's filled eight gigabytes.
    file.write(tmp_path / "all.parquet", rows)
    assert len(file.read(tmp_path / "all.parquet")) == len(rows)
    monkeypatch.setattr(file, "_MOST", 100)
    with pytest.raises(InputError, match="holds more than 0 MiB of rows; split it in two"):
        file.read(tmp_path / "all.parquet")
