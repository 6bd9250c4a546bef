"""The recordings of a screening, each ready to be replayed; which of them each trial takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ztune.analysis.sampled import ROWS
from ztune.errors import InputError
from ztune.places.engine import Engine
from ztune.places.engine_run import memory_bytes
from ztune.places.executor import Executor, LocalExecutor
from ztune.places.neighbour import Neighbour, joined
from ztune.places.replay import Replay, prepare
from ztune.runs.options import ScreenOptions
from ztune.runs.recordings import JobKey, key_of
from ztune.runs.sampling_rate import recorded_rate, sampling_rate
from ztune.store.records import BOTH, HALF_ARC, NEIGHBOUR, PART, TWICE_ARC, Trial
from ztune.study import Layout, Study
from ztune.study.layout import MIN_ARC
from ztune.trace.inputs import Inputs
from ztune.trace.reader import Trace
from ztune.units import format_size

_OF_ARC = {HALF_ARC: 0.5, TWICE_ARC: 2.0}
"""The conditions with another ARC, as shares of the layout's."""
_PARTS = 4
"""How many samples that have no region in common are replayed of the base and of the layout to recommend,
where a part is: what they differ by is how far a figure of one may be from that of all."""


class RunReplays:
    """The recordings of a run, each ready to be replayed. ``several``: whether layouts have their own.
    ``warnings``: what has to be said of them."""

    def __init__(
        self,
        study: Study,
        trace: Trace,
        others: Mapping[JobKey, Trace],
        engine: Engine,
        options: ScreenOptions,
        seed: int,
        executor: Executor | None = None,
    ) -> None:
        """Read the recordings: ``trace``, of the base's job, ``others``, and that of a neighbour.
        ``executor``: where they are replayed; None: on this machine."""
        rate = sampling_rate(study, trace, options)

        def replay(one: Trace, inputs: Inputs | None = None, part: int = 0) -> Replay:
            return Replay(
                one, engine, inputs=inputs, rate=replace(rate, part=part), load=options.load,
                timeout_s=options.timeout_s, cores=options.cores, processor=options.processor,
            )  # fmt: skip

        base = key_of(study.layout)
        recordings = {base: trace, **others}
        self.study, self.several = study, len(recordings) > 1
        self._by_job = {key: replay(one) for key, one in recordings.items()}
        self._parts = {  # what replays other samples than the run's
            (f"{PART}{part}", key): replay(one, part=part)
            for part in range(1, min(_PARTS, rate.of // recorded_rate(trace)))
            for key, one in recordings.items()
        }
        first = self._by_job[base]
        self.rate = first.rate
        self.warnings = list(dict.fromkeys(_warnings(self._by_job.values())))
        self._beside = {}
        if options.beside:
            neighbour = Neighbour.kept(options.beside)
            neighbour.check(trace)
            _check_beside(study, others)
            self.warnings += neighbour.warnings(trace)
            other = prepare(neighbour.trace)
            for condition, alone in ((BOTH, False), (NEIGHBOUR, True)):
                inputs = joined(trace, first.inputs, neighbour, other, alone=alone)
                self._beside[condition] = replay(trace, inputs)
        self.executor = executor or LocalExecutor()
        self.executor.open(first, first.spec(study, study.layout, seed), options.jobs)
        for one in (*self._by_job.values(), *self._beside.values(), *self._parts.values()):
            one.jobs = self.executor.at_once

    def to(self, layout: Layout) -> Replay:
        """Return what replays the recording that belongs to ``layout``. Raises InputError without one."""
        found = self._by_job.get(key_of(layout))
        if found is None:
            raise InputError(
                f'layout "{layout.name}" of study "{self.study.name}" has a job of its own, of '
                "which there is no recording"
            )
        return found

    def of_trial(self, trial: Trial) -> Replay:
        """Return what replays ``trial``."""
        part = self._parts.get((trial.condition, key_of(trial.layout)))
        return part or self._beside.get(trial.condition) or self.to(trial.layout)

    def spec(self, trial: Trial, seed: int) -> dict[str, Any]:
        """Return the engine's spec of ``trial``."""
        layout = trial.layout
        if trial.condition in _OF_ARC:
            layout = replace(layout, arc=int(layout.arc * _OF_ARC[trial.condition]))
        return self.of_trial(trial).spec(self.study, layout, seed)

    def sizes_of_arc(self, layout: Layout) -> list[str]:
        """Return the conditions under which ``layout`` can be replayed with another ARC: OpenZFS takes no
        smaller one than it takes, and the engines no more memory than there is."""
        room = self.executor.room
        return [
            condition
            for condition, times in _OF_ARC.items()
            if (part := int(layout.arc * times) // self.rate.of) >= MIN_ARC
            and memory_bytes({"arc_max": part}) <= room
        ]

    def rows_by_index(self) -> dict[str, float]:
        """Return what a run of a sample keeps in its outcome of rows read by an index, on hard disks."""
        profiles = {v.profile for pool in self.study.layout.pools for v in pool.vdevs}
        if self.rate.of == 1 or not any(self.study.profiles[name].rotational for name in profiles):
            return {}
        from ztune.trace import sampling  # here, as it takes NumPy

        return {ROWS: max(sampling.asked_ahead(one.inputs.ops) for one in self._by_job.values())}

    @property
    def conditions(self) -> tuple[str, ...]:
        """Under which conditions beside the usual ones the best layouts are replayed."""
        return tuple(self._beside)

    @property
    def parts(self) -> tuple[str, ...]:
        """Under which conditions other samples are replayed."""
        return tuple(dict.fromkeys(condition for condition, _ in self._parts))

    def check(self, layout: Layout) -> None:
        """Raise InputError if no recording can answer what ``layout`` asks, or no engine has its ARC."""
        self.to(layout).check(self.study, layout)
        need, room = memory_bytes({"arc_max": layout.arc // self.rate.of}), self.executor.room
        if need > room:
            raise InputError(
                f'an engine for layout "{layout.name}" with an ARC of {format_size(layout.arc)} takes about '
                f"{need >> 20} MiB of memory, and each of {self.executor.at_once} at once may take "
                f"{room >> 20}; use fewer --jobs, a smaller ARC, a smaller --sample, or free memory"
            )

    def recording(self, layout: Layout) -> tuple[Path, str] | None:
        """Return what a trial notes of its recording; None: it is the run's."""
        trace = self.to(layout).trace
        return (trace.path.resolve(), trace.sha) if self.several else None

    def work(self, layout: Layout) -> dict[str, Any]:
        """Return how much the recorded job of ``layout`` did, where that is known: layouts whose jobs differ
        are compared by it."""
        info = self.to(layout).trace.manifest.workload
        if info is None:
            return {}
        done = info.result.get("operations")
        if isinstance(done, bool) or not isinstance(done, int | float) or done <= 0:
            return {}
        return {"job": {"operations": done, "unit": str(info.result.get("unit") or "operation")}}


def _check_beside(study: Study, others: Mapping[JobKey, Trace]) -> None:
    if others:
        raise InputError(
            f'study "{study.name}" has layouts with recordings of their own, and --with replays one beside '
            "another; leave out what changes the job (`workload.*`, `database.*`)"
        )
    if study.layout.age is not None:
        raise InputError(
            f'study "{study.name}" has pools with an age, and --with replays on new pools; leave out one of '
            "the two"
        )


def _warnings(replays: Iterable[Replay]) -> Iterable[str]:
    for replay in replays:
        manifest = replay.trace.manifest
        yield from (w.message for w in manifest.warnings)
        yield from replay.inputs.warnings
        if manifest.dropped:
            yield f"{manifest.dropped} events were lost while recording: the trace is incomplete"
