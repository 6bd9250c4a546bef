"""The workload ``sqlite`` with the SQLite that is here."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lz4.block
import pytest
from overheard import overheard

from ztune.databases.sqlite.onhost.transactions import _OWNED, BYTES_PER_ROW, SETTINGS
from ztune.databases.sqlite.workload import Sqlite
from ztune.databases.workload import running
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.process import Identity
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.settings import check as check_settings
from ztune.places import bundle
from ztune.study import load_study, ready

SMALL = {"size": "2M", "seconds": 1, "warmup": 0, "clients": 2, "rate": 60}


def places_of(parent: Path) -> dict[str, Path]:
    made = {role: parent / "layout" / role for role in ("data", "wal")}
    for path in made.values():
        path.mkdir(parents=True)
    return made


@pytest.fixture
def started(parent: Path) -> Iterator[Sqlite]:
    with running(Sqlite(SMALL), parent=parent) as workload:
        yield workload
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("mode", ["wal", "delete", "persist"])
def test_the_job_is_done_and_proved(parent: Path, mode: str) -> None:
    values = {**SMALL, "journal_mode": mode, "page_size": "8K", "warmup": 1, "synchronous": "normal"}
    with running(Sqlite(values), parent=parent) as workload:
        result = workload.verify(workload.run())
        assert result.operations > 0 and all(check.ok for check in result.checks)
        assert result.details["rows_inserted"] == result.operations
        assert result.details["rows_read"] == 4 * result.operations
        assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
        assert result.offered_per_second == 60
        settings = result.details["settings"]
        assert (settings["journal_mode"], settings["page_size"], settings["synchronous"]) == (
            mode,
            "8192",
            "1",
        )
        paths = workload.role_paths()
        assert paths["wal"].parent == paths["data"]
        assert paths["wal"].exists() == (mode != "delete")
        assert workload.page_sizes() == {"data": 8192}
        [pid] = workload.pids()
        assert Path(f"/proc/{pid}/comm").read_text().startswith("python")
    assert list(parent.iterdir()) == []


def test_the_file_is_an_ordinary_database_of_the_size_asked_for(started: Sqlite) -> None:
    path = started.job._database
    started.stop()
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as made:
        [[rows]] = made.execute("SELECT count(*) FROM account").fetchall()
        [[text]] = made.execute("SELECT note FROM account WHERE id = 1").fetchall()
    assert rows == started.job.rows
    # The same seed must give the same rows everywhere.
    assert (
        text == "heavy museum budget middle floor bring october offer open hold customer across 614df47d9d1a"
    )
    assert path.stat().st_size == pytest.approx(rows * BYTES_PER_ROW, rel=0.05)
    data = path.read_bytes()[1 << 20 : 2 << 20]
    blocks = [data[at : at + 16384] for at in range(0, len(data) - 16384, 16384)]
    ratio = len(blocks) * 16384 / sum(len(lz4.block.compress(b, store_size=False)) for b in blocks)
    assert 1.65 < ratio < 1.95


def test_work_that_was_not_done_is_found(started: Sqlite) -> None:
    result = started.run()
    other = sqlite3.connect(started.job._database, timeout=30)
    other.execute("DELETE FROM history WHERE id = (SELECT max(id) FROM history)")
    other.commit()
    other.close()
    with pytest.raises(ZtuneError, match="the job was not done: rows added to history should be"):
        started.verify(result)


def test_a_damaged_file_is_found(parent: Path) -> None:
    with pytest.raises(ZtuneError, match=r"sqlite|SQLite"), running(Sqlite(SMALL), parent=parent) as workload:
        result = workload.run()
        with workload.job._database.open("r+b") as file:
            file.seek(20 * 4096)
            file.write(os.urandom(40 * 4096))
        workload.verify(result)
    assert list(parent.iterdir()) == []


def test_a_client_that_dies_is_told(started: Sqlite) -> None:
    [pid] = started.pids()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ZtuneError, match=r"the SQLite client died in 'run' \(was ended by SIGKILL\)"):
        started.run()
    started.job.kill()
    assert Identity.of(pid) is None


def test_a_copy_is_taken_over(parent: Path) -> None:
    first = Sqlite(SMALL)
    made = places_of(parent / "first")
    first.prepare(WorkDir.create("sq", parent=parent), made)
    assert list(made["data"].iterdir()) == []
    first.load()
    assert first.pids() == []
    first.cleanup()
    assert list(made["wal"].iterdir()) == []
    second = Sqlite(SMALL, database={"journal_mode": "truncate", "cache_size": "-512"})
    places = places_of(parent / "second")
    second.prepare(WorkDir.create("sq", parent=parent), places)
    try:
        with pytest.raises(ZtuneError, match="there is no database to take over"):
            second.job.adopt(places)
        shutil.copytree(made["data"], places["data"], dirs_exist_ok=True)
        second.job.adopt(places)
        second.start()
        result = second.verify(second.run())
        assert result.details["settings"]["journal_mode"] == "truncate"
        assert result.details["settings"]["cache_size"] == "-512"
        second.stop()
        other = Sqlite({**SMALL, "size": "3M"})
        other.prepare(WorkDir.create("sq", parent=parent), places_of(parent / "third"))
        shutil.copytree(made["data"], parent / "third/layout/data", dirs_exist_ok=True)
        other.job.adopt({"data": parent / "third/layout/data"})
        with pytest.raises(ZtuneError, match=r"rows, not .* load it anew"):
            other.start()
        other.cleanup()
    finally:
        second.cleanup()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no second file system here")
def test_data_and_log_cannot_be_parted(parent: Path) -> None:
    places = places_of(parent)
    elsewhere = Path("/dev/shm") / f"ztune-test-{os.getpid()}"
    elsewhere.mkdir()
    work = WorkDir.create("sq", parent=parent)
    try:
        with pytest.raises(InputError, match="SQLite keeps its log beside its database"):
            Sqlite(SMALL).prepare(work, {**places, "wal": elsewhere})
    finally:
        elsewhere.rmdir()
        work.remove()


def test_studies_that_part_them_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    from ztune.cli import _tune

    text = (ready.files()["sqlite"]).read_text()
    path = tmp_path / "apart.toml"
    path.write_text(
        text.replace('roles = ["data", "wal", "temp"]', 'roles = ["data"]\n[[layout.dataset]]\n'
                     'name = "tank/wal"\nroles = ["wal"]')
    )  # fmt: skip
    with pytest.raises(InputError, match=r"gives wal the dataset tank/wal and data tank/data: SQLite keeps"):
        _tune._check_together(Sqlite(SMALL), load_study(path))
    _tune._check_together(Sqlite(SMALL), ready.find("sqlite"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jurnal_mode": "wal"}, "did you mean 'journal_mode'"),
        ({"zzz": "1"}, "there are page_size, journal_mode"),
        ({"journal_mode": "off"}, "it is one of wal, delete, truncate, persist"),
        ({"cache_size": "big"}, "takes a whole number"),
        ({"locking_mode": "exclusive"}, "several clients work"),
    ],
)
def test_settings_are_checked_before_anything_is_made(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_settings("sqlite", settings, SETTINGS, _OWNED)
    with pytest.raises(InputError, match=said):
        Sqlite(SMALL, database=settings).check()


def test_size_is_relative_to_the_arc() -> None:
    def size(**values: str) -> str:
        return str(Sqlite(values).resolved()["size"])

    assert size() == "384M" and size(arc="1G") == "6G"
    assert size(size="cached") == "32M" and size(size="2.5x") == "160M" and size(size="100M") == "100M"
    for wrong in ("often", "0x", "12"):
        with pytest.raises(InputError, match="sqlite: parameter 'size'"):
            Sqlite({"size": wrong})
    with pytest.raises(InputError, match="nothing to do"):
        Sqlite({"reads": 0, "updates": 0, "inserts": 0})
    with pytest.raises(InputError, match="no power of two"):
        Sqlite({"page_size": "5000"}).check()


def test_times_are_of_the_real_disk(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Sqlite(SMALL).job_class(Sqlite(SMALL).resolved(), dilation=2.0)
    work = WorkDir.create("sq", parent=parent)
    job.prepare(work)
    try:
        job.load()
        job.start()
        asked = overheard(job.client, monkeypatch)
        result = job.verify(job.run())
        # Two seconds at 30 a second, told as one second at 60.
        told, found = asked["run"]
        assert (told["seconds"], told["rate"]) == (2.0, 30.0) and result.offered_per_second == 60
        assert result.seconds == found["seconds"] / 2
        assert 0 < result.operations == found["transactions"] <= 62
        assert result.latency_ms["max"] == pytest.approx(max(found["times_us"]) / 2000)
        job.stop()
    finally:
        job.cleanup()


def test_it_runs_from_the_trial_s_archive(parent: Path) -> None:
    """Where nothing of ztune's is installed: the client's source comes out of the zip file."""
    archive = bundle.build()
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "from pathlib import Path\n"
        "from ztune.onhost.jobs import registry\n"
        "from ztune.onhost.host.workdir import WorkDir\n"
        f"job = registry.get('sqlite')({Sqlite(SMALL).resolved()!r}, {{}})\n"
        f"work = WorkDir.create('sq', parent=Path({str(parent)!r}))\n"
        "job.prepare(work); job.load(); job.start()\n"
        "result = job.verify(job.run()); job.stop(); job.cleanup(); print(result.operations)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
