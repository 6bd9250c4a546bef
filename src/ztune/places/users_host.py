"""A host of the user's own, this one or another: what its kernel's ZFS can do, and where its pools go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import room
from ztune.onhost.properties import feature_of, lacks_feature
from ztune.places import bundle
from ztune.places.about import said_of_host
from ztune.places.channel import STATE, Place, ask, need_zfs
from ztune.places.placing import Placing
from ztune.study import Layout, Study


class UsersHost(Place):
    """What ``Local`` and ``Ssh`` have in common: all but how a command gets there."""

    kind: ClassVar[str]

    def __init__(self, name: str, where: str, placing: Placing, state: str = STATE) -> None:
        """``where``: what the host is called in sentences."""
        self.name = name
        self.where = where
        self.placing = placing
        self.state = state
        self._before: tuple[str, ...] = ()
        """The words that make a command root's."""
        self._about: dict[str, Any] | None = None
        self._parents: dict[str, dict[str, Any]] = {}
        """Dataset that is named → what the host said of it: ``ztune.onhost.trial.parents.facts``."""

    def about_host(self) -> dict[str, Any]:
        """Return what the trial program says of the host."""
        if self._about is None:
            self._about = said_of_host(self, self.where, bundle.build())
        return self._about

    def place_spec(self, layout: Layout) -> dict[str, Any]:
        """Return the spec's place."""
        return self.placing.spec(layout)

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError, MissingError if the layout can't be tried there."""
        self.placing.check(study, layout)
        need_zfs(self.where, self.about_host(), layout)
        self.check_placing()
        for dataset in layout.datasets if self.placing.parents else ():
            parent = self.place_spec(layout)["parents"][dataset.pool]
            for name, value in dataset.properties.items():
                if (need := feature_of(name, value)) in self._parents[parent]["lacks"]:
                    said = lacks_feature(name, value, need, parent.partition("/")[0])
                    raise InputError(f'layout "{layout.name}": {said}')

    def check_placing(self) -> None:
        """Raise InputError where no trial can work below one of the datasets that are named."""
        parents = sorted(set(self.placing.parents.values()))
        if not parents or self._parents:
            return
        code, out, errors = ask(self, ["python3", self.put(bundle.build()), "parents", *parents])
        if code != 0:
            said = errors.splitlines()[-1].removeprefix("ztune-trial: ") if errors else f"exit code {code}"
            raise InputError(said) if code == InputError.exit_code else ZtuneError(said)
        self._parents = json.loads(out.splitlines()[-1])

    def check_room(self, layout: Layout, needs: Mapping[str, int]) -> None:
        """Raise InputError where a dataset that is named has no room for what goes below it.

        ``needs``: bytes that each role will take, as far as the job can tell.
        """
        if not self.placing.parents:
            return
        self.check_placing()
        parents = self.place_spec(layout)["parents"]
        total: dict[str, int] = {}
        for role, size in needs.items():
            if (dataset := layout.dataset_of(role)) is not None:
                total[parents[dataset.pool]] = total.get(parents[dataset.pool], 0) + size
        for parent, size in total.items():
            if size > (left := self._parents[parent]["room"]):
                raise InputError(
                    f'parent "{parent}" has {room.about(left)} left, by its quota or its pool; the database '
                    f"takes about {room.about(size)}: name a roomier one, or take less data"
                )

    def describe(self) -> dict[str, Any]:
        """Return the environment record."""
        return {
            "kind": self.kind,
            "accel": self.about_host().get("accel", "none"),
            "dilation": 1.0,
            "patience": 1.0,
            "place": self.placing.to_json(),
        }

    def tunables(self, layout: Layout) -> dict[str, int]:
        """None: a real host has its own."""
        return {}

    def measured(self) -> None:
        """Nothing: a host's disks are what they are."""

    def shared(self, path: Path) -> str | None:
        """Nothing of this host can be read there."""
        return None
