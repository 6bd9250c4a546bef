"""What a recorder is to the rest of ztune, and what it delivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ztune.trace.manifest import RecordedWindow, Warning_

if TYPE_CHECKING:
    from ztune.trace.recorders.files import FileTable
    from ztune.trace.regions import Tally
    from ztune.trace.spool import Part, Rows

# A shared mapping that is only read: not an event of the trace, but a reason for a warning.
MMAP_READ = 100


@dataclass(frozen=True)
class Start:
    """What to record. Either a command to run, or processes that run already (with all their descendants)."""

    folder: Path  # exists; the recorder may put files there, which are removed when the recording is done
    table: FileTable  # where files and calls on names are entered, by the end of ``Session.stop``
    command: list[str] | None = None
    pids: list[int] = field(default_factory=list)
    ring_bytes: int | None = None  # eBPF: size of the ring buffer, a power of two; None: 64 MiB
    max_bytes: int = 0  # that the recorder's files may have; then it records nothing more. 0: any
    sample: int = 1  # eBPF: one region in so many is recorded of what ``may_sample`` allows
    may_sample: Callable[[str], bool] = lambda _: True  # whether the file of this name is no log by its role


@dataclass
class Harvest:
    """What was recorded, once recording ended."""

    parts: Sequence[Part]
    """Events as ``writer.EVENT_DTYPE``; ``file`` and ``file2`` are still the recorder's numbers (0: none)."""
    duration_ns: int  # of all windows
    dropped: int = 0
    exit_status: int | None = None  # of the command; negative: the signal that ended it
    warnings: list[Warning_] = field(default_factory=list)
    detail: str = ""
    full: bool = False  # nothing was recorded any more once there were ``Start.max_bytes``, or by ``fill``
    windows: Sequence[RecordedWindow] = ()
    tallies: Mapping[int, Tally] | None = None  # of a sample: what was done to each file, by its number
    waits: bool = False  # events tell whose commits their threads had waited for

    def rows(self) -> Iterator[Rows]:
        """Yield the events of each part."""
        return (part() for part in self.parts)


class RecorderSession(Protocol):
    """A recording under way.

    Recorder and command run in a session of their own, so that Ctrl-C at the terminal reaches ztune alone,
    which decides what it means.
    """

    started_unix_ns: int

    def kept(self) -> dict[str, Any] | None:
        """Return, as JSON-able data, what `ebpf.recovered` needs beside the recorder's files.

        None: this recorder's files alone make no trace.
        """

    @property
    def child(self) -> int | None:
        """The process id of the command, if one was started."""

    @property
    def program(self) -> int | None:
        """The process id of the recorder's program; None where it slows down so much what it records that
        how busy the host is tells nothing of it."""

    def begin(self) -> None:
        """Return once nothing can be missed. Raises InputError, MissingError or ZtuneError."""

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; True once the recording ended by itself: command or processes ended.

        Raises InputError or MissingError if the recorder failed.
        """

    def fill(self) -> None:
        """Record nothing more, as at ``Start.max_bytes``: a command goes on."""

    def pause(self) -> None:
        """End a window: record calls on names alone. Only of a recorder that is ``in_kernel``."""

    def resume(self) -> None:
        """Begin the next window."""

    def stop(self) -> Harvest:
        """End the recording; a command that still runs is left alone. Raises as ``wait`` does."""

    def abort(self) -> None:
        """End the recording and forget it. May be called at any time, and twice."""


@dataclass(frozen=True)
class Recorder:
    """One way to see the file I/O of processes."""

    name: str
    unavailable: Callable[[], str | None]
    """Returns why it can't work here, as a phrase, with what would help; None if it can."""
    session: Callable[[Start], RecorderSession]
    in_kernel: bool = False
    """Whether it can leave out regions and times before anything is handed on."""

    def start(self, start: Start) -> RecorderSession:
        """Start recording; returns once nothing can be missed. Raises InputError or MissingError."""
        session = self.session(start)
        try:
            session.begin()
        except BaseException:
            session.abort()
            raise
        return session
