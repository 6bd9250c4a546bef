"""Work in other processes, as other users, on the file system under test."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import pytest

T = TypeVar("T")
PATIENCE_S = 100


class Died(Exception):
    """A child was ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the child was ended by {signal.Signals(number).name}")
        self.signal = signal.Signals(number)


class Child(Generic[T]):
    """A forked process that does one thing; ``result`` waits for what it returned or raised."""

    def __init__(
        self,
        work: Callable[[], T],
        *,
        uid: int | None = None,
        gid: int | None = None,
        groups: Sequence[int] = (),
    ) -> None:
        end, mine = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(end)
            self._be(work, mine, uid, gid, groups)
        os.close(mine)
        self._end = end
        self._over = False

    @staticmethod
    def _be(
        work: Callable[[], T], pipe: int, uid: int | None, gid: int | None, groups: Sequence[int]
    ) -> None:
        try:
            faulthandler.disable()  # a signal that a test wants is no reason to print a stack
            # A child that hangs must not outlive the test by much.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE_S)
            os.umask(0o022)
            if uid is not None:
                os.setgroups(list(groups))
                os.setgid(uid if gid is None else gid)
                os.setuid(uid)
            said: tuple[bool, object] = (True, work())
        except BaseException as error:
            said = (False, error)
        try:
            with open(pipe, "wb") as sink:
                pickle.dump(said, sink)
        finally:
            os._exit(0)

    def kill(self) -> None:
        """End it at once."""
        if not self._over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._end)
            self._over = True

    def result(self) -> T:
        """Wait for its end; return what it returned, raise what it raised."""
        with open(self._end, "rb") as source:
            said = source.read()
        _, status = os.waitpid(self.pid, 0)
        self._over = True
        if os.WIFSIGNALED(status):
            raise Died(os.WTERMSIG(status))
        good, value = pickle.loads(said)
        if good:
            return value  # type: ignore[no-any-return]
        raise value


def in_child(
    work: Callable[[], T], *, uid: int | None = None, gid: int | None = None, groups: Sequence[int] = ()
) -> T:
    """Return what ``work`` returns in a process of its own."""
    return Child(work, uid=uid, gid=gid, groups=groups).result()


class Signal:
    """A word from one process to another, passed through a pipe: said once, heard once by each ``wait``."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()

    def say(self, times: int = 1) -> None:
        os.write(self._in, b"!" * times)

    def wait(self) -> None:
        assert os.read(self._out, 1) == b"!"


@contextlib.contextmanager
def fails(*numbers: int) -> Iterator[None]:
    """Demand that what is within fails with one of these errors."""
    wanted = " or ".join(errno.errorcode[n] for n in numbers)
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            pytest.fail(
                f"failed with {errno.errorcode.get(error.errno or 0, error.errno)}, not {wanted}: {error}"
            )
    else:
        pytest.fail(f"succeeded where {wanted} was due")
