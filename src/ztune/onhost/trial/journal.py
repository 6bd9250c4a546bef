"""The journal of a trial: what is about to be made, what was made, what was removed. On the disk before the
act, so that a trial that is cut anywhere can be undone.

A line is one JSON object. ``do`` is one of:

``open``      the first line: run, trial, token, boot id
``step``      a step of the trial begins or ends
``make``      a thing is about to be made: ``id``, ``kind`` and all that its removal will need
``made``      it was made: facts that were not known before, such as a pool's guid
``note``      a fact changed since
``remove``    it is about to be removed
``removed``   it is gone
``refused``   it was left alone, and why
``forgotten`` ``ids``: things that are no business of the trial's any more, as the user says
``close``     the trial is over and nothing is left
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.host.about import boot_id
from ztune.onhost.host.own_directory import NotOursError, OwnDirectory
from ztune.units import format_size

NAME = "journal.jsonl"
FORMAT = "ztune-journal"
VERSION = 1
MAX_BYTES = 64 << 20
"""A journal has a few KiB; one that is larger is not read."""


@dataclass(slots=True)
class Thing:
    """Something that a trial makes and must remove."""

    id: str
    """Unique in its trial, such as ``pool:main``."""
    kind: str
    facts: dict[str, Any]
    """All facts of ``make``, ``made`` and ``note``, later ones first."""
    made: bool = False
    """Whether its making was completed; if not, there may be nothing, half of it, or all of it."""
    boot: str = ""
    """The boot id when it was made."""
    refused: str = ""


@dataclass(slots=True)
class Journal:
    """One trial's journal, open for appending. Use ``create`` or ``open``."""

    path: Path
    run: str
    trial: str
    token: str
    things: dict[str, Thing] = field(default_factory=dict)
    """What is not removed yet, in the order it was made."""
    closed: bool = False
    steps: list[tuple[str, str]] = field(default_factory=list)
    _fd: int = -1
    _n: int = 0
    _size: int = 0
    """Bytes of whole lines in the file. What lies behind them was cut, and counts for nothing."""
    _boot: str = ""

    @classmethod
    def create(cls, path: Path, *, run: str, trial: str, token: str, about: dict[str, Any]) -> Journal:
        """Begin a journal at ``path``, which must not exist. Raises ZtuneError when it can't be written."""
        journal = cls(path, run, trial, token, _boot=boot_id())
        try:
            journal._fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        except OSError as error:
            raise ZtuneError(f"{path}: the journal can't be made: {error.strerror}") from None
        facts = {"format": FORMAT, "version": VERSION, "run": run, "trial": trial, "token": token}
        try:
            journal.append("open", **facts, boot=journal._boot, **about)
        except ZtuneError:
            journal.close()
            path.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
        return journal

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Read the journal at ``path`` and go on with it.

        A last line that was cut by a crash is left out: what it announced was not begun.

        Raises:
            ZtuneError: it is no journal of ours, or damaged before its last line.
        """
        try:
            fd = _open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise ZtuneError(f"{path}: the journal can't be read: {error.strerror}") from None
        except NotOursError as error:
            raise ZtuneError(f"the journal can't be read: {error}; nothing was removed") from None
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            os.close(fd)
            raise ZtuneError(
                f"{path}: the journal is larger than {format_size(MAX_BYTES)}, "
                "so it is not one of ztune's; nothing was removed"
            )
        whole, end, _torn = data.rpartition(b"\n")
        records: list[dict[str, Any]] = []
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            try:
                record = json.loads(line)
                if not isinstance(record, dict) or not _is_record(record):
                    raise ValueError
            except (ValueError, RecursionError):
                os.close(fd)
                raise ZtuneError(
                    f"{path}: line {number} of the journal is damaged; nothing was removed"
                ) from None
            records.append(record)
        if not records:
            journal = cls(path, "", "", "", _boot=boot_id(), _size=len(whole) + len(end))
            journal._fd = fd
            return journal
        first = records[0]
        if first.get("format") != FORMAT or first.get("version") != VERSION:
            os.close(fd)
            raise ZtuneError(f"{path}: not a journal of this version of ztune; nothing was removed")
        run, trial, token = (str(first.get(key, "")) for key in ("run", "trial", "token"))
        journal = cls(path, run, trial, token, _boot=boot_id())
        journal._fd, journal._n, journal._size = fd, len(records), len(whole) + len(end)
        for record in records:
            journal._apply(record)
        return journal

    @property
    def empty(self) -> bool:
        """Whether not even its first line was written: nothing was begun."""
        return self._n == 0

    def append(self, do: str, **fields: Any) -> None:
        """Write one record, whole or not at all, and wait until it is on the disk.

        Raises:
            ZtuneError: it can't be written. What was to be done after it must not be begun.
        """
        record = {"n": self._n + 1, "t": round(time.time(), 3), "do": do, **fields}
        if do == "make":
            record.setdefault("boot", self._boot)
        data = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            # A line that a full disk or a crash has cut must not become the beginning of this one.
            if os.fstat(self._fd).st_size > self._size:
                os.ftruncate(self._fd, self._size)
            try:
                left = data
                while left:
                    # On a full disk the first part may still fit.
                    left = left[os.write(self._fd, left) :]
                os.fdatasync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise
        except OSError as error:
            raise ZtuneError(f"{self.path}: the journal can't be written: {error.strerror}") from None
        self._n += 1
        self._size += len(data)
        self._apply(record)

    def try_append(self, do: str, **fields: Any) -> None:
        """Write one record about what is removed, or remember it if there is no room for it.

        For removals alone, which may be done again: a reader who misses the record finds the thing gone.
        """
        try:
            self.append(do, **fields)
        except ZtuneError:
            self._apply({"do": do, **fields})

    def step(self, step: str, state: str) -> None:
        """Note that a step of the trial begins or ends."""
        self.append("step", step=step, state=state)

    def make(self, id: str, kind: str, **facts: Any) -> Thing:
        """Announce a thing, before it is made."""
        self.append("make", id=id, kind=kind, facts=facts)
        return self.things[id]

    def made(self, id: str, **facts: Any) -> None:
        """Note that it was made, and what is known about it now."""
        self.append("made", id=id, facts=facts)

    def note(self, id: str, **facts: Any) -> None:
        """Note that something about it changes."""
        self.append("note", id=id, facts=facts)

    def close(self) -> None:
        """Let go of the file; what is written stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _apply(self, record: dict[str, Any]) -> None:
        do, id = record["do"], str(record.get("id", ""))
        if do == "make":
            self.things[id] = Thing(
                id, str(record["kind"]), dict(record.get("facts", {})), boot=str(record.get("boot", ""))
            )
        elif do in ("made", "note") and id in self.things:
            self.things[id].facts.update(record.get("facts", {}))
            self.things[id].made |= do == "made"
        elif do == "removed":
            self.things.pop(id, None)
        elif do == "forgotten":
            for one in record["ids"]:
                self.things.pop(str(one), None)
        elif do == "refused" and id in self.things:
            self.things[id].refused = str(record.get("text", ""))
        elif do == "step":
            self.steps.append((str(record["step"]), str(record["state"])))
        elif do == "close":
            self.closed = True


def _open(path: Path, flags: int) -> int:
    """Open a file in a directory of ours. Raises NotOursError where somebody else could have written it."""
    with OwnDirectory.open(path.parent) as home:
        return home.open_file(path.name, flags)


def _is_record(record: dict[str, Any]) -> bool:
    known = isinstance(record.get("do"), str) and isinstance(record.get("facts", {}), dict)
    needed = {"make": ("id", "kind"), "step": ("step", "state"), "forgotten": ("ids",)}
    return known and all(key in record for key in needed.get(record["do"], ()))


def sync_directory(path: Path) -> None:
    """Wait until the names in ``path`` are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError:
        # Some network and overlay file systems can't; their names are written at once.
        pass
    finally:
        os.close(fd)
