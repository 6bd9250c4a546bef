"""Who is told what happens in a run, of replays or of real databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ztune.store.records import Run, Trial


class Observer:
    """Is told what happens, and shows nothing; a view overrides what it shows.

    All methods are called from the thread that called ``start`` or ``resume``; ``step`` and ``say`` from any.
    """

    def waits(self, what: str) -> AbstractContextManager[object]:
        """Before a run begins: within the body it waits for something, ``what`` says which."""
        return nullcontext()

    def begin(self, run: Run, trials: Sequence[Trial], at_once: int) -> None:
        """A run began or goes on; ``trials`` are those it has, of which ``at_once`` run at a time."""

    def round(self, number: int, waiting: int, more: int) -> None:
        """A round (a block of a measured run) begins: ``waiting`` trials, after which ``more`` may follow."""

    def trial(self, trial: Trial) -> None:
        """A trial begins."""

    def step(self, trial: Trial, step: str, state: str, share: float, text: str) -> None:
        """The trial is in this step: ``state`` is begin, progress or end, ``share`` what is done, 0 to 1.

        The state ``wait`` has no share: ``text`` says what the trial waits for.
        """

    def finished(self, trial: Trial, steps: Mapping[str, float]) -> None:
        """A trial ended, and is stored; ``steps``: the seconds of each."""

    def judged(self, trials: Sequence[Trial], outcome: Mapping[str, Any] | None) -> None:
        """The layouts were compared; ``outcome``: of a measured run, where the comparison stands."""

    def say(self, text: str) -> None:
        """A sentence for the user."""
