"""What an observation shows, as flat facts of its roles, datasets, pools, databases and host."""

from __future__ import annotations

from ztune.advice import observed_databases, observed_host, observed_roles
from ztune.advice.fact import Fact, Subject
from ztune.advice.observed_databases import database_facts
from ztune.advice.observed_datasets import DATASET_FACTS, POOL_FACTS, dataset_facts, find, pool_facts
from ztune.advice.observed_host import host_facts
from ztune.advice.observed_roles import NO_ROLE, dataset_name, role_facts
from ztune.observe.model import Observation

HOST, ROLE, DATABASE = observed_host.FACTS, observed_roles.FACTS, observed_databases.FACTS
SCOPES: dict[str, dict[str, Fact]] = {
    "role": {**HOST, **POOL_FACTS, **DATASET_FACTS, **ROLE},
    "dataset": {**HOST, **POOL_FACTS, **DATASET_FACTS},
    "pool": {**HOST, **POOL_FACTS},
    "database": {**HOST, **DATABASE},
    "host": HOST,
}
"""Scope → the facts that its rules may ask for: those of a role include those of its dataset, pool and
host, where they are known."""
NAMES: dict[str, frozenset[str]] = {
    "role": frozenset({"role"}),
    "dataset": frozenset({"dataset", "pool"}),
    "pool": frozenset({"pool"}),
    "database": frozenset({"database", "where"}),
    "host": frozenset(),
}
"""Scope → the facts that each of its subjects has."""


def subjects(observation: Observation) -> list[Subject]:
    """Return all that rules can be asked about: roles first, the host last."""
    host = host_facts(observation)
    zfs = observation.zfs
    pools = {p.name: {**host, **pool_facts(observation, p)} for p in (zfs.pools if zfs else ())}
    no_pool = {**host, **dict.fromkeys(POOL_FACTS)}
    datasets = {
        d.name: {**pools.get(d.pool, {**no_pool, "pool": d.pool}), **dataset_facts(observation, d)}
        for d in (zfs.datasets if zfs else ())
    }
    no_dataset = {**no_pool, **dict.fromkeys(DATASET_FACTS)}
    found: list[Subject] = []
    for group in observation.of_kind("role"):
        if group.name == NO_ROLE:
            continue
        name = dataset_name(observation, group)
        about = {"role": group.name}
        if name is not None and find(observation, name) is not None:
            about |= {"dataset": name, "pool": str(datasets[name]["pool"])}
        facts = {**datasets.get(name or "", no_dataset), **role_facts(observation, group)}
        found.append(Subject("role", about, facts))
    found += [
        Subject("dataset", {"dataset": name, "pool": str(facts["pool"])}, facts)
        for name, facts in datasets.items()
    ]
    found += [Subject("pool", {"pool": name}, facts) for name, facts in pools.items()]
    found += [
        Subject(
            "database", {"database": d.kind, "where": d.where}, {**host, **database_facts(observation, d)}
        )
        for d in observation.databases
    ]
    found.append(Subject("host", {}, host))
    return found
