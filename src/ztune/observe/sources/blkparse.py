"""blkparse's text in its default format: what block devices were asked, and how long they took."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ztune.observe import histograms
from ztune.observe.model import Buckets, ObservedTransfers
from ztune.observe.sources.collect import add, add_transfers
from ztune.observe.sources.source import Source

SECTOR = 512
_LINE = re.compile(
    r"\s*(\d+,\d+)\s+(\d+)\s+(\d{1,19})\s+(\d{1,10})\.(\d{9})\s+(\d+)\s+([A-Z]{1,2})\s+([A-Z]+)"
    r"(?:\s+(\d{1,19})(?: \+ (\d{1,12}))?)?(?:\s.*)?"
)
_EVENT = re.compile(r"\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d{9}\s+\d+\s+\w+\s")


@dataclass
class _Stage:
    """Requests at one point of their way: Q queued, D given to the device, C done."""

    reads: ObservedTransfers = field(default_factory=ObservedTransfers)
    writes: ObservedTransfers = field(default_factory=ObservedTransfers)
    ends: dict[str, int] = field(default_factory=dict)


@dataclass
class _Device:
    stages: dict[str, _Stage] = field(default_factory=lambda: {name: _Stage() for name in "QDC"})
    given: dict[tuple[str, int, int], int] = field(default_factory=dict)
    reads: Buckets = field(default_factory=dict)
    writes: Buckets = field(default_factory=dict)
    flushes: int = 0
    flush_latency: Buckets = field(default_factory=dict)
    flushing: list[int] = field(default_factory=list)


class Blkparse:
    """Reads it."""

    name = "blkparse"
    what = "blkparse in its default format"

    def recognise(self, head: str) -> bool:
        """True if a line is an event."""
        return any(_LINE.fullmatch(line) for line in head.splitlines())

    def read(self, source: Source) -> None:
        """Add a group for each device."""
        devices: dict[str, _Device] = {}
        odd = discards = 0
        first = last = None
        for line in source.lines():
            found = _LINE.fullmatch(line)
            if found is None or source.unended:
                odd += bool(found or _EVENT.match(line))
                continue
            time = int(found[4]) * 10**9 + int(found[5])
            first = time if first is None else min(first, time)
            last = time if last is None else max(last, time)
            if found[7] not in ("Q", "D", "C"):
                continue
            discards += _event(
                devices.setdefault(found[1], _Device()),
                found[7],
                found[8],
                time,
                int(found[9]) if found[9] else None,
                int(found[10]) if found[10] else 0,
            )
        if first is not None and last is not None:
            source.into.lasted((last - first) / 1e9)
        for name, device in devices.items():
            _enter(source, name, device)
        if odd:
            source.limit(f"{odd} events of blkparse are cut or not understood and were left out.")
        if discards:
            source.limit(f"{discards} discards (TRIM) of blkparse were left out.")


def _event(device: _Device, action: str, kind: str, time: int, sector: int | None, sectors: int) -> int:
    """Enter one event; 1 if it is a discard, which is neither read nor write."""
    operation = kind.lstrip("F")[:1]
    if operation == "D" and "W" not in kind and "R" not in kind:
        return int(action == "D")
    if operation not in ("R", "W"):
        if kind.startswith("F"):
            _flush(device, action, time)
        return 0
    if sector is None or not sectors:
        return 0
    stage = device.stages[action]
    target = stage.reads if operation == "R" else stage.writes
    size = sectors * SECTOR
    target.calls += 1
    target.bytes = (target.bytes or 0) + size
    add(target.sizes, {histograms.bucket(size): 1})
    target.sequential = (target.sequential or 0) + (stage.ends.get(operation) == sector)
    stage.ends[operation] = sector + sectors
    key = (operation, sector, sectors)
    if action == "D":
        device.given[key] = time
    elif action == "C" and (given := device.given.pop(key, None)) is not None and time >= given:
        latency = device.reads if operation == "R" else device.writes
        add(latency, {histograms.bucket(time - given): 1})
        target.latency_total = (target.latency_total or 0) + time - given
    return 0


def _flush(device: _Device, action: str, time: int) -> None:
    if action == "D":
        device.flushing.append(time)
    elif action == "C":
        device.flushes += 1
        if device.flushing and time >= device.flushing[0]:
            add(device.flush_latency, {histograms.bucket(time - device.flushing.pop(0)): 1})


def _enter(source: Source, name: str, device: _Device) -> None:
    """Enter what the device was given; where that was not traced, what it did, or what was queued."""
    chosen = next((s for s in "DCQ" if device.stages[s].reads.calls or device.stages[s].writes.calls), None)
    if chosen is None and not device.flushes:
        return
    group = source.into.group("device", name)
    if chosen is not None:
        stage, done = device.stages[chosen], device.stages["C"]
        for side, latency, of in (
            (stage.reads, device.reads, done.reads),
            (stage.writes, device.writes, done.writes),
        ):
            side.latency, side.latency_total = latency, of.latency_total if latency else None
        add_transfers(group.reads, stage.reads)
        add_transfers(group.writes, stage.writes)
        if chosen == "Q":
            source.limit(f"of device {name} only queued requests were traced: sizes before merging.")
        if not device.reads and not device.writes:
            source.limit(f"device {name}: no request was seen both begun (D) and done (C); no latencies.")
    group.syncs.calls += device.flushes
    add(group.syncs.latency, device.flush_latency)
