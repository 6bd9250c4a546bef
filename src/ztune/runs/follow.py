"""Trials that follow a screening: which of its layouts run next, and when it is unlikely that another is
better.

What the replays foretold of each layout is the prior (``ScreenedPrior``), which is kept with the run; what
the blocks so far measured corrects it (``search.follow``). The layout that the screening recommends joins
first: it is what its reader would set. The others join block by block, until the chance of something better
is small or as many ran as were allowed. Nothing else is kept: the same trials give the same
next layout, so a run that was cut goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ztune.analysis import units, verdict
from ztune.analysis.basis import basis
from ztune.analysis.metrics import MEASURED
from ztune.analysis.predicted import spearman
from ztune.analysis.resolve import Decision, effects
from ztune.analysis.results import LayoutResult, collect
from ztune.errors import InputError, ZtuneError
from ztune.onhost.fields import from_json, to_json
from ztune.runs.options import TrialOptions
from ztune.runs.search import ENOUGH, UNKNOWN, axis_of, chance_text, times
from ztune.runs.space import changed, differences
from ztune.runs.stopping import hopeless
from ztune.search.follow import Foreseen, foresee
from ztune.search.space import SearchAxis
from ztune.store.records import Run, Trial
from ztune.study import Layout, Study

KEY = "follow"
"""Where the outcome of a run keeps how far it followed its screening."""
_FORETELLS = {"ios": "ios", "bytes": "moved", "cpu_all": "cpu_s"}
"""What is measured, and the figure of a replay that foretells it, where ``MEASURED`` names none."""
_FAR = 0.1  # what was foretold and what was measured differ by so much of the baseline: it is said
_ORDER = 0.5  # a rank correlation below that is said
JoinReason = Literal["enough", "most", "all", "going on"]


@dataclass(frozen=True)
class Foretold:
    """A layout of a screening: its name, what it changes of the base, and its figures as multiples of the
    baseline's, by metric of a replay; ``moved`` and ``ios`` are bytes and operations of both directions.
    ``recommended``: whether it is the one that the screening recommends.
    """

    name: str
    changes: Mapping[str, str]
    ratios: Mapping[str, float]
    recommended: bool = False


@dataclass(frozen=True)
class ScreenedPrior:
    """What a ``screening`` foretold of its layouts, best first, without the baseline; ``most`` of them may
    join. ``beside``: the hashes of layouts that run anyway, which don't count.
    """

    screening: str
    most: int
    layouts: tuple[Foretold, ...]
    beside: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        screening: Run,
        trials: Sequence[Trial],
        ranked: Sequence[Trial],
        chosen: Layout | None,
        most: int,
    ) -> ScreenedPrior:
        """Return what ``screening`` says of the layouts ``ranked``, those that may be recommended, of which
        it recommends ``chosen``.

        Raises InputError where there is none beside the baseline.
        """
        base = screening.resolved_study.layout
        found = {c.hash: c for c in collect(trials, "modelled").layouts}
        layouts = [t.layout for t in ranked if t.layout_hash != base.hash]
        if not layouts:
            raise InputError(
                f"run {screening.id} has no finished layout beside the baseline, so there is nothing to "
                f"compare; `ztune show {screening.id}` says why"
            )
        figures = _figures(list(found.values()))
        reference = figures.get(base.hash) or figures[layouts[-1].hash]
        return cls(
            screening.id,
            most,
            tuple(
                Foretold(
                    layout.name,
                    differences(base, layout),
                    {
                        key: float(f"{value / reference[key]:.5g}")
                        for key, value in figures[layout.hash].items()
                        if value > 0 and reference.get(key, 0.0) > 0
                    },
                    chosen is not None and layout.hash == chosen.hash,
                )
                for layout in layouts
            ),
        )

    @classmethod
    def kept(cls, options: TrialOptions) -> ScreenedPrior | None:
        """Return the prior of a stored run; None of one that follows no screening."""
        return from_json(cls, options.follow) if options.follow else None

    def to_json(self) -> dict[str, Any]:
        """Return it as a run keeps it."""
        return dict(to_json(self))

    def layouts_of(self, study: Study) -> list[Layout]:
        """Return its layouts, best first. Raises ZtuneError where ``study`` lacks what they change."""
        try:
            return [changed(study.layout, one.changes, one.name) for one in self.layouts]
        except ValueError as error:
            raise ZtuneError(
                f'run {self.screening} screened layouts that study "{study.name}" can\'t have: {error}'
            ) from None

    def with_others(self, layouts: Sequence[Layout]) -> ScreenedPrior:
        """Return it for a run in which ``layouts`` run anyway."""
        return replace(self, beside=tuple(layout.hash for layout in layouts))

    def only(self, study: Study, possible: Callable[[Layout], bool]) -> ScreenedPrior:
        """Return it without the layouts that are not ``possible``."""
        both = zip(self.layouts, self.layouts_of(study), strict=True)
        return replace(self, layouts=tuple(one for one, layout in both if possible(layout)))


def _figures(results: Sequence[LayoutResult]) -> dict[str, dict[str, float]]:
    """Return the figures of replays by hash, those that foretell something."""
    keys = {m.predicted for m in MEASURED.values() if m.predicted} | {"cpu_s"}
    slowed = times(results)
    out = {}
    for one in results:
        row = {key: value for key in sorted(keys) if (value := one.value(key)) is not None}
        row["modelled_s"] = slowed[one.hash]
        row["ios"] = row.get("read_ops", 0.0) + row.get("write_ops", 0.0)
        row["moved"] = row.get("read", 0.0) + row.get("written", 0.0)
        out[one.hash] = row
    return out


@dataclass(frozen=True)
class Followed:
    """How far a run followed its screening.

    ``reason``: the chance left is small ``enough``, as many as allowed ran (``most``), ``all`` ran, or it is
    ``going on``. ``ran``, ``most``, ``screened``: layouts beside the baseline. ``chance``: that one of those
    that did not run is better than all that did by more than ``within``, a share. ``rank``: Spearman's
    correlation of what was foretold and what was measured; None below three layouts. ``leader``, ``foretold``
    and ``measured``: the best layout, and both as multiples of the baseline; empty and None where the
    baseline leads. ``next``: the hashes of the layouts that join.
    """

    screening: str
    reason: JoinReason
    ran: int
    most: int
    screened: int
    within: float
    chance: float
    rank: float | None = None
    leader: str = ""
    foretold: float | None = None
    measured: float | None = None
    next: tuple[str, ...] = field(default=(), compare=False)

    def sentence(self) -> str:
        """Return for people why no further layout ran."""
        if self.reason == "all":
            return f"All {self.screened} layouts of screening {self.screening} ran."
        many = "layout" if self.most == 1 else "layouts"
        left = f"another of the {self.screened} screened is better by more than {self.within * 100:.2g} %"
        chance = chance_text(self.chance)
        if self.reason == "enough":
            return (
                f"Stopped after {self.ran} of at most {self.most} {many}: the chance that {left} is {chance}."
            )
        if self.reason == "most":
            if self.chance > UNKNOWN:
                return f"{self.ran} {many} ran; whether {left} is not known. A larger --top tells more."
            return f"{self.ran} {many} ran: the chance that {left} is {chance}; a larger --top may find it."
        return f"{self.ran} of at most {self.most} {many} ran: the chance that {left} is {chance}."

    def disagreement(self) -> str:
        """Return how far the screening was off, where it was; "" where it was not."""
        parts = []
        foretold, measured = self.foretold, self.measured
        if foretold is not None and measured is not None and abs(foretold - measured) > _FAR:
            parts.append(
                f"the screening had foretold {units.change(foretold)} for {self.leader}, measured is "
                f"{units.change(measured)}"
            )
        if self.rank is not None and self.rank < _ORDER:
            parts.append(f"the screening had the layouts in another order (rank correlation {self.rank:.2f})")
        text = "; ".join(parts)
        return text[:1].upper() + text[1:] + "." if text else ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a run keeps it."""
        return dict(to_json(self))


def followed(outcome: Mapping[str, Any]) -> Followed | None:
    """Return how far a run followed its screening, from its ``outcome``; None where it followed none."""
    kept = outcome.get(KEY)
    return from_json(Followed, kept) if kept else None


class Following:
    """The layouts of a prior under the study of one run."""

    def __init__(
        self, study: Study, prior: ScreenedPrior, options: TrialOptions, seed: int, hosts: int = 1
    ) -> None:
        """``hosts``: on how many hosts as many blocks run at a time."""
        self.prior, self.options, self._seed, self._hosts = prior, options, seed, hosts
        self._base = study.layout
        self.layouts = {layout.hash: layout for layout in prior.layouts_of(study)}
        both = list(zip(self.layouts, prior.layouts, strict=True))
        self._ratios = {hash_: one.ratios for hash_, one in both}
        self._recommended = {hash_ for hash_, one in both if one.recommended}
        self._expected: dict[str, tuple[float, float]] = {}

    def said(self, layout: Layout) -> str:
        """Return what is expected of a layout that joins, as a clause."""
        foretold, expected = self._expected[layout.hash]
        does = "recommends it and foretold" if layout.hash in self._recommended else "foretold"
        text = f"the screening {does} {units.change(foretold)}"
        now = units.change(expected)
        return text if now == units.change(foretold) else f"{text}, after what was measured it is {now}"

    @property
    def at_once(self) -> int:
        """How many layouts join a block, so that each of them can run as often as at least asked for."""
        least, most = self.options.blocks
        return math.ceil(self.prior.most / (most - least + 1))

    @cached_property
    def _space(self) -> tuple[list[SearchAxis], dict[str, tuple[int, ...]]]:
        every = {self._base.hash: self._base, **self.layouts}
        settings = {name: layout.settings() for name, layout in every.items()}
        keys = sorted({key for layout in every.values() for key in differences(self._base, layout)})
        texts = {key: sorted({own.get(key, "default") for own in settings.values()}) for key in keys}
        cells = {
            name: tuple(texts[key].index(own.get(key, "default")) for key in keys)
            for name, own in settings.items()
        }
        return [axis_of(key, texts[key]) for key in keys], cells

    def judge(self, run: Run, trials: Sequence[Trial], decision: Decision | None) -> Followed:
        """Return where it stands after ``trials``, and which layouts join the next block."""
        found = collect(trials, basis(run))
        keys = verdict.goals(run, found.layouts)
        values = verdict.competing(run, found, keys[0]) if keys else {}
        ran = {t.layout_hash for t in trials}
        return self.after(keys[0] if keys else "time", values, ran, hopeless(trials), decision)

    def after(
        self,
        key: str,
        values: Mapping[str, Mapping[int, float]],
        ran: Collection[str],
        left_out: Collection[str],
        decision: Decision | None,
    ) -> Followed:
        """Return where it stands after ``values`` (arm → block → value) of the metric ``key``.

        ``ran``: the layouts that joined, also those without a value; but ``left_out`` are those that never
        work, which count for nothing.
        """
        metric = _FORETELLS.get(key) or MEASURED[key].predicted or "modelled_s"
        foretold = {
            name: row.get(metric) or row.get("modelled_s") or 1.0
            for name, row in self._ratios.items()
            if name not in left_out
        }
        joined = [name for name in foretold if name in ran and name not in self.prior.beside]
        ahead = self._foresee(foretold, values)
        self._expected = {name: (foretold[name], math.exp(ahead.mean[name])) for name in foretold}
        # What ran without a result so far has had its turn.
        order = [name for name in ahead.order if name not in ran and name not in self.prior.beside]
        order.sort(key=lambda name: name not in self._recommended)  # stable: the others stay in their order
        reason: JoinReason = "going on"
        if not order:
            reason = "all"
        elif joined and ahead.chance <= ENOUGH:
            reason = "enough"
        elif len(joined) >= self.prior.most:
            reason = "most"
        least, last = self.options.blocks
        done = math.ceil(max((block for row in values.values() for block in row), default=0) / self._hosts)
        # One that could not run often enough would be compared by luck.
        room = min(self.at_once, self.prior.most - len(joined)) if last - done >= least else 0
        out = Followed(
            self.prior.screening, reason, sum(bool(values.get(name)) for name in joined), self.prior.most,
            len(foretold),
            self.options.resolution, ahead.chance,
            next=tuple(order[:room]) if reason == "going on" else (),
        )  # fmt: skip
        return self._compared(out, foretold, values, decision)

    def _foresee(self, foretold: Mapping[str, float], values: Mapping[str, Mapping[int, float]]) -> Foreseen:
        axes, cells = self._space
        base = self._base.hash
        logs = {name: math.log(ratio) for name, ratio in {base: 1.0, **foretold}.items()}
        measured = {
            arm: {block: math.log(value) for block, value in row.items() if value > 0}
            for arm, row in values.items()
        }
        return foresee(
            axes, {name: cells[name] for name in logs}, logs, measured,
            reference=base, gain=math.log1p(self.options.resolution), seed=self._seed,
        )  # fmt: skip

    def _compared(
        self,
        out: Followed,
        foretold: Mapping[str, float],
        values: Mapping[str, Mapping[int, float]],
        decision: Decision | None,
    ) -> Followed:
        """Return ``out`` with what the screening said of what was measured."""
        base = self._base.hash
        level = effects(values)
        if base not in level:
            return out
        # A single run may be off by more than the screening.
        arms = [arm for arm in level if arm in foretold and len(values[arm]) > 1]
        rank = spearman([1.0, *(foretold[a] for a in arms)], [level[base], *(level[a] for a in arms)])
        if decision is None or decision.leader not in arms:
            return replace(out, rank=rank)
        best = decision.leader
        return replace(
            out, rank=rank, leader=self.layouts[best].name, foretold=foretold[best],
            measured=math.exp(level[best] - level[base]),
        )  # fmt: skip
