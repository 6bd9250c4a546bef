"""The Parquet file of a trace's events: its shape, and its columns.

Apart from the reader: what only looks for a trace, and finds none, need not wait for Arrow.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ztune.errors import InputError, reason
from ztune.trace import check
from ztune.trace.columns import BEFORE_8, EVENTS

PART_ROWS = 1 << 17


def opened(path: Path, mode: str = "rb") -> pa.NativeFile:
    """Return ``path`` open for Arrow, which takes the name ``pg-12:30.trace`` for a URI of its own."""
    return pa.OSFile(os.fsencode(path), mode)


def check_shape(path: Path) -> int:
    """Return how many events ``path`` has. Raises InputError if its columns are not those of events."""
    try:
        with opened(path) as file, pq.ParquetFile(file) as parquet:
            schema, rows = parquet.schema_arrow, int(parquet.metadata.num_rows)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {reason(error)}") from None
    if not any(schema.remove_metadata().equals(known) for known in (EVENTS, BEFORE_8)):
        wrong = [name for name in EVENTS.names if name not in schema.names]
        what = f"lacks the column {wrong[0]!r}" if wrong else "has columns of other types or order"
        raise InputError(f"{path} {what}; docs/trace-format.md lists those of an event")
    return rows


def read(path: Path, columns: list[str] | None, files: int) -> pa.Table:
    """Return the events of ``path``, checked: all columns, or those named; ``files``: how many the trace has.

    Raises InputError if it is damaged.
    """
    names = list(EVENTS.names) if columns is None else columns
    try:
        # Not `pq.read_table`: it loads Arrow's datasets and functions, a tenth of a second.
        with opened(path) as file, pq.ParquetFile(file) as parquet:
            table = _with_all(parquet.read(names), names)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path} is damaged: {reason(error)}") from None
    _check(table, files, str(path))
    return table


def parts(path: Path, columns: Sequence[str], files: int) -> Iterator[pa.Table]:
    """Give the named columns (default: all) of the events of ``path``, checked, a row group at a time, and of
    a large one `PART_ROWS`.

    So a long recording takes no more memory than a short one. ``files``: how many the trace has. At least
    one is given, which may be empty. The next is read while one is in use.
    Raises InputError if it is damaged.
    """
    names = list(columns) or list(EVENTS.names)
    try:
        with opened(path) as file, pq.ParquetFile(file) as parquet, ThreadPoolExecutor(1) as ahead:
            rows = itertools.chain.from_iterable(
                parquet.iter_batches(PART_ROWS, [group], names) for group in range(parquet.num_row_groups)
            )

            def part(before: int) -> pa.Table | None:
                found = next(rows, None)
                if found is None:
                    return None
                table = _with_all(pa.Table.from_batches([found]), names)
                _check(table, files, str(path), before)
                return table

            if not parquet.metadata.num_rows:
                yield EVENTS.empty_table().select(names)
                return
            before, last = 0, None
            coming = ahead.submit(part, before)
            while (table := coming.result()) is not None:
                begins, before = before, before + len(table)
                coming = ahead.submit(part, before)
                if "t" in names and len(table):
                    t = table.column("t")
                    if last is not None and t[0].as_py() < last:
                        raise InputError(f"{path}: {check.unsorted(begins, t[0].as_py())}")
                    last = t[-1].as_py()
                yield table
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path} is damaged: {reason(error)}") from None


def _with_all(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the named columns of ``table``; those that an older trace lacks are 0."""
    for name in names:
        if name not in table.column_names:
            field = EVENTS.field(name)
            zeros = np.zeros(table.num_rows, field.type.to_pandas_dtype())
            table = table.append_column(field, [pa.array(zeros, field.type)])
    return table.select(names)


def _check(table: pa.Table, files: int, where: str, rows_before: int = 0) -> None:
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    try:
        check.columns(columns, files, rows_before)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
