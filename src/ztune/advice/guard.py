"""What is never recommended, however much it gains: looked at once more after layouts were ordered."""

from __future__ import annotations

from ztune.errors import InputError
from ztune.study import DurabilityClass, Layout
from ztune.study.durability import judge


def check(chosen: Layout, base: Layout | None, allowed: DurabilityClass) -> None:
    """Raise InputError where ``chosen`` must not be recommended.

    Not where a dataset has checksum=off: no objective allows that. Nor where a power cut can lose more than
    both the objective allows (``allowed``) and the base layout, as it is declared, loses today.
    """
    bare = [dataset.name for dataset in chosen.datasets if dataset.properties["checksum"] == "off"]
    if bare:
        raise InputError(
            f'"{chosen.name}" has checksum=off on {", ".join(bare)}, which ztune never recommends: damaged '
            "data would be returned unseen; add a layout with checksum=on to the study"
        )
    now, today = judge(chosen), None if base is None else judge(base)
    # A base that is exposed in Direct I/O alone lets in what is so, too, and nothing else.
    exposed = today is not None and today.but_direct is not None
    klass = now.besides if exposed else now.proven
    if klass.rank > max(allowed.rank, 0 if today is None else today.besides.rank):
        raise InputError(
            f'"{chosen.name}" is of durability class {now.proven}, weaker than the objective allows '
            f"({allowed}) and than the base layout: {now.reasons[0]}"
        )
    if today is not None and now.unknown != today.unknown:
        raise InputError(
            f'nobody has declared whether a power cut loses no more under "{chosen.name}" than under the '
            f"base layout: {now.reasons[0] if now.unknown else today.reasons[0]}"
        )
