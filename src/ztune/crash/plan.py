"""When the power is cut: seeded, so that a test can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from ztune.crash.power import CACHES

# A pool's and a database's own states differ most in these moments. Most cuts are without a choice of ours.
_SHARES = (0.6, 0.85)


class Moment(StrEnum):
    """What the database was doing."""

    LOAD = "under load"
    CHECKPOINT = "during a checkpoint"
    RECOVERY = "during recovery"


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """One cut."""

    number: int
    moment: Moment
    cache: str
    begin: float
    """When in the window a checkpoint begins, as a share of it."""
    share: float
    """When the cut comes: as a share of the window, or of what a checkpoint or a recovery takes."""


def plans(count: int, seed: int, *, checkpoints: bool) -> list[CrashPlan]:
    """Return ``count`` cuts, uniform within their windows; each three have each kind of cache once."""
    rng = random.Random(f"cuts:{seed}")
    caches: list[str] = []
    found = []
    for number in range(1, count + 1):
        if not caches:
            caches = rng.sample(CACHES, len(CACHES))
        # Drawn in any case, so that a cut does not depend on what the database can do.
        draw, begin, share = rng.random(), rng.random(), rng.random()
        if draw < _SHARES[0] or number == 1:
            moment = Moment.LOAD
        elif draw < _SHARES[1]:
            moment = Moment.CHECKPOINT if checkpoints else Moment.LOAD
        else:
            moment = Moment.RECOVERY
        found.append(CrashPlan(number, moment, caches.pop(), begin, share))
    return found
