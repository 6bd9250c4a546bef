"""What a replay reads, brought to the worker that does not have it; and what the worker is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ztune.fleet import kept, worker
from ztune.fleet.roster import FleetHome, FleetWorker
from ztune.places import loaded
from ztune.places.executor import PlannedReplay

if TYPE_CHECKING:
    from distributed import Client


class Delivery:
    """Sends files to workers by their content: each reaches a state directory once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._digests: dict[tuple[Any, ...], str] = {}
        self._lock = threading.Lock()

    def order(self, planned: PlannedReplay, place: FleetWorker, home: FleetHome) -> str:
        """Return what a worker is told of a replay, once it has the files. Raises NoRoomError, OSError."""
        work = planned.work
        paths_ = {"ops": work.ops, **{f"content/{name}": path for name, path in work.content.items()}}
        files = {name: (self._digest(path), path) for name, path in paths_.items()}
        if place.home != tuple(worker.home_here()):
            with home.lock:
                self._bring({sha: path for sha, path in files.values() if sha not in home.files}, place)
                home.files |= {sha for sha, _ in files.values()}
        return _order(planned, files, (place.slots, place.memory))

    def _digest(self, path: Path) -> str:
        key = tuple(loaded.identity(path))
        with self._lock:
            found = self._digests.get(key)
        if found is None:
            found = kept.digest(path)
            with self._lock:
                self._digests[key] = found
        return found

    def _bring(self, files: Mapping[str, Path], place: FleetWorker) -> None:
        """Send ``files``, by their digests, to a worker that does not have them."""
        if not files:
            return

        def ask(function: Callable[..., Any], *args: Any) -> Any:
            return self._client.run(function, *args, workers=[place.address])[place.address]

        for sha in ask(kept.missing, list(files)):
            path = files[sha]
            size = path.stat().st_size
            with path.open("rb") as file:
                for offset in range(0, size, kept.PART):
                    ask(kept.put, sha, offset, file.read(kept.PART), size)
            ask(kept.finish, sha)


def _order(planned: PlannedReplay, files: Mapping[str, tuple[str, Path]], room: tuple[int, int]) -> str:
    """Return what a worker is told of a replay, as JSON: no path of it but those that are the same there."""
    work = planned.work
    engine = planned.replay.engine
    read = {name.removeprefix("content/"): sha for name, (sha, _) in files.items() if name != "ops"}
    if loaded.goes_by_operations(work.spec):
        read["the operations"] = files["ops"][0]
    return json.dumps(
        {
            "engine": engine.version,
            "openzfs": engine.openzfs,
            "spec": work.spec,
            "key": loaded.key_of(work.load, read, engine),
            "contents": work.contents,
            "filler": work.filler,
            "threads": work.threads,
            "timeout_s": work.timeout_s,
            "room": room,
            "files": {name: (sha, str(path.resolve())) for name, (sha, path) in files.items()},
            "home": worker.home_here(),
        }
    )
