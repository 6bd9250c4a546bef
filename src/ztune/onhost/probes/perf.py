"""Records system calls with ``perf trace record``, which follows a process's children: without bpftrace."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from ztune.errors import ZtuneError
from ztune.onhost.host.process import ends_with_us, ends_within
from ztune.onhost.host.zfs import last_words, which
from ztune.onhost.probes.context import Context
from ztune.onhost.probes.probe import HELPERS, MOST_PATIENCE

ATTACH_S = 30.0
END_S = 30.0
READ_S = 600.0
_ROW = re.compile(
    r"^\s+([a-z]\w*)\s+(\d+)(?:\s+(\d+))?\s+(\d+\.\d+)\s+\d+\.\d+\s+\d+\.\d+\s+\d+\.\d+\s+\S+%\s*$"
)


def parse_summary(text: str) -> dict[str, dict[str, float]]:
    """Return call → calls, seconds from the summary of ``perf trace -s``, all threads together."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = _ROW.match(line)
        if match:
            row = found.setdefault(match[1], {"calls": 0, "seconds": 0.0})
            row["calls"] += int(match[2])
            row["seconds"] = round(row["seconds"] + float(match[4]) / 1e3, 6)
    return found


_THREAD = re.compile(r"^ (.+) \((\d+)\), \d+ events")


def by_process(text: str, names: Mapping[int, str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return process → call → calls, seconds from the same summary. ``names``: what processes are called,
    where that was seen; other threads have their own name.
    """
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        match = _THREAD.match(line)
        if match:
            lines = parts.setdefault(names.get(int(match[2]), match[1]), [])
        lines.append(line)
    return {name: parse_summary("\n".join(said)) for name, said in parts.items()}


def lost(text: str) -> int:
    """Return how many events ``perf`` says that it lost."""
    return sum(int(number) for number in re.findall(r"LOST (\d+) events", text))


class PerfRecording:
    """Every system call of some processes and their descendants, into a file, from when it is attached."""

    def __init__(self, context: Context, pids: Sequence[int], megabytes: float) -> None:
        """Start it and wait until it records. Raises ZtuneError when it can't."""
        program = which("perf")
        if program is None:
            raise ZtuneError("perf is missing")
        self._context = context
        self._patience = min(context.patience, MOST_PATIENCE)
        self.path = context.state / "syscalls.perf"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as perf
        control, self._control = os.pipe()
        self._answer, answer = os.pipe()
        try:
            self.process = subprocess.Popen(
                [
                    *ends_with_us(),
                    *(program, "trace", "record", "-D", "-1", "--control", f"fd:{control},{answer}"),
                    *("--max-size", f"{max(1, round(megabytes))}M", "-o", str(self.path)),
                    *("-p", ",".join(map(str, pids))),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                start_new_session=True,
                pass_fds=(control, answer),
            )
        finally:
            os.close(control)
            os.close(answer)
        HELPERS.add(self.process.pid)
        try:
            self._enable()
        except BaseException:
            # A signal too: whoever asked for it does not have it yet, and can't end it.
            self.kill()
            raise

    def _enable(self) -> None:
        os.write(self._control, b"enable\n")
        until = time.monotonic() + ATTACH_S * self._patience
        said = b""
        while b"ack" not in said:
            if not select.select([self._answer], [], [], max(0.0, until - time.monotonic()))[0]:
                raise ZtuneError("perf did not say that it records; it was killed")
            piece = os.read(self._answer, 64)
            if not piece:
                raise ZtuneError(f"perf ended at once: {self._words()}")
            said += piece

    def _words(self) -> str:
        self._said.seek(0)
        return last_words(self._said.read().decode(errors="replace"))

    def interrupt(self) -> None:
        """End the recording; what is buffered is still written."""
        with contextlib.suppress(OSError):
            os.write(self._control, b"disable\n")
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    def summary(self) -> str:
        """Wait for its end and return perf's summary by thread. Raises ZtuneError."""
        try:
            self.process.wait(END_S * self._patience)
        except subprocess.TimeoutExpired:
            raise ZtuneError("perf did not end; it was killed") from None
        else:
            if "size limit reached" in (words := self._words()):
                self._context.warn(
                    f"probe syscalls: perf's file was full at {self.path.stat().st_size >> 20} MiB; calls "
                    "after that are not counted; its option megabytes gives more room"
                )
            elif not self.path.exists():
                raise ZtuneError(f"perf recorded nothing: {words}")
            return self._context.command(
                ["perf", "trace", "-f", "-s", "-o", "/dev/stdout", "-i", str(self.path)], timeout=READ_S
            )
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, and remove its file."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        ends_within(self.process, 10)
        HELPERS.discard(self.process.pid)
        for fd in (self._control, self._answer):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._control = self._answer = -1
        self.path.unlink(missing_ok=True)
