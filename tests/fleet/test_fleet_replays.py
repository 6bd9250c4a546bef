"""Screenings on workers that are real processes, against the same on this machine alone."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fleets import StartedFleet, configured, few_layouts, started
from invoked import invoke
from synthetic_traces import STAND_IN, make_trace

from ztune.errors import MissingError
from ztune.fleet import certs, connect, worker
from ztune.places import engine as engines
from ztune.runs import screening
from ztune.runs.options import ScreenOptions
from ztune.store.db import Store
from ztune.store.records import Run


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedFleet]:
    """By TLS: two workers that can be used, and one that can't."""
    folder = tmp_path_factory.mktemp("fleet")
    certs.make(folder / "certs")
    with started(folder / "run", folder / "certs") as fleet:
        for name, openzfs in (("one", "2.3.2"), ("two", "2.3.2"), ("newer", "2.4.4")):
            fleet.worker(name, STAND_IN_OPENZFS=openzfs)
        yield fleet


def _counts(store: Store, run: Run) -> dict[str, Any]:
    """Return what the layouts of a run counted."""
    assert run.status == "done"
    found = {trial.layout_hash: dict(trial.result or {}) for trial in store.trials(run.id)}
    for result in found.values():
        result.pop("ran_on", None)
    return found


def test_a_fleet_counts_as_one_machine_does(
    fleet: StartedFleet, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(fleet.engine))
    trace, study, engine = make_trace(tmp_path / "t.trace"), few_layouts(), engines.check()
    options = ScreenOptions(jobs=2, budget=4, only=True, seed=3)
    said: list[str] = []
    with Store.open() as store, configured(fleet.config):
        alone = _counts(store, screening.start(store, trace, study, engine, options))
        with connect.fleet(fleet.address, said.append) as executor:
            run = screening.start(store, trace, study, engine, options, executor=executor)
            assert _counts(store, run) == alone and len(alone) == 4
            assert executor.at_once == 2 and sum(host.done for host in executor.hosts()) == 4
            for name in ("one", "two"):
                folder = fleet.folder / f"home-{name}"
                kept = list((folder / "cache" / "fleet").iterdir())
                assert len(kept) == 3, kept  # operations, and content of two roles: each once
                assert not list((folder / "scratch").glob("trial-*"))
            # What is gone from a worker's cache is brought again; what has a result is not done again.
            for path in kept:
                path.unlink()
            *before, again = store.trials(run.id)
            store.finish_run(run.id, "interrupted")
            store.reset_trial(again.id)
            run = screening.resume(
                store, store.run(run.id), trace, engine, ScreenOptions(budget=4, only=True), executor=executor
            )
        assert _counts(store, run) == alone
        assert [t.started for t in store.trials(run.id)][:-1] == [t.started for t in before]
    assert said[0].startswith(f"fleet {fleet.address}")
    assert [line.partition(": ")[2] for line in said[1:]] == ["it has OpenZFS 2.4.4, this run has 2.3.2"]


def test_other_certificates_are_not_taken(fleet: StartedFleet, tmp_path: Path) -> None:
    certs.make(tmp_path / "others")  # of another authority
    with (
        configured(tmp_path / "others"),
        pytest.raises(MissingError, match="no Dask scheduler answers"),
        connect.fleet(fleet.address, print),
    ):
        pass


def test_a_worker_without_an_engine_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", "/nowhere/ztune-engine")
    said = asyncio.run(worker.hello("2.3.2", cast(Any, SimpleNamespace())))
    assert (
        said["error"]
        == "ZTUNE_ENGINE names /nowhere/ztune-engine, which is no program; unset it or name an engine"
    )


def test_the_command_on_cores_of_this_machine(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(STAND_IN))
    trace = make_trace(tmp_path / "t.trace")
    # What lies where it is called, such as in /tmp, is no part of its workers.
    (tmp_path / "multiprocessing.py").write_text("raise SystemExit('it was run')")
    monkeypatch.chdir(tmp_path)
    # Nor is what anybody put where Dask works by itself: it would empty the files that its locks lead to.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "precious").write_text("irreplaceable")
    (tmp_path / "dask-scratch-space").mkdir()
    for name in ("global.lock", "purge.lock"):
        (tmp_path / "dask-scratch-space" / name).symlink_to(tmp_path / "precious")
    code, _, err = invoke("screen", str(trace.path), "--budget", "1", "--on", "local-cluster:1")
    assert code == 0, err
    assert (tmp_path / "precious").read_text() == "irreplaceable"
    assert not list((home / "scratch").iterdir())
    assert "fleet tls://127.0.0.1:" in err and "1 at a time" in err
    assert not list((home / "cache").glob("fleet/*"))  # its worker has this state directory


def test_an_engine_that_was_killed_is_tried_once_more_on_the_one_host(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(STAND_IN))
    monkeypatch.setenv("STAND_IN", f"kill-once={tmp_path / 'killed'}")
    trace = make_trace(tmp_path / "t.trace")
    code, _, err = invoke("screen", str(trace.path), "--budget", "1", "--on", "local-cluster:1")
    assert code == 0 and (tmp_path / "killed").exists(), err
