"""Whether recorded data repeats at a distance, as no user's does: from what its samples compressed to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ztune.trace.manifest import Compressibility
from ztune.units import format_size

SHORT_SIGHTED = "gzip-6"  # sees 32 KiB back, lz4 64 KiB and zstd-3 2 MiB
JUMP = 1.25
"""So many times better beside ``SHORT_SIGHTED`` than at a smaller record size: data repeats further back than
gzip sees. Of eight kinds of real files (programs, libraries, documentation, package lists, Python packages)
none came to more than 1.12, of the files of seven of our databases none to more than 1.15 (InnoDB's). What
``db_bench`` writes, pieces of one buffer of 1 MiB, came to 1.46, compressed by snappy to 1.82."""

EMPTY = 30
"""Where ``SHORT_SIGHTED`` itself reaches so much, records hold next to nothing but zeros (files that are
allocated ahead, such as InfluxDB's of series), and the algorithms differ in what they make of zeros."""


def repeats(measured: Iterable[Compressibility]) -> list[str]:
    """Return a sentence for each role whose data repeats at a distance, as no user's does.

    At one record size an algorithm becomes ``JUMP`` times better than it was at smaller ones, while
    ``SHORT_SIGHTED``, which can't see so far, does not. Logs are left out: they hold images of the same pages
    again and again, everybody's (SQLite's WAL: zstd-3 6.35:1 at 1M, 3.43:1 at 128K; gzip 3.19 and 3.07).
    """
    by_role: dict[str, dict[str, dict[int, float]]] = {}
    for entry in measured:
        # Of all over the files, which is what JUMP was chosen on.
        if entry.blocks and entry.role != "wal" and not entry.touched:
            by_role.setdefault(entry.role, {}).setdefault(entry.algorithm, {})[entry.recordsize] = entry.ratio
    out = []
    for role, by_algorithm in by_role.items():
        plain = by_algorithm.pop(SHORT_SIGHTED, {})
        found = [
            (jump, algorithm, by_algorithm[algorithm])
            for algorithm in sorted(by_algorithm)
            if (jump := _jump(by_algorithm[algorithm], plain)) is not None
        ]
        if not found:
            continue
        (small, large), algorithm, ratios = min(found)
        out.append(
            f"the files of role {role} repeat at a distance of about {format_size(small)} to "
            f"{format_size(large)}: {algorithm} shrinks them {ratios[large]:.2f}:1 in records "
            f"of {format_size(large)}, {ratios[small]:.2f}:1 in records of {format_size(small)}, "
            f"{SHORT_SIGHTED} {plain[large]:.2f} and {plain[small]:.2f}. "
            "Synthetic data? Yours will not gain from such records"
        )
    return out


def _jump(ratios: Mapping[int, float], plain: Mapping[int, float]) -> tuple[int, int] | None:
    """Return the two neighbouring record sizes between which the jump begins; None for no jump."""
    sizes = sorted(size for size in ratios.keys() & plain.keys() if plain[size] < EMPTY)
    beside = [ratios[size] / plain[size] for size in sizes]
    gains = [now / min(beside[: n + 1]) for n, now in enumerate(beside)]
    if not gains or max(gains) < JUMP:
        return None
    # Records that are a little longer than the distance gain a little.
    first = next(n for n, gain in enumerate(gains) if gain > math.sqrt(JUMP))
    return sizes[first - 1], sizes[first]
