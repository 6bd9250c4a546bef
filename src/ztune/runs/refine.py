"""Further rounds: layouts around the best ones, so that every property of a winner can be judged alone.

A recommendation says of each property what would change if it went back to the default. That takes the pair
of layouts that differ in this property and nothing else, which the layouts of a study rarely hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from ztune.runs.space import JOB_FACTORS, changed, differences, unique
from ztune.study import Layout, Study, default_setting
from ztune.study.layout import with_settings

MAX_ROUNDS = 5  # round 1 is the study's own; each further round follows the best layout so far
TOP = 2  # how many of the best layouts get their neighbours


def differing(left: Layout, right: Layout) -> list[str]:
    """Return the factors in which two layouts differ, sorted; empty if they mean the same."""
    return list(differences(left, right))


def back_to_default(base: Layout, layout: Layout) -> list[Layout]:
    """Return ``layout`` with each of its properties alone put back to ZFS's default.

    Factors for which ZFS has no default (the pool's disks, ARC size, ashift, what the job does) go back to
    the base's value.
    What would not be valid alone, such as no special vdev under a special_small_blocks, is left out.
    """
    out = []
    ours, bases = layout.settings(), base.settings()
    for key in sorted({*ours, *bases}):
        default = default_setting(key)
        target = default if default is not None else bases.get(key)
        if key.startswith("database."):
            target = bases.get(key, default)  # a recording of the database's own default may not be there
        if target is None or ours.get(key, default) == target or key.endswith(".with"):
            continue
        if key.startswith("tunable."):
            target = "default"
        try:
            out.append(with_settings(layout, {key: target}))
        except ValueError:
            continue
    return out


def combination(study: Study, ranked: Sequence[Layout]) -> Layout | None:
    """Return the base with, of each axis, the value that alone ranked best; None where that is nothing new.

    ``ranked``: layouts, best first. Axes whose best value is the base's own stay as they are. Of axes that
    change the job itself only the best one moves, unless the study crosses them: else nothing was recorded.
    """
    base = study.layout
    place = {layout.hash: i for i, layout in enumerate(ranked)}
    if base.hash not in place:
        return None
    changes: dict[str, str | int] = {}
    places: dict[str, int] = {}
    for key, values in study.axes.items():
        alone = [(place[h], value) for value in values if (h := changed(base, {key: value}).hash) in place]
        best = min(alone, default=None, key=lambda item: item[0])
        if best is not None and best[0] < place[base.hash]:
            places[key], changes[key] = best
    of_job = sorted((key for key in changes if key.startswith(JOB_FACTORS)), key=places.__getitem__)
    if not any(set(of_job) <= set(keys) for keys in study.cross):
        for key in of_job[1:]:
            del changes[key]
    if len(changes) < 2:
        return None
    try:
        return changed(base, changes)
    except ValueError:  # good alone, impossible together
        return None


def steps(study: Study, layout: Layout) -> list[Layout]:
    """Return ``layout`` with one axis moved to the value listed before or after its own."""
    out = []
    settings = layout.settings()
    for key, values in study.axes.items():
        # Canonical texts, so that "128K" and 131072 are the same value.
        texts = [with_settings(study.layout, {key: v}).settings().get(key) for v in values]
        if settings.get(key) not in texts:
            continue
        at = texts.index(settings.get(key))
        for i in (at - 1, at + 1):
            if 0 <= i < len(values):
                try:
                    out.append(with_settings(layout, {key: values[i]}))
                except ValueError:
                    continue
    return out


def next_round(study: Study, ranked: Sequence[Layout], tried: Set[str], room: int) -> list[Layout]:
    """Return at most ``room`` layouts to try next, most telling first; empty when nothing is left to learn.

    ``ranked``: the finished layouts that the objective allows, best first. ``tried``: hashes of all layouts
    of the run, the failed ones too. First come the combination of what was best alone and the one-property
    neighbours of the best layouts; once those are all there, one step along each axis from the best.
    """
    if room <= 0 or not ranked:
        return []
    base = study.layout
    wanted: list[Layout] = []
    together = combination(study, ranked)
    if together is not None:
        wanted.append(together)
    for layout in ranked[:TOP]:
        wanted += back_to_default(base, layout)
    new = _new(base, wanted, tried)
    if not new:
        new = _new(base, steps(study, ranked[0]), tried)
    return new[:room]


def returns(study: Study, layout: Layout, tried: Set[str]) -> list[Layout]:
    """Return ``layout`` with each property alone back at its default, as far as not in ``tried`` (hashes)."""
    return _new(study.layout, back_to_default(study.layout, layout), tried)


def _new(base: Layout, layouts: Iterable[Layout], tried: Set[str]) -> list[Layout]:
    new = (layout for layout in unique(layouts) if layout.hash not in tried)
    return [changed(base, differences(base, layout)) for layout in new]
