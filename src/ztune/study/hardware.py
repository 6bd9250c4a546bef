"""What a layout takes that the base does not have: disks and memory are bought, settings are not."""

from __future__ import annotations

from ztune.onhost.layout import Layout
from ztune.units import parse_size

_DEVICES = ("data", "slog", "l2arc", "special")


def bought(base: Layout, layout: Layout) -> dict[str, str]:
    """Return the factors of ``layout`` that take hardware which ``base`` does not use, with their values.

    Other or further disks of a pool, a role on a pool that the base leaves unused, and more ARC. Without a
    log device that the base has, or with less ARC, nothing is bought.
    """
    ours, theirs = base.settings(), layout.settings()
    used = {pool.name for pool in base.used_pools()}
    changed = {key: value for key, value in theirs.items() if ours.get(key) != value}
    return {key: value for key, value in changed.items() if _is_bought(key, value, ours.get(key), used)}


def _is_bought(key: str, value: str, before: str | None, used: set[str]) -> bool:
    head, _, last = key.rpartition(".")
    if key == "arc":
        return before is not None and parse_size(value) > parse_size(before)
    if last == "pool":
        return value not in used
    if head and not head.startswith("pool."):
        return False
    if head and head.removeprefix("pool.") not in used:
        return False  # that a role moves there says it
    return last in _DEVICES and value != "none"
