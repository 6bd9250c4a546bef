"""Size of a database relative to the memory that ZFS caches it in: the OLTP study's "cached" and
"uncached".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from ztune.units import format_size, parse_size

_WORDS = {"cached": 0.5, "uncached": 6.0}
"""Times the ARC. Half of it stays cached with all that belongs to it. The ARC holds blocks as they are
compressed, so of six times its size at 2:1 two thirds can't be cached."""
LEAST = 1 << 20
"""Bytes of the smallest database."""
MOST = 1_000_000
"""Times the ARC: of the least one, 64 TiB."""
_TIMES = re.compile(r"(\d+(?:\.\d+)?)x")


def _times(text: str) -> float | None:
    match = _TIMES.fullmatch(text)
    return float(match[1]) if match else _WORDS.get(text)


def _checked(value: object) -> str:
    text = str(value).strip()
    times = _times(text)
    if times is None:
        try:
            size = parse_size(value)
        except ValueError as error:
            raise ValueError(f"{error}; or cached, uncached, or times the ARC such as 3x") from None
        if size < LEAST:
            raise ValueError(f"{format_size(LEAST)} is the least")
        return format_size(size)
    if not 0 < times <= MOST:
        raise ValueError(f"it must be more than 0x, and at most {MOST:,}x")
    return text


MARK = "size relative to the ARC"
MEANING = (
    "`cached` is half of `arc`, `uncached` six times `arc`; "
    "or any multiple such as `2.5x`, or a size such as `256M`."
)
"""What such a parameter can be, in words: the end of each one's meaning."""
DatabaseSize = Annotated[str, BeforeValidator(_checked), MARK]
"""A parameter ``size`` that may be relative to the parameter ``arc``."""


def _checked_or_none(value: object) -> str:
    return "0" if str(value).strip() == "0" else _checked(value)


OptionalSize = Annotated[str, BeforeValidator(_checked_or_none), MARK]
"""The same; 0 where another parameter says how large the database is."""


def is_relative(fields: Mapping[str, FieldInfo], values: Mapping[str, object]) -> bool:
    """Return whether the size asked for in ``values``, or the default among a workload's parameters
    ``fields``, is relative to the ARC.
    """
    if "size" not in fields or "arc" not in fields:
        return False
    return _times(str(values.get("size", fields["size"].default)).strip()) is not None


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with ``size`` in bytes where it is relative to ``arc``; a record must say how
    much.
    """
    found = dict(values)
    times = _times(str(found.get("size", "")))
    if times is not None and "arc" in found:
        found["size"] = format_size(max(LEAST, round(times * parse_size(found["arc"])) // 4096 * 4096))
    return found
