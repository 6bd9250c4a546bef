"""What `ztune advise` answers from where the user has no runs of his own: small real loads, screened.

    python bench/priors.py                      every load; recordings and screenings that are there stay
    python bench/priors.py sqlite rocksdb       only those of these databases
    python bench/priors.py --write FILE         … then write what is there as the file that ztune ships,
                                                src/ztune/priors/shipped.parquet

Each load runs once, on a database of ztune's own, and is recorded. The recording is screened on three disks
(hdd-7200, ssd-sata, nvme) with an ARC of 64 MiB, against the same layouts each time: a complete grid of the
data's record sizes and compression, and the sets of advice that are in print. Of the two loads of a database
one has more data than the ARC holds, as far as that database reads its files at all. Nothing is measured:
times are modelled. What was cut goes on with the screening that it was at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import started

from ztune.cli._recording import record_workload
from ztune.databases import database, registry
from ztune.places import engine as engines
from ztune.places.engine import Engine
from ztune.priors.prior import KEPT
from ztune.results import export
from ztune.results import file as results_file
from ztune.runs import recordings, screening
from ztune.runs.asked import suited
from ztune.runs.options import ScreenOptions
from ztune.runs.screening import versions
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study, advised, generic
from ztune.trace.reader import Trace

PROFILES = ("hdd-7200", "ssd-sata", "nvme")
ARC = "64M"
PAGES = ("8K", "16K", "32K", "64K", "128K")
LONG = ("32K", "128K", "1M")
"""For what is written front to back: tables of an LSM tree, append-only files."""
COMPRESSIONS = ("lz4", "zstd-3")


@dataclass(frozen=True)
class Load:
    """A workload as it is recorded; ``sizes``: the record sizes of its data that are worth a try."""

    workload: str
    parameters: Mapping[str, Any]
    sizes: Sequence[str] = PAGES

    @property
    def database(self) -> str:
        """The database, by ztune's name for it."""
        found = database.of_workload(self.workload)
        assert found is not None
        return found.name


# Twice an ARC of 64 MiB, and well within it; rates that a rotating disk keeps. A replay of the larger takes
# ten seconds, of the smaller three.
_BEYOND, _WITHIN = {"size": "112M", "seconds": 5}, {"size": "24M", "seconds": 5}
LOADS = (
    Load("sqlite", _WITHIN, ("4K", *PAGES)),
    Load("postgres-oltp", {**_WITHIN, "rate": 20}),
    Load("mariadb-oltp", _WITHIN),
    Load("rocksdb", {"size": "24M", "operations": 500}, LONG),
    Load("valkey", {"keys": 20000, "seconds": 5}, LONG),
    Load("orientdb-graph", {"triples": 2000}),
    Load("orientdb-import", {"triples": 10000}),
    Load("valkey", {"keys": 5000, "seconds": 5, "value_size": "8K"}, LONG),
    Load("rocksdb", {"size": "112M", "operations": 500}, LONG),
    Load("postgres-oltp", {**_BEYOND, "rate": 20}),
    Load("sqlite", _BEYOND, ("4K", *PAGES)),
    Load("mariadb-oltp", _BEYOND),
)


def study_of(load: Load, trace: Trace, profile: str) -> Study:
    """Return the grid of one load under one condition."""
    roles = {str(f.role) for f in trace.manifest.files if f.role is not None}
    made = generic.build(roles, groups=[("data", *registry.together(load.workload))])
    axes: dict[str, tuple[str | int, ...]] = {
        "data.recordsize": tuple(load.sizes),
        "data.compression": COMPRESSIONS,
    }
    made = made.model_copy(update={"axes": axes, "cross": (tuple(axes),), "layouts": ()})
    made = made.model_copy(update={"name": "prior", "workload": load.workload})
    named = [*advised.sets_of(load.database)]
    return suited(advised.beside(made, named, load.database, advised.REPLAY).study, trace, profile, ARC)


def conditions(only: Sequence[str]) -> Iterator[tuple[Load, str]]:
    """Yield load and profile; all disks of a load together."""
    for load in LOADS:
        if not only or load.database in only:
            for profile in PROFILES:
                yield load, profile


def name_of(load: Load, profile: str) -> str:
    """Return what a run is called, which is how it is found again."""
    given = ",".join(f"{k}={v}" for k, v in load.parameters.items())
    return f"prior {load.workload} {given} {profile}"


def done(store: Store, engine: Engine) -> dict[str, Run]:
    """Return the finished runs by name, of this engine; the last of each name counts."""
    now = versions(engine)
    return {
        run.name: run
        for run in store.runs()
        if run.status == "done" and run.name.startswith("prior ") and run.versions == now
    }


def screen(store: Store, engine: Engine, only: Sequence[str]) -> None:
    """Screen what is not there yet."""
    there = done(store, engine)
    wanted = list(conditions(only))
    for number, (load, profile) in enumerate(wanted, start=1):
        name = name_of(load, profile)
        if name in there:
            continue
        trace = recordings.recorded(
            load.workload, load.parameters, {}, "prior",
            lambda made, path: record_workload(made, "auto", path),
        )  # fmt: skip
        print(f"{number} of {len(wanted)}: {name}", file=sys.stderr, flush=True)
        options = ScreenOptions(jobs=1, budget=1000, only=True)
        study = study_of(load, trace, profile)
        screening.start(
            store, trace, study, engine, options, name=name, others={}, command=["bench/priors.py"]
        )


def write(store: Store, engine: Engine, out: Path) -> int:
    """Write the rows of what is there, with the few metrics that an answer takes; return how many."""
    runs = list(done(store, engine).values())
    rows = [
        replace(row, metrics=tuple(m for m in row.metrics if m.name in KEPT))
        for row in export.rows(store, runs)
        if row.status == "ok"
    ]
    results_file.write(out, rows)
    return len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("databases", nargs="*", metavar="DATABASE")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--as-it-is", action="store_true", help="with --write: screen nothing more")
    asked = parser.parse_args()
    engine = engines.check()
    with Store.open() as store:
        if not asked.as_it_is:
            screen(store, engine, asked.databases)
        if asked.write is not None:
            count = write(store, engine, asked.write)
            print(f"{asked.write}: {count} rows, {asked.write.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    started.script(main)
