"""What it gains to keep each engine on one processor: the same replay with and without, in turns, in one run.

    python bench/one_processor.py [TRACE] [--rounds N]

Without TRACE: 30 s of synthetic OLTP. Prints the seconds of each replay, the medians and their ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import started
from screening_speed import synthetic

from ztune.places import engine as engines
from ztune.places import engine_run
from ztune.places.processors import one_processor
from ztune.places.replay import Replay
from ztune.runs.asked import study_for
from ztune.trace.reader import Trace


@contextlib.contextmanager
def anywhere() -> Iterator[int | None]:
    """In the place of `one_processor`: leaves it to the kernel where an engine runs."""
    yield None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace.open(args.trace) if args.trace else synthetic(Path(folder) / "synthetic.trace")
        study, engine = study_for(trace, None, None, None), engines.check()
        replay = Replay(trace, engine)
        ways = {"one processor": one_processor, "anywhere": anywhere}
        seconds: dict[str, list[float]] = {"one processor": [], "anywhere": []}
        for _ in range(args.rounds):
            for name, way in ways.items():
                vars(engine_run)["one_processor"] = way
                outcome = replay.run(replay.spec(study, study.layout, study.seed), None, threading.Event())
                if outcome.error is not None:
                    raise SystemExit(f"{name}: {outcome.error}")
                seconds[name].append(outcome.wall_s)
            print("  ".join(f"{name} {values[-1]:6.2f} s" for name, values in seconds.items()), flush=True)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = [a / b for a, b in zip(seconds["anywhere"], seconds["one processor"], strict=True)]
    print(f"median {middle['one processor']:.2f} s against {middle['anywhere']:.2f} s")
    print(f"ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    started.script(main)
