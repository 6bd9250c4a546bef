"""Runs a stored trial again from its record: a result that can't be repeated from its record is a bug."""

from __future__ import annotations

import threading
from typing import Any

from ztune.errors import InputError
from ztune.places.engine import Engine
from ztune.places.engine_run import Outcome
from ztune.places.neighbour import Neighbour, joined
from ztune.places.replay import Replay, prepare
from ztune.store.records import BOTH, NEIGHBOUR, PART
from ztune.study import OBJECTIVES
from ztune.trace.inputs import Inputs
from ztune.trace.rate import REGION, Rate
from ztune.trace.reader import Trace


def rerun(record: dict[str, Any], trace: Trace, engine: Engine) -> Outcome:
    """Run the trial of ``record`` (as ``ztune show RUN --trial N --json`` prints it) again.

    Raises InputError if the trace or the versions are not those of the record, or the trial never got a spec.
    """
    run, trial = record["run"], record["trial"]
    # Records from before layouts had recordings of their own have none for the trial.
    if trace.sha != (trial.get("trace_sha") or run["trace_sha"]):
        raise InputError(
            f"{trace.path} is not the trace of trial {trial['number']} of run {run['id']}: its sha is another"
        )
    for key, now in (("engine", engine.version), ("openzfs", engine.openzfs)):
        if run["versions"][key] != now:
            raise InputError(f"run {run['id']} was made with {key} {run['versions'][key]}, here is {now}")
    if trial["spec"] is None:
        raise InputError(f"trial {trial['number']} of run {run['id']} never began, so it has no spec")
    options = run.get("options") or {}
    inputs = _beside(trial, trace, options)
    replay = Replay(
        trace, engine, cores=options.get("cores"), processor=options.get("processor"), inputs=inputs,
        rate=_rate(trial, options),
    )  # fmt: skip
    return replay.run(trial["spec"], None, threading.Event())


def _condition(trial: dict[str, Any]) -> str:
    """Return under which condition the trial ran; "" for the usual ones."""
    return str(trial.get("target", "")).partition(", ")[2]


def _rate(trial: dict[str, Any], options: dict[str, Any]) -> Rate:
    """Return which sample the trial replayed."""
    condition = _condition(trial)
    part = int(condition.removeprefix(PART)) if condition.startswith(PART) else 0
    return Rate(trial["spec"].get("sample", 1), part, options.get("region") or REGION)


def _beside(trial: dict[str, Any], trace: Trace, options: dict[str, Any]) -> Inputs | None:
    """Return what the engine read of a trial with a neighbour; None of another."""
    condition = _condition(trial)
    kept = options.get("beside")
    if not kept or condition not in (BOTH, NEIGHBOUR):
        return None
    one = Neighbour.kept(kept)
    return joined(trace, prepare(trace), one, prepare(one.trace), alone=condition == NEIGHBOUR)


def compare(record: dict[str, Any], result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return metric by metric what was stored and what came out again."""
    stored = (record["trial"]["result"] or {}).get("measure", {})
    return [
        {"metric": name, "stored": _at(stored, path), "again": _at(result["measure"], path), "unit": unit}
        for name, (path, unit) in OBJECTIVES.items()
    ]


def _at(node: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node
