"""Changing a whole study from the command line: another disk, another ARC."""

from __future__ import annotations

from ztune.study import profiles
from ztune.study.layout import Layout
from ztune.study.loader import resolve_profiles
from ztune.study.study import Study


def adjusted(study: Study, *, profile: str | None = None, arc: str | int | None = None) -> Study:
    """Return ``study`` whose base layout has other data disks or another ARC; all its layouts follow.

    ``profile``: the name or TOML file of a profile for every vdev of class data. ``arc``: bytes or text. Log,
    cache and special devices stay as they are, and so do axes that set data disks themselves. Raises
    InputError for an unknown profile, ValueError for a size that is none.
    """
    raw = study.layout.to_json()
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
    changed = study.model_copy(update={"layout": Layout.model_validate(raw)})
    # Checked as a whole again: an axis may not fit the new base.
    again = Study.model_validate({**changed.to_json(), "profiles": {}})
    return resolve_profiles(again, extra)
