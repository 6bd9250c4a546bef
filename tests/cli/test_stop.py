"""SIGTERM in each thing that takes long: it is heard, what was begun is ended, and nothing is left."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import needs
import pytest
from synthetic_traces import STAND_IN, make_trace
from workloads_made import job_workload

from ztune.runs import prepared
from ztune.store.db import Store

BOUND_S = 120.0
"""Within this a stop is heard on the busiest machine; it only keeps a test that fails from hanging."""


needs_mount = pytest.mark.skipif(bool(needs.mount()), reason=needs.mount())


class Scene:
    """A state directory and a place for work of its own; everything that runs in them can be told."""

    def __init__(self, folder: Path) -> None:
        self.home, self.tmp = folder / "home", folder / "tmp"
        self.folder = folder
        self.tmp.mkdir()
        self.tmp.chmod(0o711)
        folder.chmod(0o711)
        self.said: list[str] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", "from ztune.cli.main import main; main()", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, cwd=self.folder,
            env={**os.environ, "ZTUNE_HOME": str(self.home), "TMPDIR": str(self.tmp), **environment},
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(line)

    def wait_for(self, there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not there():
            assert process.poll() is None, "".join(self.said)
            assert time.monotonic() < deadline, "".join(self.said)
            time.sleep(0.05)

    def says(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in line for line in list(self.said))

    def running(self) -> list[str]:
        """Return the processes with something of ours in their command line, or that stand in it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                    if str(self.folder) in command or self.folder in (entry / "cwd").readlink().parents:
                        found.append(command)
                except OSError:
                    continue
        return found

    def end(self, process: subprocess.Popen[str], code: int = 130) -> None:
        """Have it stop, and see that nothing is left."""
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(BOUND_S) == code, "".join(self.said)
        except subprocess.TimeoutExpired:
            pytest.fail("the stop was not heard: " + "".join(self.said))
        assert not any("Traceback" in line for line in self.said), "".join(self.said)
        deadline = time.monotonic() + BOUND_S
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.running() == []
        assert list(self.tmp.iterdir()) == []
        stores = self.home / "scratch" / "stores"
        assert not stores.exists() or list(stores.iterdir()) == []


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # Short, for a mount's socket, and where databases' own users may pass.
    with tempfile.TemporaryDirectory(prefix="zs-", dir="/var/tmp") as name:
        found = Scene(Path(name))
        monkeypatch.setenv("ZTUNE_HOME", str(found.home))
        yield found


FILL = ("run", "sqlite", "-p", "size=400M", "--on", "mount", "--blocks", "1")


@needs_mount
def test_while_a_database_is_prepared(scene: Scene) -> None:
    """The client is at work and does not answer: that is no failure of the layout's."""
    process = scene.start(*FILL)
    scene.wait_for(scene.says("fill the database"), process)
    scene.end(process)
    assert not scene.says("failed")()
    with Store.open() as store:
        run = store.run()
        assert scene.said[-1] == f"ztune: interrupted; `ztune run --resume {run.id}` goes on\n"
        assert run.status == "interrupted"
        assert {t.status for t in store.trials(run.id)} == {"pending"}
    assert not list((scene.home / "cache" / "prepared").glob("*/"))


@needs_mount
def test_while_another_prepares_the_same(scene: Scene) -> None:
    params = job_workload("sqlite", {"size": "1M"})
    name = prepared.key("sqlite", params.resolved(), {}, params.check())
    lock = prepared.folder() / f"{name}.lock"
    # Whatever a layout sets in the database: the locks of all of them are held.
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = scene.start("run", "sqlite", "-p", "size=1M", "--on", "mount", "--blocks", "1", "--aa")
        scene.wait_for(scene.says("wait for another ztune"), process)
        scene.end(process)


@needs_mount
def test_while_the_results_are_locked(scene: Scene) -> None:
    Store.open().close()
    holder = sqlite3.connect(scene.home / "ztune.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    process = scene.start("run", "sqlite", "-p", "size=1M", "--on", "mount", "--blocks", "1")
    scene.wait_for(scene.says("waiting for another process"), process)
    scene.end(process)
    holder.close()


@needs_mount
@pytest.mark.parametrize(
    ("size", "step"), [("400M", "fill the database"), ("2M", "run the load")], ids=["loading", "recording"]
)
def test_while_a_workload_is_recorded(size: str, step: str, scene: Scene) -> None:
    process = scene.start("tune", "sqlite", "-p", f"size={size}", "-p", "seconds=600", "--out", "out")
    scene.wait_for(scene.says(step), process)
    scene.end(process)
    assert not (scene.folder / "out").exists()


def test_while_layouts_are_screened(scene: Scene) -> None:
    trace = make_trace(scene.folder / "a.trace")
    path = str(trace if isinstance(trace, Path) else trace.path)
    ops = scene.home / "scratch"
    process = scene.start("screen", path, "--jobs", "2", ZTUNE_ENGINE=str(STAND_IN), STAND_IN="slow=600")
    # The base goes first: what follows is proposed after it.
    scene.wait_for(lambda: len(list(ops.glob("trial-*"))) >= 1, process)
    scene.end(process)
    with Store.open() as store:
        assert store.run().status == "interrupted"


@needs_mount
def test_while_a_process_is_observed(scene: Scene) -> None:
    """It ends the window: what was seen until then is shown."""
    process = scene.start("observe", "--pid", str(os.getpid()), "--seconds", "600")
    scene.wait_for(lambda: bool(scene.said), process)
    scene.end(process, 0)


@needs_mount
def test_while_power_is_cut(scene: Scene) -> None:
    process = scene.start("crashtest", "sqlite", "--cuts", "500")
    scene.wait_for(lambda: any(scene.tmp.glob("ztune-crashtest-*/*")), process)
    scene.end(process)


@pytest.mark.parametrize("as_it_begins", [False, True])
def test_while_the_lab_is_built(as_it_begins: bool, scene: Scene) -> None:
    """The compiler has a session of its own, so that nobody but us ends it: also of a stop that comes when it
    runs and nobody here has it yet."""
    code = (
        "from pathlib import Path; import subprocess, sys, time, types; from ztune.cli import main as m; "
        "from ztune.lab import build\n"
        "begin = subprocess.Popen\n"
        "def slowly(*words, **how):\n"
        "    begun = begin(*words, **how)\n"
        "    time.sleep(float(sys.argv[2]))\n"
        "    return begun\n"
        "subprocess.Popen = slowly\n"
        "def command(): build.Steps(subprocess.DEVNULL, Path('log'), print).run("
        "['sh', '-c', sys.argv[1] + '; sleep 600'], Path('.'), 'compiling')\n"
        "m.ztune = types.SimpleNamespace(main=lambda standalone_mode: command())\n"
        "m.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, f": {scene.folder}", "3" if as_it_begins else "0"],
        cwd=scene.folder, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    threading.Thread(target=scene._listen, args=(process,), daemon=True).start()
    scene.wait_for(lambda: len(scene.running()) >= 2, process)
    scene.end(process)
