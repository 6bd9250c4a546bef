"""What a histogram without a header counts, and where it is entered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ztune.errors import InputError
from ztune.observe.histograms import bucket
from ztune.observe.model import Buckets, ObservedTransfers, Syncs
from ztune.observe.sources.collect import Collected, add, direction, plain_call, role_word

What = Literal["read", "write", "sync", "call"]
_UNITS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000}


@dataclass(frozen=True)
class Meaning:
    """Sizes in bytes of what, or times of it, in units of ``scale`` ns."""

    what: What
    sizes: bool = True
    scale: int = 1


MEANINGS: Final[dict[str, Meaning]] = {
    "write-sizes": Meaning("write"),
    "read-sizes": Meaning("read"),
    **{f"{what}-latency": Meaning(what, False) for what in ("write", "read", "sync", "call")},
    **{
        f"{what}-latency-{unit}": Meaning(what, False, scale)
        for what in ("write", "read", "sync", "call")
        for unit, scale in _UNITS.items()
    },
}
"""What ``--as`` can say. Latency without a unit is in ns."""


def histogram_meaning(text: str) -> Meaning:
    """Return what the user says that histograms are; raises InputError."""
    if text not in MEANINGS:
        raise InputError(
            f"{text!r} is not a meaning of a histogram; it should be one of {', '.join(MEANINGS)}"
        )
    return MEANINGS[text]


def of_name(name: str) -> Meaning | None:
    """Return what a map's or variable's name says of it: "write_sizes", "fsync_usecs", "read_lat_ns"."""
    what, unit = _what(_words(name)), time_unit(name)
    if unit is not None:
        return Meaning(what, False, unit) if what else None
    return Meaning(what) if what in ("read", "write") else None


_ENDS: Final = {
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanoseconds"), 1),
    **dict.fromkeys(("us", "usec", "usecs", "microseconds"), 1_000),
    **dict.fromkeys(("ms", "msec", "msecs", "milliseconds"), 1_000_000),
}
_TIMES: Final = frozenset({"lat", "latency", "latencies", "time", "times", "duration", "took"})


def time_unit(name: str) -> int | None:
    """Return the ns of one unit of a map whose name says that it holds times, 1 without a unit; else None."""
    words = _words(name)
    unit = next((_ENDS[word] for word in words if word in _ENDS), None)
    return 1 if unit is None and not _TIMES.isdisjoint(words) else unit


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", name.lower())


def _what(words: Sequence[str]) -> What | None:
    for word in words:
        found = direction(word)
        if found is not None:
            return found
        if word in ("reads", "writes"):
            return "read" if word == "reads" else "write"
        if word == "syncs":
            return "sync"
    return None


def rescaled(buckets: Mapping[int, int], scale: int) -> Buckets:
    """Return a power-of-two histogram of another unit in ns, by the middle of each bucket.

    A bucket of µs lies across two of ns; its middle is in the one that holds more of it.
    """
    if scale == 1:
        return {low: n for low, n in buckets.items() if n}
    found: Buckets = {}
    for low, n in buckets.items():
        add(found, {bucket(scale * 1.5 * low if low else scale / 2): n})
    return found


@dataclass(frozen=True)
class Keys:
    """What the keys of an aggregation say."""

    call: str | None
    path: str | None
    role_key: str | None
    """What the role is told from."""


def keys(texts: Sequence[str]) -> Keys:
    """Tell calls, paths and roles among the keys of a foreign aggregation.

    A key with a slash is a path; a key that is a call's name is a call; "data_pwrite" is a role and a call;
    another key stands for the file if there is no path.
    """
    call = path = named = other = None
    for text in (text.strip() for text in texts):
        if not text:
            continue
        if direction(text) is not None:
            call = plain_call(text)
        elif "/" in text:
            path = path or text
        elif role_word(text) is not None:
            named = named or text
            last = re.split(r"[\s_.:-]", text)[-1]
            if direction(last) is not None:
                call = call or plain_call(last)
        else:
            other = other or text
    if path is None and named is None:
        path = other
    return Keys(call, path, path or named)


def enter(into: Collected, means: Meaning, buckets: Mapping[int, int], at: Keys) -> None:
    """Add a histogram to the groups that its keys name, or to the table of calls."""
    if not any(buckets.values()):
        return
    found = rescaled(buckets, means.scale)
    if means.what == "call":
        into.call(at.call or at.path or at.role_key or "unknown", sum(found.values()), latency=found)
        return
    role = into.role(at.role_key) if at.role_key is not None else None
    if means.what == "sync":
        into.enter(path=at.path, call=at.call, role=role, syncs=Syncs(latency=found))
        return
    moved = ObservedTransfers(sizes=found) if means.sizes else ObservedTransfers(latency=found)
    reads, writes = (moved, None) if means.what == "read" else (None, moved)
    into.enter(path=at.path, call=at.call, role=role, reads=reads, writes=writes)
