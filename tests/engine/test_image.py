"""A replay that begins from an image of what another process loaded."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_build import (
    ENGINE,
    FALLOCATE,
    FSYNC,
    KEEP_SIZE,
    MIB,
    PLAIN,
    PUNCH,
    READ,
    WRITE,
    Ops,
    check_sums,
    group,
    spec,
)

TIMED = ("wall_s", "cpu_s", "processor")


def engine(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ENGINE, *arguments], capture_output=True, text=True, timeout=120)


def load(folder: Path, spec_: dict[str, Any], ops: Ops) -> Path:
    (folder / "load.json").write_text(json.dumps(spec_))
    (folder / "ops.bin").write_bytes(ops.bytes())
    done = engine(
        "load", "--spec", f"{folder}/load.json", "--ops", f"{folder}/ops.bin", "--image", f"{folder}/image"
    )
    assert done.returncode == 0, done.stderr
    return folder / "image"


def begin(folder: Path, spec_: dict[str, Any], ops: Ops, *image: str) -> subprocess.CompletedProcess[str]:
    (folder / "spec.json").write_text(json.dumps(spec_))
    (folder / "ops.bin").write_bytes(ops.bytes())
    return engine("replay", "--spec", f"{folder}/spec.json", "--ops", f"{folder}/ops.bin", *image)


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    check_sums(out)
    return {k: v for k, v in out["measure"].items() if k not in TIMED}


def mixed(size: int, n: int = 1500) -> Ops:
    r = random.Random(2)
    ops = Ops()
    for i in range(n):
        ops.add(WRITE, offset=r.randrange(size >> 13) << 13, size=8192)
        ops.add(READ, offset=r.randrange(size >> 13) << 13, size=8192)
        if i % 10 == 0:
            ops.add(FSYNC)
    return ops


def test_what_was_not_loaded_is_known_of_an_image_too(tmp_path: Path, half: Path) -> None:
    """How much space a hole gives back, of a file that somebody else loaded a part of."""
    ops = Ops()
    for at in range(0, 64 * MIB, 8 * MIB):
        ops.add(READ, offset=at, size=8192)
    ops.add(FALLOCATE, offset=0, size=40 * MIB, flags=PUNCH | KEEP_SIZE)
    s = spec(half, size=64 * MIB, properties={"recordsize": "8K"}) | {"load": "touched"}
    shared = counts(begin(tmp_path, s, ops, "--image", str(load(tmp_path, s, ops))))
    assert shared["space"] == counts(begin(tmp_path, s, ops))["space"]


# In memory a pool of one disk is what every screening with the real engine begins from.
@pytest.mark.parametrize(
    ("kind", "backing"), [pytest.param("stripe", "memory", marks=pytest.mark.long), ("raidz1", "file")]
)
def test_layouts_share_a_load(tmp_path: Path, half: Path, kind: str, backing: str) -> None:
    """Log and cache disks, caching and the log's bias come after it; each replay leaves it as it was."""
    data = group("data", kind, 1 if kind == "stripe" else 3)
    properties = {"recordsize": "16K", "compression": "lz4"}
    size = 48 * MIB
    ops = mixed(size, 800)
    first = spec(half, size=size, properties=properties, vdevs=[data])
    image = load(tmp_path, first, ops)
    before = image.stat().st_mtime_ns
    found = {}
    for name, more, vdevs in (
        ("plain", {}, []),
        ("log", {}, [group("log", "mirror", 2)]),
        ("cache", {}, [group("cache", "stripe", 1)]),
        ("throughput", {"logbias": "throughput"}, []),
        ("metadata", {"primarycache": "metadata"}, []),
        ("plain again", {}, []),
    ):
        s = spec(half, size=size, properties={**properties, **more}, vdevs=[data, *vdevs])
        s |= {"backing": backing, "backing_dir": str(tmp_path)}
        found[name] = counts(begin(tmp_path, s, ops, "--image", str(image)))
        alone = counts(begin(tmp_path, s, ops))
        for key in ("reads", "writes", "read_bytes", "write_bytes"):
            assert found[name]["physical"][key] == pytest.approx(alone["physical"][key], rel=0.03), (
                name,
                key,
            )
        assert found[name]["space"]["allocated"] == pytest.approx(alone["space"]["allocated"], rel=0.01)
    assert found["plain again"] == found["plain"]
    assert image.stat().st_mtime_ns == before
    assert found["log"]["zil"]["slog_bytes"] > 0 == found["plain"]["zil"]["slog_bytes"]
    assert found["cache"]["l2arc"]["write_bytes"] > 0
    assert found["throughput"]["zil"]["itx_indirect"] > 0 == found["plain"]["zil"]["itx_indirect"]
    assert found["metadata"]["arc"]["demand_data_hits"] < found["plain"]["arc"]["demand_data_hits"]


@pytest.mark.parametrize("backing", ["memory", "file"])
def test_pages_of_an_image_under_sanitizers(tmp_path: Path, backing: str) -> None:
    done = subprocess.run([PLAIN, "store", tmp_path, backing], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_image_shares_its_memory(tmp_path: Path, noise: Path) -> None:
    """What is read of it is no memory of the engine's own; what is written is."""
    size = 192 * MIB
    ops = Ops()
    for i in range(size >> 17):
        ops.add(READ, offset=i << 17, size=128 << 10)
    s = spec(noise, size=size)
    image = load(tmp_path, s, ops)
    done = begin(tmp_path, s, ops, "--image", str(image))
    assert done.returncode == 0, done.stderr
    alone = json.loads(begin(tmp_path, s, ops).stdout)
    assert json.loads(done.stdout)["memory_peak"] < alone["memory_peak"] - 128 * MIB


def test_an_aged_pool_comes_with_its_age(tmp_path: Path, half: Path) -> None:
    size = 32 * MIB
    s = spec(half, size=size, properties={"recordsize": "16K"}, disk=1 << 30)
    s["files"][0]["rewrite"] = {"write": 8192, "in_order": False, "commits": True}
    s["age"] = {"fill": 0, "rewrites": 2, "snapshots": 1}
    ops = mixed(size, 300)
    image = load(tmp_path, s, ops)
    done = begin(tmp_path, s, ops, "--image", str(image))
    counts(done)
    age = json.loads(done.stdout)["age"]
    assert age["rewritten"] == 2 * size and age["commits"] > 0
    assert age["pools"][0]["allocated"] > 40 * MIB  # the snapshot keeps what was there


@pytest.mark.parametrize("damage", ["empty", "cut", "other"])
def test_what_is_no_image_is_refused_in_a_sentence(tmp_path: Path, noise: Path, damage: str) -> None:
    ops = mixed(8 * MIB, 10)
    s = spec(noise, size=8 * MIB)
    image = load(tmp_path, s, ops)
    if damage == "empty":
        image.write_bytes(b"")
    elif damage == "cut":
        os.truncate(image, image.stat().st_size - 5000)
    else:
        with image.open("r+b") as file:
            file.write(b"ztune-image of another engine")
    done = begin(tmp_path, s, ops, "--image", str(image))
    assert done.returncode == 2 and "no image that this engine wrote, or it is damaged" in done.stderr


def test_an_image_of_other_disks_is_refused(tmp_path: Path, noise: Path) -> None:
    ops = mixed(8 * MIB, 10)
    image = load(tmp_path, spec(noise, size=8 * MIB), ops)
    other = spec(noise, size=8 * MIB, disk=8 << 30)
    done = begin(tmp_path, other, ops, "--image", str(image))
    assert done.returncode == 2 and "has a disk that the layout has not" in done.stderr
