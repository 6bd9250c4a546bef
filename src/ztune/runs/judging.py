"""After each block: where the comparison stands, which screened layouts join, and who runs again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ztune.analysis import verdict
from ztune.analysis.resolve import Decision
from ztune.runs import stopping
from ztune.runs.follow import KEY, Followed, Following, ScreenedPrior
from ztune.runs.open_run import OpenRun
from ztune.store.records import Run, Trial
from ztune.study import Layout

Undecided = Callable[[Run, Sequence[Trial]], Collection[str]]
"""The question that blocks are repeated for: returns the arms that must run again beside the baseline, none
once it is answered."""


class Judging:
    """Judges a run. ``undecided``: the question to answer instead of which layout is the best."""

    def __init__(self, going: OpenRun, undecided: Undecided | None) -> None:
        self._going, self._undecided = going, undecided
        prior, study = ScreenedPrior.kept(going.options), going.run.resolved_study
        many = len(going.hosts)
        self._following = (
            None if prior is None else Following(study, prior, going.options, going.run.seed, many)
        )
        self._followed: Followed | None = None
        self._news: list[str] = []

    @property
    def may_join(self) -> list[Layout]:
        """The screened layouts, of which some join; none without a screening."""
        return [] if self._following is None else list(self._following.layouts.values())

    def wanted(self, done: int) -> tuple[str, list[Layout]]:
        """Return why no further block is dealt, or "" and the layouts of the next. ``done``: blocks that
        have ended.
        """
        going = self._going
        least, most = going.options.blocks
        everything = going.trials()
        if not any(t.ok for t in everything):
            return "failed", []
        rounds = done // len(going.hosts)
        decision = self.judge("running")
        asked = self._asked(everything, decision)
        new = [layout.hash for layout in self.joining()]
        self.tell()
        if rounds >= least and asked is not None and not asked and not new and not going.options.aa:
            return "settled", []
        if rounds >= most:
            return "blocks", []
        usual = [t for t in everything if not t.condition]
        arms = list(dict.fromkeys([*(t.arm for t in usual), *new]))
        base = next((t.arm for t in everything if t.is_baseline), arms[0])
        wanted = stopping.next_arms(arms, base, asked, usual, going.options, rounds, new)
        if len(wanted) < 2:
            return "failed", []
        return "", [layout for layout in going.layouts if layout.hash in wanted]

    def _asked(self, trials: Sequence[Trial], decision: Decision | None) -> set[str] | None:
        """Return the arms that must run again beside the baseline; None while nothing can be compared."""
        if self._undecided is not None:
            return set(self._undecided(self._going.run, trials))
        if decision is None:
            return None
        return {decision.leader, *decision.open} if decision.open else set()

    def joining(self) -> list[Layout]:
        """Return the screened layouts that join the next block; none without a screening."""
        if self._following is None:
            return []
        going = self._going
        now = self._followed or self._following.judge(going.run, going.trials(), None)
        found = [self._following.layouts[name] for name in now.next]
        for layout in found:
            if layout not in going.layouts:
                going.layouts.append(layout)
                self._news.append(f"{layout.name} joins: {self._following.said(layout)}")
        return found

    def tell(self) -> None:
        """Say which layouts joined since it was said last."""
        for text in self._news:
            self._going.say(text)
        self._news.clear()

    def judge(self, reason: str) -> Decision | None:
        """Store where the comparison stands; return the decision, None while there is none."""
        going = self._going
        everything = going.trials()
        found = stopping.judge(going.run, everything, going.options)
        if found is None:
            return None
        names = {t.arm: t.layout_name + (" (again)" if t.twin else "") for t in everything}
        outcome = verdict.outcome(*found, reason, names)
        if self._following is not None:
            self._followed = self._following.judge(going.run, everything, found[1])
            outcome[KEY] = self._followed.to_json()
        going.note(outcome=outcome)
        going.observer.judged(everything, outcome)
        return found[1]
