from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import lz4.block
import pytest

from ztune.databases.fio.onhost.load import merged_latency, offered_rate, parse_jobs, parse_roles
from ztune.databases.fio.workload import Fio
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import descendants
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import launcher

SMALL = {"size": "4M", "numjobs": 2, "seconds": 1, "rate_iops": 400}
FILE = """
; two roles
[global]
bs=8k
ioengine = psync
[table]
rw=randrw
size=2m
numjobs=2
[log]
directory=/somewhere/wal
rw=write
size=1m
fdatasync=4
"""

needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here")


@pytest.fixture
def places(parent: Path) -> Iterator[dict[str, Path]]:
    made = {role: parent / "layout" / role for role in ("data", "wal", "temp")}
    for path in made.values():
        path.mkdir(parents=True)
    yield made


def test_job_files_are_read_as_fio_does() -> None:
    table, log = parse_jobs(FILE, "my.fio")
    assert (table.name, table.role, table.file_bytes, table.asked_bytes) == (
        "table",
        "data",
        4 << 20,
        4 << 20,
    )
    assert (log.name, log.role, log.block_size, log.jobs) == ("log", "wal", 8192, 1)
    [timed] = parse_jobs("[a]\nrw=read\nsize=1g\nruntime=2m\ntime_based\nblocksize=16k\n", "x")
    assert (timed.asked_bytes, timed.seconds, timed.block_size) == (None, 120.0, 16384)
    shared = Fio(
        {"job_text": "[a]\nfilename=f\nsize=1m\nnumjobs=3\n[b]\nfilename=f\nsize=2m\n[c]\nsize=1m\n"}
    )
    assert shared.job.expected_bytes() == {"data": 3 << 20}
    first, second = parse_jobs("[global]\nsize=1m\n[a]\n[global]\nsize=2m\n[b]\n", "x")
    assert (first.file_bytes, second.file_bytes) == (1 << 20, 2 << 20)
    assert parse_jobs(FILE, "x", {"table": "index", "log": "wal"})[0].role == "index"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"there is no \[job\]"),
        ("size=1m\n", "line 1: 'size' stands before"),
        ("[a]\nsize=1m\nexec_prerun=rm -rf x\n", "line 3: option 'exec_prerun' .* runs another program"),
        ("[a]\nsize=1m\nfilename=/etc/passwd\n", "must be a plain name"),
        ("[a]\nsize=1m\nfilename=../x\n", "must be a plain name"),
        ("[a]\nsize=1m\nwrite_bw_log=x\n", "files outside the layout"),
        ("[a]\nsize=1m\nioengine=net\n", "ioengine=net does no I/O on files"),
        ("[a]\nrw=read\n", "name the size"),
        ("[a]\nsize=50%\n", "size='50%' can't be used"),
        ("[a]\nsize=${SIZE}\n", "environment variables"),
        ("[a]\nsize=1m\nramp_time=5\n", "everything that is done is measured"),
        ("[a]\nsize=1m\n[a]\nsize=1m\n", r"line 3: \[a\] can't be used"),
        ("[a/b]\nsize=1m\n", "plain name"),
        ("[a]\nsize=1m\noffset=4k\n", "offset can't be used"),
    ],
)
def test_bad_job_files_are_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_jobs(text, "my.fio")
    assert "\n" not in str(caught.value)


def test_roles_by_name() -> None:
    assert parse_roles("wal=log data=a,b") == {"log": "wal", "a": "data", "b": "data"}
    with pytest.raises(InputError, match="'log' is no role"):
        parse_roles("log=wal")
    with pytest.raises(InputError, match="should read role=job"):
        parse_roles("wal")
    with pytest.raises(InputError, match="has no job 'nothing'; it has table, log"):
        parse_jobs(FILE, "my.fio", {"nothing": "wal"})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"iodepth": 4}, "iodepth 4 does nothing with ioengine=psync"),
        ({"size": "1M", "bs": "1M", "numjobs": 4}, "holds no block of 1M for each of 4 jobs"),
        ({"rate_iops": 2}, "less than one a second"),
        ({"roles": "wal=a"}, "roles are for the jobs of a job file"),
        ({"distribution": "zipf"}, "write a number after it"),
        ({"distribution": "bell:2"}, "write random, zipf"),
        ({"job": "/no/such/file"}, "fio job file /no/such/file: No such file"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Fio(values)


def test_the_rate_is_for_all_threads_and_both_directions() -> None:
    [section] = Fio({"rate_iops": 1000, "numjobs": 4, "rwmixread": 70}).job.sections
    assert section.options["rate_iops"] == "175,75"
    [section] = Fio({"rate_iops": 1000, "numjobs": 4, "rw": "write"}).job.sections
    assert section.options["rate_iops"] == ",250"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("[a]\nrw=randread\nsize=1m\n", 0.0),
        # For each clone and each direction; one value counts for both.
        ("[a]\nrw=randrw\nsize=1m\nnumjobs=2\nrate_iops=50\n", 200.0),
        ("[a]\nrw=randrw\nsize=1m\nrate_iops=40,10\n", 50.0),
        ("[a]\nrw=write\nsize=1m\nrate_iops=,10\n", 10.0),
        ("[a]\nrw=write\nbs=8k\nsize=1m\nrate=80k\n", 10.0),
        # Jobs side by side, to the same end; or not.
        ("[global]\ntime_based\nruntime=9\nsize=1m\nrate_iops=20\n[a]\nrw=read\n[b]\nrw=write\n", 40.0),
        ("[global]\nsize=1m\nrate_iops=20\n[a]\nrw=read\n[b]\nrw=write\n", None),
        ("[global]\ntime_based\nruntime=9\nsize=1m\nrate_iops=9\n[a]\nrw=read\n[b]\nstonewall\n", None),
        # Nothing holds one direction, or one job, back.
        ("[a]\nrw=randrw\nsize=1m\nrate_iops=,10\n", None),
        ("[global]\ntime_based\nruntime=9\nsize=1m\n[a]\nrate_iops=9\n[b]\nrw=write\n", None),
        # A pace all the same, which only the results show; and what we don't read is no error here.
        ("[a]\nrw=write\nsize=1m\nthinktime=900\n", None),
        ("[a]\nrw=write\nbs=8k\nsize=1m\nrate=1.5m\n", None),
    ],
)
def test_the_rate_that_a_job_file_asks_for(text: str, rate: float | None) -> None:
    assert offered_rate(parse_jobs(text, "my.fio")) == rate


def test_the_rate_that_a_shape_asks_for() -> None:
    assert offered_rate(Fio({"rate_iops": 1000, "numjobs": 4, "rwmixread": 70}).job.sections) == 1000
    assert offered_rate(Fio({"rate_iops": 0}).job.sections) == 0


def test_percentiles_of_several_jobs() -> None:
    one = {"N": 98, "mean": 1e6, "max": 1_010_000, "bins": {"1000000": 98}}
    two = {"N": 2, "mean": 9e6, "max": 9_100_000, "bins": {"9000000": 1, "9100000": 1}}
    merged = merged_latency([one, two, {"N": 0}])
    assert merged == {"mean": 1.16, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 9.0, "p999": 9.1, "max": 9.1}
    assert merged_latency([{"N": 0, "mean": 0.0, "max": 0}]) == {}


def test_no_fio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: None)
    with pytest.raises(MissingError, match=r"fio was not found; install it with `.*fio`"):
        Fio().check()


@needs_fio
def test_what_fio_does_not_take_is_found_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / "bad.fio"
    path.write_text("[a]\nsize=1m\nrw=sideways\n")
    with pytest.raises(InputError, match=r"fio does not take .*bad\.fio: .*rw"):
        Fio({"job": str(path)}).check()
    with pytest.raises(InputError, match=r"no database whose settings.*full_page_writes"):
        Fio(SMALL, database={"full_page_writes": "off"}).check()


@needs_fio
def test_a_shape_is_laid_out_done_and_proved(parent: Path) -> None:
    with running(Fio(SMALL), parent=parent) as workload:
        [path] = workload.role_paths().values()
        files = sorted(path.iterdir())
        assert [file.stat().st_size for file in files] == [2 << 20, 2 << 20]
        before = [file.stat().st_blocks for file in files]
        assert all(blocks * 512 >= 2 << 20 for blocks in before), "sparse files measure nothing"
        [pid] = workload.pids()
        asked = set((workload.job.home / "job.fio").read_text().splitlines())
        result = workload.verify(workload.run())
        # It waits below its shell until `stop`, and nothing of fio is left.
        assert workload.pids() == [pid] and descendants(pid) == []
        assert [file.stat().st_size for file in files] == [2 << 20, 2 << 20]
        data = b"".join(file.read_bytes() for file in files)
    assert list(parent.iterdir()) == []
    assert all(check.ok for check in result.checks) and len(result.checks) == 5
    # No more than was asked for; how much less, the disk decides.
    assert 0 < result.operations <= 500 and result.details["syncs"] > 0
    assert result.offered_per_second == 400
    assert result.per_second == pytest.approx(result.operations / result.seconds)
    waits = result.details["roles"]["data"]
    assert result.latency_ms["max"] == max(waits[k]["latency_ms"]["max"] for k in ("read", "write", "sync"))
    assert {"rwmixread=70", "rate_iops=140,60", "runtime=1"} <= asked
    assert 0 < waits["write"]["operations"] < waits["read"]["operations"]
    blocks = [data[at : at + 8192] for at in range(0, len(data), 8192)]
    ratio = len(data) / sum(len(lz4.block.compress(block, store_size=False)) for block in blocks)
    assert 1.7 < ratio < 2.3


@needs_fio
def test_a_job_file_with_two_roles_on_given_places(parent: Path, places: dict[str, Path]) -> None:
    path = parent / "my.fio"
    path.write_text(FILE)
    workload = Fio({"job": str(path)})
    # The file may be gone where the job runs: its text went along, and is enough to repeat the run.
    path.unlink()
    kept = workload.info()["parameters"]
    workload = Fio({**kept, "job": ""})
    work = WorkDir.create("fio", parent=parent)
    try:
        assert workload.job.roles() == ("data", "wal") and workload.page_sizes() == {
            "data": 8192,
            "wal": 8192,
        }
        workload.prepare(work, places)
        workload.load()
        workload.stop()
        assert len(list(places["data"].iterdir())) == 2 and len(list(places["wal"].iterdir())) == 1
        assert list(places["temp"].iterdir()) == []
        workload.start()
        result = workload.verify(workload.run())
        workload.stop()
    finally:
        workload.cleanup()
    assert result.details["read_bytes"] + result.details["write_bytes"] == (4 << 20) + (1 << 20)
    assert result.details["roles"]["wal"]["write"]["bytes"] == 1 << 20
    assert {check.name: check.got for check in result.checks}["bytes of [table]"] == 4 << 20
    with pytest.raises(ZtuneError, match=r"bytes of \[log\] should be 1048576 but is 1000"):
        less = {**result.details, "bytes_by_job": {"table": 4 << 20, "log": 1000}}
        workload.verify(replace(result, details=less))
    with pytest.raises(ZtuneError, match="bytes written, as the kernel counted them"):
        kernel = {**result.details["kernel"], "wchar": 1 << 20}
        workload.verify(replace(result, details={**result.details, "kernel": kernel}))
    assert not work.path.exists() and any(places["data"].iterdir())


@needs_fio
def test_one_that_ends_by_size_tells_that_it_goes_on(parent: Path) -> None:
    """So that nobody takes it for stuck: how far it is, only its end tells."""
    said: list[tuple[str, float]] = []
    shape = {"size": "1M", "numjobs": 1, "rw": "write", "bs": "8k", "seconds": 0, "rate_iops": 128}
    with running(Fio(shape), parent=parent) as workload:
        workload.run(lambda step, share: said.append((step, share)))
    assert said.count(("run fio", 0.0)) >= 5 and said[-1] == ("run fio", 1.0)


@needs_fio
def test_places_are_checked(parent: Path, places: dict[str, Path]) -> None:
    work = WorkDir.create("fio", parent=parent)
    try:
        with pytest.raises(InputError, match="no dataset of the layout has the role 'data'"):
            Fio(SMALL).prepare(work, {"wal": places["wal"]})
    finally:
        work.remove()
    (places["data"] / "theirs").write_text("x")
    work = WorkDir.create("fio", parent=parent)
    try:
        with pytest.raises(InputError, match="the role data is not empty"):
            Fio(SMALL).prepare(work, places)
    finally:
        work.remove()
    assert (places["data"] / "theirs").read_text() == "x"


@needs_fio
def test_a_state_that_is_not_whole_is_not_taken_over(parent: Path, places: dict[str, Path]) -> None:
    work = WorkDir.create("fio", parent=parent)
    workload = Fio(SMALL)
    try:
        workload.prepare(work, places)
        (places["data"] / "data.0.0").write_bytes(b"x" * 4096)
        with pytest.raises(ZtuneError, match="should hold 4194304 bytes but hold 4096"):
            workload.job.adopt(places)
    finally:
        workload.cleanup()


@needs_fio
def test_files_that_went_missing_fail_the_run(parent: Path, places: dict[str, Path]) -> None:
    work = WorkDir.create("fio", parent=parent)
    workload = Fio(SMALL)
    try:
        workload.prepare(work, places)
        workload.load()
        for path in places["data"].iterdir():
            path.unlink()
        workload.start()
        with pytest.raises(ZtuneError, match=r"fio ended with exit code 2: .*allow_file_create"):
            workload.run()
        assert list(places["data"].iterdir()) == []
    finally:
        workload.cleanup()


@needs_fio
def test_stop_in_the_middle_is_bounded_and_told(
    parent: Path, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "STOP_SECONDS", 0.3)
    work = WorkDir.create("fio", parent=parent)
    workload = Fio({**SMALL, "seconds": 100})
    try:
        workload.prepare(work, places)
        workload.load()
        workload.start()
        [pid] = workload.pids()

        def interrupt(_step: str, _done: float) -> None:
            if descendants(pid):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            workload.run(interrupt)
        family = descendants(pid)
        assert family
        with pytest.raises(ZtuneError, match=r"still at work .* and was killed"):
            workload.stop()
        assert not any(process.alive() for process in family)
        workload.stop()
    finally:
        workload.cleanup()
    assert not os.path.lexists(work.path)
