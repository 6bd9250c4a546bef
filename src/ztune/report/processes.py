"""What the processes of a trial asked of the system, and the interrupts of its host, for both outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from ztune import output
from ztune.analysis import units
from ztune.store.records import Trial

_MOST = 12  # processes, sources of interrupts
_MOST_CALLS = 8  # system calls of a process
COLUMNS = ("processes", "CPU", "read calls", "write calls", "switches", "forced")
"""``switches``: the process waited; ``forced``: another took its processor."""


@dataclass(frozen=True)
class ProcessTable:
    """What one trial's probes ``cpu`` and ``syscalls`` counted, as text."""

    rows: Sequence[tuple[str, Sequence[str]]]
    """Process and its cells, in the order of ``COLUMNS``."""
    calls: Sequence[tuple[str, str]]
    """Process and its system calls; empty where nobody watched them."""
    interrupts: Sequence[tuple[str, str]]
    """Kind and its sources, of the whole host."""
    lacking: str
    """What is not known, and why, as a sentence; empty where all is."""


def of(trial: Trial) -> ProcessTable:
    """Return what is known of a trial's processes; without rows for one before ztune counted them."""
    probes = (trial.result or {}).get("probes") or {}
    cpu = probes.get("cpu") or {}
    rows = [
        (
            str(row["name"]),
            [
                units.count(row["processes"]),
                units.seconds(row["user_s"] + row["system_s"]),
                *(_count(row[key]) for key in ("read_calls", "write_calls")),
                *(_count(row[key]) for key in ("voluntary_switches", "involuntary_switches")),
            ],
        )
        for row in (cpu.get("by_process") or [])[:_MOST]
    ]
    by_process = (probes.get("syscalls") or {}).get("by_process") or {}
    calls = [(str(name), _calls(of_one)) for name, of_one in by_process.items()]
    interrupts = [
        (kind, _most({str(k): float(v) for k, v in found.items()}))
        for kind, key in (("interrupts", "interrupts"), ("software interrupts", "softirqs"))
        if (found := cpu.get(key))
    ]
    lacking = []
    if rows and not calls:
        lacking.append(
            "Other system calls than reads and writes were not counted: the probe syscalls was off."
        )
    if rows and not interrupts:
        lacking.append("Interrupts are not known: this host shows none in /proc/interrupts.")
    return ProcessTable(rows, calls[:_MOST], interrupts, " ".join(lacking))


def _count(value: Any) -> str:
    return "–" if value is None else units.count(value)


def _calls(found: Mapping[str, Mapping[str, Any]]) -> str:
    most = sorted(found.items(), key=lambda item: -item[1]["calls"])
    shown = [f"{name} {units.count(n['calls'])} ({units.seconds(n['seconds'])})" for name, n in most]
    rest = sum(n["calls"] for _, n in most[_MOST_CALLS:])
    return ", ".join([*shown[:_MOST_CALLS], *([f"others {units.count(rest)}"] if rest else [])])


def _most(found: Mapping[str, float]) -> str:
    most = sorted(found.items(), key=lambda item: -item[1])
    rest = sum(n for _, n in most[_MOST:])
    shown = [f"{name} {units.count(n)}" for name, n in most[:_MOST]]
    return ", ".join([*shown, *([f"others {units.count(rest)}"] if rest else [])])


def show(told: ProcessTable, console: output.Console) -> None:
    """Print the table, and what else is known; nothing without rows."""
    if not told.rows:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("process", min_width=22)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, cells in told.rows:
        table.add_row(output.Text(name), *(output.Text(cell) for cell in cells))
    console.print(table)
    for name, text in (*told.calls, *told.interrupts):
        console.print(output.Text(f"{name}: {text}"))
    if told.lacking:
        console.print(output.Text(told.lacking))
