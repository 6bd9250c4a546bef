"""Everything slower together: what a job makes of a machine on which all goes slower by one factor."""

from __future__ import annotations

from pathlib import Path

import pytest
from workloads_made import job_workload

from ztune.databases.fio.onhost.load import Fio, parse_jobs, slower
from ztune.databases.postgresql.onhost.oltp import PostgresOltp
from ztune.databases.postgresql.onhost.time import slower as slower_settings
from ztune.errors import InputError
from ztune.onhost.host import filesystems, tunables
from ztune.onhost.jobs.job import WorkloadResult


def test_fio_goes_slower_by_durations_and_rates_and_nothing_else() -> None:
    text = (
        "[a]\nsize=1g\nbs=8k\nruntime=60\nstartdelay=1500ms\nthinktime=200\nrate=8m,4m\nrate_iops=100\n"
        "rw=randrw\niodepth=1\n"
    )
    [job] = parse_jobs(text, "x.fio")
    slow = slower(job, 10)
    assert slow.seconds == 600
    assert slow.options["startdelay"] == "15000000us"
    assert slow.options["thinktime"] == "2000us"
    assert slow.options["rate"] == "838861,419430"
    assert slow.options["rate_iops"] == "10"
    changed = {"runtime", "startdelay", "thinktime", "rate", "rate_iops"}
    assert {k: v for k, v in slow.options.items() if k not in changed} == {
        k: v for k, v in job.options.items() if k not in changed
    }
    assert slower(job, 1) is job


def test_a_rate_that_fio_cannot_go_slower_than_is_said() -> None:
    [job] = parse_jobs("[a]\nsize=1g\nrate_iops=5\n", "x.fio")
    with pytest.raises(InputError, match=r"\[a\]: rate_iops=5 is too low to be slowed down 10 times"):
        slower(job, 10)
    [job] = parse_jobs("[a]\nsize=1g\nruntime=soon\n", "x.fio")
    with pytest.raises(InputError, match="runtime='soon' can't be slowed down"):
        slower(job, 10)


def test_fio_from_parameters() -> None:
    workload = job_workload("fio", {"seconds": 30, "rate_iops": 400, "numjobs": 4, "rwmixread": 50})
    [section] = Fio(workload.job.params, dilation=10).sections
    assert section.seconds == 300 and section.options["rate_iops"] == "5,5"


def test_times_of_postgresql() -> None:
    settings = {"checkpoint_timeout": "30s", "shared_buffers": "32MB", "commit_delay": "50", "fsync": "on"}
    assert slower_settings(settings, 1) == settings
    slow = slower_settings(settings, 10)
    assert slow["checkpoint_timeout"] == "300s" and slow["commit_delay"] == "500us"
    # Unless told otherwise these act every 200 ms; 10 s is the most that PostgreSQL takes.
    assert slow["wal_writer_delay"] == "2000ms"
    assert slower_settings(settings, 100)["bgwriter_delay"] == "10000ms"
    assert slow["shared_buffers"] == "32MB" and slow["fsync"] == "on"
    assert slower_settings({"checkpoint_timeout": "2min"}, 10)["checkpoint_timeout"] == "1200s"
    with pytest.raises(InputError, match="checkpoint_timeout = 'later' is no time"):
        slower_settings({"checkpoint_timeout": "later"}, 2)


def test_results_read_as_on_the_real_disk() -> None:
    log = {"writes": 7.0, "write_s": 5.0}
    result = WorkloadResult(
        100.0, 500, "transaction", {"mean": 80.0, "max": 400.0}, offered_per_second=6.0, log=log
    )
    real = result.undilated(10)
    assert (real.seconds, real.operations, real.per_second) == (10.0, 500, 50.0)
    assert real.latency_ms == {"mean": 8.0, "max": 40.0}
    assert real.offered_per_second == 60.0 and real.to_json()["offered_per_second"] == 60.0
    assert real.log == {"writes": 7.0, "write_s": 0.5}
    assert result.undilated(1) is result


def test_oltp_takes_a_dilation() -> None:
    workload = job_workload("postgres-oltp")
    assert PostgresOltp(workload.job.params, dilation=4).dilation == 4


def test_parameters_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "zfs_txg_timeout": "5",
        "l2arc_feed_secs": "1",
        "zfs_arc_min_prefetch_ms": "0",
    }.items():
        (tmp_path / name).write_text(value)
    monkeypatch.setattr(tunables, "PARAMETERS", tmp_path)
    given = {"zfs_dirty_data_max": 1 << 26, "l2arc_feed_secs": 3}
    assert tunables.slower(given, 1) == given
    # 0 means "as built in" and is not ours to know.
    assert tunables.slower(given, 4) == {
        "zfs_dirty_data_max": 1 << 26,
        "l2arc_feed_secs": 12,
        "zfs_txg_timeout": 20,
    }


def test_ext4_commits_less_often(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def run(argv: list[str], *, timeout: float = 0) -> str:
        seen.append(argv)
        return ""

    filesystems.mount(run, "ext4", "/dev/x", tmp_path, 10)  # type: ignore[arg-type]
    filesystems.mount(run, "ext4", "/dev/x", tmp_path)  # type: ignore[arg-type]
    filesystems.mount(run, "xfs", "/dev/x", tmp_path, 10)  # type: ignore[arg-type]
    assert [c[4:-2] for c in seen[:2]] == [["noatime,noinit_itable,commit=50"], ["noatime,noinit_itable"]]
    assert seen[2][4:-2] == ["noatime"]
