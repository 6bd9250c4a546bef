"""Results files: written, read back, merged; what is wrong with one is one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import exported_runs as runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ztune.analysis.metrics import MEASURED, REPLAYED
from ztune.errors import InputError
from ztune.results import export, file
from ztune.results.merge import merge
from ztune.results.row import UNITS, ResultRow, RowMetric
from ztune.store.db import Store


@pytest.fixture
def rows(home: Path) -> list[ResultRow]:
    return runs.exported()


@pytest.fixture
def path(rows: list[ResultRow], tmp_path: Path) -> Path:
    file.write(tmp_path / "mine.parquet", rows)
    return tmp_path / "mine.parquet"


def test_what_is_written_is_read(rows: list[ResultRow], path: Path) -> None:
    assert file.read(path) == rows
    assert pq.read_schema(path).metadata[b"format"] == b"ztune-results"


def test_the_same_row_twice_counts_once_and_keeps_its_origin(rows: list[ResultRow]) -> None:
    theirs = [replace(row, origin="f" * 16) for row in rows]
    merged = merge({"a": rows, "b": [*rows[2:], *theirs]})
    assert (len(merged.rows), merged.twice) == (2 * len(rows), len(rows) - 2)
    assert {row.origin for row in merged.rows} == {rows[0].origin, "f" * 16}
    assert merge({"b": [*rows[2:], *theirs], "a": rows}).rows == merged.rows


def test_what_one_file_leaves_empty_is_filled_for_the_whole_run(rows: list[ResultRow]) -> None:
    poor = [replace(row, database="", parameters={}, cpus=None, arc=None) for row in rows]
    full = merge({"": rows}).rows
    assert merge({"a": poor, "b": rows}).rows == full == merge({"b": rows, "a": poor}).rows
    # A trial that only the poorer file has belongs to a run that the other knows.
    known = [row for row in merge({"a": poor, "b": rows[:1]}).rows if row.run == rows[0].run]
    assert {row.database for row in known} == {"postgresql"} and len(known) == 3


def test_metrics_that_only_one_file_has_are_kept(rows: list[ResultRow]) -> None:
    more = RowMetric(name="new", value=1.0, unit="s", basis="modelled", meaning="something new")
    newer = [replace(rows[0], metrics=(*rows[0].metrics[2:], more))]
    (first, *_), (second, *_) = (
        merge(g).rows for g in ({"a": rows[:1], "b": newer}, {"b": newer, "a": rows[:1]})
    )
    assert first == second
    assert {m.name for m in first.metrics} == {m.name for m in rows[0].metrics} | {"new"}


def test_of_a_trial_that_ran_again_the_later_counts(rows: list[ResultRow]) -> None:
    failed = replace(rows[0], status="failed", metrics=(), started="2020-01-01T00:00:00.000Z")
    for given in ({"a": [failed], "b": rows[:1]}, {"b": rows[:1], "a": [failed]}):
        assert merge(given).rows == (rows[0],)


def test_versions_of_one_run_that_differ_are_refused(rows: list[ResultRow]) -> None:
    other = [replace(rows[1], openzfs="2.4.4")]
    with pytest.raises(InputError) as caught:
        merge({"a.parquet": rows[:1], "b.parquet": other})
    assert str(caught.value) == (
        f"run {rows[0].run} of store {rows[0].origin} contradicts itself: openzfs is '2.3.2-1' and '2.4.4', "
        "in a.parquet and in b.parquet; export it again"
    )


@pytest.mark.parametrize("changes", [{"status": "failed"}, {"arc": 1}, {"settings": {"arc": "1"}}])
def test_two_rows_of_one_trial_that_differ_are_refused(rows: list[ResultRow], changes: Any) -> None:
    with pytest.raises(InputError, match=rf"trial 1 of store .* {next(iter(changes))} is .* both in a;"):
        merge({"a": [rows[0], replace(rows[0], **changes)]})


def test_two_values_of_one_metric_are_refused(rows: list[ResultRow]) -> None:
    first, *rest = rows[0].metrics
    other = replace(rows[0], metrics=(replace(first, value=first.value * 2), *rest))
    with pytest.raises(InputError, match=f"{first.name} is .* in a and in b"):
        merge({"a": [rows[0]], "b": [other]})


def _metadata(table: pa.Table, **changes: str) -> pa.Table:
    return table.replace_schema_metadata(
        {**table.schema.metadata, **{k.encode(): v.encode() for k, v in changes.items()}}
    )


def _value(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        column = pa.array([value] * len(table), table.schema.field(name).type)
        return table.set_column(at, table.schema.field(name), column)

    return change


def _metric(**wrong: object) -> Callable[[pa.Table], pa.Table]:
    right = {"name": "x", "value": 1.0, "unit": "s", "basis": "modelled", "meaning": ""}
    return _value("metrics", [{**right, **wrong}])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: _metadata(t, version="2"), 'has version "2" of the results format, this ztune knows 1'),
        (lambda t: _metadata(t, format="else"), "is Parquet, but no results file"),
        (lambda t: t.drop_columns(["arc"]), "its columns are not those of version 1"),
        (_value("run_basis", "guessed"), "row 1: run_basis can't be 'guessed'"),
        (_value("settings", "{"), "row 1: settings can't be"),
        (_value("parameters", '{"a": {"b": 1}}'), "row 1: parameters can't be"),
        (_value("parameters", '{"a": NaN}'), "row 1: parameters can't be"),
        (_value("settings", '{"a": -Infinity}'), "row 1: settings can't be"),
        (_value("settings", '{"a": 1e999}'), "row 1: settings can't be"),
        (_value("origin", "<b>"), "row 1: origin can't be '<b>'"),
        (_value("run", "../r"), "row 1: run can't be '../r'"),
        (_value("started", "yesterday"), "row 1: started can't be 'yesterday'"),
        (_value("layout_hash", "x"), "row 1: layout_hash can't be 'x'"),
        (_metric(value=float("nan")), "row 1: metrics can't be"),
        (_metric(unit="furlong"), "row 1: metrics can't be"),
        (_metric(basis="measured"), "row 1: metrics can't be"),  # in a run that is modelled
    ],
)
def test_a_file_that_is_another_is_one_sentence(
    path: Path, change: Callable[[pa.Table], pa.Table], sentence: str
) -> None:
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(InputError) as caught:
        file.read(path)
    assert sentence in str(caught.value) and str(caught.value).startswith(str(path))


@pytest.mark.parametrize("size", [0, 3, 4, 8, 500, -1, -9])
def test_a_file_that_was_cut_short_is_one_sentence(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"cut short|is no results file|can't be read"):
        file.read(path)


def test_a_file_with_a_changed_byte_is_not_read_as_another(path: Path, rows: list[ResultRow]) -> None:
    whole = path.read_bytes()
    for at in range(4, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = file.read(path)
        except InputError:
            continue
        assert found == rows


def test_text_in_the_place_of_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(json.dumps({"rows": []}))
    with pytest.raises(InputError, match="is no results file; `ztune results export` makes one"):
        file.read(tmp_path / "x")
    with pytest.raises(InputError, match="can't be read: No such file"):
        file.read(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no regular file"):
        file.read(tmp_path / "pipe")


def test_every_unit_of_a_metric_is_one_that_the_format_has() -> None:
    assert {metric.unit for metric in (*REPLAYED.values(), *MEASURED.values())} == UNITS.keys()


def test_a_run_that_was_copied_to_another_store_counts_once(rows: list[ResultRow], tmp_path: Path) -> None:
    with Store.open() as mine, Store.open(tmp_path / "team.db") as team:
        for run in mine.runs():
            assert team.take(mine, run)
        theirs = export.rows(team, team.runs())
        made_there = runs.screened(team)
        assert {row.origin for row in export.rows(team, [made_there])} == {team.origin()} != {mine.origin()}
    merged = merge({"mine": rows, "team": theirs})
    assert (len(merged.rows), merged.twice) == (len(rows), len(rows))
