"""One row of a results file: a trial, where it comes from, and what came of it.

The columns of the file are the fields of ``ResultRow``, and docs/results-format.md has its tables from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from ztune.analysis.metrics import Basis
from ztune.onhost.words import DurabilityClass

Scalar = str | int | float | bool

BASES: tuple[str, ...] = get_args(Basis)
UNITS = {
    "s": "", "ms": "", "bytes": "", "count": "", "ratio": "a plain number", "share": "1 is all",
    "rate": "per second",
}  # fmt: skip
"""The units of metrics, with a word on those that need one."""
PLACES = ("replay", "mount", "lab", "local", "ssh")
STATUSES = ("ok", "failed")
WITHHELD = "withheld"
"""What stands for a value that may be private."""


def _says(text: str, **more: Any) -> Mapping[str, Any]:
    return {"description": text, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMetric:
    """One number of a trial."""

    name: str = field(metadata=_says("The metric; the table below has them."))
    value: float = field(metadata=_says("The number, in `unit`."))
    unit: str = field(
        metadata=_says(
            ", ".join(f"`{unit}`" + (f" ({says})" if says else "") for unit, says in UNITS.items()) + "."
        )
    )
    basis: str = field(
        metadata=_says(
            "`modelled`: of a replay. `measured`: of a trial. "
            "`emulated`: seconds of a lab without hardware virtualisation."
        )
    )
    meaning: str = field(metadata=_says("What it is, in words: of the whole job, or of one operation of it."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One trial. ``of="run"``: all trials of a run have the same."""

    origin: str = field(metadata=_says("The random id of the store that ran it, 16 hex digits."))
    run: str = field(metadata=_says("The run's id in that store."))
    trial: int = field(metadata=_says("The trial's number in the run. Origin, run and trial are the key."))
    started: str = field(metadata=_says("When the trial began, UTC, ISO 8601."))
    status: str = field(metadata=_says("`ok`, or `failed`: there are no metrics then."))
    run_basis: str = field(
        metadata=_says(
            "What its numbers rest on: `modelled` (a replay), `measured`, or `emulated` (a lab without "
            "hardware virtualisation: counts are real, seconds are not).",
            of="run",
        )
    )
    place: str = field(metadata=_says("`replay`, `mount`, `lab`, `local` or `ssh`.", of="run"))
    database: str = field(
        metadata=_says(
            "The database, by ztune's name for it; empty: not known, or none of ztune's.", of="run"
        )
    )
    database_version: str = field(
        metadata=_says("Its version, the number alone; empty: not known.", of="run")
    )
    workload: str = field(metadata=_says("The workload of ztune's; empty: none, or another's.", of="run"))
    parameters: dict[str, Scalar] = field(
        metadata=_says(
            "Its parameters, as JSON; what a layout changes of them is in `settings`, as `workload.NAME`. "
            f"Text of the user's is `{WITHHELD}`.",
            of="run",
        )
    )
    disks: str = field(
        metadata=_says(
            "The disk profiles of the pools in use, by pool; `own-hdd` and `own-flash` are profiles of the "
            "user's. `instant`: no disk is waited for. Empty: real disks."
        )
    )
    device: str = field(
        metadata=_says("`hdd`, `flash` or both, of the data disks; empty where `disks` says no profile.")
    )
    arc: int | None = field(metadata=_says("The most memory that the ARC may use, bytes."))
    openzfs: str = field(metadata=_says("The version of OpenZFS, the number alone.", of="run"))
    kernel: str = field(
        metadata=_says("The system and the number of its kernel; in a run on several hosts, of its host.")
    )
    machine: str = field(metadata=_says("Architecture of the machine that it ran on."))
    cpu: str = field(metadata=_says("Model of its processors."))
    cpus: int | None = field(metadata=_says("How many of them."))
    memory: int | None = field(metadata=_says("Its memory, bytes."))
    ztune: str = field(metadata=_says("The version of ztune.", of="run"))
    engine: str = field(
        metadata=_says("The version of its engine or of its mount; empty: neither.", of="run")
    )
    seed: int | None = field(metadata=_says("The seed of everything random.", of="run"))
    layout: int = field(metadata=_says("Which layout of its run, from 1: trials of one layout share it."))
    block: int = field(metadata=_says("Which repetition, from 1; 0: not repeated."))
    twin: int = field(metadata=_says("1: the second of two equal layouts, in an A/A run."))
    baseline: bool = field(metadata=_says("Whether it is the layout that the others are changes of."))
    changes: str = field(metadata=_says("What the layout changes of the run's base layout, in words."))
    settings: dict[str, Scalar] = field(
        metadata=_says(
            "The whole layout as JSON: factor → value, as in a study. Pools are called `pool1`, `pool2` …"
        )
    )
    layout_hash: str = field(
        metadata=_says("12 hex digits: the same for the same `settings`, from whatever store.")
    )
    durability: str = field(
        metadata=_says(
            "What a power cut may lose: " + ", ".join(f"`{c.value}`" for c in DurabilityClass) + "."
        )
    )
    metrics: tuple[RowMetric, ...] = field(metadata=_says("What came of it; its keys are below."))

    @property
    def key(self) -> tuple[str, str, int]:
        """What a row is told from others by."""
        return self.origin, self.run, self.trial

    def named(self, metric: str) -> RowMetric | None:
        """Return the metric of that name, None without it."""
        return next((m for m in self.metrics if m.name == metric), None)


OF_RUN = tuple(f.name for f in fields(ResultRow) if f.metadata.get("of") == "run")
"""The columns that all trials of a run have in common."""
