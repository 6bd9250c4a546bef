"""What is written on the command line, read: numbers, shares, times, NAME=VALUE."""

from __future__ import annotations

import datetime
import math
from typing import Any

import click

from ztune.analysis.metrics import resolve
from ztune.errors import InputError

YEAR_S = 366 * 86_400
"""The longest time that is taken: what is longer is a slip of the keyboard."""
PROCESSES = 2**31 - 1
"""The largest process id that the kernel's type for it holds."""


class FiniteRange(click.FloatRange):
    """A number within a range; "inf" and "nan" are none, though Python reads them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Fails with a sentence."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Return the NAME=VALUE of ``-p``. Raises InputError."""
    out = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f'-p is "{text}"; write NAME=VALUE, for example -p scale=50')
        out[name.strip()] = value.strip()
    return out


def metrics(text: str) -> list[str]:
    """Return the metrics that ``--objective`` names, each once. Raises InputError."""
    names = [word for word in text.split(",") if word.strip()]
    if not names:
        raise InputError("--objective names nothing; write for example --objective time,space,written")
    return list(dict.fromkeys(resolve(name) for name in names))


def share(text: str, flag: str, *, zero: bool = False) -> float:
    """Return the share that ``text`` means: "2%" and "0.02" are 0.02. Raises InputError."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1 or (value == 0 and not zero):
        least = "from 0 to" if zero else "above 0 and"
        raise InputError(f'{flag} is "{text}"; it is a share {least} below 1, such as 2% or 0.02')
    return value


def blocks(text: str) -> tuple[int, int]:
    """Return the fewest and the most runs of "MIN:MAX" or "N". Raises InputError."""
    low, colon, high = text.partition(":")
    try:
        least = int(low)
        most = int(high) if colon else least
    except ValueError:
        least, most = 0, 0
    if not 1 <= least <= most <= 1000:
        raise InputError(f'--blocks is "{text}"; write MIN:MAX with 1 ≤ MIN ≤ MAX ≤ 1000, or one number')
    return least, most


def duration(text: str | None, flag: str = "--time-limit") -> float | None:
    """Return the seconds of "90", "30m", "2h". Raises InputError."""
    if text is None:
        return None
    scale = {"s": 1, "m": 60, "h": 3600}.get(text.strip()[-1:].lower(), 0)
    try:
        value = float(text.strip()[:-1]) * scale if scale else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= YEAR_S:
        raise InputError(
            f'{flag} is "{text}"; write seconds, or a number with m or h, such as 90m; a year at most'
        )
    return value


def clock_time(text: str, flag: str) -> datetime.datetime:
    """Return the time to come that ``text`` means, in local time: "18:00", "2026-11-24T06:00".

    Without a date it is the next such time. Raises InputError.
    """
    now = datetime.datetime.now().astimezone()
    try:
        if "-" in text:
            found = datetime.datetime.fromisoformat(text.strip()).astimezone()
        else:
            at = datetime.time.fromisoformat(text.strip().zfill(5))
            found = now.replace(hour=at.hour, minute=at.minute, second=at.second, microsecond=0)
            found += datetime.timedelta(days=found <= now)
    except ValueError:
        raise InputError(f'{flag} is "{text}"; write a time such as 18:00 or 2026-11-24T06:00') from None
    if found <= now:
        raise InputError(f"{flag} is {text}, which has passed; write a time to come, such as 18:00")
    return found
