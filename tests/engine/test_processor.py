"""What the engine says of processor time: each call counted once, for the dataset whose block it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_build import ENGINE, FSYNC, MIB, READ, WRITE, Ops, content, replay, spec

OPERATIONS = ("compress", "decompress", "checksum", "parity", "crypt", "copy")


def read_then_overwrite(size: int) -> Ops:
    """The whole file read, from a cold start, and written over; one fsync."""
    ops = Ops(step=1000)
    for code in (READ, WRITE):
        for at in range(0, size, MIB):
            ops.add(code, 0, at, MIB)
    ops.add(FSYNC, 0)
    return ops


def calls(found: dict[str, Any], operation: str, **only: Any) -> list[dict[str, Any]]:
    return [
        c
        for c in found["calls"]
        if c["operation"] == operation and all(c[key] == value for key, value in only.items())
    ]


@pytest.mark.parametrize(
    ("compression", "named", "records"),
    [("lz4", "lz4", 8), ("zstd-9", "zstd-9", 128), ("gzip", "gzip-6", 1024)],
)
def test_every_record_is_counted_once(
    tmp_path: Path, half: Path, compression: str, named: str, records: int
) -> None:
    size, properties = 8 * MIB, {"recordsize": f"{records}K", "compression": compression}
    # Small sectors: half of 8K and eight bytes is less than two of 4K then.
    s = spec(
        half, size=size, properties=properties, ashift=9, arc=128 * MIB, tunables={"zfs_txg_timeout": 3600}
    )
    found = replay(tmp_path, s, read_then_overwrite(size))["measure"]["processor"]
    (packed,) = calls(found, "compress", dataset="tank/data", algorithm=named, size=records << 10)
    assert packed["calls"] == size // (records << 10) and packed["bytes"] == size
    assert packed["out_bytes"] < 0.7 * size
    family = named if named.startswith("gzip") else named.split("-")[0]
    (unpacked,) = calls(found, "decompress", dataset="tank/data", algorithm=family, size=records << 10)
    assert unpacked["calls"] == size // (records << 10) and unpacked["bytes"] == size
    # Read once and written once: each stored block has one checksum made and one compared.
    summed = sum(c["bytes"] for c in calls(found, "checksum", dataset="tank/data", algorithm="fletcher4"))
    assert 0.9 * size < summed < 1.5 * size
    (copied,) = calls(found, "copy", dataset="tank/data")
    assert copied["bytes"] >= 2 * size
    assert found["left_out"] == 0
    assert found["compress_s"] > 0 and found["decompress_s"] > 0 and found["crypt_s"] == 0


def test_sums_are_those_of_the_calls(tmp_path: Path, half: Path) -> None:
    size = 4 * MIB
    s = spec(half, size=size, properties={"recordsize": "16K", "compression": "lz4"})
    found = replay(tmp_path, s, read_then_overwrite(size))["measure"]["processor"]
    for name in OPERATIONS:
        assert found[f"{name}_s"] == pytest.approx(sum(c["seconds"] for c in calls(found, name)), abs=1e-9)
    assert found["seconds"] == pytest.approx(sum(found[f"{name}_s"] for name in OPERATIONS))
    (data,) = found["datasets"]
    own = [c["seconds"] for c in found["calls"] if c["dataset"] == "tank/data"]
    assert data["name"] == "tank/data" and data["seconds"] == pytest.approx(sum(own))


def test_without_compression_no_data_is_compressed(tmp_path: Path, noise: Path) -> None:
    size = 4 * MIB
    s = spec(noise, size=size, properties={"recordsize": "64K", "compression": "off"})
    found = replay(tmp_path, s, read_then_overwrite(size))["measure"]["processor"]
    assert not calls(found, "compress", dataset="tank/data", size=64 << 10)
    assert not calls(found, "decompress", dataset="tank/data", size=64 << 10)


def test_what_does_not_compress_says_so(tmp_path: Path, noise: Path) -> None:
    size = 4 * MIB
    s = spec(noise, size=size, properties={"recordsize": "128K", "compression": "zstd-3"})
    found = replay(tmp_path, s, read_then_overwrite(size))["measure"]["processor"]
    (packed,) = calls(found, "compress", dataset="tank/data", algorithm="zstd-3", size=128 << 10)
    assert packed["out_bytes"] == packed["bytes"]
    assert not calls(found, "decompress", dataset="tank/data", algorithm="zstd")


def test_datasets_are_told_apart(tmp_path: Path, half: Path) -> None:
    size = 2 * MIB
    s = spec(half, size=[size, size])
    s["datasets"] = [
        {"name": "tank/data", "properties": {"compression": "zstd-3", "recordsize": "64K"}},
        {"name": "tank/wal", "properties": {"compression": "lz4", "recordsize": "64K"}},
    ]
    s["files"][1]["dataset"] = "tank/wal"
    ops = Ops(step=1000)
    for code in (READ, WRITE):
        for file in (0, 1):
            for at in range(0, size, MIB):
                ops.add(code, file, at, MIB)
    found = replay(tmp_path, s, ops)["measure"]["processor"]
    for dataset, algorithm in (("tank/data", "zstd-3"), ("tank/wal", "lz4")):
        packed = calls(found, "compress", dataset=dataset, size=64 << 10)
        assert [c["algorithm"] for c in packed] == [algorithm]
        assert packed[0]["calls"] == size >> 16


def test_parity_is_counted_where_there_is_some(tmp_path: Path, noise: Path) -> None:
    size = 4 * MIB
    disks = [{"profile": "nvme", "size": 1 << 30}] * 4
    vdevs = [{"class": "data", "kind": "raidz2", "disks": disks}]
    s = spec(noise, size=size, vdevs=vdevs, properties={"recordsize": "64K"})
    found = replay(tmp_path, s, read_then_overwrite(size))["measure"]["processor"]
    made = calls(found, "parity", dataset="tank/data", algorithm="raidz2")
    assert sum(c["bytes"] for c in made) >= size and found["parity_s"] > 0


def test_the_counts_of_calls_repeat(tmp_path: Path) -> None:
    pool = content(tmp_path / "pool", "half")
    s = spec(pool, size=4 * MIB, properties={"recordsize": "32K", "compression": "zstd-3"})
    counted = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = replay(folder, s, read_then_overwrite(4 * MIB))["measure"]["processor"]["calls"]
        own = [c for c in found if c["dataset"] == "tank/data" and c["size"] == 32 << 10]
        counted.append(
            [(c["operation"], c["algorithm"], c["calls"], c["bytes"], c["out_bytes"]) for c in own]
        )
    assert counted[0] and counted[0] == counted[1]


def test_calibration_names_each_operation() -> None:
    done = subprocess.run([ENGINE, "calibrate"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    rates = {(r["operation"], r["algorithm"], r["size"]): r["ns_per_byte"] for r in found["rates"]}
    assert {key: ns for key, ns in rates.items() if not 0 < ns < 1e5} == {}
    assert {("compress", f"zstd-{n}", 131072) for n in (1, 3, 6, 9, 12, 15, 19)} <= rates.keys()
    assert {
        ("decompress", "zstd", 8192),
        ("checksum", "fletcher4", 1 << 20),
        ("copy", "copy", 0),
    } <= rates.keys()
    # Not time, but order: what works harder takes longer, by a factor of more than ten.
    assert rates["compress", "zstd-19", 131072] > 5 * rates["compress", "zstd-1", 131072]
    assert found["waited"] > -0.5 and found["seconds"] > 0
