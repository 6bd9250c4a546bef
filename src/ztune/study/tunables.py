"""The module parameters a layout may set, with their ranges and defaults.

Source, unless an entry says otherwise: zfs(4) of OpenZFS 2.3. A range marks what ZFS takes without harm, not
what is sensible; where zfs(4) gives none, ours is a decade or two around the default.
"""

from __future__ import annotations

from dataclasses import dataclass

from ztune.study.properties import suggest
from ztune.study.units import format_size, parse_size


@dataclass(frozen=True)
class Tunable:
    """One module parameter. ``default`` is None where ZFS derives it from the machine's memory."""

    name: str
    default: int | None
    low: int
    high: int
    unit: str  # "s", "ms", "bytes", "percent", "ios", "flag", "count"
    doc: str
    source: str = "zfs(4)"

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
            "zfs_dirty_data_max",
            None,
            1 << 20,
            1 << 40,
            "bytes",
            "How much unwritten data is held before writers wait; a tenth of memory, at most 4 GiB, "
            "by default.",
        ),
        Tunable(
            "zfs_dirty_data_sync_percent",
            20,
            1,
            99,
            "percent",
            "A transaction group starts at this share of zfs_dirty_data_max.",
        ),
        Tunable(
            "zfs_delay_min_dirty_percent", 60, 0, 100, "percent", "Writers are slowed from this share on."
        ),
        Tunable(
            "zfs_immediate_write_sz",
            32 << 10,
            0,
            16 << 20,
            "bytes",
            "Without a log device, larger synchronous writes go to their place and are not copied "
            "into the log.",
        ),
        Tunable(
            "zil_slog_bulk",
            64 << 20,
            0,
            1 << 40,
            "bytes",
            "Log writes of one commit above this take a lower priority.",
        ),
        Tunable("zil_maxblocksize", 128 << 10, 4 << 10, 128 << 10, "bytes", "The largest block of the log."),
        Tunable(
            "zil_nocacheflush",
            0,
            0,
            1,
            "flag",
            "1: no flush after log writes. Loses commits at a power cut "
            "unless every write cache is protected.",
        ),
        Tunable(
            "zfs_nocacheflush",
            0,
            0,
            1,
            "flag",
            "1: never flush disks. Corrupts pools at a power cut unless every write cache is protected.",
        ),
        Tunable("zfs_prefetch_disable", 0, 0, 1, "flag", "1: no speculative prefetch."),
        Tunable("zfetch_max_distance", 64 << 20, 0, 2 << 30, "bytes", "How far a stream is read ahead."),
        Tunable(
            "l2arc_noprefetch",
            1,
            0,
            1,
            "flag",
            "1: prefetched buffers that nobody used stay out of the L2ARC.",
        ),
        Tunable(
            "l2arc_write_max", 32 << 20, 1 << 20, 1 << 34, "bytes", "Most the L2ARC takes per feed interval."
        ),
        Tunable("l2arc_write_boost", 32 << 20, 0, 1 << 34, "bytes", "Added to that until the L2ARC is warm."),
        Tunable(
            "l2arc_headroom",
            8,
            0,
            1000,
            "count",
            "How far through the ARC lists the feed looks, in l2arc_write_max.",
        ),
        Tunable(
            "l2arc_mfuonly",
            0,
            0,
            2,
            "count",
            "1: only frequently used buffers go to the L2ARC; 2: that for data only.",
        ),
        Tunable(
            "zfs_vdev_max_active",
            1000,
            1,
            10000,
            "ios",
            "Most requests in flight per device, all classes together.",
        ),
        *_active("sync_read", 10, 10),
        *_active("sync_write", 10, 10),
        *_active("async_read", 1, 3),
        *_active("async_write", 2, 10),
        Tunable(
            "zfs_vdev_aggregation_limit",
            1 << 20,
            0,
            16 << 20,
            "bytes",
            "Largest request that neighbours are merged into.",
        ),
        Tunable("zfs_vdev_read_gap_limit", 32 << 10, 0, 1 << 20, "bytes", "Reads this close are merged."),
        Tunable("zfs_vdev_write_gap_limit", 4 << 10, 0, 1 << 20, "bytes", "Writes this close are merged."),
    )
}


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
