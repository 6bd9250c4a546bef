"""MongoDB's settings: from mongod.conf and the command line of mongod.

Source of names: MongoDB's manual, Configuration File Options. The file may hold passwords of certificates
and of LDAP: only the settings of ``SETTINGS`` are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.look.reading import Instance, ObservedDatabase, Process, from_files, size, text_of

SETTINGS: Final = {
    "storage.dbPath": ("--dbpath",),
    "storage.engine": ("--storageEngine",),
    "storage.directoryPerDB": ("--directoryperdb",),
    "storage.syncPeriodSecs": ("--syncdelay",),
    "storage.journal.enabled": ("--journal",),
    "storage.journal.commitIntervalMs": ("--journalCommitInterval",),
    "storage.wiredTiger.engineConfig.cacheSizeGB": ("--wiredTigerCacheSizeGB",),
    "storage.wiredTiger.engineConfig.journalCompressor": ("--wiredTigerJournalCompressor",),
    "storage.wiredTiger.engineConfig.directoryForIndexes": ("--wiredTigerDirectoryForIndexes",),
    "storage.wiredTiger.engineConfig.zstdCompressionLevel": ("--zstdDefaultCompressionLevel",),
    "storage.wiredTiger.collectionConfig.blockCompressor": ("--wiredTigerCollectionBlockCompressor",),
    "storage.wiredTiger.indexConfig.prefixCompression": ("--wiredTigerIndexPrefixCompression",),
    "storage.oplogMinRetentionHours": ("--oplogMinRetentionHours",),
    "replication.oplogSizeMB": ("--oplogSize",),
}
"""All that is read → the option of the command line."""
_SIZES = {"storage.wiredTiger.engineConfig.cacheSizeGB": 1 << 30, "replication.oplogSizeMB": 1 << 20}
_LARGEST = 256 << 10
"""Bytes of a configuration file: PyYAML takes seconds for some hundred KiB."""
_FLAGS = ("--directoryperdb", "--journal", "--wiredTigerDirectoryForIndexes")


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield configuration files, or data folders where there is none."""
    for process in processes:
        if process.program == "mongod":
            given = process.option("--config", "-f") or process.option("--dbpath") or "/data/db"
            yield Instance((process.folder or Path("/")) / given, process)
    for folder in folders:
        if (folder / "WiredTiger.turtle").is_file() and (folder / "mongod.lock").is_file():
            yield Instance(folder)


def _file(path: Path) -> dict[str, str]:
    """Return the settings in a configuration file by their dotted names."""
    try:
        import yaml
    except ImportError:
        raise MissingError(f"{path}: the Python library PyYAML, which reads it, is not installed") from None
    try:
        content = yaml.safe_load(text_of(path, _LARGEST))
    except RecursionError:
        raise ZtuneError(f"{path} is no YAML that can be read: it is too deep") from None
    except yaml.YAMLError as error:
        raise ZtuneError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    found = {}
    for name in SETTINGS:
        value: Any = content
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str | int | float):
            found[name] = json.dumps(value) if isinstance(value, bool) else str(value)
    return found


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the settings of one server. Nothing fails: what can't be read is in ``unknown``."""
    settings: dict[str, str] = {}
    reason = f"neither {instance.place} nor the command line sets it; the default holds"
    if instance.place.is_dir():
        settings["storage.dbPath"] = str(instance.place)
        reason = "no configuration file is known, and the command line does not set it"
    else:
        try:
            settings |= _file(instance.place)
        except ZtuneError as error:
            reason = str(error)
    if instance.process is not None:
        for name, options in SETTINGS.items():
            if any(flag in options and flag in instance.process.argv for flag in _FLAGS):
                settings[name] = "true"
            elif (given := instance.process.option(*options)) is not None:
                settings[name] = given
    for name, unit in _SIZES.items():
        if name in settings:
            settings[name] = size(settings[name], unit)
    return from_files("mongodb", instance, settings, SETTINGS, reason)
