"""Changing a whole study from the command line: another disk, another ARC."""

from __future__ import annotations

from collections.abc import Mapping

from ztune.onhost.declared import KNOWN, Declared
from ztune.onhost.fields import to_json
from ztune.study import profiles
from ztune.study.durability import weakening
from ztune.study.layout import check_arc, parse_layout
from ztune.study.loader import resolve_profiles
from ztune.study.study import Study


def adjusted(
    study: Study,
    *,
    profile: str | None = None,
    arc: str | int | None = None,
    database: Mapping[str, str] | None = None,
    declared: Declared = KNOWN,
) -> Study:
    """Return ``study`` whose base layout has other data disks or another ARC; all its layouts follow.

    ``profile``: the name or TOML file of a profile for every vdev of class data. ``arc``: bytes or text. Log,
    cache and special devices stay as they are, and so do axes that set data disks themselves. ``database``:
    settings that the workload makes by itself; those that weaken durability become the base layout's, so that
    each layout is judged by them, unless it has its own. ``declared``: what the workload says of its
    database's durability; what the study declares itself is added. Raises InputError for an unknown profile,
    ValueError for a size that is none.
    """
    raw = study.layout.to_json()
    whole = declared.with_more(study.layout.declared).beside(database or {})
    if whole != KNOWN:
        raw["durability"] = to_json(whole)
    if whole.known:
        # What a parameter that varies makes of the database is each layout's own (``Declared.parameters``).
        varied = {name for by in whole.parameters.values() for made in by.values() for name in made}
        weak = {n: v for n, v in weakening(database or {}).items() if n not in varied}
        raw["database"] = {**weak, **study.layout.database}
    extra = dict(study.profiles)
    if arc is not None:
        raw["arc"] = arc
    if profile is not None:
        found = profiles.find(profile)
        extra[found.name] = found
        for pool in raw["pool"]:
            for vdev in pool["vdev"]:
                if vdev["class"] == "data":
                    vdev.update(profile=found.name, size=None)
    layout = parse_layout(raw)
    check_arc(layout)
    changed = study.model_copy(update={"layout": layout})
    # Checked as a whole again: an axis may not fit the new base.
    again = Study.model_validate({**changed.to_json(), "profiles": {}})
    return resolve_profiles(again, extra)
