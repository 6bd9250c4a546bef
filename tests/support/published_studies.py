"""The write-size histograms of published studies: role, writes by size, and the record size concluded."""

from __future__ import annotations

# OrientDB 1.7.4, single-threaded load of triples (2014).
GRAPH: dict[str, tuple[str, dict[int, int], int]] = {
    "data": ("data", {1: 65, 8: 5, 32: 5, 65536: 289_755}, 65536),
    "wal": ("wal", {65536: 102_876}, 65536),
    "backup": ("backup", {131072: 1, 524288: 811}, 524288),
    "lucene": (
        "index",
        {
            8: 2, 16: 5, 32: 30, 64: 1, 128: 23, 256: 13, 512: 14, 1024: 30, 2048: 11, 4096: 72, 8192: 8983,
        },
        8192,
    ),
}  # fmt: skip
# OrientDB 1.6.4, import of a JSON export (2014).
IMPORT: dict[str, tuple[str, dict[int, int], int]] = {
    "wal": ("wal", {1: 5260, 65536: 1819}, 65536),
    "data": (
        "data",
        {1: 275, 8: 399, 256: 13, 512: 12, 1024: 26, 2048: 47, 4096: 35, 65536: 2423},
        65536,
    ),
}
