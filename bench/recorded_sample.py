"""How far the figures of a recording by sample are from those of a whole one: PostgreSQL, recorded both ways.

    python bench/recorded_sample.py [--size 2G] [--rate TPS] [--seconds S] [--of N] [--arc SIZE]

Two recorders watch one run of pgbench, one of them with `--sample 1/N`. Both recordings are replayed on three
layouts: the whole one whole, and by a sample made of it afterwards; the other as it is. Prints one JSON
object: how many events each has, and by layout and figure the shares by which the two samples are off.
Recordings stay in ZTUNE_HOME, and are not made again.
"""

from __future__ import annotations

import argparse
import json
import threading
from typing import Any

import started
from sampling import PROFILE, RECORDSIZES, figures, result_of

from ztune import paths
from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.places import engine as engines
from ztune.places.replay import Replay
from ztune.runs.from_trace import built_for
from ztune.study.adjust import adjusted
from ztune.study.layout import with_settings
from ztune.trace.rate import REGION, Rate
from ztune.trace.reader import Trace
from ztune.trace.record import Recording


def record_both(name: str, parameters: dict[str, Any], of: int) -> tuple[Trace, Trace]:
    """Return the whole recording and that by sample of one run."""
    whole, part = (paths.traces() / f"{name}-{kind}.trace" for kind in ("whole", f"of-{of}"))
    if not part.exists():
        with running(PostgresOltp(parameters)) as workload:
            pids = workload.pids()
            with Recording(whole, pids=pids), Recording(part, pids=pids, sample=of) as sampled:
                ended = threading.Event()

                def look() -> None:
                    while not ended.wait(0.2):
                        sampled.wait(0.05)  # tells the recorder which files are no logs

                looking = threading.Thread(target=look)
                looking.start()
                try:
                    workload.run()
                finally:
                    ended.set()
                    looking.join()
    return Trace.open(whole), Trace.open(part)


def main() -> None:
    """Record, replay, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="2G")
    parser.add_argument("--rate", type=float, default=400.0)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--of", type=int, default=8)
    parser.add_argument("--arc", default="512M")
    options = parser.parse_args()
    engine = engines.check()
    parameters = {"size": options.size, "rate": options.rate, "seconds": options.seconds}
    whole, part = record_both(f"recorded-{options.size}", parameters, options.of)
    replays = {
        "whole": Replay(whole, engine, load="touched"),
        "sampled afterwards": Replay(whole, engine, rate=Rate(options.of, 0, REGION)),
        "recorded by sample": Replay(part, engine),
    }
    study = adjusted(built_for(whole), profile=PROFILE, arc=options.arc)
    report: dict[str, Any] = {
        "events": {"whole": whole.manifest.events, "sampled": part.manifest.events},
        "counted": {
            "reads": sum(f.counted.reads for f in part.manifest.files if f.counted),
            "writes": sum(f.counted.writes for f in part.manifest.files if f.counted),
        },
        "layouts": {},
    }
    for size in RECORDSIZES:
        found: dict[str, dict[str, Any]] = {}
        for name, replay in replays.items():
            layout = with_settings(study.layout, {"data.recordsize": size})
            found[name] = figures(result_of(replay, replay.spec(study, layout, 1), f"{size}, {name}"))
        all_ = found["whole"]
        report["layouts"][size] = {
            "whole": all_,
            **{
                name: {
                    label: round(value / all_[label] - 1, 4) if all_[label] else None
                    for label, value in values.items()
                }
                for name, values in found.items()
                if name != "whole"
            },
        }
        print(json.dumps({size: report["layouts"][size]}), flush=True)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    started.script(main)
