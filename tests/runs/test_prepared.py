"""The database loaded once: kept by what it depends on, as a trial's "copy" takes it, within a limit."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from ztune.databases.registry import make
from ztune.errors import InputError, ZtuneError
from ztune.onhost.jobs import registry
from ztune.onhost.trial import saved
from ztune.runs import plan, prepared


class Load:
    """A job that writes two files, and counts how often."""

    loads = 0
    fail = False

    def __init__(self, params: dict[str, Any], database: dict[str, str]) -> None:
        self.params = params
        self.places: dict[str, Path] = {}

    def check(self) -> str:
        return "db 1.0"

    def roles(self) -> tuple[str, ...]:
        return ("data", "wal")

    def prepare(self, workdir: Any, places: dict[str, Path]) -> None:
        assert workdir.path.is_dir() and all(not any(p.iterdir()) for p in places.values())
        self.places = places

    def load(self, progress: Any) -> None:
        type(self).loads += 1
        (self.places["data"] / "table").write_bytes(b"x" * 5000)
        (self.places["wal"] / "link").symlink_to("/nowhere")
        progress("fill", 1.0)
        if self.fail:
            raise ZtuneError("the disk is full")

    def stop(self) -> None:
        pass

    def cleanup(self) -> None:
        pass


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Load]:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(registry, "get", lambda _: Load)
    monkeypatch.setattr(Load, "loads", 0)
    monkeypatch.setattr(Load, "fail", False)
    return Load


def test_it_is_loaded_once(job: type[Load], tmp_path: Path) -> None:
    said: list[str] = []
    first = prepared.prepare("j", {"scale": 1}, {}, lambda text, _: said.append(text))
    assert prepared.prepare("j", {"scale": 1}, {}) == first and job.loads == 1 and said == ["fill"]
    places = {role: tmp_path / "out" / role for role in ("data", "wal")}
    for role, place in places.items():
        place.mkdir(parents=True)
        subprocess.run(saved.unpack(first, role, place), check=True)
    assert (places["data"] / "table").read_bytes() == b"x" * 5000 and (places["wal"] / "link").is_symlink()
    shutil.rmtree(tmp_path / "out")
    marker = json.loads((first / saved.MARKER).read_text())
    assert marker["job"] == "j" and marker["params"] == {"scale": 1} and marker["bytes"]["data"] == 5000
    # Other parameters, other database settings: another state.
    assert (
        len(
            {
                first,
                prepared.prepare("j", {"scale": 2}, {}),
                prepared.prepare("j", {"scale": 1}, {"page": "4K"}),
            }
        )
        == 3
    )
    assert [p.name for p in tmp_path.iterdir()] == ["home"]  # no work directory stays


def test_whatever_the_umask_a_databases_user_passes_and_others_read_nothing(
    job: type[Load], monkeypatch: pytest.MonkeyPatch
) -> None:
    def modes(_: Load, workdir: Any, places: dict[str, Path]) -> None:
        paths = {parent for place in places.values() for parent in (place, place.parent, place.parent.parent)}
        assert all(path.stat().st_mode & 0o001 for path in paths)
        write(_, workdir, places)

    write = Load.prepare
    monkeypatch.setattr(Load, "prepare", modes)
    before = os.umask(0o077)
    try:
        prepared.prepare("j", {"scale": 1}, {})
        os.umask(0o002)
        state = prepared.prepare("j", {"scale": 2}, {})
    finally:
        os.umask(before)
    assert state.stat().st_mode & 0o077 == 0


def test_a_load_that_fails_leaves_nothing(
    job: type[Load], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "fail", True)
    with pytest.raises(ZtuneError, match="the disk is full"):
        prepared.prepare("j", {}, {})
    assert prepared.states() == [] and [p.name for p in tmp_path.iterdir()] == ["home"]
    monkeypatch.setattr(job, "fail", False)
    assert prepared.prepare("j", {}, {}).is_dir()


def test_two_runs_use_it_at_once(job: type[Load]) -> None:
    path = prepared.prepare("j", {}, {})
    found: list[Path] = []
    other = threading.Thread(target=lambda: found.append(prepared.prepare("j", {}, {})), daemon=True)
    with prepared.in_use(path):  # for as long as a run lasts
        other.start()
        other.join(60)
        assert found == [path] and job.loads == 1


def test_who_waits_for_another_that_fills_it_says_so(job: type[Load]) -> None:
    wanted = prepared.folder() / prepared.key("j", {}, {}, "db 1.0")
    said: queue.Queue[str] = queue.Queue()
    other = threading.Thread(
        target=lambda: prepared.prepare("j", {}, {}, lambda text, _: said.put(text)), daemon=True
    )
    with prepared._locked(wanted, False, lambda *_: None):
        other.start()
        assert said.get(timeout=60) == "wait for another ztune that fills the same database"
        assert job.loads == 0
    other.join(60)
    assert not other.is_alive() and job.loads == 1


def test_half_a_state_is_loaded_again(job: type[Load]) -> None:
    path = prepared.prepare("j", {}, {})
    (path / saved.MARKER).unlink()  # killed before its last step
    assert prepared.prepare("j", {}, {}) == path and job.loads == 2


def test_the_longest_unused_go_first(job: type[Load]) -> None:
    paths = [prepared.prepare("j", {"n": n}, {}) for n in range(3)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1e9 - age, 1e9 - age))  # the first is the oldest
    size = prepared.states()[0].bytes
    with prepared.in_use(paths[0]):
        gone = prepared.prune(limit=2 * size)
        assert [s.path for s in gone] == [paths[1]]  # the oldest is in use
    assert [s.path for s in prepared.prune(limit=-1)] == [paths[0], paths[2]] and prepared.states() == []


def test_what_killed_loads_left_goes_when_another_ends(job: type[Load]) -> None:
    """It may have gigabytes, and nobody may ever load the same again."""
    left = [prepared.folder() / name for name in ("aa.partial", "bb", "cc.partial")]
    for path in left:
        path.mkdir()
        (path / "data.tar").write_bytes(b"x" * 5000)
    with prepared._locked(prepared.folder() / "cc", False, lambda *_: None):  # it is being loaded
        whole = prepared.prepare("j", {}, {})
        assert [path.exists() for path in left] == [False, False, True]
    assert [s.bytes for s in prepared.states() if s.path != whole] == [5000]
    assert {s.path for s in prepared.prune(limit=-1)} == {whole, left[2]}
    assert not any(p.is_dir() for p in prepared.folder().iterdir())


def test_only_its_own_folder_is_ever_removed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(InputError, match="left alone"):
        prepared._remove(tmp_path / "precious")
    link = prepared.folder() / "link"
    link.symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="left alone"):
        prepared._remove(link)
    assert (tmp_path / "precious").is_dir()
    shutil.rmtree(tmp_path / "precious")


@pytest.mark.parametrize(
    ("workload", "larger"), [("postgres-oltp", {"scale": 2}), ("mariadb-oltp", {"redo_size": "32M"})]
)
def test_how_long_and_fast_a_load_goes_on_is_no_part_of_what_is_loaded(
    monkeypatch: pytest.MonkeyPatch, workload: str, larger: dict[str, Any]
) -> None:
    monkeypatch.undo()  # the real jobs

    def key(**params: Any) -> str:
        return prepared.key(workload, plan.workload_job(make(workload, params)).params, {}, "1")

    clients = "clients" if workload.startswith("postgres") else "threads"
    assert key() == key(seconds=7, rate=3, warmup=0, **{clients: 2})
    assert len({key(), key(seed=2), key(**larger)}) == 3


def test_a_state_that_another_ztune_removes_meanwhile_is_no_fault(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (prepared.folder() / name).mkdir()
    asked = Path.is_dir

    def is_dir(path: Path) -> bool:
        found = asked(path)
        if path == prepared.folder() / "a":
            path.rmdir()
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert [state.path.name for state in prepared.states()] == ["b"]
