"""Numbers as people read them. One place, so that all reports agree. Exact ZFS sizes: ztune.units."""

from __future__ import annotations

import math

_SUFFIXES = ("", "K", "M", "G", "T", "P", "E")


def amount(value: float) -> str:
    """Return bytes with three significant digits and a binary unit: 1,610,612,736 → "1.50 GiB"."""
    size, power = float(value), 0
    while abs(size) >= 1000 and power < len(_SUFFIXES) - 1:
        size /= 1024
        power += 1
    if power == 0:
        return f"{size:.0f} B" if size == int(size) else f"{size:.1f} B"
    return f"{_three(size)} {_SUFFIXES[power]}iB"


def seconds(value: float) -> str:
    """Return a duration in s with three significant digits and a unit that suits: "35.7 s", "820 ms"."""
    if value == 0:
        return "0 s"
    if abs(value) < 1e-3:
        return f"{_three(value * 1e6)} µs"
    if abs(value) < 1:
        return f"{_three(value * 1e3)} ms"
    if abs(value) < 1000:
        return f"{_three(value)} s"
    return f"{value / 60:,.0f} min" if value < 7200 else f"{_three(value / 3600)} h"


def count(value: float) -> str:
    """Return a count with separators: 18257 → "18,257"."""
    return f"{value:,.0f}"


def capital(text: str) -> str:
    """Return ``text`` as it begins a sentence; a setting stays as it is written: "full_page_writes=off"."""
    first = text.partition(" ")[0]
    return text if "_" in first or "=" in first else text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Return a clause as a sentence: "damaged data" → "Damaged data."."""
    return capital(text).rstrip(".") + "."


def times(
    ratio: float | None, low: float | None = None, high: float | None = None, *, of_several: bool = False
) -> str:
    """Return a ratio as "×0.35", with the ends of its interval as "×0.35 (0.33 … 0.37)"; None, for nothing to
    divide by, as "–". Every ratio that ztune shows is written so. ``of_several``: the ends are the least and
    the most of several ratios, no interval of one."""
    if ratio is None:
        return "–"
    text = f"×{_factor(ratio)}"
    if low is None or high is None:
        return text
    # Equal values have no spread to tell an error from: an interval of no width would claim to know it.
    same = not of_several and math.isclose(low, high, rel_tol=1e-9)
    return f"{text} (the same each time)" if same else f"{text} ({_factor(low)} … {_factor(high)})"


def change(ratio: float) -> str:
    """Return a ratio as what it changes: 0.7 is "−30 %"."""
    share = round((ratio - 1) * 100)
    return f"{'−' if share < 0 else '+' if share else ''}{abs(share)} %"


def _factor(ratio: float) -> str:
    return "0" if ratio == 0 else _three(ratio)


def show(value: float, unit: str) -> str:
    """Return ``value`` as text; ``unit`` one of "s", "ms", "bytes", "count", "ratio", "rate", "share"."""
    match unit:
        case "s":
            return seconds(value)
        case "ms":
            return seconds(value / 1000)
        case "bytes":
            return amount(value)
        case "ratio" | "rate":
            return f"{_three(value)}"
        case "share":
            return f"{value * 100:.1f}".removesuffix(".0") + "%"
    return count(value)


def _three(value: float) -> str:
    size = abs(value)
    if 0 < size < 0.0995:  # a row of a bulk load costs thousandths of an operation: two figures
        digits = 1 - math.floor(math.log10(size))
    else:
        digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}"
