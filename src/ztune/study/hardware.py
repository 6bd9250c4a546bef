"""What a layout takes that the base does not have: disks and memory are bought, settings are not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from ztune.errors import InputError
from ztune.onhost.layout import Layout
from ztune.onhost.words import suggest
from ztune.study.layout import plain, with_settings
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


class Hardware:
    """What is there: the disks and memory of ``base``, and what it leaves unused.

    ``have``: the latter, as ``parse_have`` returns it; what can't be made of this base is taken for none.
    """

    def __init__(self, base: Layout, have: Mapping[str, str]) -> None:
        self._base = self._whole = base
        if have:
            with contextlib.suppress(ValueError):
                self._whole = with_settings(base, have)

    def lacking(self, layout: Layout) -> dict[str, str]:
        """Return what of ``layout`` is ``bought``, without what is there though the base leaves it unused."""
        found = bought(self._base, layout)
        if not found or self._whole is self._base:
            return found
        ours, still = self._base.settings(), bought(self._whole, layout)
        return {key: value for key, value in still.items() if ours.get(key) != value}


def parse_have(words: Iterable[str], base: Layout) -> dict[str, str]:
    """Return factor → value from "slog=nvme", "arc=8G" …: hardware that is there beside what ``base`` uses.

    Raises InputError for what is no factor of hardware, or no value of it.
    """
    out: dict[str, str] = {}
    # Pools first: a device of one that the base leaves unused is hardware once a role lives there.
    for word in sorted(words, key=lambda one: ".pool=" not in one):
        key, equals, value = word.partition("=")
        key, value = key.strip(), value.strip()
        try:
            if not equals or not value:
                raise ValueError("write FACTOR=VALUE, such as slog=nvme, arc=8G or wal.pool=logs")
            if key in out:
                raise ValueError(f"{key} is named twice")
            layout = with_settings(base, {**out, key: value})
            if key not in bought(with_settings(base, out), layout):
                raise ValueError("the base layout has that already, or it is a setting and no hardware")
        except ValueError as error:
            raise InputError(f"--have {word}: {plain(error)}") from None
        out[key] = layout.settings()[key]
    return out


def check_have(have: Mapping[str, str], base: Layout, layouts: Iterable[Layout], whose: str) -> list[str]:
    """Return a sentence for each factor in ``have``, which is as ``parse_have`` returns it, that none of
    ``layouts``, those of ``whose``, varies. Raises InputError where some vary it and none takes its value.
    """
    needs = [(layout, bought(base, layout)) for layout in layouts]
    offered = list(dict.fromkeys(f"{k}={v}" for _, need in needs for k, v in need.items()))
    varied = {key for _, need in needs for key in need}
    for key, value in have.items():
        if key not in varied:
            continue
        there = Hardware(base, {key: value})
        if all(one.settings().get(key) != value and there.lacking(one) == need for one, need in needs):
            word = f"{key}={value}"
            meant = suggest(word, offered)
            raise InputError(
                f"--have {word}: no layout of {whose} takes that; beyond its base layout they take "
                f"{', '.join(offered)}{'.' + meant if meant else ''}"
            )
    return [
        f"--have {key}={value}: no layout of {whose} varies {key}, so it changes nothing."
        for key, value in have.items()
        if key not in varied
    ]
