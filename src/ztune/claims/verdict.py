"""A verdict as JSON: what was found of a claim, kept beside the store until it is tested again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ztune import files, output, paths
from ztune.claims.accuracy import replayed
from ztune.claims.claim import Claim, replay_cannot
from ztune.claims.conclusion import Tried, conclude, flips
from ztune.claims.support import supported
from ztune.store.db import now


def described(claim: Claim) -> dict[str, Any]:
    """Return what is known of ``claim`` before it is tested."""
    source, support, metric = claim.source, supported(claim), replayed(claim.metric)
    return {
        "claim": claim.id,
        "sentence": claim.sentence,
        "wording": claim.wording,
        "source": {"title": source.title, "author": source.author, "year": source.year, "url": source.url},
        "where": claim.where,
        "workload": claim.workload,
        "metric": claim.metric,
        "replayed_metric": "" if metric is None else metric.key,
        "relation": claim.relation,
        "at_least": claim.at_least,
        "within": claim.within,
        "unit": claim.unit,
        "layouts": [
            {"name": s.name, "set": dict(s.set), "parameters": dict(s.parameters), "figure": s.figure}
            for s in claim.layouts
        ],
        "supported": {"word": support.word.value, "why": support.why},
        "doubt": claim.doubt,
        "stand_in": claim.stand_in,
        "replay_cannot": replay_cannot(claim),
    }


def verdict(claim: Claim, tried: Sequence[Tried]) -> dict[str, Any]:
    """Return what may be said of ``claim`` after ``tried``, with what it rests on."""
    said = conclude(claim, supported(claim), tried)
    return {
        **described(claim),
        "when": now(),
        "verdict": said.word.value,
        "says": said.sentence,
        "flips": flips(said),
        "conditions": [
            {
                "place": each.condition.place,
                "profile": each.condition.profile,
                "arc": each.condition.arc,
                "openzfs": each.condition.openzfs,
                "state": state,
                "ratios": {c.other: c.ratio if math.isfinite(c.ratio) else None for c in each.compared},
                "smallest": each.smallest,
                "trials": list(each.trials),
                "untried": each.untried,
            }
            for each, state in said.states
        ],
        "trials": list(said.trials),
    }


def keep(found: dict[str, Any]) -> None:
    """Keep a verdict in place of the last one of its claim."""
    files.write(_path(found["claim"]), output.json_text(found) + "\n")


def last(claim: Claim) -> dict[str, Any] | None:
    """Return the last verdict of ``claim``; None where it was not tested."""
    path = _path(claim.id)
    if not path.is_file():
        return None
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def _path(claim: str) -> Path:
    # An id is the user's own words, and no path.
    name = "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in claim)
    return paths.private(paths.home() / "verdicts") / f"{name}.json"
