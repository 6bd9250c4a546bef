"""Below which datasets of the user's trials are made."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.zfs import Value, parse_status
from ztune.onhost.layout import Dataset
from ztune.onhost.trial import parents
from ztune.onhost.trial.kernel_pools import KernelPools

VALUES = {
    "type": "filesystem", "available": str(1 << 40), "readonly": "off", "encryption": "off", "keystatus": "-",
    "xattr": "on", "dnodesize": "legacy", "acltype": "off",
}  # fmt: skip


STATUS = """  pool: tank
 state: ONLINE
  scan: {}
\t0B / 302M scanned, 0B / 302M issued
config:

\tNAME          STATE     READ WRITE CKSUM
\ttank          ONLINE       0     0     0
\t  mirror-0    ONLINE       0     0     0
\t    d0        ONLINE       0     0     0{}
\t    d3        ONLINE       0     0     0

errors: No known data errors
"""
"""What `zpool status tank` says, with its scan and what it adds to a device."""
AT_WORK = "{} in progress since Tue Dec  1 02:45:01 2026"
DONE = "{} repaired 0B in 00:00:53 with 0 errors on Tue Dec  1 02:46:46 2026"

POOL = {"health": "ONLINE", "readonly": "off", "capacity": "10"}


def zfs(values: dict[str, Any], pool: dict[str, str]) -> Any:
    """A host with these datasets, and one pool."""
    said = {name: Value(text, "-") for name, text in pool.items()}
    return SimpleNamespace(
        values=lambda _names, _wanted: values,
        pool_values=lambda _name, _wanted: said,
        upkeep=lambda _name: parse_status(STATUS.format(pool.get("scan", "none requested"), "")),
    )


def check(pool: dict[str, str] | None = None, **changes: str) -> list[str]:
    """Check a parent with these values instead, and return the warnings."""
    values = {name: Value(text, "default") for name, text in VALUES.items()}
    values |= {name: Value(text, "local") for name, text in changes.items()}
    return parents.check(zfs({"tank/x": values}, {**POOL, **(pool or {})}), ["tank/x"])


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
        check(None, **changes)


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        ({"health": "SUSPENDED"}, "is suspended: it waits"),
        ({"health": "UNAVAIL", "readonly": "-", "capacity": "-"}, "is UNAVAIL; zpool status says why"),
        ({"readonly": "on"}, "is imported read-only"),
    ],
)
def test_a_pool_that_takes_no_writes_is_refused(pool: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=f'pool "tank" {why}'):
        check(pool)


@pytest.mark.parametrize(
    ("parent", "pool", "why"),
    [
        ("tank/x", {}, 'pool "tank" is not imported'),
        ("tank/a b", POOL, "make it: zfs create -p 'tank/a b'"),
    ],
)
def test_of_one_that_is_not_there_it_says_what_brings_it(parent: str, pool: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        parents.check(zfs({}, pool), [parent])


def test_a_pool_that_is_not_as_it_was_bought_is_said() -> None:
    assert check() == []
    assert check({"health": "DEGRADED"})[0].startswith("pool tank is DEGRADED: ")
    assert check({"capacity": "95"})[0].startswith("pool tank is 95 % full: ")


def test_a_pool_that_is_scrubbed_or_resilvered_is_said_before_the_first_trial() -> None:
    """It was not: a resilver by `zpool attach` leaves a pool ONLINE, and made one layout 20 times as fast as
    another."""
    for work in ("scrub", "resilver", "resilver (mirror-0)"):
        (one,) = check({"scan": AT_WORK.format(work)})
        assert one.startswith(f"pool tank: {work} in progress: what is measured is not what")
    assert check({"scan": DONE.format("scrub")}) == check({"scan": "scrub paused since Tue Dec  1"}) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (AT_WORK.format("resilver"), AT_WORK.format("resilver"), ["pool tank: resilver in progress"]),
        (AT_WORK.format("scrub"), DONE.format("scrub"), ["pool tank: scrub in progress"]),
        ("none requested", AT_WORK.format("scrub"), ["pool tank: scrub in progress"]),
        ("none requested", DONE.format("scrub"), ["pool tank: while it was measured, a scrub or resilver "]),
        (DONE.format("scrub"), DONE.format("scrub"), []),
    ],
)
def test_what_a_pool_did_while_it_was_measured_is_said_once(before: str, after: str, said: list[str]) -> None:
    looks = [parse_status(STATUS.format(one, "")) for one in (before, after)]
    found = parents.disturbed("tank", *looks)
    assert len(found) == len(said) and all(map(str.startswith, found, said))


def test_a_device_that_goes_away_while_a_pool_is_measured_is_said() -> None:
    whole = parse_status(STATUS.format("none requested", ""))
    (one,) = parents.disturbed("tank", whole, replace(whole, health="DEGRADED"))
    assert one.startswith("pool tank was ONLINE when the measure began and DEGRADED at its end: ")


def test_devices_that_come_and_go_while_a_pool_is_measured_are_said() -> None:
    """A log device that was added in the measure made each commit quicker, and nothing said so."""
    alone = parse_status(STATUS.format("none requested", ""))
    with_log = STATUS.replace("\n\nerr", "\n\tlogs\n\t  nvme0\n\nerr")
    more = parse_status(with_log.format("none requested", ""))
    assert alone.vdevs == ("tank", "mirror-0", "d0", "d3")
    assert parents.disturbed("tank", alone, alone) == []
    (came,) = parents.disturbed("tank", alone, more)
    assert came.startswith("logs, nvme0 came to pool tank while it was measured: part of it was measured ")
    (left,) = parents.disturbed("tank", more, alone)
    assert left.startswith("logs, nvme0 left pool tank ")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"recordsize": "131072", "guid": "7"}, "recordsize of tank/d: 16384 when the measure began and 13"),
        ({"recordsize": "16384", "guid": "8"}, "guid of tank/d: 7 when the measure began and 8 at its end; "),
        ({"recordsize": "16384"}, "guid of tank/d: 7 when the measure began and nothing at its end; "),
        (None, "tank/d is not there any more: somebody renamed or destroyed it while it was measured"),
    ],
)  # fmt: skip
def test_what_is_measured_is_the_layout_to_the_end(now: dict[str, str] | None, said: str) -> None:
    """Somebody set another record size in the measure, and its result was believed."""
    before = {"tank/d": {"recordsize": "16384", "guid": "7"}, "the ZFS module": {"zfs_arc_max": "1"}}
    parents.require_kept(before, dict(before))
    with pytest.raises(ZtuneError, match=f"^{said}"):
        parents.require_kept(before, {**before, "tank/d": now} if now else {"the ZFS module": {}})


def test_trimming_evacuating_and_growing_are_work_too() -> None:
    assert parse_status(STATUS.format("none requested", "  (trimming)")).works == ("trimming",)
    for line in ("remove: Evacuation of mirror-1", "expand: expansion of raidz1-0"):
        text = STATUS.format("none requested", "").replace("config:", f"{line} in progress since Tue Dec  1")
        assert parse_status(text).works == (line.partition(": ")[2],)


def test_what_the_layout_does_not_say_is_said_where_it_is_not_the_default() -> None:
    assert check(xattr="on", dnodesize="legacy") == []
    (one,) = check(dnodesize="auto")
    assert one.startswith("the trial's datasets inherit dnodesize=auto from tank/x")


def test_that_data_below_a_key_are_not_encrypted_is_said() -> None:
    (one,) = check(encryption="aes-256-gcm", keystatus="available")
    assert one.startswith("parent tank/x is encrypted, and the trial's datasets are not")


def test_nothing_of_a_parent_that_would_change_a_layout_is_inherited() -> None:
    """A parent with dedup=on, direct=always or a key of its own made every trial below it another layout."""
    plain = zfs({"tank/x": {"encryption": Value("off", "default")}}, POOL)
    found = parents.alone(plain, "tank/x", (2, 3, 2))
    assert (found["dedup"], found["direct"], found["prefetch"]) == ("off", "standard", "all")
    assert (found["exec"], found["sharenfs"], found["casesensitivity"]) == ("on", "off", "sensitive")
    assert "encryption" not in found
    old = parents.alone(plain, "tank/x", (2, 1, 11))
    assert "direct" not in old and "prefetch" not in old and old["dedup"] == "off"
    locked = zfs({"tank/x": {"encryption": Value("aes-256-gcm", "-")}}, POOL)
    assert parents.alone(locked, "tank/x", (2, 3, 2))["encryption"] == "off"


def test_which_features_a_pool_has_disabled() -> None:
    """One of before OpenZFS 0.8 takes no special_small_blocks, not even 0: each trial failed."""
    pool = {"health": "ONLINE", "feature@zstd_compress": "disabled", "feature@lz4_compress": "active"}
    assert parents.lacks(zfs({}, pool), "tank/x") == {"zstd_compress"}
    pools: Any = KernelPools.__new__(KernelPools)
    pools.version = (2, 3, 2)
    made = Dataset(name="main/data", roles=("data",), properties={"special_small_blocks": "0"})
    pools._lacks = {}
    assert "special_small_blocks" in pools._properties(made)
    pools._lacks = {"main": frozenset({"allocation_classes"})}
    assert "special_small_blocks" not in pools._properties(made)
