"""Size of a database relative to the memory that ZFS caches it in: the OLTP study's "cached" and
"uncached".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from ztune.units import format_size, parse_size

_WORDS = {"cached": 0.5, "uncached": 6.0}
"""Times the ARC. Half of it stays cached with all that belongs to it. The ARC holds blocks as they are
compressed, so of six times its size at 2:1 two thirds can't be cached."""
LEAST = 1 << 20
"""Bytes of the smallest database."""
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
        except ValueError:
            raise ValueError(
                "write cached, uncached, times the ARC such as 3x, or a size such as 256M"
            ) from None
        if size < LEAST:
            raise ValueError(f"{format_size(LEAST)} is the least")
        return format_size(size)
    if times <= 0:
        raise ValueError("it must be more than 0x")
    return text


MARK = "size relative to the ARC"
DatabaseSize = Annotated[str, BeforeValidator(_checked), MARK]
"""A parameter ``size`` that may be relative to the parameter ``arc``."""


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with ``size`` in bytes where it is relative to ``arc``; a record must say how
    much.
    """
    found = dict(values)
    times = _times(str(found.get("size", "")))
    if times is not None and "arc" in found:
        found["size"] = format_size(max(LEAST, round(times * parse_size(found["arc"])) // 4096 * 4096))
    return found
