"""The few figures that a recommendation is headed with, and what they say of speed.

Three things have three names. *Disk work* is the busy time of the busiest disk, what iostat's utilisation
counts. *Waiting* is what threads are held up for: all the waits of the thread that waits longest, or the
latency of an operation. *Throughput* is operations per second; a replay only
predicts it, of jobs that were recorded as fast as they could go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ztune.advice.evidence import compare
from ztune.advice.job import measured_by
from ztune.advice.model import FigureName, Headline, Purchase, Side
from ztune.advice.trust import BUSY_SHARE
from ztune.analysis import units
from ztune.analysis.effects import ABSENT, settings_without
from ztune.analysis.metrics import number_at
from ztune.analysis.need import QUIET, SPREAD
from ztune.analysis.results import LayoutResult
from ztune.analysis.standing import Standing
from ztune.analysis.stats import ratio
from ztune.study.layout import default_setting
from ztune.trace.manifest import Manifest

# Name, label, and the metric; of metrics that tell the same the first that is known.
_Asked = tuple[FigureName, str, tuple[str, ...]]
_TOTALS = {"busy_s", "wait_s", "written", "cpu", "cpu_s"}  # of the whole job
_REPLAYED: tuple[_Asked, ...] = (
    ("disk work", "disk work", ("busy_s",)),
    ("waiting", "waiting, longest thread", ("wait_s",)),
    ("waiting", "waiting, median sync", ("sync_p50",)),
    ("waiting", "waiting, p99 operation", ("operation_p99",)),
    ("waiting", "waiting, p99 sync", ("sync_p99",)),
    ("space", "space", ("allocated",)),
    ("bytes written", "bytes written", ("written",)),
    ("CPU", "host's processor use", ("host_busy",)),
    ("CPU", "CPU for data", ("cpu",)),
    ("CPU", "CPU of the replay", ("cpu_s",)),
)
_MEASURED: tuple[_Asked, ...] = (
    ("throughput", "throughput, op/s", ("time",)),
    ("waiting", "waiting, mean latency", ("latency", "p50")),
    ("waiting", "waiting, p99 latency", ("p99",)),
    ("disk work", "disk work per op", ("busy",)),
    ("space", "space", ("space",)),
    ("bytes written", "bytes written per op", ("written",)),
    ("CPU", "CPU per op", ("cpu_all", "cpu")),
)
_TAILS = ("operation_p99", "sync_p99")  # of one replay the first that is known tells
LONGER_TAIL = 1.5
"""Replays' p99 that grows by less is not shown: in the median of a job's layouts they were up to 51 % off,
single ones more (docs/accuracy.md)."""
# Where seconds are those of no machine.
_EMULATED: tuple[_Asked, ...] = (
    ("disk I/Os", "disk I/Os per op", ("ios",)),
    ("space", "space", ("space",)),
    ("bytes written", "bytes written per op", ("written",)),
)


def headlines(now: Standing, here: LayoutResult, other: LayoutResult) -> list[Headline]:
    """Return the figures under ``here`` and ``other``, as far as both have them; all of one basis."""
    asked = {"modelled": _REPLAYED, "measured": _MEASURED, "emulated": _EMULATED}[now.basis]
    out: list[Headline] = []
    for name, label, keys in asked:
        known = [
            k for k in keys if all(r.value(k) is not None and k not in r.few_calls for r in (here, other))
        ]
        if name == "throughput" and now.pace is not None:
            continue  # the job's own rate, under every layout that keeps up
        if name == "CPU" and any(h.name == "CPU" for h in out):
            continue  # of an older recording or engine, where that is all there is
        for side in compare(here, other, now.within, known[:1]):
            per = " per op" if now.found.per_operation and side.metric in _TOTALS else ""
            shown: Side | None = side
            if name == "throughput":
                shown = _per_second(side)
            elif side.metric in _TAILS:
                shown = _longer(side, here, other)
            elif side.metric in {"cpu", "cpu_s"} and now.basis == "modelled":
                shown = _spread(side)
            elif side.metric == "host_busy":
                shown = side.model_copy(update={"matters": abs(side.other - side.here) > now.within})
            elif not side.here and not side.other:  # a job without a sync waits for none
                shown = None
            if shown is not None:
                out.append(Headline(name=name, label=label + per, side=shown))
    return out


def _per_second(side: Side) -> Side | None:
    """Return the time of an operation as operations per second."""
    if not side.here or not side.other or not side.ratio:
        return None
    return side.model_copy(
        update={
            "unit": "rate",
            "here": 1 / side.here,
            "other": 1 / side.other,
            "ratio": 1 / side.ratio,
            "low": None if not side.high else 1 / side.high,
            "high": None if not side.low else 1 / side.low,
        }
    )


def _longer(side: Side, here: LayoutResult, other: LayoutResult) -> Side | None:
    """Return a tail that grows by so much that a replay can tell: what medians and totals hide."""
    first = next(key for key in _TAILS if here.value(key) is not None and other.value(key) is not None)
    return side if side.metric == first and side.ratio is not None and side.ratio >= LONGER_TAIL else None


def _spread(side: Side) -> Side:
    """Return processor times of replays: those that differ by less than they scatter are the same."""
    apart = side.ratio is not None and max(side.ratio, 1 / (side.ratio or 1)) > SPREAD
    return side.model_copy(update={"matters": apart})


def meaning(now: Standing, found: Sequence[Headline], manifest: Manifest | None) -> str:
    """Return what the figures say of speed, as a sentence; "" where throughput is among them, or nothing."""
    if now.basis == "emulated" or now.baseline is None:
        return ""
    if now.basis == "measured":
        if now.pace is None:
            return ""
        return "The job has a set rate, which is its throughput: waiting is what a layout changes."
    if now.chosen is now.baseline:
        return ""
    waits = [h.side for h in found if h.name == "waiting"]
    spared = any(_less(h.side) for h in found if h.name == "disk work")
    share = _share_of_recording(now.baseline)
    if found and not spared and not any(map(_less, waits)):
        busiest = None if now.chosen is None else _share_of_recording(now.chosen)
        if busiest is not None and busiest < QUIET:
            return (
                f"The disks are at work for {units.show(busiest, 'share')} of the recorded time, so this "
                "is no matter of the job's pace; the gain is elsewhere."
            )
        return "Neither disk work nor waiting is less: the gain is elsewhere, and is not speed."
    if spared and waits and not any(map(_less, waits)):
        return "No thread waits less: this is room for more load, not speed."
    if share is not None and share < BUSY_SHARE:
        return (
            f"The recorded job waited for the disks in {units.show(share, 'share')} of its time at most: "
            "what it saves is room for more load, not speed."
        )
    if _paced(manifest):
        return "The recorded job has a set rate: its throughput stays as it is."
    speeds = [layout.value("speed") for layout in (now.chosen, now.baseline) if layout is not None]
    speed = ratio(speeds[0], speeds[-1])
    if speed is not None:
        return (
            f"Throughput {units.times(speed)} of the base's is predicted, not measured, and may be far off: "
            f"{measured_by(now.run, manifest)} measures it."
        )
    paces = [layout.value("pace") for layout in (now.chosen, now.baseline) if layout is not None]
    known = [units.show(pace, "share") for pace in paces if pace is not None]
    if len(known) == 2:
        here, there = known
        return (
            f"Predicted, not measured: {here} of the recorded pace, the base layout {there}; "
            f"{measured_by(now.run, manifest)} measures it."
        )
    return f"Throughput is not predicted: {measured_by(now.run, manifest)} measures it."


def _less(side: Side) -> bool:
    return side.matters and side.other < side.here


def _share_of_recording(base: LayoutResult) -> float | None:
    """Return modelled time over the recorded seconds of a layout; None where either is not known."""
    need, seconds = base.need, number_at(base.measure, "model", "trace_s")
    return None if need is None or not seconds else need.disks / seconds


def _paced(manifest: Manifest | None) -> bool:
    info = None if manifest is None else manifest.workload
    rate = None if info is None else info.parameters.get("rate")
    return isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0


def purchases(now: Standing, chosen: LayoutResult) -> list[Purchase]:
    """Return what each piece of hardware would change that layouts of the run take and that is not there."""
    by_hardware: dict[tuple[tuple[str, str], ...], list[LayoutResult]] = {}
    for place in now.to_buy:
        by_hardware.setdefault(tuple(sorted(place.to_buy.items())), []).append(place.result)
    own = [p.result for p in now.ranked]
    out = []
    for hardware, layouts in by_hardware.items():
        keys = {key for key, _ in hardware}
        rest: dict[frozenset[tuple[str, str]], list[LayoutResult]] = {}
        for one in own:
            rest.setdefault(settings_without(one, keys), []).append(one)
        pairs = [(c, o) for c in layouts for o in rest.get(settings_without(c, keys), ())]
        # The least different from the recommended layout, which is not different from itself.
        nearest = min(pairs, key=lambda pair: len(_apart(chosen, pair[1], ())), default=None)
        shown, beside = nearest or (layouts[0], chosen)
        differs = _apart(beside, shown, keys)
        found = headlines(now, beside, shown)
        out.append(
            Purchase(
                hardware=dict(hardware),
                layout=shown.name,
                hash=shown.hash,
                trials=list(shown.trials),
                beside=beside.name,
                differs=differs,
                headlines=found,
                sentence=_purchase(dict(hardware), "" if beside is chosen else beside.name, differs, found),
            )
        )
    return out


def _apart(one: LayoutResult, other: LayoutResult, hardware: Iterable[str]) -> dict[str, str]:
    """Return the settings of ``other`` that are not as in ``one``, without the hardware."""
    here, there = one.settings, other.settings
    return {
        key: there.get(key, default_setting(key) or ABSENT)
        for key in sorted({*here, *there})
        if here.get(key) != there.get(key) and key not in hardware
    }


def _purchase(
    hardware: Mapping[str, str], beside: str, differs: Mapping[str, str], found: Sequence[Headline]
) -> str:
    what = ", ".join(f"{k}={v}" for k, v in hardware.items())
    if differs:
        also = ", ".join(f"{k}={v}" for k, v in differs.items())
        what += f" (tried with {also}, not with the recommended layout)"
    elif beside:
        what += f" (beside {beside}, not the recommended layout)"
    return f"{what}: {moved(found)}."


def moved(found: Sequence[Headline]) -> str:
    """Return those of ``found`` that matter, as words: "disk work ×0.31; space ×1.20"."""
    said = "; ".join(
        f"{h.label} {units.times(h.side.ratio, h.side.low, h.side.high)}" for h in found if h.side.matters
    )
    return said or "nothing beyond the tolerance"
