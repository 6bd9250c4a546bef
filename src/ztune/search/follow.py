"""Which candidate to measure next, with what something cheap foretold of each as the prior.

What is measured is taken to be the slope times what was foretold, and a rest that is smooth in the settings:
what each setting adds by itself, and something of the candidate's own. So what one candidate shows of a
setting is expected of all that have it. The slope, the rest, the noise and what disturbs a whole block are
normally distributed (a Gaussian process with a linear mean; Rasmussen and Williams, "Gaussian processes for
machine learning", 2006, 2.7); how large rest and noise are is averaged over a grid, each weighed by how
likely it makes what was measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ztune.search.space import Cell, SearchAxis

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

# Chosen before any grid of bench/follow.py was measured. All of logarithms: 0.1 is 10 %.
_SLOPE, _SLOPE_SPREAD = 1.0, 0.4
_RESTS = (0.03, 0.06, 0.12, 0.25, 0.5)
_REST, _REST_SPREAD = 0.12, 1.0
_NOISES = (0.01, 0.02, 0.04, 0.08, 0.16)
_NOISE, _NOISE_SPREAD = 0.03, 1.0
_OWN = 0.25  # of the rest's variance: what no single setting explains
_LENGTH = 0.5  # of the range of an axis whose values have an order
_BLOCK = 1.0  # blocks may differ by that much: nothing is learned from the level of one
_DRAWS = 2000


@dataclass(frozen=True)
class Foreseen:
    """``order``: the candidates that were not measured, most expected improvement first. ``chance``: that one
    of them is better by more than the gain than all that were, 0 to 1. ``mean``: the logarithm expected of
    each candidate, as a difference to that of the reference.
    """

    order: tuple[str, ...]
    chance: float
    mean: Mapping[str, float]


def foresee(
    axes: Sequence[SearchAxis],
    cells: Mapping[str, Cell],
    foretold: Mapping[str, float],
    measured: Mapping[str, Mapping[int, float]],
    *,
    reference: str,
    gain: float,
    seed: int,
) -> Foreseen:
    """Return which candidate to measure next and the chance that it is better by more than ``gain``.

    ``cells``: the settings of each candidate. ``foretold``: a logarithm for each, less is better; only their
    differences count. ``measured``: candidate → block → logarithm, without those that failed; what is not
    among ``cells`` is left out. ``gain``: a difference of logarithms. The same input
    gives the same answer, whatever the order of its mappings.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return _foresee(axes, cells, foretold, measured, reference, gain, seed)


def _foresee(
    axes: Sequence[SearchAxis],
    cells: Mapping[str, Cell],
    foretold: Mapping[str, float],
    measured: Mapping[str, Mapping[int, float]],
    reference: str,
    gain: float,
    seed: int,
) -> Foreseen:
    import numpy as np  # here, as it takes long to load
    from scipy.special import logsumexp

    names = sorted(cells)
    at = {name: i for i, name in enumerate(names)}
    rows = [
        (at[name], block, value) for name in names for block, value in sorted(measured.get(name, {}).items())
    ]
    told = np.array([foretold[name] for name in names])
    told = told - told[at[reference]]
    main, own = _alike(axes, [cells[name] for name in names])
    who = np.array([row[0] for row in rows], dtype=int)
    block = np.array([row[1] for row in rows], dtype=int)
    seen = np.array([row[2] for row in rows])
    tried = sorted({at[reference], *(row[0] for row in rows)})
    left = [i for i in range(len(names)) if i not in tried]
    slope = _SLOPE_SPREAD**2 * np.outer(told, told)
    together = _BLOCK**2 * (block[:, None] == block[None, :])
    found = []
    for rest, noise in itertools.product(_RESTS, _NOISES):
        prior = slope + rest**2 * ((1 - _OWN) * main + _OWN * own)
        weight = _unlikely(rest, _REST, _REST_SPREAD) + _unlikely(noise, _NOISE, _NOISE_SPREAD)
        mean, covariance = _SLOPE * told, prior
        if rows:
            within = prior[np.ix_(who, who)] + together + noise**2 * np.eye(len(rows))
            # The level of all blocks is free: it is the units'.
            off = seen - _SLOPE * told[who]
            off = off - off.mean()
            solved = np.linalg.solve(within, np.column_stack([off, prior[:, who].T]))
            weight += -0.5 * float(off @ solved[:, 0]) - 0.5 * float(np.linalg.slogdet(within)[1])
            mean = _SLOPE * told + prior[:, who] @ solved[:, 0]
            covariance = prior - prior[:, who] @ solved[:, 1:]
        found.append((weight, mean, covariance))
    weights = np.array([one[0] for one in found])
    weights = np.exp(weights - logsumexp(weights))
    mean = sum(w * one[1] for w, one in zip(weights, found, strict=True))
    mean = mean - mean[at[reference]]
    expected = {name: float(f"{mean[i]:.6g}") for i, name in enumerate(names)}
    if not left:
        return Foreseen((), 0.0, expected)
    better, hits, drawn = np.zeros(len(left)), 0, 0
    rng = np.random.default_rng([seed, len(rows)])
    for weight, (_, one, covariance) in zip(weights, found, strict=True):
        count = round(weight * _DRAWS)
        if not count:
            continue
        draws = one[:, None] + _root(covariance) @ rng.standard_normal((len(names), count))
        best = draws[tried].min(axis=0)
        better += np.maximum(best - draws[left], 0.0).sum(axis=1)
        hits += int((draws[left].min(axis=0) < best - gain).sum())
        drawn += count
    # Where no draw tells two apart, what is expected of them does.
    order = sorted(range(len(left)), key=lambda i: (-better[i], mean[left[i]], names[left[i]]))
    return Foreseen(tuple(names[left[i]] for i in order), hits / drawn, expected)


def _unlikely(value: float, centre: float, spread: float) -> float:
    return -0.5 * (math.log(value / centre) / spread) ** 2


def _root(covariance: Numbers) -> Numbers:
    import numpy as np

    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    found: Numbers = vectors * np.sqrt(np.maximum(values, 0.0))
    return found


def _alike(axes: Sequence[SearchAxis], cells: Sequence[Cell]) -> tuple[Numbers, Numbers]:
    """Return how alike candidates are, 0 to 1: the mean over the axes, and in all of them at once."""
    import numpy as np

    by_axis = []
    for i, axis in enumerate(axes):
        places = np.array([cell[i] for cell in cells])
        if len(set(places.tolist())) < 2:
            continue  # it tells no two apart
        if axis.positions:
            where = np.array([axis.features()[j][0] for j in places])
            by_axis.append(np.exp(-0.5 * ((where[:, None] - where[None, :]) / _LENGTH) ** 2))
        else:
            by_axis.append((places[:, None] == places[None, :]).astype(float))
    if not by_axis:
        return np.ones((len(cells), len(cells))), np.eye(len(cells))
    return np.mean(by_axis, axis=0), np.prod(by_axis, axis=0)
