"""The load: what pgbench is asked to run, and what its output and its log say happened."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import ZtuneError

MIX21 = """\
\\set aid1 random(1, 100000 * :scale)
\\set aid2 random(1, 100000 * :scale)
\\set aid3 random(1, 100000 * :scale)
\\set aid4 random(1, 100000 * :scale)
\\set aid5 random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid1;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid2;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid3;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid4;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid5;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid5, :delta,
CURRENT_TIMESTAMP); END;
"""
"""Two reads for every write: four reads by key, one update and one insert per transaction, evenly spread."""


_PROGRESS = re.compile(r"progress: ([\d.]+) s, ([\d.]+) tps")
_PROCESSED = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)
_TPS = re.compile(r"^tps = ([\d.]+) \(without initial connection time\)", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: (\d+)", re.MULTILINE)
MAX_LOGGED = 2_000_000
"""Lines of pgbench's log that we are ready to read; longer runs are sampled."""


@dataclass(frozen=True, slots=True)
class PgbenchReport:
    """What pgbench says it did."""

    transactions: int
    failed: int
    tps: float | None = None
    """Transactions per second from the first to the end of the last, time to connect left out."""


def parse_progress(line: str) -> float | None:
    """Return the seconds gone by, from a line of ``--progress``; ``None`` for any other line."""
    match = _PROGRESS.search(line)
    return float(match[1]) if match else None


def parse_output(text: str) -> PgbenchReport:
    """Read pgbench's closing report.

    Raises:
        ZtuneError: it has no count of transactions.
    """
    processed = _PROCESSED.search(text)
    if processed is None:
        raise ZtuneError(f"pgbench's report names no number of transactions: {text.strip()[-200:]!r}")
    failed = _FAILED.search(text)  # Since PostgreSQL 15.
    tps = _TPS.search(text)
    return PgbenchReport(int(processed[1]), int(failed[1]) if failed else 0, float(tps[1]) if tps else None)


def sampling_rate(seconds: float, *, expected_tps: float = 10_000.0) -> float:
    """Return the share of transactions to log so that at most about ``MAX_LOGGED`` lines are written."""
    return min(1.0, MAX_LOGGED / max(1.0, seconds * expected_tps))


def read_latencies(logs: Iterable[Path]) -> list[float]:
    """Return the latencies in ms of the transactions in pgbench's per-transaction logs (``--log``), sorted.

    The third field of a line is the time in µs; a word there (``failed``, ``skipped``) is no latency. With a
    rate limit pgbench counts from when the transaction was due, so waiting for a slow predecessor is
    included.
    """
    values: list[int] = []
    for path in logs:
        with path.open("r", encoding="ascii", errors="replace") as file:
            for line in file:
                parts = line.split()
                if len(parts) >= 6 and parts[2].isdigit():
                    values.append(int(parts[2]))
    values.sort()
    return [value / 1000.0 for value in values]
