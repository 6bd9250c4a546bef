"""Two jobs as one: where each lies, what runs, and that one ends with the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import interrupt
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.beside import PREFIX, TwoJobs, loaded

ROLES = ("data", "wal", f"{PREFIX}data", f"{PREFIX}wal")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkDir]:
    (tmp_path / "w").mkdir()
    found = WorkDir.create("test", parent=tmp_path / "w")
    yield found
    found.remove()


def made(work: WorkDir, tmp_path: Path, which: str = "both", **theirs: Any) -> TwoJobs:
    def part(params: dict[str, Any]) -> dict[str, Any]:
        return {"name": "trial_job:Writer", "params": {"load": 4096, **params}}

    params = {"first": part({"records": 3}), "neighbour": part({"records": 5, **theirs})}
    job = TwoJobs({**params, "which": which}, {}, patience=1.0)
    assert job.roles() == ROLES
    places = {role: tmp_path / role for role in ROLES}
    for path in places.values():
        path.mkdir()
    job.prepare(work, places)
    job.load()
    job.stop()
    return job


def test_both_run_at_one_time_each_with_its_own_files(work: WorkDir, tmp_path: Path) -> None:
    job = made(work, tmp_path, pause=0.1)
    job.start()
    assert len(job.pids()) == 2
    result = job.verify(job.run())
    theirs = result.details["neighbour"]
    assert (result.operations, theirs["operations"]) == (3, 5)
    assert 0 < result.details["together_s"] <= theirs["seconds"] + 0.5
    assert all(check["ok"] for check in theirs["checks"]) and all(check.ok for check in result.checks)
    sizes = [(tmp_path / role / "log").stat().st_size for role in ("wal", f"{PREFIX}wal")]
    assert sizes == [3 * 8192, 5 * 8192]
    job.stop()
    job.cleanup()
    assert job.pids() == [] and list((tmp_path / "w").iterdir()) == []


@pytest.mark.parametrize(("which", "done"), [("first", 3), ("neighbour", 5)])
def test_one_alone_has_the_other_ones_files_beside_it(
    work: WorkDir, tmp_path: Path, which: str, done: int
) -> None:
    job = made(work, tmp_path, which)
    job.start()
    result = job.verify(job.run())
    assert result.operations == done and "neighbour" not in result.details
    assert (tmp_path / "data" / "table").exists() and (tmp_path / f"{PREFIX}data" / "table").exists()
    logs = [(tmp_path / role / "log").exists() for role in ("wal", f"{PREFIX}wal")]
    assert logs == [which == "first", which == "neighbour"]
    job.stop()
    job.cleanup()


def test_a_neighbour_that_fails_is_named(work: WorkDir, tmp_path: Path) -> None:
    job = made(work, tmp_path, fail="run")
    job.start()
    with pytest.raises(ZtuneError, match="the neighbour: the job failed, as it was told to"):
        job.run()
    job.cleanup()


def test_a_neighbour_that_fails_ends_the_first_at_once(
    work: WorkDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for hours for what is worth nothing."""
    job = made(work, tmp_path, fail="run")
    job.start()
    ended: list[float] = []

    def long(_progress: Any) -> None:
        began = time.monotonic()
        try:
            while time.monotonic() - began < 20:
                time.sleep(0.1)
        finally:
            ended.append(time.monotonic() - began)

    monkeypatch.setattr(job.first, "run", long)
    with interrupt.signals_as_interrupt():
        with pytest.raises(ZtuneError, match="the neighbour: the job failed, as it was told to"):
            job.run()
        assert not interrupt.asked()
    assert ended[0] < 10
    job.cleanup()


def test_what_stops_the_first_ends_the_neighbour(
    work: WorkDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(work, tmp_path, pause=600)
    job.start()

    def stopped(_progress: Any) -> None:
        time.sleep(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(job.first, "run", stopped)
    before = threading.active_count()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert time.monotonic() - began < 60 and threading.active_count() == before
    assert job.neighbour.pids() == []
    job.cleanup()


def test_which_of_them_is_no_part_of_what_is_loaded() -> None:
    params = {"first": {"name": "trial_job:Writer", "params": {}}, "which": "both"}
    assert loaded(TwoJobs, params) == {"first": params["first"]}
    with pytest.raises(InputError, match="which is 'all'; it is one of first, both and neighbour"):
        TwoJobs({**params, "neighbour": params["first"], "which": "all"})
