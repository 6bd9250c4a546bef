"""From a run's trials to one result per layout: repeats become medians, the incomparable is set apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ztune.analysis import same_files, units
from ztune.analysis.metrics import Basis, Metric, Raw, number_at, operations, table
from ztune.analysis.need import Need
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.stats import Estimate, estimate
from ztune.onhost import latency
from ztune.store.records import Trial
from ztune.study import DurabilityClass, Layout
from ztune.study.durability import Judgement, judge


@dataclass(frozen=True)
class LayoutResult:
    """One layout with all that is known of it, from replays or from trials.

    ``estimates``: metric → median, interval, number and basis. ``values``: metric → block → value; replays
    are in no block, and their own numbers stand there. ``against``: metric → layout / baseline, paired within
    blocks; empty for replays and for the baseline itself. ``measure`` is that of the trial in the middle, of
    replays by modelled time: for detail that is no metric, such as space by dataset. ``results``: all.
    ``work``: the operations of the recorded job that a replay's figures are divided by; None: by none.
    """

    name: str
    hash: str
    layout: Layout
    settings: Mapping[str, str]
    durability: DurabilityClass
    durability_reasons: tuple[str, ...]
    baseline: bool
    trials: tuple[int, ...]  # their numbers in the run
    estimates: Mapping[str, Estimate]
    measure: Mapping[str, Any] = field(repr=False)
    warnings: tuple[str, ...] = ()
    arm: str = ""
    basis: Basis = "modelled"
    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict, repr=False)
    against: Mapping[str, Ratio] = field(default_factory=dict, repr=False)
    results: Mapping[int, Raw] = field(default_factory=dict, repr=False)
    recording: str = ""  # the sha of its own, where layouts of the run have several
    work: float | None = None
    hosts: Mapping[int, str] = field(
        default_factory=dict, repr=False
    )  # of each block, where there are several

    @cached_property
    def judged(self) -> Judgement:
        """What a power cut may lose, and what of that is not known."""
        return judge(self.layout)

    @property
    def amplification(self) -> float | None:
        """Bytes that the disks write for each byte that the database writes."""
        return self.value("write_amplification" if self.basis == "modelled" else "amplification")

    def value(self, key: str) -> float | None:
        """Return the median of a metric in its unit, or None where it is not known."""
        found = self.estimates.get(key)
        return None if found is None else found.median

    @cached_property
    def few_calls(self) -> dict[str, int]:
        """The percentiles that rest on too few calls to be printed: metric → how many calls."""
        found: dict[str, int] = {}
        for key in self.estimates:
            path = self.metric(key).path
            share = latency.share_of(path[-1] if path else key)
            if share is None:
                continue
            if path:
                counts = [number_at(self.measure, *path[:-1], "count")]
            else:
                counts = [operations(result) for result in self.results.values()]
            known = [count for count in counts if count is not None]
            if known and not latency.tells(min(known), share):
                found[key] = int(min(known))
        return found

    @cached_property
    def need(self) -> Need | None:
        """What its replay needed; None where it has no modelled time."""
        disks, work = self.value("modelled_s"), self.work
        if disks is None:
            return None
        of_disks, cpu, recorded, share = (
            number_at(self.measure, "model", key)
            for key in ("disks_s", "processor_s", "trace_s", "host_busy")
        )
        cores = number_at(self.measure, "processor", "host", "cores")
        if of_disks is not None and cpu is not None and cores:
            used = None if share is None or recorded is None else share * recorded
            return Need(of_disks, cpu, recorded, work, int(cores), used)
        cpu = self.value("cpu_s")
        if work is not None:  # how long it took is asked of the whole job
            disks, cpu = disks * work, None if cpu is None else cpu * work
        return Need(disks, cpu, recorded, work)

    def metric(self, key: str) -> Metric:
        """Return what ``key`` means here."""
        return table(self.basis, self.per_operation)[key]

    @property
    def per_operation(self) -> bool:
        """Whether its totals are those of one operation, since layouts of the run had different jobs."""
        return self.work is not None

    def text(self, key: str) -> str:
        """Return the median of a metric for people; "–" where it is not known."""
        value = None if key in self.few_calls else self.value(key)
        return "–" if value is None else units.show(value, self.metric(key).unit)


@dataclass(frozen=True)
class Failed:
    """A layout that has no result to compare, or trials without one, and why."""

    name: str
    hash: str
    trials: tuple[int, ...]
    reason: str
    baseline: bool = False


@dataclass(frozen=True)
class Results:
    """The trials of one run, sorted into what can be compared, in the order of the first trials, and what
    can't."""

    layouts: tuple[LayoutResult, ...]
    failed: tuple[Failed, ...]
    pending: int  # trials that have not run yet
    engine: str  # the one version that the layouts share; empty for trials
    openzfs: str
    base_layout: Layout | None = None  # the baseline's, also where no trial of it finished
    blocks: int = 0
    several: bool = False  # whether its layouts were replayed on recordings of different jobs
    per_operation: bool = False  # whether their totals are those of one operation of these jobs
    hosts: Mapping[int, str] = field(default_factory=dict)  # block → host, where trials ran on several

    @property
    def baseline(self) -> LayoutResult | None:
        """The baseline's result, if it finished."""
        return next((c for c in self.layouts if c.baseline), None)

    @property
    def warnings(self) -> list[str]:
        """What all trials warned of, each once."""
        return list(dict.fromkeys(w for c in self.layouts for w in c.warnings))


def collect(trials: Iterable[Trial], basis: Basis | None = None) -> Results:
    """Group ``trials`` by layout. Results of different engine or OpenZFS versions are never mixed.

    Where versions differ, the pair of versions with the most finished trials is kept (the later one in the
    list where equal); what only others ran is listed as failed with that reason. ``basis`` None: "measured"
    for trials that ran in blocks, "modelled" for others. Trials under a condition of their own
    (``Trial.condition``) are left out.
    """
    everything = [t for t in trials if not t.condition]  # what others are is no repetition of these
    if basis is None:
        basis = "measured" if any(t.block for t in everything) else "modelled"
    if basis != "modelled":
        everything = [t for t in everything if t.block > 0]
    finished = [t for t in everything if t.ok]
    versions = Counter(map(_versions, finished))
    latest = {_versions(t): i for i, t in enumerate(finished)}
    keep = max(versions, key=lambda v: (versions[v], latest[v]), default=("", ""))

    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in everything:
        groups[trial.arm].append(trial)
    good = {arm: [t for t in group if _usable(t, basis, keep)] for arm, group in groups.items()}
    first = next((a for a, g in groups.items() if good[a] and any(t.is_baseline for t in g)), None)
    several = any(t.trace_sha for t in everything)
    each = several and all(operations(t.result or {}) for t in finished)
    measured_base = [] if first is None or basis == "modelled" else good[first]
    reference = _values(measured_base, basis) if measured_base else {}
    hosts = {t.block: t.host for t in finished} if basis != "modelled" else {}
    if len(set(hosts.values())) < 2:
        hosts = {}
    return Results(
        tuple(
            _result(
                good[arm],
                basis,
                {} if arm == first else reference,
                arm == first,
                each,
                () if arm == first else measured_base,
                hosts,
            )
            for arm in groups
            if good[arm]
        ),
        tuple(f for group in groups.values() if (f := _failed(group, basis, keep)) is not None),
        sum(t.status in {"pending", "running"} for t in everything),
        *keep,
        next((t.layout for t in everything if t.is_baseline), None),
        max((t.block for t in finished), default=0),
        several,
        each,
        hosts,
    )


def _versions(trial: Trial) -> tuple[str, str]:
    return trial.engine_version or "", trial.openzfs_version or ""


def _usable(trial: Trial, basis: Basis, keep: tuple[str, str]) -> bool:
    if not trial.ok or _versions(trial) != keep:
        return False
    return basis != "modelled" or table(basis)["modelled_s"].read(trial.result or {}) is not None


def _failed(group: Sequence[Trial], basis: Basis, keep: tuple[str, str]) -> Failed | None:
    """Return the trials of a group that have no result to compare, and why; None if all have or will."""
    bad = [t for t in group if t.status == "failed"]
    odd = [t for t in group if t.ok and not _usable(t, basis, keep)]
    if not bad and not odd:
        return None
    first = (bad or odd)[0]
    engine, openzfs = (v or "?" for v in _versions(first))
    if bad:
        reason = first.error or "it failed without a message"
    elif _versions(first) == keep:
        reason = "the engine reported no modelled time"
    elif basis == "modelled":
        reason = (
            f"it was replayed by engine {engine} (OpenZFS {openzfs}), the others by "
            f"{keep[0]} (OpenZFS {keep[1]}); screen it again to compare it"
        )
    else:
        reason = f"it ran under OpenZFS {openzfs}, the others under {keep[1]}"
    numbers = tuple(t.number for t in [*bad, *odd])
    return Failed(first.layout_name, first.layout_hash, numbers, reason, any(t.is_baseline for t in group))


def _values(trials: Sequence[Trial], basis: Basis, each: bool = False) -> dict[str, dict[int, float]]:
    out: dict[str, dict[int, float]] = {}
    for key, metric in table(basis, each).items():
        # Replays are in no block; their numbers keep them apart.
        row = {t.block or t.number: v for t in trials if (v := metric.read(t.result or {})) is not None}
        if row:
            out[key] = row
    return out


def _same_files(trials: Sequence[Trial], base: Sequence[Trial]) -> dict[int, float]:
    """Return block → the space of trials that did another amount of work than the baseline's there, as if
    their files were its. Of a job with other settings it is not known how large they would be."""
    by_block = {t.block: t for t in base}
    out = {}
    for trial in trials:
        beside = by_block.get(trial.block, base[0] if base else None)
        if beside is None or trial.layout.job_settings() != beside.layout.job_settings():
            continue
        found = same_files.space(trial.result or {}, beside.result or {})
        if found is not None:
            out[trial.block or trial.number] = found
    return out


def _result(
    trials: Sequence[Trial],
    basis: Basis,
    reference: Mapping[str, Mapping[int, float]],
    baseline: bool,
    each: bool,
    base: Sequence[Trial],
    hosts: Mapping[int, str],
) -> LayoutResult:
    """Return the result of one layout's trials; ``base``: the baseline's, of trials of another layout."""
    values = _values(trials, basis, each)
    if "space" in values:
        values["space"].update(_same_files(trials, base))
    first = trials[0]
    middle = trials[len(trials) // 2]
    if basis == "modelled":
        times = values["modelled_s"]
        middle = sorted(trials, key=lambda t: times.get(t.number, 0.0))[(len(trials) - 1) // 2]
    return LayoutResult(
        name=first.layout_name + (" (again)" if first.twin else ""),
        hash=first.layout_hash,
        layout=first.layout,
        settings=first.layout.settings(),
        durability=judge(first.layout).klass,
        durability_reasons=tuple(judge(first.layout).reasons),
        baseline=baseline,
        trials=tuple(t.number for t in trials),
        estimates={key: estimate(list(row.values()), basis=basis) for key, row in values.items()},
        measure=middle.measure,
        warnings=tuple(dict.fromkeys(str(w) for t in trials for w in t.warnings)),
        arm=first.arm,
        basis=basis,
        values=values,
        against={
            key: ratio
            for key in values.keys() & reference.keys()
            if (ratio := paired(values[key], reference[key], hosts=hosts)) is not None
        },
        results={t.block or t.number: t.result or {} for t in trials},
        recording=first.trace_sha,
        work=operations(middle.result or {}) if each else None,
        hosts=hosts,
    )
