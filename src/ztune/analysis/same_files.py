"""The space of layouts whose trials did not do the same amount of work.

A timed job does as much as it can in its time: under a faster layout it inserts more, so its files are
larger, and that is not to be held against the layout. How large the files are after so many operations is the
job's own, under every layout; what the layout decides is how much these files take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ztune.analysis.metrics import Raw, number_at, operations

SAME_WORK = 1.02
"""Trials whose operations differ by no more did the same: what differs in their space is the layout's."""


def space(result: Raw, base: Raw) -> float | None:
    """Return the bytes that ``result``, of a trial, would have allocated for the files of ``base``, a trial
    of the same job that did more or less: what the files of each dataset take, times the sizes of the
    base's there.

    None where both did the same, or where one does not say what it did or how large its files are.
    """
    mine, theirs = operations(result), operations(base)
    allocated = number_at(result, "measure", "space", "allocated")
    if not mine or not theirs or allocated is None or max(mine, theirs) <= SAME_WORK * min(mine, theirs):
        return None
    here, there = _datasets(result), _datasets(base)
    if here.keys() != there.keys():  # roles share a dataset in one of them
        here, there = _whole(here), _whole(there)
    used = sum(row["used"] for row in here.values())
    if not used:
        return None
    # A dataset without files has nothing to compare: it stays as it is.
    scaled = sum(
        row["used"] * (there[key]["files"] / row["files"] if row["files"] else 1.0)
        for key, row in here.items()
    )
    return allocated * scaled / used


def _datasets(result: Raw) -> dict[tuple[str, ...], dict[str, float]]:
    """Return roles of a dataset → bytes of its files and what they take; empty where that is not known."""
    node: Any = result.get("measure")
    node = node.get("space") if isinstance(node, Mapping) else None
    rows = node.get("by_dataset") if isinstance(node, Mapping) else None
    out = {}
    for row in rows or ():
        files, used = number_at(row, "files"), number_at(row, "used")
        if files is None or used is None:
            return {}
        out[tuple(sorted(map(str, row.get("roles", ()))))] = {"files": files, "used": used}
    return out


def _whole(
    rows: Mapping[tuple[str, ...], Mapping[str, float]],
) -> dict[tuple[str, ...], dict[str, float]]:
    return {(): {name: sum(row[name] for row in rows.values()) for name in ("files", "used")}}
