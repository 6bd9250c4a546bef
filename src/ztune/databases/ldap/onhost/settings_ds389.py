"""389 Directory Server's settings: from dse.ldif, which the server writes with what is in force.

Source of names: the server's Configuration, Command, and File Reference, database plug-in attributes. The
file also holds the administrator's password: only the attributes of ``SETTINGS`` are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ztune.errors import ZtuneError
from ztune.onhost.look.reading import Instance, ObservedDatabase, Process, from_files, ldif, text_of

SETTINGS: Final = (
    *("nsslapd-backend-implement", "nsslapd-directory", "nsslapd-db-home-directory"),
    *("nsslapd-db-logdirectory", "nsslapd-dbcachesize", "nsslapd-cache-autosize"),
    *("nsslapd-cache-autosize-split", "nsslapd-db-page-size", "nsslapd-db-logbuf-size"),
    *("nsslapd-db-logfile-size", "nsslapd-db-durable-transactions", "nsslapd-db-durable-transaction"),
    *("nsslapd-db-transaction-batch-val", "nsslapd-db-transaction-batch-max-wait"),
    *("nsslapd-db-transaction-batch-min-wait", "nsslapd-db-checkpoint-interval"),
    *("nsslapd-db-compactdb-interval", "nsslapd-db-circular-logging", "nsslapd-db-transaction-logging"),
    *("nsslapd-db-private-mem", "nsslapd-import-cachesize", "nsslapd-import-cache-autosize"),
    *("nsslapd-mdb-max-size", "nsslapd-mdb-max-readers", "nsslapd-mdb-max-dbs"),
)
"""Read from the database plug-in's own entries; sizes there are bytes."""
_OF_BACKENDS = ("nsslapd-cachememsize", "nsslapd-dncachememsize", "nsslapd-directory")
"""Read for every backend, as "BACKEND.nsslapd-…"."""
_PLUGIN = "cn=ldbm database,cn=plugins,cn=config"
_NEEDED = ("nsslapd-backend-implement", "nsslapd-directory", "nsslapd-db-logdirectory")


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield the servers' configuration files."""
    for process in processes:
        given = process.option("-D") if process.program == "ns-slapd" else None
        if given:
            yield Instance(Path(given, "dse.ldif"), process)
    for folder in folders:
        if (folder / "dse.ldif").is_file():
            yield Instance(folder / "dse.ldif")
        # /var/lib/dirsrv/slapd-NAME has its configuration in /etc/dirsrv/slapd-NAME.
        elif folder.name.startswith("slapd-") and Path("/etc/dirsrv", folder.name, "dse.ldif").is_file():
            yield Instance(Path("/etc/dirsrv", folder.name, "dse.ldif"))


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the settings of one server. Nothing fails: what can't be read is in ``unknown``."""
    settings: dict[str, str] = {}
    reason = f"{instance.place} does not have it; the default holds"
    version = None
    try:
        for entry in ldif(text_of(instance.place)):
            dn = ",".join(part.strip() for part in entry.get("dn", [""])[0].lower().split(","))
            if dn == "cn=config":
                version = entry.get("nsslapd-versionstring", [""])[0] or None
            if not dn.endswith(_PLUGIN):
                continue
            above = dn.removesuffix(_PLUGIN).rstrip(",")
            if above in ("", "cn=config", "cn=bdb,cn=config", "cn=mdb,cn=config"):
                settings |= {name: entry[name][0] for name in SETTINGS if name in entry}
            elif "nsbackendinstance" in (v.lower() for v in entry.get("objectclass", [])):
                name = entry["dn"][0].split(",")[0].partition("=")[2]
                settings |= {f"{name}.{key}": entry[key][0] for key in _OF_BACKENDS if key in entry}
    except ZtuneError as error:
        reason = str(error)
    return from_files("389ds", instance, settings, _NEEDED, reason, version)
