"""Trials, hostile cases and kills on real kernel ZFS, in the lab's guest.

The cases themselves are in tests/support/trial_driver.py, which runs in the guest.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from guests import PATH, SOURCE, Resume

from ztune.lab import Guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DRIVER = Path(__file__).parents[1] / "support" / "trial_driver.py"
DISK = 1 << 30
GUESTS = 2  # as many as the processors of the smallest machine that the tests run on
FEW = 3  # scenarios, for which the start of another guest and of Python in it takes longer than they do


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
        argv = ["python3", f"/host{DRIVER.resolve()}", *disks, *names]
        self.channel = guest.popen(argv, env={"PYTHONPATH": SOURCE, "PATH": PATH})
        self._lines = self.channel.lines()

    def next(self) -> dict[str, Any]:
        line = next(self._lines, None)
        if line is None:
            pytest.fail(f"the driver ended before this scenario: {self.channel.stderr_tail()}")
        return dict(json.loads(line))


@pytest.fixture(scope="module")
def drivers(
    resume: Resume, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Driver]]:
    """The driver of each chosen scenario: they are dealt to guests that work side by side."""
    folder = tmp_path_factory.mktemp("disks")
    chosen = [
        str(item.callspec.params["scenario"])
        for item in request.session.items
        if item.fspath == request.node.fspath
        and isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "scenario" in item.callspec.params
        and item.get_closest_marker("skip") is None
    ]
    found: dict[str, Driver] = {}
    with ExitStack() as guests:
        count = GUESTS if len(chosen) > FEW else 1
        for i in range(count):
            guest = guests.enter_context(resume())
            disks = [guest.add_disk(image(folder / f"door-{i}-{j}"), f"door-{j}") for j in range(2)]
            mine = chosen[i::count]
            found.update(dict.fromkeys(mine, Driver(guest, disks, mine)))
        yield found


# What somebody else may have made of our names. The others take up to minutes each; those of snapshots, of
# pools imported elsewhere and of mounts have shorter ones in test_trial_door, without a guest.
ALWAYS = {"taken_datasets_and_names", "taken_name"}


@pytest.mark.parametrize(
    "scenario",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in scenarios()],
)
def test_on_real_zfs(drivers: dict[str, Driver], scenario: str) -> None:
    answer = drivers[scenario].next()
    assert answer["name"] == scenario
    assert not answer["error"], answer["error"]
