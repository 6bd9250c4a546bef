"""What databases say of their own settings: read-only, no rights asked for, no secrets.

Each database's folder has a module for it, with a fixed list of what is read because it decides how the files
are used. Nothing else of a configuration file or a server goes into an observation, so no passwords, names of
users or addresses do.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ztune.databases import reading as common
from ztune.databases.database import Database, every
from ztune.databases.reading import ObservedDatabase
from ztune.errors import ZtuneError

_ABOVE = 4  # folders, from a part of a database up to its own


def readers() -> dict[tuple[str, str], tuple[Database, bool]]:
    """Return database and module of each reader → its database, and whether files alone make one."""
    return {(one.name, known.reader): (one, known.alone) for one in every() for known in one.facts.observed}


def databases(
    pids: Iterable[int] = (), roots: Iterable[str | Path] = (), user: str | None = None
) -> tuple[tuple[ObservedDatabase, ...], tuple[str, ...]]:
    """Return the databases that processes serve or folders hold, and sentences on what is not known.

    Args:
        pids: processes that were observed; those of no database are passed over.
        roots: folders or files; the folders above and below them are looked into too.
        user: account of the operating system to ask the servers as, and role in them; only root can be
            somebody else. Unless given, the caller's own, and for root the server's first.

    Raises nothing: a database that can't be asked has its settings in ``unknown``, with the reason.
    """
    limits: list[str] = []
    processes = [p for pid in pids if (p := common.process(pid)) is not None]
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
    found: list[ObservedDatabase] = []
    for (name, reader), (database, alone) in readers().items():
        seen: dict[Path, common.Instance] = {}
        try:
            module = database.load(reader)
            # A file or folder that is a database by itself is ours only if it is below what was given, or
            # opened by what was observed; a server is ours also if what was given is a part of its data.
            for instance in module.find(processes, below) if alone else module.find(servers, places):
                place = instance.place.resolve()
                # The one with a process can be asked; the oldest of several processes has the options.
                old = seen.get(place)
                if old is None or (old.process is None and instance.process is not None):
                    seen[place] = instance
            found += [module.read(instance, user) for instance in seen.values()]
        except Exception as error:
            if database.own and not isinstance(error, OSError | ValueError | ZtuneError):
                raise
            limits.append(f"settings of {name}: {' '.join(str(error).split())}")
    return tuple(found), tuple(limits)
