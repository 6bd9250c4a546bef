"""A/A: the baseline against itself must come out "no difference".

    python bench/aa.py RUN          an A/A run made with `ztune run WORKLOAD --aa --blocks 20`
    python bench/aa.py              the last A/A run; without one, runs one first (fio in the lab)
    python bench/aa.py -- WORDS     runs one first: `ztune run WORDS --aa`

From the run's blocks 100 comparisons are drawn: a quarter of its blocks each (at least 3), with replacement,
and in each block it is tossed which of the two equal layouts is called A. That is fair, since their order was
random too. At least 95 of the 100 have to say "no difference", and so has the run as a whole, without any
toss.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from ztune.analysis.measured import MEASURES, gather, goals
from ztune.analysis.paired import paired
from ztune.errors import ZtuneError
from ztune.store.db import Store
from ztune.store.records import Run, Trial

CASES, WANTED = 100, 95


def resample(pairs: list[tuple[float, float]], blocks: int, resolution: float, seed: int) -> str:
    """Return "different" or "no difference" for one comparison drawn from ``pairs``."""
    dice = random.Random(seed)
    drawn = [dice.choice(pairs) for _ in range(blocks)]
    return compare([pair if dice.random() < 0.5 else pair[::-1] for pair in drawn], resolution, seed)


def compare(pairs: list[tuple[float, float]], resolution: float, seed: int = 1) -> str:
    """Return "different" if A and B differ for sure and by more than ``resolution`` (a share)."""
    ratio = paired(dict(enumerate(a for a, _ in pairs)), dict(enumerate(b for _, b in pairs)), seed=seed)
    assert ratio is not None
    different = ratio.low > 1 or ratio.high < 1
    matters = not 1 / (1 + resolution) <= ratio.mean <= 1 + resolution
    return "different" if different and matters else "no difference"


def judge(run: Run, trials: list[Trial]) -> list[dict[str, object]]:
    """Return, for each measure that orders layouts, how many of 100 comparisons say "no difference"."""
    cells = gather(trials).cells
    if len(cells) != 2 or cells[0].hash != cells[1].hash:
        raise ZtuneError(f"run {run.id} is no A/A run: `ztune run WORKLOAD --aa --blocks 20` makes one")
    resolution = float(run.options.get("resolution", 0.02))
    out: list[dict[str, object]] = []
    for key in dict.fromkeys([*goals(run, cells), "ios", "bytes", "written", "time"]):
        a, b = (c.values.get(key, {}) for c in cells)
        pairs = [(a[k], b[k]) for k in sorted(a.keys() & b.keys())]
        if len(pairs) < 3:
            continue
        blocks = max(3, int(run.options.get("blocks", [3])[0]) // 4)
        said = [resample(pairs, blocks, resolution, seed) for seed in range(CASES)]
        whole = paired(b, a)
        assert whole is not None
        out.append(
            {
                "measure": MEASURES[key].label,
                "blocks": len(pairs),
                "per_comparison": blocks,
                "no_difference": said.count("no difference"),
                "of": CASES,
                "whole": compare(pairs, resolution),
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
        done = subprocess.run(
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
            f"{row['measure']:28} {row['no_difference']:>3} of {row['of']} say no difference"
            f"   ({row['per_comparison']} blocks each out of {row['blocks']}; all together: {row['whole']},"
            f" ratio {row['ratio']}, spread of a block's ratio {row['spread']:.1%})"
        )
    good = all(int(str(r["no_difference"])) >= WANTED and r["whole"] == "no difference" for r in found)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
