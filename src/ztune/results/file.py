"""The results file: rows as Parquet, with the version of the format in its metadata."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from ztune import __version__, files
from ztune.errors import InputError, reason
from ztune.onhost.words import DurabilityClass
from ztune.results.row import BASES, PLACES, STATUSES, UNITS, ResultRow, RowMetric

FORMAT = b"ztune-results"
VERSION = 1
_MAGIC = b"PAR1"
_BATCH = 256  # rows that are read at a time
_MOST = 256 << 20
"""Bytes of rows, which compress well: a row has about 2 KiB, and is a trial."""
_HINTS = get_type_hints(ResultRow)
_METRIC = pa.struct(
    [
        pa.field(f.name, pa.float64() if f.name == "value" else pa.string(), nullable=False)
        for f in fields(RowMetric)
    ]
)
_WORDS: dict[str, tuple[str, ...]] = {
    "run_basis": BASES,
    "place": PLACES,
    "status": STATUSES,
    "durability": tuple(c.value for c in DurabilityClass),
}
_WRITTEN = {
    "origin": re.compile("[0-9a-f]{16}"),
    "run": re.compile("[0-9a-z]+"),
    "started": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"),
    "layout_hash": re.compile("[0-9a-f]{12}"),
}
_RESTS = {"modelled": {"modelled"}, "measured": {"measured"}, "emulated": {"measured", "emulated"}}
"""Basis of a run → what its metrics may rest on: nothing modelled is called measured."""


def _column(name: str) -> pa.Field:
    hint = _HINTS[name]
    if name == "metrics":
        return pa.field(name, pa.list_(pa.field("element", _METRIC, nullable=False)), nullable=False)
    if hint == int | None:
        return pa.field(name, pa.int64())
    simple = {bool: pa.bool_(), int: pa.int64()}
    return pa.field(name, simple.get(hint, pa.string()), nullable=False)


COLUMNS = pa.schema([_column(f.name) for f in fields(ResultRow)])
"""The columns. Those that are dictionaries in a row are JSON in the file."""
_JSON = tuple(name for name, hint in _HINTS.items() if str(hint).startswith("dict"))


def write(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write ``rows`` to ``path``, whole or not at all. Raises InputError."""
    said = {b"format": FORMAT, b"version": b"%d" % VERSION, b"written_by": f"ztune {__version__}".encode()}
    table = pa.Table.from_pylist([_raw(row) for row in rows], COLUMNS.with_metadata(said))
    with files.writing(path) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def _raw(row: ResultRow) -> dict[str, Any]:
    out = asdict(row)
    out.update({name: json.dumps(out[name], sort_keys=True, ensure_ascii=False) for name in _JSON})
    return out


def read(path: Path) -> list[ResultRow]:
    """Return the rows of the results file ``path``.

    Raises InputError with one sentence for a file of another version, one that was cut short or damaged, and
    one that is something else.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no regular file")
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC))
            if begins != _MAGIC:
                raise InputError(f"{path} is no results file; `ztune results export` makes one")
            file.seek(-len(_MAGIC), 2)
            if file.read() != _MAGIC:
                raise InputError(f"{path} was cut short: its end is missing; copy it again")
            # As an open file, since Arrow takes the name "db-12:30.parquet" for a URI of its own.
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                _check_version(path, parquet.schema_arrow)
                size = 0
                for batch in parquet.iter_batches(_BATCH):
                    size += batch.nbytes
                    if size > _MOST:
                        raise InputError(f"{path} holds more than {_MOST >> 20} MiB of rows; split it in two")
                # Not from the batches: of a file that is damaged they may be fewer, without a word.
                raw = parquet.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path} can't be read: {reason(error)}") from None
    return [_row(path, number, one) for number, one in enumerate(raw, start=1)]


def _check_version(path: Path, schema: pa.Schema) -> None:
    said = schema.metadata or {}
    if said.get(b"format") != FORMAT:
        raise InputError(f"{path} is Parquet, but no results file; `ztune results export` makes one")
    version = said.get(b"version", b"").decode("ascii", "replace")
    if version != str(VERSION):
        raise InputError(
            f'{path} has version "{version}" of the results format, this ztune knows {VERSION}; '
            "use the ztune that wrote it, or export the runs again"
        )
    if not schema.remove_metadata().equals(COLUMNS):
        raise InputError(f"{path} is damaged: its columns are not those of version {VERSION}")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


def _row(path: Path, number: int, raw: Mapping[str, Any]) -> ResultRow:
    """Return one row; the types of its columns are right."""
    values = dict(raw)

    def wrong(name: str) -> InputError:
        return InputError(
            f"{path}: row {number}: {name} can't be {str(raw[name])[:40]!r}; the file is damaged"
        )

    for name, words in _WORDS.items():
        if values[name] not in words:
            raise wrong(name)
    for name, pattern in _WRITTEN.items():
        if not pattern.fullmatch(values[name]):
            raise wrong(name)
    for name in _JSON:
        try:
            values[name] = json.loads(values[name], parse_constant=_no_number, parse_float=_finite)
        except (ValueError, RecursionError):
            raise wrong(name) from None
        if not isinstance(values[name], dict) or not all(
            isinstance(one, str | int | float) for one in values[name].values()
        ):
            raise wrong(name)
    values["metrics"] = tuple(RowMetric(**one) for one in values["metrics"])
    rests = _RESTS[values["run_basis"]]
    if not all(math.isfinite(m.value) and m.unit in UNITS and m.basis in rests for m in values["metrics"]):
        raise wrong("metrics")
    return ResultRow(**values)
