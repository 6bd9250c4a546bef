"""How soon a search finds a layout that is within 3 % of the best: replays searches over complete grids.

    python bench/search.py [--seeds 50] [--write]      # --write: also table and chart of docs/search.md

Ours against random, Optuna's TPE, SMAC, a random forest with expected improvement, and the rounds that ztune
had before (bench/rounds.py), over the grids of bench/grids.py: once for modelled time and once for bytes
written, where at most a fifth of the cells are good. Every search begins with a cell at random, the same for
all methods: in some grids the base is good already. Needs `pip install optuna smac`; a method whose library
is missing is left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import multiprocessing
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a process for each processor is faster

import numpy as np
import rounds
import started

from ztune.search.propose import STARTS, propose
from ztune.search.space import Cell, SearchAxis, SearchSpace
from ztune.study import default_setting
from ztune.units import parse_size

DATA = Path(__file__).parent / "data"
DOCS = Path(__file__).parents[1] / "docs"
NEAR = 0.03  # of the best: found
SHORT = 12
LIMIT = 200  # trials, after which a search counts as that many
CHANCE = 0.05  # where ours stops
FEW = 0.2  # of the cells may be good: else any search finds one at once
METRICS = {"modelled_s": "time", "written": "bytes written"}
STOP = "stop"
Cells = Iterator[Cell]


@dataclass(frozen=True)
class Space:
    """A grid: each cell with the logarithm of what is to be small; without those whose replay failed."""

    name: str
    held_out: bool
    axes: tuple[SearchAxis, ...]
    values: Mapping[Cell, float]
    base: Cell

    def start(self, seed: int) -> Cell:
        return random.Random(f"{self.name}:{seed}").choice(sorted(self.values))

    @property
    def best(self) -> float:
        return min(self.values.values())

    def good(self, cell: Cell) -> bool:
        return self.values[cell] <= self.best + math.log1p(NEAR)

    def part(self, seed: int) -> Space:
        """Return 81 cells of it: four axes with three values each, the others as in the base."""
        rng = random.Random(f"{self.name}:{seed}")
        able = [i for i, axis in enumerate(self.axes) if axis.size >= 3]
        free = sorted(rng.sample(able, 4))
        kept = [
            tuple(sorted(rng.sample(range(axis.size), 3))) if i in free else (self.base[i],)
            for i, axis in enumerate(self.axes)
        ]
        axes = tuple(
            SearchAxis(axis.name, len(of), tuple(axis.positions[j] for j in of) if axis.positions else ())
            for axis, of in zip(self.axes, kept, strict=True)
        )
        values = {
            tuple(of.index(at) for of, at in zip(kept, cell, strict=True)): value
            for cell, value in self.values.items()
            if all(at in of for of, at in zip(kept, cell, strict=True))
        }
        base = tuple(of.index(at) if at in of else 0 for of, at in zip(kept, self.base, strict=True))
        return Space(f"{self.name}, 81 of it", self.held_out, axes, values, base)


def read(file: Path, metric: str = "modelled_s") -> Space:
    """Read a grid of bench/grids.py; ``metric``: what is to be small."""
    kept = json.loads(file.read_text())
    axes, base = [], []
    for key, texts in kept["axes"].items():
        try:
            positions = tuple(math.log2(parse_size(text)) for text in texts)
        except ValueError:
            positions = ()
        axes.append(SearchAxis(key, len(texts), positions))
        default = default_setting(key)
        base.append(texts.index(default) if default in texts else 0)
    cells = itertools.product(*(range(axis.size) for axis in axes))
    at = kept["metrics"].index(metric)
    values = {
        cell: math.log(row[at]) for cell, row in zip(cells, kept["cells"], strict=True) if row is not None
    }
    name = f"{kept['name']}, {METRICS[metric]}"
    return Space(name, kept["held_out"], tuple(axes), values, tuple(base))


def problems() -> list[Space]:
    """Return what is searched: each grid for each metric, where good cells are few."""
    every = [read(file, metric) for metric in METRICS for file in sorted(DATA.glob("*.json"))]
    return [one for one in every if sum(map(one.good, one.values)) <= FEW * len(one.values)]


# --- the methods: each gives cells, and is told by `values` what they came to


def ours(space: Space, seed: int, at_once: int = 1) -> Cells:
    within = SearchSpace(space.axes, space.values.__contains__)
    tried: dict[Cell, float | None] = {}
    while True:
        found = propose(within, tried, at_once, seed=seed, tolerance=NEAR, start=space.start(seed))
        if not found.cells:
            return
        for cell in found.cells:
            yield cell
            tried[cell] = space.values[cell]


def two_at_once(space: Space, seed: int) -> Cells:
    return ours(space, seed, 2)


def at_random(space: Space, seed: int) -> Cells:
    yield space.start(seed)
    others = [cell for cell in space.values if cell != space.start(seed)]
    random.Random(seed).shuffle(others)
    yield from others


def by_rounds(space: Space, seed: int) -> Cells:
    return rounds.search([axis.size for axis in space.axes], space.start(seed), space.values)


def forest(space: Space, seed: int) -> Cells:
    """A random forest, expected improvement over its trees' spread: the way of SMAC, without its library."""
    from scipy.stats import norm
    from sklearn.ensemble import RandomForestRegressor

    features = [axis.features() for axis in space.axes]

    def numbers(cells: Sequence[Cell]) -> Any:
        return np.array([[n for i, at in enumerate(cell) for n in features[i][at]] for cell in cells])

    start = at_random(space, seed)
    tried = [next(start) for _ in range(min(STARTS, len(space.values)))]
    yield from tried
    while left := [cell for cell in space.values if cell not in set(tried)]:
        y = np.array([space.values[cell] for cell in tried])
        model = RandomForestRegressor(30, random_state=seed, max_features=5 / 6).fit(numbers(tried), y)
        each = np.array([tree.predict(numbers(left)) for tree in model.estimators_])
        mean, spread = each.mean(axis=0), np.maximum(each.std(axis=0), 1e-9)
        at = (y.min() - mean) / spread
        best = int(np.argmax(spread * (at * norm.cdf(at) + norm.pdf(at))))
        tried.append(left[best])
        yield left[best]


def tpe(space: Space, seed: int, **how: Any) -> Cells:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, **how))
    study.enqueue_trial({axis.name: at for axis, at in zip(space.axes, space.start(seed), strict=True)})
    seen: set[Cell] = set()
    for _ in range(20 * LIMIT):
        trial = study.ask()
        cell = tuple(
            trial.suggest_int(axis.name, 0, axis.size - 1)
            if axis.positions
            else int(trial.suggest_categorical(axis.name, list(range(axis.size))))
            for axis in space.axes
        )
        if cell not in space.values:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        if cell not in seen:  # what it asks for again costs nothing: the answer is known
            seen.add(cell)
            yield cell
        study.tell(trial, space.values[cell])


def tpe_multivariate(space: Space, seed: int) -> Cells:
    return tpe(space, seed, multivariate=True, n_startup_trials=STARTS)


def smac(space: Space, seed: int) -> Cells:
    import ConfigSpace
    from smac import HyperparameterOptimizationFacade, Scenario
    from smac.runhistory.dataclasses import TrialValue

    configurations = ConfigSpace.ConfigurationSpace(seed=seed)
    for axis, at in zip(space.axes, space.start(seed), strict=True):
        kind = ConfigSpace.OrdinalHyperparameter if axis.positions else ConfigSpace.CategoricalHyperparameter
        configurations.add(kind(axis.name, list(range(axis.size)), default_value=at))
    with tempfile.TemporaryDirectory(prefix="ztune-bench-") as folder:
        scenario = Scenario(
            configurations, deterministic=True, n_trials=20 * LIMIT, seed=seed, output_directory=Path(folder)
        )
        design = HyperparameterOptimizationFacade.get_initial_design(
            scenario, n_configs=STARTS, additional_configs=[configurations.get_default_configuration()]
        )
        search = HyperparameterOptimizationFacade(
            scenario, lambda _, seed=0: 0.0, initial_design=design, logging_level=False, overwrite=True
        )
        seen: set[Cell] = set()
        for _ in range(20 * LIMIT):
            info = search.ask()
            cell = tuple(int(info.config[axis.name]) for axis in space.axes)
            if cell in space.values and cell not in seen:
                seen.add(cell)
                yield cell
            search.tell(info, TrialValue(cost=space.values.get(cell, max(space.values.values()))))


METHODS: Mapping[str, Callable[[Space, int], Cells]] = {
    "ztune": ours,
    "ztune, two at once": two_at_once,
    "random forest + EI": forest,
    "SMAC": smac,
    "Optuna TPE": tpe,
    "Optuna TPE, multivariate": tpe_multivariate,
    "rounds, as before": by_rounds,
    "random": at_random,
}
SLOW = {"SMAC": 5, "random forest + EI": 10, STOP: 20}  # so many seeds: these take minutes


@dataclass(frozen=True)
class Replayed:
    """One search: ``found``, the trial that was within 3 % of the best; ``curve``: the least so far after
    each trial."""

    grid: str
    method: str
    seed: int
    found: int
    curve: tuple[float, ...]


def replayed(task: tuple[Space, str, int]) -> Replayed:
    """Search until a good layout is found, and at least for as long as the score looks."""
    space, method, seed = task
    warnings.simplefilter("ignore")
    logging.disable()
    if method == STOP:
        return stops(space, seed)
    found, curve, least = LIMIT, [], math.inf
    cells = METHODS[method](space, seed)
    for n, cell in enumerate(cells, 1):
        least = min(least, space.values[cell])
        curve.append(least)
        if found == LIMIT and space.good(cell):
            found = n
        if (found < LIMIT and n >= SHORT) or n >= LIMIT:
            break
    return Replayed(space.name, method, seed, found, tuple(curve))


def stops(space: Space, seed: int) -> Replayed:
    """Search by ours until it says that enough is known: after how many trials, and how much worse than the
    best the best was then, as a share."""
    within = SearchSpace(space.axes, space.values.__contains__)
    tried: dict[Cell, float | None] = {}
    while True:
        found = propose(within, tried, 1, seed=seed, tolerance=NEAR, start=space.start(seed))
        if not found.cells or (found.chance is not None and found.chance <= CHANCE):
            least = min(value for value in tried.values() if value is not None)
            return Replayed(space.name, STOP, seed, len(tried), (math.expm1(least - space.best),))
        tried[found.cells[0]] = space.values[found.cells[0]]


def expected_random(space: Space, trials: int) -> float:
    """Return the mean, over all orders, of the least of ``trials`` cells."""
    values = np.sort(list(space.values.values()))
    n, k = len(values), min(trials, len(values))
    # The share of draws whose least is the i-th: C(n-1-i, k-1) / C(n, k).
    return float(values @ np.array([math.comb(n - 1 - i, k - 1) / math.comb(n, k) for i in range(n)]))


def score(space: Space, done: Sequence[Replayed]) -> float:
    """Return how far a method comes from random (0) to the whole grid (1) in 12 trials, as Kégl asks
    (arXiv 2311.15854); logarithms of seconds, mean over the seeds."""
    chance = expected_random(space, SHORT)
    got = fmean(one.curve[min(SHORT, len(one.curve)) - 1] for one in done)
    return (chance - got) / (chance - space.best) if chance > space.best else 1.0


def at_share(values: Sequence[int], share: float) -> int:
    """Return the least value that ``share`` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def groups(spaces: Sequence[Space]) -> dict[str, list[str]]:
    """Return the rows' blocks: what was tuned on, what was held out, and what has 81 cells."""
    parts = [s.name for s in spaces if s.name.endswith("81 of it")]
    small = [s.name for s in spaces if len(s.values) == 81]
    return {
        "81 cells": list(dict.fromkeys([*small, *parts])),
        "held out": [s.name for s in spaces if s.held_out and s.name not in parts],
        "tuned on": [s.name for s in spaces if not s.held_out and s.name not in parts],
    }


def table(spaces: Sequence[Space], done: Sequence[Replayed]) -> list[str]:
    """Return the table of docs/search.md."""
    by_name = {space.name: space for space in spaces}
    lines = ["| grids | method | median | p90 | within 12 | score |", "|---|---|---|---|---|---|"]
    for group, names in groups(spaces).items():
        for method in METHODS:
            mine = [one for one in done if one.method == method and one.grid in names]
            if not mine:
                continue
            counts = [one.found for one in mine]
            scores = [
                score(by_name[name], [one for one in mine if one.grid == name])
                for name in names
                if not name.endswith("81 of it")
            ]
            within = sum(n <= SHORT for n in counts) / len(counts)
            lines.append(
                f"| {group} | {method} | {median(counts):g} | {at_share(counts, 0.9)} | {within:.0%} | "
                f"{fmean(scores):.2f} |" if scores else
                f"| {group} | {method} | {median(counts):g} | {at_share(counts, 0.9)} | {within:.0%} | – |"
            )  # fmt: skip
    return lines


def grids_table(spaces: Sequence[Space], done: Sequence[Replayed]) -> list[str]:
    """Return the table by grid: how many cells, how many good ones, ours and random, and where ours stops."""
    lines = [
        "| grid | cells | good | ztune median, p90 | random median, p90 | stops after, p90 | stopped short |",
        "|---|---|---|---|---|---|---|",
    ]
    for space in spaces:
        if space.name.endswith("81 of it"):
            continue
        row = []
        for method in ("ztune", "random"):
            counts = [one.found for one in done if (one.grid, one.method) == (space.name, method)]
            row.append(f"{median(counts):g}, {at_share(counts, 0.9)}" if counts else "–")
        ended = [one for one in done if (one.grid, one.method) == (space.name, STOP)]
        after, short = "–", "–"
        if ended:
            counts, worse = [one.found for one in ended], [one.curve[0] for one in ended]
            after = f"{median(counts):g}, {at_share(counts, 0.9)}"
            wrong = sum(w > NEAR for w in worse)
            short = f"{wrong} of {len(ended)}, at most {max(worse):.1%} worse"
        name = f"{space.name}{'' if space.held_out else ' (tuned on)'}"
        good = sum(map(space.good, space.values))
        lines.append(f"| {name} | {len(space.values)} | {good} | {row[0]} | {row[1]} | {after} | {short} |")
    return lines


_INK = ("#0b6e99", "#7fb6cc", "#2f9e44", "#87c38f", "#e8590c", "#f4a261", "#845ef7", "#868e96")


def chart(names: Sequence[str], done: Sequence[Replayed], most: int = 40) -> str:
    """Return an SVG: the share of searches that have found a good layout after each trial."""
    wide, tall, left, top, right, bottom = 780, 360, 52, 16, 220, 44
    across, down = wide - left - right, tall - top - bottom

    def x(n: float) -> float:
        return left + across * n / most

    def y(share: float) -> float:
        return top + down * (1 - share)

    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" font-family="sans-serif" '
            'font-size="12" role="img"><title>Share of searches that have found a layout within 3 % of the '
            f'best, by trials</title><rect width="{wide}" height="{tall}" fill="#fff"/>'
        )
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        out.append(
            f'<path d="M{left} {y(share):.1f}H{left + across}" stroke="#ddd"/>'
            f'<text x="{left - 8}" y="{y(share) + 4:.1f}" text-anchor="end" fill="#444">{share:.0%}</text>'
        )
    for n in range(0, most + 1, 5):
        out.append(f'<text x="{x(n):.1f}" y="{top + down + 18}" text-anchor="middle" fill="#444">{n}</text>')
    out.append(f'<text x="{left + across / 2}" y="{tall - 8}" text-anchor="middle" fill="#222">trials</text>')
    shown = [m for m in METHODS if any(one.method == m for one in done)]
    ends = []
    for ink, method in zip(_INK, shown, strict=False):
        counts = [one.found for one in done if one.method == method and one.grid in names]
        shares = [sum(c <= n for c in counts) / len(counts) for n in range(most + 1)]
        path = "".join(f"{'L' if n else 'M'}{x(n):.1f} {y(share):.1f}" for n, share in enumerate(shares))
        dash = ' stroke-dasharray="5 4"' if method in ("random", "rounds, as before") else ""
        out.append(f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="2"{dash}/>')
        ends.append((sum(shares), ink, method))
    for i, (_, ink, method) in enumerate(sorted(ends, reverse=True)):
        at = top + 16 + 20 * i
        out.append(
            f'<path d="M{left + across + 14} {at - 4}h18" stroke="{ink}" stroke-width="3"/>'
            f'<text x="{left + across + 38}" y="{at}" fill="#222">{method}</text>'
        )
    return "".join([*out, "</svg>\n"])


def put(page: Path, mark: str, lines: Sequence[str]) -> None:
    """Replace what stands between the marks of a table in a page."""
    text = page.read_text()
    begin, end = f"<!-- bench: {mark} -->\n", "<!-- end -->"
    before, _, rest = text.partition(begin)
    if not rest:
        raise SystemExit(f"{page} has no place marked {begin.strip()}")
    page.write_text(before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2])


def kept(file: Path | None) -> list[Replayed]:
    """Return the searches that were kept in ``file``."""
    if file is None or not file.exists():
        return []
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [Replayed(**{**row, "curve": tuple(row["curve"])}) for row in rows]


def available(method: str) -> bool:
    """Say whether the library of a method is there."""
    import importlib.util

    needs = {"SMAC": "smac", "Optuna TPE": "optuna", "Optuna TPE, multivariate": "optuna"}
    return method not in needs or importlib.util.find_spec(needs[method]) is not None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--kept", type=Path, help="a file for each search's result: what is in it is not done again"
    )
    parser.add_argument("--write", action="store_true", help="into docs/search.md and its chart")
    arguments = parser.parse_args()
    whole = problems()
    large = [s for s in whole if len(s.values) > 81 and sum(axis.size >= 3 for axis in s.axes) >= 4]
    methods = [m for m in METHODS if m in arguments.methods and available(m)]
    missing = [m for m in arguments.methods if m not in methods]
    if missing:
        print(f"left out, since their library is not installed: {', '.join(missing)}", file=sys.stderr)
    tasks = [
        (space.part(seed) if part else space, method, seed)
        for method in [*methods, *([STOP] if "ztune" in methods else [])]
        for space, part in [*((s, False) for s in whole), *((s, True) for s in large if method != STOP)]
        for seed in range(min(arguments.seeds, SLOW.get(method, arguments.seeds)))
    ]
    done = kept(arguments.kept)
    there = {(one.grid, one.method, one.seed) for one in done}
    tasks = [task for task in tasks if (task[0].name, *task[1:]) not in there]
    with multiprocessing.Pool(arguments.processes, started.worker) as pool:
        for n, one in enumerate(pool.imap_unordered(replayed, tasks, chunksize=4), 1):
            done.append(one)
            if arguments.kept is not None:
                with arguments.kept.open("a") as file:
                    file.write(json.dumps(vars(one)) + "\n")
            if n % 100 == 0:
                print(f"{n} of {len(tasks)} searches", file=sys.stderr)
    # What was kept may have more seeds: each grid counts the same.
    seeds = {method: min(arguments.seeds, SLOW.get(method, arguments.seeds)) for method in [*METHODS, STOP]}
    done = sorted((one for one in done if one.seed < seeds[one.method]), key=lambda one: (one.grid, one.seed))
    spaces = [*whole, *(s.part(0) for s in large)]
    first, second = table(spaces, done), grids_table(spaces, done)
    print("\n".join([*first, "", *second]))
    if arguments.write:
        put(DOCS / "search.md", "methods", first)
        put(DOCS / "search.md", "grids", second)
        (DOCS / "images" / "search.svg").write_text(chart(groups(spaces)["held out"], done))
    return 0


if __name__ == "__main__":
    started.script(main)
