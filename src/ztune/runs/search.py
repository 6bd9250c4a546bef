"""A screening's space of layouts: which settings vary, what each layout came to, and what to try next.

The space is that of the study's axes on the base's own disks and memory, of what the objective allows. What
has to be bought, and what is less durable than allowed, is ``beside`` it: each such value is tried once, on
top of the layout that was found.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from ztune.analysis.metrics import replayed
from ztune.analysis.need import SPREAD
from ztune.analysis.results import LayoutResult, collect
from ztune.runs.space import AGE, JOB_FACTORS, changed, first_round, layouts_of
from ztune.search.propose import STARTS, Proposal, plainer, propose
from ztune.search.space import Cell, SearchAxis, SearchSpace
from ztune.store.records import Run, Trial
from ztune.study import Layout, Study
from ztune.study.advised import PREFIX
from ztune.study.durability import Bar
from ztune.study.hardware import Hardware
from ztune.study.layout import default_setting, with_settings
from ztune.units import listed, parse_size

KEY = "search"
"""Where a run's ``outcome`` keeps how its search ended."""
ENOUGH = 0.05
"""The chance of something better, below which a search stops."""
UNKNOWN = 0.5
"""The chance of something better, above which a search knows too little to give a figure."""
_FLOOR = 1e-3  # of the median: a metric that is near zero, such as flushes, counts as so much
Reason = Literal["enough", "budget", "all", "failed"]


@dataclass(frozen=True)
class Stopped:
    """Why a search stopped: the ``chance`` left was small enough, the ``budget`` was used up, ``all`` of the
    space was tried, or nothing that was tried has a result.

    ``tried``: layouts until then. ``cells``: layouts of the space, as far as is known without trying all.
    ``chance``: that one that was not tried is better by more than ``within``, a share; None: not known.
    ``unvaried``: the settings of which one value alone was tried.
    """

    reason: Reason
    tried: int
    budget: int
    cells: int
    within: float
    chance: float | None
    unvaried: Sequence[str] = ()

    def sentence(self) -> str:
        """Return it for people; "" where there was nothing to search."""
        if self.cells <= 1 and self.reason == "all":
            return ""
        better = f"is better by more than {self.within * 100:.2g} %"
        if self.reason == "all":
            return f"All {self.cells:,} layouts of the space were tried."
        if self.reason == "failed":
            return f"The search stopped: none of the {self.tried} layouts that were tried has a result."
        if self.unvaried:
            return (
                f"{self._budget}: too few for each setting to have another value. Nothing "
                f"is known of {listed(self.unvaried)}; a larger --budget varies more."
            )
        # A model that knows little of a space expects much of it: so large a chance is its ignorance.
        if self.chance is None or (self.reason == "budget" and self.chance > UNKNOWN):
            return f"{self._budget}: too few to tell whether another {better}; a larger --budget does."
        chance = chance_text(self.chance)
        if self.reason == "enough":
            left = f"another of the space's {self.cells:,} {better}"
            return f"Stopped after {self.tried} of {self.budget}: the chance that {left} is {chance}."
        return f"{self._budget}: the chance that another {better} is {chance}; a larger --budget may find it."

    @property
    def _budget(self) -> str:
        """What the budget counts is said: pairs and what would be bought are tried on top of it."""
        return f"{self.budget:,} of {self.cells:,} layouts were searched, all of the budget"

    def to_json(self) -> dict[str, Any]:
        """Return it as a run keeps it."""
        return asdict(self)


def chance_text(chance: float) -> str:
    """Return a chance, 0 to 1, for people: "3 %", and "less than 1 %"."""
    return "less than 1 %" if chance < 0.01 else f"{chance * 100:.0f} %"


def stopped(outcome: Mapping[str, Any]) -> Stopped | None:
    """Return how the search of a run ended, from its ``outcome``; None of a run that kept nothing."""
    kept = outcome.get(KEY)
    return Stopped(**kept) if kept else None


def ending_of(trials: Sequence[Trial], proposal: Proposal, room: int) -> Reason | None:
    """Return why a search ends here, or None: ``room`` is how many layouts the budget has left."""
    if len(trials) >= STARTS and not any(t.ok for t in trials):
        return "failed"
    if not proposal.cells:
        return "all"
    if proposal.chance is not None and proposal.chance <= ENOUGH:
        return "enough"
    return "budget" if room <= 0 else None


def opening(study: Study, budget: int) -> list[Layout]:
    """Return what is tried before the search: the base, each advice that was asked for, and the other named
    layouts, of them no more than half of the budget where there is something to search.

    A study whose crosses name all of its axes asks for a grid, and gets it where the budget has room.
    """
    if not study.axes:
        return first_round(study, budget)
    if {key for keys in study.cross for key in keys} >= set(study.axes) - {AGE}:
        every = first_round(study, budget + 1)
        if len(every) <= budget:
            return every
    named = {study.layout.hash, *(with_settings(study.layout, one.set).hash for one in study.layouts)}
    listed = [layout for layout in layouts_of(study, crosses=False) if layout.hash in named]
    wanted = [one for one in listed if one.hash == study.layout.hash or one.name.startswith(PREFIX)]
    room = max(0, budget // 2 - len(wanted))
    return [*wanted, *[one for one in listed if one not in wanted][:room]][: max(1, budget)]


class LayoutSearch:
    """The search of one run. ``possible`` says whether a layout can be replayed; ``have``: hardware that is
    there though the base leaves it unused, factor → value.
    """

    def __init__(
        self, study: Study, possible: Callable[[Layout], bool], have: Mapping[str, str] | None = None
    ) -> None:
        self.study = study
        base = study.layout
        self._hardware = Hardware(base, have or {})
        self._bar = Bar.of(study.objective.durability, base)
        # By factor, each value as a layout says it → as the study does.
        self._values: dict[str, dict[str, str | int]] = {}
        self.beside: list[tuple[str, str | int]] = []
        for key, texts in _factors(study).items():
            own: dict[str, str | int] = {}
            for value in texts:
                layout = with_settings(base, {key: value})
                if layout.hash != base.hash and (self._lacks(layout) or not self._may_be(layout)):
                    self.beside.append((key, value))
                else:
                    own.setdefault(layout.settings().get(key, "default"), value)
            if len(own) > 1:
                self._values[key] = own
        self._possible = possible
        self._cells: dict[str, Cell | None] = {}  # of the layouts that were tried, by hash
        axes = [axis_of(key, list(own)) for key, own in self._values.items()]
        self.space = SearchSpace(axes, self._valid)

    @property
    def cells(self) -> int:
        """How many layouts the space has; of a large one, those included that turn out not to go together."""
        return len(self.space.cells()) if self.space.small else self.space.product

    def layout(self, cell: Cell) -> Layout:
        """Return the layout of a valid cell."""
        return changed(self.study.layout, self._changes(cell))

    def _changes(self, cell: Cell) -> dict[str, str | int]:
        values = self._values.items()
        return {key: list(own.values())[at] for (key, own), at in zip(values, cell, strict=True)}

    def cell(self, layout: Layout) -> Cell | None:
        """Return where ``layout`` is in the space, or None."""
        settings = layout.settings()
        said = [settings.get(key, "default") for key in self._values]
        if not all(text in own for text, own in zip(said, self._values.values(), strict=True)):
            return None
        found = tuple(list(own).index(text) for text, own in zip(said, self._values.values(), strict=True))
        return found if found in self.space and self.layout(found).hash == layout.hash else None

    def _valid(self, cell: Cell) -> bool:
        try:
            layout = with_settings(self.study.layout, self._changes(cell))
        except ValueError:  # each alone is possible, together they are not
            return False
        if self._lacks(layout) or not self._bar.admits(layout) or not self._possible(layout):
            return False
        # The cell with the base's own values there means the same.
        return not _varies_unused(self.study.layout, layout)

    def _may_be(self, layout: Layout) -> bool:
        """Say whether ``layout`` competes, or would without Direct I/O, which is an axis then."""
        if self._bar.admits(layout):
            return True
        axes = self.study.axes
        cure = {key: "disabled" for key in axes if key.endswith(".direct") and "disabled" in axes[key]}
        return bool(cure) and self._bar.admits(with_settings(layout, cure))

    def _lacks(self, layout: Layout) -> bool:
        return bool(self._hardware.lacking(layout))

    def propose(self, run: Run, trials: Sequence[Trial], count: int) -> Proposal:
        """Return the next ``count`` cells of the space after ``trials``, and the chance left."""
        return propose(
            self.space, self._tried(run, trials), count,
            seed=run.seed, tolerance=run.objective.within, start=self.cell(self.study.layout),
        )  # fmt: skip

    def plainer(self, run: Run, trials: Sequence[Trial], chosen: Layout) -> Layout:
        """Return ``chosen`` with as many values at their default as, by the model, costs next to nothing: to
        be tried, where it was not."""
        at, plain = self.cell(chosen), self.cell(self.study.layout)
        if at is None or plain is None:
            return chosen
        for i, (key, own) in enumerate(self._values.items()):
            if (default := default_setting(key)) in own and not key.startswith(JOB_FACTORS):
                plain = (*plain[:i], list(own).index(str(default)), *plain[i + 1 :])
        return self.layout(
            plainer(
                self.space,
                self._tried(run, trials),
                at,
                plain,
                seed=run.seed,
                tolerance=run.objective.within,
            )
        )

    def _tried(self, run: Run, trials: Sequence[Trial]) -> dict[Cell, float | None]:
        worth = values(run, trials)
        found: dict[Cell, float | None] = {}
        for trial in trials:
            name = trial.layout_hash
            if name not in self._cells:
                self._cells[name] = self.cell(trial.layout)
            if (cell := self._cells[name]) is not None:
                found[cell] = worth.get(name)
        return found

    def on_top(self, chosen: Layout) -> list[Layout]:
        """Return ``chosen`` with each value that is beside the space."""
        out = []
        for key, value in self.beside:
            with contextlib.suppress(ValueError):  # it does not go with the rest
                out.append(with_settings(chosen, {key: value}))
        return out


def _varies_unused(base: Layout, layout: Layout) -> bool:
    """Say whether ``layout`` has another pool than ``base`` where no role lives."""
    used = layout.used_pools()
    return any(pool != base.pool(pool.name) for pool in layout.pools if pool not in used)


def values(run: Run, trials: Sequence[Trial]) -> dict[str, float]:
    """Return what each finished layout of ``trials`` came to, by hash: a logarithm, less is better.

    It is that of the objective's first metric. Each further metric weighs the tolerance times as much as the
    one before it: with 5 %, half the space makes up for 3.5 % of the time. What processors hold back
    (docs/recommendation.md) counts as slower. Below ``Need.quiet`` modelled time goes on in a straight line:
    a second less is worth as much there as at that time.
    """
    keys, within = replayed(run.objective.minimise), run.objective.within
    found = [c for c in collect(trials, "modelled").layouts if all(c.value(k) is not None for k in keys)]
    total = dict.fromkeys((c.hash for c in found), 0.0)
    for i, key in enumerate(keys):
        row = times(found) if key == "modelled_s" and not i else {c.hash: c.value(key) or 0.0 for c in found}
        least = _FLOOR * median(row.values()) if row else 0.0
        quiet = {c.hash: c.need.quiet for c in found if c.need is not None} if key == "modelled_s" else {}
        for name, value in row.items():
            total[name] += within**i * _log(max(value, least, 1e-12), quiet.get(name, 0.0))
    return total


def _log(value: float, quiet: float) -> float:
    return math.log(value) if value >= quiet else math.log(quiet) + value / quiet - 1


def times(results: Sequence[LayoutResult]) -> dict[str, float]:
    """Return the modelled time of each, by hash; more of those that ``demand.held`` holds back, so that they
    come behind the layout that they were held back for."""
    out = {c.hash: c.value("modelled_s") or 0.0 for c in results}
    needs = {c.hash: found for c in results if (found := c.need) is not None and found.cpu is not None}
    free = [h for h, found in needs.items() if not found.limited]
    if not needs:
        return out
    first = min(free or needs, key=lambda h: (needs[h].both, h))
    most = needs[first].both / SPREAD if free else needs[first].both * SPREAD
    for name, found in needs.items():
        if found.limited and found.both > most > 0:
            out[name] = max(out[name], out[first]) * found.both / most
    return out


def _factors(study: Study) -> dict[str, list[str | int]]:
    """Return what varies, with its values: the base's own, those of the axis, and what named layouts add."""
    ours = study.layout.settings()
    out: dict[str, list[str | int]] = {}
    for key, values in study.axes.items():
        if key == AGE:
            continue
        own = ours.get(key, default_setting(key))
        named = [layout.set[key] for layout in study.layouts if key in layout.set]
        out[key] = list(dict.fromkeys([*([] if own is None else [own]), *values, *named]))
    return out


def axis_of(key: str, texts: Sequence[str]) -> SearchAxis:
    """Return an axis of ``texts``: in order where they are sizes or numbers."""
    try:
        sizes = [parse_size(text) for text in texts]
    except ValueError:
        return SearchAxis(key, len(texts))
    return SearchAxis(key, len(texts), tuple(math.log2(size + 1) for size in sizes))
