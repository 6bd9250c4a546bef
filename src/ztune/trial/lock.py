"""One trial of a run at a time: a lock on STATE/RUN/lock, held by us and by the commands we started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.trial.door import STATE_MARKER

NAME = "lock"


class BusyError(ZtuneError):
    """Another process works on the same run."""


class RunLock:
    """The lock of one run. Makes STATE and STATE/RUN; ``release`` removes them again when they are empty."""

    def __init__(self, state: Path, run: str) -> None:
        self.state, self.run = state, run
        self.fd = -1

    @property
    def path(self) -> Path:
        """STATE/RUN/lock."""
        return self.state / self.run / NAME

    def acquire(self, seconds: float = 5.0, *, make: bool = True) -> bool:
        """Take the lock; False when ``make`` is off and there is no such run.

        Raises:
            BusyError: somebody else has it, still after ``seconds``.
            InputError, MissingError: the state directory can't be used.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                if make:
                    self._make_directories()
                flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0)
                fd = os.open(self.path, flags, 0o600)
            except FileNotFoundError:
                if make:
                    continue  # the last trial of the run was just tidied away
                return False
            except PermissionError:
                raise MissingError(f"{self.path}: can't be written; run as root") from None
            except OSError as error:
                raise InputError(f"{self.path}: {error.strerror}; name another state directory") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it before us may have removed the file after we opened it.
                if os.fstat(fd).st_ino == self.path.stat().st_ino:
                    self.fd = fd
                    return True
                os.close(fd)
                continue
            except FileNotFoundError:
                os.close(fd)
                continue
            except OSError:
                os.close(fd)
            if time.monotonic() > deadline:
                raise BusyError(
                    f"run {self.run}: a trial of it is still running in {self.state}; wait, or stop it"
                )
            time.sleep(0.1)

    def _make_directories(self) -> None:
        if not self.state.exists():
            self.state.mkdir(parents=True, mode=0o711)
            self.state.chmod(0o711)
            (self.state / STATE_MARKER).touch()
        folder = self.state / self.run
        # Others may pass through, not look around: databases run as users of their own.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o711)
            folder.chmod(0o711)

    def release(self) -> None:
        """Let go, and remove what is left empty: the run's directory, and STATE if ztune made it."""
        if self.fd < 0:
            return
        folder = self.state / self.run
        with contextlib.suppress(OSError):
            if [entry.name for entry in folder.iterdir()] == [NAME]:
                self.path.unlink()
                folder.rmdir()
            if [entry.name for entry in self.state.iterdir()] == [STATE_MARKER]:
                (self.state / STATE_MARKER).unlink()
                self.state.rmdir()
        os.close(self.fd)
        self.fd = -1
