"""Deleting runs: their rows, and the files beside the database that are theirs alone."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ztune import paths
from ztune.errors import ZtuneError
from ztune.store.db import Store
from ztune.store.records import Run

_ID = re.compile(r"[a-z0-9]{4,32}")
_MANIFEST = "trace.json"


def folders(store: Store, runs: Sequence[Run]) -> dict[str, list[Path]]:
    """Return for each run the folders that go with it: its series, and the traces that were made for it.

    A trace outside of the state directory is the user's; one that runs beside ``runs`` replayed stays too. So
    does what the state directory's own database still names, where ``store`` is another.
    The store, which may be shared, is not trusted for that: an id that is none leads nowhere, and of a shared
    store only runs that we made have files here, and recordings only with the content that they name.
    """
    ids = {run.id for run in runs}
    kept = {path for other in store.runs() if other.id not in ids for path in _recordings(store, other)}
    copies: set[str] = set()
    with _beside(store) as beside:
        for one in beside:
            copies |= {run.id for run in one.runs()}
            kept |= {path for run in one.runs() for path in _recordings(one, run)}
    found: dict[str, list[Path]] = {}
    for run in runs:
        theirs: list[Path] = []
        if _ID.fullmatch(run.id) and store.is_own(run):
            if run.id not in copies:
                theirs.append(paths.home() / "series" / run.id)
            for path in sorted(_recordings(store, run) - kept):
                if Path(path).parent == paths.traces() and (not store.shared or _is(Path(path), store, run)):
                    theirs.append(Path(path))
        # As it is written: nothing behind a link, nor through "..".
        found[run.id] = [folder for folder in theirs if folder.is_dir() and folder.resolve() == folder]
    return found


@contextmanager
def _beside(store: Store) -> Iterator[list[Store]]:
    """Yield the state directory's own database where ``store`` is another: its runs have files there too.

    Raises as ``Store.open`` does: what can't be read may name any of them.
    """
    own = paths.database()
    if not own.exists() or (isinstance(store.path, Path) and store.path.resolve() == own.resolve()):
        yield []
        return
    with Store.open(own) as found:
        yield [found]


def _is(trace: Path, store: Store, run: Run) -> bool:
    """Whether the recording at ``trace`` has the content that ``run`` names for it."""
    of_trials = {(trial.trace_path, trial.trace_sha) for trial in store.trials(run.id)}
    named = {(run.trace_path, run.trace_sha), _neighbour(run), *of_trials}
    return _sha(trace) in {sha for path, sha in named if path == str(trace)}


def _sha(trace: Path) -> str | None:
    """Return what runs name the content of ``trace`` by; None where it has none that can be read."""
    try:
        return hashlib.sha256((trace / _MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None


def _recordings(store: Store, run: Run) -> set[str]:
    """Return the paths of the recordings that ``run`` replayed, a neighbour's among them."""
    return {run.trace_path, _neighbour(run)[0], *store.recordings(run.id)} - {""}


def _neighbour(run: Run) -> tuple[str, str]:
    """Return path and content of the recording that ``run`` replayed beside its own; empty without one."""
    kept = run.options.get("beside") or {}
    return str(kept.get("path", "")), str(kept.get("sha", ""))


def orphans(store: Store) -> list[Path]:
    """Return the traces and series in the state directory that no run goes with, here or in its own database:
    what failed or was killed left them, or a trace is being recorded.

    A trace goes with a run by its path or by its content: a state directory may have been moved.
    """
    with _beside(store) as beside:
        runs = [(one, run) for one in (store, *beside) for run in one.runs()]
        named = {path for one, run in runs for path in _recordings(one, run)}
        series = set((paths.home() / "series").glob("*"))
        series -= {paths.home() / "series" / run.id for _, run in runs}
        traces = [path for path in paths.folder("traces").glob("*.trace*") if str(path) not in named]
        if traces:
            content = {sha for one, run in runs for sha in _contents(one, run)}
            traces = [path for path in traces if _sha(path) not in content]
    return sorted(series) + sorted(traces)


def _contents(store: Store, run: Run) -> set[str]:
    """Return what names the content of the recordings that ``run`` replayed."""
    return {run.trace_sha, _neighbour(run)[1], *(t.trace_sha for t in store.trials(run.id))} - {""}


def delete(store: Store, runs: Sequence[Run]) -> None:
    """Delete ``runs`` and their folders. Raises InputError, before anything is, as ``check_deletable`` does.

    Raises ZtuneError if a folder can't be removed; the runs are gone then, and the sentence names the folder.
    """
    gone = folders(store, runs)
    store.delete_runs([run.id for run in runs])
    for folder in {folder for theirs in gone.values() for folder in theirs}:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise ZtuneError(
                f"the runs are deleted, but {folder} can't be removed: {error.strerror}; remove it yourself"
            ) from None
