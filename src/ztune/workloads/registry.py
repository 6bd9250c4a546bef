"""Where workloads are found: our own by name, others' by the entry-point group ``ztune.workloads``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.packages import packages_of
from ztune.workloads.base import ParameterDoc, Workload

GROUP = "ztune.workloads"
# Imported only when asked for.
_BUILT_IN: dict[str, str] = {
    "postgres-oltp": "ztune.workloads.postgres_oltp:PostgresOltp",
    "postgres-backup": "ztune.workloads.postgres_backup:PostgresBackup",
    "postgres-restore": "ztune.workloads.postgres_backup:PostgresRestore",
    "mariadb-oltp": "ztune.workloads.mariadb_oltp:MariadbOltp",
    "sqlite": "ztune.workloads.sqlite:Sqlite",
    "rocksdb": "ztune.workloads.rocksdb:Rocksdb",
    "mongo-restore": "ztune.workloads.mongo_restore:MongoRestore",
    "fio": "ztune.workloads.fio:Fio",
    "command": "ztune.workloads.command:Command",
    "orientdb-graph": "ztune.workloads.orientdb:OrientdbGraph",
    "orientdb-import": "ztune.workloads.orientdb:OrientdbImport",
    "orientdb-backup": "ztune.workloads.orientdb:OrientdbBackup",
    "orientdb-archive": "ztune.workloads.orientdb:OrientdbArchive",
    "orientdb-lucene": "ztune.workloads.orientdb:OrientdbLucene",
    "ldap-import": "ztune.workloads.ldap_import:LdapImport",
    "http": "ztune.workloads.http_load:HttpLoad",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of ``ztune list workloads``."""

    name: str
    summary: str
    source: str
    """``ztune``, or the name of the package that brought it."""
    parameters: list[ParameterDoc]
    roles: str = ""
    """The roles of its files, or where they come from."""
    needs: tuple[str, ...] = ()
    """The packages that bring what it needs on this system."""
    version: str = ""
    """Of what would run here; empty if something is missing."""
    missing: str = ""
    """What is missing here, and the command that brings it."""


def _third_party() -> dict[str, EntryPoint]:
    # A name of ours can't be taken over: what `postgres-oltp` means must not depend on what else is
    # installed.
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _BUILT_IN}


def names() -> list[str]:
    """Return the names of all workloads: ours first, then others' in order of name."""
    return [*_BUILT_IN, *sorted(_third_party())]


def get(name: str) -> type[Workload]:
    """Return the class of the workload ``name``; call it with a mapping of parameters.

    Raises:
        InputError: there is none of that name, or the package that brings it is broken.
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, type)
        return found
    point = _third_party().get(name)
    if point is None:
        close = get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names())}"
        raise InputError(f"there is no workload {name!r}; {hint}")
    try:
        loaded = point.load()
    except Exception as error:
        raise InputError(
            f"workload {name!r} of package {_package(point)!r} can't be loaded: {error}"
        ) from error
    lacking = [part for part in _REQUIRED if not hasattr(loaded, part)]
    if not isinstance(loaded, type) or lacking:
        raise InputError(
            f"workload {name!r} of package {_package(point)!r} is not a workload: "
            f"it has no {', '.join(lacking) or 'class'}"
        )
    return loaded


def settings_of(name: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that the workload ``name`` makes in its database with ``params``, in the database's
    own words; nothing for one whose job does not say.

    Raises:
        InputError: no such workload, or a parameter is wrong.
    """
    settings = getattr(getattr(get(name)(params), "job", None), "settings", None)
    return {} if settings is None else dict(settings())


_REQUIRED = (
    *("name", "summary", "Parameters", "check", "prepare", "load", "start", "pids", "run", "verify", "stop"),
    *("cleanup", "role_paths", "page_sizes", "info"),
)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def entries() -> list[Entry]:
    """Describe every workload; nothing is run. One that can't be loaded is named with its error."""
    found = []
    third = _third_party()
    for name in names():
        source = _package(third[name]) if name in third else "ztune"
        try:
            workload = get(name)
        except InputError as error:
            found.append(Entry(name, f"broken: {error}", source, []))
            continue
        found.append(
            Entry(
                name,
                workload.summary,
                source,
                workload.Parameters.docs(),
                roles=_roles(workload),
                needs=(
                    *(package for thing in getattr(workload, "needs", ()) for package in packages_of(thing)),
                    *(artifact.name for artifact in getattr(workload, "artifacts", ())),
                ),
            )
        )
    return found


def examined(entry: Entry, params: Mapping[str, object] | None = None) -> Entry:
    """Return ``entry`` with what is here for ``params`` (default: none are given): the version that would
    run, or what is missing. Runs programs.
    """
    try:
        return replace(entry, version=get(entry.name)(params).check())
    except MissingError as error:
        return replace(entry, missing=str(error))
    except ZtuneError:
        # It can't do without a parameter, so there is nothing to ask yet.
        return entry


def _roles(workload: type[Workload]) -> str:
    stated = str(getattr(workload, "roles_from", ""))
    job = getattr(workload, "job_class", None)
    return stated or ", ".join(getattr(job, "ROLES", ()))
