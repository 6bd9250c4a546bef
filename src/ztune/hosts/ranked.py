"""One ranked table of what was found on many hosts: what many have is one row of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ztune.advice.findings import Finding, findings
from ztune.advice.rules import SEVERITIES
from ztune.hosts.asking import HostAnswer
from ztune.observe.model import Observation


@dataclass(frozen=True)
class RankedFinding:
    """One finding, and the hosts that have it about the same dataset, pool, database or the host itself."""

    hosts: tuple[str, ...]
    about: str
    """The dataset, else the pool, the database's kind, or "host"."""
    finding: Finding
    """As the busiest of the hosts has it."""


def ranked(answers: Iterable[HostAnswer]) -> list[RankedFinding]:
    """Return what was found: the worst first, then what most hosts have, then where most is written."""
    rows: dict[tuple[str, str], list[tuple[int, str, Finding]]] = {}
    for answer in answers:
        if answer.seen is None:
            continue
        for finding in findings(answer.seen):
            name = about(finding)
            weight = written(answer.seen, finding.about.get("dataset"))
            rows.setdefault((finding.id, name), []).append((weight, answer.host.name, finding))
    found = []
    for (_id, name), row in rows.items():
        row.sort(key=lambda one: (-one[0], one[1]))
        hosts = tuple(dict.fromkeys(host for _, host, _ in row))
        found.append((row[0][0], RankedFinding(hosts, name, row[0][2])))
    found.sort(key=lambda one: (SEVERITIES.index(one[1].finding.severity), -len(one[1].hosts), -one[0]))
    return [row for _, row in found]


def about(finding: Finding) -> str:
    """Return what a finding speaks of, in a word."""
    known = (finding.about.get(name) for name in ("dataset", "pool", "database"))
    return next((name for name in known if name), "host")


def written(seen: Observation, dataset: str | None) -> int:
    """Return the bytes that were written to a dataset in the window, as ZFS counted; None: to all."""
    counters = seen.zfs.counters if seen.zfs else {}
    return sum(
        counted.get("nwritten", 0)
        for name, counted in counters.items()
        if name.startswith("objset ") and dataset in (None, name.removeprefix("objset "))
    )


def severities(rows: Sequence[RankedFinding]) -> Counter[str]:
    """Return how many hosts have something of each severity."""
    hosts = {(row.finding.severity, host) for row in rows for host in row.hosts}
    return Counter(severity for severity, _ in hosts)
