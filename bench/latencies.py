"""How near the percentiles of a replay's commits and reads come to a mount's, on a machine that is busy.

    chrt -r 1 python bench/latencies.py run --state FILE ACCURACY-STUDY … the options of `ztune run` …
    python bench/latencies.py show --state FILE --against SCREENING [--late 0.15] [--own FILE]

`run` is `ztune run --on mount --caches cold --blocks 1:1` of a study, beside which the mount is asked for its
counters every second. `show` takes the seconds in which the modelled disks' answers came no later than --late
ms on average, adds up what calls took in these, and compares the percentiles with the screening's: so other
work on the machine, which comes and goes, is left out as far as the disks notice it. --own: the state of a
run with `--disks instant`, what a commit took in which is added to the replay's, like to like.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import started
from accuracy import ztune

from ztune import paths
from ztune.store.db import Store

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
KINDS = ("sync", "read")
LEAST = 100
"""Calls: below, a p99 says nothing."""


def ask(control: Path) -> dict[str, Any]:
    """Return a mount's counters. Raises OSError, ValueError where it is about to end."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(str(control))
        s.sendall(b"stats\n")
        text = b""
        while piece := s.recv(1 << 16):
            text += piece
    found: dict[str, Any] = json.loads(text)
    return found


def short(stats: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of it."""
    disks = [d for d in stats["disks"] if d["class"] != "cache"]
    calls: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for dataset in stats["datasets"]:
        for kind in KINDS:
            calls[kind].update(dataset["calls"][kind]["ns"])
    return {
        "t": time.time(),
        "seconds": stats["seconds"],
        "late_s": [d["late_s"] for d in disks],
        "ios": [d["reads"] + d["writes"] + d["flushes"] for d in disks],
        "calls": calls,
    }


def watch(samples: dict[str, list[dict[str, Any]]], ended: threading.Event) -> None:
    """Ask every mount of ours once a second."""
    stores = paths.scratch() / "stores"
    while not ended.wait(1.0):
        for control in stores.glob("*/disks/control"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                samples.setdefault(control.parent.parent.name, []).append(short(ask(control)))


def run(state: Path, words: list[str]) -> None:
    """Run the study, and keep what was seen beside it. Raises ZtuneError."""
    samples: dict[str, list[dict[str, Any]]] = {}
    ended = threading.Event()
    watcher = threading.Thread(target=watch, args=(samples, ended))
    watcher.start()
    try:
        done = ztune("run", *words, "--on", "mount", "--caches", "cold", "--blocks", "1:1")
    finally:
        ended.set()
        watcher.join()
    old = json.loads(state.read_text()) if state.is_file() else []
    state.write_text(json.dumps([*old, {"run": done["run"], "samples": samples}]))


def window(run_id: str, number: int) -> tuple[float, float]:
    """Return when a trial's measure began and ended, by the series that was taken in it."""
    command = [str(Path(sys.executable).with_name("ztune")), "show", run_id, "--trial", str(number)]
    done = started.run([*command, "--series", "disks"], stdout=subprocess.PIPE, text=True, check=True)
    times = [float(row["t"]) for row in csv.DictReader(io.StringIO(done.stdout))]
    return times[0], times[-1]


def quiet(
    samples: list[dict[str, Any]], begin: float, end: float, late_ms: float
) -> tuple[int, int, dict[str, Counter[int]]]:
    """Return the seconds that were quiet, all, and the calls of the quiet ones: ns → how many."""
    calls: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
    used = total = 0
    for a, b in itertools.pairwise(samples):
        if a["t"] < begin or b["t"] > end + 1.0 or b["seconds"] < a["seconds"]:
            continue
        total += 1
        ios = [y - x for x, y in zip(a["ios"], b["ios"], strict=True)]
        late = [y - x for x, y in zip(a["late_s"], b["late_s"], strict=True)]
        if any(1e3 * s > late_ms * max(n, 1) for s, n in zip(late, ios, strict=True)):
            continue
        used += 1
        for kind in KINDS:
            for ns, count in b["calls"][kind].items():
                calls[kind][int(ns)] += count - a["calls"][kind].get(ns, 0)
    return used, total, calls


def share(calls: Counter[int], q: float) -> float:
    """Return the ms below which a share of the calls is: nearest rank."""
    left = q * sum(calls.values())
    for ns in sorted(calls):
        left -= calls[ns]
        if left <= 0:
            return ns / 1e6
    return 0.0


def mounted(state: Path, late_ms: float) -> Iterator[tuple[str, int, int, dict[str, Counter[int]]]]:
    """Yield each layout of all runs: its name, quiet seconds, all, and its calls."""
    found: dict[str, tuple[int, int, dict[str, Counter[int]]]] = {}
    with Store.open() as store:
        for one in json.loads(state.read_text()):
            for trial in store.trials(one["run"]):
                seen = one["samples"].get(f"{one['run']}-{trial.number:04d}")
                if trial.status != "ok" or not seen:
                    continue
                begin, end = window(one["run"], trial.number)
                used, total, calls = quiet(seen, begin, end, late_ms)
                before = found.get(trial.layout_name)
                if before is not None:
                    used, total = used + before[0], total + before[1]
                    calls = {kind: calls[kind] + before[2][kind] for kind in KINDS}
                found[trial.layout_name] = used, total, calls
    for name, (used, total, calls) in found.items():
        yield name, used, total, calls


def show(state: Path, against: str, late_ms: float, own: Path | None) -> None:
    """Print a row for each layout and call: the mount's percentiles, the replay's, and its error."""
    with Store.open() as store:
        replayed = {t.layout_name: t.measure["model"] for t in store.trials(against) if t.result}
    # Instant disks are never late.
    added = {n: c["sync"] for n, _, _, c in mounted(own, 1e9)} if own else {}
    heads = " | ".join(f"{p}: mount | replay" for p in SHARES)
    print(f"| layout | call | quiet s | calls | {heads} |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, used, total, calls in mounted(state, late_ms):
        for kind in KINDS:
            number, model = sum(calls[kind].values()), replayed.get(name)
            if model is None or number < LEAST:
                continue
            more = added.get(name, Counter()) if kind == "sync" else Counter()
            cells = []
            for p, q in SHARES.items():
                real, guess = share(calls[kind], q), model[f"{kind}_latency_ms"][p] + share(more, q)
                cells.append(f"{real:.2f} | {guess:.2f} ({guess / real - 1:+.0%})")
            row = f"| {name} | {kind} | {used} of {total} | {number} | {' | '.join(cells)} |"
            print(row.replace("%", " %").replace("-", "−"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--against", metavar="RUN", default="last")
    parser.add_argument("--late", type=float, default=0.15, metavar="MS")
    parser.add_argument("--own", type=Path, metavar="FILE")
    given, words = parser.parse_known_args()
    if given.what == "run":
        run(given.state, words)
    else:
        show(given.state, given.against, given.late, given.own)
    return 0


if __name__ == "__main__":
    started.script(main)
