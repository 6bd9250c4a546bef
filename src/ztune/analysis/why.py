"""Where the bytes that a layout writes come from, per operation of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ztune.analysis import units
from ztune.analysis.metrics import Raw, Reader, number_at, operations, per_operation
from ztune.analysis.results import LayoutResult


@dataclass(frozen=True)
class Why:
    """Bytes per operation, medians over the blocks; None where it was not measured.

    ``written`` = ``zil`` + ``rest``: what reached the disks at once, for the sake of fsync, and what followed
    with the transaction groups: data, metadata, and every copy and parity. ``asked``: what the database
    wrote.
    """

    written: float
    zil: float | None
    rest: float | None
    asked: float | None
    read: float | None
    hit_share: float | None  # of ARC lookups
    by_class: Mapping[str, float]  # data, log, cache, special → bytes written per operation


def explain(cell: LayoutResult) -> Why | None:
    """Return where a layout's writes come from, or None if they were not measured."""
    written = cell.value("written")
    if written is None:
        return None
    zil = cell.value("zil")
    if zil is not None and zil > written:
        zil = None  # counted before compression and padding: then it says nothing about the disks
    return Why(
        written=written,
        zil=zil,
        rest=None if zil is None else written - zil,
        asked=_middle(cell, per_operation("measure", "logical", "write_bytes")),
        read=cell.value("read"),
        hit_share=_middle(cell, _hits),
        by_class=_classes(cell),
    )


def _hits(result: Raw) -> float | None:
    hits, misses = number_at(result, "measure", "arc", "hits"), number_at(result, "measure", "arc", "misses")
    return None if hits is None or misses is None or hits + misses == 0 else hits / (hits + misses)


def _middle(cell: LayoutResult, read: Reader) -> float | None:
    found = [v for r in cell.results.values() if (v := read(r)) is not None]
    return median(found) if found else None


def _classes(cell: LayoutResult) -> dict[str, float]:
    rows: dict[str, list[float]] = {}
    for result in cell.results.values():
        count = operations(result)
        devices = (result.get("measure") or {}).get("by_vdev")
        if not count or not isinstance(devices, list):
            continue
        total: dict[str, float] = {}
        for device in devices:
            if isinstance(device, Mapping) and isinstance(device.get("write_bytes"), int | float):
                name = str(device.get("class", "data"))
                total[name] = total.get(name, 0.0) + float(device["write_bytes"])
        for name, value in total.items():
            rows.setdefault(name, []).append(value / count)
    return {name: median(values) for name, values in rows.items()}


def sentence(cell: LayoutResult, unit: str) -> str:
    """Return the explanation as a sentence; ``unit``: what the job calls an operation."""
    why = explain(cell)
    if why is None:
        return ""
    text = f"{units.amount(why.written)} written per {unit}"
    if why.zil is not None and why.rest is not None:
        text += (
            f": {units.amount(why.zil)} at once by the ZIL, {units.amount(why.rest)} with transaction groups"
        )
    if why.asked:
        text += f"; the database asked for {units.amount(why.asked)}, "
        text += f"so the disks write {units.times(why.written / why.asked)} of it"
    if why.read is not None:
        text += f"; {units.amount(why.read)} read"
        if why.hit_share is not None:
            text += f", {why.hit_share:.0%} of lookups answered by the ARC"
    return text + "."
