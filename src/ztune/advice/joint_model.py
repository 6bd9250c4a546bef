"""What a recommendation for several jobs says, as data. ``ztune recommend RUN RUN --json`` prints it."""

from __future__ import annotations

from typing import Any, Literal

from ztune.advice.model import Hazard, LayoutDurability, Level, RecommendationPart
from ztune.analysis.metrics import Basis

RestsOn = Literal["tried", "combined"]


class JobRatio(RecommendationPart):
    """A metric of one job under a layout / under another. ``low``, ``high``: interval or range, if any."""

    ratio: float | None  # None: from nothing to something
    low: float | None = None
    high: float | None = None


class JobAdvice(RecommendationPart):
    """One job: its run, its weight, and what the joint layout is worth to it."""

    run: str
    name: str
    workload: str | None
    share: float  # of the whole, 0 to 1
    metric: str
    label: str
    minimise: list[str]
    alone: str  # the layout that the run alone recommends
    alone_ratio: JobRatio  # to the run's base layout
    joint_ratio: JobRatio  # the joint layout to the run's base layout
    costs: float | None  # the joint layout / the one that the run alone recommends
    evidence: RestsOn
    trials: list[int]  # of the joint layout in this run; empty where combined
    nearest: list[str]  # where combined: the layouts of the run that it starts from
    changed: list[str]  # and the settings that differ from them
    confidence: Level  # of the run's own recommendation


class RoleRow(RecommendationPart):
    """One dataset of the joint layout: a row of the last table."""

    roles: list[str]
    dataset: str
    properties: dict[str, str]
    runs: list[str]  # that say something of these roles
    evidence: RestsOn  # tried: each of those runs had a layout with just these properties of the dataset


class Choice(RecommendationPart):
    """One value of a setting that jobs disagree on, and what it does to each against the value chosen."""

    value: str
    chosen: bool
    ratios: dict[str, JobRatio]  # run → ratio
    wanted_by: list[str]  # the runs that do best with it


class Conflict(RecommendationPart):
    """A setting of which two jobs want different values, beyond the tolerance."""

    setting: str
    choices: list[Choice]


class Untried(RecommendationPart):
    """A value that would help one job, and that other runs did not have: so it could not be chosen."""

    setting: str
    value: str
    run: str
    ratio: float
    lacking: list[str]  # runs


class JointRecommendation(RecommendationPart):
    """One layout for all jobs of a database."""

    version: int = 1
    basis: Basis
    openzfs: str
    minimise: list[str]
    within: float
    evidence: RestsOn
    verdict: str
    ratio: float  # the weighted mean of the jobs' ratios
    layout: dict[str, Any]  # fully resolved, as Layout.to_json()
    layout_hash: str
    changes: dict[str, str]  # against the joint base layout
    now: dict[str, str]  # the same settings in the joint base layout
    jobs: list[JobAdvice]
    roles: list[RoleRow]
    pool: dict[str, str]  # settings of pool, memory, tunables and database that runs varied
    conflicts: list[Conflict]
    untried: list[Untried]
    durability: LayoutDurability
    hazards: list[Hazard]
    notes: list[str]
    commands: list[str]
