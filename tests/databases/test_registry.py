from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from ztune.databases import registry
from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.errors import InputError


class Fine(PostgresOltp):
    name = "fine"
    summary = "somebody's own"


class Poor:
    name = "poor"


def points(**found: str) -> object:
    made = [EntryPoint(name.replace("_", "-"), value, registry.GROUP) for name, value in found.items()]
    return lambda group: made if group == registry.GROUP else []


def test_ours_is_found_by_name() -> None:
    assert "postgres-oltp" in registry.names()
    assert registry.get("postgres-oltp") is PostgresOltp


def test_unknown_name_suggests_one() -> None:
    with pytest.raises(InputError, match="did you mean 'postgres-oltp'"):
        registry.get("postgres_oltp")


def test_third_party_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    monkeypatch.setattr(
        registry,
        "entry_points",
        points(
            fine=f"{here}:Fine",
            poor=f"{here}:Poor",
            broken="no.such.module:Thing",
            postgres_oltp=f"{here}:Fine",
        ),
    )
    assert registry.get("fine") is Fine
    # Nobody takes over a name of ours.
    assert registry.get("postgres-oltp") is PostgresOltp
    with pytest.raises(InputError, match=r"is not a workload: it has no summary, Parameters"):
        registry.get("poor")
    with pytest.raises(InputError, match="can't be loaded"):
        registry.get("broken")
    listed = {entry.name: entry for entry in registry.entries()}
    ours = [name for name, entry in listed.items() if entry.source == "ztune"]
    assert list(listed) == [*ours, "broken", "fine", "poor"] and ours[0] == "postgres-oltp"
    assert listed["broken"].summary.startswith("broken: ")
    assert listed["fine"].summary == "somebody's own"
    assert listed["postgres-oltp"].source == "ztune"
