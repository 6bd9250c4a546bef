"""The age of a layout's pools: what happened to them before the measure. docs/age.md has all of it.

Standard library alone, since it is sent to hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ztune.onhost.fields import KeyedError, described
from ztune.units import format_size, is_power_of_two, parse_size

FILLER = "ztune-filler"
"""The dataset of each pool that holds the other files."""
CLONE = "ztune-clone"
"""What the names of clones begin with, right below their pool."""
FILLER_PROPERTIES = {"recordsize": "1M", "compression": "off"}
"""Nobody reads them: zeros that are not compressed take the pool's space, and in a replay no memory."""
REWRITTEN = {"data": False, "index": False, "wal": True}
"""The roles whose files are rewritten, and whether in order: a log is recycled from its start to its end."""
WRITE = 8 << 10
"""Bytes of a write where neither the age nor a recording says: PostgreSQL's page, BLCKSZ."""
MAX_FILL, MAX_REWRITES = 95, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """How full the pools are kept, and how often the database was rewritten meanwhile."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid"}

    fill: int = field(
        default=0,
        metadata=described(
            'How full each pool is kept, `"80%"`, with other files; `0`: there are none.', ge=0, le=MAX_FILL
        ),
    )
    rewrites: int = field(
        default=0,
        metadata=described(
            "How often the files of data, index and log were rewritten in place.", ge=0, le=MAX_REWRITES
        ),
    )
    snapshots: int = field(
        default=0,
        metadata=described("Snapshots taken between the rewrites, and kept.", ge=0, le=MAX_REWRITES),
    )
    clones: int = field(
        default=0,
        metadata=described("Of so many of the snapshots a clone is made, and kept.", ge=0, le=MAX_REWRITES),
    )
    write: int | None = field(
        default=None,
        metadata=described(
            "Bytes of each write; none: what the recording writes most, in trials `8K`.", ge=512, le=16 << 20
        ),
    )

    def __post_init__(self) -> None:
        if self.snapshots > self.rewrites:
            raise KeyedError(
                ("snapshots",),
                f"{self.snapshots} snapshots are taken between {self.rewrites} rewrites; there are as many "
                "rewrites as snapshots, or more",
            )
        if self.clones > self.snapshots:
            raise KeyedError(
                ("clones",),
                f"{self.clones} clones are made of {self.snapshots} snapshots; there are as many snapshots "
                "as clones, or more",
            )
        if self.write is not None and not is_power_of_two(self.write):
            raise KeyedError(
                ("write",), f"write is {format_size(self.write)}; it is a power of two from 512 to 16M"
            )

    def text(self) -> str:
        """Return the short form, which ``age_table`` takes: "used", "fill 50% rewrites 3"."""
        return next((name for name, age in NAMED.items() if age == self), self._long())

    def _long(self) -> str:
        said = [f"fill {self.fill}%" if self.fill else ""]
        said += [f"{name} {n}" for name in ("rewrites", "snapshots", "clones") if (n := getattr(self, name))]
        said.append(f"write {format_size(self.write)}" if self.write else "")
        return " ".join(filter(None, said)) or "new"

    def words(self) -> str:
        """Return what it means: "80 % full, rewritten 3 times, 2 snapshots"."""
        parts = [f"{self.fill} % full" if self.fill else ""]
        if self.rewrites:
            parts.append(f"rewritten {'once' if self.rewrites == 1 else f'{self.rewrites} times'}")
        if self.snapshots:
            parts.append(f"{self.snapshots} snapshot{'s' if self.snapshots > 1 else ''}")
        if self.clones:
            parts.append(f"{self.clones} clone{'s' if self.clones > 1 else ''}")
        return ", ".join(filter(None, parts))


NAMED: dict[str, Age | None] = {
    "new": None,
    "used": Age(fill=80, rewrites=5),
    "old": Age(fill=90, rewrites=10, snapshots=2),
}
"""The ages that have a name."""
_PART = re.compile(r"(fill|rewrites|snapshots|clones|write)\s+(\S+)")


def age_table(value: object) -> object:
    """Return an age as a table of numbers, of a table in TOML or of the short form; None where it is new.

    What is neither is returned as it is, for pydantic to complain of. Raises KeyedError, ValueError.
    """
    if isinstance(value, str):
        value = _parts(value)
    if not isinstance(value, Mapping):
        return value
    out: dict[str, Any] = dict(value)
    for key, read in _READ.items():
        if out.get(key) is not None:
            try:
                out[key] = read(out[key])
            except ValueError as error:
                raise KeyedError((key,), str(error)) from None
    something = out.get("fill") or out.get("rewrites") or out.get("snapshots") or out.get("clones")
    return out if something or set(out) - set(_READ) else None


def _parts(text: str) -> dict[str, str]:
    if text in NAMED:
        age = NAMED[text]
        return {} if age is None else _parts(age._long())
    found = _PART.findall(text)
    if not found or _PART.sub("", text).strip(" ,"):
        raise ValueError(
            f'"{text}" is not an age; write {", ".join(NAMED)}, or such as "fill 80% rewrites 3 snapshots 2"'
        )
    return dict(found)


def _percent(value: object) -> int:
    text = str(value).removesuffix("%").strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) > MAX_FILL:
        raise ValueError(f'fill is "{value}"; it is a share of the pool from 0% to {MAX_FILL}%')
    return int(text)


def _count(value: object) -> int:
    if isinstance(value, bool) or not str(value).isdecimal() or int(str(value)) > MAX_REWRITES:
        raise ValueError(f'"{value}" is not a whole number from 0 to {MAX_REWRITES}')
    return int(str(value))


_READ: dict[str, Callable[[Any], int]] = {
    "fill": _percent,
    "rewrites": _count,
    "snapshots": _count,
    "clones": _count,
    "write": parse_size,
}
