"""Which databases crash tests can run: those whose folders bring a class for it."""

from __future__ import annotations

from ztune.databases.crash_test import TestedDatabase
from ztune.databases.database import every
from ztune.errors import InputError


def names() -> list[str]:
    """Return the workloads whose databases crash tests can run."""
    return [name for one in every() for name in one.facts.crash]


def database_of(workload: str) -> type[TestedDatabase]:
    """Return the class for ``workload``.

    Raises:
        InputError: crash tests can't run it, or a third party's can't be imported.
    """
    for one in every():
        if workload in one.facts.crash:
            found: type[TestedDatabase] = one.load(one.facts.crash[workload])
            return found
    raise InputError(f"crash tests run the databases of {', '.join(names())}, not of {workload!r}")
