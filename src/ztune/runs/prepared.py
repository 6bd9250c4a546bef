"""The database in its starting state, loaded once on this host and copied into every trial.

Filling a database takes longer than most measurements, and under emulation twenty times longer. So the job
loads it here, natively, and each trial copies the files; the job then takes them over (``adopt``). States are
kept in the cache by what they depend on: job, parameters, the layout's database settings, and the database's
version.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune import paths
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import own_directory, room, shared_files
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import beside, registry
from ztune.onhost.jobs.job import Job
from ztune.onhost.trial import saved

MAX_BYTES = 20 << 30  # all states together; those not used for longest go first
_PARTIAL = ".partial"

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class SavedState:
    """A saved state: its folder, what it is for, and its size in bytes."""

    path: Path
    job: str
    bytes: int


def folder() -> Path:
    """Return the folder of all saved states."""
    # A database's own user must be able to pass.
    return paths.below(paths.cache(), "prepared", own_directory.PASSABLE)


def key(job: str, params: Mapping[str, Any], database: Mapping[str, str], version: str) -> str:
    """Return the name of the state: equal for equal content."""
    text = json.dumps(
        [
            saved.VERSION,
            registry.shown(job),
            beside.loaded(registry.get(job), params),
            dict(database),
            version,
        ],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def prepare(
    name: str, params: Mapping[str, Any], database: Mapping[str, str], progress: Progress = lambda *_: None
) -> Path:
    """Return the folder of the state, loaded now if it is not there. Safe when several processes do it.

    Raises MissingError or InputError where the job can't run on this host, ZtuneError where loading fails.
    """
    job = registry.get(name)(dict(params), dict(database))
    version = job.check()
    wanted = folder() / key(name, params, database, version)
    # Shared where it is there: others may be copying it for as long as their runs last.
    with _locked(wanted, True, progress):
        if _there(wanted):
            return wanted
    with _locked(wanted, False, progress):
        if _there(wanted):
            return wanted
        if wanted.exists():
            _remove(wanted)
        _require_room(name, job)
        with room.RoomWatch("the load", lambda: [WorkDir.default_parent(), folder()]):
            sizes = _load(job, wanted, progress)
        saved.mark(
            wanted,
            token="",
            job=registry.shown(name),
            params=beside.loaded(registry.get(name), params),
            sizes=sizes,
            environment=version,
        )
    prune(keep=wanted)
    return wanted


def require_room(name: str, params: Mapping[str, Any], database: Mapping[str, str]) -> None:
    """Refuse a load that does not fit on this host, unless its state is there already. Raises InputError."""
    job = registry.get(name)(dict(params), dict(database))
    needed = room.needed_by(job)
    if needed and not _there(folder() / key(name, params, database, job.check())):
        _require_room(name, job)


def _require_room(name: str, job: Job) -> None:
    # It is loaded in one place and kept in the other.
    size = sum(room.needed_by(job).values())
    room.require(
        f"job {registry.shown(name)}",
        [(WorkDir.default_parent(), size), (folder(), size)],
        "set TMPDIR and ZTUNE_HOME to roomier places",
    )


def _load(job: Job, wanted: Path, progress: Progress) -> dict[str, int]:
    """Load into places of a work directory, then save the places in ``wanted``; return bytes by role."""
    work = WorkDir.create("prepare")
    partial = wanted.with_name(wanted.name + _PARTIAL)
    try:
        if partial.exists():
            _remove(partial)
        top = work.sub("places", mode=own_directory.PASSABLE)
        places = {role: top / role for role in job.roles()}
        for place in places.values():
            place.mkdir()
            place.chmod(0o755)  # whatever the umask: a database's own user works there
        inner = WorkDir.create("prepare-job")
        try:
            job.prepare(inner, places)
            job.load(progress)
            job.stop()
        finally:
            job.cleanup()
            inner.remove()
        partial.mkdir(mode=own_directory.PRIVATE)
        sizes = {}
        for role, place in places.items():
            sizes[role] = _bytes(place)
            _save(saved.pack(place, partial, role), partial)
        partial.rename(wanted)
        return sizes
    finally:
        if partial.exists():
            _remove(partial)
        work.remove()


def _save(command: list[str], target: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ZtuneError(
            f"the loaded database can't be kept in {target.parent}: {said[-1] if said else 'tar failed'}"
        )


def _bytes(path: Path) -> int:
    total = 0
    for folder, _folders, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # a load that is cut just now
                total += Path(folder, name).lstat().st_size
    return total


def _there(wanted: Path) -> bool:
    if not (wanted / saved.MARKER).is_file():
        return False
    os.utime(wanted)
    return True


@contextmanager
def _locked(wanted: Path, shared: bool, progress: Progress) -> Iterator[None]:
    def waiting() -> None:
        progress("wait for another ztune that fills the same database", 0.0)

    with shared_files.locked(_lock_of(wanted), shared=shared, waiting=waiting):
        yield


def states() -> list[SavedState]:
    """Return the states that are kept, the longest unused first; what killed loads left is of no job."""
    found, used = [], {}
    for path in folder().iterdir():
        with contextlib.suppress(FileNotFoundError):  # another ztune removes it now
            if path.is_dir() and not path.is_symlink():
                used[path] = path.stat().st_mtime
    for path in sorted(used, key=used.__getitem__):
        try:
            about = json.loads((path / saved.MARKER).read_text(encoding="utf-8"))
            found.append(SavedState(path, str(about["job"]), sum(int(v) for v in about["bytes"].values())))
        except (OSError, ValueError, KeyError, TypeError):
            found.append(SavedState(path, "?", _bytes(path)))
    return found


def prune(keep: Path | None = None, limit: int = MAX_BYTES) -> list[SavedState]:
    """Remove what killed loads left, and states until the rest is within ``limit`` bytes; return those
    removed. ``keep`` stays.
    """
    known = states()
    total = sum(s.bytes for s in known)
    gone = []
    for state in known:
        whole = (state.path / saved.MARKER).is_file()
        if state.path == keep or (whole and total <= limit):
            continue
        try:
            with shared_files.locked(_lock_of(state.path), wait=False):
                if not state.path.is_dir() or whole != (state.path / saved.MARKER).is_file():
                    continue  # removed meanwhile, or loaded to the end
                _remove(state.path)
        except BlockingIOError:  # somebody makes or uses it
            continue
        total -= state.bytes
        gone.append(state)
    return gone


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Within the body nobody removes the state at ``path``."""
    with shared_files.locked(_lock_of(path), shared=True):
        yield


def _lock_of(state: Path) -> Path:
    return state.parent / f"{state.name.removesuffix(_PARTIAL)}.lock"


def _remove(path: Path) -> None:
    # Only ever a child of our own cache folder.
    if path.parent != folder() or path.is_symlink():
        raise InputError(f"{path} is no saved state of ztune's; it was left alone")
    shutil.rmtree(path, ignore_errors=False)
