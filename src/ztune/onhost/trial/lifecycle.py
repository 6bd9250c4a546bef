"""The life of a trial: prepare → load → settle → measure → collect → destroy.

Whatever happens on the way — a fault, a lost reader, a signal — the trial ends with ``destroy``, which
removes through the door what the journal says was made. A trial that was killed leaves its journal, and the
next trial of its run, or ``clean``, does the same.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ztune.errors import InputError, ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.host import interrupt, mounts, own_directory, room
from ztune.onhost.host.about import environment
from ztune.onhost.host.home import trials
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.own_directory import PASSABLE, PRIVATE, NotOursError, OwnDirectory
from ztune.onhost.host.process import MARK
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.host.zfs import Commands, Zfs
from ztune.onhost.jobs import registry
from ztune.onhost.jobs.beside import PREFIX, loaded
from ztune.onhost.jobs.job import Job, WorkloadResult
from ztune.onhost.jobs.role_directories import room_for
from ztune.onhost.probes.context import Context
from ztune.onhost.trial import age, parents, saved
from ztune.onhost.trial.door import Door
from ztune.onhost.trial.journal import NAME as JOURNAL
from ztune.onhost.trial.journal import Journal
from ztune.onhost.trial.kernel_pools import KernelPools
from ztune.onhost.trial.lock import RunLock
from ztune.onhost.trial.mounted_pools import MountedPools
from ztune.onhost.trial.pools import Pools
from ztune.onhost.trial.spec import Spec
from ztune.units import format_size

RESULT_FORMAT, RESULT_VERSION = "ztune-result", 1


class Window(Protocol):
    """The measure window, from ``begin``."""

    def close(self) -> None:
        """Take the last reading, and nothing else."""
        ...

    def end(self) -> dict[str, Any]:
        """Return the result's "measure", once the window is closed."""
        ...


class ProbesAtWork(Protocol):
    """The running probes, from ``start``."""

    def freeze(self) -> None:
        """Take the last readings, and nothing else."""
        ...

    def stop(self) -> dict[str, Any]:
        """End the probes and return what each found, by name."""
        ...

    def abandon(self) -> None:
        """End the probes, for no result."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a trial is made of besides its core, so that tests may put others in their place."""

    job: Callable[[str], type[Job]]
    """A job's class by name."""
    start_probes: Callable[[Context], ProbesAtWork]
    begin_measure: Callable[[Context], Window]

    @classmethod
    def standard(cls) -> Parts:
        """Return ztune's own jobs, probes and measure."""
        import ztune.onhost.probes as probes
        import ztune.onhost.probes.measure as measure

        return cls(registry.get, probes.start, measure.begin)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.loaded")


def teardown(journal: Journal, door: Door, progress: Callable[[float, str], None]) -> list[str]:
    """Remove all that the journal says was made, the latest first; return a sentence for each thing left.

    It needs no room: where the journal can't be written any more it goes on all the same, for whatever is
    removed once more is gone already. A thing that something left still uses, such as the files of a pool, is
    left too.
    """
    problems: list[str] = []
    things = list(reversed(journal.things.values()))
    for i, thing in enumerate(things):
        progress(i / len(things), thing.id)
        user = next((t for t in journal.things.values() if thing.id in t.facts.get("uses", ())), None)
        if user is not None:
            problems.append(f"{thing.id}: left alone, as {user.id} still uses it")
            journal.try_append("refused", id=thing.id, text=problems[-1])
            continue
        journal.try_append("remove", id=thing.id)
        try:
            door.remove(thing)
        except Exception as error:
            # Whatever it was, the other things can still go.
            known = isinstance(error, ZtuneError | OSError)
            problems.append(str(error) if known else f"{thing.id}: {type(error).__name__}: {error}")
            journal.try_append("refused", id=thing.id, text=problems[-1])
        else:
            journal.try_append("removed", id=thing.id)
    if not journal.things:
        journal.try_append("close")
        try:
            door.remove_directory()
        except (ZtuneError, OSError) as error:
            problems.append(str(error))
    return problems


def undo(
    lock: RunLock, trial: str, zfs: Zfs, *, patience: float, progress: Callable[[float, str], None]
) -> list[str]:
    """Remove what an earlier, dead trial of the run left; return a sentence for each thing left.

    Raises:
        ZtuneError: the journal is damaged, or may be somebody else's.
    """
    where = lock.where
    door = Door(
        zfs,
        run=where.run,
        trial=trial,
        state=where.state,
        directory=where.places / trial,
        home=where.believed / trial,
        patience=patience,
    )
    with lock.home.below(trial) as home:
        if home.look(JOURNAL) is None:
            # Killed between the directory and the journal: nothing else was begun.
            if home.names() or (not where.old and os.path.lexists(door.directory)):
                return [f"{home.path}: left alone: it holds no journal of a trial"]
            os.rmdir(trial, dir_fd=lock.home.fd)
            return []
    journal = Journal.open(home.path / JOURNAL)
    try:
        if journal.empty:
            door.remove_directory()
            return []
        if journal.token != door.token or (journal.run, journal.trial) != (where.run, trial):
            return [f"{home.path}: left alone: its journal is another trial's, or was moved here"]
        return teardown(journal, door, progress)
    finally:
        journal.close()


@dataclass(slots=True)
class RunningTrial:
    """One trial. ``run`` does it all."""

    spec: Spec
    events: Events
    parts: Parts
    lock: RunLock
    commands: Commands = field(init=False)
    zfs: Zfs = field(init=False)
    journal: Journal = field(init=False)
    door: Door = field(init=False)
    pools: Pools = field(init=False)
    seconds: dict[str, float] = field(default_factory=dict)
    step: str = "prepare"
    job: Job | None = None
    work: WorkDir | None = None
    roles: dict[str, Path] = field(default_factory=dict)
    _environment: dict[str, Any] = field(default_factory=dict)
    _probe: ProbesAtWork | None = None
    _begun: bool = False
    _aged: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        self.commands = Commands(self.events, patience=spec.patience, keep_fds=[self.lock.fd])
        self.zfs = Zfs(self.commands)
        self.door = Door(
            self.zfs,
            run=spec.run,
            trial=spec.trial,
            state=spec.state,
            directory=spec.directory,
            home=spec.home,
            patience=spec.patience,
        )
        if spec.place.kind == "mount":
            self.pools = MountedPools(spec, self.events)
        else:
            self.pools = KernelPools(spec, self.events, self.zfs, self.door)
        self.commands.in_vain = lambda: bool(self.pools.gone())

    # -- the whole -------------------------------------------------------------------------------------

    def run(self) -> str:
        """Do the trial and return "ok", "failed" or "stopped"; the events say the rest.

        What was made is destroyed in every case, except what the door refuses: then the status is "failed".

        Raises:
            InputError, MissingError: found before anything was made.
        """
        self._check()
        spec = self.spec
        status = "failed"
        result: dict[str, Any] | None = None
        try:
            try:
                with uninterrupted():
                    self._begin()
                with room.RoomWatch("the trial", lambda: [spec.directory, *self.pools.fills()]):
                    result = self._work()
                status = "ok"
            except KeyboardInterrupt:
                status = self._stopped()
            except Exception as error:
                if interrupt.asked():
                    # What fails while it is being stopped fails for that.
                    self.events.log(f"{self.step}: {error}")
                    status = self._stopped()
                else:
                    of_host = room.is_of_host(error) or room.is_short([spec.directory, *self.pools.fills()])
                    self.events.error(self._sentence(error), self.step, of_host=of_host)
        finally:
            # A second Ctrl-C must not stop the clean-up half-way.
            with uninterrupted():
                self.pools.release()
                if result is not None:
                    self.events.send("result", result=result)
                if self._begun and not self._destroy():
                    status = "failed"
        return status

    def _stopped(self) -> str:
        gone = self.pools.gone()
        self.events.error(gone or "stopped before its end, as was asked for", self.step)
        return "failed" if gone else "stopped"

    def _sentence(self, error: BaseException) -> str:
        gone = self.pools.gone()
        if gone:
            # Whatever failed then, failed for this.
            self.events.log(f"{self.step}: {error}")
            return gone
        if isinstance(error, ZtuneError):
            return str(error)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            return f"{self.step}: {where}{error.strerror or error}"
        import traceback

        self.events.log("".join(traceback.format_exception(error))[-4000:])
        return f"{self.step}: a fault in ztune or a job of another's: {type(error).__name__}: {error}"

    def _work(self) -> dict[str, Any]:
        with self._in("prepare"):
            self._prepare()
        with self._in("load"):
            self._load()
        if self.spec.layout.age is not None:
            with self._in("age"):
                self._age()
        with self._in("settle"):
            self._settle()
        with self._in("measure"):
            outcome, measured = self._measure()
        with self._in("collect"):
            return self._collect(outcome, measured)

    @contextmanager
    def _in(self, step: str) -> Iterator[None]:
        self.step = step
        self.journal.step(step, "begin")
        self.events.step(step, "begin")
        began = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - began, 3)
        self.journal.step(step, "end")
        self.events.step(step, "end")

    def _progress(self, text: str, share: float) -> None:
        self.events.step(self.step, "progress", share, text)

    # -- before anything is made -----------------------------------------------------------------------

    def _check(self) -> None:
        spec, layout = self.spec, self.spec.layout
        self.pools.check()
        kind = self.parts.job(spec.job)
        self.job = kind(spec.params, spec.database, patience=spec.patience, dilation=spec.dilation)
        wanted = set(self.job.roles())
        have = {role for d in layout.datasets for role in d.roles}
        have |= {PREFIX + role for role in layout.neighbour}
        if wanted - have:
            raise InputError(
                f"job {self.job.name} uses the role {', '.join(sorted(wanted - have))}, "
                "which no dataset of the layout has"
            )
        self._environment = {**environment(ask_tools=False), "job": self.job.check()}
        needed = sum(room.needed_by(self.job).values())
        room.require(
            f"job {self.job.name}", [(path, needed) for path in self.pools.fills()], "make room there"
        )

    def _begin(self) -> None:
        spec = self.spec
        for trial in trials(self.lock.home):
            self.events.log(f"an earlier trial of this run, {trial}, was cut; it is undone first", waits=True)
            left = undo(self.lock, trial, self.zfs, patience=spec.patience, progress=lambda share, text: None)
            if left:
                raise ZtuneError(f"what an earlier trial of this run left can't be removed: {left[0]}")
        # What the trial starts is known by it again, when it is to be killed.
        os.environ[MARK] = self.door.token
        self.lock.home.below(spec.trial, make=PRIVATE, new=True).close()
        self.lock.home.sync()
        try:
            self.journal = Journal.create(
                spec.home / JOURNAL,
                run=spec.run,
                trial=spec.trial,
                token=self.door.token,
                about={"layout": spec.layout.name, "place": spec.place.kind, "job": spec.job},
            )
        except ZtuneError:
            os.rmdir(spec.trial, dir_fd=self.lock.home.fd)
            raise
        with OwnDirectory.open(spec.directory.parent) as places:
            places.below(spec.trial, make=PASSABLE, new=True).close()
        self._begun = True

    # -- prepare ---------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        assert self.job is not None
        self.pools.make(self.journal, self._progress, loaded(type(self.job), self.spec.params))
        if self.spec.layout.age is not None:
            age.check(self.spec.layout, self.pools.filled())
        for made in self.pools.made:
            for role in made.dataset.roles:
                self.roles[role] = self._role_directory(made.mountpoint / role)
        for role in self.spec.layout.neighbour:
            name = self.spec.layout.neighbour_dataset(role)
            made = next(one for one in self.pools.made if one.dataset.name == name)
            self.roles[PREFIX + role] = self._role_directory(made.mountpoint / role)
        self.work = WorkDir.create("trial", parent=self.spec.directory)
        self.job.prepare(self.work, {role: self.roles[role] for role in self.job.roles()})

    def _role_directory(self, path: Path) -> Path:
        if self.pools.loaded:
            # Out of the job's way, which begins with empty directories.
            path.rename(_aside(path))
        path.mkdir(mode=0o755)
        path.chmod(0o755)
        return path

    # -- load ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        job, spec = self.job, self.spec
        assert job is not None
        places = {role: self.roles[role] for role in job.roles()}
        if self.pools.loaded:
            for place in places.values():
                _aside(place).rename(place)  # in place of the empty one
            job.adopt(places)
            self._stop_job()
            return
        with room_for(self.roles):
            if spec.start == "copy":
                assert spec.start_path is not None
                self._copy_from(spec.start_path, places)
                job.adopt(places)
            else:
                room.require_on(room.needed_by(job), places)
                job.load(lambda text, share: self._progress(text, share * 0.9))
                self._note_pids()
            self._stop_job()
            if spec.start == "keep":
                assert spec.start_path is not None
                self._save_to(spec.start_path, places)
        self.pools.keep(self._progress)

    def _copy_from(self, source: Path, places: dict[str, Path]) -> None:
        job = self.job
        assert job is not None
        try:
            if not mounts.is_share(source):
                # What root unpacks keeps its owners and modes: nobody else may have put it there.
                own_directory.check(own_directory.real(source))
            about = json.loads((source / saved.MARKER).read_text(encoding="utf-8"))
            sizes = {role: int(about["bytes"][role]) for role in places}
        except NotOursError as error:
            raise InputError(f"start.from: {error}") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(
                f"start.from: {source} is no saved state with the roles {', '.join(sorted(places))}; save "
                'one with start "keep"'
            ) from None
        if about.get("version") != saved.VERSION:
            raise InputError(f"start.from: {source} was saved by another version of ztune; save it anew")
        if about.get("job") != registry.shown(self.spec.job) or about.get("params") != loaded(
            type(job), self.spec.params
        ):
            raise InputError(f"start.from: {source} was saved by another job or with other parameters")
        room.require_on(sizes, places)
        for role, place in places.items():
            # Real writes, not clones of blocks: a clone would have the source's layout.
            self._copy(saved.unpack(source, role, place), place, f"copy {role}", sizes[role])

    def _copy(self, command: list[str], target: Path, text: str, size: int) -> None:
        """Run a command that writes about ``size`` bytes into the directory ``target``, with progress."""
        stop = threading.Event()
        before = shutil.disk_usage(target).used

        def watch() -> None:
            while not stop.wait(1.0):
                with contextlib.suppress(OSError):
                    self._progress(text, 0.9 * (shutil.disk_usage(target).used - before) / max(1, size))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            self.commands(command, timeout=6 * 3600)
        finally:
            stop.set()
            thread.join()

    def _save_to(self, target: Path, places: dict[str, Path]) -> None:
        """Copy the loaded state to ``target``, whole or not at all."""
        job = self.job
        assert job is not None
        if target.exists():
            raise InputError(f"start.save: {target} exists already; name a new directory")
        if not target.parent.is_dir():
            raise InputError(f"start.save: {target.parent} is no directory")
        try:
            target = own_directory.real(target.parent) / target.name
        except NotOursError as error:
            raise InputError(f"start.save: {error}") from None
        sizes = {role: _tree_bytes(path) for role, path in places.items()}
        free = shutil.disk_usage(target.parent).free
        if sum(sizes.values()) > free:
            raise InputError(
                f"start.save: the loaded state has {format_size(sum(sizes.values()) // 1024 * 1024)}, "
                f"{target.parent} has {format_size(free // 1024 * 1024)} free"
            )
        partial = target.parent / f"{target.name}.partial-{self.spec.trial}"
        saved.begin(
            self.journal,
            partial,
            job=registry.shown(self.spec.job),
            params=loaded(type(job), self.spec.params),
            sizes=sizes,
            environment=self._environment.get("job", ""),
        )
        for role, place in places.items():
            self._copy(saved.pack(place, partial, role), partial, f"save {role}", sizes[role])
        partial.rename(target)
        self.journal.append("removed", id="saved")

    def _note_pids(self) -> None:
        """Journal the job's processes, so that a dead trial's can be ended."""
        from ztune.onhost.host.process import Identity, real_user_of

        assert self.job is not None
        found = [one for pid in self.job.pids() if (one := Identity.of(pid)) is not None]
        if found:
            users = sorted({user for one in found if (user := real_user_of(one.pid)) is not None})
            pids = [[one.pid, one.ticks] for one in found]
            self.journal.make("processes", "processes", pids=pids, users=users)

    def _stop_job(self) -> None:
        assert self.job is not None
        self.job.stop()
        if "processes" in self.journal.things:
            self.journal.append("removed", id="processes")

    # -- age ------------------------------------------------------------------------------------------

    def _age(self) -> None:
        job, layout = self.job, self.spec.layout
        assert job is not None
        places = {role: self.roles[role] for role in job.roles()}
        with room_for(self.roles):
            self._aged = age.Aging(layout, self.pools, places, self.spec.seed, self._progress).run()

    # -- settle ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        spec = self.spec
        self._progress("sync", 0.1)
        self.pools.sync()
        if spec.settle == "cold":
            self.pools.cool()
        assert self.job is not None
        self._progress("start", 0.6)
        with room_for(self.roles):
            self.job.start(lambda text, share: self._progress(text, 0.6 + 0.4 * share))
        self._note_pids()

    # -- measure and collect ---------------------------------------------------------------------------

    def context(self) -> Context:
        """Return what probes may know."""
        spec = self.spec
        assert self.job is not None
        pools, datasets = self.pools.contexts()
        return Context(
            run=spec.run,
            trial=spec.trial,
            seed=spec.seed,
            state=spec.directory,
            options=spec.probes,
            pools=pools,
            datasets=datasets,
            role_dirs=dict(self.roles),
            command=self.commands,
            mount=self.pools.mount(),
            pids=self.job.pids,
            page_sizes=self.job.page_sizes(),
            warn=self.events.warning,
            log=functools.partial(self.events.log, waits=True),
            series=self.events.series,
            dilation=spec.dilation,
            patience=spec.patience,
            fillers=tuple(made.mountpoint for made in age.fillers(self.pools)),
        )

    def _measure(self) -> tuple[WorkloadResult, dict[str, Any]]:
        job = self.job
        assert job is not None
        context = self.context()
        for dataset in context.datasets:
            _begin_log(dataset.mountpoint)
        # What start and warm-up left unwritten is no part of the job: the window has a sync at both ends.
        self.pools.sync()
        before, made = self.pools.upkeep(), self.pools.as_made()
        self._probe = self.parts.start_probes(context)
        window = self.parts.begin_measure(context)
        self.events.window("open")
        with room_for(self.roles):
            outcome = job.run(self._progress)
        # The closing sync belongs to the job: what it wrote is only done when it is on the disks.
        self.pools.sync()
        window.close()
        self.events.window("closed")
        self._probe.freeze()
        measured = window.end()
        parents.require_kept(made, self.pools.as_made())
        after = self.pools.upkeep()
        for pool in before:
            for sentence in parents.disturbed(pool, before[pool], after[pool]):
                self.events.warning(sentence)
        # As long as it would have taken on disks that are not slowed down.
        measured["seconds"] = round(measured["seconds"] / self.spec.dilation, 6)
        measured["operations"] = outcome.operations
        return outcome, measured

    def _collect(self, outcome: WorkloadResult, measured: dict[str, Any]) -> dict[str, Any]:
        assert self.job is not None and self._probe is not None
        probes = self._probe.stop()
        self._probe = None
        self._progress("verify", 0.5)
        with room_for(self.roles):
            outcome = self.job.verify(outcome)
        self._stop_job()
        return {
            "format": RESULT_FORMAT,
            "version": RESULT_VERSION,
            "run": self.spec.run,
            "trial": self.spec.trial,
            "environment": {
                **self._environment,
                "arc": self.spec.layout.arc,
                "dilation": self.spec.dilation,
                "patience": self.spec.patience,
                "place": self.spec.place.kind,
                "start": self.spec.start,
                "settle": self.spec.settle,
                "seed": self.spec.seed,
                **self.pools.environment(),
                "datasets": {made.dataset.name: made.name for made in self.pools.made},
            },
            "commands": list(self.events.commands),
            "steps": dict(self.seconds),
            "job": {**outcome.to_json(), "info": self.job.info(outcome)},
            **({} if self._aged is None else {"age": self._aged}),
            "measure": measured,
            "probes": probes,
            "warnings": list(self.events.warnings),
        }

    # -- destroy ---------------------------------------------------------------------------------------

    def _destroy(self) -> bool:
        """Remove everything that was made; True if nothing is left."""
        self.step = "destroy"
        began = time.monotonic()
        self.events.step("destroy", "begin")
        try:
            self.journal.try_append("step", step="destroy", state="begin")
            if self._probe is not None:
                self._probe.abandon()
            if self.job is not None:
                try:
                    self.job.cleanup()
                    if self.work is not None and not self.work.keep:
                        self.work.remove()
                except (ZtuneError, OSError) as error:
                    self.events.warning(self._sentence(error))
            problems = teardown(self.journal, self.door, lambda share, text: self._progress(text, share))
        except (ZtuneError, OSError) as error:
            problems = [self._sentence(error)]
        finally:
            self.journal.close()
        for problem in problems:
            self.events.error(problem, "destroy")
        self.seconds["destroy"] = round(time.monotonic() - began, 3)
        self.events.step("destroy", "end", text=f"{len(problems)} things left" if problems else "")
        return not problems


def _begin_log(folder: Path) -> None:
    """Have the file system of ``folder`` sync a file, which is gone afterwards.

    A database in use has its intent log, as a replay has; where the job has not synced yet, its first sync
    would wait for the transaction group that makes one.
    """
    # Where there is no room for it the job itself says so. A signal in here would leave the file open.
    with (
        uninterrupted(),
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(dir=folder, prefix=".ztune-") as file,
    ):
        os.fsync(file.fileno())


def _tree_bytes(path: Path) -> int:
    """Return the bytes that the files below ``path`` take."""
    total = 0
    for folder, _folders, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total
