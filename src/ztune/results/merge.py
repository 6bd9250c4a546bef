"""Several results files as one: no row is counted twice, and none loses where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ztune.errors import InputError
from ztune.results.row import OF_RUN, ResultRow, RowMetric


@dataclass(frozen=True, slots=True)
class Merged:
    """All rows, each once, by origin, run and trial; and how many were there twice."""

    rows: tuple[ResultRow, ...]
    twice: int


def merge(given: Mapping[str, Sequence[ResultRow]]) -> Merged:
    """Return the rows of all files in ``given``: name → rows.

    A column that one file leaves empty is filled from another: a trace may be gone since. Of a trial that ran
    again, the later time counts.

    Raises:
        InputError: two rows of one run, or of one trial, contradict each other.
    """
    runs: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    trials: dict[tuple[str, str, int], tuple[str, ResultRow]] = {}
    twice = 0
    for name, rows in given.items():
        for row in rows:
            _add_run(runs, name, row)
            before = trials.get(row.key)
            if before is None:
                trials[row.key] = name, row
                continue
            twice += 1
            trials[row.key] = name, _joined(*before, name, row)
    whole = (replace(row, **runs[row.origin, row.run][1]) for _, row in trials.values())
    return Merged(tuple(sorted(whole, key=lambda row: row.key)), twice)


def _add_run(runs: dict[tuple[str, str], tuple[str, dict[str, Any]]], name: str, row: ResultRow) -> None:
    """Note what ``row`` says of its run. Raises InputError where another row says something else."""
    first, known = runs.setdefault((row.origin, row.run), (name, {}))
    for column in OF_RUN:
        value = getattr(row, column)
        if known.get(column) in _EMPTY:
            known[column] = value
        elif value not in _EMPTY and value != known[column]:
            raise _contradiction(row, "", column, known[column], first, value, name)


def _joined(first: str, a: ResultRow, second: str, b: ResultRow) -> ResultRow:
    """Return two rows of one trial as one."""
    if a.started != b.started:
        return max(a, b, key=lambda row: row.started)
    changes: dict[str, Any] = {}
    for column in (f.name for f in fields(ResultRow)):
        x, y = getattr(a, column), getattr(b, column)
        if column == "metrics" or column in OF_RUN or x == y:
            continue
        if x not in _EMPTY and y not in _EMPTY:
            raise _contradiction(a, f", trial {a.trial}", column, x, first, y, second)
        changes[column] = y if x in _EMPTY else x
    metrics = {m.name: m for m in a.metrics}
    for other in b.metrics:
        mine = metrics.setdefault(other.name, other)
        if (mine.value, mine.unit, mine.basis) != (other.value, other.unit, other.basis):
            raise _contradiction(
                a, f", trial {a.trial}", other.name, _text(mine), first, _text(other), second
            )
    if metrics.keys() == {m.name for m in a.metrics} == {m.name for m in b.metrics}:
        return replace(a, **changes)
    # One order, whichever file came first.
    return replace(a, **changes, metrics=tuple(metrics[name] for name in sorted(metrics)))


def _text(metric: RowMetric) -> str:
    return f"{metric.value:g} {metric.unit}"


_EMPTY: Iterable[object] = ("", None, {})


def _contradiction(
    row: ResultRow, of: str, column: str, here: object, first: str, there: object, second: str
) -> InputError:
    both = f"both in {first}" if first == second else f"in {first} and in {second}"
    return InputError(
        f"run {row.run}{of} of store {row.origin} contradicts itself: {column} is {str(here)[:60]!r} and "
        f"{str(there)[:60]!r}, {both}; export it again"
    )
