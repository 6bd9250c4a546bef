"""Two jobs on one pool: a job that is made of two others, which run at one time or one of them alone.

Both are loaded, whichever runs, so that the pool holds the same files in every trial. docs/neighbours.md says
what a user sees of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import interrupt
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import registry
from ztune.onhost.jobs.job import Job, ProgressFn, WorkloadResult, no_progress

PREFIX = "neighbour-"
"""What stands before a role of the second job."""
NAME = "ztune.onhost.jobs.beside:TwoJobs"
WHICH = "which"
"""The parameter that says which of the two run."""
FIRST, BOTH, NEIGHBOUR = "first", "both", "neighbour"
_STOP_S = 60.0


def loaded(kind: type[Job], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a job of this kind that decide what it loads.

    These are the job's ``LOADED``, where it has such a tuple of names; else all, but not which of two jobs
    run.
    """
    names = getattr(kind, "LOADED", None)
    return {key: value for key, value in params.items() if (key in names if names else key != WHICH)}


def _raise(error: object) -> NoReturn:
    """Raise what the neighbour raised."""
    if isinstance(error, ZtuneError):
        raise ZtuneError(f"the neighbour: {error}") from error
    assert isinstance(error, BaseException)
    raise error


class TwoJobs:
    """A job and its neighbour.

    Parameters: ``first`` and ``neighbour``, each with ``name`` and ``params`` of a job; ``which`` of them
    run, "first", "both" or "neighbour". The settings of the database are the first's. The result is that of
    the first, or of the neighbour where it runs alone; where both run the neighbour's is in ``details``,
    with ``together_s``, the seconds for which both ran.
    """

    name: ClassVar[str] = "two-jobs"

    def __init__(
        self,
        params: Mapping[str, Any],
        database: Mapping[str, str] | None = None,
        *,
        patience: float | None = None,
        dilation: float = 1.0,
    ) -> None:
        """Make both jobs, as ``Job`` says. Raises InputError for a ``which`` that is none."""
        which = params.get(WHICH, BOTH)
        if which not in (FIRST, BOTH, NEIGHBOUR):
            raise InputError(f"which is {which!r}; it is one of {FIRST}, {BOTH} and {NEIGHBOUR}")
        self.which: str = which
        self.dilation = dilation

        def make(part: str, settings: Mapping[str, str] | None) -> Job:
            one = params[part]
            return registry.get(one["name"])(one["params"], settings, patience=patience, dilation=dilation)

        self.first, self.neighbour = make("first", database), make("neighbour", {})
        self.both = (self.first, self.neighbour)
        self._beside: WorkDir | None = None
        self._theirs: WorkloadResult | None = None
        self._together_s = 0.0

    @property
    def active(self) -> tuple[Job, ...]:
        """The jobs that run."""
        return {FIRST: (self.first,), NEIGHBOUR: (self.neighbour,)}.get(self.which, self.both)

    def check(self) -> str:
        """Return the versions of both."""
        found = [job.check() for job in self.both]
        return found[0] if found[0] == found[1] else f"{found[0]}, beside {found[1]}"

    def check_settings(self) -> None:
        """Refuse what the first refuses of the layout's settings. Raises InputError."""
        check = getattr(self.first, "check_settings", None)
        if check is not None:
            check()

    def roles(self) -> tuple[str, ...]:
        """Return the roles of the first, and those of the neighbour with ``PREFIX``."""
        return (*self.first.roles(), *(PREFIX + role for role in self.neighbour.roles()))

    def _places(self, places: Mapping[str, Path] | None) -> tuple[Mapping[str, Path] | None, ...]:
        if places is None:
            return None, None
        return (
            {role: path for role, path in places.items() if not role.startswith(PREFIX)},
            {role.removeprefix(PREFIX): path for role, path in places.items() if role.startswith(PREFIX)},
        )

    def prepare(self, workdir: WorkDir, places: Mapping[str, Path] | None = None) -> None:
        """Prepare both, each with a work directory of its own."""
        mine, theirs = self._places(places)
        self.first.prepare(workdir, mine)
        self._beside = WorkDir.create("neighbour", parent=workdir.path.parent)
        self.neighbour.prepare(self._beside, theirs)

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Load one after the other."""
        self.first.load(lambda text, share: progress(text, share / 2))
        self.first.stop()
        self.neighbour.load(lambda text, share: progress(f"the neighbour: {text}", 0.5 + share / 2))

    def adopt(self, places: Mapping[str, Path]) -> None:
        """Take over the files of both."""
        for job, own in zip(self.both, self._places(places), strict=True):
            assert own is not None
            job.adopt(own)

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start what runs."""
        for job in self.active:
            job.start(progress)

    def pids(self) -> list[int]:
        """Return the processes of both."""
        return [pid for job in self.both for pid in job.pids()]

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run what is to run, both from the same moment on, and wait for both.

        Raises ZtuneError where one fails; the other is ended then.
        """
        if self.which != BOTH:
            return self.active[0].run(progress)
        began = time.monotonic()
        ended: list[float] = []
        found: list[WorkloadResult | BaseException] = []
        failed, lock = threading.Event(), threading.Lock()
        over = False

        def beside() -> None:
            try:
                found.append(self.neighbour.run())
            except BaseException as error:  # handed to the main thread, which raises it
                found.append(error)
                with lock:
                    if not over:
                        failed.set()
                        interrupt.ring()
            ended.append(time.monotonic() - began)

        thread = threading.Thread(target=beside, daemon=True)
        thread.start()
        try:
            mine = self.first.run(progress)
            ended.append(time.monotonic() - began)
            while thread.is_alive():  # in short waits, so that a signal is seen
                thread.join(0.2)
        except BaseException:
            # A ring on its way says no more than this does.
            with interrupt.uninterrupted(), contextlib.suppress(KeyboardInterrupt), lock:
                over = True
            self.neighbour.cleanup()  # its run ends with an error, which nobody asks for
            thread.join(_STOP_S)
            if failed.is_set() and not interrupt.asked():
                _raise(found[0])
            raise
        theirs = found[0]
        if isinstance(theirs, BaseException):
            _raise(theirs)
        self._theirs, self._together_s = theirs, round(min(ended) / self.dilation, 6)
        return mine

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with the checks of what ran, and the neighbour's result in its details."""
        if self.which != BOTH:
            return self.active[0].verify(result)
        assert self._theirs is not None
        theirs = self.neighbour.verify(self._theirs)
        mine = self.first.verify(result)
        beside = {"together_s": self._together_s, "neighbour": theirs.to_json()}
        return replace(mine, details={**mine.details, **beside})

    def stop(self) -> None:
        """Shut both down in order. Raises ZtuneError if one did not; both are gone all the same."""
        try:
            self.first.stop()
        finally:
            self.neighbour.stop()

    def cleanup(self) -> None:
        """End every process of both at once, and remove the neighbour's work directory."""
        try:
            self.first.cleanup()
        finally:
            self.neighbour.cleanup()
            if self._beside is not None and not self._beside.keep:
                self._beside.remove()

    def role_paths(self) -> dict[str, Path]:
        """Return the directories of the roles of both."""
        theirs = {PREFIX + role: path for role, path in self.neighbour.role_paths().items()}
        return {**self.first.role_paths(), **theirs}

    def page_sizes(self) -> dict[str, int]:
        """Return the page sizes of the first's roles."""
        return self.first.page_sizes()

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes each role of both will hold."""
        found: list[dict[str, int]] = [getattr(job, "expected_bytes", dict)() for job in self.both]
        return {**found[0], **{PREFIX + role: size for role, size in found[1].items()}}

    def info(self, result: WorkloadResult | None = None) -> dict[str, Any]:
        """Return what is known of the first, and of the neighbour."""
        return {**self.first.info(result), "which": self.which, "neighbour": self.neighbour.info()}
