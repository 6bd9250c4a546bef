"""What watching costs a server, told on a machine that other work disturbs: many short blocks, one load.

One pgbench runs all the time. In each round every variant is on for a block, in random order; what is
compared is the server's processor time per transaction, to the nanosecond (`schedstat`), and its transactions
per second, each against the mean of the unwatched seconds of the same round, which are at most a few seconds
away. Of all rounds the median of their means two by two is taken (Hodges and Lehmann, 1963), which heeds
outliers as little as the median does and varies less where there are none. Rounds are kept in a file, so that
a measurement may be made in several pieces. A round is left out during which another recorder or observer was
at work on this host: it slows the calls of the unwatched second too.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.onhost.probes import procfs

BASE, AGAIN = "none", "none again"
SETTLE_S = 0.2
RESAMPLES = 2000
Watching = Callable[[Any], AbstractContextManager[Any]]


def centre(values: Any) -> float:
    """Return the median of the means of all pairs of ``values``, each with itself too."""
    first, second = np.triu_indices(len(values))
    return float(np.median((values[first] + values[second]) / 2))


def interval(values: Any, seed: int) -> list[float]:
    """95 % percentile bootstrap interval of the centre."""
    rng = np.random.default_rng(seed)
    centres = [centre(rng.choice(values, len(values))) for _ in range(RESAMPLES)]
    low, high = np.percentile(centres, [2.5, 97.5])
    return [round(float(low), 4), round(float(high), 4)]


def processor_ns(pids: list[int]) -> int:
    """Processor time of the processes and all their threads and descendants that live, ns."""
    total = 0
    for pid in procfs.descendants(pids):
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except (OSError, IndexError):
                continue
    return total


class Load:
    """A pgbench that runs until the block ends, and says when each transaction ended."""

    def __init__(self, workload: Any, script: str, clients: int) -> None:
        self._server = workload.job.server
        self._folder = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="interleaved-")
        folder = Path(self._folder.name)
        folder.chmod(0o777)  # the database's user writes there
        self._prefix = folder / "transactions"
        self._arguments = (
            f"--builtin={script}", "--no-vacuum", "--protocol=prepared", f"--client={clients}", "--time=3600",
            "--log", f"--log-prefix={self._prefix}",
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._server.client("pgbench", *self._arguments)
        except Exception:  # ended by a signal
            return

    def __enter__(self) -> Load:
        self._thread.start()
        deadline = time.monotonic() + 60
        while not (found := self._logs()) or not found[0].stat().st_size:
            if time.monotonic() > deadline:
                raise SystemExit("pgbench did not begin")
            time.sleep(0.1)
        return self

    def _logs(self) -> list[Path]:
        return sorted(self._prefix.parent.glob("transactions*"))

    def __exit__(self, *_: object) -> None:
        for pid in procfs.descendants([os.getpid()]):
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == "pgbench":
                    os.kill(pid, 15)
            except OSError:
                continue
        self._thread.join(30)
        self._folder.cleanup()

    def ends(self) -> Any:
        """Return when transactions ended, seconds of the wall clock, in order."""
        found: list[float] = []
        for log in self._logs():
            for line in log.read_text().splitlines():
                words = line.split()
                if len(words) >= 6:
                    found.append(int(words[4]) + int(words[5]) / 1e6)
        return np.sort(np.array(found))


def measure(
    variants: Mapping[str, Watching],
    *,
    script: str,
    clients: int,
    scale: int,
    seconds: float,
    block_s: float,
    seed: int,
) -> list[dict[str, dict[str, float]]]:
    """Return a round after the other, for ``seconds``: variant → transactions/s, ns per transaction, and the
    processor time of watching as a share of the server's.
    """
    order = random.Random(seed)
    marks: list[dict[str, tuple[float, float, int, int]]] = []
    left_out = 0
    # After a checkpoint changes are dearer for a while: no difference between variants, and noise.
    parameters = {"scale": scale, "clients": clients, "max_wal_size": "32G", "checkpoint_timeout": 3600}
    with running(PostgresOltp(parameters)) as workload, Load(workload, script, clients) as load:
        pids = workload.pids()
        time.sleep(5)  # caches, and the processors' speed
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            one, alone = {}, True
            for name in order.sample(sorted(variants), len(variants)):
                with variants[name](workload):
                    time.sleep(SETTLE_S)
                    helpers = [p for p in procfs.descendants([os.getpid()]) if _watches(p)]
                    alone = alone and not _strangers()
                    own, spent, at = processor_ns(helpers), processor_ns(pids), time.time()
                    time.sleep(block_s)
                    until = time.time()
                    spent, own = processor_ns(pids) - spent, processor_ns(helpers) - own
                    alone = alone and not _strangers()
                one[name] = (at, until, spent, own)
            if alone:
                marks.append(one)
            else:
                left_out += 1
        # Transactions are written out with a delay.
        time.sleep(2)
        ends = load.ends()
    if left_out:
        print(f"{left_out} rounds left out: others recorded or observed", file=sys.stderr)
    rounds = []
    for one in marks:
        counted = {}
        for name, (at, until, spent, own) in one.items():
            done = int(np.searchsorted(ends, until) - np.searchsorted(ends, at))
            counted[name] = {
                "tps": done / (until - at), "ns": spent / max(done, 1), "own": own / max(spent, 1)
            }  # fmt: skip
        rounds.append(counted)
    return rounds


def _watches(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("ztune-recorder", "ztune-observer")
    except OSError:
        return False


def _strangers() -> set[int]:
    """Recorders and observers that are not ours."""
    all_ = {int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()}
    return {pid for pid in all_ - set(procfs.descendants([os.getpid()])) if _watches(pid)}


def kept(path: Path | None, script: str, rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add ``rounds`` to those of ``script`` in the file, and return all of them."""
    if path is None:
        return rounds
    known: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}
    known.setdefault(script, []).extend(rounds)
    path.write_text(json.dumps(known))
    return known[script]


def described(rounds: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Return by variant medians, and ratios to the unwatched ones with 95 % bootstrap intervals."""
    out: dict[str, Any] = {"rounds": len(rounds)}
    for name in rounds[0]:
        unwatched = [n for n in (BASE, AGAIN) if n in rounds[0]] if name not in (BASE, AGAIN) else [BASE]
        mine = [one for one in rounds if all(one[n]["tps"] > 0 for n in (name, *unwatched))]
        out[name] = {
            "tps_median": round(statistics.median(one[name]["tps"] for one in mine), 1),
            "cpu_us_median": round(statistics.median(one[name]["ns"] for one in mine) / 1e3, 2),
            "own_share": round(statistics.median(one[name]["own"] for one in mine), 4),
        }
        for label, key in (("tps", "tps"), ("cpu", "ns")):
            ratios = np.array(
                [one[name][key] / statistics.mean(one[n][key] for n in unwatched) for one in mine]
            )
            out[name][f"{label}_relative"] = round(centre(ratios), 4)
            out[name][f"{label}_relative_95"] = interval(ratios, seed)
    return out
