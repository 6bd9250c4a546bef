"""Sizes as ZFS writes them: "8K", "64M", "7.5G". Always powers of 1024, always whole bytes inside.

And how many there are of something, "1 row" and "2,000 rows", and which: "a, b and c".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_UNITS = "KMGTPE"
_TOO_LARGE = 1 << 64
_LONGEST = 60  # characters
DIGITS = 20
"""Of 2^64: what others say may be a number of hundreds."""
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(?:([KMGTPE])(?:i?B)?|B)?\s*$", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Return the bytes that ``value`` names: an int, or text such as "8K", "1MiB", "7.5G", "512".

    Raises ValueError with a sentence for anything else, and for a fraction of a byte.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f'{value!r} is not a size; write bytes or text such as "128K"')
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"{value} is negative; a size is 0 or more bytes")
        if value >= _TOO_LARGE:
            raise ValueError("a size is below 16 EiB, which is 2^64 bytes")
        return value
    match = _SIZE.match(value)
    if match is None or len(value) > _LONGEST:
        value = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
        raise ValueError(f'{value!r} is not a size; write bytes or text such as "8K", "64M", "7.5G"')
    number: Fraction | int = Fraction(match[1]) if "." in match[1] else int(match[1])
    unit = match[2]
    scale = 1024 ** (_UNITS.index(unit.upper()) + 1) if unit else 1
    size = number * scale
    if size.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number of bytes")
    if size >= _TOO_LARGE:
        raise ValueError(f"{value!r} is too large; a size is below 16 EiB, which is 2^64 bytes")
    return int(size)


def whole(text: str) -> int | None:
    """Return a number of digits alone, as programs print counts and bytes; None for all else, and for one
    that is larger than any of these: what others' programs and files say may be anything.
    """
    return int(text) if len(text) <= DIGITS and text.isascii() and text.isdigit() else None


def format_size(size: int) -> str:
    """Return the shortest exact text for ``size`` bytes: 131072 → "128K", 1000 → "1000"."""
    text = str(size)
    for power, unit in enumerate(_UNITS, start=1):
        scale = 1024**power
        if size and size % scale == 0:
            text = f"{size // scale}{unit}"
    return text


def is_power_of_two(value: int) -> bool:
    """True for 1, 2, 4, 8 …"""
    return value > 0 and value & (value - 1) == 0


def plural(noun: str) -> str:
    """Return more than one of what a job counts: "row" → "rows", "entry" → "entries", "batch" → "batches"."""
    if noun == "vertex":
        return "vertices"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: "a, b and c"; "" for none."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(number: int, one: str, more: str = "") -> str:
    """Return a number with its noun: "1 row", "2,000 rows". ``more``: a plural that ``plural`` can't make."""
    return f"{number:,} {one if number == 1 else more or plural(one)}"
