"""Observations as metrics, in the text that Prometheus and all that speak OpenMetrics read.

All are gauges of the last window: windows don't join, so sums over them would be none of what happened.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from ztune.advice.findings import findings
from ztune.advice.rules import SEVERITIES
from ztune.errors import InputError
from ztune.hosts.asking import HostAnswer
from ztune.hosts.drift import ExpectedLayout, drifts
from ztune.hosts.ranked import about
from ztune.observe.model import Buckets, Observation, ObservedPool, ObservedValue, ObservedZfs

LOOPBACK: Final = "127.0.0.1"
LEAST_WRITTEN: Final = 1 << 20
"""Bytes written to a pool's datasets, below which amplification is not told: a transaction group alone writes
some hundred KiB of metadata."""
PROPERTIES: Final = (
    *("recordsize", "volblocksize", "compression", "sync", "logbias", "atime", "primarycache"),
    *("secondarycache", "checksum", "copies", "special_small_blocks", "direct", "redundant_metadata"),
)
_SIZES: Final = ("used", "referenced", "available", "logicalused")
_POOL_SIZES: Final = ("size", "allocated", "free")


def address(text: str) -> tuple[str, int] | None:
    """Return where ``:PORT`` or ``ADDRESS:PORT`` listens, loopback unless an address is given; None: a file.

    Raises InputError for a port that is none.
    """
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]*):([0-9]+)", text)
    if match is None:
        return None
    port = int(match[2])
    if not 1 <= port <= 65535:
        raise InputError(f'--metrics is "{text}"; a port is a number from 1 to 65535')
    return match[1].strip("[]") or LOOPBACK, port


class ObservedMetrics(Collector):
    """The metrics of the last answers."""

    def __init__(self, expected: ExpectedLayout | None = None) -> None:
        """``expected``: also tell what has drifted from it."""
        self._expected = expected
        self._lock = threading.Lock()
        self._families: list[Metric] = []

    def take(self, answers: Iterable[HostAnswer]) -> None:
        """Put these answers in place of the ones before."""
        families = list(_families(list(answers), self._expected))
        with self._lock:
            self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the families; what the library calls for each scrape."""
        with self._lock:
            yield from self._families

    def text(self, *, plain: bool = False) -> bytes:
        """Return all as OpenMetrics; ``plain``: as Prometheus's own older text, for textfile collectors."""
        registry = CollectorRegistry()
        registry.register(self)
        if plain:
            return generate_latest(registry)
        return bytes(generate_openmetrics(registry))  # type: ignore[no-untyped-call]  # of that library

    def serve(self, where: tuple[str, int]) -> WSGIServer:
        """Answer scrapes at an address and port, in a thread of its own. Raises InputError."""
        registry = CollectorRegistry()
        registry.register(self)
        try:
            server, _thread = start_http_server(where[1], where[0], registry)
        except OSError as error:
            raise InputError(
                f"--metrics can't listen on {where[0]} port {where[1]}: {error.strerror or error}"
            ) from None
        return server


class _Made:
    """Gauges by name, made when the first value comes."""

    def __init__(self) -> None:
        self.families: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Add a value; None: it is not known, and nothing is added."""
        family = self.families.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels)))
        if value is not None:
            assert isinstance(family, GaugeMetricFamily)
            family.add_metric(list(labels.values()), value)


def _families(answers: Sequence[HostAnswer], expected: ExpectedLayout | None) -> Iterator[Metric]:
    made = _Made()
    info = InfoMetricFamily("ztune_dataset", "Properties of a dataset.", labels=["host", "dataset"])
    sizes = GaugeHistogramMetricFamily(
        "ztune_role_write_size_bytes",
        "Sizes of the writes of the last window, by role.",
        labels=["host", "role", "dataset"],
    )
    for answer in answers:
        host, seen = answer.host.name, answer.seen
        made.gauge("ztune_up", "Whether the host could be asked.", float(seen is not None), host=host)
        if seen is None:
            continue
        _host(made, host, seen, expected)
        for group in seen.of_kind("role"):
            labels = {"host": host, "role": group.name, "dataset": group.dataset or ""}
            writes, seconds = group.writes, seen.seconds or None
            made.gauge(
                "ztune_role_writes_per_second", "Writes of a role.", _rate(writes.calls, seconds), **labels
            )
            made.gauge(
                "ztune_role_write_bytes_per_second",
                "Bytes that a role writes.",
                _rate(writes.bytes, seconds),
                **labels,
            )
            mean = writes.bytes / writes.calls if writes.calls and writes.bytes is not None else None
            made.gauge("ztune_role_write_mean_bytes", "Mean size of a role's writes.", mean, **labels)
            if writes.sizes:
                sizes.add_metric(list(labels.values()), *_histogram(writes.sizes, writes.bytes))
        if seen.zfs is not None:
            _zfs(made, info, host, seen, seen.zfs)
    yield from made.families.values()
    yield info
    yield sizes


def _rate(amount: int | None, seconds: float | None) -> float | None:
    return None if amount is None or not seconds else amount / seconds


def _histogram(sizes: Buckets, total: int | None) -> tuple[list[tuple[str, float]], float | None]:
    """Return upper bound (included) → count up to it, and the sum, from power-of-two buckets."""
    buckets, count = [], 0
    for low in sorted(sizes):
        count += sizes[low]
        buckets.append((str(float(max(2 * low - 1, 0))), float(count)))
    return [*buckets, ("+Inf", float(count))], None if total is None else float(total)


def _host(made: _Made, host: str, seen: Observation, expected: ExpectedLayout | None) -> None:
    begun = datetime.fromisoformat(seen.begun).timestamp() if seen.begun else None
    made.gauge("ztune_observed_timestamp_seconds", "When the last window began.", begun, host=host)
    made.gauge("ztune_window_seconds", "Length of the last window.", seen.seconds, host=host)
    found = findings(seen)
    for severity in SEVERITIES:
        count = sum(one.severity == severity for one in found)
        made.gauge("ztune_findings", "Findings by severity.", count, host=host, severity=severity)
    for key in dict.fromkeys((one.id, one.severity, about(one)) for one in found):
        made.gauge("ztune_finding", "A finding.", 1, host=host, id=key[0], severity=key[1], about=key[2])
    if expected is not None:
        drifted = drifts(seen, expected)
        made.gauge("ztune_drifts", "What is not as recommended.", len(drifted), host=host)
        for one in drifted:
            made.gauge(
                "ztune_drift", "A thing that is not as recommended.", 1,
                host=host, kind=one.kind, about=one.about, what=one.what,
                expected=one.expected, found=one.found,
            )  # fmt: skip


def _zfs(made: _Made, info: InfoMetricFamily, host: str, seen: Observation, zfs: ObservedZfs) -> None:
    for dataset in zfs.datasets:
        known: dict[str, str] = {
            name: dataset.properties[name].value for name in PROPERTIES if name in dataset.properties
        }
        info.add_metric([host, dataset.name], {"roles": ",".join(dataset.roles), **known})
        for kind in _SIZES:
            made.gauge(
                "ztune_dataset_bytes", "Space of a dataset.", _number(dataset.properties, kind),
                host=host, dataset=dataset.name, kind=kind,
            )  # fmt: skip
        made.gauge(
            "ztune_dataset_compression_ratio", "Its compressratio.",
            _number(dataset.properties, "compressratio"),
            host=host, dataset=dataset.name,
        )  # fmt: skip
        counted = zfs.counters.get(f"objset {dataset.name}", {})
        for direction, size in (("read", "nread"), ("write", "nwritten")):
            made.gauge(
                "ztune_dataset_bytes_per_second", "Bytes read and written, as ZFS counts them.",
                _rate(counted.get(size, 0), seen.seconds),
                host=host, dataset=dataset.name, direction=direction,
            )  # fmt: skip
    for pool in zfs.pools:
        _pool(made, host, seen, zfs, pool)
    gauges, arc = zfs.gauges.get("arcstats", {}), zfs.counters.get("arcstats", {})
    made.gauge("ztune_arc_size_bytes", "Size of the ARC.", gauges.get("size"), host=host)
    asked = arc.get("hits", 0) + arc.get("misses", 0)
    share = arc.get("hits", 0) / asked if asked else None
    made.gauge("ztune_arc_hit_ratio", "Share of reads that the ARC answers.", share, host=host)


def _pool(made: _Made, host: str, seen: Observation, zfs: ObservedZfs, pool: ObservedPool) -> None:
    labels = {"host": host, "pool": pool.name}
    for kind in _POOL_SIZES:
        made.gauge(
            "ztune_pool_bytes", "Space of a pool.", _number(pool.properties, kind), **labels, kind=kind
        )
    percent = _number(pool.properties, "fragmentation")
    share = None if percent is None else percent / 100
    made.gauge("ztune_pool_fragmentation_ratio", "Fragmentation of its free space.", share, **labels)
    device, asked = zfs.counters.get(f"vdevs {pool.name}"), zfs.counters.get(f"objsets {pool.name}", {})
    if device is None:
        return
    for direction in ("read", "write"):
        made.gauge(
            "ztune_pool_device_bytes_per_second", "Bytes that reach a pool's devices.",
            _rate(device.get(f"{direction}_bytes", 0), seen.seconds), **labels, direction=direction,
        )  # fmt: skip
    made.gauge(
        "ztune_pool_write_amplification",
        "Bytes that reach a pool's devices for each byte that is written to its datasets.",
        amplification(device.get("write_bytes", 0), asked.get("nwritten", 0)),
        **labels,
    )


def amplification(device: int, asked: int) -> float | None:
    """Return the bytes that reach devices for each that was asked for; None where too little was."""
    return device / asked if asked >= LEAST_WRITTEN else None


def _number(properties: Mapping[str, ObservedValue], name: str) -> float | None:
    value = properties.get(name)
    try:
        return None if value is None else float(value.value.rstrip("x%"))
    except ValueError:
        return None
