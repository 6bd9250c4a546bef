"""Observes a live database with all there is: its calls, the host, ZFS, its files and its settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ztune.databases.observed import databases
from ztune.observe import files, zfs_state
from ztune.observe.allocation import Allocation
from ztune.observe.live import LiveObservation
from ztune.observe.model import Group, Observation, ObservedFiles, ObservedZfs
from ztune.observe.subjects import ObservedSubject
from ztune.observe.system import Sampler
from ztune.onhost.look.zfs import disk_pools
from ztune.trace.roles import RoleRules
from ztune.trace.view import common_folder

Show = Callable[[Observation, float], None]
"""Called about once a second with what was seen so far, and the seconds since the beginning."""


def watch(
    subject: ObservedSubject,
    seconds: float | None,
    rules: RoleRules | None = None,
    *,
    all_calls: bool = False,
    sample: int = 1,
    look_at_files: bool = True,
    user: str | None = None,
    show: Show = lambda seen, passed: None,
    say: Callable[[str], None] = lambda text: None,
) -> Observation:
    """Observe for ``seconds`` (None: until KeyboardInterrupt) or until all chosen processes are gone.

    A KeyboardInterrupt ends the window, a second one the look at the files: what was seen is returned.
    ``all_calls``, ``sample``: as ``LiveObservation`` has them. ``look_at_files``: afterwards walk through the
    files of each role and compress samples of them. ``user``: whom to ask databases as, see
    ``settings.databases``. ``say`` is told of steps that take a moment.

    Raises MissingError without what observing needs.
    """
    with LiveObservation(subject, rules, all_calls, sample) as live:
        # To load the programs takes seconds on a slow host: all counters begin and end with those of calls.
        zfs, sampler = zfs_state.ZfsWatch(), Sampler()
        sampler.start()
        try:
            with suppress(KeyboardInterrupt):
                _wait(live, seconds, show)
            zfs.freeze()
        finally:
            sampler.stop()
        seen = live.finish()
    say("asking ZFS and the databases")
    files_seen = live.files()
    in_datasets: dict[str | None, set[str]] = {}
    for g in files_seen:
        in_datasets.setdefault(g.dataset, set()).update([g.role] if g.role else [])
    state, limits = zfs.state(dict.fromkeys(subject.folders) if subject.by_files else {}, in_datasets)
    hidden = live.elsewhere()
    reached = [g for g in files_seen if g.name not in hidden]
    roots = folders(subject, reached, set(_works(live.pids())))
    settings, unknown = databases(live.pids(), roots, user)
    limits += tuple(sampler.limits) + unknown
    found: tuple[ObservedFiles, ...] = ()
    if look_at_files:
        say("looking at the files, and how they compress")
        listed = {g.name: g.role for g in reached if g.role}
        try:
            found, more = files.files(roots, listed, rules=rules, allocations=_allocations(files_seen, state))
        except KeyboardInterrupt:
            more = ("the files were not looked at: it was interrupted",)
        limits += more
    return seen.model_copy(
        update={
            "series": sampler.series(),
            "disks": sampler.disks(disk_pools()),
            "zfs": state,
            "databases": settings,
            "files": found,
            "limits": (*seen.limits, *limits),
        }
    )


def _wait(live: LiveObservation, seconds: float | None, show: Show) -> None:
    began = time.monotonic()
    while True:
        passed = time.monotonic() - began
        left = 1.0 if seconds is None else min(1.0, seconds - passed)
        if left <= 0 or live.wait(left):
            return
        show(live.snapshot(), time.monotonic() - began)


def folders(subject: ObservedSubject, groups: Iterable[Group], works: Iterable[str] = ()) -> list[str]:
    """Return the folders that the observed files are in: the subject's own, else the deepest of each role, of
    those below a folder of ``works``, in which servers work, and of the others: a table that has a place of
    its own must not have all be looked through that lies between.

    Of processes only files with a role count: their other files are logs and libraries, and may be anywhere.
    """
    if subject.by_files:
        return list(subject.folders)
    paths: dict[tuple[str, str], list[str]] = {}
    homes = {one for one in works if one != "/"}
    for group in groups:
        if group.kind == "file" and group.role and group.name.startswith("/"):
            home = next((one for one in homes if group.name.startswith(f"{one}/")), "")
            paths.setdefault((group.role, home), []).append(group.name)
    found = {common_folder(of_role) for of_role in paths.values()} - {""}
    return sorted(f for f in found if not any(f != other and f.startswith(f"{other}/") for other in found))


def _works(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        with suppress(OSError):
            yield str(Path(f"/proc/{pid}/cwd").readlink())


def _allocations(groups: Iterable[Group], state: ObservedZfs | None) -> dict[str, Allocation]:
    """Return how the pool of each role's dataset lays blocks out; of several pools the busier one's."""
    pools = {pool.name: pool for pool in state.pools} if state else {}
    found: dict[str, tuple[int, Allocation]] = {}
    for group in groups:
        if group.kind != "file" or not group.role or not group.dataset:
            continue
        pool = pools.get(group.dataset.partition("/")[0])
        vdev = next((v for v in pool.vdevs if v.role == "data"), None) if pool else None
        if vdev is not None:
            moved = (group.reads.bytes or 0) + (group.writes.bytes or 0)
            if group.role not in found or moved > found[group.role][0]:
                found[group.role] = (moved, Allocation.of(vdev))
    return {role: allocation for role, (_, allocation) in found.items()}
