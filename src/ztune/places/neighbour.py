"""A second recording beside the first, on the same pools: what the engine reads then, and on which datasets.

docs/neighbours.md says what a user sees of it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ztune.errors import InputError
from ztune.onhost.host import shared_files
from ztune.places.replay import export_folder
from ztune.trace.inputs import CONTENT, Inputs
from ztune.trace.reader import Trace, commits_of


@dataclass(frozen=True)
class Neighbour:
    """A recording that is replayed beside another, from ``start_s`` seconds of that on."""

    trace: Trace
    start_s: float = 0.0

    @classmethod
    def kept(cls, options: Mapping[str, Any]) -> Neighbour:
        """Return the neighbour that ``to_json`` wrote. Raises InputError where its recording is another now,
        or gone."""
        trace = Trace.open(options["path"])
        if trace.sha != options["sha"]:
            raise InputError(f"the neighbour's recording {trace.path} is another than when the run began")
        return cls(trace, options["start_s"])

    def to_json(self) -> dict[str, Any]:
        """Return it as a run's options keep it."""
        return {
            "path": str(self.trace.path.resolve()),
            "sha": self.trace.sha,
            "start_s": self.start_s,
            "name": self.name,
        }

    @property
    def name(self) -> str:
        """What it is called: its recording's name, or its workload where ztune named the recording."""
        info = self.trace.manifest.workload
        made = info is not None and self.trace.name.startswith((f"{info.name}-", "job-", "prior-"))
        return info.name if info is not None and made else self.trace.name

    def check(self, first: Trace) -> None:
        """Raise InputError where the two don't run at one time, or it has no file with a role."""
        if self.start_s >= first.duration_s:
            raise InputError(
                f"--with: {self.name} would begin {self.start_s:g} s after {first.name}, which lasts "
                f"{first.duration_s:.1f} s; write a smaller @START"
            )
        if self.trace.manifest.sample is not None:
            raise InputError(
                f"--with: {self.trace.path} was recorded by sample, and two recordings are replayed whole; "
                "record it without --sample"
            )
        if not any(file.role is not None for file in self.trace.manifest.files):
            raise InputError(
                f"--with: no file in {self.trace.path} has a role, so there is nothing to replay; `ztune "
                f"trace roles {shlex.quote(str(self.trace.path))}` proposes some"
            )

    def overlap_s(self, first: Trace) -> float:
        """Return for how many seconds of ``first`` both run."""
        return min(first.duration_s - self.start_s, self.trace.duration_s)

    def warnings(self, first: Trace) -> list[str]:
        """Return a sentence where one of the two is alone for half of the recorded time or more."""
        both = self.overlap_s(first)
        if both >= first.duration_s / 2:
            return []
        text = f"The neighbour {self.name} runs for {both:.1f} s of the {first.duration_s:.1f} s recorded"
        return [f"{text}: averages over all of these show that much less of what either loses."]


def parse(text: str) -> tuple[str, float]:
    """Return trace and start, in seconds, of ``TRACE[@START]``. Raises InputError."""
    path, at, start = text.rpartition("@")
    if not at or Path(text).exists():  # a folder's name may have an @
        return text, 0.0
    try:
        seconds = float(start.removesuffix("s"))
        if not 0 <= seconds < float("inf"):
            raise ValueError
    except ValueError:
        raise InputError(
            f'--with: "{start}" is not when {path} begins; write TRACE@SECONDS, such as {path}@10'
        ) from None
    return path, seconds


def joined(first: Trace, one: Inputs, neighbour: Neighbour, other: Inputs, *, alone: bool) -> Inputs:
    """Return what the engine reads for both recordings at once, or for the neighbour ``alone``.

    ``one`` and ``other`` are the inputs of either. What the neighbour does after the end of ``first`` is left
    out. Made once and kept like other exports. Raises InputError if there is no room.
    """
    key = [first.sha, neighbour.trace.sha, repr(neighbour.start_s), str(alone)]
    sha = hashlib.sha256(" ".join(key).encode()).hexdigest()
    folder = export_folder(sha)
    ops = folder / "ops.bin"
    with shared_files.locked(folder / "lock"):
        if not ops.is_file():
            from ztune.trace.ops import join_ops  # here, as it takes NumPy

            start = int(neighbour.start_s * 1e9)
            join_ops(None if alone else one.ops, other.ops, ops, start, first.manifest.duration_ns)
        os.utime(folder)
    files = () if alone else one.files
    more = tuple(replace(file, id=file.id + len(files), neighbour=True) for file in other.files)
    return Inputs(
        ops,
        files + more,
        {**({} if alone else one.content), **{CONTENT + role: path for role, path in other.content.items()}},
        other.warnings if alone else (*one.warnings, *other.warnings),
        commits_of(neighbour.trace),
    )
