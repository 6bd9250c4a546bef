"""Which host runs which block: whole blocks, each on one host."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from ztune.runs import plan
from ztune.runs.at_work import HostAtWork
from ztune.runs.judging import Judging
from ztune.runs.open_run import OpenRun
from ztune.runs.trial_specs import WHICH
from ztune.store.records import Trial
from ztune.study import Layout


class Dealing:
    """Deals the blocks of a run to its hosts. ``took``: how long each took, in s."""

    def __init__(self, going: OpenRun) -> None:
        self._going = going
        self._arms = list(going.layouts)  # of the blocks that are dealt next
        self._rounds = 1
        """How many blocks each host may have by turns; beyond, only one that would wait too long."""
        self._next_look = 0
        self._waiting: dict[int, str] = {}
        """Blocks that need another host, and why."""
        self.took: list[float] = []

    def first(self, layouts: Sequence[Layout]) -> None:
        """Give each host that is up its first block of ``layouts``."""
        self._arms = list(layouts)
        for host in self._going.hosts.idle():
            self._new_block(host)

    def _new_block(self, host: HostAtWork) -> None:
        host.block = 1 + self.dealt()
        host.began = time.monotonic()
        self._add_block(host.block, host.label)
        self._tell_round()

    def _add_block(self, number: int, host: str) -> None:
        """Store the trials of one block as pending, in their random order: the plan survives whatever
        happens.
        """
        going = self._going
        run = going.run
        base = run.resolved_study.layout.hash
        by_arm = {layout.hash: (layout, 0) for layout in self._arms}
        if going.options.aa:
            by_arm[f"{self._arms[0].hash}+1"] = (self._arms[0], 1)
        # With a neighbour each layout runs in each block alone, beside it, and without it.
        conditions = WHICH if run.job.get("beside") else ("",)
        everything = {f"{arm} {c}".strip(): (arm, c) for arm in by_arm for c in conditions}
        for key in plan.order(list(everything), number, run.seed):
            arm, condition = everything[key]
            layout, twin = by_arm[arm]
            target = ", ".join(filter(None, (host, condition)))
            baseline = layout.hash == base and not twin and not condition
            going.store.add_trial(
                run.id, layout, target=target, is_baseline=baseline, block=number, twin=twin
            )

    def _tell_round(self) -> None:
        everything, many = self._going.trials(), len(self._going.hosts)
        number = max((t.block for t in everything), default=0)
        waiting = sum(t.status == "pending" for t in everything)
        in_one = sum(t.block == number for t in everything)
        more = max(0, self._going.options.blocks[1] * many - number) * in_one
        self._going.observer.round(math.ceil(number / many), waiting, more)

    def take_up(self) -> None:
        """Go on with blocks that are in the store: each host with its own; the rest wait for one."""
        going = self._going
        unfinished = {t.block: t.host for t in going.trials() if t.status == "pending"}
        for host in going.hosts.idle():
            own = [block for block, label in unfinished.items() if label == host.label]
            if own:
                host.block, host.began = own[0], time.monotonic()
                del unfinished[own[0]]
        for block, label in unfinished.items():
            if going.hosts.rack is not None:
                self._waiting[block] = f"{label} was not there when the run went on"
        done, many = self._finished(), len(going.hosts)
        self._rounds = max(1, math.ceil(max((t.block for t in going.trials()), default=1) / many))
        open_ = any(host.block for host in going.hosts.all) or self._waiting
        self._next_look = (done // many + 1) * many if open_ else done
        self._tell_round()

    def dealt(self) -> int:
        """Return how many blocks there are."""
        return max((t.block for t in self._going.trials()), default=0)

    @property
    def most(self) -> int:
        """How many blocks there may be."""
        return self._going.options.blocks[1] * len(self._going.hosts)

    def _finished(self) -> int:
        """Return how many blocks have ended."""
        everything = self._going.trials()
        open_ = {t.block for t in everything if t.status in ("pending", "running")}
        return len({t.block for t in everything} - open_)

    def look(self, judging: Judging) -> str:
        """Where enough blocks have ended, ask whether the best is known; return why no further one is dealt,
        else "".
        """
        done = self._finished()
        if done < self._next_look:
            return ""
        reason, arms = judging.wanted(done)
        if not reason:
            many = len(self._going.hosts)
            self._arms, rounds = arms, done // many
            self._rounds, self._next_look = rounds + 1, (rounds + 1) * many
        return reason

    def next(self, host: HostAtWork, *, over: bool) -> Trial | None:
        """Return the next trial for ``host``; None: none for now. ``over``: no block begins any more."""
        everything = self._going.trials()
        pending = [t for t in everything if t.block == host.block and t.status == "pending"]
        if pending:
            return pending[0]
        if host.block:
            host.at = time.monotonic()
            host.took_s = host.at - host.began
            self.took.append(host.took_s)
            host.block = 0
        if over:
            return None
        if self._waiting:
            return self._take_over(host)
        dealt, many = self.dealt(), len(self._going.hosts)
        # Who would wait for the others longer than for a block of its own goes on.
        waits = time.monotonic() - host.at > host.took_s if host.at else True
        if dealt >= self.most or (dealt >= self._rounds * many and not waits):
            return None
        self._new_block(host)
        return self.next(host, over=False)

    def _take_over(self, host: HostAtWork) -> Trial | None:
        """Have ``host`` run a block that another one left: whole, unless it is its own."""
        going = self._going
        everything = going.trials()
        own = [b for b in self._waiting if any(t.block == b and t.host == host.label for t in everything)]
        block = (own or list(self._waiting))[0]
        why = self._waiting.pop(block)
        if not own:
            going.store.move_block(going.run.id, block, host.label, why)
            going.say(f"block {block} begins anew on {host.label}: {why}")
        host.block, host.began = block, time.monotonic()
        return self.next(host, over=False)

    def leave(self, host: HostAtWork, why: str) -> None:
        """Have another host run the block of ``host`` that has not ended."""
        going = self._going
        if host.block and any(t.block == host.block and t.status == "pending" for t in going.trials()):
            self._waiting[host.block] = why
        host.block = 0

    def drop_waiting(self) -> None:
        """Drop the blocks that wait for a host: nobody wants them any more."""
        for block in self._waiting:
            self._going.store.drop_pending(self._going.run.id, block)
