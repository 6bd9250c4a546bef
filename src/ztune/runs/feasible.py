"""What of a study can't come to anything, found before its first layout is tried."""

from __future__ import annotations

from ztune.errors import InputError
from ztune.runs.space import layouts_of
from ztune.study import Study
from ztune.study.advised import PREFIX
from ztune.study.durability import Bar
from ztune.units import counted


def check(study: Study, budget: int) -> list[str]:
    """Return, as sentences, what a screening of ``study`` with ``budget`` layouts will say nothing about:
    what is varied too little, and advice for which there is no room.

    Raises InputError where none of its layouts could be recommended.
    """
    bar = Bar.of(study.objective.durability, study.layout)
    if not any(bar.admits(layout) for layout in layouts_of(study)):
        raise InputError(
            f'no layout of study "{study.name}" could be recommended: each has checksum=off, under which '
            "damaged data is returned unseen; set checksum=on"
        )
    out = []
    least = 1 + sum(len(values) > 1 or not _is_base(study, key) for key, values in study.axes.items())
    if budget < least:
        said = (
            f"the study varies {counted(least - 1, 'setting')}, and {least} layouts are the least "
            "with each varied alone"
        )
        out.append(
            f"The budget of {budget} is small: {said}; some vary together with others only, or not at all."
        )
    advised = [one.name for one in study.layouts if one.name.startswith(PREFIX)]
    if without := advised[max(budget - 1, 0) :]:
        out.append(
            f"The budget of {budget} has no room for {', '.join(without)}: the base layout comes first. "
            f"--budget {1 + len(advised)} or more tries all advice."
        )
    return out


def _is_base(study: Study, key: str) -> bool:
    """Say whether the one value of an axis is the base's own."""
    return str(study.layout.settings().get(key)) == str(study.axes[key][0])
