"""Finds the rate at which a load keeps the processors as busy as was asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.jobs.job import WorkloadResult

STEP_SECONDS = 8.0
"""How long each rate is tried, times the dilation: longer than the five seconds after which OpenZFS begins a
transaction group by itself, so that each holds the work of one."""
_IDLE_SECONDS = 2.0
_STEPS = 7
_NEAR, _FAR = 0.02, 0.05
"""A share this near is as asked; one further off than the other is none that could be held."""

_KEPT = 0.9
"""A load that does a smaller share of what becomes due falls behind: it does not have that rate."""

Drive = Callable[[float, int], tuple[int, float]]
"""Runs the load at a rate (operations/s; 0: as fast as it goes), the nth time, for ``STEP_SECONDS``; returns
how many operations were done, and how many per second."""


@dataclass(frozen=True, slots=True)
class RateStep:
    """One rate that was tried."""

    rate: float
    """Operations/s that became due; 0: as fast as it goes."""
    per_second: float
    busy: float
    """Share of the processors' time."""
    operations: int

    @property
    def held(self) -> bool:
        """Whether the load kept up with the rate."""
        return self.per_second >= _KEPT * self.rate


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rate that was found, and how."""

    asked: float
    """Share of the processors' time."""
    busy: float
    rate: float
    """Operations/s."""
    processors: float
    """How many there were: those that ztune may use, or as many as its control group may."""
    idle: float
    """Share of their time that was taken without the load."""
    steps: tuple[RateStep, ...]

    @property
    def operations(self) -> int:
        """Operations of all steps."""
        return sum(step.operations for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Limit:
    """A control group that may use less than the processors there are."""

    usage: Path
    processors: float


class BusyProcessors:
    """The processors that the load may use: those of this process, or its control group's part of them."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._stat = proc / "stat"
        self._mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self._limit = _limit(proc / "self/cgroup", cgroups, len(self._mine))
        self.count = float(len(self._mine)) if self._limit is None else self._limit.processors

    def read(self) -> tuple[float, float]:
        """Return seconds at work and seconds in all, of all these processors together."""
        if self._limit is not None:
            text = self._limit.usage.read_text(encoding="ascii")
            used = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("usage_usec"))
            return used / 1e6, time.monotonic() * self._limit.processors
        busy = whole = 0.0
        for line in self._stat.read_text(encoding="ascii").splitlines():
            name, *words = line.split()
            if name in self._mine:
                # user nice system idle iowait irq softirq steal; guests are in user already.
                ticks = [int(word) for word in words[:8]]
                whole += sum(ticks)
                busy += sum(ticks) - sum(ticks[3:5])
        second = os.sysconf("SC_CLK_TCK")
        return busy / second, whole / second


def _limit(told: Path, cgroups: Path, processors: int) -> _Limit | None:
    """Return the nearest control group (version 2) around this process that has less than ``processors``."""
    try:
        line = next(text for text in told.read_text().splitlines() if text.startswith("0::"))
    except (OSError, StopIteration):
        return None
    where = cgroups / line[3:].lstrip("/")
    for folder in (where, *where.parents):
        if not folder.is_relative_to(cgroups):
            break
        try:
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            if quota != "max" and int(quota) / int(period) < processors:
                return _Limit(folder / "cpu.stat", int(quota) / int(period))
        except (OSError, ValueError):
            continue
    return None


def find(
    asked: float,
    drive: Drive,
    processors: BusyProcessors,
    *,
    sleep: Callable[[float], None] = time.sleep,
    whole_numbers: bool = False,
) -> Calibration:
    """Return the rate at which the processors are at work for the share ``asked`` of their time.

    The load runs as fast as it goes first; then the rate is drawn between a rate that is too low and one that
    is too high, by the straight line through both. All that is at work counts, the load's client and others
    of this host too.

    Raises:
        ZtuneError: the load can't be as high; other work is as high already; or no rate was near.
    """

    def measured(work: Callable[[], tuple[int, float]], rate: float) -> RateStep:
        before = processors.read()
        operations, per_second = work()
        after = processors.read()
        share = (after[0] - before[0]) / max(1e-9, after[1] - before[1])
        return RateStep(rate, per_second, min(1.0, max(0.0, share)), operations)

    def nothing() -> tuple[int, float]:
        sleep(_IDLE_SECONDS)
        return 0, 0.0

    idle = measured(nothing, 0.0)
    if idle.busy > asked - _NEAR:
        raise ZtuneError(
            f"the processors are {_percent(idle.busy)} busy before the load begins; "
            f"they can't be held at {_percent(asked)}: end what else runs there"
        )
    top = measured(lambda: drive(0.0, 0), 0.0)
    steps = [top]
    if top.busy < asked - _NEAR:
        raise ZtuneError(
            f"the load makes the processors {_percent(top.busy)} busy as fast as it goes, "
            f"at {top.per_second:.3g} operations/s; it can't hold them at {_percent(asked)}: ask for less, "
            "or for more clients"
        )
    low, high = (0.0, idle.busy), (top.per_second, top.busy)
    for nth in range(1, _STEPS + 1):
        slope = (asked - low[1]) / (high[1] - low[1]) if high[1] > low[1] else 0.5
        rate = low[0] + (high[0] - low[0]) * min(0.95, max(0.05, slope))
        rate = max(1.0, float(round(rate))) if whole_numbers else round(rate, 1) or 0.1
        step = measured(lambda rate=rate, nth=nth: drive(rate, nth), rate)  # type: ignore[misc]
        steps.append(step)
        if not step.held:
            high = (step.per_second, step.busy)
            continue
        if abs(step.busy - asked) <= _NEAR:
            break
        if step.busy < asked:
            low = (rate, step.busy)
        else:
            high = (rate, step.busy)
        if whole_numbers and high[0] - low[0] <= 1:
            break
    best = min(steps[1:], key=lambda step: (not step.held, abs(step.busy - asked)))
    if not best.held or abs(best.busy - asked) > _FAR:
        raise ZtuneError(
            f"no rate holds the processors at {_percent(asked)}: the nearest of {len(steps) - 1}, "
            f"{best.rate:g} operations/s, made them {_percent(best.busy)} busy"
            + ("" if best.held else f" and was not kept: {best.per_second:.3g} were done")
        )
    return Calibration(asked, best.busy, best.rate, processors.count, idle.busy, tuple(steps))


def result(found: Calibration, unit: str, **details: Any) -> WorkloadResult:
    """Return the result of a job that only looked for its rate: the operations of all steps, so that they can
    be proved, and the calibration in ``details``.
    """
    return WorkloadResult(
        seconds=STEP_SECONDS * len(found.steps),
        operations=found.operations,
        unit=unit,
        latency_ms={},
        details={"calibration": found.to_json(), **details},
    )


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
