"""Which job goes by which name."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import cast

from ztune.errors import InputError
from ztune.trial.jobs.base import Job
from ztune.trial.jobs.command import Command
from ztune.trial.jobs.fio import Fio
from ztune.trial.jobs.http_load import HttpLoad
from ztune.trial.jobs.ldap_import import LdapImport
from ztune.trial.jobs.mariadb_oltp import MariadbOltp
from ztune.trial.jobs.mongo_restore import MongoRestore
from ztune.trial.jobs.orientdb_files import (
    OrientdbArchive,
    OrientdbBackup,
    OrientdbImport,
    OrientdbLucene,
)
from ztune.trial.jobs.orientdb_graph import OrientdbGraph
from ztune.trial.jobs.postgres_backup import PostgresBackup, PostgresRestore
from ztune.trial.jobs.postgres_oltp import PostgresOltp
from ztune.trial.jobs.rocksdb import Rocksdb
from ztune.trial.jobs.sqlite import Sqlite

JOBS: dict[str, type[Job]] = {
    "postgres-oltp": PostgresOltp,
    "postgres-backup": PostgresBackup,
    "postgres-restore": PostgresRestore,
    "mariadb-oltp": MariadbOltp,
    "sqlite": Sqlite,
    "rocksdb": Rocksdb,
    "mongo-restore": MongoRestore,
    "fio": Fio,
    "command": Command,
    "orientdb-graph": OrientdbGraph,
    "orientdb-import": OrientdbImport,
    "orientdb-backup": OrientdbBackup,
    "orientdb-archive": OrientdbArchive,
    "orientdb-lucene": OrientdbLucene,
    "ldap-import": LdapImport,
    "http": HttpLoad,
}
"""ztune's own."""

_METHODS = (
    *("check", "roles", "prepare", "load", "adopt", "start", "pids", "run", "verify", "stop", "cleanup"),
    *("role_paths", "page_sizes", "info"),
)


def get(name: str) -> type[Job]:
    """Return the class of the job ``name``: one of ours, or ``package.module:Class`` of another's.

    Raises:
        InputError: there is none, or it can't be imported here.
    """
    if name in JOBS:
        return JOBS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        close = get_close_matches(name, JOBS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(JOBS)}"
        raise InputError(f"there is no job {name!r}; {hint}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(
            f"job {name!r} can't be imported: {error}; its workload must name every module that it needs"
        ) from None
    lacking = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if not isinstance(found, type) or lacking:
        raise InputError(f"{name!r} is not a job: it has no {', '.join(lacking) or 'class'}")
    return cast(type[Job], found)
