"""Time series of probes: Parquet files beside the database, one per trial and probe.

They live in ``series/RUN/`` of the state directory. The database holds their names, so a series is there for
readers only once it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ztune import paths
from ztune.errors import InputError, unwritten
from ztune.store.records import SeriesRef, Trial

_SAFE = re.compile(r"[^A-Za-z0-9_-]+")


class SeriesRows:
    """Gathers the rows of a trial's series until they are written."""

    def __init__(self) -> None:
        self._columns: dict[str, list[str]] = {}
        self._rows: dict[str, list[list[float | None]]] = {}

    def add(self, probe: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add rows of one probe; rows that don't fit the probe's first columns are left out."""
        known = self._columns.setdefault(probe, [str(c) for c in columns])
        keep = self._rows.setdefault(probe, [])
        if list(columns) != known:
            return
        for row in rows:
            if len(row) == len(known):
                keep.append([_number(value) for value in row])

    def write(self, run_id: str, number: int) -> list[SeriesRef]:
        """Write one file per probe and return what to store of it. Raises InputError with the reason."""
        import pyarrow as pa  # here, as whoever runs trials imports this, and it takes long to load
        import pyarrow.parquet as pq

        out: list[SeriesRef] = []
        for probe, columns in self._columns.items():
            rows = self._rows[probe]
            if not rows:
                continue
            name = f"series/{run_id}/{number:04d}-{_SAFE.sub('-', probe)}.parquet"
            path = paths.home() / name
            arrays = {c: pa.array([row[i] for row in rows], pa.float64()) for i, c in enumerate(columns)}
            partial = path.with_suffix(".partial")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.table(arrays), partial, compression="zstd")
                partial.replace(path)
            except OSError as error:
                raise unwritten(path, error) from None
            out.append(SeriesRef(probe, name, len(rows), columns))
        return out


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def read(trial: Trial, probe: str) -> Mapping[str, list[float | None]]:
    """Return the series of ``probe`` of a trial by column; ``t`` is Unix time, seconds.

    Raises InputError if the trial has none, or its file is gone.
    """
    import pyarrow as pa  # see ``SeriesRows.write``
    import pyarrow.parquet as pq

    for ref in trial.series:
        if ref.probe == probe:
            path = paths.home() / ref.file
            try:
                with pq.ParquetFile(path) as parquet:
                    found: dict[str, list[float | None]] = parquet.read().to_pydict()
            except (OSError, pa.ArrowInvalid) as error:
                raise InputError(f"the series {path} can't be read: {error}") from None
            return found
    names = ", ".join(s.probe for s in trial.series) or "none"
    raise InputError(f'trial {trial.number} of run {trial.run_id} has no series "{probe}"; it has: {names}')
