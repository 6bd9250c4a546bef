"""A/A: the baseline against itself must come out "no difference".

    python bench/aa.py RUN          an A/A run made with `ztune run WORKLOAD --aa --blocks 20`
    python bench/aa.py              the last A/A run; without one, runs one first (fio in the lab)
    python bench/aa.py -- WORDS     runs one first: `ztune run WORDS --aa`

From the run's blocks 100 cases are drawn. Each is a run of its own: blocks are drawn in a random order, in
each of them it is tossed which of the two equal layouts is called A (their order was random too), and after
each block ztune's own question is asked, as often as a run with the default --blocks asks it, at the level
that it uses for so many looks. A case that claims a difference is wrong. At least 95 of the 100 have to
claim none, and so has the run as a whole, without any toss. Of those that claim none it is told how many
call the two equal within the resolution, and how many leave it open.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import started

from ztune.analysis.metrics import MEASURED
from ztune.analysis.paired import paired
from ztune.analysis.resolve import Certainty, decide
from ztune.analysis.results import collect
from ztune.analysis.verdict import goals
from ztune.errors import ZtuneError
from ztune.runs.options import TrialOptions
from ztune.store.db import Store
from ztune.store.records import Run, Trial

CASES, WANTED = 100, 95


def verdict(pairs: list[tuple[float, float]], resolution: float, looks: int) -> Certainty:
    """Return what ztune says of these blocks: "resolved" is a difference that is none."""
    values = {name: {i: pair[side] for i, pair in enumerate(pairs)} for side, name in enumerate("AB")}
    decision = decide(values, resolution=resolution, looks=looks)
    assert decision is not None
    return decision.verdict


def resample(pairs: list[tuple[float, float]], options: TrialOptions, seed: int) -> Certainty:
    """Return what one run drawn from ``pairs`` ends with."""
    dice = random.Random(seed)
    drawn: list[tuple[float, float]] = []
    said: Certainty = "open"
    for pair in dice.sample(pairs, min(options.blocks[1], len(pairs))):
        drawn.append(pair if dice.random() < 0.5 else pair[::-1])
        if len(drawn) >= options.blocks[0]:
            said = verdict(drawn, options.resolution, options.looks)
            if said != "open":
                break
    return said


def judge(run: Run, trials: list[Trial]) -> list[dict[str, object]]:
    """Return, for each measure that orders layouts, how many of 100 comparisons say "no difference"."""
    cells = collect(trials).layouts
    if len(cells) != 2 or cells[0].hash != cells[1].hash:
        raise ZtuneError(f"run {run.id} is no A/A run: `ztune run WORKLOAD --aa --blocks 20` makes one")
    options = TrialOptions(resolution=TrialOptions.of(run).resolution)
    out: list[dict[str, object]] = []
    for key in dict.fromkeys([*goals(run, cells), "ios", "bytes", "written", "time"]):
        a, b = (c.values.get(key, {}) for c in cells)
        pairs = [(a[k], b[k]) for k in sorted(a.keys() & b.keys()) if a[k] > 0 and b[k] > 0]
        if len(pairs) < options.blocks[0]:
            continue
        said = [resample(pairs, options, seed) for seed in range(CASES)]
        whole = paired(b, a)
        assert whole is not None
        out.append(
            {
                "measure": MEASURED[key].label,
                "blocks": len(pairs),
                "no_difference": CASES - said.count("resolved"),
                "equal": said.count("equal"),
                "open": said.count("open"),
                "of": CASES,
                "whole": verdict(pairs, options.resolution, 1),
                "spread": round(whole.spread, 4),
                "ratio": round(whole.mean, 4),
            }
        )
    return out


def last() -> str:
    """Return the id of the last A/A run that is done, empty without one."""
    with Store.open() as store:
        found = [r.id for r in store.runs() if r.measured and r.options.get("aa") and r.status == "done"]
    return found[-1] if found else ""


def main(words: list[str]) -> int:
    name = words[0] if words and words[0] != "--" else "" if words else last()
    if not name:
        more = words[1:] or ["fio", "-p", "seconds=10", "--blocks", "12"]
        done = started.run(
            [Path(sys.executable).with_name("ztune"), "run", *more, "--aa", "--json"], stdout=subprocess.PIPE
        )
        if done.returncode not in (0, 1):
            return done.returncode
        name = json.loads(done.stdout)["run"]
    try:
        with Store.open() as store:
            run = store.run(name)
            found = judge(run, store.trials(run.id))
    except ZtuneError as error:
        print(f"aa: {error}", file=sys.stderr)
        return error.exit_code
    if not found:
        print(f"aa: run {run.id} has fewer than 3 blocks", file=sys.stderr)
        return 1
    for row in found:
        print(
            f"{row['measure']:28} {row['no_difference']:>3} of {row['of']} claim no difference"
            f" ({row['equal']} equal, {row['open']} left open); all {row['blocks']} blocks together:"
            f" {'a difference' if row['whole'] == 'resolved' else 'none'},"
            f" ratio {row['ratio']}, spread of a block's ratio {row['spread']:.1%}"
        )
    good = all(int(str(r["no_difference"])) >= WANTED and r["whole"] != "resolved" for r in found)
    return 0 if good else 1


if __name__ == "__main__":
    started.script(lambda: main(sys.argv[1:]))
