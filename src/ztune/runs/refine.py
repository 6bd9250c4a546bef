"""The pairs that prove a recommendation: layouts in which every property of a winner can be judged alone.

A recommendation says of each property what would change if it went back to the default. That takes the pair
of layouts that differ in this property and nothing else, which the layouts of a study rarely hold.
"""

from __future__ import annotations

from ztune.runs.space import AGE, differences
from ztune.study import Layout, default_setting
from ztune.study.layout import with_settings

MAX_ROUNDS = 5  # a pair can show that another layout is better, which then needs its own


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
        if key.startswith("database.") or key == AGE:
            # A recording of the database's own default may not be there; an age is no choice.
            target = bases.get(key, default)
        if target is None or ours.get(key, default) == target or key.endswith(".with"):
            continue
        if key.startswith("tunable."):
            target = "default"
        try:
            out.append(with_settings(layout, {key: target}))
        except ValueError:
            continue
    return out
