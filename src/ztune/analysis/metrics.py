"""What is compared: names, units, and where each number stands in the result of a replay or of a trial.

A replay does a fixed amount of work, so its numbers are totals; where layouts of a run were replayed on
recordings of different jobs, they are per operation of the job. In a trial a faster layout does more in the
same time, so its numbers are per operation of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ztune.errors import InputError
from ztune.onhost.words import OBJECTIVES

Basis = Literal["modelled", "measured", "emulated"]
"""What a number rests on: a replay; trials; or trials in a lab without hardware virtualisation, where
operations and bytes are real and seconds are not."""
Raw = Mapping[str, Any]  # a trial's result as it is stored
Reader = Callable[[Raw], float | None]


@dataclass(frozen=True)
class Metric:
    """One number of a layout. ``less``: whether less is better; None where neither is.

    Of trials: ``asked``, the objective's words that it answers; ``predicted``, the metric of a replay that
    foretells it. Of replays: ``path``, where in ``measure`` the engine has it.
    """

    key: str
    label: str  # as a column head or in a sentence
    unit: str  # see units.show
    read: Reader = field(repr=False)
    less: bool | None = True
    clock: bool = False  # whether it depends on the guest's clock, which emulation distorts
    asked: tuple[str, ...] = ()
    predicted: str = ""
    path: tuple[str, ...] = ()

    def named(self, basis: Basis) -> str:
        """Return the label; seconds of an emulated lab are never shown without that word."""
        return self.label + (" (emulated)" if self.clock and basis == "emulated" else "")


def number_at(values: Raw, *path: str) -> float | None:
    """Return the number at ``path`` in nested mappings, None where there is no number."""
    node: Any = values
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    if isinstance(node, bool) or not isinstance(node, int | float) or node != node:
        return None
    return float(node)


def operations(result: Raw) -> float | None:
    """Return how many operations the job of a trial did."""
    found = number_at(result, "job", "operations")
    return number_at(result, "measure", "operations") if found is None else found


def _plain(*path: str) -> Reader:
    return lambda result: number_at(result, *path)


def _share(above: Reader, below: Reader) -> Reader:
    def read(result: Raw) -> float | None:
        a, b = above(result), below(result)
        return None if a is None or not b else a / b

    return read


def per_operation(*path: str) -> Reader:
    """Return a reader of a count divided by the operations of the job."""
    return _share(_plain(*path), operations)


def _sum(*readers: Reader) -> Reader:
    def read(result: Raw) -> float | None:
        found = [r(result) for r in readers]
        return None if None in found else sum(filter(None, found))

    return read


def _busy(result: Raw) -> float | None:
    """Return the seconds of one operation for which the busiest disk had something to do."""
    measure = result.get("measure")
    rows = measure.get("by_vdev") if isinstance(measure, Mapping) else None
    times = [number_at(row, "busy_ms") for row in rows or () if isinstance(row, Mapping)]
    known, count = [t for t in times if t is not None], operations(result)
    if not known or len(known) < len(times) or not count:
        return None
    return max(known) / 1e3 / (number_at(result, "environment", "dilation") or 1.0) / count


def _cpu_all(result: Raw) -> float | None:
    """Return the seconds of processor of one operation: the job's, and OpenZFS's beside it, which compresses
    and checksums in threads of its own, on a mount in a program of its own."""
    mount = number_at(result, "measure", "cpu", "mount_user_s") is not None
    beside = ("mount_user_s", "mount_system_s") if mount else ("zfs_threads_s",)
    return _sum(*(per_operation("measure", "cpu", name) for name in ("user_s", "system_s", *beside)))(result)


def _log_ms(kind: str) -> Reader:
    """Return a reader of the mean ms that the database took for one ``write`` or ``sync`` of its log."""
    return _ms(_share(_plain("job", "log", f"{kind}_s"), _plain("job", "log", f"{kind}s")))


def _ms(read: Reader) -> Reader:
    return lambda result: None if (seconds := read(result)) is None else seconds * 1e3


def _asked(key: str, label: str) -> Metric:
    """Return a metric that an objective may minimise; where it stands is said in the words of studies."""
    path, unit = OBJECTIVES[key]
    return _replayed(key, label, unit, *path)


def _of_call(key: str, call: str, label: str, figure: str) -> Metric:
    """Return a metric of what a mount's calls took inside OpenZFS."""
    return Metric(key, label, "ms", _plain("measure", f"{call}_latency_ms", figure), clock=True)


def _of_calls(key: str, call: str, label: str) -> list[Metric]:
    shares = {"p50": "median", "p95": "p95", "p99": "p99"}
    return [_of_call(f"{key}_{p}", call, f"{label}, {word}", p) for p, word in shares.items()]


def _replayed(key: str, label: str, unit: str, *path: str, less: bool = True) -> Metric:
    return Metric(key, label, unit, _plain("measure", *path), less, path=path)


def _by_key(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {m.key: m for m in metrics}


REPLAYED = _by_key((
    _asked("modelled_s", "modelled time"),
    _asked("allocated", "space"),
    _asked("written", "bytes written"),
    _asked("read", "bytes read"),
    _asked("write_ops", "write operations"),
    _asked("read_ops", "read operations"),
    _asked("flushes", "cache flushes"),
    _replayed("rmw_reads", "read-modify-write reads", "count", "rmw_reads"),
    _replayed("write_amplification", "bytes written per byte asked", "ratio", "write_amplification"),
    _replayed("zil_bytes", "bytes written by the ZIL", "bytes", "by_cause", "zil", "write_bytes"),
    _asked("sync_p50", "modelled sync latency, median"),
    _asked("sync_p99", "modelled sync latency, p99"),
    _asked("read_p99", "modelled read latency, p99"),
    _asked("busy_s", "busiest device, modelled"),
    _replayed("wait_s", "longest thread's waits, modelled", "s", "model", "thread_wait_s_max"),
    _replayed("pace", "predicted share of the recorded pace", "share", "model", "pace", less=False),
    _replayed("speed", "predicted throughput over the recorded", "ratio", "model", "speed", less=False),
    _replayed("operation_p50", "predicted operation, median", "ms", "model", "operation_latency_ms", "p50"),
    _replayed("operation_p99", "predicted operation, p99", "ms", "model", "operation_latency_ms", "p99"),
    _asked("cpu", "processor time for data"),
    _replayed("host_busy", "host's processor use", "share", "model", "host_busy"),
    _replayed("cpu_s", "processor time of the replay", "s", "cpu_s"),
    _replayed("compression_ratio", "compression ratio", "ratio", "space", "compression_ratio", less=False),
))  # fmt: skip

_IO = ("measure", "physical")
MEASURED = _by_key((
    Metric("time", "time per op", "s", per_operation("measure", "seconds"), clock=True,
           asked=("modelled_s",), predicted="modelled_s"),
    Metric("busy", "busiest disk's work per op", "s", _busy, clock=True,
           asked=("busy_s",), predicted="busy_s"),
    Metric("latency", "mean latency", "ms", _plain("job", "latency_ms", "mean"), clock=True),
    Metric("per_second", "operations/s", "rate", _plain("job", "per_second"), less=False, clock=True),
    Metric("offered", "operations/s asked for", "rate", _plain("job", "offered_per_second"), less=None,
           clock=True),
    Metric("p50", "latency, median", "ms", _plain("job", "latency_ms", "p50"), clock=True,
           asked=("sync_p50",)),
    Metric("p90", "latency, p90", "ms", _plain("job", "latency_ms", "p90"), clock=True),
    Metric("p99", "latency, p99", "ms", _plain("job", "latency_ms", "p99"), clock=True,
           asked=("sync_p99", "read_p99")),
    Metric("p999", "latency, p99.9", "ms", _plain("job", "latency_ms", "p999"), clock=True),
    Metric("ios", "disk I/Os per op", "ratio",
           _sum(per_operation(*_IO, "reads"), per_operation(*_IO, "writes"))),
    Metric("bytes", "bytes moved per op", "bytes",
           _sum(per_operation(*_IO, "read_bytes"), per_operation(*_IO, "write_bytes"))),
    Metric("written", "written per op", "bytes", per_operation(*_IO, "write_bytes"), predicted="written"),
    Metric("read", "read per op", "bytes", per_operation(*_IO, "read_bytes"), predicted="read"),
    Metric("writes", "disk writes per op", "ratio", per_operation(*_IO, "writes"),
           asked=("write_ops",), predicted="write_ops"),
    Metric("reads", "disk reads per op", "ratio", per_operation(*_IO, "reads"),
           asked=("read_ops",), predicted="read_ops"),
    Metric("flushes", "flushes per op", "ratio", per_operation(*_IO, "flushes"), predicted="flushes"),
    Metric("written_all", "bytes written", "bytes", _plain(*_IO, "write_bytes"), less=None),
    Metric("read_all", "bytes read", "bytes", _plain(*_IO, "read_bytes"), less=None),
    Metric("writes_all", "disk writes", "count", _plain(*_IO, "writes"), less=None),
    Metric("reads_all", "disk reads", "count", _plain(*_IO, "reads"), less=None),
    Metric("flushes_all", "cache flushes", "count", _plain(*_IO, "flushes"), less=None),
    Metric("amplification", "bytes written per byte asked", "ratio",
           _share(_plain(*_IO, "write_bytes"), _plain("measure", "logical", "write_bytes"))),
    Metric("zil", "ZIL bytes per op", "bytes", per_operation("measure", "zil", "bytes")),
    Metric("space", "space", "bytes", _plain("measure", "space", "allocated"),
           asked=("allocated",), predicted="allocated"),
    Metric("space_all", "space at the end", "bytes", _plain("measure", "space", "allocated"), less=None),
    Metric("compression", "compression ratio", "ratio", _plain("measure", "space", "compression_ratio"),
           less=False),
    Metric("cpu", "CPU per op", "s",
           _sum(per_operation("measure", "cpu", "user_s"), per_operation("measure", "cpu", "system_s")),
           clock=True),
    Metric("cpu_all", "CPU per op with ZFS", "s", _cpu_all, clock=True, asked=("cpu",)),
    Metric("mount_cpu", "CPU of the mount per op", "s",
           _sum(per_operation("measure", "cpu", "mount_user_s"),
                per_operation("measure", "cpu", "mount_system_s")), clock=True),
    Metric("switches", "context switches per op", "ratio",
           per_operation("measure", "cpu", "context_switches")),
    Metric("log_write", "log write latency", "ms", _log_ms("write"), clock=True),
    Metric("log_sync", "log sync latency", "ms", _log_ms("sync"), clock=True),
    Metric("commit", "OpenZFS's commit latency", "ms",
           _ms(_share(_plain("measure", "zil", "commit_s"), _plain("measure", "zil", "commits"))),
           clock=True),
    *_of_calls("commit", "sync", "OpenZFS's commit latency"),
    _of_call("read_ms", "read", "OpenZFS's read latency", "mean"),
    *_of_calls("read", "read", "OpenZFS's read latency"),
    Metric("log_writes", "log writes per op", "ratio", per_operation("job", "log", "writes")),
    Metric("log_syncs", "log syncs per op", "ratio", per_operation("job", "log", "syncs")),
    Metric("log_waits", "waits for the log buffer per op", "ratio", per_operation("job", "log", "waits")),
))  # fmt: skip


def _of_one(metric: Metric) -> Metric:
    """Return a replay's total divided by the operations of the recorded job."""
    return replace(
        metric,
        label=f"{metric.label} per op",
        unit="ratio" if metric.unit == "count" else metric.unit,
        read=_share(metric.read, operations),
    )


TOTALS = (
    *("modelled_s", "written", "read", "write_ops", "read_ops", "flushes", "rmw_reads", "zil_bytes"),
    *("busy_s", "wait_s", "cpu", "cpu_s"),
)
"""The metrics of a replay that are sums over the recorded job. Space is none: it is what the job left."""
PER_OPERATION = {key: _of_one(metric) if key in TOTALS else metric for key, metric in REPLAYED.items()}
"""The metrics of replays of different jobs, which did not do the same amount of work."""


def table(basis: Basis, per_operation: bool = False) -> Mapping[str, Metric]:
    """Return the metrics of layouts that were filled so, by key. ``per_operation``: replays of several
    recordings."""
    if basis != "modelled":
        return MEASURED
    return PER_OPERATION if per_operation else REPLAYED


ALIASES = {"time": "modelled_s", "space": "allocated", "wear": "written"}

# The three that an effect, a pair and the trade-off plot always show.
MAIN = ("modelled_s", "allocated", "written")
# Ratios that an effect lists besides, since counts explain the times.
EXPLAIN = ("read_ops", "write_ops", "read", "flushes", "rmw_reads", "sync_p99")


def resolve(name: str) -> str:
    """Return the objective's metric that ``name`` means ("time" → "modelled_s"); or raise InputError."""
    key = ALIASES.get(name.strip(), name.strip())
    known = [*ALIASES, *OBJECTIVES]
    if key not in known:
        raise InputError(f'"{name}" can\'t be minimised; use one of {", ".join(known)}')
    return key


def replayed(minimise: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics of an objective, each once. Raises InputError for an unknown one, and for none."""
    keys = tuple(dict.fromkeys(resolve(name) for name in minimise))
    if not keys:
        raise InputError(
            "the objective minimises nothing; name at least one of modelled_s, allocated, written"
        )
    return keys
