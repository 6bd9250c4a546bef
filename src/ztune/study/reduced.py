"""Taking out of a study what can't be built, or can't be told: its axes, their values, its datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ztune.study.generic import joined
from ztune.study.loader import resolve_profiles
from ztune.study.study import Study


def without(
    study: Study, left_out: Mapping[str, Collection[str | int] | None], note: str, *, layouts: bool = True
) -> Study:
    """Return ``study`` without the values ``left_out`` (factor → values; None: all of them), and ``note``
    among what its results repeat.

    An axis without values is no more; a cross has the axes that stay. With ``layouts`` those that set one of
    the values are left out as well.
    """

    def stays(key: str, value: str | int) -> bool:
        return key not in left_out or ((gone := left_out[key]) is not None and value not in gone)

    raw = study.to_json()
    axes = {key: [v for v in values if stays(key, v)] for key, values in study.axes.items()}
    raw["axes"] = {key: values for key, values in axes.items() if values}
    raw["cross"] = _crosses(study, raw["axes"])
    raw["layouts"] = [
        entry
        for entry, named in zip(raw["layouts"], study.layouts, strict=True)
        if not layouts or all(stays(key, value) for key, value in named.set.items())
    ]
    return _again(study, raw, note)


def merged(study: Study, groups: Iterable[Collection[str]], note: str) -> Study:
    """Return ``study`` with one dataset for the roles of each of ``groups`` that it has, and ``note`` among
    what its results repeat.

    The dataset of the first of them stays, with its properties; what the study varies of the others is no
    more.
    """
    raw = study.to_json()
    gone: set[str] = set()
    have = {role for dataset in study.layout.datasets for role in dataset.roles}
    for roles in joined(have, [set(group) & have for group in groups]):
        datasets = [entry for entry in raw["layout"]["dataset"] if not set(roles).isdisjoint(entry["roles"])]
        kept = next(entry for entry in datasets if roles[0] in entry["roles"])
        for other in datasets:
            if other is not kept:
                gone.add(other["roles"][0])
                kept["roles"] += other["roles"]
                raw["layout"]["dataset"].remove(other)

    def stays(key: str) -> bool:
        return key.partition(".")[0] not in gone

    raw["axes"] = {key: values for key, values in study.axes.items() if stays(key)}
    raw["cross"] = _crosses(study, raw["axes"])
    for entry in raw["layouts"]:
        entry["set"] = {key: value for key, value in entry["set"].items() if stays(key)}
    raw["layouts"] = [entry for entry in raw["layouts"] if entry["set"]]
    return _again(study, raw, note)


def noted(study: Study, notes: Iterable[str]) -> Study:
    """Return ``study`` with ``notes`` among what its results repeat, each once."""
    return study.model_copy(update={"notes": tuple(dict.fromkeys((*study.notes, *notes)))})


def _crosses(study: Study, axes: Collection[str]) -> list[list[str]]:
    """Return the study's crosses of those ``axes`` that stay."""
    crosses = [[key for key in keys if key in axes] for keys in study.cross]
    return [keys for keys in crosses if len(keys) > 1]


def _again(study: Study, raw: dict[str, Any], note: str) -> Study:
    found = Study.model_validate({**raw, "profiles": {}})
    return noted(resolve_profiles(found, study.profiles), [note])
