"""What a recommendation says, as data. ``ztune recommend --json`` prints it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ztune.advice.rules import Severity
from ztune.analysis import units
from ztune.analysis.elsewhere import Elsewhere
from ztune.analysis.metrics import Basis
from ztune.analysis.neighbours import JobBeside
from ztune.units import counted

Verdict = Literal[
    "better",  # going back to the default makes something worse, nothing better
    "trade-off",  # it makes something worse and something else better
    "worse",  # it makes nothing worse and something better; kept for the objective or the class
    "too small to matter",  # all differences are within the objective's tolerance
    "default",  # the value is the default
    "not screened alone",  # no two screened layouts differ in this property alone
    "not measured alone",  # the same of layouts that were run
]
Level = Literal["good", "fair", "limited", "weak"]


class RecommendationPart(BaseModel):
    """What all parts of a recommendation have in common."""

    # Built with the first recommendation, in one: each part by itself takes as long again, in every command.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Side(RecommendationPart):
    """One metric under the value here and under the other value. ``ratio`` is other / here."""

    metric: str
    label: str
    unit: str
    here: float
    other: float
    ratio: float | None
    matters: bool  # beyond the tolerance
    low: float | None = None  # interval of the ratio, where it was measured in more than one block
    high: float | None = None
    blocks: int = 1  # how many blocks it was measured in; 1 for a replay


FigureName = Literal["disk work", "waiting", "throughput", "disk I/Os", "space", "bytes written", "CPU"]


class Headline(RecommendationPart):
    """One figure of the first screen: under the base layout (``side.here``) and the recommended one.

    ``name``: "disk work" is how long the busiest disk was busy; "waiting" how long a thread was held up, or
    the latency that it saw; "throughput" operations per second that were measured. The three are never
    mixed. ``label``: of what exactly; ``side.metric`` is the metric that it comes from.
    """

    name: FigureName
    label: str
    side: Side


class SettingChange(RecommendationPart):
    """A setting of the recommended layout that is not as in the base layout: a factor, and both values."""

    setting: str
    now: str
    value: str


class Change(RecommendationPart):
    """What changes when one property goes to another value and nothing else does."""

    other: str  # the other value; of a default without a pair those that stood beside other changes
    verdict: Verdict
    sides: list[Side] = []
    here_layout: str = ""
    other_layout: str = ""
    trials: list[int] = []  # here, other: numbers of the run's trials
    elsewhere: bool = False  # the pair is not beside the recommended layout but in another context
    pairs: int = 0  # how many pairs differ in this property between these two values
    low: float | None = None  # range of the first metric's ratio over those pairs
    high: float | None = None
    sentence: str
    basis: Basis = "modelled"


class PropertyAdvice(RecommendationPart):
    """One property of one dataset."""

    name: str
    value: str
    default: str
    is_default: bool
    reason: str  # the mechanism
    source: str
    change: Change
    modelled: Change | None = None  # what screening said of it, beside a measured ``change``


class RoleAdvice(RecommendationPart):
    """What to set for one role. Roles on one dataset share its properties."""

    role: str
    dataset: str
    with_roles: list[str]  # the other roles on that dataset
    properties: list[PropertyAdvice]
    other_properties: dict[str, str]  # set, but not modelled by the replay
    allocated: float | None  # bytes, of the dataset
    files: float | None = None  # bytes of the files, by their sizes
    logical: float | None  # of all records, as ZFS counts: padding of last records and metadata included
    compression_ratio: float | None  # logical over compressed, as ZFS says it
    written: float | None  # physical bytes written for the dataset while measuring


class PoolAdvice(RecommendationPart):
    """Advice on a pool or on the machine: log device, where roles live, sector size, ARC, tunables."""

    subject: str
    setting: str  # the factor, e.g. "slog"
    value: str
    reason: str
    change: Change | None
    modelled: Change | None = None  # as for a property


class Cost(RecommendationPart):
    """What the layout costs. ``baseline`` is the same number under the study's base layout."""

    subject: Literal["space", "wear", "processor", "memory"]
    label: str
    value: float
    unit: str
    baseline: float | None
    sentence: str


class Hazard(RecommendationPart):
    """A rule of hazards.toml that applies to the recommended layout."""

    id: str
    severity: Severity
    about: str
    sentence: str
    source: str


class Confidence(RecommendationPart):
    """How far to trust the numbers. Only what was measured and resolved is "good"; replays at best "fair"."""

    level: Level
    sentence: str
    reasons: list[str]
    notes: int = 0  # so many of the last reasons do not decide the level


class LayoutDurability(RecommendationPart):
    """What a power cut may lose."""

    klass: str
    allowed: str  # the worst class that was let into the ranking
    sentence: str
    reasons: list[str]


class RecordedPace(RecommendationPart):
    """How fast the recorded job went, and whether its own rate or its clients limited it."""

    per_second: float
    unit: str  # "transaction"
    offered: bool  # it asked for this rate: no layout can reach more of it
    waits: bool = False  # it tells whose commits in its logs threads had waited for


class RecordedFilesLeftOut(RecommendationPart):
    """How much of what was recorded is of files without a role, and so in no replay: shares of all."""

    bytes: float
    syncs: float
    files: list[str]  # kinds of them, as globs
    most: bool  # more than half: what was replayed is not the recorded job
    sentence: str


class Row(RecommendationPart):
    """One layout in the ranking."""

    rank: int | None  # None: set apart, because its durability class is too weak
    layout: str
    hash: str
    trials: list[int]
    baseline: bool
    recommended: bool
    durability: str
    front: bool  # no other ranked layout is better in time, space and bytes written at once
    values: dict[str, float]  # metric → median
    few_calls: dict[str, int] = {}  # percentiles of too few calls to be printed: metric → how many
    ranges: dict[str, tuple[float, float]]  # metric → interval, where the layout was replayed more than once
    replays: int
    differs: dict[str, str]  # settings that are not the base layout's
    why: str
    note: str = ""  # why it stands no further ahead although it has less of a metric
    passed_over: str = ""  # of the first row, where another is recommended: why, in a few words
    to_buy: dict[str, str] = {}  # hardware that it takes and that is not there: factor → value

    def text(self, metric: str, unit: str) -> str:
        """Return the median of a metric for people; "–" where it is not known, or of too few calls."""
        known = metric in self.values and metric not in self.few_calls
        return units.show(self.values[metric], unit) if known else "–"


class Purchase(RecommendationPart):
    """What hardware would change that neither the base layout has nor the user named with ``--have``.

    ``layout``: the one that shows it, against ``beside``, which is the same without the hardware: the
    recommended layout, or, where that was not tried with it, the nearest one that was. Without any such pair
    ``layout`` is the best that has it, against the recommended layout; ``differs`` are then its other
    settings.
    """

    hardware: dict[str, str]  # factor → value
    layout: str
    hash: str
    trials: list[int]
    beside: str
    differs: dict[str, str]
    headlines: list[Headline]  # ``side.here``: under ``beside``
    sentence: str


class FailedRow(RecommendationPart):
    """One layout without a result."""

    layout: str
    hash: str
    trials: list[int]
    reason: str


class EffectRow(RecommendationPart):
    """What one value of a setting does against the base layout's, over all pairs that differ in it alone."""

    factor: str
    before: str
    after: str
    pairs: int
    ratios: dict[str, tuple[float, float, float]]  # metric → median, least, greatest ratio
    ends: dict[str, tuple[str, str]]  # metric → the layouts where the least and the greatest were seen
    depends: bool  # the range of the modelled time's ratio is wider than the tolerance
    durability_changes: bool


class StudiedSubject(RecommendationPart):
    """What was studied, and with what."""

    run: str
    kind: str
    name: str
    created: str
    study: str
    title: str  # what people call the job
    workload: str | None
    database: str = ""  # as ztune calls it; empty: not known
    trace: str
    trace_s: float | None
    engine: str
    openzfs: str
    seed: int
    environment: dict[str, Any]
    versions: dict[str, str]
    command: list[str]
    profiles: dict[str, str]  # name → description, of the recommended layout's devices
    base: str = ""  # what the base layout is, as words; empty: by an older ztune
    place: str = ""  # where trials ran, such as "lab", "mount, modelled disks"; empty: replayed
    made_by: str = ""  # user@host that made the run; empty: not known


class Recommendation(RecommendationPart):
    """The answer to a study: one layout that was screened, and why each part of it is what it is."""

    version: int = 1
    basis: Basis = (
        "modelled"  # of ``against_baseline``, ``ranking``, ``costs`` and each change without its own
    )
    subject: StudiedSubject
    minimise: list[str]
    within: float
    # What an operation of the job is called where totals of replays are divided by them: jobs differ.
    per_operation: str = ""
    # Whether replays of different jobs are compared whose operations are not all known.
    totals_of_jobs: bool = False
    layout_name: str
    layout: dict[str, Any]  # fully resolved, as Layout.to_json()
    layout_hash: str
    trials: list[int]
    first: str  # the layout in the first place; differs from layout_name if a simpler one is as good
    verdict: str
    changes: list[SettingChange] = []  # all that is to be set; empty where the base layout is to be kept
    headlines: list[Headline] = []  # the first screen's; empty where the base layout has no result
    meaning: str = ""  # what the headlines say of speed, and what not
    against_baseline: list[Side]
    roles: list[RoleAdvice]
    pools: list[PoolAdvice]
    costs: list[Cost]
    durability: LayoutDurability
    weaker: str  # what a weaker durability class would gain, or empty
    crash_tests: dict[str, list[str]]  # durability class of each layout here → what crash tests of it found
    hazards: list[Hazard]
    warnings: list[str]  # of the trace, the run and the replays
    clear: list[str] = []  # of trials that don't resolve what decides: which other figures differ clearly
    searched: str = ""  # why the search stopped, and how likely it is that it left something better
    aged: list[str] = []  # whether the choice changes on pools of other ages, a sentence for each
    neighbour: list[str] = []  # whether the choice changes beside a second job on the pool
    beside: list[JobBeside] = []  # what each of the two loses to the other, by layout
    sampled: str = ""  # what part of the trace was replayed, and how far off that may be; "": all
    carries: str = ""  # with which other processors and sizes of the ARC the choice is as good
    elsewhere: list[Elsewhere] = []  # the figures of that
    outpaced: str = ""  # which layouts could not have kept the recorded pace, with figures
    left_out: RecordedFilesLeftOut | None = None  # None: little
    recorded: RecordedPace | None = None  # None: not known, or the layouts' jobs differ
    confidence: Confidence
    not_tested: list[str]
    ranking: list[Row]
    set_apart: list[Row]
    if_bought: list[Purchase] = []  # one for each piece of hardware that layouts of the run take
    to_buy: list[Row] = []  # these layouts: they are not ranked, nor recommended
    failed: list[FailedRow]
    effects: list[EffectRow]

    @property
    def no_answer(self) -> str:
        """Why the layout is no answer for the database that was recorded, as a sentence; "" where it is."""
        return self.left_out.sentence if self.left_out is not None and self.left_out.most else ""

    @property
    def first_roles(self) -> list[RoleAdvice]:
        """What is said of the first role of each dataset; its other roles share all of it."""
        return list({a.dataset: a for a in reversed(self.roles)}.values())[::-1]

    def of_one(self) -> str:
        """Return what times and bytes of a screening of different jobs are of, as a sentence; else ""."""
        if self.totals_of_jobs:
            return (
                "The layouts' jobs differ, and not all say how many operations they did: these are totals of "
                "different jobs. A job that did less looks better; compare only layouts of one job."
            )
        if not self.per_operation:
            return ""
        return (
            f"The layouts' jobs differ: modelled times, bytes and I/Os are of one {self.per_operation}, "
            "space is what the whole job left."
        )

    def evidence(self) -> str:
        """Return what the numbers rest on, to follow "Its numbers are" or "Evidence:"."""
        zfs = f"OpenZFS {self.subject.openzfs}".strip()
        trials = f"{counted(len(self.trials), 'trial')} of this layout"
        if self.basis == "measured":
            return f"measured: the real database on {zfs}, {trials}"
        if self.basis == "emulated":
            return (
                f"measured in an emulated lab: the real database on {zfs}, {trials}; its operations and "
                f"bytes count, its seconds are not those of any machine"
            )
        return (
            f"modelled: the recorded I/O replayed through {zfs}, times from device profiles; nothing was "
            f"measured on your disks"
        )
