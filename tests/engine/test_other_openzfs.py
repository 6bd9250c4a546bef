"""The engines with other versions of OpenZFS, where ``ztune setup openzfs`` brought them.

All known cases with one of them: ``ZTUNE_TESTED_ENGINE=FILE pytest tests/engine/test_known_cases.py``.
"""

from __future__ import annotations

from pathlib import Path

import engine_build
import pytest
from engine_build import FSYNC, MIB, READ, READ_AHEAD, WRITE, Ops, check_sums, overwrites, replay, spec

from ztune import native
from ztune.native import openzfs
from ztune.places import engine as engines


@pytest.fixture(params=sorted(openzfs.SUITES))
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the tests use the engine with this version of OpenZFS, and return which it is."""
    library = openzfs.library(request.param)
    path = None if library is None else native.ENGINE.against(library).built()
    if library is None or path is None:
        pytest.skip(
            f"no engine with OpenZFS {request.param}: `ztune setup openzfs --version {request.param}`"
        )
    found = engines.check(path)  # its self-check
    assert found.openzfs == library.version
    monkeypatch.setattr(engine_build, "ENGINE", path)
    return found.openzfs


def test_records_are_written_as_they_must_be(other: str, tmp_path: Path, noise: Path) -> None:
    small = spec(noise, size=64 * MIB, properties={"recordsize": "8K"}, tunables={"zfs_txg_timeout": 3600})
    out = replay(tmp_path, small, overwrites(4000, 8192, 64 * MIB))
    assert out["engine"]["openzfs"] == other
    check_sums(out)
    assert out["measure"]["rmw_reads"] == 0 and 0.7 < out["measure"]["write_amplification"] < 1.4
    large = spec(noise, size=256 * MIB, properties={"recordsize": "128K"})
    out = replay(tmp_path, large, overwrites(1500, 8192, 256 * MIB))
    check_sums(out)
    assert 700 < out["measure"]["rmw_reads"] <= 1500 and 10 < out["measure"]["write_amplification"] < 18


def test_direct_io_is_that_of_the_version(other: str, tmp_path: Path, noise: Path) -> None:
    """None before 2.3; from 2.4 on what is not done so is not kept in the ARC for long, either."""
    read: dict[str, int] = {}
    for how in ("standard", "disabled"):
        ops = Ops()
        for i in range(512):
            ops.add(READ, offset=i * 37 % 1024 * 16384, size=16384, flags=4)
        s = spec(noise, size=16 * MIB, properties={"recordsize": "128K", "direct": how})
        s["tunables"] = {"zfs_txg_timeout": 3600}
        out = replay(tmp_path, s, ops)
        check_sums(out)
        read[how] = out["measure"]["by_cause"]["data"]["read_bytes"]
    whole, each = 16 * MIB, 512 * 128 * 1024
    if other.startswith("2.1"):
        assert read == {"standard": whole, "disabled": whole}
    elif other.startswith("2.3"):
        assert read == {"standard": each, "disabled": whole}
    else:
        assert read["standard"] == each and read["disabled"] > 2 * whole


def test_what_is_asked_to_be_read_ahead_is_from_2_2_on(other: str, tmp_path: Path, noise: Path) -> None:
    ops = Ops(step=50_000_000)
    for i in range(50):
        ops.add(READ_AHEAD, offset=i * 37 % 1024 * 16384, size=8192)
        ops.add(READ, offset=i * 37 % 1024 * 16384, size=8192)
    out = replay(tmp_path, spec(noise, size=16 * MIB, properties={"recordsize": "16K"}), ops)
    check_sums(out)
    arc = out["measure"]["arc"]
    asked_for = 50 if other.startswith("2.1") else 0
    assert arc["demand_data_misses"] == asked_for and arc["prefetch_data_misses"] == 50 - asked_for


def test_syncs_are_logged(other: str, tmp_path: Path, noise: Path) -> None:
    ops = Ops()
    for place in range(500):
        ops.add(WRITE, offset=place * 8192, size=8192)
        ops.add(FSYNC)
    s = spec(noise, properties={"recordsize": "8K"}, tunables={"zfs_txg_timeout": 3600})
    out = replay(tmp_path, s, ops)
    check_sums(out)
    assert out["measure"]["logical"]["syncs"] == 500
    assert out["measure"]["by_cause"]["zil"]["writes"] >= 500 and out["measure"]["physical"]["flushes"] >= 500
