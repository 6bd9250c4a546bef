"""What databases say of their own settings: read-only, no rights asked for, no secrets.

Each database's folder has a module for it, with a fixed list of what is read because it decides how the files
are used. Nothing else of a configuration file or a server goes into an observation, so no passwords, names of
users or addresses do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ztune import shipped
from ztune.errors import ZtuneError
from ztune.onhost.look import reading as common
from ztune.onhost.look.reading import ObservedDatabase

_ABOVE = 4  # folders, from a part of a database up to its own
_HERE = "onhost."


@dataclass(frozen=True)
class SettingsReader:
    """A module that finds and reads databases of a kind."""

    database: str
    """Name of the database's folder."""
    load: Callable[[], Any]
    alone: bool
    """Files alone make one, without a server."""
    own: bool = True
    """Ours, not a third party's: a fault in it is not hidden."""


def sent() -> Iterator[SettingsReader]:
    """Yield the readers that are sent to hosts: ours that need the standard library alone."""
    for name, facts in shipped.folders().items():
        modules = {one["reader"]: bool(one.get("alone")) for one in facts.get("observed", ())}
        for module, alone in modules.items():
            if module.startswith(_HERE):
                whole = f"ztune.databases.{name}.{module}"
                yield SettingsReader(name, partial(importlib.import_module, whole), alone)


@dataclass(frozen=True)
class FoundDatabase:
    """A database that is there."""

    reader: SettingsReader
    instance: common.Instance
    pids: frozenset[int]
    """The processes that showed it."""


def find(
    readers: Iterable[SettingsReader], pids: Iterable[int] = (), roots: Iterable[str | Path] = ()
) -> tuple[list[FoundDatabase], list[str]]:
    """Return the databases that processes serve or folders hold, and sentences on what is not known.

    Args:
        readers: the kinds of databases that are looked for.
        pids: processes that were observed; those of no database are passed over.
        roots: folders or files; the folders above and below them are looked into too.
    """
    limits: list[str] = []
    observed = dict.fromkeys(pids)
    processes = [p for pid in observed if (p := common.process(pid)) is not None]
    blind = [p for p in processes if p.folder is None and p.argv != ("",)]
    if blind:
        some = ", ".join(f"{p.pid} ({p.program})" for p in blind[:5])
        limits.append(
            f"working folder and open files of {len(blind)} processes can't be seen ({some}): a database "
            "there may be missed; run as root or as their user"
        )
    given = [Path(root) for root in roots]
    below, places = common.folders(given, 0), common.folders(given, _ABOVE)
    servers = processes + common.working_in(places, {p.pid for p in processes})
    found: list[FoundDatabase] = []
    hidden: dict[Path, common.Process] = {}
    for reader in readers:
        seen: dict[Path, FoundDatabase] = {}
        try:
            module = reader.load()
            # A file or folder that is a database by itself is ours only if it is below what was given, or
            # opened by what was observed; a server is ours also if what was given is a part of its data.
            for one in module.find(processes, below) if reader.alone else module.find(servers, places):
                server = one.process
                if server is not None and server.pid not in observed and not common.may_serve(server):
                    continue
                if server is not None and common.is_elsewhere(server, one.place):
                    if server.pid in observed:
                        hidden.setdefault(one.place, server)
                    continue
                place, old = one.place.resolve(), seen.get(one.place.resolve())
                pids_ = frozenset([one.process.pid] if one.process else [])
                # The one with a process can be asked; the oldest of several processes has the options.
                first = one if old is None or old.instance.process is None else old.instance
                seen[place] = FoundDatabase(reader, first, pids_ | (old.pids if old else frozenset()))
        except Exception as error:
            limits.append(_failed(reader, error))
        found += seen.values()
    limits += [
        f"process {server.pid} ({server.program}) sees other files than ztune, as in a container: "
        "its settings are not read"
        for server in hidden.values()
    ]
    return _nearest(found, [root.resolve() for root in given], observed), limits


def _nearest(
    found: list[FoundDatabase], roots: Iterable[Path], observed: Container[int]
) -> list[FoundDatabase]:
    """Leave out those whose folder only holds that of another database, in which what was given lies."""
    places = [one.instance.place.resolve() for one in found]
    passed: set[Path] = set()
    for root in roots:
        above = [place for place in places if place == root or place in root.parents]
        passed.update(place for place in above if place != max(above, key=lambda place: len(place.parts)))
    return [
        one
        for one, place in zip(found, places, strict=True)
        if place not in passed or any(pid in observed for pid in one.pids)
    ]


def databases(
    readers: Iterable[SettingsReader],
    pids: Iterable[int] = (),
    roots: Iterable[str | Path] = (),
    user: str | None = None,
) -> tuple[tuple[ObservedDatabase, ...], tuple[str, ...]]:
    """Return what the databases that ``find`` finds say of themselves, and sentences on what is not known.

    ``user``: account of the operating system to ask the servers as, and role in them; only root can be
    somebody else. Unless given, the caller's own, and for root the server's first.

    Raises nothing: a database that can't be asked has its settings in ``unknown``, with the reason.
    """
    found, limits = find(readers, pids, roots)
    said, more = read(found, user)
    return said, (*limits, *more)


def read(
    found: Iterable[FoundDatabase], user: str | None = None
) -> tuple[tuple[ObservedDatabase, ...], tuple[str, ...]]:
    """Return what these databases say of themselves, as ``databases`` does."""
    said: list[ObservedDatabase] = []
    limits: dict[str, None] = {}
    for one in found:
        try:
            said.append(one.reader.load().read(one.instance, user))
        except Exception as error:
            limits[_failed(one.reader, error)] = None
    return tuple(said), tuple(limits)


def _failed(reader: SettingsReader, error: Exception) -> str:
    """Return the sentence for what a reader raised; raises it again where it is a fault of ours."""
    if reader.own and not isinstance(error, OSError | ValueError | ZtuneError):
        raise error
    return f"settings of {reader.database}: {' '.join(str(error).split())}"
