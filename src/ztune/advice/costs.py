"""What a layout costs: space, wear, processor time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ztune.advice.facts import L2ARC_HEADER_BYTES
from ztune.advice.model import Cost
from ztune.analysis import units
from ztune.analysis.metrics import number_at
from ztune.analysis.results import LayoutResult
from ztune.trace.manifest import Manifest
from ztune.units import parse_size

_OPERATIONS = {
    "compress": "compression",
    "decompress": "decompression",
    "checksum": "checksums",
    "parity": "parity",
    "crypt": "encryption",
    "copy": "copies",
}
"""The engine's names of what it times → the words for them."""


def costs(chosen: LayoutResult, baseline: LayoutResult | None, manifest: Manifest | None) -> list[Cost]:
    """Return what ``chosen`` costs, beside the baseline's where that is another layout."""
    base = None if baseline is chosen else baseline

    def cost(
        subject: Literal["space", "wear", "processor"], key: str, label: str, words: str, per: float = 1
    ) -> list[Cost]:
        value, before = chosen.value(key), None if base is None else base.value(key)
        if value is None:
            return []
        return [
            Cost(
                subject=subject,
                label=label,
                value=value / per,
                unit=chosen.metric(key).unit,
                baseline=None if before is None else before / per,
                sentence=words,
            )
        ]

    def said(key: str) -> str:
        label = chosen.metric(key).label
        return label[:1].upper() + label[1:]

    disks = "The disks write {} bytes for each byte that the database writes."
    if chosen.basis != "modelled":
        return [
            *cost("space", "space", said("space"), _measured_space(chosen)),
            *cost(
                "wear",
                "written",
                said("written"),
                f"{chosen.text('written')} written for each operation of the job.",
            ),
            *cost("wear", "amplification", said("amplification"), disks.format(chosen.text("amplification"))),
            _memory(chosen, base),
        ]
    wear = "write_amplification"
    out = [
        *cost("space", "allocated", "Space", _space(chosen)),
        *cost("wear", wear, "Bytes written per byte asked", disks.format(f"{chosen.value(wear) or 0:.2f}")),
    ]
    each = ""
    if chosen.per_operation:  # of its own job, as the base's are of the base's
        unit = str((next(iter(chosen.results.values())).get("job") or {}).get("unit") or "operation")
        words = f"{chosen.text('written')} written per {unit}, over {units.count(chosen.work or 0)} recorded."
        out += cost("wear", "written", f"Bytes written per {unit}", words)
        each = f" per {unit}"
    elif (work := _operations(manifest)) is not None:
        number, unit = work
        written = units.amount((chosen.value("written") or 0) / number)
        words = f"{written} written per {unit}, over {units.count(number)} recorded."
        out += cost("wear", "written", f"Bytes written per {unit}", words, number)
    out += cost("processor", "cpu", f"Processor time for data{each}", _processor(chosen, each))
    return [*out, _memory(chosen, base)]


def _measured_space(chosen: LayoutResult) -> str:
    text = f"{chosen.text('space_all')} allocated at the end"
    if chosen.value("space") != chosen.value("space_all"):
        text += f", {chosen.text('space')} for the files that the base layout had then: it did more or less"
    return text + "."


def _processor(chosen: LayoutResult, each: str) -> str:
    """Say what takes the processor time for data, most first: each operation, and each dataset. ``each``: of
    what all of it is divided by, " per transaction"; "" for totals."""
    work = chosen.work or 1
    host = next(iter(chosen.results.values()))["measure"].get("processor", {}).get("host", {})
    parts = [
        (
            "of it ",
            [(name, number_at(host, f"{key}_s") or 0.0) for key, name in _OPERATIONS.items()],
        ),
        ("by dataset ", [(str(one["name"]), float(one["seconds"])) for one in host.get("datasets", ())]),
    ]
    text = f"{units.seconds((number_at(host, 'seconds') or 0.0) / work)} of processor time for data{each}"
    for words, named in parts:
        most = sorted((p for p in named if p[1] > 0), key=lambda p: -p[1])
        if most:
            text += f"; {words}" + ", ".join(f"{name} {units.seconds(value / work)}" for name, value in most)
    return text + "."


def _space(chosen: LayoutResult) -> str:
    text = f"{units.amount(chosen.value('allocated') or 0)} allocated"
    # Results of older engines don't say how large the files are, only the records that hold them.
    if files := number_at(chosen.measure, "space", "files"):
        text += f" for {units.amount(files)} of files"
        if (shrink := chosen.value("compression_ratio")) is not None:
            text += f", compressed {units.times(shrink)}"
    return text + "."


def _operations(manifest: Manifest | None) -> tuple[float, str] | None:
    """Return how many operations the workload did while it was recorded, and their name ("transaction")."""
    if manifest is None or manifest.workload is None:
        return None
    result = manifest.workload.result
    number, unit = result.get("operations"), result.get("unit")
    if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
        return None
    return float(number), unit if isinstance(unit, str) and unit else "operation"


def _memory(chosen: LayoutResult, base: LayoutResult | None) -> Cost:
    layout = chosen.layout
    text = f"The ARC was limited to {units.amount(layout.arc)}."
    if chosen.basis == "modelled":
        text += _records(chosen)
    return Cost(
        subject="memory",
        label="ARC",
        value=float(layout.arc),
        unit="bytes",
        baseline=None if base is None else float(base.layout.arc),
        sentence=text,
    )


def _records(chosen: LayoutResult) -> str:
    """Return what blocks on a cache device and open records take of memory."""
    layout = chosen.layout
    sizes = [parse_size(d.properties["recordsize"]) for d in layout.datasets]
    text = ""
    node = chosen.measure.get("l2arc")
    cached = node.get("size_end") if isinstance(node, Mapping) else None
    if any(v.class_ == "cache" for p in layout.used_pools() for v in p.vdevs):
        smallest = min(sizes)
        text += (
            f" Each block on the cache device takes {L2ARC_HEADER_BYTES} bytes of it: "
            f"{units.amount(2**30 / smallest * L2ARC_HEADER_BYTES)} per GiB cached at recordsize "
            f"{smallest >> 10}K"
        )
        if isinstance(cached, int | float) and cached > 0:
            text += (
                f", up to {units.amount(cached / smallest * L2ARC_HEADER_BYTES)} for the "
                f"{units.amount(cached)} cached here"
            )
        text += "."
    largest = max(sizes)
    text += (
        f" A change to part of a record holds the whole record in memory until it is written: up to "
        f"{units.amount(largest)} for each."
    )
    return text
