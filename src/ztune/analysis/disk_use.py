"""How busy a trial's disks were over time, from the sums that its ``series`` probe took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ztune.analysis.results import LayoutResult

_MOST = 120  # intervals that are drawn: more are finer than the drawing


@dataclass(frozen=True)
class DiskRates:
    """What the disks of one group did in some time: per second, all of them together, but ``busy``."""

    busy: float | None
    """Share of the time that a disk was at work, the mean over the disks. None where nobody counted it. A
    modelled disk counts the work of a request when it comes, so an interval may hold more than its time."""
    queued: float | None
    """Requests that waited or were under way, the mean over time. None where nobody counted it."""
    wait_s: float | None
    """Seconds from a request to its end, the mean over requests. None without requests, or where nobody
    counted it."""
    operations: float
    """Reads, writes and flushes."""
    read_bytes: float
    write_bytes: float

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True)
class DiskUse:
    """The disks of one class in one pool."""

    name: str
    """Pool and class, such as ``tank data``."""
    disks: int
    edges: tuple[float, ...]
    """Seconds since the first reading: where the intervals begin and end, one more than there are."""
    intervals: tuple[DiskRates, ...]
    whole: DiskRates


def disk_use(series: Mapping[str, Sequence[float | None]], dilation: float = 1.0) -> tuple[DiskUse, ...]:
    """Return what the groups of disks in a series ``disks`` did; empty where it has less than two readings.

    The columns are ``POOL/CLASS-VDEV/DISK COUNTER``, sums since the window began, and ``t``. A mount's have
    ``busy_s``, the kernel's ``busy_ms`` and ``queue_ms``. Times are as if the disks were not slowed down by
    ``dilation``.
    """
    times = [float(t or 0.0) for t in series.get("t", ())]
    if len(times) < 2:
        return ()
    step = max(1.0, (len(times) - 1) / _MOST)
    last = len(times) - 1
    picked = sorted({min(last, round(i * step)) for i in range(round(last / step) + 1)} | {last})
    picked = [i for n, i in enumerate(picked) if n == 0 or times[i] > times[picked[n - 1]]]
    modelled = any(c.endswith(" busy_s") for c in series)
    # Instant disks keep no time.
    timed = not modelled or any(values[last] for c, values in series.items() if c.endswith(" busy_s"))
    groups: dict[tuple[str, str], list[str]] = {}
    for column in series:
        disk, _, counter = column.rpartition(" ")
        if counter == "reads":
            pool, _, name = disk.partition("/")
            groups.setdefault((pool, name.partition("-")[0]), []).append(disk)

    def rates(disks: Sequence[str], first: int, end: int) -> DiskRates:
        spent = max(1e-9, times[end] - times[first])

        def grown(counter: str) -> float:
            columns = [series[f"{d} {counter}"] for d in disks if f"{d} {counter}" in series]
            return sum((c[end] or 0.0) - (c[first] or 0.0) for c in columns)

        # The kernel counts a flush as a write as well.
        requests = grown("reads") + grown("writes") + (grown("flushes") if modelled else 0.0)
        busy = grown("busy_s") if modelled else grown("busy_ms") / 1e3
        queued = None if modelled else grown("queue_ms") / 1e3
        return DiskRates(
            busy=busy / spent / len(disks) if timed else None,
            queued=None if queued is None else queued / spent,
            wait_s=None if queued is None or not requests else queued / requests / dilation,
            operations=requests / spent * dilation,
            read_bytes=grown("read_bytes") / spent * dilation,
            write_bytes=grown("write_bytes") / spent * dilation,
        )

    return tuple(
        DiskUse(
            f"{pool} {class_}",
            len(disks),
            tuple((times[i] - times[0]) / dilation for i in picked),
            tuple(rates(disks, a, b) for a, b in pairwise(picked)),
            rates(disks, 0, last),
        )
        for (pool, class_), disks in groups.items()
    )


def median_trial(cell: LayoutResult, metric: str) -> int:
    """Return the number of the layout's trial in the middle by ``metric``; of the first that has it not."""
    values = cell.values.get(metric, {})
    numbers = dict(zip(cell.results, cell.trials, strict=True))
    known = sorted((value, block) for block, value in values.items() if block in numbers)
    return numbers[known[(len(known) - 1) // 2][1]] if known else cell.trials[0]
