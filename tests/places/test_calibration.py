"""A host's processors: the file of their rates, and what a replay's work takes on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ztune.errors import InputError
from ztune.places import calibration
from ztune.places.calibration import HostProcessors, ProcessorRates
from ztune.places.engine import Engine

RATES = {
    ("compress", "lz4", 8192): 1.0,
    ("compress", "lz4", 131072): 2.0,
    ("compress", "zstd-3", 131072): 6.0,
    ("compress", "zstd-9", 131072): 20.0,
    ("compress", "zstd-fast-1", 131072): 3.0,
    ("decompress", "gzip-6", 131072): 2.5,
    ("checksum", "fletcher4", 131072): 0.1,
    ("copy", "copy", 0): 0.05,
}
OURS = ProcessorRates("ours", 2, "2.3.2", RATES)


def times(factor: float) -> ProcessorRates:
    return ProcessorRates("theirs", 16, "2.3.2", {key: ns * factor for key, ns in RATES.items()})


def call(operation: str, algorithm: str, size: int, seconds: float, dataset: str | None = "tank/data") -> Any:
    return {
        "dataset": dataset, "operation": operation, "algorithm": algorithm, "size": size, "seconds": seconds,
        "calls": 1, "bytes": size, "out_bytes": size,
    }  # fmt: skip


def result(*calls: Any, disks: float = 1.0) -> dict[str, Any]:
    return {
        "measure": {
            "processor": {
                "seconds": sum(c["seconds"] for c in calls),
                "datasets": [{"name": "tank/data"}, {"name": "tank/wal"}],
                "calls": list(calls),
            },
            "model": {"modelled_s": disks},
        }
    }


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    calibration.write(tmp_path / "host.json", OURS)
    assert calibration.read(tmp_path / "host.json") == OURS


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: "[]", "is no calibration"),
        (lambda text: text.replace('"ztune_processor": 1', '"ztune_processor": 7'), "has version 7"),
        (lambda text: text.replace('"cores": 2', '"cores": 0'), "whole number from 1"),
        (lambda text: text.replace('"cores": 2,', ""), "lacks 'cores'"),
        (lambda text: text.replace('"ns_per_byte": 6.0', '"ns_per_byte": -6.0'), "no ns_per_byte above 0"),
        (lambda text: text.replace('"ns_per_byte": 6.0', '"ns_per_byte": NaN'), "no ns_per_byte above 0"),
        (lambda text: text.replace('"operation": "copy"', '"operation": "sing"'), "unknown operation"),
        (lambda text: text.replace('"size": 0', '"size": "0"'), "no size in bytes"),
    ],
)
def test_a_damaged_file_gets_one_sentence(tmp_path: Path, change: Any, says: str) -> None:
    path = tmp_path / "host.json"
    calibration.write(path, OURS)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=says) as caught:
        calibration.read(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_what_is_no_file_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        calibration.read(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no text"):
        calibration.read(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("operation", "algorithm", "size", "ns"),
    [
        ("compress", "lz4", 8192, 1.0),
        ("compress", "lz4", 4096, 1.0),
        ("compress", "lz4", 1 << 20, 2.0),
        ("compress", "zstd-5", 131072, 6.0),  # the nearest level
        ("compress", "zstd-19", 131072, 20.0),
        ("compress", "zstd-fast-10", 131072, 3.0),
        ("decompress", "gzip-9", 8192, 2.5),
        ("checksum", "zilog2", 4096, 0.1),
        ("checksum", "skein", 4096, None),
    ],
)
def test_the_rate_of_what_is_most_alike(operation: str, algorithm: str, size: int, ns: float | None) -> None:
    assert OURS.rate(operation, algorithm, size) == ns


def test_work_on_another_host() -> None:
    found = result(
        call("compress", "lz4", 131072, 2.0),
        call("decompress", "gzip-9", 131072, 1.0, "tank/wal"),
        call("parity", "raidz1", 131072, 0.5, None),
        disks=0.25,
    )
    HostProcessors.like(times(3.0), OURS, None).charge(found)
    host, model = found["measure"]["processor"]["host"], found["measure"]["model"]
    assert host["name"] == "theirs" and host["cores"] == 16
    assert host["seconds"] == pytest.approx(10.5)
    assert (host["compress_s"], host["decompress_s"], host["parity_s"]) == pytest.approx((6.0, 3.0, 1.5))
    assert [d["seconds"] for d in host["datasets"]] == pytest.approx([6.0, 3.0])
    assert model["disks_s"] == 0.25 and model["processor_s"] == pytest.approx(10.5 / 16)
    assert model["modelled_s"] == model["processor_s"]


def test_disks_that_take_longer_decide() -> None:
    found = result(call("compress", "lz4", 131072, 2.0), disks=30.0)
    HostProcessors(4).charge(found)
    model = found["measure"]["model"]
    assert (model["modelled_s"], model["disks_s"], model["processor_s"]) == (30.0, 30.0, 0.5)


def test_what_else_a_busy_host_did_is_added() -> None:
    def busy(host: HostProcessors) -> Any:
        found = result(call("compress", "lz4", 131072, 6.0))
        found["measure"]["model"]["trace_s"] = 60.0
        host.charge(found)
        return found["measure"]["model"].get("host_busy")

    assert busy(HostProcessors.of(None, {}, 4, 0.9)) == pytest.approx(0.9 + 6 / 4 / 60)
    # Half the processors, and such as take twice as long.
    assert busy(HostProcessors.of(2, {}, 4, 0.4)) == pytest.approx(0.8 + 6 / 2 / 60)
    slow = HostProcessors.like(times(2.0), OURS, 4).to_json()
    assert busy(HostProcessors.of(None, slow, 4, 0.4)) == pytest.approx(0.8 + 12 / 4 / 60)
    assert busy(HostProcessors.of(None, {}, 4)) is None


def test_an_older_engines_result_stays_as_it_is() -> None:
    found = {"measure": {"model": {"modelled_s": 3.0}, "cpu_s": 1.0}}
    HostProcessors(4).charge(found)
    assert found == {"measure": {"model": {"modelled_s": 3.0}, "cpu_s": 1.0}}


def test_cores_are_asked_calibrated_recorded() -> None:
    kept = HostProcessors.like(times(2.0), OURS, None).to_json()
    assert HostProcessors.of(3, kept, 8).cores == 3
    assert HostProcessors.of(None, kept, 8).cores == 16
    assert HostProcessors.of(None, {}, 8).cores == 8
    assert HostProcessors.of(None, {}, None).cores >= 1


def stand_in(tmp_path: Path, answer: str, code: int = 0) -> Engine:
    (tmp_path / "answer").write_text(answer)
    program = tmp_path / "engine"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\nexit {code}\n")
    program.chmod(0o755)
    return Engine(program, "1", "2.3.2")


def answer(waited: float) -> str:
    return json.dumps({"version": 1, "waited": waited, "rates": OURS.to_json()["rates"]})


def test_a_busy_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda seconds: 4.0)
    assert calibration.measure(stand_in(tmp_path, answer(0.02))).rates == RATES
    with pytest.raises(InputError, match=r"this machine is busy: .* waited 60% of its time"):
        calibration.measure(stand_in(tmp_path, answer(0.6)))
    monkeypatch.setattr("psutil.cpu_percent", lambda seconds: 97.0)
    with pytest.raises(InputError, match=r"this machine is busy: its processors were 97% in use"):
        calibration.measure(stand_in(tmp_path, answer(0.02)))


def test_this_machines_own_is_kept_and_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda seconds: 4.0)
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    engine = stand_in(tmp_path, answer(0.02))
    found = calibration.own(engine)
    engine.path.unlink()  # it is not asked again
    assert calibration.own(engine) == found
    kept = next((tmp_path / "home").rglob("processor/*.json"))
    kept.write_text("{")
    assert calibration.own(stand_in(tmp_path, answer(0.02))) == found


def test_the_engine_gets_the_host_s_rates_or_those_that_ztune_ships() -> None:
    own = HostProcessors.like(times(3.0), OURS, 4).spec()
    assert own["cores"] == 4
    assert {"operation": "compress", "algorithm": "lz4", "size": 8192, "ns_per_byte": 3.0} in own["rates"]
    kept = HostProcessors.like(times(3.0), OURS, 4).to_json()
    assert HostProcessors.of(None, kept, None).spec() == own
    assert HostProcessors.of(None, kept, 2).spec() == {**own, "recorded": 2}
    shipped = HostProcessors(2).spec()["rates"]
    assert {row["operation"] for row in shipped} == {"compress", "decompress", "checksum", "copy"}
    assert all(row["ns_per_byte"] > 0 for row in shipped)
