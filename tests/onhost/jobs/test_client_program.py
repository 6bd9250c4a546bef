"""When the operations of a load begin, by a clock that only the test moves."""

from __future__ import annotations

import pytest

from ztune.onhost.jobs import client_program
from ztune.onhost.jobs.client_program import Load, Worker, run_all, times_of


class Clock:
    """A clock that goes on while somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(client_program, "time", made)
    return made


class Steady(Worker):
    """Does operations of the same length."""

    def __init__(self, load: Load, number: int, clock: Clock, takes: list[float], at_once: int = 1) -> None:
        super().__init__(load, number, kinds=["work"], at_once=at_once)
        self.clock, self.takes = clock, takes
        self.begun: list[float] = []

    def work(self) -> None:
        for start in self.starts():
            self.begun.append(round(self.clock.now - 1000, 6))
            self.clock.now += self.takes[min(self.done, len(self.takes) - 1)]
            self.note("work", start)


def test_operations_begin_when_they_are_due_until_the_time_is_over(clock: Clock) -> None:
    load = Load(1, 1, seconds=2, rate=2)
    worker = Steady(load, 0, clock, [0.1])
    assert run_all(load, [worker]) == pytest.approx(1.6)
    assert worker.begun == [0, 0.5, 1, 1.5]
    assert times_of([worker]) == {"work": [100_000] * 4}
    assert load.share([worker]) == 1


def test_a_late_operation_counts_from_when_it_was_due_and_is_made_up_for(clock: Clock) -> None:
    load = Load(1, 1, seconds=2, rate=2)
    worker = Steady(load, 0, clock, [1.2, 0.1])
    run_all(load, [worker])
    assert worker.begun == [0, 1.2, 1.3, 1.5]
    assert list(worker.times["work"]) == [1_200_000, 800_000, 400_000, 100_000]


def test_what_is_too_slow_for_its_pace_ends_with_its_time(clock: Clock) -> None:
    load = Load(1, 1, seconds=2, rate=100)
    worker = Steady(load, 0, clock, [0.75])
    assert run_all(load, [worker]) == pytest.approx(2.25)
    assert worker.done == 3


@pytest.mark.parametrize(("number", "first"), [(0, 0.0), (1, 0.05)])
def test_workers_take_turns_and_so_do_what_they_send_at_once(clock: Clock, number: int, first: float) -> None:
    load = Load(2, 1, seconds=0.29, rate=100)
    worker = Steady(load, number, clock, [0.0], at_once=5)
    run_all(load, [worker])
    assert worker.begun == pytest.approx([first, first + 0.1, first + 0.2])


def test_without_a_pace_each_begins_when_the_last_is_done(clock: Clock) -> None:
    load = Load(1, 1, seconds=1, operations=2)
    worker = Steady(load, 0, clock, [0.25])
    run_all(load, [worker])
    assert worker.begun == [0, 0.25, 0.5, 0.75]  # by the time, whatever the count


def test_a_count_is_shared_out_and_done_however_long_it_takes(clock: Clock) -> None:
    load = Load(2, 1, operations=5, rate=10)
    workers = [Steady(load, number, clock, [3.0]) for number in range(2)]
    for worker in workers:
        run_all(load, [worker])
    assert [worker.done for worker in workers] == [3, 2]
    assert load.share(workers) == 1


def test_what_a_worker_ran_into_is_raised(clock: Clock) -> None:
    load = Load(1, 1, seconds=1)

    class Broken(Worker):
        def work(self) -> None:
            raise ValueError("no such key")

    with pytest.raises(ValueError, match="no such key"):
        run_all(load, [Broken(load, 0, kinds=["work"])])
