"""How much of a trace is replayed: one address region in how many. ``sampling.py`` takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ztune.errors import InputError
from ztune.units import format_size

REGION = 1 << 20
"""Bytes of a region at least; it is as large as the largest record of a study."""


@dataclass(frozen=True)
class Rate:
    """One region in ``of`` is taken. ``part``: which, from 0; the parts of a rate have none in common."""

    of: int
    part: int = 0
    region: int = REGION

    def __str__(self) -> str:
        return f"1/{self.of}"


MOST = 1 << 16
"""What one region may stand for: of 64 GiB in regions of 1 MiB a sample has one then."""


def parse_rate(text: str) -> int:
    """Return N of ``1/N``. Raises InputError."""
    one, slash, many = text.strip().partition("/")
    if one.strip() != "1" or not slash or not many.strip().isdecimal() or int(many) < 1:
        raise InputError(f'--sample: "{text}" is no rate; write 1/N, such as 1/8, or 1/1 for all')
    if int(many) > MOST:
        raise InputError(f"--sample: 1/{int(many)} is too little; 1/{MOST} is the least")
    return int(many)


@dataclass(frozen=True)
class Work:
    """What decides about a sample. ``events``: operations on what would be sampled, ``data`` its bytes,
    ``touched`` those of regions that any operation touches. ``regions``: that the role has which is used, and
    has the most."""

    events: int
    data: int
    touched: int
    regions: int


EVENTS = 150_000
"""Operations of a sample: about 15 s of an engine, which does some 14,000 a second."""
LEAST_REGIONS = 4
"""Of each role a sample has so many at least, where there are."""
ARC_ABOVE_FLOOR = 2
"""So many times the least ARC that OpenZFS takes a sample has by default: what never shrinks, such as what is
in use, is too large a part of less."""
LOADED = 4 << 30
"""Bytes that a replay loads at most, about: where calls lie apart, that is a record of 1 MiB for each."""


def default_rate(of: Work, least_arc: int, floor: int) -> int:
    """Return how many regions one stands for by default: a power of two, 1 for what costs little.

    So many that neither the operations nor what is loaded for them takes an engine long, and not more than
    the study's smallest ARC allows: a part of it must be well above ``floor`` bytes, the least that OpenZFS
    takes. A role of which a sample would have too few regions has more.
    """
    wanted = max(of.events / EVENTS, of.touched / LOADED, 1.0)
    allowed = min(_power_of_two(least_arc // (ARC_ABOVE_FLOOR * floor)), most_for(of.regions))
    return min(1 << math.ceil(math.log2(wanted)), allowed)


def most_for(regions: int) -> int:
    """Return how many regions one of a role stands for at most, where that has so many: a power of two."""
    return _power_of_two(regions // LEAST_REGIONS)


def _power_of_two(most: int) -> int:
    return 1 << int(math.log2(max(most, 1)))


def is_all(events: int, data: int, least_arc: int, floor: int) -> bool:
    """Return whether ``default_rate`` is 1 whatever the operations are: there are ``events`` of them at most,
    on ``data`` bytes of files."""
    return (events <= EVENTS and data <= LOADED) or least_arc // (ARC_ABOVE_FLOOR * floor) < 2


def check_rate(of: int, least_arc: int, floor: int) -> None:
    """Raise InputError where a part of the ARC would be smaller than OpenZFS takes."""
    if least_arc // of < floor:
        most = max(1, least_arc // floor)
        raise InputError(
            f"--sample 1/{of} leaves {format_size(least_arc // of)} of the smallest ARC of the study "
            f"({format_size(least_arc)}), and OpenZFS takes no less than {format_size(floor)}; "
            f"1/{most} is the least"
        )
