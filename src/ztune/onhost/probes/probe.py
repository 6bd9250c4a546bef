"""What a probe is, and how one that fails is kept from harming a trial."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from ztune.onhost.host.zfs import which
from ztune.onhost.probes.context import Context

ProbeCost = Literal["none", "small", "large", "after"]
"""``none``: two readings of counters that the kernel keeps anyway. ``small``: some readings a second.
``large``: code runs at every call that is watched. ``after``: work after the measure window, none in it."""

_Reading = TypeVar("_Reading")
HELPERS: set[int] = set()
"""Processes that probes started: what they do is no part of the job."""

MOST_PATIENCE = 5.0
"""How much longer than usual a helper is waited for at the most, however slow the host: under emulation
bpftrace attaches in half a minute, perf in five seconds, and the trial stands still meanwhile."""


class Probe:
    """One thing that is measured while a trial's job runs.

    ``begin`` is called right before the measure window, ``freeze`` right after it, ``finish`` when nothing is
    timed any more. Any of them may raise: the probe is then left out of the result, with a warning.
    """

    name: ClassVar[str]
    measures: ClassVar[str]
    """What it measures, in one sentence."""
    cost: ClassVar[ProbeCost] = "none"
    default: ClassVar[bool] = True
    """Whether it is on when the spec says nothing about it."""
    options: ClassVar[Mapping[str, float]] = {}
    """The options that it takes and their values unless told otherwise: positive numbers."""

    def __init__(self, context: Context, options: Mapping[str, float]) -> None:
        self.context = context
        self.option = dict(self.options) | dict(options)

    @classmethod
    def available(cls, context: Context) -> str | None:
        """Return why it can't be used here, as a sentence; None when it can."""
        return None

    def begin(self) -> None:
        """Take the first reading, or start to watch; nothing where all work comes after the window."""
        return None

    def freeze(self) -> None:
        """Take the last reading, or end watching."""
        return None

    def finish(self) -> dict[str, Any]:
        """Return what was found: JSON values."""
        raise NotImplementedError

    def abandon(self) -> None:
        """End what still runs, when the trial failed or the probe did."""
        return None


class CounterProbe(Probe, Generic[_Reading]):
    """A probe of counters, which are read before the window and after it."""

    def read(self) -> _Reading:
        """Return the counters now."""
        raise NotImplementedError

    def begin(self) -> None:
        """Read them."""
        self.before = self.read()

    def freeze(self) -> None:
        """Read them again."""
        self.after = self.read()


class ZfsProbe(CounterProbe[_Reading]):
    """A probe of the kernel's ZFS, which alone has such counters."""

    @classmethod
    def available(cls, context: Context) -> str | None:
        """Return why there are none."""
        return needs_zfs(context)


def needs_zfs(context: Context) -> str | None:
    """Return why there is nothing to ask ZFS, None when a pool of the layout is of ZFS."""
    if not context.zfs_pools:
        return "no pool of this layout is of ZFS"
    if context.mount is not None:
        return "the pools are in user space; the probe mount has their counters"
    if not Path("/proc/spl/kstat/zfs").is_dir():
        return "the ZFS module shows no statistics: /proc/spl/kstat/zfs is missing"
    return None


def needs_root(program: str) -> str | None:
    """Return why a program that only root may use can't be used, None when it can."""
    if which(program) is None:
        return f"{program} is missing"
    if os.geteuid() != 0:
        return f"{program} needs root"
    return None
