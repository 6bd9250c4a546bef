"""The spec of a trial: what the trial program is sent."""

from __future__ import annotations

from typing import Any

from ztune.onhost.jobs import beside as two_jobs
from ztune.onhost.trial import spec as specs
from ztune.places.channel import Place
from ztune.places.mount import MountPlace
from ztune.runs.open_run import OpenRun
from ztune.store.records import BOTH, NEIGHBOUR, Trial
from ztune.study import Layout

WHICH = {"": two_jobs.FIRST, BOTH: two_jobs.BOTH, NEIGHBOUR: two_jobs.NEIGHBOUR}
"""The condition of a trial → which of two jobs run."""


def spec_of(
    going: OpenRun, place: Place, trial: Trial, start: dict[str, Any], placed: dict[str, Any]
) -> dict[str, Any]:
    """Return the spec of ``trial`` at ``place``. ``start``: how it gets its database; ``placed``: where its
    pools go.
    """
    attempt = len(trial.attempts)
    layout = trial.layout
    return {
        "format": specs.FORMAT,
        "version": specs.VERSION,
        "run": going.run.id,
        "trial": f"{going.run.id}-{trial.number:04d}" + (f"-{attempt}" if attempt else ""),
        "seed": going.run.seed + trial.block,
        "state": place.state,
        "place": placed,
        "layout": {
            **{k: v for k, v in layout.to_json().items() if k != "durability"},
            "tunables": {**place.tunables(layout), **layout.tunables},
        },
        "job": {
            "name": going.job.name,
            "params": _params(going, trial),
            "database": dict(layout.database),
        },
        "start": start,
        "settle": going.options.settle,
        "probes": dict(going.options.probes),
        "dilation": going.dilation,
        "patience": going.patience,
    }


def _params(going: OpenRun, trial: Trial) -> dict[str, Any]:
    params = dict(going.job.under(trial.layout, going.run.resolved_study.layout).params)
    return {**params, two_jobs.WHICH: WHICH[trial.condition]} if going.job.beside else params


def place_spec(going: OpenRun, place: Place, layout: Layout) -> dict[str, Any]:
    """Return where the pools of ``layout`` go at ``place``. Raises what the place raises."""
    spec = place.place_spec(layout)
    if going.options.saved is not None and isinstance(place, MountPlace):
        return {**spec, **place.keeping(layout, going.options.saved)}
    return spec
