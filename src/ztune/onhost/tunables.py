"""The module parameters a layout may set, with their ranges and defaults.

Source, unless an entry says otherwise: zfs(4) of OpenZFS 2.3. A range marks what ZFS takes without harm, not
what is sensible; where zfs(4) gives none, ours is a decade or two around the default.
"""

from __future__ import annotations

from dataclasses import dataclass

from ztune.onhost.properties import version_key
from ztune.onhost.words import suggest
from ztune.units import format_size, parse_size

# All parameters below are 0644 there in OpenZFS 0.8 to 2.4 (ZMOD_RW in the sources), so a trial can set them
# and put them back without loading the module again. The ARC's limit is a layout's ``arc``.
PARAMETERS = "/sys/module/zfs/parameters"
ARC_MAX = "zfs_arc_max"
NO_FLUSHES = ("zfs_nocacheflush", "zil_nocacheflush")
"""What leaves flushes out: of all writes, and of the log's."""


def host_memory(arc: int) -> int:
    """Return the memory (bytes) of the host that screening models, for an ARC of ``arc`` bytes.

    4 GiB, the least that people give a database on ZFS, or twice the ARC, OpenZFS's old default share.
    """
    return max(4 << 30, 2 * arc)


def dirty_data_max(arc: int) -> int:
    """Return zfs_dirty_data_max (bytes) on that host: a tenth of memory, at most 4 GiB (zfs(4))."""
    return min(4 << 30, host_memory(arc) // 10)


@dataclass(frozen=True)
class Tunable:
    """One module parameter. ``default`` is None where ZFS derives it from the machine's memory.

    ``replayed``: the replay engine honours it, so screening can vary it. The others are constants of the
    user-space library, or concern what replay has not. ``since``: the OpenZFS version that brought it.
    ``older``: defaults of earlier versions, as (first version with a later default, default before it).
    """

    name: str
    default: int | None
    low: int
    high: int
    unit: str  # "s", "ns", "bytes", "percent", "ios", "flag", "count"
    doc: str
    replayed: bool = True
    source: str = "zfs(4)"
    since: str = "0.8"
    older: tuple[tuple[str, int], ...] = ()

    @property
    def path(self) -> str:
        """Where the running Linux kernel module has it; all of these can be written while it runs."""
        return f"{PARAMETERS}/{self.name}"

    def default_in(self, version: str) -> int | None:
        """Return the default in the OpenZFS version ``version`` ("2.1.11-1"), None if from memory."""
        for before, value in self.older:
            if version_key(version) < version_key(before):
                return value
        return self.default

    def text(self, value: int) -> str:
        """Return ``value`` as a user would write it: sizes as "32K", the rest as a plain number."""
        return format_size(value) if self.unit == "bytes" else str(value)


def _active(kind: str, low: int, high: int) -> tuple[Tunable, Tunable]:
    when, what = kind.split("_")
    words = f"{when}hronous {what}"
    return (
        Tunable(f"zfs_vdev_{kind}_min_active", low, 1, 1000, "ios", f"Fewest {words}s in flight per device."),
        Tunable(f"zfs_vdev_{kind}_max_active", high, 1, 1000, "ios", f"Most {words}s in flight per device."),
    )


TUNABLES: dict[str, Tunable] = {
    t.name: t
    for t in (
        Tunable("zfs_txg_timeout", 5, 1, 3600, "s", "Longest time between two transaction groups."),
        Tunable(
            "zfs_dirty_data_max", None, 1 << 20, 1 << 40, "bytes",
            "How much unwritten data is held before writers wait; by default a tenth of memory, to 4 GiB.",
        ),
        Tunable(
            "zfs_dirty_data_sync_percent", 20, 1, 99, "percent",
            "A transaction group starts at this share of zfs_dirty_data_max.",
        ),
        Tunable(
            "zfs_delay_min_dirty_percent", 60, 1, 100, "percent",
            "Writers are slowed from this share of zfs_dirty_data_max on.",
        ),
        Tunable("zfs_delay_scale", 500_000, 0, 1 << 40, "ns", "How steeply they are slowed."),
        Tunable(
            "zfs_immediate_write_sz", 32 << 10, 0, 16 << 20, "bytes",
            "Without a log device, larger synchronous writes go to their place, not into the log.",
        ),
        Tunable(
            "zfs_nocacheflush", 0, 0, 1, "flag",
            "1: never flush disks. Corrupts pools at a power cut unless every write cache is protected.",
        ),
        Tunable(
            "zil_nocacheflush", 0, 0, 1, "flag",
            "1: no flush after log writes. Loses commits at a power cut unless write caches are protected.",
            replayed=False,
        ),
        Tunable("zfs_compressed_arc_enabled", 1, 0, 1, "flag", "0: the ARC holds blocks uncompressed."),
        Tunable("zfs_prefetch_disable", 0, 0, 1, "flag", "1: no speculative prefetch."),
        Tunable("zfetch_max_distance", 64 << 20, 0, 1 << 31, "bytes", "How far a stream is read ahead."),
        Tunable(
            "l2arc_noprefetch", 1, 0, 1, "flag",
            "1: prefetched buffers that nobody used stay out of the L2ARC.",
        ),
        Tunable(
            "l2arc_write_max", 32 << 20, 1 << 20, 1 << 40, "bytes", "Most the L2ARC takes per interval.",
            older=(("2.2", 8 << 20),),
        ),
        Tunable(
            "l2arc_write_boost", 32 << 20, 0, 1 << 40, "bytes", "Added to that until the L2ARC is warm.",
            older=(("2.2", 8 << 20),),
        ),
        Tunable(
            "l2arc_headroom", 8, 0, 1000, "count",
            "How far through the ARC lists the L2ARC feed looks, in units of l2arc_write_max.",
            older=(("2.2", 2),),
        ),
        Tunable(
            "l2arc_exclude_special", 0, 0, 1, "flag", "1: special vdevs stay out of the L2ARC.", since="2.1.6"
        ),
        Tunable("zfs_vdev_max_active", 1000, 1, 10000, "ios", "Most requests in flight per device."),
        *_active("sync_read", 10, 10),
        *_active("sync_write", 10, 10),
        *_active("async_read", 1, 3),
        *_active("async_write", 2, 10),
        Tunable(
            "zfs_vdev_aggregation_limit", 1 << 20, 0, 16 << 20, "bytes",
            "Largest request that neighbours are merged into, on rotating disks.", replayed=False,
        ),
        Tunable(
            "zfs_vdev_aggregation_limit_non_rotating", 128 << 10, 0, 16 << 20, "bytes",
            "The same on disks that do not rotate.", replayed=False,
        ),
        Tunable(
            "zfs_vdev_read_gap_limit", 32 << 10, 0, 16 << 20, "bytes", "Reads this close are merged.",
            replayed=False,
        ),
        Tunable(
            "zfs_vdev_write_gap_limit", 4 << 10, 0, 16 << 20, "bytes", "Writes this close are merged.",
            replayed=False,
        ),
    )
}  # fmt: skip


def parse_tunable(name: str, value: object) -> int:
    """Return the number of a module parameter; sizes may be written "32K". Raises ValueError."""
    known = TUNABLES.get(name)
    if known is None:
        raise ValueError(f'"{name}" is not a tunable that ztune knows.{suggest(name, TUNABLES)}')
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name} is {value!r}; a whole number is expected")
    try:
        number = parse_size(value) if known.unit == "bytes" else int(value)
    except ValueError:
        raise ValueError(f'{name} is "{value}"; a whole number is expected') from None
    if not known.low <= number <= known.high:
        raise ValueError(f'{name} is "{value}"; it is {known.text(known.low)} to {known.text(known.high)}')
    return number
