"""The logs that threads commit to together, as a replay tells the engine of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ztune.places.calibration import HostProcessors
from ztune.places.replay import Replay
from ztune.trace.inputs import OpsFile

PATHS = {
    "/srv/wal/00000001000000000000000A": "wal",
    "/srv/wal/00000001000000000000000B": "wal",
    # What is archived is written by one for itself.
    "/srv/archive/00000001000000000000000A": "archive",
    "/srv/my/ib_logfile0": "wal",
    "/srv/my/binlog/binlog.000001": "wal",
    "/srv/my/binlog/binlog.000002": "wal",
    "/srv/my/binlog/binlog.index": "wal",
    "/srv/app.db-wal": "wal",
    "/srv/my/ibdata1": "data",
    "/srv/rocks/000012.log": "wal",
    "/srv/rocks/000014.log": "wal",
    "/srv/rocks/000013.sst": "data",
}


def told(
    files: dict[str, str],
    *,
    closed: bool,
    operations: int = 7,
    commits: int | None = None,
    beside: int = 0,
    waits: bool = False,
    of: int = 1,
) -> dict[str, Any]:
    """Return what the engine is told of the threads of a trace with these files."""
    replay = Replay.__new__(Replay)
    workload = SimpleNamespace(result={"operations": operations, "commits": commits})
    manifest = SimpleNamespace(workload=workload, recorder=SimpleNamespace(waits=waits))
    replay.trace = cast(Any, SimpleNamespace(manifest=manifest))
    found = tuple(
        OpsFile(id=i, size=0, role=role, path=path, trace_id=i, neighbour=len(files) - i <= beside)
        for i, (path, role) in enumerate(files.items())
    )
    replay.inputs = cast(Any, SimpleNamespace(files=found, beside=40 if beside else None))
    replay._closed = closed
    replay.rate = cast(Any, SimpleNamespace(of=of))
    replay._host = HostProcessors.of(1, {}, 1)
    return replay.threads()


@pytest.mark.parametrize(
    ("files", "given", "said"),
    [
        (PATHS, {"waits": True}, True),
        (PATHS, {"waits": False}, False),
        (PATHS, {"waits": True, "beside": 1}, False),
        (PATHS, {"waits": True, "of": 2}, False),
        ({"/a": "wal"}, {"waits": True}, False),
    ],
)
def test_what_a_recording_tells_of_waits_is_taken_for_the_logs_of_one_whole_job(
    files: dict[str, str], given: dict[str, Any], said: bool
) -> None:
    assert told(files, closed=True, **given).get("waits", False) == said


@pytest.mark.parametrize("closed", [False, True])
def test_each_log_of_a_database_that_commits_in_groups_is_told(closed: bool) -> None:
    said = told(PATHS, closed=closed)
    assert said["logs"] == [[0, 1], [3], [4, 5], [9, 10]]
    assert said["operations"] == 7
    assert "log_operations" not in said


@pytest.mark.parametrize("commits", [0, 3])
def test_operations_that_wait_for_no_log_are_no_commits(commits: int) -> None:
    said = told(PATHS, closed=True, commits=commits)
    assert said["operations"] == 7 and said["log_operations"] == [commits] * 4
    assert "log_operations" not in told({"/srv/app.db-wal": "wal"}, closed=True, commits=commits)


@pytest.mark.parametrize(("many", "logs"), [(2, 2), (9, 8)])
def test_each_directory_has_a_log_of_its_own_up_to_what_the_engine_takes(many: int, logs: int) -> None:
    files = {f"/srv/{i}/00001{n}.log": "wal" for i in range(many) for n in (1, 2)}
    assert told(files, closed=False)["logs"] == [[2 * i, 2 * i + 1] for i in range(logs)]


@pytest.mark.parametrize("path", ["/srv/app.db-wal", "/srv/my/ibdata1", "/srv/rocks/000013.sst"])
def test_other_files_are_in_no_log(path: str) -> None:
    said = told({path: PATHS[path]}, closed=False)
    assert "logs" not in said and "operations" not in said


def test_the_logs_of_two_jobs_are_not_one() -> None:
    two = {f"/srv/{job}/00000001000000000000000A": "wal" for job in ("a", "b")}
    said = told(two, closed=False, beside=1)
    assert said["logs"] == [[0], [1]]
    assert (said["operations"], said["log_operations"]) == (7, [7, 40])
