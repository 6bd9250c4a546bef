"""Trials on real ZFS: what was measured of each layout, block by block.

Everything is per operation of the job, since a faster layout does more of them in the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from ztune.analysis import units
from ztune.analysis.candidates import Failed
from ztune.analysis.metrics import number_at
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.stats import Estimate, estimate
from ztune.store.records import Run, Trial
from ztune.study import DurabilityClass, Layout

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """One number of a measured trial. ``less``: whether less is better; None where neither is."""

    key: str
    label: str
    unit: str  # see units.show
    read: Callable[[Result], float | None] = field(repr=False)
    less: bool | None = True
    clock: bool = False  # whether it depends on the guest's clock, which emulation distorts


def _operations(result: Result) -> float | None:
    found = number_at(result, "job", "operations")
    return number_at(result, "measure", "operations") if found is None else found


def _per(*path: str) -> Callable[[Result], float | None]:
    """Return a reader of a count divided by the operations of the job."""

    def read(result: Result) -> float | None:
        value, operations = number_at(result, *path), _operations(result)
        return None if value is None or not operations else value / operations

    return read


def _plain(*path: str) -> Callable[[Result], float | None]:
    return lambda result: number_at(result, *path)


def _sum(*readers: Callable[[Result], float | None]) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        found = [r(result) for r in readers]
        return None if any(v is None for v in found) else sum(v for v in found if v is not None)

    return read


def _share(above: Callable[[Result], float | None], below: Callable[[Result], float | None]) -> Any:
    def read(result: Result) -> float | None:
        a, b = above(result), below(result)
        return None if a is None or not b else a / b

    return read


def _busy(result: Result) -> float | None:
    """Return the seconds of one operation for which the busiest disk had something to do."""
    measure = result.get("measure")
    rows = measure.get("by_vdev") if isinstance(measure, Mapping) else None
    times = [number_at(row, "busy_ms") for row in rows or () if isinstance(row, Mapping)]
    known, operations = [t for t in times if t is not None], _operations(result)
    if not known or len(known) < len(times) or not operations:
        return None
    return max(known) / 1e3 / (number_at(result, "environment", "dilation") or 1.0) / operations


_PHYSICAL = ("measure", "physical")
MEASURES: dict[str, Measure] = {
    m.key: m
    for m in (
        Measure("time", "time per op", "s", _per("measure", "seconds"), clock=True),
        Measure("busy", "busiest disk's work per op", "s", _busy, clock=True),
        Measure("latency", "mean latency", "ms", _plain("job", "latency_ms", "mean"), clock=True),
        Measure("per_second", "operations/s", "rate", _plain("job", "per_second"), less=False, clock=True),
        Measure("offered", "operations/s asked for", "rate", _plain("job", "offered_per_second"), less=None,
                clock=True),
        Measure("p50", "latency, median", "ms", _plain("job", "latency_ms", "p50"), clock=True),
        Measure("p90", "latency, p90", "ms", _plain("job", "latency_ms", "p90"), clock=True),
        Measure("p99", "latency, p99", "ms", _plain("job", "latency_ms", "p99"), clock=True),
        Measure("p999", "latency, p99.9", "ms", _plain("job", "latency_ms", "p999"), clock=True),
        Measure("ios", "disk I/Os per op", "ratio",
                _sum(_per(*_PHYSICAL, "reads"), _per(*_PHYSICAL, "writes"))),
        Measure("bytes", "bytes moved per op", "bytes",
                _sum(_per(*_PHYSICAL, "read_bytes"), _per(*_PHYSICAL, "write_bytes"))),
        Measure("written", "written per op", "bytes", _per(*_PHYSICAL, "write_bytes")),
        Measure("read", "read per op", "bytes", _per(*_PHYSICAL, "read_bytes")),
        Measure("writes", "disk writes per op", "ratio", _per(*_PHYSICAL, "writes")),
        Measure("reads", "disk reads per op", "ratio", _per(*_PHYSICAL, "reads")),
        Measure("flushes", "flushes per op", "ratio", _per(*_PHYSICAL, "flushes")),
        Measure("written_all", "bytes written", "bytes", _plain(*_PHYSICAL, "write_bytes"), less=None),
        Measure("read_all", "bytes read", "bytes", _plain(*_PHYSICAL, "read_bytes"), less=None),
        Measure("writes_all", "disk writes", "count", _plain(*_PHYSICAL, "writes"), less=None),
        Measure("reads_all", "disk reads", "count", _plain(*_PHYSICAL, "reads"), less=None),
        Measure("flushes_all", "cache flushes", "count", _plain(*_PHYSICAL, "flushes"), less=None),
        Measure("amplification", "bytes written per byte asked", "ratio",
                _share(_plain(*_PHYSICAL, "write_bytes"), _plain("measure", "logical", "write_bytes"))),
        Measure("zil", "ZIL bytes per op", "bytes", _per("measure", "zil", "bytes")),
        Measure("space", "space", "bytes", _plain("measure", "space", "allocated")),
        Measure("compression", "compression ratio", "ratio",
                _plain("measure", "space", "compression_ratio"), less=False),
        Measure("cpu", "CPU per op", "s",
                _sum(_per("measure", "cpu", "user_s"), _per("measure", "cpu", "system_s")), clock=True),
        Measure("mount_cpu", "CPU of the mount per op", "s",
                _sum(_per("measure", "cpu", "mount_user_s"), _per("measure", "cpu", "mount_system_s")),
                clock=True),
        Measure("switches", "context switches per op", "ratio",
                _per("measure", "cpu", "context_switches")),
    )
}  # fmt: skip

# What a study's objective says of replays, and what answers the same question of a measured trial.
_OBJECTIVE = {
    "modelled_s": "time", "allocated": "space", "written": "written", "read": "read", "write_ops": "writes",
    "read_ops": "reads", "flushes": "flushes", "sync_p50": "p50", "sync_p99": "p99", "read_p99": "p99",
    "busy_s": "busy",
}  # fmt: skip
# Where each measure stands in a replay's metrics, for predicted against measured.
PREDICTED = {
    "time": "modelled_s", "busy": "busy_s", "space": "allocated", "written": "written", "read": "read",
    "writes": "write_ops", "reads": "read_ops", "flushes": "flushes",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One layout with all that was measured of it.

    ``values``: measure → block → value. ``estimates``: the medians. ``against``: measure → layout / baseline,
    paired within blocks; empty for the baseline itself.
    """

    arm: str
    name: str
    hash: str
    layout: Layout
    settings: Mapping[str, str]
    durability: DurabilityClass
    baseline: bool
    trials: tuple[int, ...]
    values: Mapping[str, Mapping[int, float]]
    estimates: Mapping[str, Estimate]
    against: Mapping[str, Ratio]
    results: Mapping[int, Result] = field(repr=False)

    def value(self, key: str) -> float | None:
        """Return the median of a measure in its unit, or None where it was not measured."""
        found = self.estimates.get(key)
        return None if found is None else found.median


@dataclass(frozen=True)
class Measured:
    """A run's layouts, in the order of their first trial."""

    cells: tuple[Cell, ...]
    failed: tuple[Failed, ...]
    pending: int
    blocks: int
    openzfs: str
    warnings: tuple[str, ...]
    base_layout: Layout | None = None
    """The baseline's, also where no trial of it finished."""

    @property
    def baseline(self) -> Cell | None:
        """The baseline, if any trial of it finished."""
        return next((c for c in self.cells if c.baseline), None)


def gather(trials: Iterable[Trial]) -> Measured:
    """Group the trials of a run by layout. Results under another OpenZFS than most are left out, and
    named.
    """
    everything = [t for t in trials if t.block > 0]
    versions: dict[str, int] = defaultdict(int)
    for trial in everything:
        if trial.ok:
            versions[trial.openzfs_version or ""] += 1
    keep = max(versions, key=lambda v: versions[v], default="")
    arms: dict[str, list[Trial]] = defaultdict(list)
    for trial in everything:
        arms[trial.arm].append(trial)
    good = {
        arm: {t.block: t for t in group if t.ok and (t.openzfs_version or "") == keep}
        for arm, group in arms.items()
    }
    base = next((a for a, g in arms.items() if any(t.is_baseline for t in g) and good[a]), None)
    values = {arm: _values(found) for arm, found in good.items()}
    cells, failed = [], []
    warnings: dict[str, None] = {}
    for arm, group in arms.items():
        if good[arm]:
            reference = values[base] if base is not None and base != arm else {}
            cells.append(_cell(arm, good[arm], values[arm], reference, arm == base))
            for t in good[arm].values():
                warnings.update(dict.fromkeys(str(w) for w in t.warnings))
        bad = [t for t in group if t.status == "failed"]
        odd = [t for t in group if t.ok and (t.openzfs_version or "") != keep]
        if bad or odd:
            first = (bad or odd)[0]
            reason = first.error or f"it ran under OpenZFS {first.openzfs_version}, the others under {keep}"
            failed.append(
                Failed(
                    first.layout_name, first.layout_hash, tuple(t.number for t in [*bad, *odd]), reason,
                    first.is_baseline,
                )
            )  # fmt: skip
    return Measured(
        tuple(cells),
        tuple(failed),
        sum(t.status in {"pending", "running"} for t in everything),
        max((t.block for t in everything if t.ok), default=0),
        keep,
        tuple(warnings),
        next((t.layout for t in everything if t.is_baseline), None),
    )


def _values(found: Mapping[int, Trial]) -> dict[str, dict[int, float]]:
    out: dict[str, dict[int, float]] = {}
    for key, measure in MEASURES.items():
        row = {b: v for b, t in found.items() if (v := measure.read(t.result or {})) is not None}
        if row:
            out[key] = row
    return out


def _cell(
    arm: str,
    found: Mapping[int, Trial],
    values: Mapping[str, Mapping[int, float]],
    reference: Mapping[str, Mapping[int, float]],
    baseline: bool,
) -> Cell:
    first = next(iter(found.values()))
    against = {
        key: ratio
        for key in values.keys() & reference.keys()
        if (ratio := paired(values[key], reference[key])) is not None
    }
    return Cell(
        arm=arm,
        name=first.layout_name + (" (again)" if first.twin else ""),
        hash=first.layout_hash,
        layout=first.layout,
        settings=first.layout.settings(),
        durability=first.layout.durability(),
        baseline=baseline,
        trials=tuple(t.number for t in found.values()),
        values=values,
        estimates={key: estimate(list(row.values())) for key, row in values.items()},
        against=against,
        results={block: t.result or {} for block, t in found.items()},
    )


Kind = Literal["measured", "emulated"]
_KEPT_UP = 0.95  # of the rate
# Rates that are a job's own agree to half a per cent; the same to within this where nobody says what was
# asked for.
_SAME_RATE = 0.01


@dataclass(frozen=True)
class Pace:
    """A job whose operations became due at a rate, and how the layouts kept up with it.

    ``kept``: arm → block → operations done, over the fewest that count as keeping up: below 1 the layout fell
    behind.
    ``rates``: arm → operations per second, done and asked for; medians. Both are empty where only the
    layouts' own agreement shows the rate. ``behind``: the arms that fell behind in most of their blocks.
    """

    kept: Mapping[str, Mapping[int, float]]
    rates: Mapping[str, tuple[float, float]]
    behind: frozenset[str]

    def lag(self, arm: str) -> str:
        """Return how far a layout fell behind, as a clause; "" for one that kept up."""
        if arm not in self.behind:
            return ""
        done, asked = self.rates[arm]
        return f"falls behind: {units.show(done, 'rate')} of {units.show(asked, 'rate')}/s"


def clock(run: Run) -> Kind:
    """Say what the run's seconds are: "measured", or "emulated" where the lab had no hardware
    virtualisation.
    """
    return "emulated" if run.target.get("accel") == "tcg" else "measured"


def in_user_space(run: Run) -> bool:
    """Whether the run's pools were on a mount: OpenZFS in user space."""
    return run.target.get("kind") == "mount"


def limits(run: Run, cells: Sequence[Cell] = ()) -> str | None:
    """Say what the run's seconds leave out because of where it ran; None where it ran on the real thing."""
    if run.target.get("kind") == "lab":
        return "Measured in a virtual machine with disks after a profile: not the absolute speed of yours."
    if not in_user_space(run):
        return None
    disks = (
        "with disks as fast as this machine: no disk is waited for"
        if run.target.get("disks") == "instant"
        else "with disks modelled after a profile: not the absolute speed of yours"
    )
    text = (
        "Measured on OpenZFS in user space, behind FUSE: time is real time on this machine's processors, "
        f"{disks}."
    )
    found = [s for c in cells for r in c.results.values() if (s := _processors(r)) is not None]
    if found:
        mount, busy = (median(pair[i] for pair in found) for i in (0, 1))
        text += f" The processors were {busy:.0%} busy; ZFS and FUSE in the mount took {mount:.0%} of them."
    return text


def _processors(result: Result) -> tuple[float, float] | None:
    """Return the shares of all processors that the mount took, and that were in use."""
    seconds, cpus = number_at(result, "measure", "seconds"), number_at(result, "environment", "cpus")
    names = ("mount_user_s", "mount_system_s")
    own = [number_at(result, "measure", "cpu", name) for name in names]
    host = [number_at(result, "measure", "cpu", "host", name) for name in ("user_s", "system_s")]
    if not seconds or not cpus or None in own or None in host:
        return None
    whole = seconds * cpus
    return sum(filter(None, own)) / whole, min(1.0, sum(filter(None, host)) / whole)


def goals(run: Run, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the measures that order the layouts, most important first.

    Those of the run's objective; but where seconds are emulated, operations and bytes come first. A job with
    a rate does as much per second under every layout that keeps up: there, latency is its time.
    """
    wanted = [_OBJECTIVE.get(m, m) for m in run.objective.minimise]
    if clock(run) == "emulated":
        wanted = ["ios", "bytes", *wanted]
    if pace(cells) is not None and any("latency" in c.values for c in cells):
        wanted = ["latency" if key == "time" else key for key in wanted]
    wanted = [k for k in dict.fromkeys(wanted) if any(k in c.values for c in cells)]
    return tuple(wanted) or tuple(k for k in ("time", "bytes") if any(k in c.values for c in cells))


def pace(cells: Sequence[Cell]) -> Pace | None:
    """Return the pace that the job was given; None where it went as fast as it could, under every layout.

    From what each trial says was asked for and what was done. Where no trial says it, as in runs of an older
    ztune, all layouts doing the same per second show it.
    """
    known = [c for c in cells if "per_second" in c.values]
    asked = [v for c in known for v in c.values.get("offered", {}).values()]
    if not asked:
        speeds = [v for c in known if (v := c.value("per_second"))]
        same = len(speeds) > 1 and max(speeds) <= min(speeds) * (1 + _SAME_RATE)
        return Pace({}, {}, frozenset()) if same else None
    usual = median(asked)
    if usual <= 0:
        return None
    best: dict[int, float] = defaultdict(float)
    for cell in known:
        for block, done in cell.values["per_second"].items():
            best[block] = max(best[block], done)
    kept, rates = {}, {}
    for cell in known:
        offered = {b: cell.values.get("offered", {}).get(b) or usual for b in cell.values["per_second"]}
        kept[cell.arm] = {
            b: done / (_KEPT_UP * _due(offered[b], best[b], cell.results[b]))
            for b, done in cell.values["per_second"].items()
        }
        rates[cell.arm] = (median(cell.values["per_second"].values()), median(offered.values()))
    behind = frozenset(arm for arm, row in kept.items() if median(row.values()) < 1)
    return None if len(behind) == len(kept) else Pace(kept, rates, behind)


def _due(offered: float, best: float, result: Result) -> float:
    """Return how many operations per second became due: what the ``best`` layout of the block did, if chance
    explains that it is less than was ``offered``.

    pgbench and sysbench draw the times at which transactions become due, the same for all layouts
    (pgbench(1), --rate: Poisson): of N that are expected √N fewer become due by chance, and one time in forty
    2 √N fewer.
    """
    expected = offered * (number_at(result, "job", "seconds") or 0.0)
    chance = min(0.5, 2 / expected**0.5) if expected > 0 else 0.0
    return min(offered, max(best, offered * (1 - chance)))
