"""What runs on the workers of a fleet: they say what they have, take files, and replay layouts.

Each function is called there by its name: a worker has the same ztune, and nothing of ours is sent but data.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Status, get_worker

from ztune import __version__, paths
from ztune.errors import ZtuneError
from ztune.fleet import kept
from ztune.places import engine as engines
from ztune.places import engine_limits
from ztune.places.engine import Engine
from ztune.places.engine_run import EngineRoom, EngineWork, run_engine, sweep

if TYPE_CHECKING:
    from distributed import Worker

ENGINES = "ztune-engines"
"""The resource of a worker: how many engines run on it at once, of all who screen on the fleet."""
TOPIC = "ztune-replays"
"""The topic under which replays tell how far they are."""
_TELL_S = 1.0
_LOOK_S = 0.2
_stops: dict[str, threading.Event] = {}


def home_here() -> list[Any]:
    """Return what tells this state directory from every other one, of this machine or another."""
    stat = paths.home().stat()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, stat.st_dev, stat.st_ino]


async def hello(openzfs: str, dask_worker: Worker | None = None) -> dict[str, Any]:
    """Return what this worker has: versions, host, memory, home; ``error`` is a sentence where it can't
    replay. ``openzfs``: the version that is asked for."""
    assert dask_worker is not None
    host = socket.gethostname()
    try:
        engine = await asyncio.to_thread(_engine, openzfs)
        sweep()
        home = home_here()
    except (ZtuneError, OSError) as error:
        return {"host": host, "error": str(error)}
    return {
        "host": host, "ztune": __version__, "engine": engine.version, "openzfs": engine.openzfs,
        "home": home, "cores": len(os.sched_getaffinity(0)), "threads": dask_worker.state.nthreads,
        "memory": engine_limits.memory_bytes(),
    }  # fmt: skip


async def accept(engines_at_once: int, dask_worker: Worker | None = None) -> None:
    """Take so many engines at once."""
    assert dask_worker is not None
    await dask_worker.set_resources(**{ENGINES: engines_at_once})


def end(token: str) -> None:
    """Stop the engines of the screening ``token``."""
    for key, stop in list(_stops.items()):
        if key.startswith(f"ztune-{token}-"):
            stop.set()


def busy(token: str) -> int:
    """Return how many engines of the screening ``token`` run."""
    return sum(key.startswith(f"ztune-{token}-") for key in list(_stops))


def replay(order: str) -> str:
    """Replay what ``order`` says (``fleet/delivery.py``), and return how it ended.

    Either an outcome, or ``missing`` with the digests of files that are not here, or ``unfit`` with a
    sentence that says why this worker can't replay it.
    """
    worker = get_worker()
    key = str(worker.get_current_task())
    asked = json.loads(order)
    try:
        engine = _engine(asked["openzfs"])
        if [engine.version, engine.openzfs] != [asked["engine"], asked["openzfs"]]:
            return json.dumps({"unfit": f"its engine is now {engine.version} with OpenZFS {engine.openzfs}"})
        files, absent = _files(asked, home_here())
        if absent:
            return json.dumps({"missing": absent})
        work = EngineWork(
            asked["spec"], files.pop("ops"), {k.removeprefix("content/"): p for k, p in files.items()},
            asked["key"], asked["contents"], asked["filler"], asked["threads"], asked["timeout_s"],
        )  # fmt: skip
        said = 0.0

        def tell(phase: str, share: float) -> None:
            nonlocal said
            if time.monotonic() - said >= _TELL_S:
                said = time.monotonic()
                worker.log_event(TOPIC, {"key": key, "phase": phase, "share": share})

        with _stopped_with_task(worker, key) as stop:
            outcome = run_engine(work, engine, EngineRoom(*asked["room"]), tell, stop)
    except (ZtuneError, OSError) as error:
        return json.dumps({"unfit": str(error)})
    return json.dumps(vars(outcome))


@contextlib.contextmanager
def _stopped_with_task(worker: Worker, key: str) -> Iterator[threading.Event]:
    """Yield an event that is set when nobody waits for the task ``key`` any more: it was cancelled, who asked
    for it was killed, or the worker closes."""
    stop, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            task = worker.state.tasks.get(key)
            if task is None or task.state != "executing" or worker.status != Status.running:
                stop.set()

    _stops[key] = stop
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        over.set()
        watcher.join()
        del _stops[key]


@functools.cache
def _engine(openzfs: str) -> Engine:
    return engines.of_run({"openzfs": openzfs})


def _files(asked: dict[str, Any], home: list[Any]) -> tuple[dict[str, Path], list[str]]:
    """Return the files of an order, and the digests of those that are not here."""
    if asked["home"] == home:  # who asks has the same state directory
        return {name: Path(path) for name, (_, path) in asked["files"].items()}, []
    found: dict[str, Path] = {}
    absent = []
    for name, (sha, _) in asked["files"].items():
        path = kept.find(sha)
        if path is None:
            absent.append(sha)
        else:
            found[name] = path
    return found, absent
