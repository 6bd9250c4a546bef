"""A control group for a command: what memory it and all that it starts take, and a limit for them.

``memory.peak`` is the kernel's own, of every moment; it has what the kernel keeps of files in memory too,
which it gives back where there is a limit. What can't be given back is looked at ten times a second. Both
versions of control groups are known (cgroups(7)); it takes root's rights.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import started

from ztune.onhost.host import interrupt

ROOT = Path("/sys/fs/cgroup")
LOOK_S = 0.1


class NoGroupError(Exception):
    """There can be no group; its words are one sentence that says why."""


@dataclass(frozen=True)
class Files:
    """What a version of control groups calls its files, and the keys of memory that no file holds."""

    limit: str
    peak: str
    kept: tuple[str, ...]
    killed: str


V2 = Files("memory.max", "memory.peak", ("anon", "shmem"), "memory.events")
V1 = Files("memory.limit_in_bytes", "memory.max_usage_in_bytes", ("rss", "shmem"), "memory.oom_control")


@dataclass(frozen=True)
class Took:
    """What a command took. ``peak``: bytes of memory at most, files' pages too; ``kept``: without these, as
    it was seen; ``code``: its exit code, None where it was cut; ``killed``: processes ended for want of
    memory."""

    code: int | None
    wall_s: float
    cpu_s: float
    peak: int
    kept: int
    killed: int


@contextlib.contextmanager
def group(limit: int | None) -> Iterator[tuple[Path, Files]]:
    """Yield a new group with at most ``limit`` bytes, removed at the end. Raises NoGroupError."""
    v1 = (ROOT / "memory" / V1.limit.replace("limit", "usage")).exists()
    folder, files = ((ROOT / "memory") if v1 else ROOT) / f"ztune-bench-{os.getpid()}", V1 if v1 else V2
    try:
        folder.mkdir()
    except OSError as error:
        raise NoGroupError(f"no control group can be made in {folder.parent}: {error.strerror}") from None
    try:
        if not (folder / files.limit).exists() or not (folder / files.peak).exists():
            raise NoGroupError(f"{folder.parent} has no control group of memory that knows its peak")
        if limit is not None:
            (folder / files.limit).write_text(str(limit))
        yield folder, files
    finally:
        for _ in range(100):  # processes that have just ended are still in it
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(LOOK_S)


def run(
    command: Sequence[str],
    *,
    limit: int | None = None,
    most_s: float | None = None,
    look: Callable[[int], None] | None = None,
) -> Took:
    """Run ``command`` in a group of its own and return what it took; after ``most_s``, or where this is
    interrupted or terminated, it is terminated. ``look``: is called with its process id ten times a
    second.

    Raises NoGroupError.
    """
    with interrupt.signals_as_interrupt(), group(limit) as (folder, files):
        began, before, kept = time.monotonic(), os.times(), 0

        def enter() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        process = started.begin(command, stdout=subprocess.DEVNULL, preexec_fn=enter)
        cut = False
        try:
            while process.poll() is None:
                if most_s is not None and time.monotonic() - began > most_s:
                    cut = True
                    break
                kept = max(kept, _kept(folder, files))
                if look is not None:
                    look(process.pid)
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            cut = True
        finally:
            started.end(process)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        killed = dict(line.split() for line in (folder / files.killed).read_text().splitlines())
        return Took(
            None if cut else process.returncode,
            time.monotonic() - began,
            cpu,
            int((folder / files.peak).read_text()),
            kept,
            int(killed.get("oom_kill", 0)),
        )


def _kept(folder: Path, files: Files) -> int:
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(stat.get(key, 0)) for key in files.kept)
