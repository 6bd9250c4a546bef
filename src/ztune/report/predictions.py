"""What replays predict of the recorded load under each layout, for the terminal and HTML."""

from __future__ import annotations

from dataclasses import dataclass

from ztune.advice.model import Recommendation, Row
from ztune.analysis import units
from ztune.databases.database import every
from ztune.units import listed

_KEPT = 0.99  # share of the recorded pace that counts as all of it: a recording ends with a last call
_CALLS = ("sync_p50", "sync_p99", "read_p99")
_HEADS = ("commit p50", "p99", "read p99")
_OPERATIONS = ("operation_p50", "operation_p99")
# Beside those, for 80 columns: what commits take in the median is in what operations take.
_BESIDE, _BESIDE_HEADS = ("sync_p99", "read_p99"), ("commit p99", "read p99")
ACCURACY = (
    "Held against PostgreSQL, MariaDB and SQLite on mounts, 29 of 32 such ratios were within 15 %; "
    "the others, all of records of 8K, were 17 and 20 % too low and 19 % too high."
)
"""How far such a ratio can be trusted: docs/accuracy.md, "Predicted throughput"."""
OPERATIONS_ACCURACY = (
    "What one {unit} takes was within 15 % in 24 of 30 such figures on an HDD, on an SSD in 18 of 30, most "
    "too short, since a mount takes time of its own."
)
ROWS = {
    True: "these wait for each other, as for rows, as when recorded, and would more often on slower disks",
    False: "how often these wait for each other, as for rows, is not known",
}
"""Whether a recording tells whose commits threads had waited for → what is known of rows."""
NOT_TOLD = "What one {unit} takes is not predicted: not each has a sync of its own."


@dataclass(frozen=True)
class PredictedLoad:
    """A table of predictions. ``rows``: a layout, and a text below each of ``heads``; ``meaning``: how to
    read them."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Row, tuple[str, ...]], ...]
    meaning: str


def _with_logs() -> list[str]:
    """Return the databases whose threads share a log that a replay writes as they would."""
    return [one.facts.title for one in every() if any(files.logs for files in one.facts.files)]


def predicted_load(r: Recommendation, most: int | None = None) -> PredictedLoad | None:
    """Return what the replays predict: which part of its rate a job with one keeps, or how fast one without
    goes, as a multiple of the base, and what their calls take.

    ``most``: the first so many layouts, the base and the recommended one. None where results don't say, or
    are of different jobs.
    """
    known = [row for row in r.ranking if {"pace", "speed"} & row.values.keys() and not r.per_operation]
    rows = [row for i, row in enumerate(known) if most is None or i < most or row.baseline or row.recommended]
    if not rows:
        return None
    base = next((row.values.get("speed") for row in known if row.baseline), None)
    meaning = (
        "Predicted, not measured. The database's own background work and its processor time stay as "
        f"recorded; so does the number of commits per sync, except for {listed(_with_logs())}."
    )
    if base:
        meaning = (
            "Predicted, not measured. The database's processor time stays as recorded; its background work "
            f"keeps step with the clients; {ROWS[r.recorded is not None and r.recorded.waits]}. "
            f"Throughput is a multiple of the base's, with clients that go as fast as they can. {ACCURACY}"
        )
        unit = "operation" if r.recorded is None else r.recorded.unit
        told = any(set(_OPERATIONS) & row.values.keys() for row in rows)
        keys = (*_OPERATIONS, *_BESIDE) if told else _CALLS
        return PredictedLoad(
            ("throughput", *((f"{unit} p50", "p99", *_BESIDE_HEADS) if told else _HEADS)),
            tuple((row, (_times(row.values.get("speed"), base), *_calls(row, keys))) for row in rows),
            f"{meaning} {(OPERATIONS_ACCURACY if told else NOT_TOLD).format(unit=unit)}",
        )
    offered = r.recorded is not None and r.recorded.offered
    if r.recorded is not None and offered and all(row.values.get("pace", 0.0) > _KEPT for row in rows):
        each = f"{units.show(r.recorded.per_second, 'rate')} {r.recorded.unit}s/s"
        meaning = f"All of these keep the rate that was set, {each}. {meaning}"
        return PredictedLoad(_HEADS, tuple((row, _calls(row)) for row in rows), meaning)
    meaning += " No layout reaches more than what was recorded."
    if r.recorded is not None and not offered:
        meaning += " ≥: its job had no rate of its own, and may go faster."
    unit = "of its pace" if r.recorded is None else f"{r.recorded.unit}s/s"
    return PredictedLoad(
        (unit, *_HEADS),
        tuple((row, (_pace(r, row.values.get("pace")), *_calls(row))) for row in rows),
        meaning,
    )


def _times(speed: float | None, base: float) -> str:
    return "–" if speed is None else units.times(speed / base)


def _calls(row: Row, keys: tuple[str, ...] = _CALLS) -> tuple[str, ...]:
    return tuple(row.text(k, "ms") for k in keys)


def _pace(r: Recommendation, share: float | None) -> str:
    if share is None:
        return "–"
    if r.recorded is None:
        return units.show(share, "share")
    least = "≥ " if share > _KEPT and not r.recorded.offered else ""
    return f"{least}{units.show(r.recorded.per_second * share, 'rate')}"
