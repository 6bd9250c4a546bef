"""What the stored trials say of the studies: read, never run; also as a small file, for docs."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune import __version__, files, output, paths
from ztune.analysis import stats
from ztune.analysis.basis import basis
from ztune.analysis.metrics import MEASURED, REPLAYED, Metric, number_at
from ztune.analysis.paired import Ratio
from ztune.analysis.results import collect
from ztune.claims import claim as known
from ztune.claims import publication, studies, study_trials, thumb
from ztune.claims import verdict as verdicts
from ztune.claims.accuracy import JOB_TIME
from ztune.claims.conclusion import REPLAY, Upshot, Word
from ztune.claims.studies import Kind, PublishedStudy
from ztune.claims.study_trials import StudyTrials
from ztune.claims.thumb import RecordSizeSweep, RoleSizes
from ztune.errors import InputError
from ztune.onhost.fields import KeyedError, from_json, to_json
from ztune.store import environment
from ztune.store.db import Store, now
from ztune.store.records import Run, Trial
from ztune.trace.reader import Trace
from ztune.units import format_size

_ARC_MISSES = Metric(
    "arc_misses", "reads that missed the ARC", "count",
    lambda result: _sum(result, "demand_data_misses", "demand_metadata_misses"),
)  # fmt: skip


def _sum(result: Mapping[str, Any], *names: str) -> float | None:
    found = [number_at(result, "measure", "arc", name) for name in names]
    return None if None in found else sum(filter(None, found))


COUNTS: dict[str, Metric] = {
    JOB_TIME.key: JOB_TIME,
    **{
        key: REPLAYED[key]
        for key in (
            "modelled_s", "busy_s", "written", "read", "write_ops", "read_ops", "rmw_reads", "zil_bytes",
            "flushes", "allocated",
        )
    },
    "arc_misses": _ARC_MISSES,
}  # fmt: skip
"""What is kept of each trial: times, which are modelled, and the counts that say why."""

BESIDE_TIME = ("busy_s", "written", "read", "write_ops", "read_ops", "flushes")
"""What is said of a claim on a time that can't be told."""

_ENDS = {"oltp": "oltp-filesystems"}
"""Study → the ready study whose measured runs have the other file systems."""


@dataclass(frozen=True)
class FoundLayout:
    """One layout with its trial, as RUN/N, and the counts of it; where there is none, ``why``."""

    name: str
    kind: Kind
    workload: str
    set: str
    trial: str
    why: str
    counts: Mapping[str, float]


@dataclass(frozen=True)
class FoundCondition:
    """What came of a claim under one condition. ``arc``: bytes."""

    place: str
    disks: str
    arc: int
    openzfs: str
    state: Upshot


@dataclass(frozen=True)
class FoundCounts:
    """What a claim's layout counts to over another one in a replay, where its time tells nothing.

    ``arc``: bytes. ``ratios``: metric of ``BESIDE_TIME`` → ratio; None where the other one has none of it.
    """

    disks: str
    arc: int
    other: str
    ratios: Mapping[str, float | None]


@dataclass(frozen=True)
class FoundVerdict:
    """The last verdict of a claim, with the trials that it cites; ``verdict`` "": it was not tested.

    ``conditions``: those that were tried. ``counts``: of one of them, where a time can't be told.
    """

    claim: str
    sentence: str
    own_figures: str
    verdict: str
    says: str
    stand_in: str
    when: str
    trials: tuple[str, ...]
    conditions: tuple[FoundCondition, ...] = ()
    counts: tuple[FoundCounts, ...] = ()


@dataclass(frozen=True)
class EndRatio:
    """A metric over that of the base. ``low``, ``high``: its interval; None after a single run."""

    metric: str
    ratio: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class MeasuredEnd:
    """A layout that was measured with the real database over ``base``: its time per operation, or where
    seconds are emulated its disk I/Os and the bytes that they moved."""

    name: str
    base: str
    ratios: tuple[EndRatio, ...]
    basis: str
    trials: tuple[str, ...]


@dataclass(frozen=True)
class FoundJob:
    """A job that was recorded: how large its data became, in bytes, and how long it was recorded, in s."""

    workload: str
    version: str
    data: int
    seconds: float


@dataclass(frozen=True)
class FoundStudy:
    """What was found of one study. ``when`` is "" where it never ran."""

    study: str
    when: str
    engine: str
    openzfs: str
    jobs: tuple[FoundJob, ...]
    layouts: tuple[FoundLayout, ...]
    verdicts: tuple[FoundVerdict, ...]
    ends: tuple[MeasuredEnd, ...]

    def layout(self, name: str) -> FoundLayout | None:
        """Return the layout ``name``; None where the study has none of that name."""
        return next((each for each in self.layouts if each.name == name), None)


@dataclass(frozen=True)
class FoundAdvice:
    """What was found of the claims of a publication that is no study. ``publication``: its name."""

    publication: str
    verdicts: tuple[FoundVerdict, ...]


@dataclass(frozen=True)
class FoundStudies:
    """What was found of all studies, and of claims that others made beside them, on which machine."""

    made: str
    ztune: str
    machine: str
    studies: tuple[FoundStudy, ...]
    sweeps: tuple[RecordSizeSweep, ...]
    advice: tuple[FoundAdvice, ...]

    @property
    def openzfs(self) -> str:
        """The version of most replays of claims, this machine's own; "" without any."""
        verdicts = [v for each in self.studies for v in each.verdicts]
        verdicts += [v for each in self.advice for v in each.verdicts]
        replayed = Counter(c.openzfs for v in verdicts for c in v.conditions if c.place == REPLAY)
        return replayed.most_common(1)[0][0] if replayed else ""

    def study(self, name: str) -> FoundStudy | None:
        """Return what was found of the study ``name``."""
        return next((each for each in self.studies if each.study == name), None)


def read(store: Store) -> FoundStudies:
    """Return what the store has of the studies. Raises InputError for a file that can't be read."""
    every = sorted(map(studies.find, studies.names()), key=lambda study: study.publication.year)
    kept = {study.name: study_trials.last(study.name) for study in every}
    claims = list(known.every().values())
    trials = _Trials(store)
    found = tuple(_study(study, kept[study.name], trials, claims) for study in every)
    sweeps = tuple(_sweeps(list(kept.values()), trials))
    advice = [_advice(name, trials, claims) for name in publication.names() if name not in kept]
    told = tuple(each for each in advice if each.verdicts)
    return FoundStudies(now(), __version__, _machine(), found, sweeps, told)


def _advice(name: str, trials: _Trials, claims: Sequence[known.Claim]) -> FoundAdvice:
    source = publication.find(name)
    return FoundAdvice(name, tuple(_verdict(claim, trials) for claim in claims if claim.source == source))


class _Trials:
    """The store's runs and trials, each read once."""

    def __init__(self, store: Store) -> None:
        self.runs: dict[str, Run] = {run.id: run for run in store.runs()}
        self._store = store
        self._known: dict[str, list[Trial]] = {}

    def of(self, run: str) -> list[Trial]:
        """Return the trials of ``run``; none where it was deleted."""
        if run not in self._known:
            self._known[run] = self._store.trials(run) if run in self.runs else []
        return self._known[run]

    def cited(self, text: str) -> Trial | None:
        """Return the trial RUN/N if it is still there and finished."""
        run, _, number = text.rpartition("/")
        return next((t for t in self.of(run) if str(t.number) == number and t.ok), None)


def _study(
    study: PublishedStudy, kept: StudyTrials | None, trials: _Trials, claims: Sequence[known.Claim]
) -> FoundStudy:
    told = {} if kept is None else {each.name: each for each in kept.trials}
    home = str(paths.home())
    layouts = []
    for each in study.layouts:
        had = told.get(each.name)
        cited = "" if had is None else had.trial
        trial = trials.cited(cited) if cited else None
        why = "not run" if had is None else "its trial was deleted" if cited and trial is None else had.why
        layouts.append(
            FoundLayout(
                each.name,
                each.kind,
                each.workload,
                studies.changes(study, each.side),
                cited if trial is not None else "",
                why.replace(home, "$ZTUNE_HOME"),
                {} if trial is None else _counts(trial),
            )
        )
    return FoundStudy(
        study.name,
        "" if kept is None else kept.when,
        "" if kept is None else kept.engine,
        "" if kept is None else kept.openzfs,
        () if kept is None else tuple(FoundJob(j.workload, j.version, j.data, j.seconds) for j in kept.jobs),
        tuple(layouts),
        tuple(_verdict(claim, trials) for claim in claims if claim.source == study.publication),
        tuple(_ends(_ENDS.get(study.name, ""), trials)),
    )


def _counts(trial: Trial) -> dict[str, float]:
    read = {key: metric.read(trial.result or {}) for key, metric in COUNTS.items()}
    return {key: round(value, 6) for key, value in read.items() if value is not None}


def _verdict(claim: known.Claim, trials: _Trials) -> FoundVerdict:
    last = verdicts.last(claim) or {}
    return FoundVerdict(
        claim.id,
        claim.sentence,
        str(verdicts.described(claim)["supported"]["word"]),
        str(last.get("verdict", "")),
        str(last.get("says", "")).replace(str(paths.home()), "$ZTUNE_HOME"),
        claim.stand_in,
        str(last.get("when", "")),
        tuple(map(str, last.get("trials", ()))),
        tuple(
            FoundCondition(each["place"], each["profile"], each["arc"], each["openzfs"], each["state"])
            for each in last.get("conditions", ())
            if each["state"] != "untried"
        ),
        tuple(_beside(claim, last, trials)),
    )


def _beside(claim: known.Claim, last: Mapping[str, Any], trials: _Trials) -> list[FoundCounts]:
    """Return what a replay counted where the claim's time is too small to tell: on a hard disk if there is
    one, with the smallest ARC, in a replay of one recording."""
    if last.get("verdict") != Word.TOO_SMALL or not MEASURED[claim.metric].clock:
        return []
    replays = [
        each
        for each in last["conditions"]
        if each["place"] == REPLAY and each["ratios"] and len(each["trials"]) == 1 + len(claim.others)
    ]
    for each in sorted(replays, key=lambda one: (not one["profile"].startswith("hdd"), one["arc"])):
        ours, *others = map(trials.cited, each["trials"])
        if ours is None or None in others:
            continue
        mine, found = _counts(ours), []
        for side, trial in zip(claim.others, others, strict=True):
            theirs = {} if trial is None else _counts(trial)
            ratios = {key: stats.ratio(mine.get(key), theirs.get(key)) for key in BESIDE_TIME}
            found.append(FoundCounts(each["profile"], each["arc"], side.name, ratios))
        return found
    return []


def _ends(study: str, trials: _Trials) -> list[MeasuredEnd]:
    """Return the measured layouts of the last finished run of the ready study ``study``."""
    done = [
        r for r in trials.runs.values() if r.measured and r.status == "done" and r.study.get("name") == study
    ]
    if not study or not done:
        return []
    run = done[-1]
    results = collect(trials.of(run.id), basis(run))
    base = results.baseline
    if base is None:
        return []
    keys = ("ios", "bytes") if basis(run) == "emulated" else ("time",)
    found = []
    for each in results.layouts:
        ratios = tuple(
            EndRatio(key, 1.0) if each is base else _end(key, each.against[key])
            for key in keys
            if each is base or key in each.against
        )
        if ratios:
            cited = tuple(f"{run.id}/{number}" for number in each.trials)
            found.append(MeasuredEnd(each.name, base.name, ratios, basis(run), cited))
    return found


def _end(key: str, ratio: Ratio) -> EndRatio:
    return EndRatio(key, ratio.mean, *((ratio.low, ratio.high) if ratio.known else ()))


def _sweeps(kept: Collection[StudyTrials | None], trials: _Trials) -> list[RecordSizeSweep]:
    """Return the sweeps of record sizes among all stored replays, those of studies first: of each the one by
    the latest engine."""
    by: dict[tuple[str, str, str], list[tuple[Run, Trial]]] = {}
    for run in trials.runs.values():
        if run.measured or run.status != "done":  # the best of a part is not the best
            continue
        for trial in trials.of(run.id):
            if trial.ok:
                version = (run.trace_sha, trial.engine_version or "", trial.openzfs_version or "")
                by.setdefault(version, []).append((run, trial))
    jobs = {job.sha: (of.study, job) for of in kept if of is not None for job in of.jobs}
    found: dict[tuple[str, str, str, str], RecordSizeSweep] = {}
    for (sha, _, openzfs), replays in by.items():
        if sha in jobs:
            study, job = jobs[sha]
            here = thumb.sweeps(replays, job.sizes, _job_name(study, job.workload), job.workload)
        elif len(replays) >= thumb.FEWEST and (recorded := _recorded(replays[0][0])) is not None:
            workload, sizes = recorded
            here = thumb.sweeps(replays, sizes, workload or "a recording", workload)
        else:
            continue
        found |= {(sha, openzfs, one.sizes.role, one.condition): one for one in here}
    ran = {of.study for of in kept if of is not None}
    return sorted(
        found.values(), key=lambda each: (each.job.split(": ")[0] not in ran, each.job, each.condition)
    )


def _job_name(study: str, workload: str) -> str:
    return study if study == workload else f"{study}: {workload}"


def _recorded(run: Run) -> tuple[str, Mapping[str, RoleSizes]] | None:
    """Return the workload of what ``run`` replayed, and the sizes in it; None where the recording is gone."""
    try:
        trace = Trace.reopen(run.trace_path, run.trace_sha)
        info = trace.manifest.workload
        return "" if info is None else info.name, thumb.role_sizes(trace)
    except InputError:
        return None


def _machine() -> str:
    here = environment.collect()
    kernel = re.match(r"\d+(\.\d+)*", platform.release())
    return (
        f"{here['cpus']} × {here['cpu']}, {format_size(here['memory_bytes'] >> 30 << 30)} of memory, "
        f"{platform.system()} {kernel[0] if kernel else ''}".strip()
    )


def write(path: Path, found: FoundStudies) -> None:
    """Write ``found`` as a file that ``load`` reads; what stands there is replaced."""
    files.write(path, output.json_text(to_json(found), indent=1) + "\n")


def load(path: Path) -> FoundStudies:
    """Return what ``write`` wrote. Raises InputError for a file that is none, or of another version."""
    try:
        return from_json(FoundStudies, json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from None
    except KeyedError as error:
        where = ".".join(map(str, error.path))
        raise InputError(
            f"{path}: {where}: {error}; `ztune studies page --found` writes such a file"
        ) from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}; `ztune studies page --found` writes it") from None
