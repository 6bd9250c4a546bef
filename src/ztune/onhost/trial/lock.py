"""One trial of a run at a time: a lock in the run's directory, held by us and by the commands we started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.home import BELIEVED, PLACES, RunHome
from ztune.onhost.host.home import LOCK as NAME
from ztune.onhost.host.own_directory import PASSABLE, PRIVATE, NotOursError, OwnDirectory, parent_of

STATE_MARKER = ".ztune-state"
"""In a STATE that ztune made, and so removes."""


class BusyError(ZtuneError):
    """Another process works on the same run."""


class RunLock:
    """The lock of one run. Makes STATE and the run's directories; ``release`` removes them again when they
    are empty. While it is held ``home`` is the run's directory of journals, open.
    """

    def __init__(self, state: Path, run: str, *, old: bool = False) -> None:
        self.where = RunHome(state, run, old)
        self.state, self.run = state, run
        self.fd = -1
        self._home: OwnDirectory | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.where.believed / NAME

    @property
    def home(self) -> OwnDirectory:
        """The run's directory, in which each trial's is, open."""
        assert self._home is not None, "the lock is not held"
        return self._home

    def acquire(self, seconds: float = 5.0, *, make: bool = True) -> bool:
        """Take the lock; False when there is no such run and it is not made.

        Raises:
            BusyError: somebody else has it, still after ``seconds``.
            NotOursError: somebody else could have written what is there.
            InputError, MissingError: the state directory can't be used.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                if make and not self.where.old:
                    self._make_directories()
                self._home = OwnDirectory.open(self.where.believed)
                fd = self._home.open_file(NAME, os.O_RDWR | (os.O_CREAT if make else 0))
            except FileNotFoundError:
                self._let_go()
                if not make or self.where.old:
                    return False
                # The last trial of the run was just tidied away.
                if time.monotonic() > deadline:
                    raise BusyError(f"{self.path}: somebody removes it again and again") from None
                continue
            except NotOursError:
                self._let_go()
                raise
            except PermissionError:
                self._let_go()
                raise MissingError(f"{self.path}: can't be written; run as root") from None
            except OSError as error:
                self._let_go()
                raise InputError(f"{self.path}: {error.strerror}; name another state directory") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it before us may have removed the file after we opened it.
                now = self._home.look(NAME)
                if now is not None and os.fstat(fd).st_ino == now.st_ino:
                    self.fd = fd
                    return True
                os.close(fd)
                self._let_go()
                continue
            except OSError:
                os.close(fd)
                self._let_go()
            if time.monotonic() > deadline:
                raise BusyError(
                    f"run {self.run}: a trial of it is still running in {self.state}; wait, or stop it"
                )
            time.sleep(0.1)

    def _make_directories(self) -> None:
        with self._top() as top:
            with top.below(BELIEVED, make=PRIVATE) as believed:
                os.fchmod(believed.fd, PRIVATE)
                believed.below(self.run, make=PRIVATE).close()
            # Others may pass through, not look around: databases run as users of their own.
            with top.below(PLACES, make=PASSABLE) as places:
                places.below(self.run, make=PASSABLE).close()

    def _top(self) -> OwnDirectory:
        """Open STATE; it is made, with its marker, if it is missing.

        Raises:
            FileNotFoundError: another trial, the last one there, removes it just now.
        """
        if not self.state.parent.is_dir():
            OwnDirectory.open(self.state.parent, make=PASSABLE).close()
        with parent_of(self.state) as parent:
            if parent is None:
                raise FileNotFoundError(str(self.state.parent))
            if parent.look(self.state.name) is None:
                try:
                    top = parent.below(self.state.name, make=PASSABLE, new=True)
                except FileExistsError:
                    pass  # another trial was faster
                else:
                    os.close(top.open_file(STATE_MARKER, os.O_WRONLY | os.O_CREAT))
                    return top
            # It is not made here: one that is removed now would be there again, without its marker, for ever.
            return parent.below(self.state.name)

    def _let_go(self) -> None:
        if self._home is not None:
            self._home.close()
            self._home = None

    def release(self) -> None:
        """Let go, and remove what is left empty: the run's directories, and STATE if ztune made it."""
        if self.fd < 0:
            return
        with contextlib.suppress(OSError, NotOursError):
            if self.home.names() == [NAME]:
                os.unlink(NAME, dir_fd=self.home.fd)
            for path in dict.fromkeys((self.where.places, self.where.believed)):
                with contextlib.suppress(OSError):
                    path.rmdir()  # whatever is in it still stays
            with OwnDirectory.open(self.state) as top:
                for name in (BELIEVED, PLACES):
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=top.fd)
                if top.names() == [STATE_MARKER]:
                    os.unlink(STATE_MARKER, dir_fd=top.fd)
                    try:
                        self.state.rmdir()
                    except OSError:
                        # Another trial has begun there meanwhile: the last one removes it.
                        os.close(top.open_file(STATE_MARKER, os.O_WRONLY | os.O_CREAT))
        os.close(self.fd)
        self.fd = -1
        self._let_go()
