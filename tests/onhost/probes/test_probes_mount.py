"""The probes of a mount, on answers as ``ztune-mount`` gives them, and what the kernel's say there."""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ztune.onhost import probes
from ztune.onhost.events import Events
from ztune.onhost.host.zfs import Commands
from ztune.onhost.probes import measure, mount
from ztune.onhost.probes.context import Context, DatasetContext, DeviceContext, MountContext, PoolContext

_IO = {"reads": 3, "read_bytes": 12288, "writes": 10, "write_bytes": 81920}
STATS: dict[str, Any] = {
    "seconds": 4.0,
    "disks": [
        {
            **{"pool": "tank", "name": "data-0/0", "class": "data", "profile": "hdd-7200"},
            **{**_IO, "flushes": 2, "busy_s": 0.25, "late_s": 0.001},
        },
        {
            **{"pool": "tank", "name": "log-0/0", "class": "log", "profile": "nvme"},
            **{**_IO, "flushes": 7, "busy_s": 0.0, "late_s": 0.0},
        },
    ],
    "causes": {cause: dict(_IO) for cause in ("data", "metadata", "zil", "other")},
    "datasets": [
        {
            **{
                "name": "tank/data",
                **_IO,
                "zil_bytes": 4096,
                "logical": 1000,
                "allocated": 800,
                "ratio": 1.25,
            },
            **{
                "commits": 5,
                "calls": {
                    "sync": {"bytes": 0, "seconds": 0.02, "ns": {"3000000": 4, "8000000": 1}},
                    "read": {"bytes": 0, "seconds": 0.0, "ns": {}},
                    "write": {"bytes": 8192, "seconds": 0.001, "ns": {"1000000": 1}},
                },
                "itx_indirect": 1,
                "itx_copied": 2,
                "itx_needcopy": 3,
                "itx_bytes": 9,
            },
        }
    ],
    "slog_writes": 4,
    "slog_bytes": 16384,
    "cache_write_bytes": 0,
    "arc": {
        **{"size": 5_000_000, "max": 64 << 20, "hits": 100, "misses": 10, "demand_data_hits": 60},
        **{"l2_hits": 0, "l2_misses": 0, "l2_write_bytes": 0, "l2_size": 0},
    },
    "pools": [{"name": "tank", "allocated": 900, "free": 5000}],
    "txgs": 8,
    "processor": {"seconds": 1.5, "compress_s": 1.0, "datasets": [{"name": "tank/data", "seconds": 0.5}]},
}


def later(times: int = 2, busy: bool = True) -> dict[str, Any]:
    """Return the answer after as much again has happened, ``times`` in all."""

    def grow(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: grow(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [grow(v) for v in value]
        return value if isinstance(value, str) or key in mount._LEVELS else value * times

    found: dict[str, Any] = grow(deepcopy(STATS))
    if not busy:
        for disk in found["disks"]:
            disk["busy_s"] = STATS["disks"][0]["busy_s"] if disk["class"] == "data" else 0.0
    return found


class Scene:
    def __init__(self, folder: Path, answers: list[dict[str, Any]]) -> None:
        (folder / "data").mkdir()
        # What ZFS counts as 1,000 bytes: the padding of the last record is no file.
        (folder / "data/table").write_bytes(bytes(400))
        self.said: list[str] = []
        self.columns: dict[str, list[str]] = {}
        self.rows: dict[str, list[list[float]]] = {}
        left = list(answers)
        device = DeviceContext("data", 0, "/s/disk-0", "/s/disk-0")
        log = DeviceContext("log", 0, "/s/disk-1", "/s/disk-1")
        self.context = Context(
            **{"run": "r-1", "trial": "r-1-1", "seed": 1, "state": folder},  # type: ignore[arg-type]
            options={},
            pools=(PoolContext("tank", "tank", "zfs", "", (device, log), True),),
            datasets=(
                DatasetContext("tank/data", "tank/data", ("data", "wal"), folder, "tank", "zfs", False, ""),
            ),
            role_dirs={"data": folder / "data"},
            command=Commands(Events((folder / "events").open("w"))),
            mount=MountContext(os.getpid(), lambda: left.pop(0) if len(left) > 1 else left[0]),
            pids=lambda: [os.getpid()],
            warn=self.said.append,
            series=self.take,
        )

    def take(self, name: str, columns: Any, rows: Any) -> None:
        self.columns[name] = list(columns)
        self.rows.setdefault(name, []).extend(map(list, rows))


def test_the_measure_is_the_difference_of_two_answers(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [STATS, later(3)])
    window = measure.begin(scene.context)
    window.close()
    found = window.end()
    assert found["physical"] == {
        **{"reads": 12, "read_bytes": 49152, "writes": 40, "write_bytes": 327680, "flushes": 18}
    }
    first, second = found["by_vdev"]
    assert (first["path"], first["class"], first["busy_ms"], first["source"]) == (
        *("/s/disk-0", "data", 500.0, "mount"),
    )
    assert (second["path"], second["busy_ms"], second["profile"]) == ("/s/disk-1", 0.0, "nvme")
    assert (first["late_ms"], second["late_ms"]) == (2.0, 0.0)
    assert found["by_cause"]["metadata"]["writes"] == 20
    assert found["arc"]["hits"] == 200 and found["arc"]["size_end"] == 5_000_000
    assert found["zil"] == {
        **{
            "commits": 10,
            "commit_s": 0.04,
            "itx": 12,
            "itx_indirect": 2,
            "itx_copied": 4,
            "itx_needcopy": 6,
            "writes": 20,
        },
        **{"bytes": 163840, "slog_writes": 8, "slog_bytes": 32768, "source": "mount"},
    }
    assert found["sync_latency_ms"] == {
        **{"count": 10, "mean": 4.0, "p50": 3.0, "p90": 8.0, "p95": 8.0, "p99": 8.0, "p999": 8.0, "max": 8.0}
    }
    assert found["read_latency_ms"] == {"count": 0} and found["write_latency_ms"]["p50"] == 1.0
    assert found["txgs"] == 16
    assert found["logical"] == {
        **{"reads": 0, "read_bytes": 0, "writes": 2, "write_bytes": 16384, "source": "mount"}
    }
    assert found["space"]["allocated"] == 900 and found["space"]["logical"] == 1000
    assert found["space"]["files"] == 400
    assert found["space"]["compression_ratio"] == 0.5
    [row] = found["space"]["by_dataset"]
    assert (row["files"], row["logical"], row["ratio"]) == (400, 1000, 1.25)
    assert found["space"]["by_dataset"][0]["roles"] == ["data", "wal"]
    assert found["processor"] == {
        **{"seconds": 3.0, "compress_s": 2.0, "datasets": [{"name": "tank/data", "seconds": 1.0}]}
    }
    assert found["cpu"]["mount_user_s"] >= 0 and found["cpu"]["user_s"] >= 0
    assert scene.said == []


def test_latencies_are_of_the_window_and_of_all_datasets(tmp_path: Path) -> None:
    first = deepcopy(STATS)
    first["datasets"].append(deepcopy(first["datasets"][0]) | {"name": "tank/wal"})
    second = deepcopy(first)
    for dataset, more in zip(second["datasets"], ({"500000": 7}, {"8000000": 2}), strict=True):
        dataset["calls"]["read"] = {"bytes": 4096, "seconds": 0.0195, "ns": more}
        # What lasted long before the window is not in it.
        dataset["calls"]["sync"]["ns"] = {"3000000": 5, "8000000": 1}
        dataset["calls"]["sync"]["seconds"] += 0.003
    found = measure.begin(Scene(tmp_path, [first, second]).context).end()
    assert found["sync_latency_ms"] == {
        **{"count": 2, "mean": 3.0, "p50": 3.0, "p90": 3.0, "p95": 3.0, "p99": 3.0, "p999": 3.0, "max": 3.0}
    }
    read = found["read_latency_ms"]
    assert (read["count"], read["p50"], read["p95"], read["max"]) == (9, 0.5, 8.0, 8.0)
    assert read["mean"] == pytest.approx(39 / 9, abs=1e-6)


def test_instant_disks_keep_no_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [STATS, later(3, busy=False)])
    found = measure.begin(scene.context).end()
    assert [row["busy_ms"] for row in found["by_vdev"]] == [None, None]


@pytest.mark.parametrize("late_s, said", [(0.0037, False), (0.0076, False), (0.05, True)])
def test_a_machine_too_busy_for_its_disks_is_told(tmp_path: Path, late_s: float, said: bool) -> None:
    first = deepcopy(STATS)
    first["disks"][0]["late_s"] = late_s  # for 15 I/Os, and 250 ms of work
    second = deepcopy(first)
    for key in ("reads", "writes", "flushes", "busy_s", "late_s"):
        second["disks"][0][key] *= 2
    scene = Scene(tmp_path, [first, second])
    measure.begin(scene.context).end()
    assert [text.split(", and")[0] for text in scene.said] == said * [
        "this machine was too busy for the modelled disks: answers of data-0/0 came 3.33 ms late on average"
    ]


def test_the_probes_ask_the_mount_and_not_the_kernel(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [STATS])
    running = probes.start(scene.context)
    running.freeze()
    found = running.stop()
    assert set(found) == {"mount", "series", "cpu", "space"} and scene.said == []
    assert found["mount"]["datasets"][0]["roles"] == ["data", "wal"]
    assert found["mount"]["causes"]["zil"]["writes"] == 0
    assert scene.columns["disks"][1:3] == ["tank/data-0/0 reads", "tank/data-0/0 read_bytes"]
    assert "tank/data write_bytes" in scene.columns["datasets"]
    # A level is as it is, a count since the window began.
    row = dict(zip(scene.columns["arc"], scene.rows["arc"][-1], strict=True))
    assert (row["size"], row["hits"]) == (5_000_000, 0)
    for name in ("kstat", "txgs", "iostat", "datasets", "disks", "zdb", "sizes"):
        said: list[str] = []
        probes.start(replace(scene.context, options={name: True}, warn=said.append)).abandon()
        assert len(said) == 1 and said[0].startswith(f"probe {name} is left out: the "), said


def test_a_mount_that_died_costs_its_probes_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [STATS])

    def gone() -> dict[str, Any]:
        raise OSError("the mount has died")

    running = probes.start(replace(scene.context, mount=MountContext(os.getpid(), gone)))
    running.freeze()
    assert set(running.stop()) == {"cpu", "space"}
    assert any(text.startswith("probe mount is left out: the mount has died") for text in scene.said)


def test_a_count_that_was_not_there_before_counts_from_nothing() -> None:
    assert mount.change({}, {"a": 3, "b": [{"writes": 2}]}) == {"a": 3, "b": [{"writes": 2}]}
    assert mount.change({"a": 1.5}, {"a": 2.0, "size": 7, "name": "x"}) == {"a": 0.5, "size": 7, "name": "x"}


def test_without_a_mount_there_is_no_such_probe(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [STATS])
    said: list[str] = []
    context = replace(scene.context, mount=None, options={"mount": True}, warn=said.append, pools=())
    probes.start(context).abandon()
    assert any("probe mount is left out: the pools are the kernel's" in text for text in said)


@pytest.mark.parametrize("name", ["mount", "series"])
def test_each_can_be_switched_off(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path, [STATS])
    running = probes.start(replace(scene.context, options={name: False}))
    assert name not in running.stop()
