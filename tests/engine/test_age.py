"""Pools with a past: what fills them, what rewriting does to free space, and what can't be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import needs
import pytest
from engine_build import FSYNC, MIB, READ, WRITE, Ops, check_sums, modelled, replay, run, spec

SIZE = 24 * MIB


def aged(
    pool: Path,
    fill: int,
    rewrites: int,
    snapshots: int = 0,
    properties: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    s = spec(pool, size=SIZE, properties={"recordsize": "8K", **(properties or {})}, disk=512 * MIB, **more)
    s["datasets"].append(
        {
            "name": "tank/ztune-filler",
            "properties": {"recordsize": "1M", "compression": "off"},
            "filler": True,
        }
    )
    s["files"][0]["rewrite"] = {"write": 8192, "in_order": False, "commits": True}
    s["age"] = {"fill": fill, "rewrites": rewrites, "snapshots": snapshots}
    return s


def some() -> Ops:
    ops = Ops()
    for i in range(40):
        ops.add(WRITE, offset=i * 40960, size=8192)
        ops.add(FSYNC)
        # Far apart: how reads ahead of a stream are joined depends on the machine.
        ops.add(READ, offset=(i * 7 % 24) * MIB + 512 * 1024, size=8192)
    return ops


def plain(out: dict[str, Any]) -> dict[str, Any]:
    """What two specs that mean the same have alike.

    Where a few blocks of metadata lie may differ: OpenZFS salts directories with addresses, which another
    spec's text moves.
    """
    measure = {k: out["measure"][k] for k in ("txgs", "logical")}
    measure["logged"] = {k: v for k, v in out["measure"]["zil"].items() if k.startswith("itx")}
    measure["space"] = out["measure"]["space"]["logical"]
    age = {k: out["age"][k] for k in ("rewritten", "commits")} if "age" in out else {}
    return {**measure, **age}


def test_rewriting_fragments_free_space_and_the_pool_stays_as_full_as_asked(
    tmp_path: Path, noise: Path
) -> None:
    young = replay(tmp_path, aged(noise, 60, 0), some())["age"]["pools"][0]
    out = replay(tmp_path, aged(noise, 60, 2), some())
    old = out["age"]["pools"][0]
    check_sums(out)
    assert old["fragmentation"] > young["fragmentation"] + 5
    for pool in (young, old):
        assert pool["capacity"] in (59, 60)
        assert pool["size"] == pool["allocated"] + pool["free"]
    assert out["age"]["rewritten"] == 2 * SIZE
    assert out["age"]["commits"] == 2 * SIZE // 8192 // 128
    # What fills the pool is nobody's: not among the datasets, not in what the layout takes.
    assert [d["name"] for d in out["measure"]["space"]["datasets"]] == ["tank/data"]
    assert out["measure"]["space"]["allocated"] < 2 * SIZE < old["filler"]
    # And it takes no memory to speak of.
    assert out["memory_peak"] < 400 * MIB


@pytest.mark.skipif(bool(needs.same_addresses()), reason=needs.same_addresses())
def test_the_same_past_twice_is_the_same(tmp_path: Path, noise: Path) -> None:
    s = aged(noise, 50, 1, properties={"logbias": "throughput"})
    one, two = replay(tmp_path, s, some()), replay(tmp_path, s, some())
    assert modelled(one["measure"]) == modelled(two["measure"])
    assert {**one["age"], "wall_s": 0} == {**two["age"], "wall_s": 0}


def test_blocks_that_come_slower_than_the_disk_takes_them_lie_in_the_order_in_which_they_came(
    tmp_path: Path, half: Path
) -> None:
    """Faster ones wait for it, and the next that gets its place is the one that comes first in the file."""
    scan = Ops(step=1_000_000)
    for at in range(0, SIZE, 131072):
        scan.add(READ, offset=at, size=131072)
    reads = {0.001: 0, 50.0: 0}
    # Of several pasts: where one block of metadata more or less lies changes a single one's by a fifth.
    for seed in (1, 2, 3):
        for ns in reads:
            properties = {"recordsize": "32K", "compression": "lz4"}
            s = aged(half, 50, 2, properties=properties, profile="hdd", seed=seed)
            rate = {"operation": "compress", "algorithm": "lz4", "size": 32768, "ns_per_byte": ns}
            s["processor"] = {"cores": 1, "rates": [rate]}
            reads[ns] += replay(tmp_path, s, scan)["measure"]["physical"]["reads"]
    assert reads[50.0] > 1.2 * reads[0.001]


def test_a_new_pool_is_what_it_was(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=SIZE, properties={"recordsize": "8K"})
    without = replay(tmp_path, s, some())
    assert "age" not in without
    again = replay(tmp_path, {**s, "age": {"fill": 0, "rewrites": 0, "snapshots": 0}}, some())
    assert plain(again) == plain(without)


def test_snapshots_keep_old_blocks_and_files_read_back(tmp_path: Path, noise: Path) -> None:
    out = replay(tmp_path, aged(noise, 50, 2, 2, verify=True), some())
    none = replay(tmp_path, aged(noise, 50, 2), some())
    kept = out["measure"]["space"]["allocated"] - none["measure"]["space"]["allocated"]
    assert 1.8 * SIZE < kept < 2.4 * SIZE
    assert out["age"]["pools"][0]["capacity"] in (49, 50)


def test_clones_take_nothing_that_their_snapshots_do_not_keep(tmp_path: Path, noise: Path) -> None:
    with_clones = aged(noise, 50, 2, 2, verify=True)
    with_clones["age"]["clones"] = 2
    out = replay(tmp_path, with_clones, some())
    plainly = replay(tmp_path, aged(noise, 50, 2, 2), some())
    check_sums(out)
    for key in ("rewritten", "commits"):
        assert out["age"][key] == plainly["age"][key]
    more = out["measure"]["space"]["allocated"] - plainly["measure"]["space"]["allocated"]
    # Metadata of two more datasets.
    assert 0 < more < MIB
    # Nobody's files are in them: they are not among the datasets.
    assert [d["name"] for d in out["measure"]["space"]["datasets"]] == ["tank/data"]


@pytest.mark.parametrize(
    ("fill", "rewrites", "snapshots", "said"),
    [
        (95, 1, 0, "has no room left at a fill of 95 %"),
        (10, 4, 4, "which is to be 10 % full; take larger disks, fewer snapshots"),
    ],
)
def test_a_past_that_does_not_fit_is_one_sentence(
    tmp_path: Path, noise: Path, fill: int, rewrites: int, snapshots: int, said: str
) -> None:
    done = run(tmp_path, aged(noise, fill, rewrites, snapshots), some())
    assert done.returncode == 1
    assert done.stderr.startswith("The age can't fit: ") and said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("age", "said"),
    [
        ({"fill": 96, "rewrites": 0, "snapshots": 0}, "age.fill must be a whole number from 0 to 95"),
        ({"fill": 50, "rewrites": 1, "snapshots": 2}, "age.snapshots must be a whole number from 0 to 1"),
        (
            {"fill": 50, "rewrites": 1, "snapshots": 1, "clones": 2},
            "age.clones must be a whole number from 0 to 1",
        ),
        ({"fill": 50, "rewrites": 1, "snapshots": 1, "seasons": 1}, 'age has the unknown key "seasons"'),
    ],
)
def test_a_wrong_age_is_refused(tmp_path: Path, noise: Path, age: dict[str, int], said: str) -> None:
    done = run(tmp_path, {**aged(noise, 50, 1), "age": age}, some())
    assert done.returncode == 2 and said in done.stderr, json.dumps(done.stderr)
