"""What all parts of a run that goes on know of it, and what each of them tells the store and the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ztune.places import bundle
from ztune.runs.at_work import Hosts
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.runs.plan import RunJob
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout


def dilation(described: dict[str, Any]) -> float:
    """Return how many times slower than real the clocks of a place run, by what it says of itself."""
    return float(described.get("dilation") or 1.0)


class OpenRun:
    """A run that is going on. ``run`` and ``job`` are replaced as more is known of them."""

    def __init__(
        self,
        store: Store,
        run: Run,
        hosts: Hosts,
        job: RunJob,
        options: TrialOptions,
        layouts: Sequence[Layout],
        observer: Observer,
    ) -> None:
        self.store, self.run, self.hosts, self.job = store, run, hosts, job
        self.options, self.layouts, self.observer = options, list(layouts), observer
        # Once: all trials of a run are made by the same program, whatever becomes of its sources meanwhile.
        self.bundle = bundle.build(job.modules)
        described = (hosts.rack or hosts.all[0].place).describe()
        self.dilation = dilation(described)
        self.patience = max(1.0, float(described.get("patience") or 1.0))

    def trials(self) -> list[Trial]:
        """Return all trials of the run, as they are stored now."""
        return self.store.trials(self.run.id)

    def say(self, text: str) -> None:
        """Tell the user."""
        self.observer.say(text)

    def warn(self, text: str) -> None:
        """Say what became of a host, and keep it with the run."""
        self.say(text)
        self.note(warnings=[*self.run.warnings, text])

    def note(self, **facts: Any) -> None:
        """Keep something with the run."""
        self.run = self.store.note_run(self.run.id, **facts)

    def store_failure(self, trial: Trial, sentence: str) -> None:
        """Store a trial as failed that did not begin."""
        self.store.start_trial(trial.id, {})
        self.observer.trial(trial)
        self.observer.finished(self.store.finish_trial(trial.id, error=sentence, wall_s=0.0), {})
