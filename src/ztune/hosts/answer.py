"""Makes an observation of what a host answered. Nothing in an answer is trusted to be well formed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

import ztune
from ztune.observe.model import Group, Observation, ObservedTransfers, ObservedZfs
from ztune.trace.roles import RoleRules

NO_SIZES = (
    "Asked over ssh with Python alone: sizes of single reads and writes, their order and fsyncs are not "
    "known, so rules that need them are open; `ztune observe` on the host itself sees them."
)
"""What no host asked in this way can tell."""


def observation(said: Mapping[str, Any], rules: RoleRules | None = None) -> Observation:
    """Return what ``onhost.look.answer.look`` said as an observation.

    Datasets get the roles of the files in them. A dataset with one role gives a group of that role, with
    ZFS's own counts of its reads and writes: of one with several, whose they are is not known.

    Raises ValueError where what was said makes no sense.
    """
    rules = rules or RoleRules.parse()
    roles: dict[str, set[str]] = {}
    try:
        for path, dataset in said["files"].items():
            if dataset is not None and (role := rules.role(path)) is not None:
                roles.setdefault(str(dataset), set()).add(role)
        seen = Observation.model_validate(
            {**said["observation"], "ztune": ztune.__version__, "source": "live", "platform": "linux"}
        )
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise ValueError("no observation") from error
    zfs = seen.zfs
    if zfs is not None:
        datasets = tuple(
            one.model_copy(update={"roles": tuple(sorted(roles.get(one.name, ())))}) for one in zfs.datasets
        )
        zfs = zfs.model_copy(update={"datasets": datasets})
    return seen.model_copy(
        update={
            "zfs": zfs,
            "groups": tuple(_groups(zfs)) if zfs else (),
            "limits": (*seen.limits, NO_SIZES),
        }
    )


def _groups(zfs: ObservedZfs) -> list[Group]:
    found = []
    for dataset in zfs.datasets:
        counted = zfs.counters.get(f"objset {dataset.name}")
        if counted is None or len(dataset.roles) != 1:
            continue
        reads, writes = (
            ObservedTransfers(calls=counted.get(calls, 0), bytes=counted.get(size, 0))
            for calls, size in (("reads", "nread"), ("writes", "nwritten"))
        )
        (role,) = dataset.roles
        found.append(
            Group(
                kind="role",
                name=role,
                role=role,
                dataset=dataset.name,
                pool=dataset.pool,
                filesystem="zfs",
                reads=reads,
                writes=writes,
            )
        )
    return found
