"""How long syncs took: quantiles of any number of them, in little memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ztune.trace.event_counts import ABOUT, OP, ROLE_NAMES, SYNCS, N
from ztune.trace.figures import NO_ROLE, Latencies
from ztune.trace.frames import pl
from ztune.trace.manifest import EVENTS_FILE
from ztune.trace.reader import Trace

_SHARES = (0.5, 0.9, 0.99)


def latencies(trace: Trace, about: pl.DataFrame, files: Sequence[int]) -> dict[int, Latencies]:
    """Return how long syncs took by role, a place in ``ROLE_NAMES``, and of ``files``, by their number
    beyond it.

    ``about``: how many of each file took about as long. That tells between which of them a quantile lies, so
    that only those have to be looked at one by one, however many there are.
    """
    if not len(about):
        return {}
    roles = [ROLE_NAMES.index(entry.role or NO_ROLE) for entry in trace.manifest.files]
    groups = pl.DataFrame(
        {
            "file": [*range(len(roles)), *files],
            "group": [*roles, *(len(ROLE_NAMES) + one for one in files)],
        },
        schema={"file": pl.Int32, "group": pl.Int64},
    )
    counted = (
        about.join(groups, on="file")
        .group_by("group", "about")
        .agg(N.sum(), pl.col("took").sum(), pl.col("longest").max())
        .sort("group", "about")
    )
    found = {}
    for (group,), rows in counted.group_by("group", maintain_order=True):
        found[group] = _Quantiles(rows)
    wanted = pl.DataFrame(
        [(group, one) for group, quantiles in found.items() for one in quantiles.wanted()],
        schema={"group": pl.Int64, "about": pl.Int64},
        orient="row",
    )
    exactly = (
        pl.scan_parquet(trace.path / EVENTS_FILE, glob=False)
        .filter(OP.is_in(SYNCS))
        .select("file", "dur", about=ABOUT)
        .join(groups.lazy(), on="file")
        .join(wanted.lazy(), on=["group", "about"], how="semi")
        .group_by("group", "about", "dur")
        .agg(n=pl.len())
        .sort("dur")
        .collect(engine="streaming")
    )
    for (group,), rows in exactly.group_by("group", maintain_order=True):
        found[group].look(rows)
    return {group: quantiles.latencies() for group, quantiles in found.items()}


class _Quantiles:
    """Quantiles of the syncs ``rows``: those that took about as long, shortest first."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows
        self._about, self._n = rows["about"].to_numpy(), rows["n"].to_numpy()
        self._until = np.cumsum(self._n)
        self._exactly: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}

    def wanted(self) -> set[int]:
        """Return which have to be looked at one by one."""
        ends = [math.floor(self._place(share)) for share in _SHARES]
        ends += [math.ceil(self._place(share)) for share in _SHARES]
        return {int(self._about[np.searchsorted(self._until, end, side="right")]) for end in ends}

    def look(self, rows: pl.DataFrame) -> None:
        """Take how often each time occurs in what was ``wanted``, shortest first."""
        for (about,), mine in rows.group_by("about"):
            self._exactly[int(about)] = mine["dur"].to_numpy(), np.cumsum(mine["n"].to_numpy())

    def latencies(self) -> Latencies:
        count = int(self._until[-1])
        quantiles = []
        for share in _SHARES:
            place = self._place(share)
            low, high = (self._at(end) for end in (math.floor(place), math.ceil(place)))
            quantiles.append(low + (high - low) * (place - math.floor(place)))
        mean = float(self._rows["took"].sum()) / count
        values = (mean, *quantiles, int(self._rows["longest"].to_numpy().max()))
        return Latencies(count, *(round(float(value) / 1e6, 4) for value in values))

    def _place(self, share: float) -> float:
        return (int(self._until[-1]) - 1) * share

    def _at(self, place: int) -> float:
        """Return the time in ns of the one that ``place`` others are before."""
        row = int(np.searchsorted(self._until, place, side="right"))
        times, until = self._exactly[int(self._about[row])]
        before = int(self._until[row] - self._n[row])
        return float(times[np.searchsorted(until, place - before, side="right")])
