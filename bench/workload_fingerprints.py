"""Runs each workload at a small scale below the recorder: the table of their I/O in docs/workloads.md.

    python bench/workload_fingerprints.py [WORKLOAD ...]     all, or those named; the rows of others stay

The rates say what this machine did, not what any layout of ZFS does; the sizes and what is synced are the
workload's own.
A workload whose server isn't installed is named and left out.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import started

from ztune.cli._recording import record_workload
from ztune.databases import registry
from ztune.databases.workload import JobWorkload
from ztune.errors import MissingError
from ztune.trace.figures import GroupSummary
from ztune.trace.summary import summarise
from ztune.units import format_size

PAGE = Path(__file__).parents[1] / "docs" / "workloads.md"
BLOCK = re.compile(r"(<!-- fingerprints -->\n)(.*?)(<!-- end fingerprints -->)", re.DOTALL)
HEAD = (
    "| workload | version | input | seconds | operations | role | write sizes, share of calls | writes/s | "
    "syncs/s |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)
SMALL: dict[str, dict[str, object]] = {
    "postgres-oltp": {"scale": 5, "rate": 200, "seconds": 10},
    "postgres-backup": {"scale": 5, "rate": 200},
    "postgres-restore": {"scale": 5},
    "mariadb-oltp": {"size": "64M", "rate": 100, "seconds": 10},
    "sqlite": {"size": "64M", "rate": 100, "seconds": 10},
    "rocksdb": {"size": "64M", "rate": 500},
    "valkey": {"rate": 500, "seconds": 10},
    "mongo-restore": {"documents": 50_000, "engine": "wiredtiger"},
    "fio": {"size": "64M", "seconds": 10},
    "orientdb-graph": {"triples": 5000},
    "orientdb-import": {"triples": 5000},
    "orientdb-backup": {"triples": 5000},
    "orientdb-archive": {"triples": 5000},
    "orientdb-lucene": {"triples": 5000},
    "ldap-import": {"entries": 5000},
    "http": {"size": "64M", "requests": 1000},
}
LEAST_SHARE = 0.02


def sizes(group: GroupSummary) -> str:
    """Return the write sizes that matter, as `8K 93 % · 16K 7 %`; a size stands for those up to twice it."""
    total = group.writes.count
    if not total:
        return "none"
    shown = [
        f"{format_size(size) if size >= 1024 else f'{size}B'} {round(100 * count / total)} %"
        for size, count in sorted(group.writes.sizes.items())
        if count / total >= LEAST_SHARE
    ]
    return " · ".join(shown)


def rows(name: str) -> str:
    """Run one workload; return its rows of the table."""
    made = registry.get(name)(SMALL[name])
    assert isinstance(made, JobWorkload)
    with tempfile.TemporaryDirectory() as folder:
        trace = record_workload(made, "auto", Path(folder) / "run.trace")
        summary = summarise(trace)
    workload = summary.manifest.workload
    assert workload is not None
    result = workload.result
    asked = ", ".join(f"{key}={value}" for key, value in SMALL[name].items())
    lines = []
    for group in summary.roles:
        if group.role is None:
            continue
        seconds = result["seconds"]
        lines.append(
            f"| `{name}` | {workload.version} | {asked} | {seconds:.1f} | {result['operations']} | "
            f"{group.role} "
            f"| {sizes(group)} | {group.writes.count / seconds:.0f} | {group.syncs / seconds:.0f} |\n"
        )
    return "".join(lines)


def main() -> None:
    """Run the workloads and write the table."""
    text = PAGE.read_text(encoding="utf-8")
    found = BLOCK.search(text)
    assert found is not None
    kept: dict[str, list[str]] = {name: [] for name in SMALL}
    for line in found[2].splitlines(keepends=True):
        name = line.split("`")[1] if line.startswith("| `") else ""
        if name in kept:
            kept[name].append(line)
    table = {name: "".join(lines) for name, lines in kept.items()}
    for name in sys.argv[1:] or SMALL:
        print(f"{name} …", flush=True)
        try:
            table[name] = rows(name)
        except MissingError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    # Read again: it may have been edited while the workloads ran.
    text = PAGE.read_text(encoding="utf-8")
    page = BLOCK.sub(lambda m: m[1] + HEAD + "".join(table.values()) + m[3], text)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    started.script(main)
