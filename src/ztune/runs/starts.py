"""How a trial gets its database: loaded by itself, or copied from a state that was loaded once for all."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ztune.databases.database import of_workload
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import interrupt
from ztune.places.channel import Place, ask
from ztune.places.mount import MountPlace
from ztune.runs import prepared
from ztune.runs.open_run import OpenRun
from ztune.runs.plan import RunJob
from ztune.store.records import Trial
from ztune.study import Layout

_THE_USERS = ("command", "http")  # whose databases only the user knows


class LoadError(ZtuneError):
    """The database can't be brought to its starting state."""


class Starts:
    """The states that trials of a run start from. ``held``: keeps them from being removed meanwhile."""

    def __init__(self, going: OpenRun, may_join: Iterable[Layout]) -> None:
        self._going = going
        self._may_join = list(may_join)
        self._found: dict[str, dict[str, Any] | LoadError] = {}
        self.held = ExitStack()

    def of(self, place: Place, trial: Trial) -> dict[str, Any]:
        """Return how ``trial`` gets its database. Raises LoadError, InputError, MissingError."""
        layout, going = trial.layout, self._going
        if going.options.saved is not None and not isinstance(place, MountPlace):
            job = going.job.under(layout, going.run.resolved_study.layout)
            return _on_target(place, going.options.saved, job, layout)
        key = repr(layout.job_settings())
        if key not in self._found:
            try:
                self._found[key] = self._prepare(place, trial)
            except LoadError as error:
                # The next layout would wait as long, for the same.
                interrupt.check()
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, LoadError):
            raise found
        return found

    def forget(self) -> None:
        """Ask anew: the parameters have changed by which a state is kept."""
        self._found.clear()

    def _prepare(self, place: Place, trial: Trial) -> dict[str, Any]:
        going = self._going
        every = [*going.layouts, *self._may_join]  # the same in each block, whatever has joined
        if place.shared(Path("/")) is None or loads_where_it_measures(going.job, every):
            return {"kind": "load"}
        said: list[str] = []

        def progress(step: str, share: float) -> None:
            if step not in said:
                said.append(step)
                going.say(f"once for all trials: {step}")
            going.observer.step(trial, "load", "progress", share, step)

        try:
            job = going.job.under(trial.layout, going.run.resolved_study.layout)
            state = prepared.prepare(job.name, job.params, dict(trial.layout.database), progress)
        except (InputError, MissingError):
            raise
        except ZtuneError as error:
            raise LoadError(f"the database can't be loaded on this host: {error}") from None
        self.held.enter_context(prepared.in_use(state))
        there = place.shared(state)
        return {"kind": "load"} if there is None else {"kind": "copy", "from": there}


def loads_where_it_measures(job: RunJob, layouts: Iterable[Layout]) -> bool:
    """Say whether each trial fills its database itself, instead of copying one that was filled once.

    Only a load on the layout's own datasets shows that a database can't live with a split, such as a rename
    from one role's directory to another's. Of ztune's own databases that is known (``roles_together``).
    """
    one = of_workload(job.workload)
    known = one is not None and one.own and one.name not in _THE_USERS
    return not known and any(
        len({dataset.name for role in job.roles if (dataset := layout.dataset_of(role))}) > 1
        for layout in layouts
    )


def _on_target(place: Place, folder: str, job: RunJob, layout: Layout) -> dict[str, Any]:
    """Return the start from a directory of the target that the user named: kept there by the first trial."""
    path = (
        f"{folder.rstrip('/')}/ztune-saved-{prepared.key(job.name, job.params, layout.database, job.version)}"
    )
    code, _, _ = ask(place, ["test", "-d", path])
    return {"kind": "copy", "from": path} if code == 0 else {"kind": "keep", "save": path}
