"""Claims with figures of a test's choice, on the layouts of one that comes with ztune."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ztune.claims import claim

every = cache(claim.every)  # the same for all tests: those that come with ztune


def made(
    relation: claim.Relation, figures: list[float], more: Mapping[str, Any] | None = None
) -> claim.Claim:
    """A claim that ``figures`` of the layouts a, b, … stand in ``relation``; ``more``: its further fields."""
    like = every()["restore-32k-best"]
    sides = tuple(
        replace(side, name=name, figure=figure)
        for side, name, figure in zip(like.layouts, "abcde", figures, strict=False)
    )
    return replace(like, relation=relation, layouts=sides, **(more or {}))
