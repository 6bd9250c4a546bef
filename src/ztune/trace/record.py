"""Records the file I/O of a command, or of processes that run, as a trace."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.databases.rules import NO_ROLE
from ztune.errors import InputError, MissingError, ZtuneError, reason
from ztune.onhost.host import noatime
from ztune.trace import headroom, host_busy, rights, zfs_records
from ztune.trace.compressibility import TOUCHED, sample_files, with_embedded
from ztune.trace.headroom import Headroom
from ztune.trace.host_busy import HostBusy
from ztune.trace.manifest import (
    COLD,
    PARTIAL,
    Compressibility,
    RecorderInfo,
    RegionSample,
    Sample,
    TraceFile,
    Warning_,
    WorkloadInfo,
)
from ztune.trace.partial import locked, unlock
from ztune.trace.passing import PassingFiles
from ztune.trace.reader import Trace
from ztune.trace.recorders import choose
from ztune.trace.recorders.ebpf import recovered
from ztune.trace.recorders.files import UNKNOWN, FileTable, Mounts, Selection, is_storage
from ztune.trace.recorders.processes import MappedFile, mapped_files
from ztune.trace.recorders.recorder import MMAP_READ, Harvest, RecorderSession, Start
from ztune.trace.regions import REGION, WHOLE_BYTES, Tally, kept, sampled_files
from ztune.trace.roles import AS_ASKED, RoleRules, asked_out, several_use
from ztune.trace.schema import Op
from ztune.trace.spool import Part, Rows
from ztune.trace.touched import TouchedBlocks
from ztune.trace.untouched import UntouchedFile, UntouchedFiles, find_untouched, missing
from ztune.trace.warming import Warmth
from ztune.trace.windows import Schedule, with_growth
from ztune.trace.writer import EVENT_DTYPE, TraceWriter
from ztune.units import format_size

Progress = Callable[[str], None]
_COLD = Warning_(
    code=COLD,
    message="What the processes had read before the recording is not known: their first reads tell it.",
)
_CUT = Warning_(
    code="cut",
    message="The recording was cut, and made whole afterwards: it ends with the last event that was kept.",
)
_BEGUN = "recording.json"
_RAW = ("events.raw", "files.raw", "tallies.raw", _BEGUN)  # all that a trace is made of
_GROWING = ("events.raw", "files.raw")
_SCRATCH = ("events.raw", "strace.fifo")
_FOLDERS_BESIDE = 256  # with names that several databases use
_SECONDS_BESIDE = 2.0  # to list what is in these
SEED = 1  # of the choice of blocks whose compressibility is measured


class Recording:
    """A recording under way; as a context manager it is finished at the end of the block, or undone on error.

    ::

        with Recording(out, pids=[postmaster]) as rec:
            run_the_load()
            rec.workload = WorkloadInfo(name="postgres-oltp", result={"tps": 950})
        print(rec.trace.manifest.events)

    ``pids`` are followed with all their descendants, ``command`` is started once nothing can be missed.
    ``paths`` restricts the trace to files below them. ``workload`` and ``page_size`` (role → bytes) may be
    set until the recording is finished. ``warmth`` is what was read and written before it (a replay
    warms its caches by it). ``share``: others may read the trace. ``sample``: of files that are large and no
    logs one region in so many is recorded (`regions`). ``max_bytes`` of what is recorded, and it ends; 0:
    any. ``windows``: it will be paused. Raises InputError or MissingError; nothing
    is left behind then.
    """

    def __init__(
        self,
        out: Path | str,
        *,
        command: Sequence[str] | None = None,
        pids: Sequence[int] = (),
        recorder: str = "auto",
        rules: RoleRules | None = None,
        paths: Iterable[Path | str] = (),
        keep_samples: bool = False,
        workload: WorkloadInfo | None = None,
        page_size: Mapping[str, int] | None = None,
        warmth: Warmth | None = None,
        say: Progress | None = None,
        ring_bytes: int | None = None,
        share: bool = False,
        sample: int = 1,
        max_bytes: int = 0,
        windows: bool = False,
    ) -> None:
        self.out = Path(out)
        self.command = list(command) if command else None
        self.pids = list(pids)
        self.rules = rules or RoleRules.parse()
        self.paths = [Path(path) for path in paths]
        self.keep_samples = keep_samples
        self.workload = workload
        self.page_size = dict(page_size or {})
        self.warmth = warmth
        self.exit_status: int | None = None
        self.outlived = False
        """Whether `record` ended as all processes that were named had ended."""
        self.untouched = UntouchedFiles(())
        """What was found that nothing touched, once the recording is finished."""
        self._say = say or (lambda _: None)
        self._trace: Trace | None = None
        self._session: RecorderSession | None = None
        self._passing = PassingFiles([], self._passes)
        self._busy: HostBusy | None = None
        if share and keep_samples:
            raise InputError(
                "a trace with --samples holds what is in the database, "
                "so others may not read it; leave out --share or --samples"
            )
        if bool(self.command) == bool(self.pids):
            raise InputError("say what to record: either a command after --, or --pid")
        _check_paths(self.paths)
        if self.command and shutil.which(self.command[0]) is None:
            raise InputError(f"there is no program {self.command[0]!r} to run")
        for pid in self.pids:
            if not Path(f"/proc/{pid}").is_dir():
                raise InputError(f"there is no process {pid}")
        self._recorder, reason = choose(recorder)
        if (sample > 1 or windows) and not self._recorder.in_kernel:
            flag = "--sample" if sample > 1 else "--every"
            why = reason.partition("since ")[2] or f"{self._recorder.name} was asked for"
            raise MissingError(f"{flag} needs the recorder ebpf: {why}")
        if reason:
            self._say(reason)
        self.sample = sample
        self._max_bytes = max_bytes
        self._table = FileTable()
        headroom.require(self.out.parent)
        self._writer = TraceWriter(self.out, share)
        self._writer.scratch = _SCRATCH
        self._headroom = Headroom(self.out.parent, [self._writer.partial / name for name in _GROWING])
        self._disk_full = False
        try:
            self._mapped = [mapping for pid in self.pids for mapping in mapped_files(pid)]
            self._session = self._recorder.start(
                Start(
                    folder=self._writer.partial,
                    table=self._table,
                    command=self.command,
                    pids=self.pids,
                    ring_bytes=ring_bytes,
                    max_bytes=max_bytes,
                    sample=sample,
                    may_sample=lambda path: self.rules.role(path) != "wal",
                )
            )
            if (program := self._session.program) is not None:
                self._busy = HostBusy(program)
            self._note_beginning(share)
            child = self._session.child
            self._passing = PassingFiles(self.pids or ([child] if child else []), self._passes)
            self._passing.start()
        except BaseException:
            self.abort()
            self._writer.abort()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._trace is None:
            self.finish()

    @property
    def trace(self) -> Trace:
        """The trace, once the recording is finished."""
        if self._trace is None:
            raise RuntimeError("the recording is not finished")
        return self._trace

    @property
    def session(self) -> RecorderSession:
        """The recorder's side of the recording under way."""
        if self._session is None:
            raise RuntimeError("the recording is finished")
        return self._session

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; True once the command ended, or all processes did.

        Before the disk is full it has nothing more recorded, as at the largest size. Raises ZtuneError if the
        recorder failed; see `finish`.
        """
        try:
            if not self._disk_full and self._headroom.is_short():
                self._disk_full = True
                self.session.fill()
            return self.session.wait(seconds)
        except ZtuneError as error:
            self._give_up(error)
            raise

    def turn(self, on: bool) -> None:
        """Begin a window, or end it. Raises ZtuneError if the recorder failed; see `finish`."""
        try:
            if on:
                self.session.resume()
            else:
                self.session.pause()
            if self._busy is not None:
                self._busy.turn(on)
        except ZtuneError as error:
            self._give_up(error)
            raise

    def abort(self) -> None:
        """Forget the recording and remove what was written, unless it was given up: then that stays."""
        self._passing.stop()
        if self._session is not None:
            self._session.abort()
            self._session = None
            self._writer.abort()

    def finish(self) -> Trace:
        """End the recording, measure compressibility, write the trace.

        If that fails, what the recorder wrote stays, and `recover` can make a trace of it: the error says so.
        """
        session = self.session
        self._passing.stop()
        self._writer.keep = _RAW if session.kept() else ()
        try:
            busy = None if self._busy is None else self._busy.share()
            harvest = session.stop()
            self.exit_status = harvest.exit_status
            recorded = self._recorded(busy)
            self._trace = recorded.write(harvest, session.started_unix_ns, session.child)
            self.untouched = recorded.untouched
        except BaseException as error:
            self._give_up(error)
            raise
        self._session = None
        return self._trace

    def _give_up(self, error: BaseException) -> None:
        """End the recording, but keep what the recorder wrote; raise ``error`` with how to go on."""
        session, self._session = self.session, None
        self._passing.stop()
        kept = session.kept() is not None
        self._writer.keep = _RAW if kept else ()
        session.abort()
        self._writer.abort()
        if not kept:
            return
        partial = self._writer.partial
        again = f"ztune trace recover {shlex.quote(str(partial))}"
        said = f"what reached the disk is in {partial}; `{again}` makes a trace of it"
        if isinstance(error, ZtuneError):
            raise type(error)(f"{error}; {said}") from error
        error.add_note(said)

    def _passes(self, path: str) -> bool:
        """Say whether the file at ``path`` is a temporary one that the trace will have."""
        return self.rules.role(path) == "temp" and (
            not self.paths or any(Path(path).is_relative_to(os.path.realpath(one)) for one in self.paths)
        )

    def _recorded(self, busy: float | None) -> _Recorded:
        return _Recorded(
            writer=self._writer,
            table=self._table,
            mapped=self._mapped,
            rules=self.rules,
            paths=self.paths,
            keep_samples=self.keep_samples,
            workload=self.workload,
            page_size=self.page_size,
            warmth=self.warmth,
            recorder=self._recorder.name,
            command=self.command,
            pids=self.pids,
            say=self._say,
            sample=self.sample,
            max_bytes=self._max_bytes,
            disk_full=self._disk_full,
            passing=self._passing.pieces,
            busy=busy,
        )

    def _note_beginning(self, share: bool) -> None:
        """Write down what `recover` needs."""
        if (kept := self.session.kept()) is None:
            return
        begun = {
            "session": kept,
            "recorder": self._recorder.name,
            "started_unix_ns": self.session.started_unix_ns,
            "child": self.session.child,
            "command": self.command,
            "pids": self.pids,
            "paths": [os.fspath(path.absolute()) for path in self.paths],
            "rules": [f"{rule.glob}={rule.role or NO_ROLE}" for rule in self.rules.rules],
            "builtin": self.rules.builtin,
            "page_size": self.page_size,
            "mapped": [asdict(one) for one in self._mapped],
            "share": share,
            "keep_samples": self.keep_samples,
            "sample": self.sample,
            "max_bytes": self._max_bytes,
        }
        path = self._writer.partial / _BEGUN
        try:
            path.write_text(json.dumps(begun))
        except OSError as error:
            raise self._writer.unwritten(error) from error


@dataclass
class _Recorded:
    """What was recorded, and what else is known of it: all that becomes a trace."""

    writer: TraceWriter
    table: FileTable
    mapped: Sequence[MappedFile]
    rules: RoleRules
    paths: list[Path]
    keep_samples: bool
    workload: WorkloadInfo | None
    page_size: Mapping[str, int]
    warmth: Warmth | None
    recorder: str
    command: list[str] | None
    pids: list[int]
    say: Progress
    sample: int
    max_bytes: int
    disk_full: bool = False
    """Whether it was to end because its disk was nearly full."""
    passing: Sequence[bytes] = ()
    """Pieces of temporary files, from when they were there."""
    busy: float | None = None
    """Share of the host's processors that was in use; None: not known."""
    untouched: UntouchedFiles = field(default_factory=lambda: UntouchedFiles(()))
    """What was found that nothing touched, once the trace is written."""

    def write(
        self, harvest: Harvest, started_unix_ns: int, child: int | None, *, complete: bool = True
    ) -> Trace:
        """Write the trace and return it. Raises InputError."""
        self.say("reading what was recorded")
        before = [(m, self.table.entered(0, m.path, m.dev, m.ino, m.size)) for m in self.mapped]
        mapped = [(m, number) for m, number in before if m.writable]
        self.rules = self.rules.among(self._names())
        highest, used, only_read = _used(harvest.rows())
        used.update(number for _, number in mapped)
        only_read.update(number for m, number in before if not m.writable)
        used.update(number for number in only_read if self._plays_a_role(number))
        used.update(self._warmed())
        beside = self.untouched = self._untouched(used)
        untouched = set(self._entered(beside.files)) - used  # a used one has another name, too
        selection = self.table.select(used | untouched, highest, self.paths, self.rules)
        idle = len(untouched & selection.ids.keys())
        if len(harvest.windows) > 1:
            parts = (_resolved(rows, selection.numbers) for rows in harvest.rows())
            selection = replace(selection, files=with_growth(selection.files, parts))
        if self.sample > 1:
            selection = replace(selection, files=self._sampled(selection, harvest.tallies))
        inodes = {file.id: file.ino for file in selection.files if file.sampled}

        def mine(rows: Rows) -> Rows:
            return rows[kept(rows, inodes, self.sample)] if inodes else rows

        if self.warmth is not None:
            # Ahead of all others of t = 0: the writer's sort keeps their order.
            self.writer.add_rows(mine(self.warmth.events({(f.dev, f.ino): f.id for f in selection.files})))

        def known(part: Part) -> Rows:
            rows = _resolved(part(), selection.numbers)
            return mine(rows[(rows["file"] >= 0) | (rows["op"] == Op.SYNC)])

        touched = TouchedBlocks(selection.files, TOUCHED, SEED)
        at_start = [(m, selection.ids[number]) for m, number in mapped if number in selection.ids]
        mappings = Counter(file for _, file in at_start)
        lost, written = 0, set[int]()
        for part in harvest.parts:
            rows = _resolved(part(), selection.numbers)
            lost += int(np.count_nonzero(rows["file"] == UNKNOWN))
            mappings.update(rows["file"][(rows["op"] == Op.MMAP) & (rows["file"] >= 0)].tolist())
            written.update(np.unique(rows["file"][rows["op"] == Op.WRITE]).tolist())
            touched.add(rows[rows["file"] >= 0])
            self.writer.add_part(partial(known, part))
        self.writer.add_rows(_extra_rows(selection, at_start))
        dropped = harvest.dropped + lost
        warnings = [
            *harvest.warnings,
            *_mapping_warnings(selection, mappings, only_read, written, self.rules),
            *([_dropped_warning(dropped)] if dropped else []),
            *([_full_warning(harvest, self.max_bytes, self.disk_full)] if harvest.full else []),
            *([_COLD] if self.pids and self.warmth is None else []),
            *missing(beside),
            # Where events were lost, files may have been used in these.
            *([] if len(selection.files) > idle or dropped else [_nothing_warning(self.paths)]),
        ]
        compressibility, samples = self._sample(selection.files, touched)
        self.say("reading small files")
        files = with_embedded(selection.files)
        self.say("writing the trace")
        path = self.writer.finish(
            started_unix_ns=started_unix_ns,
            duration_ns=harvest.duration_ns,
            recorder=RecorderInfo(name=self.recorder, detail=harvest.detail, waits=harvest.waits),
            command=self.command,
            pids=self.pids or ([child] if child else []),
            dropped=dropped,
            # What ended early of itself is whole; a command went on.
            complete=complete and not dropped and not (harvest.full and self.command),
            warnings=warnings,
            environment={
                **environment(selection.files),
                **({} if self.busy is None else {host_busy.KEY: round(self.busy, 4)}),
                **self._asked_out(),
            },
            workload=self.workload,
            files=files,
            page_size=self.page_size,
            compressibility=compressibility,
            samples=samples,
            sample=RegionSample(of=self.sample, region=REGION) if self.sample > 1 else None,
            windows=harvest.windows if len(harvest.windows) > 1 else [],
        )
        return Trace.open(path)

    def _sampled(self, selection: Selection, tallies: Mapping[int, Tally] | None) -> list[TraceFile]:
        """Return the files with what was counted of them, and which are sampled."""
        files = selection.files
        sizes = {file.id: max(file.size_start, file.size_end) for file in files}
        logs = {file.id for file in files if file.role == "wal"}
        if tallies is None:  # it was cut, and they are lost: what could be sampled may have been
            sampled = {id_ for id_, size in sizes.items() if size > WHOLE_BYTES and id_ not in logs}
            return [file.model_copy(update={"sampled": file.id in sampled}) for file in files]
        of_file = {selection.ids[n]: tally for n, tally in tallies.items() if n in selection.ids}
        sizes = {id_: max(size, of_file.get(id_, Tally()).size) for id_, size in sizes.items()}
        sampled = sampled_files(sizes, of_file, logs)
        return [
            file.model_copy(
                update={
                    "sampled": file.id in sampled,
                    "counted": of_file.get(file.id, Tally()).counted() if file.id in sampled else None,
                }
            )
            for file in files
        ]

    def _warmed(self) -> Iterator[int]:
        """Enter the files that only what came before used: they take up room in the caches. Yield numbers."""
        for path, dev, ino, size in self.warmth.still_there() if self.warmth is not None else ():
            if self.rules.role(path) is not None:
                yield self.table.entered(0, path, dev, ino, size)

    def _untouched(self, used: Set[int]) -> UntouchedFiles:
        """Find the files with a role that lie beside those used, or below the paths asked for."""

        def wanted(path: str) -> bool:
            known = self.table.named(path)
            return (
                (known is None or known.number not in used)
                and is_storage(path)
                and self.rules.role(path) is not None
            )

        self.say("looking for files that nothing touched")
        folders = self.paths or set(self._folders(used))
        return find_untouched(folders, wanted, deep=bool(self.paths))

    def _folders(self, used: Iterable[int]) -> Iterator[Path]:
        """Yield the folders of used files with a role, where their names are this process's names, too."""
        for number in used:
            entry = self.table.numbered(number)
            if entry is None or entry.deleted or self.rules.role(entry.path) is None:
                continue
            with contextlib.suppress(OSError, ValueError):
                path = Path(entry.path)
                if path.stat().st_ino == entry.ino:
                    yield path.parent

    def _entered(self, found: Iterable[UntouchedFile]) -> Iterator[int]:
        """Enter the files found, but for those known by another device (btrfs, overlays); yield numbers."""
        inodes = {entry.ino for entry in self.table.entries if not entry.deleted}
        for file in found:
            if file.ino not in inodes or self.table.knows(file.dev, file.ino):
                yield self.table.entered(0, file.path, file.dev, file.ino, file.size)

    def _asked_out(self) -> dict[str, Any]:
        """Return which files the user left out, as a trace keeps it: they are not said to lack a role."""
        globs = asked_out(self.rules.rules)
        return {AS_ASKED: globs} if globs else {}

    def _names(self) -> Iterator[str]:
        """Yield the names of the files that were seen, and of those that lie beside them: whose a name is
        that several databases use is told by others, which may have been left alone.
        """
        folders: dict[str, None] = {}
        for entry in self.table.entries:
            yield entry.path
            for name in entry.names:
                yield name.path
            if is_storage(entry.path) and several_use(entry.path):
                folders[entry.path.rpartition("/")[0] or "/"] = None
        until = time.monotonic() + _SECONDS_BESIDE
        for folder in itertools.islice(folders, _FOLDERS_BESIDE):
            with contextlib.suppress(OSError, ValueError), noatime.entries(folder) as entries:
                for found in itertools.takewhile(lambda _: time.monotonic() < until, entries):
                    yield f"{folder.rstrip('/')}/{found.name}"

    def _plays_a_role(self, number: int) -> bool:
        entry = self.table.numbered(number)
        return entry is not None and self.rules.role(entry.path) is not None

    def _sample(
        self, files: list[TraceFile], touched: TouchedBlocks
    ) -> tuple[list[Compressibility], list[Sample]]:
        """Measure how the files that still exist compress; keep their blocks if asked to."""
        wanted = {file.path: file.role for file in files if file.role is not None and file.size_end > 0}
        passing = {"temp": self.passing} if self.passing and any(f.role == "temp" for f in files) else {}
        if not wanted and not passing:
            return [], []
        self.say("measuring how the files compress")
        keep = self.writer.samples_dir if self.keep_samples else None
        return sample_files(wanted, seed=SEED, keep=keep, touched=touched.by_role(), passing=passing)


def record(
    recording: Recording,
    seconds: float | None = None,
    while_waiting: Callable[[float], None] | None = None,
    schedule: Schedule | None = None,
) -> Trace:
    """Record a command until it ends, or processes for ``seconds`` or until they end, and return the trace.

    For a terminal: Ctrl-C goes to the command, whose end ends the recording; with ``pids`` it ends the
    recording, and what was recorded is kept. After ``seconds`` a command is sent SIGTERM. ``while_waiting``
    is called several times a second with the seconds passed. ``schedule``: of processes, in which windows.
    Raises InputError or MissingError; nothing is left behind then. Must run in the main thread if a
    command is given.
    """
    ended = False
    with recording:
        if recording.command:
            _wait_for_command(recording, seconds, while_waiting)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                ended = _wait_for_time(recording, seconds, while_waiting, schedule)
        trace = recording.finish()
    recording.outlived = ended and "full" not in {warning.code for warning in trace.manifest.warnings}
    return trace


def recover(partial: Path | str, say: Progress | None = None) -> Trace:
    """Make a trace of a recording that was cut, at ``partial``, as `Recording` left it; return it.

    What came in the recorder's last second may be missing, if it was killed too. Raises InputError, also to
    root where somebody else could have written what is there.
    """
    partial = Path(partial)
    begun_path = partial / _BEGUN
    if partial.is_dir() and not os.access(partial, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(
            f"{partial} can't be recovered: it is {rights.owner(partial)}'s, and a recording is its "
            f"recorder's alone; {rights.remedy(partial)}"
        )
    if not partial.name.endswith(PARTIAL) or not begun_path.is_file():
        raise InputError(
            f"{partial} is no recording that was cut:"
            f" that is a folder NAME.trace{PARTIAL} with {_BEGUN}, and strace leaves none;"
            " remove what is of no use"
        )
    rights.require_closed(partial, "recover it as the user whose it is")
    lock = locked(partial)
    try:
        begun = json.loads(begun_path.read_text())
        if begun["share"] and begun["keep_samples"]:
            raise InputError(
                f"{begun_path} says both share and keep_samples, which no recording has: a trace that holds "
                "what is in the database is its recorder's alone; set one of them to false"
            )
        table = FileTable()
        harvest = recovered(partial, begun["session"], table)
        writer = TraceWriter(
            partial.with_name(partial.name.removesuffix(PARTIAL)), begun["share"], again=True
        )
        writer.keep = _RAW
        said = _Recorded(
            writer=writer,
            table=table,
            mapped=[MappedFile(**one) for one in begun["mapped"]],
            rules=RoleRules.parse(begun["rules"], builtin=begun["builtin"]),
            paths=[Path(path) for path in begun["paths"]],
            keep_samples=begun["keep_samples"],
            workload=None,
            page_size=begun["page_size"],
            warmth=None,
            recorder=begun["recorder"],
            command=begun["command"],
            pids=begun["pids"],
            say=say or (lambda _: None),
            sample=begun["sample"],
            max_bytes=begun["max_bytes"],
        )
        harvest.warnings.append(_CUT)
        return said.write(harvest, begun["started_unix_ns"], begun["child"], complete=False)
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise InputError(f"{partial} can't be recovered: {reason(error)}") from None
    finally:
        unlock(lock)


def _wait_for_time(
    recording: Recording,
    seconds: float | None,
    while_waiting: Callable[[float], None] | None,
    schedule: Schedule | None,
) -> bool:
    """Return whether it ended by itself before its time: its processes did, or its disk is full."""
    begun, was_open = time.monotonic(), True
    while seconds is None or time.monotonic() - begun < seconds:
        passed = time.monotonic() - begun
        left = 0.25 if seconds is None else min(0.25, seconds - passed)
        if schedule is not None:
            is_open, changes = schedule.at(passed)
            left = min(left, changes)
            if is_open != was_open:
                recording.turn(is_open)
                was_open = is_open
        if recording.wait(max(left, 0)):
            return True
        if while_waiting is not None:
            while_waiting(time.monotonic() - begun)
    return False


def _wait_for_command(
    recording: Recording, seconds: float | None, while_waiting: Callable[[float], None] | None
) -> None:
    """Pass signals on to the command, which is not of this terminal's session, until it ends."""
    came: list[int] = []
    begun = time.monotonic()
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in wanted}
    try:
        while not recording.wait(0.1):
            passed = time.monotonic() - begun
            if seconds is not None and passed >= seconds:
                seconds = None
                came.append(signal.SIGTERM)
            while came:
                _pass_on(recording, came.pop(0))
            if while_waiting is not None:
                while_waiting(passed)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(recording: Recording, number: int) -> None:
    if (child := recording.session.child) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _check_paths(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise InputError(f"there is no folder or file {path} to restrict the recording to")


def _used(chunks: Iterator[Rows]) -> tuple[int, set[int], set[int]]:
    """Return the highest number in the events, the numbers used, and those mapped for reading alone."""
    used: set[int] = set()
    only_read: set[int] = set()
    for rows in chunks:
        reading = rows["op"] == MMAP_READ
        only_read.update(np.unique(rows["file"][reading]).tolist())
        for name in ("file", "file2"):
            used.update(np.unique(rows[name][~reading]).tolist())
    used.discard(0)
    return max(used | only_read, default=0), used, only_read


def _resolved(rows: Rows, numbers: npt.NDArray[np.int32]) -> Rows:
    """Return the events with file ids (or UNKNOWN, IGNORED) in place of the recorder's numbers."""
    rows = rows[rows["op"] != MMAP_READ]
    rows["file"] = numbers[rows["file"]]
    rows["file2"] = np.maximum(numbers[rows["file2"]], -1)
    return rows


def _extra_rows(selection: Selection, at_start: list[tuple[MappedFile, int]]) -> Rows:
    """Return the events that come from names, and from mappings made before the recording."""
    rows = np.zeros(len(selection.events) + len(at_start), EVENT_DTYPE)
    rows["offset"] = -1
    for row, (mapping, file) in zip(rows, at_start, strict=False):
        row["pid"] = row["tid"] = mapping.pid
        row["op"], row["file"], row["file2"], row["size"] = Op.MMAP, file, -1, mapping.length
    for row, (call, op, file, other, size) in zip(rows[len(at_start) :], selection.events, strict=True):
        row["t"], row["dur"], row["pid"], row["tid"] = call[:4]
        row["op"], row["file"], row["file2"], row["size"] = op, file, other, size
    return rows


def _mapping_warnings(
    selection: Selection,
    mappings: Mapping[int, int],
    only_read: set[int],
    written_by_calls: Set[int],
    rules: RoleRules,
) -> list[Warning_]:
    # SQLite's -shm is an index in shared memory; what counts is in the database and the WAL. Others have such
    # files too, LMDB's and Firebird's locks among them, and rules leave them out.
    files = selection.files
    written = {
        id_: count
        for id_, count in mappings.items()
        if not files[id_].path.endswith("-shm") and not rules.leaves_out(files[id_].path)
    }
    warnings = []
    if written:
        warnings.append(
            Warning_(
                code="shared-mmap",
                message=f"{_some(files, written)} mapped into memory for writing: what is written that way is"
                " not in the trace, apart from msync.",
                count=sum(written.values()),
            )
        )
    read = {selection.ids[n]: 1 for n in only_read if n in selection.ids}

    def may_matter(file: TraceFile) -> bool:
        """Say whether it has a role, or may get one later: no program or library is made or written then."""
        changed = file.created or file.id in written_by_calls
        return file.role is not None or (changed and not rules.knows(file.path))

    read = {id_: 1 for id_ in read if may_matter(files[id_]) and id_ not in mappings}
    if read:
        warnings.append(
            Warning_(
                code="mmap-reads",
                message=(
                    f"{_some(files, read)} mapped into memory for reading: "
                    "what is read that way is not in the trace."
                ),
                count=len(read),
            )
        )
    return warnings


def _some(files: list[TraceFile], chosen: Iterable[int]) -> str:
    ids = sorted(chosen)
    names = ", ".join(files[id_].path for id_ in ids[:3])
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{names}{more} {'was' if len(ids) == 1 else 'were'}"


def _dropped_warning(dropped: int) -> Warning_:
    return Warning_(
        code="dropped",
        message=(
            f"{dropped} events were lost because they came faster "
            "than they could be kept: the trace is incomplete."
        ),
        count=dropped,
    )


def _full_warning(harvest: Harvest, max_bytes: int, disk_full: bool) -> Warning_:
    """Return the warning of a recording that ended as its disk was nearly full, or else by ``max_bytes``."""
    if disk_full:
        why = "had taken the room that it may on its disk, whose rest is for what else writes there,"
    else:
        why = f"took {format_size(max_bytes)}, the most that it may (--max-size),"
    after = f"ended after {harvest.duration_ns / 1e9:.0f} s"
    return Warning_(code="full", message=f"The recording {why} and {after}.")


def _nothing_warning(paths: Sequence[Path]) -> Warning_:
    where = f" below {', '.join(map(str, paths))}" if paths else ""
    hint = "; inside a chroot the names that the kernel gives are those of the host" if paths else ""
    return Warning_(code="nothing", message=f"No file{where} was used while recording{hint}.", count=1)


def environment(files: Sequence[TraceFile]) -> dict[str, Any]:
    """Return what the recording's host was: kernel, processors, memory and the most that its ARC may take in
    bytes (the latter where there is one), the file system below each mount used, and ZFS's records there.
    """
    mounts = Mounts()
    mounts.read()
    used = {str(mount.point): mount.type for file in files if (mount := mounts.of(file.dev)) is not None}
    records = zfs_records.of(files, mounts)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count() or 1,
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        **_arc_max(),
        "host_fs": dict(sorted(used.items())),
        **({zfs_records.KEY: records} if records else {}),
    }


def _arc_max(stats: Path = Path("/proc/spl/kstat/zfs/arcstats")) -> dict[str, int]:
    try:
        lines = stats.read_text().splitlines()
    except OSError:
        return {}
    # "c_max  4  8589934592": name, type, value.
    found = next((line.split() for line in lines if line.startswith("c_max ")), [])
    return {"arc_max": int(found[2])} if len(found) == 3 else {}
