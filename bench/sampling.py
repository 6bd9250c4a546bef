"""How far the figures of a sample are from those of all: real databases, replayed both ways.

    python bench/sampling.py                        records what is not there, replays, prints the table
    python bench/sampling.py postgres /t/db.trace   these alone, of which one is a recording of your own
    python bench/sampling.py --rate 8 --parts 2     with another rate and number of samples
    python bench/sampling.py --layouts 3            on the first three layouts
    python bench/sampling.py --size 8G              databases of that size, in place of 1 to 1.5 GB
    python bench/sampling.py --profile hdd-7200     on such disks
    python bench/sampling.py --only-table           of what was replayed so far

Each recording is replayed on the same layouts whole, and with samples of one region in RATE that have no
region in common; `--rate 0` takes the rate that `ztune screen` would, or 4 where that takes all. Up to 4 GiB
of files are loaded whole for it, of more what is touched. The errors are those of single samples; an
interval, as `ztune screen` gives it, is of all samples of a layout, and covers where the whole figure is
within. What was adjusted was adjusted on postgres, mariadb and rocksdb; wiredtiger is left
to judge. Results are kept in `sampling.json` of ZTUNE_HOME by engine, recording, layout, rate and part: what
is there is not done again, so this can be cut and goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import started

from ztune import paths
from ztune.analysis.metrics import number_at
from ztune.analysis.predicted import spearman
from ztune.analysis.sampled import alike, half_width
from ztune.cli._recording import record_workload
from ztune.databases import registry
from ztune.errors import ZtuneError
from ztune.places import engine as engines
from ztune.places.engine import Engine
from ztune.places.replay import Replay, prepare
from ztune.runs.from_trace import built_for
from ztune.study.adjust import adjusted
from ztune.study.layout import MIN_ARC, with_settings
from ztune.trace.rate import REGION, Rate, default_rate
from ztune.trace.reader import Trace
from ztune.trace.sampling import work
from ztune.units import parse_size

PROFILE, ARC, RATE, PARTS = "ssd-sata", "512M", 4, 3
RECORDSIZES = ("8K", "16K", "128K")
_WRITES_AT_ONCE = {"tunable.zfs_vdev_async_write_min_active": 10}
LAYOUTS: dict[str, dict[str, Any]] = {
    **{size: {"data.recordsize": size} for size in RECORDSIZES},
    "32K": {"data.recordsize": "32K"},
    "16K-zstd": {"data.recordsize": "16K", "data.compression": "zstd-3"},
    "128K-zstd": {"data.recordsize": "128K", "data.compression": "zstd-3"},
    "16K-off": {"data.recordsize": "16K", "data.compression": "off"},
    "16K-throughput": {"data.recordsize": "16K", "wal.logbias": "throughput"},
    "16K-at-once": {"data.recordsize": "16K", **_WRITES_AT_ONCE},
    "1M": {"data.recordsize": "1M"},
}
WHOLE = 4 << 30
"""Bytes of files up to which a replay that is compared with loads all of them."""


@dataclass(frozen=True)
class Recorded:
    """A recording: its workload, what that is given, and what in place of it with ``--size``."""

    workload: str
    parameters: dict[str, str]
    larger: dict[str, str] = field(default_factory=dict)


RECORDINGS = {
    "postgres": Recorded("postgres-oltp", {"size": "1500M", "rate": "400", "seconds": "30"}),
    "rocksdb": Recorded(
        "rocksdb", {"size": "1500M", "rate": "1500", "seconds": "30"}, {"write_buffer": "4M"}
    ),
    "mariadb": Recorded("mariadb-oltp", {"size": "1500M", "rate": "100", "seconds": "30"}),
    "wiredtiger": Recorded(
        "mongo-restore", {"size": "1G", "engine": "wiredtiger", "block_compressor": "none"}
    ),
}
FIGURES = {
    "reads": ("physical", "reads"),
    "writes of data": ("by_cause", "data", "writes"),
    "bytes read": ("physical", "read_bytes"),
    "writes": ("physical", "writes"),
    "bytes written": ("physical", "write_bytes"),
    "ZIL writes": ("zil", "writes"),
    "ZIL bytes": ("zil", "bytes"),
    "space": ("space", "allocated"),
    "modelled time": ("model", "modelled_s"),
}
METRICS = {
    "bytes read": "read", "writes": "write_ops", "bytes written": "written", "ZIL bytes": "zil_bytes",
    "space": "allocated", "modelled time": "modelled_s",
}  # fmt: skip
"""The figures of which a screening gives an interval."""
FEW = {"reads": 100, "writes of data": 100, "writes": 100, "ZIL writes": 100, "modelled time": 0.1}
FEW_BYTES = 4 << 20  # less is no figure that a layout is chosen by
Results = dict[str, dict[str, Any]]


def recording(name: str) -> Trace:
    """Return the recording, made now where it is not there. ``name``: from :func:`sized`, or a path."""
    known, _, size = name.partition("@")
    if known not in RECORDINGS:
        return Trace.open(name)
    of, path = RECORDINGS[known], paths.traces() / f"sampling-{name}.trace"
    if path.exists():
        return Trace.open(path)
    parameters = {**of.parameters, **({"size": size, **of.larger} if size else {})}
    return record_workload(registry.make(of.workload, parameters), "auto", path)


def sized(name: str, size: str | None) -> str:
    """Return by what name a recording is kept: the databases above may have another size."""
    return f"{name}@{size}" if size and name in RECORDINGS else name


def kept_as(name: str, profile: str) -> str:
    """Return by what name the results of a recording are kept."""
    return name if profile == PROFILE else f"{name}:{profile}"


def chosen_rate(trace: Trace, arc: str) -> int:
    """Return the rate that `ztune screen` takes of itself; RATE where that is all."""
    inputs = prepare(trace)
    found = default_rate(work(inputs.ops, inputs.files), parse_size(arc), MIN_ARC)
    return found if found > 1 else RATE


def replay(name: str, asked: argparse.Namespace, engine: Engine, known: Results) -> Iterator[str]:
    """Replay what is missing; give the key of each result as it comes."""
    trace = recording(name)
    study = adjusted(built_for(trace), profile=asked.profile, arc=asked.arc)
    rate = asked.rate or chosen_rate(trace, asked.arc)
    load = "all" if sum(f.size_start for f in trace.manifest.files) <= WHOLE else "touched"
    # Layout by layout: what was cut has whole layouts to show.
    for size in list(LAYOUTS)[: asked.layouts]:
        for of, part in [(1, 0), *((rate, part) for part in range(min(asked.parts, rate)))]:
            key = f"{engine.version} {trace.sha[:12]} {kept_as(name, asked.profile)} {size} {of}.{part}"
            if key in known:
                continue
            # Samples are replayed at the recorded pace; so is all that they are compared with.
            target = Replay(
                trace, engine, rate=Rate(of, part, REGION), load=load if of == 1 else "", closed=False
            )
            layout = with_settings(study.layout, LAYOUTS[size])
            result = result_of(target, target.spec(study, layout, 1), key)
            known[key] = figures(result)
            known[key]["cpu_s"] = result["load"]["cpu_s"] + result["measure"]["cpu_s"]
            known[key]["memory"] = result["memory_peak"]
            yield key


def result_of(target: Replay, spec: dict[str, Any], about: str) -> dict[str, Any]:
    """Return the result of a replay; end the bench where there is none, with ``about`` before the reason."""
    outcome = target.run(spec, None, threading.Event())
    if outcome.result is None:
        raise SystemExit(f"{about}: {outcome.error}")
    return outcome.result


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared of a result, by its name in the tables."""
    return {label: number_at(result["measure"], *path) for label, path in FIGURES.items()}


def errors(known: Results, names: list[str], rate: int, figure: str) -> tuple[list[float], int, int]:
    """Return by which share each sample is off, how often the interval covers, and of how many times.

    ``rate``: 0 for the least that a layout was replayed at.
    """
    shares, covered, several = [], 0, 0
    for values in _by_layout(known, names).values():
        all_, mine = values.get((1, 0)), rate or max(of for of, _ in values)
        found = [one[figure] for (of, _), one in sorted(values.items()) if of == mine > 1]
        if all_ is None or not found or (all_[figure] or 0) < FEW.get(figure, FEW_BYTES):
            continue
        shares += [abs(value / all_[figure] - 1) for value in found]
        if len(found) > 1:
            several += 1
            known_alike = alike(METRICS.get(figure, ""), mine)
            covered += abs(found[0] - all_[figure]) <= half_width(found, mine, known_alike)
    return shares, covered, several


def _by_layout(known: Results, names: list[str]) -> dict[tuple[str, str], dict[tuple[int, int], Any]]:
    out: dict[tuple[str, str], dict[tuple[int, int], Any]] = {}
    for key, value in known.items():
        _, _, name, size, sample = key.split()
        if name in names:
            of, part = map(int, sample.split("."))
            out.setdefault((name, size), {})[of, part] = value
    return out


def table(known: Results, names: list[str], rate: int) -> Iterator[str]:
    """Give the lines of the table: by figure, and what became of the order of the layouts."""
    head = f"1/{rate}" if rate else "the rate chosen"
    yield f"| {head} | median | worst | interval covers |\n|---|---|---|---|"
    for figure in FIGURES:
        shares, covered, several = errors(known, names, rate, figure)
        if shares:
            yield (
                f"| {figure} | {statistics.median(shares):.1%} | {max(shares):.1%} | {covered} of {several} |"
            ).replace("%", " %")
    yield ""
    yield "| recording | rank correlation | chosen | of all | engine time | memory |"
    yield "|---|---|---|---|---|---|"
    for name in names:
        rates = {of for values in _by_layout(known, [name]).values() for of, _ in values}
        at = rate or max(rates, default=0)
        layouts = {s: v for (n, s), v in _by_layout(known, [name]).items() if (1, 0) in v and (at, 0) in v}
        if len(layouts) < 2:
            continue
        all_ = {size: v[1, 0]["modelled time"] for size, v in layouts.items()}
        part = {size: v[at, 0]["modelled time"] for size, v in layouts.items()}
        best, chosen = min(all_, key=lambda s: all_[s]), min(part, key=lambda s: part[s])
        cpu = sum(v[at, 0]["cpu_s"] for v in layouts.values()) / sum(
            v[1, 0]["cpu_s"] for v in layouts.values()
        )
        memory = max(v[at, 0]["memory"] for v in layouts.values()) / max(
            v[1, 0]["memory"] for v in layouts.values()
        )
        rank = spearman(list(all_.values()), list(part.values()))
        yield (
            f"| {name} | {'–' if rank is None else f'{rank:.2f}'} | {chosen} "
            f"| {best}, {all_[chosen] / all_[best] - 1:.1%} better "
            f"| {cpu:.2f} | {memory:.2f} |"
        ).replace("%", " %")


def main() -> int:
    """Replay what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(RECORDINGS))
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--layouts", type=int, default=len(LAYOUTS))
    parser.add_argument("--parts", type=int, default=PARTS)
    parser.add_argument("--arc", default=ARC)
    parser.add_argument("--size", help="of the databases; default: 1 to 1.5 GB")
    parser.add_argument("--profile", default=PROFILE, help="of the disks")
    parser.add_argument("--only-table", action="store_true")
    asked = parser.parse_args()
    asked.names = [sized(name, asked.size) for name in asked.names]
    kept = paths.home() / "sampling.json"
    known: Results = json.loads(kept.read_text()) if kept.is_file() else {}
    engine = engines.check()
    try:
        for name in () if asked.only_table else asked.names:
            for key in replay(name, asked, engine, known):
                kept.write_text(json.dumps(known, indent=1))
                print(key, known[key], file=sys.stderr, flush=True)
    except ZtuneError as error:
        print(f"sampling: {error}", file=sys.stderr)
        return error.exit_code
    mine = {key: value for key, value in known.items() if key.startswith(f"{engine.version} ")}
    for line in table(mine, [kept_as(name, asked.profile) for name in asked.names], asked.rate):
        print(line)
    return 0


if __name__ == "__main__":
    started.script(main)
