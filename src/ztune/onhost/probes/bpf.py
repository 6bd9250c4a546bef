"""Runs bpftrace beside the job: from when everything is attached until the window's end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.host.process import ends_with_us, ends_within
from ztune.onhost.host.zfs import last_words, which
from ztune.onhost.probes.context import Context
from ztune.onhost.probes.probe import HELPERS, MOST_PATIENCE

ATTACH_S = 30.0
"""Of each of two attempts: a trial once stood still for ten minutes, most likely for one that never spoke."""
END_S = 30.0
# bpftrace attaches from the last to the first, and says that it attaches before it does: when the first and
# the last of the script have both spoken, all between them are attached. One line may be lost in the kernel's
# buffer (seen once in thirty starts), so each speaks for three seconds.
_SPEAKS = 'interval:ms:100 {{ if (@{0} < 30) {{ @{0} += 1; printf("{0}\\n"); }} }}'
_FIRST, _LAST = _SPEAKS.format("ready_a"), _SPEAKS.format("ready_b")


def parse_maps(text: str) -> dict[str, dict[str, Any]]:
    """Return map (without @) → key → value from ``bpftrace -f json``; histograms become lists of buckets."""
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if not isinstance(said, dict) or said.get("type") not in ("map", "hist", "stats"):
            continue
        for name, values in said["data"].items():
            found[name.lstrip("@")] = values if isinstance(values, dict) else {"": values}
    return found


def buckets(values: list[dict[str, int]]) -> dict[str, int]:
    """Return lower bound → count of a histogram; the bucket of 0 is "0"."""
    return {str(max(0, b.get("min", 0))): b["count"] for b in values if b.get("count")}


def kernel_device(device: int) -> int:
    """Return the kernel's own number of a device (dev_t) for ``st_dev``."""
    return os.major(device) << 20 | os.minor(device)


def symbols(names: set[str]) -> set[str]:
    """Return which of these functions the running kernel and its modules have."""
    found: set[str] = set()
    with (
        contextlib.suppress(OSError),
        Path("/proc/kallsyms").open(encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            words = line.split()
            if len(words) >= 3 and words[2] in names:
                found.add(words[2])
    return found


class Script:
    """A bpftrace script that runs."""

    def __init__(self, context: Context, script: str) -> None:
        """Start it and wait until it is attached. Raises ZtuneError when it can't be."""
        program = which("bpftrace")
        if program is None:
            raise ZtuneError("bpftrace is missing")
        self._patience = min(context.patience, MOST_PATIENCE)
        argv = [program, "-B", "line", "-f", "json", "-e", f"{_FIRST} {script} {_LAST}"]
        if not (self._begin(argv) or self._begin(argv)):
            raise ZtuneError(f"bpftrace did not attach: {self._problem('it took too long')}")

    def _begin(self, argv: list[str]) -> bool:
        """Start it and return whether it is attached; no: it was killed. Raises ZtuneError if it ended."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the script
        self._said: list[str] = []
        self._ready = threading.Event()
        self._wanted = {"ready_a", "ready_b"}
        self.process = subprocess.Popen(
            [*ends_with_us(), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            # Thousands of processes and datasets are no reason to lose a count.
            env={**os.environ, "BPFTRACE_MAP_KEYS_MAX": "65536", "BPFTRACE_MAX_MAP_KEYS": "65536"},
        )
        HELPERS.add(self.process.pid)
        self._thread = threading.Thread(target=self._read, daemon=True, name="bpftrace")
        self._thread.start()
        try:
            heard = self._ready.wait(ATTACH_S * self._patience)
            if heard and self._wanted:
                raise ZtuneError(f"bpftrace did not attach: {self._problem('it ended')}")
        except BaseException:
            # A signal too: whoever asked for it does not have it yet, and can't end it.
            self.kill()
            raise
        if not heard:
            self.kill()
            self._thread.join(END_S)  # what it reads is the next one's
        return heard

    def _problem(self, otherwise: str) -> str:
        self._errors.seek(0)
        return last_words(self._errors.read().decode(errors="replace")) or otherwise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if '"printf"' in line and "ready_" in line:
                self._wanted -= {word for word in self._wanted if word in line}
                if not self._wanted:
                    self._ready.set()
                continue
            self._said.append(line)
        self._ready.set()

    def interrupt(self) -> None:
        """Tell it to print and end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    def result(self) -> dict[str, dict[str, Any]]:
        """Wait for its end and return its maps. Raises ZtuneError when it failed."""
        try:
            code = self.process.wait(END_S * self._patience)
            self._thread.join(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            limit = END_S * self._patience
            raise ZtuneError(f"bpftrace did not end within {limit:.0f} s; it was killed") from None
        finally:
            HELPERS.discard(self.process.pid)
        if code != 0:
            raise ZtuneError(f"bpftrace failed: {self._problem(f'exit code {code}')}")
        return parse_maps("".join(self._said))

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        ends_within(self.process, 10)
        HELPERS.discard(self.process.pid)
