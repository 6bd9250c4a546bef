"""Where a prior's runs come from: the file that ztune ships, and the user's store."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

from ztune.databases import database
from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.priors.prior import PriorRun, runs_of
from ztune.results import export
from ztune.results.row import ResultRow
from ztune.store.db import Store
from ztune.store.records import Run

SHIPPED = "shipped.parquet"
"""A results file: ``bench/priors.py --write`` makes it."""
MOST = 20
"""Of the user's runs, the newest: each is read with all of its trials."""
_NAMES = {"postgres": "postgresql", "mysql": "mariadb", "redis": "valkey", "wiredtiger": "mongodb"}


def named(word: str) -> database.Database:
    """Return the database that ``word`` means: its name, a workload of it, or what people call it.

    Raises InputError.
    """
    found = database.of_workload(word)
    if found is not None:
        return found
    wanted = _NAMES.get(word.lower(), word.lower())
    known = {one.name: one for one in database.every()}
    if wanted not in known:
        raise InputError(
            f'"{word}" is no database that ztune knows; they are '
            f"{', '.join(known)}.{suggest(wanted, [*known, *_NAMES])}"
        )
    return known[wanted]


def shipped() -> Path:
    """Return the results file that comes with ztune."""
    return Path(str(resources.files("ztune.priors"))) / SHIPPED


def runs(name: str) -> list[PriorRun]:
    """Return the runs of the database ``name`` that a prior can use, the user's own first.

    Raises InputError where the shipped file can't be read.
    """
    own, recordings = _own(name)
    mine = [row for row in own if row.database == name]
    seen = {(row.origin, row.run) for row in mine}
    from ztune.results import file as results_file  # here, as it takes Arrow

    theirs = [row for row in results_file.read(shipped()) if row.database == name]
    return [
        # Of a job that is none of ztune's the recording is the load.
        *(
            run if run.workload else replace(run, load=recordings[run.name])
            for run in runs_of(mine, own=True)
        ),
        *runs_of((row for row in theirs if (row.origin, row.run) not in seen), own=False),
    ]


def _own(name: str) -> tuple[list[ResultRow], dict[str, str]]:
    """Return the rows of the store's newest runs, and what recording each run replayed."""
    with Store.open() as store:
        ended = [run for run in store.runs() if run.status == "done" and _may_be_of(run, name)][-MOST:]
        return export.rows(store, ended) if ended else [], {run.id: run.trace_sha for run in ended}


def _may_be_of(run: Run, name: str) -> bool:
    """Say whether a run is of the database ``name``, as far as its record says: a trace may be of any."""
    workload = run.job.get("workload") or run.study.get("workload")
    if not isinstance(workload, str):
        return True
    found = database.of_workload(workload)
    return found is None or found.name == name
