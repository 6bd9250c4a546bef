"""What OpenZFS tells of itself during an observation, as parts of one: ``onhost.look.zfs`` reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from ztune.observe.model import ObservedZfs
from ztune.onhost.look import zfs


class ZfsWatch:
    """Readings of ZFS's counters at the beginning and at the end of a window: see ``zfs.ZfsReadings``."""

    def __init__(self) -> None:
        self._readings = zfs.ZfsReadings()

    def freeze(self) -> None:
        """End the window. A second call does nothing."""
        self._readings.freeze()

    def state(
        self,
        files: Mapping[str, str | None],
        datasets: Mapping[str | None, Collection[str]] = MappingProxyType({}),
    ) -> tuple[ObservedZfs | None, tuple[str, ...]]:
        """Return what ``ZfsReadings.state`` does, as a part of an observation."""
        found, limits = self._readings.state(files, datasets)
        return None if found is None else ObservedZfs.model_validate(found), limits
