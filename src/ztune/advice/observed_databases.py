"""Facts of the databases that an observation shows: their settings, and what their files live on."""

from __future__ import annotations

from typing import Any

from ztune.advice.fact import Fact
from ztune.advice.observed_datasets import find, record_bytes
from ztune.advice.observed_roles import dataset_name, on_zfs
from ztune.databases.database import Observed, every
from ztune.databases.switch import switch
from ztune.observe.model import Observation
from ztune.onhost.look.reading import ObservedDatabase
from ztune.units import whole

FACTS: dict[str, Fact] = {
    "database": Fact("database"),
    "where": Fact("where its settings were read"),
    "page": Fact("database page", "size"),
    "cache": Fact("the database's own cache", "bytes"),
    "full_page_writes": Fact("setting full_page_writes"),
    "wal_recycle": Fact("setting wal_recycle"),
    "wal_init_zero": Fact("setting wal_init_zero"),
    "synchronous_commit": Fact("setting synchronous_commit"),
    "fsync": Fact("setting fsync"),
    "doublewrite": Fact("setting innodb_doublewrite"),
    "log_flush": Fact("setting innodb_flush_log_at_trx_commit"),
    "asks_direct": Fact("the database opens its data files with O_DIRECT", "flag"),
    "data_on_zfs": Fact("the database's data and indexes are on ZFS", "flag"),
    "wal_on_zfs": Fact("the database's log is on ZFS", "flag"),
    "data_record": Fact("smallest record size of its data and index files", "size"),
    "files_seen": Fact("the record sizes that its data files were begun with were looked at", "flag"),
    "data_direct": Fact("property direct of the dataset with its data"),
    "wal_reads": Fact("reads of its log", "count"),
}

# DETECT_ONLY writes no page contents to the doublewrite file: it can't repair (MySQL manual, Doublewrite
# Buffer). "fast" is MariaDB's doublewrite without fsync of the data files.
_DOUBLEWRITE = {"fast": "on", "detect_and_recover": "on", "detect_only": "off"}


def database_facts(observation: Observation, database: ObservedDatabase) -> dict[str, Any]:
    """Return the facts of a database; keys as in FACTS, None where not known.

    Where more than one database was seen, it is not known which role's files are whose.
    """
    settings = database.settings
    doublewrite = settings.get("innodb_doublewrite", "")
    facts: dict[str, Any] = {
        **dict.fromkeys(FACTS),
        "database": database.kind,
        "where": database.where,
        "page": _int(settings.get(_known(database.kind).page)),
        "cache": cache_bytes(database),
        "synchronous_commit": settings.get("synchronous_commit"),
        "log_flush": settings.get("innodb_flush_log_at_trx_commit"),
        "asks_direct": _asks_direct(database),
        **{
            name: switch(settings.get(name, ""))
            for name in ("full_page_writes", "wal_recycle", "wal_init_zero", "fsync")
        },
        "doublewrite": _DOUBLEWRITE.get(doublewrite.lower()) or switch(doublewrite),
    }
    if len(observation.databases) == 1:
        facts.update(_files(observation))
    return facts


def cache_bytes(database: ObservedDatabase) -> int | None:
    """Return the size of the database's own cache in bytes, None where it is not known."""
    sizes = [_int(database.settings.get(name)) for name in _known(database.kind).cache]
    return sum(s for s in sizes if s is not None) if sizes and None not in sizes else None


def _known(kind: str) -> Observed:
    """Return what is declared of a kind of database; of one that is not here, nothing."""
    found = (one for known in every() for one in known.facts.observed if one.kind == kind)
    return next(found, Observed(kind=kind, reader=""))


def _files(observation: Observation) -> dict[str, Any]:
    data = [g for g in observation.of_kind("role") if g.name == "data"]
    wal = [g for g in observation.of_kind("role") if g.name == "wal"]
    names = {dataset_name(observation, g) for g in data}
    # An index is pages of the database too.
    paged = data and [*data, *(g for g in observation.of_kind("role") if g.name == "index")]
    records = [record_bytes(observation, name) for name in {dataset_name(observation, g) for g in paged}]
    written = [size for f in observation.files if f.role in {"data", "index"} for size in f.record_sizes]
    dataset = find(observation, names.copy().pop()) if len(names) == 1 else None
    direct = dataset.properties.get("direct") if dataset else None
    return {
        "data_on_zfs": _all([on_zfs(observation, g) for g in paged]),
        "wal_on_zfs": _all([on_zfs(observation, g) for g in wal]),
        "data_record": min([r for r in records if r is not None] + written)
        if records and None not in records
        else None,
        # A file keeps its record size, whatever the property says by now.
        "files_seen": True if any(f.role == "data" for f in observation.files) else None,
        "data_direct": direct.value if direct else None,
        "wal_reads": sum(g.reads.calls for g in wal) if wal else None,
    }


def _all(answers: list[bool | None]) -> bool | None:
    if False in answers:
        return False
    return True if answers and None not in answers else None


def _asks_direct(database: ObservedDatabase) -> bool | None:
    settings = database.settings
    if database.kind == "postgresql":
        wanted = settings.get("debug_io_direct", settings.get("io_direct"))
        return None if wanted is None else "data" in wanted
    if settings.get("innodb_data_file_buffering") is not None:  # MariaDB 11.0 and later
        return switch(settings["innodb_data_file_buffering"]) == "off"
    method = settings.get("innodb_flush_method")
    return None if method is None else method.upper().startswith("O_DIRECT")


def _int(text: str | None) -> int | None:
    return whole(text or "")
