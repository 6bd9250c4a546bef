"""Hazards as all reports show them: in one colour each, those of one rule joined."""

from __future__ import annotations

from collections.abc import Iterable

from ztune.advice.model import Hazard

SEVERITY = {"danger": "bold red", "warning": "yellow", "note": "cyan"}


def grouped(hazards: Iterable[Hazard]) -> list[Hazard]:
    """Return one hazard for each rule and source; sentences of the same rule are joined."""
    out: dict[str, Hazard] = {}
    for hazard in hazards:
        seen = out.get(hazard.id)
        if seen is None:
            out[hazard.id] = hazard
        else:
            out[hazard.id] = seen.model_copy(update={"sentence": f"{seen.sentence} {hazard.sentence}"})
    return list(out.values())
