"""Numbers as tools print them: with thousands separators of any locale, decimal commas, and K, M, G."""

from __future__ import annotations

import re
from typing import Final

_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([.,'_ \u00a0\u202f\u2019])\d{3})(?:\1\d{3})*")
_PLAIN = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?\d+[.,]\d+")
_SCALED = re.compile(r"(\d+(?:[.,]\d+)?)([KMGTPEZ]?)")
_LONGEST: Final = 24  # digits and separators of any 64-bit number
LARGEST: Final = (1 << 63) - 1
"""The largest number that a counter, a size or a time in ns has; what is larger is damaged."""


def count(text: str) -> int | None:
    """Return the whole number that ``text`` is ("35", "1,234", "1.234", "1'234"), or None.

    A separator before three digits is one of thousands: counts have no decimals.
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    if _PLAIN.fullmatch(text):
        number = int(text)
    elif _GROUPED.fullmatch(text):
        number = int(re.sub(r"[^\d+-]", "", text))
    else:
        return None
    return number if abs(number) <= LARGEST else None


def decimal(text: str) -> float | None:
    """Return the number that ``text`` is ("0.167857", "0,167857", "12"), or None."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    if not _PLAIN.fullmatch(text) and not _DECIMAL.fullmatch(text):
        return None
    number = float(text.replace(",", "."))
    return number if abs(number) <= LARGEST else None


def scaled(text: str) -> tuple[int, bool] | None:
    """Return (number, exact) of "12", "2.28K", "4M" in powers of 1024, or None.

    Not exact: the tool rounded it to three or four digits.
    """
    found = _SCALED.fullmatch(text.strip())
    if found is None or len(found[1]) > _LONGEST:
        return None
    scale = 1024 ** (" KMGTPEZ".index(found[2]) if found[2] else 0)
    number = round(float(found[1].replace(",", ".")) * scale)
    return (number, not found[2]) if number <= LARGEST else None
