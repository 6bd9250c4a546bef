"""Whether the layout to recommend is still the one where the best were tried once more, under other
conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ztune.analysis import units
from ztune.analysis.standing import Standing


@dataclass(frozen=True)
class BeforeAfter:
    """A layout's figure of the first metric to minimise: ``before`` as it is ranked, ``after`` elsewhere."""

    hash: str
    name: str
    before: float
    after: float


@dataclass(frozen=True)
class Held:
    """What became of the choice, ``mine``: a layout that is ``better`` there, None where none is.

    ``order``: a clause on the others, for where the choice holds.
    """

    mine: BeforeAfter
    better: BeforeAfter | None
    order: str

    def shown(self, unit: str) -> tuple[str, str]:
        """Return what the choice comes to before and after, for people."""
        return units.show(self.mine.before, unit), units.show(self.mine.after, unit)


def held(now: Standing, found: Sequence[BeforeAfter]) -> Held | None:
    """Return whether the choice is as good as any of ``found``, within what doesn't matter; None where it is
    not among them, or alone."""
    mine = next((one for one in found if now.chosen is not None and one.hash == now.chosen.hash), None)
    if mine is None or len(found) < 2:
        return None
    best = min(found, key=lambda one: one.after)
    order = [one.hash for one in sorted(found, key=lambda one: one.after)]
    same = order == [one.hash for one in sorted(found, key=lambda one: one.before)]
    said = f"the order of the best {len(found)} is the same" if same else "no other of the best is better"
    most = best.after + now.within * max(best.after, now.quiet)
    return Held(mine, best if mine.after > most else None, said)
