"""Which job goes by which name."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import cast

from ztune.databases.command.onhost.commands import Command
from ztune.databases.fio.onhost.load import Fio
from ztune.databases.http.onhost.load import HttpLoad
from ztune.databases.ldap.onhost.importing import LdapImport
from ztune.databases.mariadb.onhost.oltp import MariadbOltp
from ztune.databases.mongodb.onhost.restore import MongoRestore
from ztune.databases.orientdb.onhost.files import (
    OrientdbArchive,
    OrientdbBackup,
    OrientdbImport,
    OrientdbLucene,
)
from ztune.databases.orientdb.onhost.graph import OrientdbGraph
from ztune.databases.postgresql.onhost.backup import PostgresBackup, PostgresRestore
from ztune.databases.postgresql.onhost.oltp import PostgresOltp
from ztune.databases.rocksdb.onhost.random_keys import Rocksdb
from ztune.databases.sqlite.onhost.transactions import Sqlite
from ztune.databases.valkey.onhost.key_value import Valkey
from ztune.errors import InputError
from ztune.onhost.jobs.job import Job

JOBS: dict[str, type[Job]] = {
    "postgres-oltp": PostgresOltp,
    "postgres-backup": PostgresBackup,
    "postgres-restore": PostgresRestore,
    "mariadb-oltp": MariadbOltp,
    "sqlite": Sqlite,
    "rocksdb": Rocksdb,
    "valkey": Valkey,
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
