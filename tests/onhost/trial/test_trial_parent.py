"""Below which datasets of the user's trials are made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ztune.errors import InputError
from ztune.onhost.host.zfs import Value
from ztune.onhost.trial.kernel_pools import KernelPools

VALUES = {
    "type": "filesystem", "available": str(1 << 40), "readonly": "off", "keystatus": "-", "xattr": "on",
    "dnodesize": "legacy", "acltype": "off",
}  # fmt: skip


def check(**changes: str) -> None:
    """Check a parent with these values instead."""
    values = {name: Value(text, "default") for name, text in {**VALUES, **changes}.items()}
    pools: Any = KernelPools.__new__(KernelPools)
    pools.spec = SimpleNamespace(place=SimpleNamespace(parents={"main": "tank/x"}))
    pools.zfs = SimpleNamespace(values=lambda names, wanted: {"tank/x": values})
    pools._check_parents()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"type": "volume"}, "is a volume; name a file system"),
        ({"readonly": "on"}, "can't be written, nor what is made below it: its readonly is on"),
        ({"keystatus": "unavailable"}, "its key is not loaded; zfs load-key loads it"),
        ({"available": "1048576"}, "is full: 1M is left"),
    ],
)
def test_one_that_can_have_no_trial_is_refused_before_anything_is_made(
    changes: dict[str, str], why: str
) -> None:
    check(keystatus="available")
    with pytest.raises(InputError, match=f'parent "tank/x" .*{why}'):
        check(**changes)


@pytest.mark.parametrize(
    ("parent", "why"),
    [("tank", 'pool "tank" is not imported'), ("tank/a b", "make it: zfs create 'tank/a b'")],
)
def test_of_one_that_is_not_there_it_says_what_brings_it(parent: str, why: str) -> None:
    pools: Any = KernelPools.__new__(KernelPools)
    pools.spec = SimpleNamespace(place=SimpleNamespace(parents={"main": parent}))
    pools.zfs = SimpleNamespace(values=lambda names, wanted: {})
    with pytest.raises(InputError, match=why):
        pools._check_parents()
