"""Writes by size of files in ``studies/published``: role, writes by size, and the record size concluded."""

from __future__ import annotations

from collections import Counter

from ztune.claims import publication


def _sizes(study: str, *histograms: str) -> dict[int, int]:
    """Return the calls by size that the histograms have together."""
    found = {h.name: h.counts for h in publication.find(study).histogram}
    total: Counter[int] = Counter()
    for name in histograms:
        total.update({int(size): calls for size, calls in found[name].items()})
    return dict(sorted(total.items()))


# OrientDB 1.7.4, single-threaded load of triples (2014).
GRAPH: dict[str, tuple[str, dict[int, int], int]] = {
    "data": ("data", _sizes("orientdb-graph", "writes-data-write", "writes-data-pwrite"), 65536),
    "wal": ("wal", _sizes("orientdb-graph", "writes-wal-write"), 65536),
    "backup": ("backup", _sizes("orientdb-graph", "writes-backup-write"), 524288),
    "lucene": ("index", _sizes("orientdb-graph", "writes-lucene-write"), 8192),
}
# OrientDB 1.6.4, import of a JSON export (2014).
IMPORT: dict[str, tuple[str, dict[int, int], int]] = {
    "wal": ("wal", _sizes("orientdb-import", "writes-wal"), 65536),
    "data": ("data", _sizes("orientdb-import", "pwrite-data"), 65536),
}
