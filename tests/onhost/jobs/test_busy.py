"""The rate that keeps the processors as busy as asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune.errors import ZtuneError
from ztune.onhost.jobs.busy import BusyProcessors, find


class Machine(BusyProcessors):
    """Two processors that a load keeps busy by a curve: ``most`` operations/s are all that it does."""

    def __init__(self, cost: float, most: float, idle: float = 0.05, bend: float = 1.0) -> None:
        self.count = 2.0
        self.cost, self.most, self.idle, self.bend = cost, most, idle, bend
        self.busy = self.whole = 0.0
        self.tried: list[float] = []

    def read(self) -> tuple[float, float]:
        return self.busy, self.whole

    def pass_time(self, rate: float) -> float:
        self.whole += 16.0
        self.busy += 16.0 * min(1.0, self.idle + self.cost * rate**self.bend)
        return rate

    def drive(self, rate: float, _nth: int) -> tuple[int, float]:
        self.tried.append(rate)
        done = self.pass_time(min(rate or self.most, self.most))
        return round(done * 8), done

    def sleep(self, _seconds: float) -> None:
        self.pass_time(0.0)


@pytest.mark.parametrize("bend", [0.6, 1.0, 1.6])
def test_the_rate_is_found_on_straight_and_bent_curves(bend: float) -> None:
    machine = Machine(0.85 / 1000**bend, 1000.0, bend=bend)
    found = find(0.6, machine.drive, machine, sleep=machine.sleep)
    assert abs(found.busy - 0.6) <= 0.02 and found.rate in machine.tried
    assert machine.tried[0] == 0 and len(machine.tried) == len(found.steps) <= 8
    assert found.operations == sum(step.operations for step in found.steps) > 0
    assert (found.asked, found.idle, found.processors) == (0.6, 0.05, 2.0)


def test_whole_rates_for_a_load_that_takes_no_others() -> None:
    machine = Machine(0.1, 9.0, idle=0.0)
    found = find(0.5, machine.drive, machine, sleep=machine.sleep, whole_numbers=True)
    assert found.rate == 5.0 and all(rate == int(rate) for rate in machine.tried)


def test_a_load_that_waits_for_disks_can_t_be_held_there() -> None:
    machine = Machine(0.001, 200.0)
    with pytest.raises(ZtuneError, match="25 % busy as fast as it goes, at 200 operations/s"):
        find(0.6, machine.drive, machine, sleep=machine.sleep)


def test_other_work_is_said() -> None:
    machine = Machine(0.001, 1000.0, idle=0.7)
    with pytest.raises(ZtuneError, match="70 % busy before the load begins"):
        find(0.6, machine.drive, machine, sleep=machine.sleep)
    assert machine.tried == []


def test_a_jump_over_what_was_asked_is_no_rate() -> None:
    class Jumps(Machine):
        def pass_time(self, rate: float) -> float:
            self.whole += 16.0
            self.busy += 16.0 * (0.9 if rate > 500 else 0.1)
            return rate

    machine = Jumps(0.001, 1000.0)
    with pytest.raises(ZtuneError, match="no rate holds the processors at 60 %: the nearest of 7"):
        find(0.6, machine.drive, machine, sleep=machine.sleep)


def test_a_rate_that_the_load_does_not_keep_is_none() -> None:
    class Behind(Machine):
        def drive(self, rate: float, nth: int) -> tuple[int, float]:
            operations, done = super().drive(rate, nth)
            return operations, done if rate == 0 else done / 2

    machine = Behind(0.0009, 1000.0)
    with pytest.raises(ZtuneError, match="was not kept"):
        find(0.6, machine.drive, machine, sleep=machine.sleep)


def test_a_control_group_s_share_of_the_processors(tmp_path: Path) -> None:
    group = tmp_path / "cgroups/db/inner"
    group.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/db/inner\n")
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("50000 100000\n")
    (group.parent / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    found = BusyProcessors(tmp_path, tmp_path / "cgroups")
    assert found.count == 0.5 and found.read()[0] == 2.5
    (tmp_path / "self/cgroup").write_text("1:cpu:/\n")
    (tmp_path / "stat").write_text(f"cpu 9 9 9 9\n{_lines()}intr 1\n")
    whole = BusyProcessors(tmp_path, tmp_path / "cgroups")
    busy, every = whole.read()
    assert busy / every == pytest.approx(0.25) and whole.count >= 1


def _lines() -> str:
    return "".join(f"cpu{n} 10 0 10 50 10 0 0 0 0 0\n" for n in range(512))
