"""Where a trial's pools are: what the lifecycle asks of that place, whatever is behind it.

``kernel_pools`` makes them with ``zpool`` and ``zfs`` in this host's kernel, ``mounted_pools`` with
``ztune-mount`` in user space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ztune.onhost.host.zfs import Upkeep
from ztune.onhost.layout import Dataset
from ztune.onhost.probes.context import DatasetContext, MountContext, PoolContext
from ztune.onhost.trial.journal import Journal


@dataclass(slots=True)
class Made:
    """A dataset of the layout as it was made here."""

    dataset: Dataset
    name: str
    mountpoint: Path
    pool: str
    node: str = ""

    @property
    def own_filesystem(self) -> bool:
        """Whether ext4 or xfs is mounted for it alone: it is a volume."""
        return self.dataset.volume is not None


@dataclass(frozen=True, slots=True)
class Filled:
    """How full a pool is: bytes, and percent of fragmentation of its free space, where that is known."""

    size: int
    allocated: int
    fragmentation: int | None


class Say(Protocol):
    """Tells how far a step is."""

    def __call__(self, text: str, share: float) -> None:
        """Say what is being done, and the share of the step that is done."""
        ...


class Pools(Protocol):
    """The pools of one trial, with their datasets. Whatever is made is journaled, and removed by the door."""

    made: list[Made]
    """The layout's datasets, from ``make`` on, each mounted."""
    loaded: bool
    """From ``make`` on: the pools begin with what an earlier trial's load left in its own."""

    def check(self) -> None:
        """Raise InputError, MissingError if the layout can't be had here; nothing is made."""
        ...

    def make(self, journal: Journal, say: Say, load: Mapping[str, Any]) -> None:
        """Make the pools and datasets of the layout. ``load``: what of the job decides what it loads."""
        ...

    def keep(self, say: Say) -> None:
        """Keep the pools as loading has left them for later trials, where that was asked for. Nothing in
        them is in use.
        """
        ...

    def sync(self) -> None:
        """Return when all that was written is on the disks."""
        ...

    def end_group(self) -> None:
        """Write the open transaction group of each pool. It is not told: an aging pool has hundreds."""
        ...

    def filled(self) -> dict[str, Filled]:
        """Return how full each pool is, by the layout's name for it."""
        ...

    def upkeep(self) -> dict[str, Upkeep]:
        """Return what each pool that others may work on does of itself, by its name there."""
        ...

    def as_made(self) -> dict[str, dict[str, str]]:
        """Return what of the trial others may change, as it is: for ``parents.require_kept``."""
        ...

    def snapshot(self, name: str) -> None:
        """Take a snapshot of each dataset but those that fill the pools."""
        ...

    def clone(self, snapshot: str, number: int) -> None:
        """Make clones of a snapshot that ``snapshot`` took, which nobody mounts."""
        ...

    def cool(self) -> None:
        """Empty the caches of what the pools hold. Nothing in them is in use."""
        ...

    def fills(self) -> list[Path]:
        """Return directories on file systems of the host's or the user's that grow with what is written."""
        ...

    def gone(self) -> str:
        """Return why the pools are there no more, as a sentence; empty while they are."""
        ...

    def release(self) -> None:
        """The trial is over: nobody need be told any more when the pools go."""
        ...

    def contexts(self) -> tuple[tuple[PoolContext, ...], tuple[DatasetContext, ...]]:
        """Return what probes may know of them."""
        ...

    def mount(self) -> MountContext | None:
        """Return the mount that the pools are behind, for probes; None if the kernel has them."""
        ...

    def environment(self) -> dict[str, Any]:
        """Return what belongs into the result's environment: OpenZFS, tunables, pools, devices."""
        ...
