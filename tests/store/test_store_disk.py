"""The results database on a full, a read-only and a failing disk, and while another process has it."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import private_disk
import pytest
from stored_runs import new_run

import ztune.store.connection as connection
from ztune.errors import InputError, ZtuneError
from ztune.store.db import Store

small = pytest.mark.skipif(bool(private_disk.lacking()), reason=private_disk.lacking())

SEEDED = """
os.environ["ZTUNE_HOME"] = str(DISK / "home")
from stored_runs import new_run
from ztune.errors import InputError, ZtuneError
from ztune.store.db import Store

with Store.open() as store:
    kept = new_run(store).id

def logged():
    "Leave a second run in the log alone, as a process that was killed does."
    import shutil
    store = Store.open()
    found = new_run(store).id
    home = DISK / "home"
    for ending in ("", "-wal"):
        shutil.copy(home / f"ztune.db{ending}", DISK / f"copy{ending}")
    store.close()
    for path in home.glob("ztune.db*"):
        path.unlink()
    for ending in ("", "-wal"):
        (DISK / f"copy{ending}").rename(home / f"ztune.db{ending}")
    assert (home / "ztune.db-wal").stat().st_size > 0
    return found

def ztune(*words):
    code = "from ztune.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done
"""


pytestmark = pytest.mark.usefixtures("home")


@small
@pytest.mark.parametrize("how", ["full", "read-only"])
@pytest.mark.parametrize("log", ["empty", "not empty"])
def test_what_is_stored_can_be_read(how: str, log: str, tmp_path: Path) -> None:
    """Where nothing can be written, also where the last results are in SQLite's log alone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    private_disk.run(
        disk,
        SEEDED
        + f"""
wanted = [kept, logged()] if {log!r} == "not empty" else [kept]
{"fill()" if how == "full" else 'remount("ro")'}
with Store.open() as store:
    assert [run.id for run in store.runs()] == wanted, store.runs()
    try:
        new_run(store)
    except ZtuneError as error:
        assert not isinstance(error, InputError) and "move it away" not in str(error), error
        print(error)
    else:
        raise AssertionError("it was written")
    # One that failed does no harm to the next reader.
    assert [run.id for run in store.runs()] == wanted
for command in (["runs"], ["show", "last"], ["runs", "--json"]):
    done = ztune(*command)
    assert done.returncode == 0 and wanted[-1] in done.stdout + done.stderr, done
{"empty()" if how == "full" else 'remount("rw")'}
with Store.open() as store:
    assert [run.id for run in store.runs()] == wanted
    new_run(store)
""",
    )


@small
def test_the_sentences(tmp_path: Path) -> None:
    said = private_disk.run(
        tmp_path,
        SEEDED
        + """
for what in (fill, lambda: (empty(), remount("ro"))):
    what()
    with Store.open() as store:
        try:
            new_run(store)
        except ZtuneError as error:
            print(error)
""",
        "4m",
    )
    full, read_only = said.splitlines()
    path = f"{tmp_path}/home/ztune.db"
    assert full == (
        f"there is no room for results: the disk of {path} is full (0 KiB free); what is stored is kept; "
        "make room there, then go on"
    )
    assert read_only.startswith(f"the results database {path} can't be written: it or its disk is read-only")


@small
def test_a_run_that_ends_on_a_full_disk_keeps_what_it_had(tmp_path: Path) -> None:
    """The disk fills up in the middle of a run: one sentence, and the database is whole."""
    private_disk.run(
        tmp_path,
        SEEDED
        + """
from stored_runs import study
from ztune.study import Layout
import sqlite3
store = Store.open()
first = store.add_trial(kept, study().layout)
store.start_trial(first.id, {})
fill()
try:
    for number in range(100_000):
        store.finish_trial(first.id, result={"text": "x" * number * 1000}, wall_s=1)
except ZtuneError as error:
    assert "there is no room for results" in str(error), error
else:
    raise AssertionError("it was written")
assert store.trials(kept)[0].status in ("running", "ok")
store.close()
empty()
db = sqlite3.connect(DISK / "home/ztune.db")
assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
with Store.open() as store:
    store.finish_trial(first.id, error="the disk was full", wall_s=1)
""",
        "4m",
    )


@pytest.mark.parametrize("damage", ["no database", "damaged"])
def test_only_a_damaged_one_is_to_be_moved_away(damage: str, home: Path) -> None:
    Store.open().close()
    path = home / "ztune.db"
    data = bytearray(path.read_bytes())
    if damage == "no database":
        data[:16] = b"something else!!"
    else:
        data[100:4096] = bytes(3996)
    path.write_bytes(data)
    with pytest.raises(InputError, match=re.escape(f"{path} can't be used") + ".*move it away"):
        Store.open().runs()


def _holder(path: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a process that holds the write lock for so long."""
    code = (
        "import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(float(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_locked_one_is_waited_for_and_that_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "SAY_S", 0.3)
    with Store.open() as store:
        holder = _holder(home / "ztune.db", 600)
        ended = threading.Timer(1.5, holder.kill)
        ended.start()
        run = new_run(store)
        assert [one.id for one in store.runs()] == [run.id]
    ended.join()
    holder.wait()
    said = capsys.readouterr().err.splitlines()
    assert said == [f"waiting for another process that has {home / 'ztune.db'} locked"]


def test_a_lock_that_stays_ends_in_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WAIT_S", 0.5)
    with Store.open() as store:
        holder = _holder(home / "ztune.db", 600)
        try:
            with pytest.raises(ZtuneError) as refused:
                new_run(store)
        finally:
            holder.kill()
            holder.wait()
        assert "is locked by another process" in str(refused.value)
        assert "move it away" not in str(refused.value)
        new_run(store)


def test_another_users_database_can_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own word for a file that it may only read."""
    with Store.open() as store:
        kept = new_run(store).id
    plain = sqlite3.connect

    def read_only(name: str, **more: object) -> sqlite3.Connection:
        if name.endswith("ztune.db") and str(home) in name:
            return plain(f"file:{name}?mode=ro", uri=True, **more)  # type: ignore[call-overload,no-any-return]
        return plain(name, **more)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with Store.open() as store:
        assert [run.id for run in store.runs()] == [kept]
        with pytest.raises(ZtuneError, match="is read-only; what is stored can still be read"):
            new_run(store)
