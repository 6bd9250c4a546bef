"""What a trace shows: sizes, sync, sequence, overwriting, alignment, working set, rates; by role and by file.

The definitions are in docs/trace-format.md ("What `ztune trace show` computes") and in ``figures.py``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ztune.onhost.words import ROLES
from ztune.trace.event_counts import DIRECTLY, ROLE_NAMES, SECOND_NS, EventCounts, N
from ztune.trace.figures import (
    NO_ROLE,
    CallSizes,
    GroupSummary,
    Latencies,
    Rates,
    Summary,
    Transfers,
)
from ztune.trace.frames import pl
from ztune.trace.latencies import latencies
from ztune.trace.manifest import Manifest, TraceFile
from ztune.trace.reader import Trace
from ztune.trace.schema import Op, Via

ALIGNMENTS = (512, 4096, 8192)
MOST_BINS = 4096  # the bins of the rates double from 1 s until they are no more


class _Counts:
    """What was counted, by ``key``: "role" (a place in ``ROLE_NAMES``) or "file"."""

    def __init__(
        self,
        tally: EventCounts,
        totals: pl.DataFrame,
        key: str,
        alignments: Sequence[int],
        calls: Mapping[int, str],
    ) -> None:
        self._alignments = alignments
        self._calls = calls
        self._totals = _by(totals.group_by(key).agg(pl.exclude("role", "file").sum()), key)
        self._sizes: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
        sizes = tally.sizes.total().lazy().join(totals.lazy().select("file", "role"), on="file")
        asked = pl.col("how") % (1 << DIRECTLY)
        for one, call, size, n in (
            sizes.group_by(key, "size", asked=asked).agg(N.sum())
            .select(key, "asked", "size", "n").sort("size").collect().iter_rows()
        ):  # fmt: skip
            self._sizes[one].setdefault(call, []).append((size, n))

    def busiest(self) -> list[int]:
        """Return the keys, those first that moved the most bytes."""
        moved = {one: total["read_bytes"] + total["write_bytes"] for one, total in self._totals.items()}
        return sorted(moved, key=lambda one: (-moved[one], one))

    def group(
        self,
        one: int,
        name: str,
        entries: list[TraceFile],
        page_size: int | None,
        latencies: Latencies | None,
    ) -> GroupSummary:
        """Return the counts of ``one``, the files ``entries``, as ``name``."""
        total, kinds = self._totals.get(one, defaultdict(int)), self._sizes[one]
        left: dict[int, list[int]] = defaultdict(list)
        for size in sorted(_size_end(entry) for entry in entries if not entry.deleted):
            left[_bucket(size)].append(size)
        return GroupSummary(
            name=name,
            role=entries[0].role,
            files=len(entries),
            size_start=sum(entry.size_start for entry in entries),
            size_end=sum(map(_size_end, entries)),
            file_sizes={low: len(sizes) for low, sizes in left.items()},
            file_size_bytes={low: sum(sizes) for low, sizes in left.items()},
            reads=self._transfers(one, "read", Op.READ),
            writes=self._transfers(one, "write", Op.WRITE),
            syncs=total["syncs"],
            sync_latency_ms=latencies,
            sync_writes=total["sync_writes"],
            sync_write_bytes=total["sync_write_bytes"],
            overwritten_bytes=total["overwritten"],
            pages=total["pages"],
            page_size=page_size,
            operations={
                op.name.lower(): sum(n for _, n in found)
                for op in Op
                if (found := [one for asked, sizes in kinds.items() if asked % 16 == op for one in sizes])
            },
        )

    def _transfers(self, one: int, kind: str, op: Op) -> Transfers:
        total = self._totals.get(one, defaultdict(int))
        count = total[f"{kind}_count"]
        found = {asked // 16: sizes for asked, sizes in self._sizes[one].items() if asked % 16 == op}
        together = sorted(size for sizes in found.values() for size in sizes)
        size_bytes: dict[int, int] = defaultdict(int)
        for size, n in together:
            size_bytes[_bucket(size)] += n * size
        everything = _sizes_of(together)
        by_call = [(self._calls[call].format(kind), _sizes_of(sizes)) for call, sizes in found.items()]
        return Transfers(
            count=count,
            bytes=total[f"{kind}_bytes"],
            sizes=everything.sizes,
            size_bytes=dict(size_bytes),
            sequential=_share(total[f"{kind}_sequential"], count),
            aligned={to: _share(total[f"{kind}_{to}"], count) for to in self._alignments},
            pages=total[f"{kind}_pages"],
            mean=everything.mean,
            stdev=everything.stdev,
            by_call=dict(sorted(by_call, key=lambda named: (-named[1].count, named[0]))),
        )


def _size_end(entry: TraceFile) -> int:
    return entry.size_end if entry.size_end >= 0 else entry.size_start


def _bucket(size: int) -> int:
    """Return the power of two that begins the bucket of ``size``; 0 for 0."""
    return 1 << (size.bit_length() - 1) if size else 0


def _sizes_of(counted: Iterable[tuple[int, int]]) -> CallSizes:
    """Return what ``counted`` comes to: sizes in bytes, smallest first, and how many calls had each."""
    sizes: dict[int, int] = defaultdict(int)
    count = total = squares = 0
    for size, n in counted:
        sizes[_bucket(size)] += n
        count, total, squares = count + n, total + n * size, squares + n * size * size
    if not count:
        return CallSizes(0, 0, 0.0, 0.0, {})
    # In whole numbers, which are exact however large they are.
    stdev = math.sqrt(count * squares - total * total) / count
    return CallSizes(count, total, round(total / count, 3), round(stdev, 3), dict(sizes))


def _by(found: pl.DataFrame, key: str) -> dict[int, dict[str, Any]]:
    return {row[key]: row for row in found.iter_rows(named=True)}


def summarise(trace: Trace, files: int | None = None) -> Summary:
    """Return the summary of ``trace``, with the ``files`` busiest files (default: all that have events).

    Raises InputError if the trace is damaged, or its sizes add up to more than 2^62.
    """
    manifest = trace.manifest
    alignments = sorted({*ALIGNMENTS, *manifest.page_size.values()})
    of_role: dict[str, list[TraceFile]] = {name: [] for name in (*ROLES, NO_ROLE)}
    for entry in manifest.files:
        of_role[entry.role or NO_ROLE].append(entry)
    of_role = {name: entries for name, entries in of_role.items() if entries}
    tally = EventCounts(manifest.files, alignments)
    for part in trace.parts("t", "dur", "op", "via", "flags", "file", "offset", "size"):
        tally.add(part)
    tally.finish()
    totals = tally.totals()
    calls = _calls(manifest)
    by_role, by_file = (_Counts(tally, totals, key, alignments, calls) for key in ("role", "file"))
    busiest = [manifest.files[one] for one in by_file.busiest()[:files]]
    sync_times = latencies(trace, tally.syncs.total(), [entry.id for entry in busiest])

    def page_size(entry: TraceFile) -> int | None:
        return manifest.page_size.get(entry.role) if entry.role is not None else None

    bin_s, rates = _rates(max(manifest.duration_ns, tally.end, 1), tally.rates.total(), list(of_role))
    return Summary(
        name=trace.name,
        manifest=manifest,
        roles=[
            by_role.group(
                ROLE_NAMES.index(name), name, of, page_size(of[0]), sync_times.get(ROLE_NAMES.index(name))
            )
            for name, of in of_role.items()
        ],
        files=[
            by_file.group(one.id, one.path, [one], page_size(one), sync_times.get(len(ROLE_NAMES) + one.id))
            for one in busiest
        ],
        global_syncs=tally.global_syncs,
        bin_s=bin_s,
        rates=rates,
    )


def _calls(manifest: Manifest) -> dict[int, str]:
    """Return ``CALL`` → the name of the call, with {} for read or write."""
    plain = "{0}" if manifest.version >= 3 else "{0} or p{0}"  # older traces don't tell them apart
    names = {Via.SYSCALL: (plain, "p{0}"), Via.AIO: ("aio",) * 2, Via.URING: ("io_uring",) * 2}
    return {2 * via + positioned: both[positioned] for via, both in names.items() for positioned in (0, 1)}


def _rates(length: int, counted: pl.DataFrame, names: list[str]) -> tuple[float, dict[str, Rates]]:
    """Return the seconds of a bin and the rates of the roles ``names``; ``length``: of the trace, ns."""
    width = 1
    while (bins := -(-length // (width * SECOND_NS))) > MOST_BINS:
        width *= 2
    rates = {name: Rates(*([0] * bins for _ in range(5))) for name in names}
    for second, role, op, n, size in counted.select("second", "role", "op", "n", "bytes").iter_rows():
        mine, place = rates[ROLE_NAMES[role]], second // width
        if op == Op.READ:
            mine.reads[place] += n
            mine.read_bytes[place] += size
        elif op == Op.WRITE:
            mine.writes[place] += n
            mine.write_bytes[place] += size
        else:
            mine.syncs[place] += n
    return float(width), rates


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
