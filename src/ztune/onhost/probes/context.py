"""What a probe may know about the trial it runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """One device of a pool."""

    class_: str
    """``data``, ``log``, ``cache`` or ``special``."""
    vdev: int
    """Which vdev of its class in the layout, from 0."""
    path: str
    """As it was given: a disk, or the file that stands for one."""
    node: str
    """The device node or file that the pool was given, such as ``/dev/sdb1`` or ``/dev/loop3``."""


@dataclass(frozen=True, slots=True)
class PoolContext:
    """One pool of the layout, as it is on this host."""

    name: str
    """Its name here. On a parent, the user's pool. For ext4 and xfs: the name that ZFS would have used."""
    layout_name: str
    filesystem: str
    """``zfs``, ``ext4`` or ``xfs``."""
    guid: str
    """Empty for ext4 and xfs."""
    devices: tuple[DeviceContext, ...]
    """Empty on a parent: the user's pool is not ours to know."""
    ours: bool
    """Whether the whole pool is the trial's, so that everything that its devices do belongs to the trial."""


@dataclass(frozen=True, slots=True)
class DatasetContext:
    """One dataset of the layout, as it is on this host."""

    name: str
    """Its name here; for ext4 and xfs a name of the same form, that ZFS does not know."""
    layout_name: str
    roles: tuple[str, ...]
    mountpoint: Path
    pool: str
    """The name of its pool here."""
    filesystem: str
    """``zfs``; ``ext4`` or ``xfs`` on the pool's disk, or on a zvol."""
    volume: bool
    """Whether it is a zvol with ``filesystem`` on it."""
    node: str
    """The block device with the file system, for ext4 and xfs; empty for ZFS."""


@dataclass(frozen=True, slots=True)
class MountContext:
    """The program that holds the pools, where the kernel does not."""

    pid: int
    stats: Callable[[], dict[str, Any]]
    """Its counters now; docs/mount.md names them."""


class CommandRunner(Protocol):
    """Runs a command, logs it as an event and returns its standard output; ZtuneError when it fails."""

    def __call__(self, argv: Sequence[str], *, timeout: float = 120.0) -> str:
        """Run ``argv``; ``timeout`` in seconds, times the patience."""
        ...


def _nothing(*_args: object, **_more: object) -> None:
    return None


def _no_pids() -> list[int]:
    return []


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a probe or the measure needs, fixed before the job's timed part begins."""

    run: str
    trial: str
    seed: int
    state: Path
    """The trial's own directory: probes may write below it; it is removed with the trial."""
    options: Mapping[str, Any]
    """The spec's ``probes``: name → on, off or the probe's options."""
    pools: tuple[PoolContext, ...]
    datasets: tuple[DatasetContext, ...]
    role_dirs: Mapping[str, Path]
    command: CommandRunner
    mount: MountContext | None = None
    """None: the pools are the kernel's."""
    pids: Callable[[], list[int]] = _no_pids
    """The job's processes, whose descendants belong to them."""
    page_sizes: Mapping[str, int] = field(default_factory=dict)
    warn: Callable[[str], None] = _nothing
    log: Callable[[str], None] = _nothing
    """Say what is done, where that may take minutes."""
    series: Callable[[str, Sequence[str], Sequence[Sequence[float]]], None] = _nothing
    """Send rows of a time series: the probe's name, the columns (first "t", unix seconds), the rows."""
    names: dict[int, str] = field(default_factory=dict)
    """What probes saw the job's processes called, by pid: also those that ended since."""
    dilation: float = 1.0
    patience: float = 1.0
    """How many times slower than usual this machine may be: for time limits only."""
    fillers: tuple[Path, ...] = ()
    """Mount points of what fills aged pools."""

    @property
    def zfs_pools(self) -> tuple[PoolContext, ...]:
        """The pools that ZFS knows."""
        return tuple(p for p in self.pools if p.filesystem == "zfs")
