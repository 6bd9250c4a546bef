"""What a search's proposals take on a space that is too large to be looked at as a whole.

    .venv/bin/python bench/proposal_cost.py [--budget N]

The space is that of four roles with four settings each and two of the pool, 2.1e10 layouts; what a layout
comes to is made up, so nothing is replayed. Prints one JSON object: processor seconds of a proposal of two
layouts, median and most, and the most memory of the process in MiB, Python and scikit-learn included.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from statistics import median

import started

from ztune.runs.search import LayoutSearch
from ztune.search.propose import propose
from ztune.search.space import Cell
from ztune.study import Study, generic

ROLES = ("data", "wal", "index", "temp")
SIZES = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "2M", "4M"]


def question() -> Study:
    """Return the study."""
    axes: dict[str, list[str | int]] = {}
    for role in ROLES:
        axes[f"{role}.recordsize"] = [*SIZES]
        axes[f"{role}.compression"] = ["off", "lz4", "zstd-3", "zstd-9", "gzip-6"]
        axes[f"{role}.logbias"] = ["latency", "throughput"]
        axes[f"{role}.primarycache"] = ["all", "metadata"]
    axes["tunable.zfs_txg_timeout"] = [1, 5, 30]
    axes["pool.tank.ashift"] = [9, 12, 13]
    return Study.model_validate({**generic.build({*ROLES}).to_json(), "axes": axes, "cross": []})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--budget", type=int, default=64)
    budget = parser.parse_args().budget
    search = LayoutSearch(question(), lambda _: True)
    space = search.space

    def worth(cell: Cell) -> float:
        """A bowl: each axis is best at two fifths of it, and the later ones matter more."""
        return sum(
            i * (at / axis.size - 0.4) ** 2 for i, (at, axis) in enumerate(zip(cell, space.axes, strict=True))
        )

    start = search.cell(search.study.layout)
    assert start is not None
    tried: dict[Cell, float | None] = {start: worth(start)}
    took = []
    while len(tried) < budget:
        began = time.process_time()
        cells = propose(space, tried, 2, seed=1, tolerance=0.05, start=start).cells
        took.append(time.process_time() - began)
        tried |= {cell: worth(cell) for cell in cells}
    result = {
        "cells": space.product,
        "tried": len(tried),
        "cpu_s_median": round(median(took), 2),
        "cpu_s_most": round(max(took), 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    started.script(main)
