"""A store in PostgreSQL, which several people use at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import children
import pytest
from click.testing import CliRunner, Result
from stored_runs import new_run, study

from ztune import paths
from ztune.cli.main import ztune
from ztune.errors import InputError, ZtuneError
from ztune.store import db, deletion
from ztune.store.db import Store

pytestmark = pytest.mark.server
WORKER = """
import sys, time
from stored_runs import new_run
from ztune.store.db import Store
with Store.open() as store:
    print(new_run(store).id, flush=True)
    time.sleep(600)
"""


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, list(words), standalone_mode=False)


def test_a_run_is_worked_on_by_one_and_the_others_know(team: str) -> None:
    with Store.open() as mine, Store.open() as theirs:
        run = new_run(mine)
        assert mine.is_live(run) and theirs.is_live(theirs.run(run.id))
        with pytest.raises(InputError, match=f"run {run.id} is being worked on by process {os.getpid()};"):
            theirs.resume_run(run.id)
        with pytest.raises(InputError, match="is being worked on"):
            theirs.delete_runs([run.id])
        mine.finish_run(run.id, "interrupted")
        assert not theirs.is_live(theirs.run(run.id))
        again = theirs.resume_run(run.id)
        assert again.status == "running" and mine.is_live(again)
        with pytest.raises(InputError, match="is being worked on"):
            mine.resume_run(run.id)
    with Store.open() as third:
        assert not third.is_live(third.run(run.id))  # its connection is gone


def test_a_run_says_where_it_goes_on(team: str) -> None:
    with Store.open() as store:
        run = new_run(store)
        assert run.made_by.endswith(f"@{socket.gethostname()}") and run.works_on == socket.gethostname()
        store._db.execute("UPDATE run SET works_on = 'db7' WHERE id = ?", (run.id,))
        with Store.open() as other, pytest.raises(InputError, match=r"by process \d+ on db7; wait"):
            other.resume_run(run.id)


def test_a_killed_process_frees_its_run(team: str) -> None:
    env = {**children.environment(), "ZTUNE_STORE": team, "ZTUNE_HOME": os.environ["ZTUNE_HOME"]}
    worker = subprocess.Popen([sys.executable, "-c", WORKER], env=env, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    name = worker.stdout.readline().strip()
    with Store.open() as store:
        assert store.is_live(store.run(name))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
        for _ in range(200):
            if not store.is_live(store.run(name)):
                break
            store._db.execute("SELECT pg_sleep(0.05)")
        assert store.resume_run(name).status == "running"


def test_last_is_never_somebody_elses(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open() as store:
        mine = new_run(store)
        monkeypatch.setattr(db, "here", lambda: "bob@bench")
        with pytest.raises(InputError, match="bob@bench has made no runs"):
            store.run("last")
        theirs = new_run(store)
        assert store.run("last") == theirs and store.run(mine.id) == mine
        assert not store.is_own(mine)
    assert {row["made_by"] for row in json.loads(call("runs", "--json").stdout)} == {
        mine.made_by, "bob@bench",
    }  # fmt: skip
    assert "made by" in call("runs").stdout


def test_runs_are_copied_both_ways_and_keep_what_they_are(team: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    with Store.open(file) as store:
        run = new_run(store, name="first")
        trial = store.add_trial(run.id, study().layout, is_baseline=True)
        store.start_trial(trial.id, {"version": 1})
        store.finish_trial(trial.id, result={"measure": {"a": 1.5}}, wall_s=2.5)
        store.finish_run(run.id, "done")
        whole = store.run(run.id), store.trials(run.id)
    with Store.open(file) as working:
        going = new_run(working, name="goes on")
        done = call("store", "copy", str(file), team)
    assert done.exception is None, done.exception
    assert done.stdout.splitlines()[0].startswith("1 run copied to postgresql://postgres@/")
    assert f"run {going.id} goes on" in done.stdout
    back = tmp_path / "back.db"
    assert call("store", "copy", "default", str(back), run.id).exception is None
    for place in (None, back):
        with Store.open(place) as store:
            assert store.run(run.id) == whole[0]
            found = store.trials(run.id)
            assert [(t.number, t.layout, t.result, t.wall_s) for t in found] == [
                (t.number, t.layout, t.result, t.wall_s) for t in whole[1]
            ]
    again = json.loads(call("store", "copy", str(file), team, run.id, "--json").stdout)
    assert [row["what"] for row in again] == ["there already"]
    with Store.open() as store:
        store._db.execute("UPDATE run SET seed = 77 WHERE id = ?", (run.id,))
    assert "has another run" in str(call("store", "copy", str(file), team, run.id).exception)


def test_copies_of_nothing_are_refused(team: str, tmp_path: Path) -> None:
    assert "name two stores" in str(call("store", "copy", "default", team).exception)
    assert "there is no store" in str(call("store", "copy", str(tmp_path / "no.db"), team).exception)
    assert not (tmp_path / "no.db").exists()


def test_what_cannot_be_reached_is_one_sentence_without_the_password(home: Path) -> None:
    for url, says in (
        ("postgresql://me:secret@127.0.0.1:1/x", "can't be reached"),
        ("postgresql://127.0.0.1:1/x?user=me&password=secret&sslpassword=secret", "1/x?user=me can't"),
        ("postgresql://me:secret@[::1", "is no URL of a database"),
        ("mysql://me:secret@db/x", "mysql://… is of no kind that ztune knows"),
    ):
        with pytest.raises(ZtuneError) as caught:
            Store.open(url)
        assert says in str(caught.value) and "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_who_may_only_read_reads(team: str) -> None:
    import psycopg

    with Store.open() as store:
        run = new_run(store)
    schema = team.rpartition("%3D")[2]
    with psycopg.connect(team, autocommit=True) as owner:
        owner.execute("CREATE ROLE reader LOGIN")
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader".encode())
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader".encode())
        try:
            with Store.open(team.replace("postgres@", "reader@")) as store:
                assert store.run(run.id).id == run.id
                with pytest.raises(ZtuneError, match="can't be written"):
                    new_run(store)
                assert store.run(run.id).id == run.id  # the connection still serves
        finally:
            owner.execute("DROP OWNED BY reader")
            owner.execute("DROP ROLE reader")


def test_a_newer_store_is_refused(team: str) -> None:
    with Store.open() as store:
        store._db.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(InputError, match="has version 99"):
        Store.open()


@pytest.mark.parametrize("name", ["", "/etc", "../traces", ".", "a/b"])
def test_a_hostile_id_deletes_nothing(team: str, name: str) -> None:
    with Store.open() as store:
        run = new_run(store)
        store.finish_run(run.id, "done")
        store._db.execute("UPDATE run SET id = ? WHERE id = ?", (name, run.id))
        (hostile,) = store.runs()
        (paths.home() / "series" / "other").mkdir(parents=True)
        assert deletion.folders(store, [hostile]) == {name: []}


def test_a_recording_that_only_has_the_name_of_the_runs_is_kept(team: str) -> None:
    trace = paths.traces() / "x.trace"
    trace.mkdir(parents=True)
    (trace / "trace.json").write_text("{}")
    with Store.open() as store:
        run = new_run(store, trace_path=trace, trace_sha="0" * 64)
        assert deletion.folders(store, [run]) == {run.id: []}
        own = new_run(
            store,
            trace_path=trace,
            trace_sha="44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        )
        assert deletion.folders(store, [run, own])[own.id] == [trace]


def test_who_comes_first_at_once_makes_one_store(new_database: Callable[[], str], home: Path) -> None:
    def origin(url: str) -> str:
        with Store.open(url) as store:
            return store.origin()

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            said = set(pool.map(origin, [new_database()] * 4))
            assert len(said) == 1 and len(said.pop()) == 16
