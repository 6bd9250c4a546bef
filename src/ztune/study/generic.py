"""The study for a trace that no ready study is made for: built from what the trace has of each role."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ztune.onhost.words import ROLES
from ztune.study.loader import resolve_profiles
from ztune.study.study import Study
from ztune.units import format_size, is_power_of_two

NAME = "generic"
# What is worth trying for each role where nothing was recorded: random pages; an append-only log; scratch;
# large sequential files.
_PAGES = ("8K", "16K", "32K", "64K", "128K", "1M")
_AXES: dict[str, dict[str, tuple[str, ...]]] = {
    "data": {
        "recordsize": _PAGES,
        "compression": ("off", "lz4", "zstd-3"),
        "logbias": ("latency", "throughput"),
        "primarycache": ("all", "metadata"),
    },
    "wal": {"recordsize": ("16K", "32K", "128K", "1M"), "logbias": ("latency", "throughput")},
    "index": {"recordsize": _PAGES, "compression": ("off", "lz4", "zstd-3")},
    "temp": {"recordsize": ("32K", "128K", "1M"), "compression": ("off", "lz4")},
    "backup": {"recordsize": ("128K", "1M"), "compression": ("lz4", "zstd-3")},
    "archive": {"recordsize": ("128K", "1M"), "compression": ("lz4", "zstd-3", "gzip-9")},
    "source": {"recordsize": ("128K", "1M"), "primarycache": ("all", "metadata")},
}

SMALLEST, DEFAULT, LARGE, LARGEST = 4 << 10, 128 << 10, 1 << 20, 16 << 20
"""Record sizes in bytes: a sector; ZFS's default; the largest that needs no thought about memory; the
largest there is."""
ASKED_SHARE = 0.05
"""Of the calls or of the bytes that come in one size: from this share on it is a record size to try."""
SEQUENTIAL = 0.5
"""Share of calls that begin where the last one ended, from which on records of 1M are tried."""
APPENDED = 0.9
"""From this share on records fill before they go to disk: few are tried, and none below the usual call. 32K
is where synced writes take another way (zfs_immediate_write_sz)."""
SHRINKS = 8 / 7
"""ZFS stores a block compressed if that saves an eighth of it (zio_compress_data in zio_compress.c)."""
TIGHTER = 1.05
"""A slower compression is tried where it packs this many times tighter: what screening calls equal is 5 %."""
PACKED = 1.5
"""From this ratio on compression=off isn't tried: it would move half as much again."""


@dataclass(frozen=True)
class RoleIO:
    """What was recorded of one role. Sizes: lower bound of a power-of-two bucket, bytes → calls."""

    reads: Mapping[int, int] = field(default_factory=dict)
    writes: Mapping[int, int] = field(default_factory=dict)
    reads_sequential: float = 0.0
    """Share of the reads that begin where the last one ended; so for writes."""
    writes_sequential: float = 0.0
    largest: int = 0
    """Bytes of its largest file; 0: not known."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """How its files compress at their best: "lz4", "zstd-3", "gzip-6" → ratio; empty: not measured."""
    page: int | None = None
    """Bytes of the database's page."""
    sizes: bool = True
    """Whether enough was recorded to choose a record size, compression and caching by."""
    commits: bool = True
    """The same for how it is synced."""
    direct: bool = False
    """Whether it is read or written with O_DIRECT, which OpenZFS takes past the ARC from 2.3 on."""

    def record_sizes(self) -> tuple[str, ...]:
        """Return the record sizes to try, smallest first.

        The sizes that the role is written and read in, and those between them and the default; 1M where half
        of it is in sequence; more where the calls are that large. None beyond the largest file, whose one
        block would be the same; the default is always among them.
        """
        asked = {size for calls in (self.reads, self.writes) for size in _asked(calls)}
        page = self.page if self.page is not None and is_power_of_two(self.page) else 0
        if page:
            asked.add(min(max(page, SMALLEST), LARGEST))
        usual = max((_usual(calls) for calls in (self.reads, self.writes)), default=0)
        low = min(asked, default=DEFAULT)
        between = set(_powers(SMALLEST, DEFAULT))
        if all(not n or share >= APPENDED for n, share in self._in_sequence()):
            low = page or _usual(self.writes) or _usual(self.reads)
            asked, between = {min(max(low, SMALLEST), DEFAULT)}, {16 << 10, 32 << 10}
        high = max(DEFAULT, usual)
        if any(n and share >= SEQUENTIAL for n, share in self._in_sequence()):
            high = max(high, LARGE)
        found = asked | {size for size in between if low <= size}
        found |= {size for size in (LARGE, LARGE << 2, LARGEST) if size <= high}
        if self.largest:
            found = {size for size in found if size < 2 * self.largest}
        return tuple(format_size(size) for size in sorted({*found, DEFAULT}))

    def compressions(self, role: str) -> tuple[str, ...]:
        """Return the compressions to try; one alone where nothing is to be gained by another."""
        lz4, zstd, gzip = (self.ratios.get(name, 1.0) for name in ("lz4", "zstd-3", "gzip-6"))
        if max(lz4, zstd, gzip) < SHRINKS:
            return ("lz4",)
        found = ["off"] if lz4 < PACKED and role not in ("backup", "archive") else []
        found.append("lz4")
        if zstd >= max(SHRINKS, lz4 * TIGHTER):
            found.append("zstd-3")
        if role in ("backup", "archive") and gzip >= max(SHRINKS, lz4 * TIGHTER, zstd * TIGHTER):
            found.append("gzip-6")
        return tuple(found)

    def _in_sequence(self) -> tuple[tuple[int, float], tuple[int, float]]:
        return (
            (sum(self.reads.values()), self.reads_sequential),
            (sum(self.writes.values()), self.writes_sequential),
        )


def _asked(calls: Mapping[int, int]) -> set[int]:
    """Return the record sizes that ``calls`` come in, of those that make up a share of calls or bytes."""
    count, moved = sum(calls.values()), sum(size * n for size, n in calls.items())
    return {
        min(max(size, SMALLEST), LARGEST)
        for size, n in calls.items()
        if n >= ASKED_SHARE * count or (moved and size * n >= ASKED_SHARE * moved)
    }


def _usual(calls: Mapping[int, int]) -> int:
    """Return the size that half of the bytes come in calls of at least; 0 without any."""
    left = sum(size * n for size, n in calls.items()) / 2
    for size in sorted(calls, reverse=True):
        left -= size * calls[size]
        if left <= 0:
            return size
    return 0


def _powers(low: int, high: int) -> Iterable[int]:
    while low <= high:
        yield low
        low <<= 1


def build(
    roles: Iterable[str],
    profile: str = "hdd-7200",
    page_sizes: Mapping[str, int] | None = None,
    groups: Iterable[Collection[str]] = (),
    seen: Mapping[str, RoleIO] | None = None,
    arc: int | None = None,
    notes: Sequence[str] = (),
) -> Study:
    """Return a study with one dataset for each role on one pool of one disk with ``profile``.

    ``page_sizes`` (bytes, by role): the database's page, tried as a record size of that role too.
    ``groups``: roles that can't have datasets of their own; of each group that has one of ``roles`` all have
    one dataset. ``seen``: what was recorded, by the first role of a dataset, from which the values to try
    come; of others usual ones are tried. ``arc``: bytes of ARC; None: a study's default. ``notes``: what the
    results repeat.
    """
    wanted = set(roles)
    datasets = joined(wanted, groups)
    axes: dict[str, tuple[str | int, ...]] = {}
    commits = False
    for role, *others in datasets:
        found = (seen or {}).get(role)
        axes.update(_usual_axes(role, (page_sizes or {}).get(role)) if found is None else _axes(role, found))
        commits |= found is None or found.commits if {"data", "wal", "index"} & {role, *others} else False
    if profile != "nvme" and commits:
        axes["slog"] = ("none", "nvme")
    cross = ["data.recordsize", "data.compression"]
    layout: dict[str, Any] = {
        "pool": [{"name": "tank", "vdev": [{"profile": profile}]}],
        "dataset": [{"name": f"tank/{role}", "roles": [role, *others]} for role, *others in datasets],
    }
    if arc is not None:
        layout["arc"] = arc
    study = Study.model_validate(
        {
            "name": NAME,
            "description": "One dataset for each role of the trace, on one disk",
            "layout": layout,
            "axes": axes,
            "cross": [cross] if set(cross) <= set(axes) else [],
            "notes": list(notes),
        }
    )
    return resolve_profiles(study)


def joined(roles: Collection[str], groups: Iterable[Collection[str]] = ()) -> list[list[str]]:
    """Return the roles of each dataset, in the order of ROLES: ``roles``, each alone or with its group."""
    found = [{role} for role in roles]
    for group in groups:
        if not set(group).isdisjoint(roles):
            touched = [one for one in found if not one.isdisjoint(group)]
            found = [one for one in found if one not in touched]
            found.append(set(group).union(*touched))
    return sorted((sorted(one, key=ROLES.index) for one in found), key=lambda one: ROLES.index(one[0]))


def _usual_axes(role: str, page: int | None) -> dict[str, tuple[str, ...]]:
    """Return the axes of a role of which nothing was recorded; ``page``: bytes of the database's page."""
    axes = {f"{role}.{prop}": values for prop, values in _AXES[role].items()}
    key = f"{role}.recordsize"
    if page is not None and is_power_of_two(page) and SMALLEST <= page <= LARGE:
        text = format_size(page)
        if text not in axes[key]:
            axes[key] = (text, *axes[key])
    return axes


def _axes(role: str, seen: RoleIO) -> dict[str, tuple[str, ...]]:
    """Return the axes of a role by what was recorded of it; none where that is too little."""
    axes: dict[str, tuple[str, ...]] = {}
    usual = _AXES[role]
    if seen.sizes:
        axes["recordsize"] = seen.record_sizes()
        if "compression" in usual:
            axes["compression"] = seen.compressions(role) if seen.ratios else usual["compression"]
        if "primarycache" in usual and seen.reads:
            axes["primarycache"] = usual["primarycache"]
        if seen.direct:
            axes["direct"] = ("standard", "disabled")
    if seen.commits and "logbias" in usual:
        axes["logbias"] = usual["logbias"]
    return {f"{role}.{prop}": values for prop, values in axes.items() if len(values) > 1}
