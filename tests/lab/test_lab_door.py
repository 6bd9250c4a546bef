"""Trials, hostile cases and kills on real kernel ZFS, in the lab's guest; and a power cut.

The cases themselves are in tests/trial/trial_driver.py, which runs in the guest.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from ztune.lab import Guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TRIAL = Path(__file__).parents[1] / "trial"
DRIVER, HARNESS = TRIAL / "trial_driver.py", TRIAL / "trial_harness.py"
DISK = 1 << 30


def scenarios() -> list[str]:
    """Return the names of the driver's scenarios in its order, read from its source: it needs a ZFS host."""
    tree = ast.parse(DRIVER.read_text(encoding="utf-8"))
    table = next(
        n for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "SCENARIOS"
    )
    assert isinstance(table.value, ast.DictComp)
    return [n.id for n in ast.walk(table.value.generators[0].iter) if isinstance(n, ast.Name)]


def image(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(DISK)
    return path


class Driver:
    """One run of the driver in the guest; its answers in order."""

    def __init__(self, guest: Guest, disks: list[str], names: list[str]) -> None:
        self.channel = guest.popen(["python3", str(DRIVER), *disks, *names])
        self._lines = self.channel.lines()

    def next(self) -> dict[str, Any]:
        line = next(self._lines, None)
        if line is None:
            pytest.fail(f"the driver ended before this scenario: {self.channel.stderr_tail()}")
        return dict(json.loads(line))


@pytest.fixture(scope="module")
def driver(guest: Guest, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp("disks")
    chosen = [
        item.callspec.params["scenario"]
        for item in request.session.items
        if item.fspath == request.node.fspath
        and isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "scenario" in item.callspec.params
    ]
    disks = [guest.add_disk(image(folder / f"door-{i}"), f"door-{i}") for i in range(2)]
    return Driver(guest, disks, chosen)


@pytest.mark.parametrize("scenario", scenarios())
def test_on_real_zfs(driver: Driver, scenario: str) -> None:
    answer = driver.next()
    assert answer["name"] == scenario
    assert not answer["error"], answer["error"]


def test_after_a_power_cut_clean_leaves_nothing(
    resume: Callable[..., AbstractContextManager[Guest]], tmp_path: Path
) -> None:
    images = {name: image(tmp_path / name) for name in ("cut-a", "cut-b", "keep")}
    state = "/var/tmp/keep/state"
    place = {
        "kind": "disks",
        "disks": {
            "main": {c: [[f"/dev/disk/by-id/ztune-cut-{d}"]] for c, d in (("data", "a"), ("log", "b"))}
        },
    }
    vdevs = [{"class": c, "kind": "stripe", "disks": 1, "profile": "nvme"} for c in ("data", "log")]
    dataset = {"name": "main/db", "roles": ["data", "wal"], "properties": {"recordsize": "16K"}}
    spec = {
        **{"format": "ztune-trial", "version": 1, "run": "r-cut", "trial": "r-cut-0001", "state": state},
        "place": place,
        "layout": {"arc": 64 << 20, "pool": [{"name": "main", "vdev": vdevs}], "dataset": [dataset]},
        "job": {"name": "writer", "params": {"pause": 1.0, "records": 1000}},
        "patience": 40.0,
    }
    with resume() as guest:
        for name, path in images.items():
            guest.add_disk(path, name)
        keep = "/dev/disk/by-id/ztune-keep"
        guest.run(["mkfs.ext4", "-q", keep], check=True)
        guest.run(["mkdir", "/var/tmp/keep"], check=True)
        guest.run(["mount", keep, "/var/tmp/keep"], check=True)
        channel = guest.popen(["python3", str(HARNESS), "run"])
        channel.send(json.dumps(spec))
        for line in channel.lines():
            event = json.loads(line)
            assert event["event"] not in ("error", "end"), event
            if event.get("step") == "measure":
                break
        guest.cut()
    with resume() as guest:
        for name, path in images.items():
            guest.add_disk(path, name)
        guest.run(["mkdir", "/var/tmp/keep"], check=True)
        guest.run(["mount", keep, "/var/tmp/keep"], check=True)
        found = json.loads(guest.run(["python3", str(HARNESS), "list", "--state", state], check=True).stdout)
        assert [t["kind"] for t in found["trials"][0]["things"]][:1] == ["parameters"]
        done = guest.run(["python3", str(HARNESS), "clean", "--state", state, "--patience", "40"])
        assert done.returncode == 0, done.stdout.decode()
        left = guest.run(
            ["find", "/var/tmp/keep", "-mindepth", "1", "-not", "-name", "lost+found"], check=True
        )
        assert left.stdout == b""
        assert guest.run(["zpool", "list", "-H"], check=True).stdout == b""
    for name in ("cut-a", "cut-b"):
        with images[name].open("rb") as file:
            assert file.read(2 << 20).strip(b"\0") == b""
            file.seek(-(16 << 20), 2)
            assert file.read().strip(b"\0") == b""
