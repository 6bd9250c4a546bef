"""How long the rest of a run takes, from the trials that are done."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ztune.onhost.events import STEPS
from ztune.store.records import Trial


class TimeLeft:
    """Learns how long each step takes; answers how much time is left."""

    def __init__(self, done: Iterable[Trial] = ()) -> None:
        self._steps: dict[str, list[float]] = {step: [] for step in STEPS}
        self._walls: list[float] = []
        for trial in done:
            if trial.ok:
                self.add((trial.result or {}).get("steps", {}), trial.wall_s or 0.0)

    def add(self, steps: dict[str, float], wall_s: float) -> None:
        """Note a finished trial: seconds by step, and in all."""
        for step, seconds in steps.items():
            if step in self._steps and isinstance(seconds, int | float):
                self._steps[step].append(float(seconds))
        self._walls.append(wall_s)

    @property
    def trial_s(self) -> float | None:
        """Seconds of a whole trial; None before the first ended."""
        return median(self._walls) if self._walls else None

    def rest_s(self, step: str, share: float, spent: float) -> float | None:
        """Return the seconds left of a trial that is in ``step``, done to ``share`` in ``spent`` seconds.

        None if not known.
        """
        if not self._walls or step not in self._steps:
            return self.trial_s
        if not any(self._steps.values()):  # a replay tells no times of its steps
            whole = median(self._walls)
            if share > 0 and spent > whole:  # some layouts take many times as long as others
                whole = spent / share
            return whole * (1 - min(1.0, max(0.0, share)))
        later = STEPS[STEPS.index(step) + 1 :]
        total = sum(median(self._steps[s]) for s in later if self._steps[s])
        if self._steps[step]:
            total += median(self._steps[step]) * (1 - min(1.0, max(0.0, share)))
        return total

    def left_s(
        self, waiting: int, running: Iterable[tuple[str, float, float]] = (), at_once: int = 1
    ) -> float | None:
        """Return the seconds left for ``waiting`` trials after those that are in a step, done to a share in
        some seconds.

        None before the first trial ended, and while a replay ages its pools: that takes many times as long as
        the replays before it, and nothing tells how long. ``at_once``: how many run side by side.
        """
        usual, running = self.trial_s, list(running)
        if usual is None or (not any(self._steps.values()) and any(step == "age" for step, *_ in running)):
            return None
        now = sum(self.rest_s(*one) or 0.0 for one in running if one[0])
        return (waiting * usual + now) / at_once
