"""How near a replay comes to a job that had begun before its recording: what first reads tell of the caches.

    python bench/first_reads.py TRACE [--last 60] [--arc 256M]

TRACE is of a workload of ztune's, so that all that was read before is known. Its last seconds are replayed
three times on three record sizes and without data in the ARC: with all that came before them in the caches,
which is what the others are held against; with empty caches; and with what the first reads of these seconds
tell (docs/recording.md, "What was in the caches"). Prints a table in Markdown. What it makes is in a
directory of its own, and removed; the exports of these traces stay in the cache, as any do.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import started
from sampling import PROFILE, result_of

from ztune.places import engine as engines
from ztune.places.engine import Engine
from ztune.places.replay import Replay
from ztune.runs.from_trace import built_for
from ztune.study.adjust import adjusted
from ztune.study.layout import with_settings
from ztune.trace import window_cut
from ztune.trace.manifest import COLD, Warning_
from ztune.trace.rate import REGION, Rate
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.trace.writer import TraceWriter
from ztune.units import parse_size

LAYOUTS: dict[str, dict[str, Any]] = {
    "8K": {"data.recordsize": "8K"},
    "16K": {"data.recordsize": "16K"},
    "128K": {},
    "128K, no data in the ARC": {"data.primarycache": "metadata"},
}
ALL = 10**9  # calls: all that came before


def made(trace: Trace, last_s: float, folder: Path) -> dict[str, Trace]:
    """Return the last seconds of ``trace`` with all that came before, with nothing of it, and with what the
    first reads tell."""
    windows = [(trace.manifest.duration_ns - round(last_s * 1e9), trace.manifest.duration_ns)]
    said = Warning_(code="cut", message="It is the end of a recording.")
    window_cut.write(trace, windows, said, ALL, folder / "known.trace")
    known = Trace.open(folder / "known.trace")
    found = {"known": known}
    for name, code in (("empty", "empty"), ("told", COLD)):
        path = folder / f"{name}.trace"
        without_past(known, Warning_(code=code, message="Its past is not known."), path)
        found[name] = Trace.open(path)
    return found


def without_past(trace: Trace, said: Warning_, path: Path) -> None:
    """Write ``trace`` without what warms the caches to ``path``."""
    manifest = trace.manifest
    with TraceWriter(path) as writer:
        for rows in window_cut.event_rows(trace):
            writer.add_rows(rows[rows["op"] != Op.WARM])
        for sample in manifest.samples:
            shutil.copyfile(trace.path / sample.file, writer.samples_dir / Path(sample.file).name)
        kept = manifest.model_dump(exclude={"format", "version", "ztune", "events", "parquet", "warnings"})
        writer.finish(**kept, warnings=[said])


def replayed(trace: Trace, engine: Engine, arc: str) -> dict[str, tuple[int, float]]:
    """Return reads and seconds that the disk is busy of each layout."""
    study = adjusted(built_for(trace), profile=PROFILE, arc=arc)
    target = Replay(trace, engine, rate=Rate(1, 0, REGION), load="all", closed=False)
    found = {}
    for name, changes in LAYOUTS.items():
        spec = target.spec(study, with_settings(study.layout, changes), 1)
        measure = result_of(target, spec, f"{trace.name}, {name}")["measure"]
        busy = max(float(vdev["busy_s"]) for vdev in measure["by_vdev"])
        found[name] = int(measure["physical"]["reads"]), busy
    return found


def main() -> None:
    """Cut, replay, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--last", type=float, default=60.0, help="seconds that are replayed")
    parser.add_argument("--arc", default="256M")
    asked = parser.parse_args()
    parse_size(asked.arc)
    engine, whole = engines.check(), Trace.open(asked.trace)
    with tempfile.TemporaryDirectory(prefix="first-reads-") as folder:
        traces = made(whole, asked.last, Path(folder))
        found = {name: replayed(one, engine, asked.arc) for name, one in traces.items()}
    print("| records | reads | from empty caches | as first reads tell | busy, s | empty | told |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in LAYOUTS:
        known, empty, told = (found[which][name] for which in ("known", "empty", "told"))
        cells = [f"{100 * (one[0] / known[0] - 1):+.0f} %" for one in (empty, told)]
        busy = [f"{100 * (one[1] / known[1] - 1):+.0f} %" for one in (empty, told)]
        print(f"| {name} | {known[0]:,} | {' | '.join(cells)} | {known[1]:.1f} | {' | '.join(busy)} |")


if __name__ == "__main__":
    started.script(main)
