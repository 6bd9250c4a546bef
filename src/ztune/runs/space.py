"""The layouts that a study asks for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ztune.study import Layout, Study
from ztune.study.advised import PREFIX
from ztune.study.layout import with_settings

AGE = "age"
"""The axis that is no choice: its values are tried last, on the best of the layouts."""
JOB_FACTORS = ("workload.", "database.")
"""How factors begin that change the job itself, so that layouts take another recording."""


def differences(base: Layout, layout: Layout) -> dict[str, str]:
    """Return the factors in which ``layout`` differs from ``base``, sorted, with the layout's values."""
    ours, theirs = base.settings(), layout.settings()
    differing = (key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key))
    return {key: theirs.get(key, "new" if key == AGE else "default") for key in differing}


def describe(base: Layout, layout: Layout) -> str:
    """Return what ``layout`` changes of ``base``, as a name: "data.recordsize=8K, slog=nvme"."""
    ordered = sorted(differences(base, layout).items(), key=lambda item: _order(item[0]))
    return ", ".join(f"{key}={value}" for key, value in ordered) or base.name


def _order(key: str) -> tuple[int, str]:
    """Order factors as one reads them: data first, then the log, then devices and the rest."""
    heads = (
        "data",
        "index",
        "wal",
        "temp",
        "backup",
        "archive",
        "source",
        "slog",
        "l2arc",
        "special",
        "pool",
    )
    head = key.split(".")[0]
    return (heads.index(head) if head in heads else len(heads), key)


def unique(layouts: Iterable[Layout]) -> Iterator[Layout]:
    """Give ``layouts`` without those that mean the same as an earlier one, unused pools left aside."""
    seen: set[str] = set()
    for layout in layouts:
        same = meaning(layout)
        if same not in seen:
            seen.add(same)
            yield layout


def meaning(layout: Layout) -> str:
    """Return what is the same for layouts that mean the same: a log device on a pool that no role lives on is
    no other layout."""
    return replace(layout, pools=layout.used_pools()).hash


def changed(base: Layout, changes: Mapping[str, str | int], name: str | None = None) -> Layout:
    """Return ``base`` with ``changes``, named by them unless ``name`` is given."""
    layout = with_settings(base, changes)
    return replace(layout, name=name or describe(base, layout), description="")


def aliases(study: Study) -> dict[str, Layout]:
    """Return the layouts that the study names, by name: some are among its others too, where they have the
    name that they had there first."""
    return {named.name: changed(study.layout, named.set, named.name) for named in study.layouts}


def first_round(study: Study, most: int | None = None) -> list[Layout]:
    """Return the study's layouts, the first ``most`` or all: the base, sets of advice, each axis value alone,
    named layouts, crosses.

    Layouts that mean the same appear once, under the first name they had. The order is the one to keep when
    only some of them can be tried.
    """
    return list(itertools.islice(layouts_of(study), most))


def layouts_of(study: Study, *, crosses: bool = True) -> Iterator[Layout]:
    """Give the study's layouts one by one, as ``first_round`` orders them; without those of its ``crosses``.

    All of a large cross take seconds, so who needs but some of them takes no more.
    """
    return unique(_every(study, study.cross if crosses else ()))


def _every(study: Study, crosses: Iterable[Sequence[str]]) -> Iterator[Layout]:
    base = study.layout
    named = [
        replace(changed(base, named.set, named.name), description=named.description)
        for named in study.layouts
    ]
    yield base
    # Asked for by name: a small budget must not leave them out.
    yield from (one for one in named if one.name.startswith(PREFIX))
    alone = ((key, value) for key, values in study.axes.items() if key != AGE for value in values)
    yield from (changed(base, {key: value}) for key, value in alone)
    yield from named
    for keys in crosses:
        for combination in itertools.product(*(study.axes[key] for key in keys)):
            yield changed(base, dict(zip(keys, combination, strict=True)))
