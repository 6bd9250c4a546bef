"""Does fio in the lab's guest meet the profile of its disk? Runs loads and compares with the formulas."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ztune import temporary
from ztune.disk import fio, server
from ztune.disk.expected import LINK_MB_S, Expected, Pattern, ReadWrite, cached_writes, expected
from ztune.disk.fio import Figures, FioJob
from ztune.errors import ZtuneError
from ztune.study.profile import FlashProfile, HddProfile, cache_bytes
from ztune.temporary import Temporary

if TYPE_CHECKING:
    from ztune.lab import Guest

SIZE = 64 << 30
"""Bytes of the disks: small gaps, which pass under the head, are rare on it."""
ALONE_SHARE = 0.01
"""What the guest's own work on a request may be of the disk's time, one at a time: it adds up. It is taken
from a disk that never lets the guest sleep; waking up for each answer costs up to five times as much."""
DEEP_SHARE = 0.05
"""The same with many at a time, where the guest works while the disk does."""
BATCHED_SHARE = 0.008
"""The same for many writes at a time to flash: they come back to the guest in batches, and while it sends the
next ones the disk's bus is idle. At a share of 5 % that costs 13 % of the rate, at 1 % 9, at 0.5 % 8."""
FILLED_MB = 8
"""Write cache of an hdd where the load is writes into it, MiB: a full cache's rate does not depend on its
size (`expected`), and this one is full in a few seconds of an emulated guest, not in a minute."""
BUSY_SHARE = 0.05
"""Mean lateness of the disk's answers, of the time of a request, from which on nothing can be judged."""
BUSY_LOAD = 1.5
"""Programs that want to run, for each CPU of this machine, from which on the guest is starved of its own."""
_NULL = FlashProfile(
    name="null",
    kind="flash",
    size=SIZE,
    read_mb_s=50000,
    write_mb_s=50000,
    channels=64,
    read_us=1,
    write_us=1,
)


@dataclass(frozen=True)
class Case:
    """One load."""

    pattern: Pattern
    rw: ReadWrite
    bs: int
    qd: int
    fsync: bool = False

    def __str__(self) -> str:
        text = f"{self.pattern} {self.rw} {self.bs >> 10}K QD{self.qd}"
        return text + (" + flush" if self.fsync else "")

    def job(self, seconds: float, warm_s: float = 0.0) -> FioJob:
        """Return it as a job of ``seconds`` over the whole disk."""
        rw = ("rand" if self.pattern == "random" else "") + self.rw
        return FioJob(rw, self.bs, self.qd, seconds, 0, SIZE, fsync=self.fsync, warm_s=warm_s)


CASES = (
    *(Case("random", rw, 8192, qd) for rw in ("read", "write") for qd in (1, 16)),
    *(Case("sequential", rw, 131072, qd) for rw in ("read", "write") for qd in (1, 16)),
    Case("random", "write", 8192, 1, fsync=True),
    Case("sequential", "write", 8192, 1, fsync=True),
)


@dataclass(frozen=True)
class CaseResult:
    """What runs of a case gave; rates and times are the disk's, without dilation."""

    case: Case
    dilation: float
    expected: Expected
    iops: list[float]
    flush_ms: list[float]
    late_share: float
    """Mean lateness of the disk's answers as a share of the time of a request."""
    load: float
    """Programs that wanted to run, for each CPU of this machine."""

    @property
    def median(self) -> float:
        """Requests a second."""
        return statistics.median(self.iops)

    @property
    def spread(self) -> float:
        """Of the runs: (most - least) / median."""
        return (max(self.iops) - min(self.iops)) / self.median

    @property
    def error(self) -> float:
        """Of the median: measured / expected - 1; with flushes the larger one of rate and flush."""
        found = [self.median / self.expected.iops - 1]
        if self.flush_ms and self.expected.flush_ms:
            found.append(statistics.median(self.flush_ms) / self.expected.flush_ms - 1)
        return max(found, key=abs)

    @property
    def busy(self) -> bool:
        """Whether this machine was too busy to judge by."""
        return self.late_share > BUSY_SHARE or self.load > BUSY_LOAD


def _cached(profile: HddProfile | FlashProfile, case: Case) -> bool:
    """Whether writes are acknowledged long before the head comes to them."""
    return profile.kind == "hdd" and case.rw == "write" and not case.fsync and cache_bytes(profile) > 0


Plug = Callable[[server.DiskServer, str, int], AbstractContextManager[tuple["Guest", str]]]
"""Gives a guest a disk of that serial and rotation for a while: the guest, and the disk's path in it."""


def plugged_into(guest: Guest) -> Plug:
    """Return how disks come into a guest that is up."""

    @contextmanager
    def plug(disk: server.DiskServer, serial: str, rotation: int) -> Iterator[tuple[Guest, str]]:
        yield guest, guest.add_disk(disk.socket, serial, rotation)
        guest.remove_disk(serial)

    return plug


class Bench:
    """Disks in a guest, one for each run."""

    def __init__(self, plug: Plug) -> None:
        self._plug = plug
        self._folder = Temporary.make(temporary.DISKS, temporary.disk())
        self._count = 0
        self._costs: dict[tuple[int, bool, bool], float] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.remove()

    def run(
        self, profile: HddProfile | FlashProfile, dilation: float, job: FioJob
    ) -> tuple[Figures, dict[str, float]]:
        """Run ``job`` on a new disk; return fio's figures in real time and the disk's counters."""
        self._count += 1
        name = f"f{self._count}"
        folder = self._folder.path
        backing = folder / f"{name}.img"
        disk = server.start(profile, SIZE, backing, folder / name, dilation=dilation)
        try:
            with self._plug(disk, name, round(profile.rpm) if profile.kind == "hdd" else 1) as (guest, path):
                disk.reset()
                words = ["fio", *fio.arguments(path, job)]
                done = guest.run(words, timeout=job.seconds + job.warm_s + 120)
                stats = disk.stats()
            found = fio.parse(path, done.stdout.decode(), done.stderr.decode(), done.returncode)
        finally:
            disk.kill()
            backing.unlink(missing_ok=True)
        return found, stats

    def cost_ms(self, case: Case) -> float:
        """Return what the guest itself needs for a request, real ms, on a disk that needs nothing."""
        key = (case.bs, case.qd > 1, case.fsync)
        if key not in self._costs:
            found, _ = self.run(_NULL, 1.0, case.job(2.0))
            self._costs[key] = 1e3 / found.iops
        return self._costs[key]

    def dilation(self, profile: HddProfile | FlashProfile, case: Case) -> float:
        """Return the least dilation at which the guest's own work hardly counts."""
        each = 1e3 / expected(profile, case.rw, case.pattern, case.bs, case.qd, fsync=case.fsync).iops
        if profile.kind == "flash" and case.rw == "write" and case.qd > 1:
            share = BATCHED_SHARE
        else:
            # Where writes wait in the cache, the guest works while the disk does, too.
            share = ALONE_SHARE if case.qd == 1 and not _cached(profile, case) else DEEP_SHARE
        return float(max(1, math.ceil(self.cost_ms(case) / share / each)))

    def _fill_s(self, profile: HddProfile | FlashProfile, case: Case, dilation: float) -> float:
        """Return seconds until the write cache is full: until then it hides the disk."""
        accept = profile.overhead_us / 1e3 + case.bs / LINK_MB_S / 1e3
        into = max(accept * dilation / case.qd, self.cost_ms(case))
        each = 1e3 / expected(profile, case.rw, case.pattern, case.bs, case.qd).iops * dilation
        count = min(cached_writes(profile), cache_bytes(profile) // case.bs)
        return min(1.0 + 1.5 * count * into / 1e3 / max(1 - into / each, 0.1), 60.0)

    def outcome(
        self,
        profile: HddProfile | FlashProfile,
        case: Case,
        *,
        runs: int = 3,
        seconds: float = 6.0,
        progress: Callable[[str], None] = lambda _: None,
    ) -> CaseResult:
        """Run a case; hdd runs are longer, until chance is no more than a few percent. Raises ZtuneError."""
        if _cached(profile, case):
            profile = profile.model_copy(update={"cache_mb": FILLED_MB})
        self._costs.clear()  # what the guest needs depends on what else this machine does now
        dilation = self.dilation(profile, case)
        want = expected(profile, case.rw, case.pattern, case.bs, case.qd, fsync=case.fsync)
        # Where the head goes is chance: some 300 requests have a mean within two percent.
        if profile.kind == "hdd" and case.pattern == "random":
            seconds = max(seconds, min(300 / want.iops * dilation, 40.0))
        warm = self._fill_s(profile, case, dilation) if _cached(profile, case) else 1.0
        iops: list[float] = []
        flush: list[float] = []
        late: list[float] = []
        for number in range(1, runs + 1):
            progress(f"{profile.name}: {case}, dilation {dilation:g}, run {number} of {runs}")
            found, stats = self.run(profile, dilation, case.job(seconds, warm))
            iops.append(found.iops * dilation)
            if found.flush_ms is not None:
                flush.append(found.flush_ms / dilation)
            late.append(stats["reply_late_us"] / 1e3 / max(want.latency_ms, 1e3 / want.iops))
        if not iops:
            raise ZtuneError("no runs")
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        return CaseResult(case, dilation, want, iops, flush, statistics.median(late), load)


def table(name: str, outcomes: Sequence[CaseResult], limit: float) -> list[str]:
    """Return lines for a terminal."""
    lines = [
        (
            f"{name:12} {'load':34} {'dilation':>8} {'expected/s':>11} {'measured/s':>11} {'flush ms':>15} "
            f"{'spread':>7} {'error':>7} {'late':>6} {'load':>5}"
        )
    ]
    for o in outcomes:
        flush = ""
        if o.flush_ms and o.expected.flush_ms:
            flush = f"{statistics.median(o.flush_ms):.3f} of {o.expected.flush_ms:.3f}"
        verdict = "" if abs(o.error) <= limit else "  busy: not judged" if o.busy else "  OFF"
        lines.append(
            f"{'':12} {o.case!s:34} {o.dilation:8g} {o.expected.iops:11.1f} {o.median:11.1f} {flush:>15} "
            f"{o.spread:7.1%} {o.error:+7.1%} {o.late_share:6.1%} {o.load:5.1f}{verdict}"
        )
    return lines
