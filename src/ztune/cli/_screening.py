"""The ranking of a screening run, as ``ztune screen`` and ``ztune show`` print it."""

from __future__ import annotations

from collections.abc import Iterable

from ztune import output
from ztune.output import Console
from ztune.report import source, terminal
from ztune.runs import feasible
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study
from ztune.study.advised import StudyBeside


def say_notes(study: Study, budget: int, unused: Iterable[str]) -> None:
    """Say at once what was left out of ``study``, and why, and what ``budget`` is too small for: not only
    with the results. ``unused``: sentences on hardware that is there. Raises InputError where nothing could
    come of it.
    """
    for note in (*study.notes, *feasible.check(study, budget), *unused):
        output.note(note)


def say_advice(found: StudyBeside) -> Study:
    """Return the study in ``found``, and say on stderr what its sets of advice leave out."""
    for note in found.notes:
        output.note(note)
    return found.study


def print_ranking(run: Run, store: Store, top: int | None) -> None:
    """Print the layouts in order, best first: the first ``top`` of them, or all."""
    trials = store.trials(run.id)
    if not any(t.ok for t in trials):
        output.echo(f"run {run.id}: no layout has a result", err=True)
        return
    console = Console(highlight=False)
    console.print(f"Run {run.id}: {run.name}. Times are modelled from the disks' profile, not measured.")
    console.print(terminal.ranking(source.evidence(run.id, store).recommend(), top))
