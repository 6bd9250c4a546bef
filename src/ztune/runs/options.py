"""How to run: what the user chose, kept with the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from ztune.analysis.resolve import DEFAULT_RESOLUTION
from ztune.onhost.fields import from_json, to_json

if TYPE_CHECKING:
    from ztune.store.records import Run

DEFAULT_BUDGET = 32
DEFAULT_BLOCKS = (3, 8)
DEFAULT_TOP = 5


class Options:
    """How options are kept with a run, and read back."""

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON values, for the run's record."""
        return dict(to_json(self))

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return the options of a stored run; what another version kept beside them is left out."""
        known = cls.__dataclass_fields__  # type: ignore[attr-defined]
        return from_json(cls, {k: v for k, v in run.options.items() if k in known})


@dataclass(frozen=True)
class ScreenOptions(Options):
    """How to screen. ``jobs`` 0: one per core as far as memory goes. ``budget``: layouts in all. ``only``:
    the study's layouts, none around the best of them. ``have``: hardware that is there though the base layout
    leaves it unused, factor → value. ``cores``: of the host that runs the database; None: those of its
    ``processor``, which ``HostProcessors`` keeps, else of the recorded host. ``ages``: pools on which the
    base and the best are tried once more. ``beside``: a second recording that they are replayed beside, as
    ``places.neighbour.Neighbour`` keeps it; empty: none. ``elsewhere``: whether the best are tried with other
    sizes of the ARC. ``sample``: one region in so many is replayed, of ``region`` bytes; 0: what suits, and
    in a run's record what was chosen. ``load``: "all" of the files, or what is "touched"; empty: what suits.
    """

    jobs: int = 0
    budget: int = DEFAULT_BUDGET
    timeout_s: float | None = None
    seed: int | None = None
    only: bool = False
    have: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    processor: Mapping[str, Any] = field(default_factory=dict)
    ages: tuple[str, ...] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: bool = False
    sample: int = 0
    region: int = 0
    load: str = ""


@dataclass(frozen=True)
class TrialOptions(Options):
    """How to run trials.

    ``blocks``: the fewest and the most times that each layout runs. ``resolution``: a share; smaller
    differences don't matter. ``time_limit_s``: no trial begins after so many seconds. ``aa``: the baseline
    against itself. ``settle``: "cold" or "warm"; None: as suits the job. ``saved``: a directory at the place
    for the loaded database. ``have``: as of ``ScreenOptions``. ``follow``: what a screening foretold, where
    layouts join by it (``runs.follow.ScreenedPrior``).
    """

    blocks: tuple[int, int] = DEFAULT_BLOCKS
    resolution: float = DEFAULT_RESOLUTION
    time_limit_s: float | None = None
    aa: bool = False
    settle: str | None = None
    saved: str | None = None
    probes: Mapping[str, Any] = field(default_factory=dict)
    have: Mapping[str, str] = field(default_factory=dict)
    follow: Mapping[str, Any] = field(default_factory=dict)

    @property
    def looks(self) -> int:
        """How often it is asked whether the best is known."""
        return self.blocks[1] - self.blocks[0] + 1
