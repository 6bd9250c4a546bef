"""What the store hands out: frozen records."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ztune.errors import InputError
from ztune.study import Layout, Objective, Study

BOTH, NEIGHBOUR = "both", "neighbour"
"""Conditions of trials: the run's job and another at one time; the other alone."""
HALF_ARC, TWICE_ARC = "half the ARC", "twice the ARC"
"""Conditions of trials: with an ARC of another size than the layout's."""
PART = "part "
"""How conditions of trials begin that replayed another sample than the run's: which, from 1 on."""


def damaged(kind: str, name: object, error: Exception) -> InputError:
    """Return the error of a row of the table ``kind`` that no ztune has written so."""
    why = str(error).partition("\n")[0]
    return InputError(
        f"{kind} {name} of the results database is damaged: {why}; "
        "set ZTUNE_HOME, or ZTUNE_STORE, for another database"
    )


@dataclass(frozen=True)
class SeriesRef:
    """A time series of a trial: a Parquet file beside the database."""

    probe: str
    file: str  # relative to the state directory
    rows: int
    columns: list[str]


@dataclass(frozen=True)
class Run:
    """One call of ``ztune screen``, ``ztune tune`` or ``ztune run``. See docs/results.md for each field."""

    id: str
    kind: str  # "screen", "tune" or "run"
    name: str
    created: str  # UTC, ISO 8601
    status: str  # "running", "done", "interrupted" or "failed"
    pid: int | None
    study: dict[str, Any]
    trace_path: str  # empty without a trace
    trace_sha: str
    environment: dict[str, Any]
    versions: dict[str, str]
    seed: int
    objective: Objective
    command: list[str]
    options: dict[str, Any]
    warnings: list[str]
    target: dict[str, Any] = field(default_factory=dict)  # where a "run" runs; empty for a replay
    job: dict[str, Any] = field(default_factory=dict)  # what a "run" runs: workload, parameters, version
    source_run: str | None = (
        None  # the screening run that its layouts come from; of replays: with another OpenZFS
    )
    outcome: dict[str, Any] = field(default_factory=dict)  # how the last block left it: see ztune.runs
    made_by: str = ""  # user@host; empty: not known, by an older ztune
    works_on: str = ""  # the host on which ``pid`` is, or was
    origin: str = ""  # the id of the store that it was made in

    @property
    def measured(self) -> bool:
        """Whether its trials ran the real database, so that nothing in it is modelled."""
        return self.kind == "run"

    @property
    def where(self) -> str:
        """Where its trials ran, for people: the place, or the file of hosts with their names."""
        hosts = ", ".join(str(host["name"]) for host in self.target.get("hosts", ()))
        name = str(self.target.get("name", ""))
        return f"{name} ({hosts})" if hosts else name

    def recording_of(self, trial: Trial) -> tuple[str, str]:
        """Return path and sha of the recording that ``trial`` replayed; empty without one."""
        return trial.trace_path or self.trace_path, trial.trace_sha or self.trace_sha

    @cached_property
    def resolved_study(self) -> Study:
        """The study as a model again."""
        return Study.model_validate(self.study)


@dataclass(frozen=True)
class Trial:
    """One layout on one target. See docs/results.md for each field."""

    id: int
    run_id: str
    number: int  # 1, 2, 3 … in its run
    round: int  # 1: from the study; 2 and on: added around the best layouts
    layout_name: str
    layout_hash: str
    layout: Layout
    target: str
    status: str  # "pending", "running", "ok" or "failed"
    error: str | None
    spec_json: str | None  # of a recording of many files much text, and seldom asked for
    result: dict[str, Any] | None
    engine_version: str | None
    openzfs_version: str | None
    started: str | None
    wall_s: float | None
    is_baseline: bool
    block: int = 0  # which repetition, from 1; 0: not repeated
    twin: int = 0  # 1: the second of two equal layouts, in an A/A study
    attempts: list[dict[str, Any]] = field(default_factory=list)  # earlier ones, that were cut or failed
    series: tuple[SeriesRef, ...] = ()
    trace_path: str = ""  # where layouts have recordings of their own; else empty: the run's
    trace_sha: str = ""

    @property
    def spec(self) -> dict[str, Any] | None:
        """What the engine or the host was told to do; None before it was. Raises InputError."""
        try:
            return None if self.spec_json is None else json.loads(self.spec_json)
        except (ValueError, RecursionError) as error:
            raise damaged("trial", self.id, error) from None

    @property
    def condition(self) -> str:
        """What was different from the other trials of the run, beside the layout; "" where nothing was.

        ``target`` has it behind a comma: "replay, both". Such a trial stands in no ranking.
        """
        return self.target.partition(", ")[2]

    @property
    def host(self) -> str:
        """Where it ran or is to run: the run's place, or the one of its hosts."""
        return self.target.partition(", ")[0]

    @property
    def arm(self) -> str:
        """What it repeats: the layout's hash, apart for the twin of an A/A study."""
        return self.layout_hash if not self.twin else f"{self.layout_hash}+{self.twin}"

    @property
    def ok(self) -> bool:
        """Whether the trial has a measure."""
        return self.status == "ok"

    @property
    def left(self) -> list[str]:
        """What it made and could not remove, a sentence each."""
        return list((self.result or {}).get("left", []))

    @property
    def measure(self) -> dict[str, Any]:
        """The engine's measure; empty for a trial without one."""
        measure = (self.result or {}).get("measure", {})
        assert isinstance(measure, dict)
        return measure

    @property
    def warnings(self) -> list[str]:
        """What the engine warned of."""
        return list((self.result or {}).get("warnings", []))
