"""bpftrace: hist() and lhist() and counts, as text or as ``-f json``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from ztune.observe import histograms
from ztune.observe.model import Buckets
from ztune.observe.sources import figures, histogram_meaning
from ztune.observe.sources.collect import add, direction, plain_call, role_word
from ztune.observe.sources.histogram_meaning import Keys, Meaning
from ztune.observe.sources.source import Source, readable
from ztune.onhost.probes.bpf import parse_maps

_TITLE = re.compile(r"@(\w*)(?:\[(.*)\])?: ?")
_COUNT = re.compile(r"@(\w*)(?:\[(.*)\])?: (-?[\d.,'_]+)")
_ROW = re.compile(
    r"(?:[\[(])(-?\d+[KMGTPE]?|\.\.\.)(?:, (-?\d+[KMGTPE]?|\.\.\.)\)|\])\s+(\d[\d.,'_]*) \|[@ ]*\|?"
)
_BAR = re.compile(r"[\[(][^|]*\|?.*")
_OURS = re.compile(r"@\w*[\[:]|[\[(](?:\d|\.\.\.)")
_STATS = re.compile(r"@\w*(?:\[.*\])?: count \d+, average -?\d+, total -?\d+")
_JSON = re.compile(r'\{"type": ?"(?:attached_probes|map|hist|stats|printf|time|value)"')
_COUNTERS: Final = frozenset({"", "n", "num", "calls", "call", "count", "counts", "syscalls"})


@dataclass
class _Map:
    name: str
    histograms: dict[str, Buckets] = field(default_factory=dict)  # by key as it is printed
    numbers: dict[str, int] = field(default_factory=dict)


class Bpftrace:
    """Reads both."""

    name = "bpftrace"
    what = "bpftrace hist(), lhist() and count(), as text or -f json"

    def recognise(self, head: str) -> bool:
        """True if a map is printed as text or JSON."""
        lines = [line.strip() for line in head.splitlines()]
        return any(
            _JSON.match(line)
            or _COUNT.fullmatch(line)
            or (_TITLE.fullmatch(line) and after < len(lines) and _ROW.fullmatch(lines[after]))
            for after, line in enumerate(lines, start=1)
        )

    def read(self, source: Source) -> None:
        """Add the histograms and the counts of calls."""
        maps: dict[str, _Map] = {}
        if _JSON.search(source.head()):
            _from_json(source, maps)
        else:
            _from_text(source, maps)
        _enter(source, maps)


def _from_text(source: Source, maps: dict[str, _Map]) -> None:
    buckets: Buckets | None = None
    for line in source.lines():
        line = line.strip()
        if buckets is not None and _BAR.fullmatch(line):
            _row(source, line, buckets)
            continue
        buckets = None
        if found := _COUNT.fullmatch(line):
            n = figures.count(found[3])
            if n is not None and not source.unended:
                maps.setdefault(found[1], _Map(found[1])).numbers[found[2] or ""] = n
        elif found := _TITLE.fullmatch(line + " "):
            entry = maps.setdefault(found[1], _Map(found[1]))
            if entry.histograms.get(found[2] or ""):
                source.limit(f"@{found[1]} is printed several times; only the last was used.")
            buckets = entry.histograms[found[2] or ""] = {}
        elif _OURS.match(line) and not _STATS.fullmatch(line):
            source.limit(f"the line {line[:60]!r} is cut or not understood; left out.")
    if source.unended:
        source.limit("the file ends within a line; what was read before it is kept.")


def _row(source: Source, line: str, buckets: Buckets) -> None:
    found = _ROW.fullmatch(line)
    n = figures.count(found[3]) if found else None
    if found is None or n is None:
        source.limit(f"the row {line[:60]!r} is cut or not understood; left out.")
        return
    low, high = found[1], found[2]
    if low == "..." or low.startswith("-"):
        if n:
            source.limit(f"{n} values below zero (calls that failed) were left out.")
        return
    begin = figures.scaled(low)
    end = None if high in (None, "...") else figures.scaled(high)
    if begin is not None and n:
        _put(source, buckets, begin[0], end[0] if end else None, n)


def _put(source: Source, buckets: Buckets, low: int, end: int | None, n: int) -> None:
    """Add ``n`` values from ``low`` to below ``end``."""
    powers = low & (low - 1) == 0 and (end is None or end == 2 * low or (low == 0 and end == 1))
    if powers:
        add(buckets, {low: n})
        return
    source.limit("linear histograms (lhist) were put into buckets of powers of two by their middles.")
    add(buckets, {histograms.bucket((low + end) / 2 if end is not None else low): n})


def _from_json(source: Source, maps: dict[str, _Map]) -> None:
    text = source.text()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("{"):
            try:
                json.loads(line)
            except (ValueError, RecursionError):
                source.limit(f"line {number} is cut or not JSON; left out.")
    try:
        parsed = readable(parse_maps(text))
    except (AttributeError, KeyError, TypeError, RecursionError):
        source.limit("a map is not in the form that bpftrace writes; nothing of it was read.")
        return
    for name, values in parsed.items():
        entry = maps.setdefault(name, _Map(name))
        for key, value in values.items():
            if isinstance(value, list):
                entry.histograms[key] = _json_histogram(source, value)
            elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= figures.LARGEST:
                entry.numbers[key] = value


def _json_histogram(source: Source, rows: list[Any]) -> Buckets:
    buckets: Buckets = {}
    for row in rows:
        values = [row.get(name) for name in ("min", "max", "count")] if isinstance(row, dict) else []
        if not values or any(v is not None and (type(v) is not int or abs(v) >> 63) for v in values):
            source.limit(f"the bucket {str(row)[:60]!r} is not understood; left out.")
            continue
        low, high, n = values
        if n is None or n <= 0:
            continue
        if low is None or low < 0:
            source.limit(f"{n} values below zero (calls that failed) were left out.")
            continue
        _put(source, buckets, low, None if high is None else high + 1, n)
    return buckets


def _enter(source: Source, maps: dict[str, _Map]) -> None:
    """Enter the maps that stand for roles, and of the others one for each meaning: two count the same I/O."""
    chosen: dict[Meaning, _Map] = {}
    same: dict[Meaning, list[str]] = {}
    for entry in maps.values():
        means, _ = _means(source, entry)
        if not entry.histograms:
            continue
        if means is None:
            source.limit(
                f"@{entry.name} holds times without saying of what and was left out; "
                "--as says it (sync-latency-us)."
            )
        elif _stands_for_a_role(source, entry.name):
            _histograms(source, entry, means)
        else:
            same.setdefault(means, []).append(f"@{entry.name}")
            if means not in chosen or len(entry.histograms) > len(chosen[means].histograms):
                chosen[means] = entry
    for means, entry in chosen.items():
        if others := ", ".join(sorted(name for name in same[means] if name != f"@{entry.name}")):
            source.limit(
                f"{others} would count the same I/O as @{entry.name} again and was left out; name a map after"
                " a role (@wal, @data_write) to have it read beside another."
            )
        _histograms(source, entry, means)
    unused = [f"@{entry.name}" for entry in maps.values() if not _numbers(source, entry)]
    if unused:
        source.limit(f"plain numbers that do not say what they count were left out: {', '.join(unused)}.")


def _stands_for_a_role(source: Source, name: str) -> bool:
    return role_word(name) is not None or any(rule.matches(name) for rule in source.into.rules.rules)


def _means(source: Source, entry: _Map) -> tuple[Meaning | None, bool]:
    """Return what a map counts, as the user, its name or its keys' calls say, and if that is assumed."""
    if source.means is not None:
        return source.means, False
    named = histogram_meaning.of_name(entry.name)
    if named is not None:
        return named, False
    sides = {side for key in entry.histograms for part in key.split(",") if (side := direction(part.strip()))}
    unit = histogram_meaning.time_unit(entry.name)
    if unit is not None or sides == {"sync"}:
        return (Meaning(sides.pop(), False, unit or 1) if len(sides) == 1 else None), False
    if sides == {"read"}:
        return Meaning("read"), False
    return Meaning("write"), sides != {"write"}


def _histograms(source: Source, entry: _Map, means: Meaning) -> None:
    if _means(source, entry)[1]:
        source.limit(
            f"@{entry.name} does not say what it counts: taken for sizes of writes; --as says otherwise."
        )
    for key, buckets in entry.histograms.items():
        texts = [part for part in key.split(",") if part.strip()]
        named = _stands_for_a_role(source, entry.name)
        at = histogram_meaning.keys(texts)
        if named:
            # The map is the role; its keys may still name files and calls.
            at = Keys(at.call or histogram_meaning.keys([entry.name]).call, at.path, entry.name)
        elif not texts:
            at = Keys(None, None, source.path.stem)
        if means.scale != 1:
            source.limit(
                f"@{entry.name} is not in ns: its buckets were moved to those of ns that hold their middles."
            )
        histogram_meaning.enter(source.into, means, buckets, at)


def _numbers(source: Source, entry: _Map) -> bool:
    """Enter counts by call; False if the map holds other numbers."""
    used = True
    for key, n in entry.numbers.items():
        calls = [plain_call(part.strip()) for part in key.split(",") if direction(part.strip()) is not None]
        if entry.name.lower() in _COUNTERS and len(calls) == 1:
            source.into.call(calls[0], n)
        else:
            used = False
    return used
