"""Settings of the database that are tried on top of the layout that a screening found.

A replay can't vary them: each takes a recording of its own, which costs as much as the first one. So they are
no axes of the search, but are tried one after the other, each on top of what is best by then: a setting that
helped stays, and the next is tried with it. That takes one recording for each, where trying all combinations
took one for each combination. ``database.toml`` declares them (``[[settings.offers]]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ztune.databases import database, registry
from ztune.databases.database import Offer
from ztune.databases.switch import switch
from ztune.errors import InputError
from ztune.runs.space import changed, differences
from ztune.study import Layout, Study
from ztune.study.durability import Bar, judge
from ztune.trace.manifest import Manifest
from ztune.trace.roles import database_in
from ztune.units import listed


def words(offer: Offer) -> str:
    """Return an offer as it is written."""
    return " with ".join(f"{name}={value}" for name, value in offer.set.items())


def of_workload(workload: str, parameters: Mapping[str, Any]) -> list[Offer]:
    """Return what is offered for a workload: of its database, what its job says it sets otherwise.

    Raises InputError for a parameter that is wrong.
    """
    known = database.of_workload(workload)
    if known is None or not known.facts.settings.offers:
        return []
    own = registry.settings_of(workload, parameters)
    return [one for one in known.facts.settings.offers if _differs(one, own)]


def of_trace(manifest: Manifest) -> list[Offer]:
    """Return what is offered for the database in a recording; of a live one, which says nothing of its
    settings, all that it may lack."""
    if manifest.workload is not None:
        try:
            return of_workload(manifest.workload.name, manifest.workload.parameters)
        except InputError:  # recorded by a version with other parameters, or a workload that is not here
            return []
    found = database_in(manifest)
    return [] if found is None else list(found.facts.settings.offers)


def note(manifest: Manifest) -> str:
    """Return, for the screening of a recording, what is worth trying and takes another one; or ""."""
    offers = of_trace(manifest)
    if not offers:
        return ""
    said = listed([words(one) for one in offers])
    first = f"Not tried, since it takes another recording: {said}."
    if manifest.workload is not None:
        return f"{first} `ztune tune {manifest.workload.name}` tries them on top of the layout it finds."
    return f"{first} `ztune tune` tries them on a database of its own (`ztune list workloads`)."


def on_top(study: Study, chosen: Layout, offer: Offer) -> tuple[Layout, str]:
    """Return ``chosen`` with an offer, and why it is not to be tried; "" where it is.

    What the objective's durability class does not allow there is not, nor what nobody has declared.
    """
    changes = {f"database.{name}": value for name, value in offer.set.items()}
    layout = changed(study.layout, {**differences(study.layout, chosen), **changes})
    if Bar.of(study.objective.durability, study.layout).admits(layout):
        return layout, ""
    judged = judge(layout)
    return layout, judged.reasons[0] if judged.reasons else f"its durability class is {judged.klass}"


def _differs(offer: Offer, own: Mapping[str, str]) -> bool:
    """Say whether the job knows all of an offer's settings, and has one otherwise."""
    if not offer.set.keys() <= own.keys():
        return False
    if any(_plain(own.get(name, "")) != _plain(value) for name, value in offer.where.items()):
        return False
    return any(_plain(own[name]) != _plain(value) for name, value in offer.set.items())


def _plain(value: str) -> str:
    return switch(value) or value.lower()
