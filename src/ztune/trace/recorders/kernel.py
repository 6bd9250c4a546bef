"""The programs that put eBPF into the kernel (``recorder/``, C): where they are, and whether they work."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ztune import native
from ztune.errors import MissingError, ZtuneError

BTF = Path("/sys/kernel/btf/vmlinux")
CHECK_SECONDS: Final = 300.0
"""For loading, which takes a second or two; under emulation, on a busy host, minutes."""


def untyped() -> str | None:
    """Return why eBPF can't work on a kernel without type information; None if it has it."""
    if not BTF.exists():
        return f"it has no type information ({BTF}): it was built without CONFIG_DEBUG_INFO_BTF"
    return None


@dataclass(frozen=True)
class Helper:
    """One of these programs."""

    program: native.NativeProgram

    def path(self) -> Path:
        """Return its path. Raises MissingError where there is none, or it can't be built."""
        return self.program.find()

    def problem(self) -> str | None:
        """Return why it does not work here and now, None if it does. Loads its programs for a moment."""
        return self.check()[0]

    def check(self) -> tuple[str | None, str]:
        """Return the same, and what its programs attach to here: ``functions`` of the wanted calls, or
        ``tracepoints``, which all calls on the host pass; empty where it does not work.
        """
        try:
            path = self.path()
            if why := untyped():
                return f"the kernel can't: {why}", ""
            done = subprocess.run(
                [os.fspath(path), "check"], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
            )
            answer = json.loads(done.stdout.splitlines()[0])
            if answer["state"] == "ok":
                return None, str(answer["attached"])
            return str(answer["message"]), ""
        except ZtuneError as error:
            return str(error), ""
        except (OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            return f"{self.program.name} does not run ({error})", ""


class HelperProcess:
    """One run of such a program.

    It speaks on one pipe, a line of JSON a message, and is told on another. It ends when that one is closed,
    so also when we are gone.
    """

    def __init__(self, helper: Helper, verb: str, *options: str, stdin: int | None = None) -> None:
        """Start it, ``options`` after those of the pipes. Raises MissingError without the program."""
        path = helper.path()
        self._name = helper.program.name
        status, for_status = os.pipe()
        for_control, self._control = os.pipe()
        self._status = os.fdopen(status, "rb", buffering=0)
        self._text = b""
        pipes = ("--status", str(for_status), "--control", str(for_control))
        try:
            # A session of its own: Ctrl-C is for us, and we tell it to end.
            self.process = subprocess.Popen(
                [os.fspath(path), verb, *pipes, *options],
                pass_fds=(for_status, for_control),
                start_new_session=True,
                stdin=stdin,
            )
        except OSError as error:
            self._close()
            raise MissingError(f"can't run {path}: {error.strerror}") from None
        finally:
            os.close(for_status)
            os.close(for_control)

    def tell(self, *lines: str) -> None:
        """Send it lines. One that ended has said why: that is heard next."""
        data = "".join(f"{line}\n" for line in lines).encode()
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._control, data) :]

    def hear(
        self, seconds: float | None, parts: Sequence[str] = ()
    ) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Return its next message, and by name the bytes behind it whose lengths it gives under ``parts``.

        None if it does not come within ``seconds``. Nothing is taken from the buffer before all is there, so
        that an interruption does no harm. Raises ZtuneError if the program ended.
        """
        deadline = None if seconds is None else time.monotonic() + max(0.0, seconds)
        while b"\n" not in self._text:
            if not self._more(deadline):
                return None
        end = self._text.index(b"\n") + 1
        message: dict[str, Any] = json.loads(self._text[:end])
        edges = [end]
        for name in parts:
            edges.append(edges[-1] + int(message.get(name, 0)))
        while len(self._text) < edges[-1]:
            if not self._more(deadline):
                return None
        found = {name: self._text[a:b] for name, a, b in zip(parts, edges, edges[1:], strict=False)}
        self._text = self._text[edges[-1] :]
        return message, found

    def _more(self, deadline: float | None) -> bool:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([self._status], [], [], left)[0]:
            return False
        part = self._status.read(1 << 20)
        if not part:
            raise ZtuneError(f"{self._name} ended unexpectedly (status {self.process.wait()})")
        self._text += part
        return True

    def hang_up(self) -> None:
        """Tell it to end, if that was not done yet."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def kill(self) -> None:
        """End it, whatever it does. May be called twice."""
        if self.process.poll() is None:
            self.process.kill()  # it ignores the gentler ones
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._status.close()
        self.hang_up()


RECORDER: Final = Helper(native.RECORDER)
OBSERVER: Final = Helper(native.OBSERVER)
