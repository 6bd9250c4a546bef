"""What a crash test found: figures, sentences, JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ztune.analysis.stats import upper_bound
from ztune.crash.plan import Moment
from ztune.study import DurabilityClass
from ztune.units import counted

RULE_OF_THREE = (
    "rule of three: J. A. Hanley, A. Lippman-Hand, If nothing goes wrong, is everything all right?, "
    "JAMA 249 (1983) 1743"
)
_NAMED = 3
_SHOWN = 120
"""Characters of a problem's beginning and end that a sentence holds."""


@dataclass(slots=True)
class Cut:
    """One cut and what was found after it."""

    number: int
    moment: Moment
    cache: str
    after_s: float
    """Since the clients, the checkpoint or the recovery began."""
    acknowledged: int = 0
    """Commits since the check before."""
    lost: int = 0
    oldest_s: float | None = None
    unanswered: int = 0
    replayed: int | None = None
    """Records of the intent log that the next mount replayed."""
    recovery_s: float | None = None
    """What the database's next start took."""
    problems: tuple[str, ...] = ()
    checked: bool = False
    """Not where the next cut came during the recovery: then that one's check stands for both."""

    @property
    def klass(self) -> DurabilityClass:
        """What this cut alone shows."""
        if self.problems:
            return DurabilityClass.CORRUPT
        return DurabilityClass.LAST_SECONDS if self.lost else DurabilityClass.NOTHING

    def sentence(self) -> str:
        """Say what was found."""
        what = f"cache {self.cache}, {self.moment}, after {self.after_s:.2f} s: "
        if not self.checked:
            return what + "the next cut's check stands for it"
        what += f"{self.acknowledged:,} commits acknowledged, "
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            return what + f"CORRUPT: {_short(self.problems[0])}{more}"
        if self.lost:
            return what + f"{self.lost:,} LOST, the oldest {self.oldest_s or 0:.2f} s before the cut"
        return what + f"none lost, {self.replayed or 0:,} log records replayed"


@dataclass(slots=True)
class Result:
    """What a test found, and with what."""

    workload: str
    version: str
    """Of the database."""
    openzfs: str
    """Such as ``OpenZFS 2.3.2``."""
    study: str
    layout: str
    hash: str
    settings: dict[str, str]
    """The layout's."""
    database: dict[str, str]
    """The database's."""
    promised: DurabilityClass
    reasons: list[str]
    options: dict[str, Any]
    """Cuts asked for, seed, clients, window, disks …: what it takes to do it again."""
    checks: tuple[str, ...]
    cuts: list[Cut] = field(default_factory=list)
    seconds: float = 0.0
    kept: str | None = None

    @property
    def found(self) -> DurabilityClass:
        """The worst that was found."""
        return max((c.klass for c in self.cuts), key=lambda c: c.rank, default=DurabilityClass.NOTHING)

    @property
    def broken(self) -> bool:
        """Whether it is worse than what the layout promises."""
        return self.found.rank > self.promised.rank

    def count(self, klass: DurabilityClass) -> int:
        """Return the number of cuts that were followed by ``klass``."""
        return sum(cut.klass is klass for cut in self.cuts)

    def figures(self) -> dict[str, Any]:
        """Return the sums."""
        lossy = [cut for cut in self.cuts if cut.lost]
        bad = len(self.cuts) - self.count(DurabilityClass.NOTHING)
        replayed = [cut.replayed for cut in self.cuts if cut.replayed is not None]
        recovery = [cut.recovery_s for cut in self.cuts if cut.recovery_s is not None]
        return {
            "cuts": len(self.cuts),
            "cuts_by_moment": dict(Counter(str(cut.moment) for cut in self.cuts)),
            "cuts_by_cache": dict(Counter(cut.cache for cut in self.cuts)),
            "commits_acknowledged": sum(cut.acknowledged for cut in self.cuts),
            "commits_lost": sum(cut.lost for cut in self.cuts),
            "commits_unanswered": sum(cut.unanswered for cut in self.cuts),
            "cuts_with_loss": len(lossy),
            "cuts_with_corruption": self.count(DurabilityClass.CORRUPT),
            "most_lost_at_once": max((cut.lost for cut in lossy), default=0),
            "oldest_loss_s": max((cut.oldest_s or 0.0 for cut in lossy), default=None),
            "replayed_median": statistics.median(replayed) if replayed else None,
            "replayed_most": max(replayed, default=None),
            "recovery_median_s": statistics.median(recovery) if recovery else None,
            "upper_bound_per_cut": upper_bound(len(self.cuts)) if self.cuts and not bad else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Return all as JSON values."""
        out = asdict(self)
        out["promised"] = str(self.promised)
        out["cuts"] = [{**asdict(cut), "class": str(cut.klass)} for cut in self.cuts]
        return {**out, "found": str(self.found), "broken": self.broken, "figures": self.figures()}

    def lines(self) -> list[str]:
        """Return the summary for people."""
        f = self.figures()
        lines = [
            f"{self.workload} on {self.study}: {self.layout} ({self.version}, {self.openzfs})",
            f"  {f['cuts']} cuts: {_each(f['cuts_by_moment'])}; cache {_each(f['cuts_by_cache'])}",
            (
                f"  {f['commits_acknowledged']:,} commits acknowledged, {f['commits_lost']:,} lost; "
                f"{f['commits_unanswered']:,} more are there that no client was told of"
            ),
            f"  checked after each cut: every commit, every balance, {', '.join(self.checks)}",
        ]
        if f["replayed_median"] is not None:
            lines.append(
                f"  log records replayed per cut: median {f['replayed_median']:,.0f}, most "
                f"{f['replayed_most']:,}; the database's recovery: median {f['recovery_median_s'] or 0:.2f} s"
            )
        lines.append(f"  found     {self.found}: {self.finding()}")
        lines.append(f"  promised  {self.promised}" + (f": {self.reasons[0]}" if self.reasons else ""))
        if f["upper_bound_per_cut"] is not None:
            lines.append(
                f"  bound     0 of {f['cuts']} cuts: at most {f['upper_bound_per_cut']:.1%} per cut, with "
                f"95 % confidence ({RULE_OF_THREE})"
            )
        if self.broken:
            lines.append("  The layout does not keep what its durability class promises.")
        elif self.found.rank < self.promised.rank:
            lines.append("  The layout may lose more than these cuts have shown.")
        if self.kept is not None:
            lines.append(f"  kept      {self.kept}")
        return lines

    def finding(self) -> str:
        """Say the class that was found with its figures."""
        f = self.figures()
        if self.found is DurabilityClass.CORRUPT:
            first = [_short(cut.problems[0]) for cut in self.cuts if cut.problems][:_NAMED]
            return f"damaged after {f['cuts_with_corruption']} of {f['cuts']} cuts: {'; '.join(first)}"
        if self.found is DurabilityClass.LAST_SECONDS:
            return (
                f"lost the last {f['oldest_loss_s']:.2g} s, "
                f"up to {counted(f['most_lost_at_once'], 'commit')}, in "
                f"{f['cuts_with_loss']} of {f['cuts']} cuts; consistent after each"
            )
        return "nothing acknowledged was lost"


def _short(problem: str) -> str:
    # What it is stands at the beginning; of a server's log that follows, why it is stands at the end.
    return problem if len(problem) <= 2 * _SHOWN else f"{problem[:_SHOWN]} … {problem[-_SHOWN:]}"


def _each(counts: dict[str, int]) -> str:
    names: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in names)
