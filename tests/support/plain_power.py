"""Directories on this machine's own file system: a cut kills the database alone, and may take back writes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from workloads_made import job_workload

from ztune.crash.cuts import CrashTest, Cutting
from ztune.crash.database import database_of
from ztune.crash.result import Cut, Result
from ztune.databases.crash_test import TestedDatabase
from ztune.databases.postgresql.onhost.server import find_binaries
from ztune.errors import MissingError
from ztune.study import DurabilityClass


def need(workload: str) -> None:
    """Skip where there is no PostgreSQL for it."""
    if workload == "postgres-oltp":
        try:
            find_binaries()
        except MissingError as error:
            pytest.skip(f"no PostgreSQL here: {error}")


class Plain:
    """What was written stays; ``damage`` is done to the directories after each cut, before the next start."""

    def __init__(
        self, roles: tuple[str, ...], folder: Path, *, together: bool, damage: Callable[[Path], None] | None
    ) -> None:
        self.top = folder / "mnt"
        self.places: Mapping[str, Path] = {role: self.top / ("all" if together else role) for role in roles}
        self._damage = damage
        self._was_cut = False
        self.ups: list[str] = []
        self.version = "no ZFS"

    def up(self, cache: str) -> int:
        self.ups.append(cache)
        for place in self.places.values():
            place.mkdir(parents=True, exist_ok=True)
        if self._was_cut and self._damage is not None:
            self._damage(self.top)
        return 0

    def watch(self) -> None:
        pass

    def cut(self) -> None:
        self._was_cut = True

    def clear(self) -> None:
        pass

    def down(self) -> None:
        pass


class Forgetful(Plain):
    """Acknowledges syncs and keeps none: a cut brings back the state of the last mount."""

    def up(self, cache: str) -> int:
        found = super().up(cache)
        for place in set(self.places.values()):
            saved = self.top.with_name("saved") / place.name
            if self._was_cut:
                _copy(saved, place)
            else:
                saved.mkdir(parents=True, exist_ok=True)
                _copy(place, saved)
        return found


def _copy(source: Path, target: Path) -> None:
    for path in target.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    # With owners, which shutil does not keep. The directory itself stays: it is the database's.
    subprocess.run(["cp", "-a", f"{source}/.", target], check=True)


def plain_test(
    workload: str,
    parent: Path,
    *,
    cuts: int,
    params: Mapping[str, Any] | None = None,
    damage: Callable[[Path], None] | None = None,
    power: type[Plain] = Plain,
    promised: DurabilityClass = DurabilityClass.NOTHING,
    report: Callable[[Cut], None] = lambda cut: None,
    seed: int = 1,
    clients: int = 3,
    keep: bool = False,
    window_s: float = 0.4,
) -> CrashTest:
    values = job_workload(workload, params).resolved()
    made = database_of(workload)(values, {}, clients=clients)

    def database() -> TestedDatabase:
        return database_of(workload)(values, {}, clients=clients)

    result = Result(
        workload, made.version, "", "plain", "base", "", {}, made.settings, promised, [], {}, made.checks
    )
    return CrashTest(
        database,
        lambda folder: power(made.roles, folder, together=workload == "sqlite", damage=damage),
        result,
        Cutting(cuts, seed, clients, window_s, keep, parent, accounts=500),
        report=report,
    )
