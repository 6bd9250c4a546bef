"""A verdict as JSON: what was found of a claim, kept beside the store until it is tested again."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ztune import files, output, paths
from ztune.claims.accuracy import replayed
from ztune.claims.claim import Claim, replay_cannot
from ztune.claims.conclusion import REPLAY, Compared, Condition, Tried, conclude, flips
from ztune.claims.support import supported
from ztune.errors import InputError
from ztune.store.db import now
from ztune.store.records import Run

_FOLDER = "verdicts"


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


def verdict(claim: Claim, tried: Sequence[Tried], job: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what may be said of ``claim`` after ``tried``, with what it rests on.

    ``job``: what the user asked of its job; a verdict on another one is another verdict.
    """
    said = conclude(claim, supported(claim), tried)
    return {
        **described(claim),
        "when": now(),
        "job": dict(job or {}),
        "verdict": said.word.value,
        "says": said.sentence,
        "hint": said.hint,
        "flips": flips(said),
        "disagree": list(said.disagree),
        "conditions": [
            {
                "place": each.condition.place,
                "profile": each.condition.profile,
                "arc": each.condition.arc,
                "openzfs": each.condition.openzfs,
                "measured": not each.condition.modelled,
                "state": state,
                "instead": each.instead,
                "hint": each.unheld,
                "ratios": {c.other: _finite(c.ratio) for c in each.compared},
                "intervals": {
                    c.other: [c.low, _finite(c.high)] for c in each.compared if not each.condition.modelled
                },
                "smallest": each.smallest,
                "scatter": each.scatter,
                "trials": list(each.trials),
                "untried": each.untried,
                "failed": each.failed,
            }
            for each, state in said.states
        ],
        "trials": list(said.trials),
        "gone": [],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def keep(found: dict[str, Any]) -> None:
    """Keep a verdict in place of the last one of its claim."""
    path = _path(found["claim"])
    paths.private(path.parent)
    files.write(path, output.json_text(found) + "\n")


def last(claim: Claim) -> dict[str, Any] | None:
    """Return the last verdict of ``claim``; None where it was not tested.

    Raises InputError for a file that is not one of ours.
    """
    path = _path(claim.id)
    if not path.is_file():
        return None
    try:
        return _read(path)
    except ValueError as error:
        raise InputError(
            f"{path} can't be read: {error}; `ztune claims test {claim.id}` makes it anew from what is stored"
        ) from None


def before(claim: Claim, job: Mapping[str, Any], runs: Mapping[str, Run], engine: str) -> tuple[Tried, ...]:
    """Return what the last verdict of ``claim`` rests on and still stands: what was compared under each
    condition with the same ``job`` and layouts, by trials of ``runs`` (by id), replayed by this ``engine``.

    So a test of one condition more adds to the others. Nothing where there is no verdict that can be read.
    """
    try:
        kept = last(claim)
    except InputError:
        return ()
    layouts = described(claim)["layouts"]
    if kept is None or kept.get("job") != dict(job) or kept.get("layouts") != layouts:
        return ()
    found = []
    for each in kept["conditions"]:
        cited = {str(trial).rpartition("/")[0] for trial in each["trials"]}
        there = [runs[run] for run in cited if run in runs]
        modelled = each["place"] == REPLAY
        if len(there) < len(cited) or (modelled and any(r.versions.get("engine") != engine for r in there)):
            continue
        if cited and each["ratios"]:
            found.append(_again(each))
    return tuple(found)


def _again(each: Mapping[str, Any]) -> Tried:
    """Return a condition of a kept verdict as it was tried."""
    compared = []
    for other, kept in each["ratios"].items():
        ratio = math.inf if kept is None else float(kept)
        low, high = each["intervals"].get(other, (ratio, ratio))
        compared.append(Compared(other, ratio, low, math.inf if high is None else high))
    return Tried(
        Condition(each["place"], each["profile"], each["arc"], each["openzfs"]), tuple(compared),
        each["smallest"], tuple(each["trials"]), each["untried"], each["failed"], each["instead"],
        each["hint"], each["scatter"],
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    """Return a kept verdict. Raises ValueError for what is cut short, or none."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or not found.keys() >= _NEEDED:
        raise ValueError("it is no verdict")
    if not isinstance(found["claim"], str) or not isinstance(found["trials"], list):
        raise ValueError("it is no verdict")
    return found


_NEEDED = {"claim", "verdict", "says", "when", "trials", "conditions"}


def citing(runs: Collection[str]) -> dict[str, list[str]]:
    """Return the id of each claim whose last verdict cites trials of ``runs`` → those runs.

    What can't be read cites nothing that could be said: it keeps nobody from deleting a run.
    """
    return {kept["claim"]: cited for kept, cited in _citing(runs)}


def _citing(runs: Collection[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """Return each last verdict that cites trials of ``runs``, with those runs."""
    found = []
    for path in sorted(paths.folder(_FOLDER).glob("*.json")):
        try:
            kept = _read(path)
        except ValueError:
            continue
        if path != _path(kept["claim"]):
            continue  # somebody's copy under another name, which no command reads
        theirs = dict.fromkeys(str(trial).rpartition("/")[0] for trial in kept["trials"])
        if cited := [run for run in theirs if run in runs and run not in kept.get("gone", [])]:
            found.append((kept, cited))
    return found


def lose(runs: Collection[str]) -> None:
    """Have each kept verdict that cites trials of ``runs`` say that they are gone."""
    for kept, cited in _citing(runs):
        kept["gone"] = [*kept.get("gone", []), *cited]
        keep(kept)


def word(found: dict[str, Any]) -> str:
    """Return the verdict for people: whether it is a hint, and what of its trials is gone."""
    more = ["a hint"] if found.get("hint") else []
    if found.get("gone"):
        more.append("its trials are gone")
    return str(found["verdict"]) + (f" ({'; '.join(more)})" if more else "")


def _path(claim: str) -> Path:
    # An id is the user's own words, and no path.
    name = "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in claim)
    return paths.folder(_FOLDER) / f"{name}.json"
