"""Observes a live database: processes, or all that touches a dataset or folder, while it works.

The kernel adds up (``recorder/observer.bpf.c``); nothing is written to what is observed. Where the kernel
can't, ``/proc`` is asked and ``limits`` says what is lost by that.
"""

from __future__ import annotations

import itertools
import os
import platform
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType

from ztune import __version__
from ztune.errors import ZtuneError
from ztune.observe import roles_by_use
from ztune.observe.live_groups import MOST_FILES, NO_ROLE, FilePlace, Grouped, calls, group
from ztune.observe.live_kernel import KernelReading, ObserverSession, SeenFile, Unfit
from ztune.observe.live_proc import (
    LOST,
    LOST_CLOSED,
    LOST_ENDED,
    LOST_FILES,
    LOST_OPTIONS,
    LOST_RIGHTS,
    ProcSession,
)
from ztune.observe.model import PIECE_S, Group, Observation, ObservedTransfers
from ztune.observe.subjects import ObservedSubject
from ztune.observe.system import interrupts as read_interrupts
from ztune.onhost.host import noatime
from ztune.onhost.look.zfs import Places
from ztune.onhost.probes import kstat, procfs
from ztune.trace.propose import unknown_kinds
from ztune.trace.recorders.files import Mounts, is_storage
from ztune.trace.recorders.processes import mapped_files
from ztune.trace.roles import RoleRules, several_use

LOOK_SECONDS = 1.0
_MOST_BESIDE = 10_000  # files of a folder


class LiveObservation:
    """Observes from ``__enter__`` to ``finish``; ends without a result when left earlier.

    ::

        with Live(choose(pid=1234)) as live:
            while not live.wait(1.0) and not enough:
                show(live.snapshot())
            seen = live.finish()
    """

    def __init__(
        self,
        subject: ObservedSubject,
        rules: RoleRules | None = None,
        all_calls: bool = False,
        sample: int = 1,
    ) -> None:
        """``rules``: path → role, the built-in ones by default. ``all_calls``: of chosen processes all system
        calls are timed, those on sockets too, not those on files alone: that costs the more the more they
        have. ``sample``: the kernel counts calls for one part in so many of the time, which costs that much
        less; these stand for all."""
        self.subject = subject
        self._all_calls = all_calls
        self._sample = sample
        self._rules = rules or RoleRules.parse()
        self._session: ObserverSession | None = None
        self._proc: ProcSession | None = None
        self._why_proc = ""
        self._reading: KernelReading | None = None
        self._broken: str | None = None
        self._ended: float | None = None  # when the last observed process was found gone
        self._places: dict[int, tuple[str | None, str | None]] = {}
        self._roles: dict[str, str | None] = {}
        self._beside: dict[str, RoleRules] = {}
        self._result: Observation | None = None

    def __enter__(self) -> LiveObservation:
        """Begin. Raises MissingError without the observer or the right to use it."""
        self._mounts, self._theirs = Mounts(), Mounts()
        self._mounts.read()
        for pid in self.subject.pids:
            self._theirs.read(pid)  # a process in a container sees others
        self._followed = set(self.subject.pids)
        self._datasets = Places()
        self._mapped_before: set[str] = set()
        self._mapped_to_read: set[str] = set()
        for pid in self.subject.pids:
            for file in mapped_files(pid):
                if file.writable and is_storage(file.path):
                    self._mapped_before.add(file.path)
                elif self._rules.role(file.path) is not None and is_storage(file.path):
                    self._mapped_to_read.add(file.path)
        self._own_before = _own_seconds()
        self._interrupts_before = read_interrupts()
        self._faults_before = procfs.major_faults(self.subject.pids)
        try:
            self._session = ObserverSession(self.subject, self._all_calls, self._sample)
        except Unfit as error:
            self._why_proc = f"this kernel can't be observed with eBPF: {error}"
            self._proc = ProcSession(self.subject)
        self._begun, self._begun_at = time.monotonic(), datetime.now(UTC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the observer if ``finish`` did not."""
        if self._session is not None:
            self._session.abort()

    @property
    def in_kernel(self) -> bool:
        """Whether the kernel adds up; False: /proc is asked."""
        return self._session is not None

    def pids(self) -> tuple[int, ...]:
        """Return the observed processes, as of the last look: for files, those that touched one."""
        if self._proc is not None:
            return self._proc.pids
        return self._reading.pids if self._reading is not None else self.subject.pids

    def wait(self, seconds: float) -> bool:
        """Let time pass; True, and earlier, once all the chosen processes are gone."""
        deadline = time.monotonic() + seconds
        while True:
            if self._gone():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, LOOK_SECONDS))
            self._look()

    def _gone(self) -> bool:
        # What a unit starts later is observed too: its server may be started again.
        if self.subject.kind != "pid" or self._result is not None:
            return False
        if self._ended is None and not self.subject.now():
            self._ended = time.monotonic()
        return self._ended is not None

    def _look(self) -> None:
        if self._proc is not None:
            self._proc.look()
        elif self._session is not None and self.subject.kind == "unit":
            for pid in set(self.subject.now()) - self._followed:
                self._followed.add(pid)
                self._theirs.read(pid)
            with self._may_break():
                self._session.follow(self.subject.now())

    def snapshot(self) -> Observation:
        """Return what was seen so far."""
        if self._result is not None:
            return self._result
        self._look()
        if self._session is not None:
            with self._may_break():
                self._reading = self._session.read()
        self._gone()
        return self._seen()

    def finish(self) -> Observation:
        """End observing and return what was seen; a second call returns the same."""
        if self._result is None:
            self._gone()
            self._look()
            if self._session is not None:
                with self._may_break():
                    self._reading = self._session.end()
                self._session.abort()
            self._result = self._seen()
        return self._result

    @contextmanager
    def _may_break(self) -> Iterator[None]:
        """Keep what was read if the observer fails midway."""
        try:
            yield
        except (ZtuneError, OSError) as error:
            if self._broken is None:
                self._broken = f"Observing ended early, what was read until then is kept: {error}."

    def elsewhere(self) -> frozenset[str]:
        """Return the paths that lead to the files for the observed processes alone: in a container's mounts.

        By the same path this process reaches something else, or nothing.
        """
        files = self._reading.files.values() if self._reading is not None else ()
        return frozenset(file.path for file in files if self._mounts.of(file.device) is None)

    def files(self) -> list[Group]:
        """Return the files that were seen, storage alone: with what was done with them, or, where /proc was
        asked, with nothing, as that is not known."""
        if self._proc is None:
            return (self._result or self._seen()).of_kind("file")
        found = []
        for path, device in sorted(self._proc.open.items()):
            if is_storage(path):
                at = self._place(SeenFile(path, device, inode=0, size=0))
                found.append(
                    Group(
                        kind="file", name=path, role=at.role, dataset=at.dataset, pool=at.pool,
                        filesystem=at.filesystem,
                    )
                )  # fmt: skip
        return found

    def _place(self, file: SeenFile) -> FilePlace:
        if file.device not in self._places:
            if self._mounts.of(file.device) is None:
                self._mounts.read()  # it may have been mounted since
            mount = self._mounts.of(file.device) or self._theirs.of(file.device)
            if mount is not None and mount.type == "zfs":
                dataset: str | None = mount.source
            else:
                dataset = self._datasets.of_device(file.device, file.path)
            self._places[file.device] = (dataset, mount.type if mount is not None else None)
        return FilePlace(self._role(file), *self._places[file.device])

    def _role(self, file: SeenFile) -> str | None:
        """Return the role of the last of a file's names that has one: it may have been written before it got
        its name, or be called otherwise at the end, such as `.deleted`."""
        for path in (file.path, *reversed(file.before)):
            if path not in self._roles:
                self._roles[path] = self._rules.role(path) or self._role_beside(path)
            if self._roles[path] is not None:
                return self._roles[path]
        return None

    def _role_beside(self, path: str) -> str | None:
        """Return the role of a file whose name several databases use, by the files that lie beside it: such
        as MariaDB's binary log, which may have any name, by its index."""
        if not is_storage(path) or not several_use(path):
            return None
        folder = path.rpartition("/")[0]
        if folder not in self._beside:
            beside: list[str] = []
            with suppress(OSError, ValueError), noatime.entries(folder) as entries:
                beside = [f"{folder}/{one.name}" for one in itertools.islice(entries, _MOST_BESIDE)]
            self._beside[folder] = self._rules.among(beside)
        return self._beside[folder].role(path)

    def _seen(self) -> Observation:
        host = os.uname()
        found = Observation(
            ztune=__version__,
            source="live",
            subject=self.subject.words,
            host=host.nodename,
            kernel=f"{host.sysname} {host.release}",
            platform=platform.system().lower(),
            begun=self._begun_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            seconds=time.monotonic() - self._begun,
            interrupts=kstat.moved(self._interrupts_before, read_interrupts()),
        )
        if self._proc is not None:
            self._seen_by_proc(self._proc, found)
        elif self._reading is not None:
            self._seen_in_kernel(self._reading, found)
        elif self._broken:
            found.limits = (self._broken,)
        return found

    def _seen_in_kernel(self, reading: KernelReading, found: Observation) -> None:
        grouped = group(reading, self._place)
        said = reading.message
        found.seconds = said["window_ns"] / 1e9
        found.counted_share = reading.counted_share
        found.groups = grouped.groups
        found.calls = calls(reading)
        found.context_switches = {name: said[name] for name in ("voluntary", "involuntary")}
        found.cpu_seconds = said["ran_ns"] / 1e9
        found.own_cpu_seconds = self._own_seconds(reading)
        found.limits = tuple(self._limits(grouped, reading))

    def _seen_by_proc(self, proc: ProcSession, found: Observation) -> None:
        io = proc.io()
        limits = [f"{LOST} Why: {self._why_proc}.", LOST_CLOSED, LOST_ENDED]
        if self._sample > 1 or self._all_calls:
            limits.append(LOST_OPTIONS)
        if proc.io_denied:
            limits.append(LOST_RIGHTS)
        if self.subject.by_files:
            limits.append(LOST_FILES)
        if self._ended is not None:
            limits.append(self._gone_sentence())
        if any(io.values()):
            reads = ObservedTransfers(calls=io["syscr"], bytes=io["rchar"])
            writes = ObservedTransfers(calls=io["syscw"], bytes=io["wchar"])
            found.groups = (Group(kind="role", name=NO_ROLE, reads=reads, writes=writes),)
        found.context_switches = proc.context_switches()
        found.cpu_seconds = proc.cpu_seconds()
        found.own_cpu_seconds = _own_seconds() - self._own_before
        found.limits = tuple(limits)

    def _own_seconds(self, reading: KernelReading) -> float:
        """Return the seconds of this process, of the observer, and of its programs in the kernel.

        Loading the programs, some 0.3 s before the window, is within it.
        The kernel times the programs for half a second in ten; that share stands for the whole window.
        """
        said = reading.message
        share = said["timed_ns"] / max(1, said["window_ns"])
        programs = said["programs_ns"] / 1e9 / share if share else 0.0
        return _own_seconds() - self._own_before + float(said["own_us"]) / 1e6 + float(programs)

    def _gone_sentence(self) -> str:
        assert self._ended is not None
        return (
            f"The observed process {self.subject.name} ended after {self._ended - self._begun:.0f} s; "
            "what was seen until then is kept."
        )

    def _limits(self, grouped: Grouped, reading: KernelReading) -> Iterator[str]:
        assert self._session is not None
        if self._broken is not None:
            yield self._broken
        if self._ended is not None:
            yield self._gone_sentence()
        if self._sample > 1:
            window = reading.message["window_ns"] / 1e9
            watched = window * reading.counted_share
            yield (
                f"Calls were counted for {watched:.1f} of {window:.0f} s, {PIECE_S:g} s at a time, and stand "
                f"for all: counts are estimates, and a call that takes over {PIECE_S:g} s may be missing."
            )
        if not self._session.uring:
            yield "This kernel does not let io_uring requests be seen; they are missing."
        lost = reading.message["dropped"] + grouped.unexplained
        if lost:
            yield f"{lost} calls could not be counted by file: there were too many files or calls at once."
        if grouped.files_left_out:
            yield (
                f"{grouped.files_left_out} files are in the sums of their role only; "
                f"the {MOST_FILES} with the most calls have their own."
            )
        if hidden := sorted(path for path in self.elsewhere() if is_storage(path)):
            more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
            yield (
                f"{hidden[0]}{more} lie in mounts that only the observed processes see, as in a container: "
                "such files are not looked at, and how they compress is not known."
            )
        yield from self._without_role(grouped.groups, reading.message["window_ns"] / 1e9)
        for one in roles_by_use.copies(grouped.groups):
            yield (
                f"{one.glob} is named like a database's own files, and may be a backup ({one.why}): "
                f"{one.option} takes it for one."
            )
        writable = sorted(self._mapped_before | set(grouped.mapped_writable))
        read_only = sorted((set(grouped.mapped) | self._mapped_to_read) - set(writable))
        for paths, how in ((writable, "written and read"), (read_only, "read")):
            if paths:
                more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
                yield (
                    f"{paths[0]}{more} may be {how} through mapped memory, "
                    "which is no call: that is not counted."
                )
        if (writable or read_only) and not self.subject.by_files and self._ended is None:
            faults = max(0, procfs.major_faults(self.subject.now()) - self._faults_before)
            if faults:
                yield (
                    f"A hint at reads through mapped memory: the processes waited {faults} times for a part "
                    f"of a mapped file, or of a program, to be read from disk (major page faults)."
                )
        if not self._session.timed:
            yield "This kernel does not tell what the programs in it cost: own_cpu_seconds is without them."
        if self.subject.by_files:
            yield (
                "Files were chosen, not processes: the times of system calls are of calls on these files, "
                "processor time and context switches those of threads from when they first touched one."
            )
        elif not self._all_calls:
            yield "Of system calls, those on files were timed; --calls times all."

    def _without_role(self, groups: Iterable[Group], seconds: float) -> Iterator[str]:
        """Name the files that no rule knows, where they moved much; where no file has a role, all are."""
        moved = {g.name: roles_by_use.moved(g) for g in groups if g.kind == "role"}
        lone = [
            g
            for g in groups
            if g.kind == "file"
            and g.role is None
            and not self._rules.knows(g.name)
            and not roles_by_use.of_system(g.name)
        ]
        named, share = unknown_kinds({g.name: roles_by_use.moved(g) for g in lone}, sum(moved.values()))
        if named and any(role != NO_ROLE for role in moved):
            proposed = roles_by_use.sentence(roles_by_use.proposals(lone, seconds))
            yield (
                f"{named} moved {share:.0%} of the bytes, and no rule knows them: they have no role, so no "
                f"finding is about them. --role 'GLOB=ROLE' gives them one. {proposed}"
            ).rstrip()


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
