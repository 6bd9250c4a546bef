"""What the store hands out: frozen records with their JSON parsed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ztune.study import Layout, Objective, Study


@dataclass(frozen=True)
class Run:
    """One call of ``ztune screen`` or ``ztune tune``. See docs/results.md for each field."""

    id: str
    kind: str  # "screen" or "tune"
    name: str
    created: str  # UTC, ISO 8601
    status: str  # "running", "done", "interrupted" or "failed"
    pid: int | None
    pid_started: float | None
    study: dict[str, Any]
    trace_path: str
    trace_sha: str
    environment: dict[str, Any]
    versions: dict[str, str]
    seed: int
    objective: Objective
    command: list[str]
    options: dict[str, Any]
    warnings: list[str]

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
    spec: dict[str, Any] | None
    result: dict[str, Any] | None
    engine_version: str | None
    openzfs_version: str | None
    started: str | None
    wall_s: float | None
    is_baseline: bool

    @property
    def ok(self) -> bool:
        """Whether the trial has a measure."""
        return self.status == "ok"

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
