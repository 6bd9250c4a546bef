"""What to try next, and how likely it is that something better is left.

A Gaussian process is fitted to what was tried, and the cells with the largest expected improvement follow
(Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998). With
several at once each is taken to come out as the model foretells it before the next is chosen (Ginsbourger's
"kriging believer"). All that is random is drawn anew from the seed and how much was tried: the same tried
cells give the same proposal, so a search that was cut goes on as if it had not been.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ztune.search.space import Cell, SearchSpace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

STARTS = 4
"""Cells that spread over the space before a model chooses, the first among them; more where some axis has had
one value alone, of which a model knows nothing."""
_FAR = 64  # random cells of which the one that is farthest from what was tried is a start
_SAMPLES = 1000  # draws of the whole space from the model, of which the share with something better counts
_DRAWN_CELLS = 400  # the cells of such a draw: those that are most likely to be better
# Of the kernel's length scale, in ranges of an axis: the median a priori, and the spread of its logarithm.
# Tried on the grids that bench/grids.py calls tuned on: with 0.7 and more a search stops too soon.
_LENGTH, _WIDTH = 0.5, 1.0
_NOISE = 1e-3  # of the variance of what was tried
_BEST = 6  # of a large space, the neighbours of so many of the best cells are looked at


@dataclass(frozen=True)
class Proposal:
    """``cells``: what to try next, most promising first; fewer than asked for, or none, where no more are
    left. ``chance``: that a cell which was not tried is better than the best by more than the tolerance, 0
    to 1; None while there is too little to tell, and while axes are ``unvaried``: one value alone of them was
    tried, though there are cells with others.
    """

    cells: tuple[Cell, ...]
    chance: float | None = None
    unvaried: tuple[str, ...] = ()


def propose(
    space: SearchSpace,
    tried: Mapping[Cell, float | None],
    count: int,
    *,
    seed: int,
    tolerance: float,
    start: Cell | None = None,
) -> Proposal:
    """Return the next ``count`` cells to try and the chance that something better is left.

    ``tried``: cells with the logarithm of what is to be small; None for one that failed, which counts as bad
    and is not proposed again. ``tolerance``: a share; 0.03 asks for more than 3 % better. ``start``: the
    first cell, if nothing was tried; default: one at random. Raises ValueError for a space without any cell.
    """
    rng = random.Random(f"{seed}:{len(tried)}")
    known = {cell: value for cell, value in tried.items() if value is not None}
    best = sorted(known, key=lambda c: (known[c], c))[:_BEST]
    left = space.untried(rng, tried, best)
    if not left:
        if not tried:
            raise ValueError("the space has no valid cell")
        return Proposal((), 0.0)
    unvaried = tuple(
        axis.name
        for i, axis in enumerate(space.axes)
        if len(had := {cell[i] for cell in tried}) == 1 and any(cell[i] not in had for cell in left)
    )
    if unvaried or len(known) < STARTS or max(known.values()) - min(known.values()) < 1e-12:
        return Proposal(_starts(space, tried, left, rng, count, start), unvaried=unvaried)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # several threads would round otherwise; so small a problem takes one
        return _Model(space, tried, left, seed).proposal(count, math.log1p(tolerance))


def plainer(
    space: SearchSpace,
    tried: Mapping[Cell, float | None],
    cell: Cell,
    plain: Cell,
    *,
    seed: int,
    tolerance: float,
) -> Cell:
    """Return ``cell`` with as many values as in ``plain`` as the model foretells to cost no more than
    ``tolerance`` (a share) in all; ``cell`` itself where there is too little to tell.
    """
    known = {value for value in tried.values() if value is not None}
    if len(known) < STARTS:
        return cell
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        model = _Model(space, tried, [cell], seed)
        most = model.mean([cell])[0] + math.log1p(tolerance)
        while steps := [
            one
            for i, at in enumerate(plain)
            if cell[i] != at and (one := (*cell[:i], at, *cell[i + 1 :])) in space
        ]:
            worth = model.mean(steps)
            least = min(range(len(steps)), key=lambda i: (worth[i], i))
            if worth[least] > most:
                break
            cell = steps[least]
    return cell


def _starts(
    space: SearchSpace,
    tried: Mapping[Cell, object],
    left: Sequence[Cell],
    rng: random.Random,
    count: int,
    start: Cell | None,
) -> tuple[Cell, ...]:
    """Return cells that are far from those tried: each of a few at random that has the most new values, and
    is then the farthest."""
    chosen: list[Cell] = []
    if start is not None and start not in tried and start in space:
        chosen.append(start)
    while len(chosen) < min(count, len(left)):
        seen = [*tried, *chosen]
        free = [cell for cell in left if cell not in chosen]
        few = rng.sample(free, min(_FAR, len(free)))
        had = [{cell[i] for cell in seen} for i in range(len(space.axes))]

        def merit(cell: Cell, seen: list[Cell] = seen, had: list[set[int]] = had) -> tuple[float, float]:
            new = sum(at not in values for at, values in zip(cell, had, strict=True))
            return new, min((_apart(space, cell, other) for other in seen), default=0.0)

        chosen.append(max(few, key=merit))
    return tuple(chosen)


def _apart(space: SearchSpace, a: Cell, b: Cell) -> float:
    total = 0.0
    for axis, i, j in zip(space.axes, a, b, strict=True):
        if i != j:
            span = (max(axis.positions) - min(axis.positions)) if axis.positions else 0.0
            total += abs(axis.positions[i] - axis.positions[j]) / span if span else 1.0
    return total


class _Model:
    """A Gaussian process of what was tried."""

    def __init__(
        self, space: SearchSpace, tried: Mapping[Cell, float | None], left: Sequence[Cell], seed: int
    ) -> None:
        import numpy as np  # here, with scikit-learn, as they take seconds to load

        self._np, self._seed, self._tried = np, seed, len(tried)
        self._features = [axis.features() for axis in space.axes]
        self._left = list(left)
        values = [value for value in tried.values() if value is not None]
        worst = max(values)
        self._x = self._numbers(list(tried))
        self._y = np.array([worst if value is None else value for value in tried.values()])
        self._best = min(values)
        self._candidates = self._numbers(self._left)
        self._fitted = self._fit()

    def _numbers(self, cells: Sequence[Cell]) -> Numbers:
        rows = [[n for i, at in enumerate(cell) for n in self._features[i][at]] for cell in cells]
        return self._np.array(rows, dtype=float).reshape(len(cells), -1)

    def _fit(self) -> Any:
        """Return scikit-learn's regressor with the kernel's parameters that are most likely a posteriori."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(
            [_LENGTH] * self._x.shape[1], (5e-2, 5e1), nu=2.5
        ) + WhiteKernel(_NOISE, (1e-6, 1e-1))
        regressor = GaussianProcessRegressor(kernel, optimizer=self._most_likely, normalize_y=True)
        with warnings.catch_warnings():
            # That a parameter lies at its bound, where the prior would have it too: nothing for the user.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return regressor.fit(self._x, self._y)

    def _most_likely(self, objective: Any, first: Numbers, bounds: Numbers) -> tuple[Numbers, float]:
        """Maximise the marginal likelihood times a prior: few points alone would say anything."""
        from scipy.optimize import minimize

        np = self._np
        centre = first
        width = np.array([1.0, *[_WIDTH] * (len(first) - 2), 1.0])

        def loss(theta: Numbers) -> tuple[float, Numbers]:
            value, slope = objective(theta)
            off = (theta - centre) / width
            return float(value + 0.5 * off @ off), slope + off / width

        found = minimize(loss, first, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 60})
        return found.x, float(found.fun)

    def mean(self, cells: Sequence[Cell]) -> list[float]:
        """Return what the model foretells of ``cells``, tried or not."""
        found: list[float] = self._fitted.predict(self._numbers(cells)).tolist()
        return found

    def proposal(self, count: int, gain: float) -> Proposal:
        """Return the ``count`` cells of most expected improvement, and the chance of ``gain``."""
        np = self._np
        mean, covariance = self._fitted.predict(self._candidates, return_cov=True)
        chance = self._chance(mean, covariance, gain)
        chosen: list[int] = []
        best = self._best
        for _ in range(min(count, len(self._left))):
            spread = np.sqrt(np.maximum(np.diag(covariance), 1e-18))
            merit = _expected_improvement(best - mean, spread)
            merit[chosen] = -1.0
            at = int(np.argmax(merit))
            chosen.append(at)
            # As if it came out as foretold: its neighbours are known better, none is expected to be lower.
            column = covariance[:, at]
            covariance = covariance - np.outer(column, column) / max(float(column[at]), 1e-18)
            best = min(best, float(mean[at]))
        return Proposal(tuple(self._left[at] for at in chosen), chance)

    def _chance(self, mean: Numbers, covariance: Numbers, gain: float) -> float:
        np = self._np
        from scipy.stats import norm

        spread = np.sqrt(np.maximum(np.diag(covariance), 1e-18))
        alone = norm.cdf((self._best - gain - mean) / spread)
        likely = np.argsort(-alone, kind="stable")[:_DRAWN_CELLS]
        within = covariance[np.ix_(likely, likely)]
        jitter = 1e-9 * float(np.trace(within)) / len(likely) + 1e-15
        values, vectors = np.linalg.eigh(within + jitter * np.eye(len(likely)))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        draws = np.random.default_rng([self._seed, self._tried]).standard_normal((len(likely), _SAMPLES))
        lowest = (mean[likely][:, None] + root @ draws).min(axis=0)
        return float((lowest < self._best - gain).mean())


def _expected_improvement(ahead: Numbers, spread: Numbers) -> Numbers:
    from scipy.stats import norm

    at = ahead / spread
    found: Numbers = ahead * norm.cdf(at) + spread * norm.pdf(at)
    return found
