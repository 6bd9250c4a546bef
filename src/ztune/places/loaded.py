"""What a replay begins with, loaded once: layouts that would load the same begin from one image of the pools.

Most of a replay's time is the load: every file is written, in the layout's records. Log and cache disks, the
ARC, caching, ``logbias``, ``sync`` and tunables change nothing of what it leaves behind. Processors decide in
which order blocks come to the disks, so a load has always the same ones, but where the pools get a past. So
each load has a spec of its own without them; where two are the same, so is the image. Replays go by an image
also where nobody shares it: whether one was there makes no difference to any count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ztune import paths
from ztune.onhost.host import shared_files
from ztune.places import engine_limits
from ztune.places.calibration import HostProcessors
from ztune.places.engine import Engine
from ztune.study.layout import MIN_ARC

LATER = frozenset({"logbias", "sync", "primarycache", "secondarycache", "direct"})
"""Properties that say how files are read and written, and nothing of how what is written lies there."""
ARC = MIN_ARC
"""Bytes of ARC that a load has, whatever the layout's is."""
ROOM = 4 << 30
"""Bytes of images that are kept, at most; and never more than a quarter of what else is free beside them."""
_CORES = 2  # of a load's processors: with four, three blocks of a file would race for each place
_LOCKS = 64
_LOOK_S = 0.1


def load_spec(spec: Mapping[str, Any], processor: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what of an engine's ``spec`` decides what a load leaves behind, itself a spec.

    ``processor``: the modelled host's, which takes effect where the pools get a past; else a load has those
    that are the same for all. None: a load that takes real time.
    """
    kept = {k: v for k, v in spec.items() if k not in ("tunables", "processor", "host_memory")}
    if processor is not None:
        kept["processor"] = processor if "age" in spec else HostProcessors(_CORES).spec()
    pools = [
        {**pool, "vdevs": [v for v in pool["vdevs"] if v["class"] not in ("log", "cache")]}
        for pool in spec["pools"]
    ]
    used = {d["profile"] for p in pools for v in p["vdevs"] for d in v["disks"]}
    datasets = [
        {**d, "properties": {k: v for k, v in d["properties"].items() if k not in LATER}}
        for d in spec["datasets"]
    ]
    return {
        **kept,
        "arc_max": ARC,
        "pools": pools,
        "datasets": datasets,
        "profiles": {name: spec["profiles"][name] for name in sorted(used)},
    }


def loads_a_part(spec: Mapping[str, Any]) -> bool:
    """Return whether a load writes what the operations touch alone: of a sample, as of "touched"."""
    return spec.get("load") == "touched" or int(spec.get("sample", 1)) > 1


def goes_by_operations(spec: Mapping[str, Any]) -> bool:
    """Return whether what a load writes depends on the operations: what is there, or what it holds. Samples
    of files of one length have the same spec otherwise."""
    return loads_a_part(spec) or any("untouched" in file for file in spec["files"])


def identity(path: Path) -> list[Any]:
    """Return what tells a file of this machine from every other, where none is changed once it is there."""
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def key_of(spec: Mapping[str, Any], read: Mapping[str, Any], engine: Engine) -> str:
    """Return what loads with the same outcome have in common: ``spec`` is a ``load_spec`` without paths.

    ``read``: what else the load reads, by name: the ``identity`` of each file, or a digest of its content.
    """
    parts = [engine.version, engine.openzfs, spec, {name: read[name] for name in sorted(read)}]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def folder() -> Path:
    """Return the directory of the images, this user's alone."""
    return paths.private(paths.cache() / "loaded")


def is_there(key: str) -> bool:
    """Return whether the image ``key`` is kept."""
    return (folder() / f"{key}.image").is_file()


def kept() -> dict[Path, int]:
    """Return the images that are kept and what room each takes, bytes; those not used for longest first."""
    try:
        found = sorted(folder().glob("*.image"), key=lambda path: path.stat().st_mtime)
    except FileNotFoundError:  # another ztune removes some now
        found = list(folder().glob("*.image"))
    return {path: _room(path) for path in found}


def drop(least: int = 0) -> None:
    """Remove the images that were not used for longest until ``least`` bytes or fewer are left, and what a
    ztune that was killed left of others.

    Who reads one goes on: it is gone with the last of them.
    """
    shared_files.remove_left(folder())
    found = kept()
    left = sum(found.values())
    for path, room in found.items():
        if left <= least:
            break
        left -= room
        path.unlink(missing_ok=True)


class NotLoadedError(Exception):
    """There is no image; its words are one sentence that says why."""


@contextlib.contextmanager
def image(key: str, need: int, load: Callable[[Path], None], stop: threading.Event) -> Iterator[int]:
    """Yield the image ``key``, open to be read; ``load(path)`` makes it where it is not there.

    Who else wants the same image waits meanwhile. ``need``: bytes that it takes at most; where the disk has
    no room for them it is made in memory, and not kept. Raises NotLoadedError, from ``load`` too.
    """
    path = folder() / f"{key}.image"
    with contextlib.ExitStack() as stack:
        _lock(stack, folder() / f"lock-{int(key[:8], 16) % _LOCKS}", stop)
        fd = _open(path)
        if fd is None:
            fd = _make(path, need, load)
    try:
        yield fd
    finally:
        os.close(fd)


def _make(path: Path, need: int, load: Callable[[Path], None]) -> int:
    # Loads of a run are alike: room for one more as large as the largest is made before it is there.
    drop(_most() - max(kept().values(), default=0))
    if need > engine_limits.disk_bytes(path.parent):
        drop()
    if need > engine_limits.disk_bytes(path.parent):
        fd = os.memfd_create("ztune-loaded")
        try:
            load(Path(f"/proc/{os.getpid()}/fd/{fd}"))
        except BaseException:
            os.close(fd)
            raise
        return fd
    with shared_files.replacing(path) as partial:
        load(partial)
        fd = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    drop(_most())
    return fd


def _most() -> int:
    """Return the bytes of images that are kept at most."""
    free = shutil.disk_usage(folder()).free + sum(kept().values())
    return min(ROOM, free // 4)


def _open(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    os.utime(fd)
    return fd


def _room(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:  # another ztune removed it
        return 0


def _lock(stack: contextlib.ExitStack, path: Path, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            stack.enter_context(shared_files.locked(path, wait=False))
            return
        except BlockingIOError:
            stop.wait(_LOOK_S)
    raise NotLoadedError("it was interrupted")
