"""An observation as tables of text: what the terminal and the HTML report both show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ztune.analysis import units
from ztune.observe import histograms
from ztune.observe.model import Observation, ObservedTransfers, Syncs
from ztune.onhost.latency import tells
from ztune.onhost.look.reading import ObservedDatabase
from ztune.trace.view import count, rate, share, size
from ztune.units import whole

_TOP = 12


@dataclass
class Sheet:
    """A titled table; the first ``text`` columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    text: int = 1
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        """Add a row."""
        self.rows.append(cells)


def io_sheets(seen: Observation) -> list[Sheet]:
    """Return writes, reads and syncs by role and device; empty sheets are left out."""
    return _filled([transfers(seen, "writes"), transfers(seen, "reads"), syncs(seen)])


def by_role(seen: Observation) -> Sheet:
    """Return what each role and device read, wrote and synced, in a line."""
    per = "/s" if seen.seconds else ""
    made = Sheet(
        "By role", ("role", f"reads{per}", "mean", f"writes{per}", "mean", f"syncs{per}", "mean", "p99 from")
    )
    for group in [*seen.of_kind("role"), *seen.of_kind("device")]:
        if not (group.reads.calls or group.writes.calls or group.syncs.calls):
            continue

        def often(calls: int) -> str:
            return "" if not calls else rate(calls / seen.seconds) if seen.seconds else count(calls)

        moved = [
            (often(way.calls), "" if way.bytes is None or not way.calls else size(way.bytes / way.calls))
            for way in (group.reads, group.writes)
        ]
        calls, total = group.syncs.calls, group.syncs.latency_total
        made.add_row(
            group.name,
            *moved[0],
            *moved[1],
            often(calls),
            "" if total is None or not calls else units.seconds(total / calls / 1e9),
            _quantile(group.syncs.latency, 0.99),
        )
    return made


def other_sheets(seen: Observation) -> list[Sheet]:
    """Return files, calls, disks, datasets, pools and compression; empty sheets are left out."""
    return _filled(
        [
            _files_seen(seen), _calls(seen), _disks(seen), _datasets(seen), _pools(seen), _files(seen),
            _compressed(seen),
        ]
    )  # fmt: skip


def _filled(sheets: list[Sheet]) -> list[Sheet]:
    return [sheet for sheet in sheets if sheet.rows]


def transfers(seen: Observation, way: str) -> Sheet:
    """Return the reads or writes of each role and device; ``way`` is "reads" or "writes"."""
    made = Sheet(
        way.capitalize(),
        ("role", "calls", "per s", "bytes", "mean", "in seq.", "aligned", "over", "time"),
        1,
    )
    for group in [*seen.of_kind("role"), *seen.of_kind("device")]:
        moved: ObservedTransfers = getattr(group, way)
        if not moved.calls:
            continue
        made.add_row(
            group.name,
            count(moved.calls),
            "" if not seen.seconds else rate(moved.calls / seen.seconds),
            "" if moved.bytes is None else size(moved.bytes),
            "" if moved.bytes is None else size(moved.bytes / moved.calls),
            _part(moved.sequential, moved.calls),
            _part(moved.aligned, moved.calls),
            "" if moved.overwritten is None or not moved.bytes else share(moved.overwritten / moved.bytes),
            "" if moved.latency_total is None else units.seconds(moved.latency_total / moved.calls / 1e9),
        )
    return made


def _part(some: int | None, of: int) -> str:
    return "" if some is None or not of else share(some / of)


def _quantile(latency: Mapping[int, int], share: float) -> str:
    """Return between what a quantile begins; nothing where there are too few calls for it."""
    low = histograms.bucket_of(latency, share)
    return "" if low is None or not tells(histograms.total(latency), share) else units.seconds(low / 1e9)


def syncs(seen: Observation) -> Sheet:
    """Return the syncs of each role and device, and how long they took; with O_SYNC each write is one."""
    made = Sheet("Syncs", ("role", "syncs", "per s", "mean", "p50 from", "p99 from"), 1)
    for group in [*seen.of_kind("role"), *seen.of_kind("device")]:
        writes: ObservedTransfers = group.writes
        found: list[tuple[str, int, Syncs | ObservedTransfers]] = [
            (group.name, group.syncs.calls, group.syncs)
        ]
        if writes.synced:
            # How long they took is known where all were.
            took = writes if writes.synced == writes.calls else Syncs()
            found.append((f"{group.name}, O_SYNC", writes.synced, took))
        for name, calls, took in found:
            if not calls:
                continue
            made.add_row(
                name,
                count(calls),
                "" if not seen.seconds else rate(calls / seen.seconds),
                "" if took.latency_total is None else units.seconds(took.latency_total / calls / 1e9),
                _quantile(took.latency, 0.5),
                _quantile(took.latency, 0.99),
            )
    return made


def _files_seen(seen: Observation) -> Sheet:
    made = Sheet(
        f"Files, the {_TOP} busiest", ("file", "role", "reads", "read", "writes", "written", "syncs"), 2
    )
    files = seen.of_kind("file")
    files.sort(key=lambda g: -((g.reads.bytes or 0) + (g.writes.bytes or 0)))
    for group in files[:_TOP]:
        made.add_row(
            group.name,
            group.role or "-",
            count(group.reads.calls),
            size(group.reads.bytes or 0),
            count(group.writes.calls),
            size(group.writes.bytes or 0),
            count(group.syncs.calls + (group.writes.synced or 0)),
        )
    return made


def _calls(seen: Observation) -> Sheet:
    made = Sheet("System calls, most time first", ("call", "calls", "time", "mean", "p99 from", "errors"), 1)
    for call in sorted(seen.calls, key=lambda c: -(c.seconds or 0))[:_TOP]:
        made.add_row(
            call.name,
            count(call.calls),
            "" if call.seconds is None else units.seconds(call.seconds),
            "" if call.seconds is None or not call.calls else units.seconds(call.seconds / call.calls),
            _quantile(call.latency, 0.99),
            "" if not call.errors else count(call.errors),
        )
    return made


def _disks(seen: Observation) -> Sheet:
    made = Sheet(
        "Disks",
        ("disk", "pool", "reads/s", "read/s", "writes/s", "written/s", "wait r", "wait w", "queue", "busy"),
        2,
    )
    span = seen.seconds or 1.0
    for disk in seen.disks:
        if not disk.reads and not disk.writes:
            continue
        made.add_row(
            disk.name,
            disk.pool or "",
            rate(disk.reads / span),
            size(disk.read_bytes / span),
            rate(disk.writes / span),
            size(disk.write_bytes / span),
            _each(disk.read_seconds, disk.reads),
            _each(disk.write_seconds, disk.writes),
            "" if disk.mean_queue is None else f"{disk.mean_queue:.2f}",
            "" if disk.busy_share is None else share(disk.busy_share),
        )
    return made


def _each(seconds: float | None, n: int) -> str:
    return "" if seconds is None or not n else units.seconds(seconds / n)


_PROPERTIES = ("recordsize", "volblocksize", "compression", "logbias", "sync", "primarycache", "atime")


def _datasets(seen: Observation) -> Sheet:
    made = Sheet("Datasets", ("dataset", "roles", *_PROPERTIES, "ratio"), 2)
    for dataset in seen.zfs.datasets if seen.zfs else ():
        values = {name: found.value for name, found in dataset.properties.items()}
        ratio = values.get("compressratio", "")
        cells = []
        for name in _PROPERTIES:
            text = values.get(name, "")
            number = whole(text) if name.endswith("size") else None
            cells.append(text if number is None else size(number))
        made.add_row(dataset.name, " ".join(dataset.roles), *cells, ratio)
    return made


def _pools(seen: Observation) -> Sheet:
    made = Sheet(
        "Pools and vdevs",
        ("pool", "vdev", "kind", "disks", "ashift", "size", "allocated", "fragmentation"),
        4,
    )
    for pool in seen.zfs.pools if seen.zfs else ():
        for vdev in pool.vdevs:
            made.add_row(
                pool.name,
                vdev.name,
                vdev.kind if vdev.role == "data" else f"{vdev.kind} ({vdev.role})",
                " ".join(vdev.disks),
                "" if vdev.ashift is None else str(vdev.ashift),
                "" if vdev.size is None else size(vdev.size),
                "" if vdev.allocated is None else size(vdev.allocated),
                "" if vdev.fragmentation is None else f"{vdev.fragmentation}%",
            )
    return made


def _files(seen: Observation) -> Sheet:
    made = Sheet(
        "Files on disk",
        ("role", "files", "bytes", "on disk", "median", "largest from", "sparse", "preallocated"),
        1,
    )
    for files in seen.files:
        made.add_row(
            files.role,
            count(files.count),
            size(files.bytes),
            size(files.allocated),
            "" if not files.sizes else size(histograms.bucket_of(files.sizes, 0.5) or 0),
            "" if not files.sizes else size(max(files.sizes)),
            count(files.sparse),
            count(files.preallocated),
        )
    return made


def _compressed(seen: Observation) -> Sheet:
    sizes = sorted({c.recordsize for f in seen.files for c in f.compressed})
    made = Sheet(
        "Sampled blocks by record size: logical / allocated, after sectors and parity",
        ("role", "with", *(size(one) for one in sizes), "±"),
        2,
    )
    for files in seen.files:
        for algorithm in dict.fromkeys(c.algorithm for c in files.compressed):
            if algorithm == "off" and files.parity is None:
                continue  # padding to sectors alone costs next to nothing
            by_size = {c.recordsize: c for c in files.compressed if c.algorithm == algorithm}
            error = max((c.high - c.low) / 2 / c.stored_ratio for c in by_size.values())
            cells = (f"{by_size[one].stored_ratio:.2f}" if one in by_size else "-" for one in sizes)
            # Blocks of little but zeros: of two draws the one says twice as many bytes, the other a thousand.
            made.add_row(files.role, algorithm, *cells, share(error) if error <= 1 else "> 100%")
    return made


def where(database: ObservedDatabase) -> str:
    """Return where a database's settings were read, and as whom its server was asked."""
    return database.where + (f", asked as {database.asked_as}" if database.asked_as else "")


def settings(seen: Observation) -> Sheet:
    """Return what the databases said of their settings, and why others are unknown."""
    made = Sheet("Settings", ("database", "setting", "value"), 3)
    for database in seen.databases:
        name = f"{database.kind} {database.version or ''}".strip()
        made.add_row(name, "read from", where(database))
        for setting, value in database.settings.items():
            made.add_row(name, setting, value)
        for setting, why in database.unknown.items():
            made.add_row(name, setting, f"unknown: {why}")
    return made
