"""What a layout costs: space, wear and memory."""

from __future__ import annotations

from collections.abc import Mapping

from ztune.advice.facts import L2ARC_HEADER_BYTES
from ztune.advice.model import Cost
from ztune.analysis import units
from ztune.analysis.metrics import number_at
from ztune.analysis.results import LayoutResult
from ztune.trace.manifest import Manifest
from ztune.units import parse_size


def costs(chosen: LayoutResult, baseline: LayoutResult | None, manifest: Manifest | None) -> list[Cost]:
    """Return what ``chosen`` costs, beside the baseline's where that is another layout."""
    base = None if baseline is chosen else baseline
    if chosen.basis == "modelled":
        return _modelled(chosen, base, manifest)
    return _measured(chosen, base)


def _before(base: LayoutResult | None, key: str) -> float | None:
    return None if base is None else base.value(key)


def _modelled(chosen: LayoutResult, base: LayoutResult | None, manifest: Manifest | None) -> list[Cost]:
    out: list[Cost] = []

    space = chosen.value("allocated")
    if space is not None:
        # Results of older engines don't say how large the files are, only the records that hold them.
        files = number_at(chosen.measure, "space", "files")
        text = f"{units.amount(space)} allocated"
        if files:
            text += f" for {units.amount(files)} of files"
            if (shrink := chosen.value("compression_ratio")) is not None:
                text += f", compressed {units.times(shrink)}"
        out.append(
            Cost(
                subject="space",
                label="Space",
                value=space,
                unit="bytes",
                baseline=_before(base, "allocated"),
                sentence=text + ".",
            )
        )
    wear = chosen.value("write_amplification")
    if wear is not None:
        out.append(
            Cost(
                subject="wear",
                label="Bytes written per byte asked",
                value=wear,
                unit="ratio",
                baseline=_before(base, "write_amplification"),
                sentence=f"The disks write {wear:.2f} bytes for each byte that the database writes.",
            )
        )
    written, work = chosen.value("written"), _operations(manifest)
    if written is not None and work is not None:
        number, unit = work
        before = _before(base, "written")
        out.append(
            Cost(
                subject="wear",
                label=f"Bytes written per {unit}",
                value=written / number,
                unit="bytes",
                baseline=None if before is None else before / number,
                sentence=f"{units.amount(written / number)} written per {unit}, over {units.count(number)} "
                f"recorded.",
            )
        )
    out.append(_memory(chosen, base))
    return out


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


def _measured(chosen: LayoutResult, base: LayoutResult | None) -> list[Cost]:
    out: list[Cost] = []
    for key, words in (
        ("space", "{} allocated at the end."),
        ("written", "{} written for each operation of the job."),
        ("amplification", "The disks write {} bytes for each byte that the database writes."),
    ):
        value, metric = chosen.value(key), chosen.metric(key)
        if value is not None:
            out.append(
                Cost(
                    subject="space" if key == "space" else "wear",
                    label=metric.label[:1].upper() + metric.label[1:],
                    value=value,
                    unit=metric.unit,
                    baseline=_before(base, key),
                    sentence=words.format(chosen.text(key)),
                )
            )
    return [*out, _memory(chosen, base)]
