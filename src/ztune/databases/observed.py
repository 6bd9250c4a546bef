"""What databases say of their own settings: read-only, no rights asked for, no secrets.

One module per database; each has ``SETTINGS``, the fixed list of what is read because it decides how the
files are used. Nothing else of a configuration file or a server goes into an observation, so no passwords,
names of users or addresses do.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ztune.databases import reading as common
from ztune.databases.ldap import settings_ds389 as ds389
from ztune.databases.ldap import settings_opendj as opendj
from ztune.databases.mariadb import settings as mariadb
from ztune.databases.mongodb import settings as mongodb
from ztune.databases.orientdb import settings as orientdb
from ztune.databases.postgresql import settings as postgresql
from ztune.databases.rocksdb import settings as rocksdb
from ztune.databases.sqlite import settings as sqlite
from ztune.databases.valkey import settings as valkey
from ztune.errors import ZtuneError
from ztune.observe.model import Database

_ABOVE = 4  # folders, from a part of a database up to its own
MODULES = (postgresql, mariadb, orientdb, opendj, ds389, mongodb, rocksdb, sqlite, valkey)


def databases(
    pids: Iterable[int] = (), roots: Iterable[str | Path] = (), user: str | None = None
) -> tuple[tuple[Database, ...], tuple[str, ...]]:
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
    found: list[Database] = []
    for module in MODULES:
        name = module.__name__.rpartition(".")[2]
        seen: dict[Path, common.Instance] = {}
        try:
            # A file or folder that is a database by itself is ours only if it is below what was given, or
            # opened by what was observed; a server is ours also if what was given is a part of its data.
            alone = module in (sqlite, rocksdb)
            for instance in module.find(processes, below) if alone else module.find(servers, places):
                place = instance.place.resolve()
                # The one with a process can be asked; the oldest of several processes has the options.
                old = seen.get(place)
                if old is None or (old.process is None and instance.process is not None):
                    seen[place] = instance
            found += [module.read(instance, user) for instance in seen.values()]
        except (OSError, ValueError, ZtuneError) as error:
            limits.append(f"settings of {name}: {' '.join(str(error).split())}")
    return tuple(found), tuple(limits)
