"""What every target offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from ztune.study import Layout, Study

# Called with the phase ("load", "measure") and the share of it that is done, 0 to 1.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: with a result, or with one sentence that says why there is none."""

    result: dict[str, Any] | None
    error: str | None
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.result is not None


class ScreeningPlace(Protocol):
    """A place where trials run."""

    name: str

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError if this target can't answer what ``layout`` asks."""
        ...

    def spec(self, study: Study, layout: Layout, seed: int) -> dict[str, Any]:
        """Return everything that the trial needs, as JSON, without the paths of this machine."""
        ...

    def run(self, spec: dict[str, Any], progress: Progress | None, stop: Event) -> Outcome:
        """Run one trial. Returns early, leaving nothing behind, once ``stop`` is set."""
        ...
