"""A layout as TOML says it, checked as strictly as ZFS itself would check it.

Pydantic makes a ``Layout`` of it, the class that both sides of the trial program have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, TypeAdapter

from ztune.onhost.fields import KeyedError
from ztune.onhost.layout import Layout
from ztune.onhost.properties import PROPERTIES, STATED
from ztune.onhost.tunables import TUNABLES
from ztune.onhost.words import ROLES
from ztune.study import factors as _factors
from ztune.study.tables import check_properties, layout_table, set_by_study
from ztune.units import format_size

MIN_ARC, MAX_ARC = 64 << 20, 1 << 44
"""What the kernel and the engine take: OpenZFS takes no notice of less (MIN_ARC_MAX in arc.c)."""
# Runs that are stored may have a layout with an ARC that every place has refused.
_MIN_STORED_ARC = 16 << 20


def _check(layout: Layout) -> Layout:
    """Check what a layout's own class can't: sizes and properties as a study has them. Raises KeyedError."""
    if layout.arc < _MIN_STORED_ARC:
        raise KeyedError(("arc",), _arc_range(layout.arc))
    for i, dataset in enumerate(layout.datasets):
        try:
            check_properties(dataset)
        except KeyedError as error:
            raise KeyedError(("dataset", i, *error.path), str(error)) from None
        here = layout.pool(dataset.pool)
        if here.filesystem != "zfs":
            for name in set_by_study(dataset):
                raise KeyedError(
                    ("dataset", i, name),
                    f"{dataset.name} is a directory on {here.filesystem}, which takes no ZFS properties",
                )
        small = dataset.properties["special_small_blocks"]
        if small != "0" and here.vdev_text("special") == "none":
            raise KeyedError(
                ("dataset", i, "special_small_blocks"),
                f'special_small_blocks is "{small}", but pool {dataset.pool} has no special vdev',
            )
    return layout


LayoutTable = Annotated[Layout, BeforeValidator(layout_table), AfterValidator(_check)]
_LAYOUT: TypeAdapter[Layout] = TypeAdapter(LayoutTable)


def parse_layout(raw: Mapping[str, object]) -> Layout:
    """Return the layout that a table of a study says, or ``Layout.to_json``. Raises ValueError.

    Its datasets get every property that the engine replays, with ZFS's default where ``raw`` says nothing.
    """
    return _LAYOUT.validate_python(raw)


def with_settings(layout: Layout, changes: Mapping[str, object], name: str | None = None) -> Layout:
    """Return ``layout`` with ``changes`` (factors as in ``Layout.settings``), checked afresh.

    ``tunable.NAME``, ``database.NAME``, ``workload.NAME``, ``pool.NAME.filesystem`` and the settings of a
    role may be "default", which takes the setting away. Raises ValueError with a sentence for an unknown
    factor or a value that ZFS would not take.
    """
    return parse_layout(_factors.changed(layout.to_json(), changes, name))


def check_arc(layout: Layout) -> None:
    """Raise ValueError if no place takes an ARC of this size."""
    if not MIN_ARC <= layout.arc <= MAX_ARC:
        raise ValueError(_arc_range(layout.arc))


def _arc_range(size: int) -> str:
    what = "small" if size < MIN_ARC else "large"
    return (
        f"{format_size(size)} is too {what} for an ARC; {format_size(MIN_ARC)} is the least, "
        f"{format_size(MAX_ARC)} the most"
    )


def default_setting(key: str) -> str | None:
    """Return ZFS's default of a factor of ``Layout.settings``, or None where ZFS has none (disks, ARC)."""
    if key == "age":
        return "new"
    if key in {"slog", "l2arc", "special"} or re.fullmatch(r"pool\..+\.(slog|l2arc|special)", key):
        return "none"
    if key.startswith("tunable."):
        known = TUNABLES.get(key.removeprefix("tunable."))
        return None if known is None else ("default" if known.default is None else known.text(known.default))
    if key.startswith("database."):
        return "default"
    if key.startswith("workload."):
        return None
    if key.startswith("pool."):
        return "zfs" if key.endswith(".filesystem") else None
    role, _, name = key.partition(".")
    if role in ROLES and name in PROPERTIES:
        return PROPERTIES[name].default
    if role in ROLES and name in _VOLUME_DEFAULTS:
        return _VOLUME_DEFAULTS[name]
    return None


_VOLUME_DEFAULTS = {"volume": "none", "filesystem": "ext4"}


def optional_setting(key: str) -> bool:
    """Say whether ``Layout.settings`` may leave a factor out: absent means its default."""
    head, _, name = key.partition(".")
    if head in ROLES and name in PROPERTIES:
        return name not in STATED
    return (
        head in {"age", "tunable", "database", "workload"}
        or (head in ROLES and name in _VOLUME_DEFAULTS)
        or (head == "pool" and key.endswith(".filesystem"))
    )


def plain(error: ValueError) -> str:
    """Return the sentence inside a pydantic ValidationError, or the error's own text."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        first = errors()[0]
        return str(first["msg"]).removeprefix("Value error, ")
    return str(error)
