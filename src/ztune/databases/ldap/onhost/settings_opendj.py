"""OpenDJ's settings (OpenDS's and Oracle's too): from config/config.ldif, by backend.

Source of names: OpenDJ's Configuration Reference (JE Backend, PDB Backend) and its schema, ds-cfg-….
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ztune.errors import ZtuneError
from ztune.onhost.look.reading import Instance, ObservedDatabase, Process, ldif, size, text_of, unknown

SETTINGS: Final = (
    *("ds-cfg-enabled", "ds-cfg-db-directory", "ds-cfg-db-cache-percent", "ds-cfg-db-cache-size"),
    *("ds-cfg-db-txn-no-sync", "ds-cfg-db-txn-write-no-sync", "ds-cfg-db-durability"),
    *("ds-cfg-db-log-file-max", "ds-cfg-db-log-filecache-size", "ds-cfg-db-checkpointer-bytes-interval"),
    *("ds-cfg-db-checkpointer-wakeup-interval", "ds-cfg-db-cleaner-min-utilization", "ds-cfg-db-run-cleaner"),
    *("ds-cfg-compact-encoding", "ds-cfg-entries-compressed", "ds-cfg-index-entry-limit"),
    *("ds-cfg-import-queue-size", "ds-cfg-disk-low-threshold"),
)
"""Read for every backend, as "BACKEND.ds-cfg-…"."""
_NEEDED = ("ds-cfg-db-txn-no-sync", "ds-cfg-db-txn-write-no-sync", "ds-cfg-db-log-file-max")
_SIZES = (
    *("ds-cfg-db-cache-size", "ds-cfg-db-log-file-max", "ds-cfg-db-checkpointer-bytes-interval"),
    "ds-cfg-disk-low-threshold",
)
_FILE = "config/config.ldif"


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield the servers' configuration files."""
    for process in processes:
        if any("DirectoryServer" in word for word in process.argv):
            if given := process.option("--configFile", "-f"):
                yield Instance(Path(given), process)
            elif process.folder is not None and (process.folder / _FILE).is_file():
                yield Instance(process.folder / _FILE, process)
    for folder in folders:
        if (folder / _FILE).is_file():
            yield Instance(folder / _FILE)


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the settings of one server. Nothing fails: what can't be read is in ``unknown``."""
    settings: dict[str, str] = {}
    missing: dict[str, str] = {}
    try:
        for entry in ldif(text_of(instance.place)):
            name = entry.get("ds-cfg-backend-id", [""])[0]
            if not name or "ds-cfg-db-directory" not in entry:
                continue
            for attribute in (one for one in SETTINGS if one in entry):
                value = entry[attribute][0]
                settings[f"{name}.{attribute}"] = size(value) if attribute in _SIZES else value
            reason = f"{instance.place} does not set it; the default holds"
            missing |= unknown([f"{name}.{needed}" for needed in _NEEDED], settings, reason)
    except ZtuneError as error:
        missing = unknown(SETTINGS, (), str(error))
    version = None
    with suppress(ZtuneError):
        # "4.4.11.6e9f2a0": number and commit.
        version = text_of(instance.place.parent / "buildinfo").strip() or None
    return ObservedDatabase(
        kind="opendj", version=version, where=str(instance.place), settings=settings, unknown=missing
    )
