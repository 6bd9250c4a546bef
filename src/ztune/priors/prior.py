"""What was best for loads like this: from stored runs and from those that ztune ships, without a recording.

docs/advice.md states the rule. A prior is a guess with its evidence, and never a measurement of the load that
was asked about.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, variance
from typing import Literal

from ztune.onhost.properties import PROPERTIES
from ztune.onhost.words import ROLES, DurabilityClass
from ztune.results.row import ResultRow
from ztune.study import advised
from ztune.units import counted

Disks = Literal["hdd", "ssd", "nvme"]
DISKS: dict[str, str] = {"hdd": "hdd-7200", "ssd": "ssd-sata", "nvme": "nvme"}
"""What disks are called on the command line → the profile that stands for them."""
RAIDS = ("stripe", "mirror", "raidz1", "raidz2", "raidz3")
_CLASSES = {
    "hdd-7200": "hdd", "hdd-10k": "hdd", "own-hdd": "hdd", "usb-slow": "usb",
    "ssd-sata": "ssd", "flash-card": "ssd", "nvme": "nvme",
}  # fmt: skip
_DEVICES = {"slog", "l2arc", "special"}
WITHIN = 0.05
"""Times and sizes nearer than that count as equal, as an objective does by default."""
KEPT = ("modelled_s", "allocated", "written", "read", "time", "space")
"""The metrics that an answer takes, of those in a results file."""
_TIME, _SPACE, _WRITTEN = ("modelled_s", "time"), ("allocated", "space"), ("written",)
# What no prior recommends: it loses more at a power cut, or damage passes unseen, or less of the metadata is
# there twice; and what a short replay flatters (docs/recommendation.md, logbias).
_NEVER = {
    "sync": {"disabled"},
    "checksum": {"off"},
    "logbias": {"throughput"},
    "redundant_metadata": {"most", "some", "none"},
}
_SHOWN = ("recordsize", "compression")
"""Properties that an answer always names, also at their default."""

Key = tuple[tuple[str, str], ...]
"""The properties of roles that differ from ZFS's defaults, sorted: what a layout is, whatever its disks."""


@dataclass(frozen=True)
class PriorFigures:
    """Of one layout in one run, medians: seconds and bytes; of the run's own kind."""

    time: float
    space: float
    written: float


@dataclass(frozen=True)
class PriorRun:
    """One run as a prior sees it: under which conditions, and what each layout took.

    ``load``: what was run, the same for runs of one load on several disks. ``disks``: hdd, ssd, nvme, flash
    (of a kind that is not told), or "" where the disks were real. ``durability``: the class of all layouts.
    ``cover``: bytes on disk over those of the ARC. ``roles``: those with a dataset of their own; ``shared``:
    other roles → the role whose dataset they share. ``unsure``: half of the 95 % interval of a layout's time,
    as a share of it; None: nothing tells, since each was measured once.
    """

    name: str
    load: str
    workload: str
    basis: str
    own: bool
    disks: str
    raid: str
    durability: str
    cover: float | None
    roles: tuple[str, ...]
    shared: Mapping[str, str]
    figures: Mapping[Key, PriorFigures]
    unsure: float | None = 0.0

    def off(self, key: Key) -> float | None:
        """Return the time of a layout as a multiple of the least in this run; None where it was not tried."""
        here = self.figures.get(key)
        return None if here is None else here.time / min(one.time for one in self.figures.values())


@dataclass(frozen=True)
class PriorQuestion:
    """What is asked. ``memory``, ``size``: bytes of the machine's memory and of the database; None: not told.

    ``raid``: how the disks work together.
    """

    database: str
    disks: Disks
    memory: int | None = None
    size: int | None = None
    raid: str = "stripe"

    @property
    def cover(self) -> float | None:
        """The data over an ARC of half the memory, OpenZFS's default on Linux until 2.2; None: not known."""
        return None if self.size is None or not self.memory else self.size / (self.memory / 2)


@dataclass(frozen=True)
class OffBest:
    """How far a choice was from the best: on ``loads`` that it did not see, ``runs`` of them."""

    loads: int
    runs: int
    near: int
    worst: float


@dataclass(frozen=True)
class SetInPrint:
    """A set of advice, as far as it speaks of the database. ``times``: its time over that of the answer in
    the runs that tried it, median; ``tried``: how many those are; ``weaker``: what of it no prior recommends.
    """

    name: str
    title: str
    as_of: str
    url: str
    settings: Mapping[str, str]
    tried: int
    times: float | None
    weaker: tuple[str, ...]


@dataclass(frozen=True)
class Prior:
    """An answer. ``settings``: role → property → value, empty where nothing was run that would say.

    ``runs``: those that it rests on. ``time``, ``space``, ``written``: over those of ZFS's defaults in each
    of them, as median, least and most. ``off``: how far from the best where the load was left out; None:
    there is only one load. ``notes``: what stands in for what was asked; ``unknown``: what nothing tells.
    """

    question: PriorQuestion
    settings: Mapping[str, Mapping[str, str]]
    runs: Sequence[PriorRun]
    time: tuple[float, float, float] | None
    space: tuple[float, float, float] | None
    written: tuple[float, float, float] | None
    off: OffBest | None
    in_print: Sequence[SetInPrint]
    notes: Sequence[str] = field(default_factory=list)
    unknown: Sequence[str] = field(default_factory=list)


def key_of(settings: Mapping[str, object]) -> Key:
    """Return what of a layout's factors a prior looks at."""
    found = []
    for factor, value in settings.items():
        role, _, name = factor.partition(".")
        if role in ROLES and name in PROPERTIES and str(value) != PROPERTIES[name].default:
            found.append((factor, str(value)))
    return tuple(sorted(found))


def weaker(key: Key) -> tuple[str, ...]:
    """Return the settings in ``key`` that no prior recommends, as "data.sync=disabled"."""
    return tuple(f"{k}={v}" for k, v in key if v in _NEVER.get(k.partition(".")[2], ()))


def runs_of(rows: Iterable[ResultRow], *, own: bool) -> list[PriorRun]:
    """Return the runs in ``rows`` that a prior can use; ``own``: they are the user's.

    Left out are runs with a log, a special or a cache device, those on emulated or instant disks, those that
    a power cut may damage, and those without a result of their base layout. Of the others each layout counts
    that is of the base's durability class and differs from it in properties of roles alone.
    """
    by_run: dict[tuple[str, str], list[ResultRow]] = {}
    for row in rows:
        if row.status == "ok" and not row.twin:
            by_run.setdefault((row.origin, row.run), []).append(row)
    return [run for several in by_run.values() if (run := _run(several, own)) is not None]


def _run(rows: Sequence[ResultRow], own: bool) -> PriorRun | None:
    base = next((row for row in rows if row.baseline), None)
    if base is None or base.run_basis == "emulated" or base.disks == "instant":
        return None
    if base.durability == DurabilityClass.CORRUPT.value:
        return None
    if any(k.rpartition(".")[2] in _DEVICES and v != "none" for k, v in base.settings.items()):
        return None
    values: dict[Key, list[ResultRow]] = {}
    for row in rows:
        key = key_of(row.settings)
        if _rest(row) == _rest(base) and row.durability == base.durability:
            values.setdefault(key, []).append(row)
    figures = {key: found for key, several in values.items() if (found := _figures(several)) is not None}
    if key_of(base.settings) not in figures:
        return None
    first = base.disks.partition(" | ")[0].split()
    space = _named(base, _SPACE)
    given = {k: v for k, v in base.parameters.items() if k != "arc"}
    return PriorRun(
        name=base.run,
        load=" ".join([base.workload, *(f"{k}={v}" for k, v in sorted(given.items()))]),
        workload=base.workload,
        basis=base.run_basis,
        own=own,
        disks=next((_CLASSES[word] for word in first if word in _CLASSES), base.device),
        raid=first[0] if first and first[0] in RAIDS else "stripe",
        durability=base.durability,
        cover=space / base.arc if space and base.arc else None,
        roles=tuple(role for role in ROLES if f"{role}.pool" in base.settings),
        shared={role: str(w) for role in ROLES if (w := base.settings.get(f"{role}.with")) is not None},
        figures=figures,
        unsure=_unsure(values.values(), base.run_basis),
    )


def _unsure(layouts: Iterable[Sequence[ResultRow]], basis: str) -> float | None:
    """Return ``PriorRun.unsure``, by how far the trials of one layout are from each other in all of them.

    A replay gives the same figures each time: what it was made of once is sure.
    """
    spreads, counts = [], []
    for rows in layouts:
        times = [math.log(v) for row in rows if (v := _named(row, _TIME)) is not None and v > 0]
        if len(times) > 1:
            spreads.append(variance(times))
            counts.append(len(times))
    if not spreads:
        return 0.0 if basis == "modelled" else None
    return 2 * math.sqrt(fmean(spreads) / median(counts))


def _rest(row: ResultRow) -> dict[str, object]:
    """Return the factors that are no properties of roles: disks, ARC, module parameters, the job."""
    return {
        k: v
        for k, v in row.settings.items()
        if not (k.partition(".")[0] in ROLES and k.partition(".")[2] in PROPERTIES)
    }


def _named(row: ResultRow, names: Sequence[str]) -> float | None:
    return next((m.value for m in row.metrics if m.name in names), None)


def _figures(rows: Sequence[ResultRow]) -> PriorFigures | None:
    found = []
    for names in (_TIME, _SPACE, _WRITTEN):
        values = [v for row in rows if (v := _named(row, names)) is not None]
        if not values or median(values) <= 0:
            return None
        found.append(float(median(values)))
    return PriorFigures(*found)


def likeness(question: PriorQuestion, run: PriorRun) -> float:
    """Return how much a run counts, 0: not at all.

    Other disks don't count, real ones may be of any kind. A run on whose memory the data fitted counts a
    quarter where yours don't, and the other way round; so does another arrangement of disks a half. Runs of
    your own count four times, measured ones twice, and each less the less sure its times are: half where they
    are sure to ``WITHIN``, a fifth where that isn't known.
    """
    like = 1.0
    if run.disks == "flash":
        like *= 0.0 if question.disks == "hdd" else 0.5
    elif run.disks not in ("", question.disks):
        return 0.0
    if question.cover is not None and run.cover is not None and (question.cover > 1) != (run.cover > 1):
        like *= 0.25
    if run.raid != question.raid:
        like *= 0.5
    like /= 1 + ((2 * WITHIN if run.unsure is None else run.unsure) / WITHIN) ** 2
    return like * (4 if run.own else 1) * (2 if run.basis == "measured" else 1)


def weigh(question: PriorQuestion, runs: Sequence[PriorRun]) -> list[tuple[PriorRun, float]]:
    """Return the runs that count, with their weights: several of one load on the same disks count as one."""
    several = Counter(_alike(run) for run in runs)
    return [(run, like / several[_alike(run)]) for run in runs if (like := likeness(question, run)) > 0]


def _alike(run: PriorRun) -> tuple[object, ...]:
    return run.load, run.basis, run.own, run.disks, run.raid


def choose(runs: Sequence[tuple[PriorRun, float]]) -> Key | None:
    """Return the layout that was best over ``runs``, each with its weight; None where none was tried.

    Only what was tried in nearly as much of the weight as any counts. First the least time, as the mean of
    its logarithms over the best of each run; within 5 % of that the least space, then the fewest bytes
    written, then the fewest settings.
    """
    tried: dict[Key, float] = {}
    for run, weight in runs:
        for key in run.figures:
            if not weaker(key):
                tried[key] = tried.get(key, 0.0) + weight
    if not tried:
        return None
    left = [key for key, weight in tried.items() if weight >= 0.75 * max(tried.values())]
    for read in _ORDER:
        scores = {key: _mean(runs, key, read) for key in left}
        least = min(scores.values())
        left = [key for key in left if scores[key] <= least + math.log1p(WITHIN)]
    return min(left, key=lambda key: (len(key), key))


_ORDER: tuple[Callable[[PriorFigures], float], ...] = (
    lambda f: f.time,
    lambda f: f.space,
    lambda f: f.written,
)


def _mean(runs: Sequence[tuple[PriorRun, float]], key: Key, read: Callable[[PriorFigures], float]) -> float:
    """Return the weighted mean of the logarithm of a figure over the least of each run that has ``key``."""
    total = weights = 0.0
    for run, weight in runs:
        if key in run.figures:
            least = min(read(f) for k, f in run.figures.items() if not weaker(k))
            total += weight * math.log(read(run.figures[key]) / least)
            weights += weight
    return total / weights


def left_out(runs: Sequence[tuple[PriorRun, float]]) -> OffBest | None:
    """Return how far the choice is from the best of a load that it is made without, for each load in turn.

    None with fewer than two loads.
    """
    loads = list(dict.fromkeys(run.load for run, _ in runs))
    offs = []
    for load in loads if len(loads) > 1 else ():
        key = choose([(run, weight) for run, weight in runs if run.load != load])
        offs += [
            off for run, _ in runs if run.load == load and key is not None
            if (off := run.off(key)) is not None
        ]  # fmt: skip
    if not offs:
        return None
    return OffBest(len(loads), len(offs), sum(off <= 1 + WITHIN for off in offs), max(offs))


def answer(question: PriorQuestion, runs: Sequence[PriorRun]) -> Prior:
    """Return the answer that ``runs``, all of the database asked about, support. Raises InputError for a set
    of advice that can't be read.
    """
    weighed = weigh(question, runs)
    notes, there = [], sorted({run.disks for run in runs if run.disks})
    if runs and not weighed:
        # Rather the wrong disks than nothing, and said so.
        weighed = [(run, 1.0) for run in runs]
        notes.append(f"no run was on {question.disks}; runs on {' and '.join(there)} stand in")
    others = choose([(run, weight) for run, weight in weighed if not run.own])
    silent = [run for run, _ in weighed if run.own and others is not None and others not in run.figures]
    # Else ZFS's defaults, which all of them tried, would win over what these did not.
    weighed = [(run, weight) for run, weight in weighed if run not in silent]
    key = choose(weighed)
    used = [run for run, _ in weighed] if key is not None else []
    if used and all(run.raid != question.raid for run in used):
        stand_in = f"runs on {_RAID_WORDS[used[0].raid]} stand in"
        notes.append(f"no run was on {_RAID_WORDS[question.raid]}; {stand_in}")
    if silent:
        notes.append(
            f"{counted(len(silent), 'run')} of yours did not try what the others favour: not counted"
        )
    if others is not None and others != key:
        without = ", ".join(f"{k}={v}" for k, v in others) or "ZFS's defaults"
        notes.append(f"your own runs decide: by the others alone it would be {without}")
    return Prior(
        question=question,
        settings={} if key is None else _by_role(key, used),
        runs=used,
        time=_against_defaults(used, key, _ORDER[0]),
        space=_against_defaults(used, key, _ORDER[1]),
        written=_against_defaults(used, key, _ORDER[2]),
        off=left_out(weighed),
        in_print=list(_in_print(question.database, used, key)),
        notes=notes,
        unknown=list(_unknown(question, used, key or ())),
    )


_RAID_WORDS = {
    "stripe": "disks without redundancy", "mirror": "a mirror",
    "raidz1": "RAID-Z1", "raidz2": "RAID-Z2", "raidz3": "RAID-Z3",
}  # fmt: skip


def _by_role(key: Key, runs: Sequence[PriorRun]) -> dict[str, dict[str, str]]:
    """Return role → property → value: what ``key`` sets, and what is always said."""
    roles = [role for role in ROLES if role != "source" and any(role in run.roles for run in runs)]
    found = {role: {name: PROPERTIES[name].default for name in _SHOWN} for role in roles}
    for factor, value in key:
        role, _, name = factor.partition(".")
        if role in found:
            found[role][name] = value
    return found


def _against_defaults(
    runs: Sequence[PriorRun], key: Key | None, read: Callable[[PriorFigures], float]
) -> tuple[float, float, float] | None:
    ratios = [
        read(run.figures[key]) / read(run.figures[()])
        for run in runs
        if key is not None and key in run.figures and () in run.figures
    ]
    return (median(ratios), min(ratios), max(ratios)) if ratios else None


def _in_print(database: str, runs: Sequence[PriorRun], chosen: Key | None) -> Iterator[SetInPrint]:
    for name, said in advised.sets_of(database).items():
        roles = said.roles()
        settings = {
            f"{role}.{prop}": str(one.value) for role, values in roles.items() for prop, one in values.items()
        }
        settings |= {f"tunable.{key}": str(one.value) for key, one in said.tunables.items()}
        settings |= {f"database.{key}": str(one.value) for key, one in said.settings.items()}
        times = []
        for run in runs:
            # As it stands on the datasets that the run had.
            key = key_of({k: v for k, v in _canonical(settings).items() if k.partition(".")[0] in run.roles})
            if chosen is not None and key in run.figures and chosen in run.figures and not said.tunables:
                times.append(run.figures[key].time / run.figures[chosen].time)
        whole = advised.find(name)
        yield SetInPrint(
            name=name,
            title=whole.title,
            as_of=whole.as_of,
            url=whole.url,
            settings=settings,
            tried=len(times),
            times=median(times) if times else None,
            weaker=weaker(key_of(_canonical(settings))),
        )


def _canonical(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the properties in ``settings`` as ZFS writes them: `on` is lz4."""
    found = {}
    for factor, value in settings.items():
        role, _, name = factor.partition(".")
        if role in ROLES:
            found[factor] = PROPERTIES[name].parse(value)
    return found


def _unknown(question: PriorQuestion, runs: Sequence[PriorRun], key: Key) -> Iterator[str]:
    """Yield what nothing here tells, as sentences without an end."""
    yield "what a power cut loses, which your database's own settings decide too" + _lost(runs)
    if question.cover is None:
        missing = [flag for flag, v in (("--memory", question.memory), ("--size", question.size)) if not v]
        yield f"whether your data fit into the memory (add {' and '.join(missing)})"
    if any(value.startswith(("zstd", "gzip")) for _, value in key):
        yield "what compressing takes of the processors"
    if question.raid.startswith("raidz"):
        yield "the room that small records take on RAID-Z"
    if runs and all(run.basis == "modelled" for run in runs):
        what = "seconds (modelled; on flash a hint)" if question.disks != "hdd" else "seconds (modelled)"
        yield what


def _lost(runs: Sequence[PriorRun]) -> str:
    """Return what those of the runs lost, in brackets, where that is more than nothing; else ""."""
    classes = {run.durability for run in runs}
    if DurabilityClass.NOT_KNOWN.value in classes:
        return " (in these runs: not known)"
    if DurabilityClass.LAST_SECONDS.value in classes:
        return " (in these runs: the last seconds of commits)"
    return ""
