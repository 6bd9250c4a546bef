"""From a workload's name, a layout and parameters to a test: for the command and ``bench/crash.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ztune.crash.cuts import CrashTest
from ztune.crash.database import database_of
from ztune.crash.power import Mounted, Power
from ztune.crash.result import Cut, Result
from ztune.databases import registry
from ztune.databases.crash_test import TestedDatabase
from ztune.databases.workload import JobWorkload
from ztune.places import mount_program
from ztune.study import Layout, Study
from ztune.study.durability import judge, weakening
from ztune.study.layout import parse_layout


def prepare(
    workload: str,
    study: Study,
    layout: Layout,
    params: Mapping[str, str],
    *,
    cuts: int,
    disks: str,
    clients: int,
    window_s: float,
    seed: int,
    keep: bool = False,
    parent: Path | None = None,
    report: Callable[[Cut], None] = lambda cut: None,
    say: Callable[[str], None] = lambda text: None,
) -> CrashTest:
    """Return the test that is asked for; nothing is started.

    Raises:
        InputError: a wrong name or value. MissingError: this machine lacks something.
    """
    make = database_of(workload)
    chosen = judged(layout, registry.settings_of(workload, params))
    program = mount_program.check()
    values = _parameters(workload, params)

    def database() -> TestedDatabase:
        return make(values, chosen.database, clients=clients)

    first = database()

    def power(folder: Path) -> Power:
        return Mounted(program, study, chosen, first.roles, folder, seed=seed, disks=disks)

    power(Path())  # Refuses what can't be mounted.
    result = Result(
        workload=workload,
        version=first.version,
        openzfs="",
        study=study.name,
        layout=chosen.name,
        hash=chosen.hash,
        settings=chosen.settings(),
        database=first.settings,
        promised=judge(chosen).klass,
        reasons=list(judge(chosen).reasons),
        options={
            "cuts": cuts, "seed": seed, "clients": clients, "window_s": window_s, "disks": disks,
            "params": dict(params),
        },
        checks=first.checks,
    )  # fmt: skip
    return CrashTest(
        database, power, result, count=cuts, seed=seed, clients=clients, window_s=window_s, parent=parent,
        keep=keep, report=report, say=say,
    )  # fmt: skip


def judged(layout: Layout, settings: Mapping[str, str]) -> Layout:
    """Return ``layout`` with those of the database's own ``settings`` that decide its durability class."""
    raw = layout.to_json()
    return parse_layout({**raw, "database": {**weakening(settings), **layout.database}})


def _parameters(workload: str, params: Mapping[str, str]) -> dict[str, Any]:
    # Those that crash tests know are all workloads with a job.
    made = registry.make(workload, params)
    assert isinstance(made, JobWorkload)
    return made.resolved()
