"""OrientDB's settings: from config/orientdb-server-config.xml and the server's command line.

Source of names: OrientDB's documentation, Configuration Parameters. The file also holds users and their
passwords: only the entries of ``SETTINGS`` are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from ztune.errors import ZtuneError
from ztune.onhost.look.reading import Instance, ObservedDatabase, Process, from_files, text_of, wanted

SETTINGS: Final[dict[str, int | None]] = {
    **{"storage.diskCache.bufferSize": 1 << 20, "storage.diskCache.pageSize": 1 << 10},
    **{"storage.diskCache.writeCachePart": None, "storage.diskCache.writeCacheFlushTillSegmentsCount": None},
    **{"storage.useWAL": None, "storage.useDoubleWriteLog": None},
    "storage.doubleWriteLog.maxSegSize": 1 << 20,
    **{"storage.wal.syncOnPageFlush": None, "storage.wal.cacheSize": None, "storage.wal.bufferSize": 1 << 20},
    **{"storage.wal.maxSegmentSize": 1 << 20, "storage.wal.maxSize": 1 << 20, "storage.wal.path": None},
    **{"storage.wal.commitTimeout": None, "storage.wal.fuzzyCheckpointInterval": None},
    **{"storage.wal.allowDirectIO": None, "storage.makeFullCheckpointAfterCreate": None},
    **{"storage.compressionMethod": None, "storage.encryptionMethod": None, "storage.useTombstones": None},
    **{"storage.checksumMode": None, "storage.callFsync": None, "storage.cluster.useFsync": None},
    **{"file.mmap.strategy": None, "file.lock": None, "tx.useLog": None, "tx.commit.synch": None},
    **{"tx.autoRetry": None, "environment.dumpCfgAtStartup": None},
    **{"memory.chunk.size": None, "memory.directMapping": None, "server.database.path": None},
}
"""All that is read → bytes that a number counts in; None where it is no size."""
_FILE = "config/orientdb-server-config.xml"


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield the servers' configuration files."""
    for process in processes:
        given = _given(process)
        if "orientdb.config.file" in given:
            yield Instance(Path(given["orientdb.config.file"]), process)
        elif "ORIENTDB_HOME" in given:
            yield Instance(Path(given["ORIENTDB_HOME"], _FILE), process)
        elif any("com.orientechnologies." in w for w in process.argv) and process.folder is not None:
            for base in (process.folder, process.folder.parent):
                if (base / _FILE).is_file():
                    yield Instance(base / _FILE, process)
                    break
    for folder in folders:
        if (folder / _FILE).is_file():
            yield Instance(folder / _FILE)


def _given(process: Process) -> dict[str, str]:
    """Return the properties on a JVM's command line: -Dname=value."""
    words = (word[2:].partition("=") for word in process.argv if word.startswith("-D"))
    return {name: value for name, _, value in words}


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the settings of one server. Nothing fails: what can't be read is in ``unknown``."""
    settings: dict[str, str] = {}
    reason = f"{instance.place} does not set it, nor does the server's command line; the default holds"
    try:
        entries = ElementTree.fromstring(text_of(instance.place)).iter("entry")
        settings = wanted(
            SETTINGS, {e.get("name", ""): e.attrib["value"] for e in entries if "value" in e.attrib}
        )
    except ZtuneError as error:
        reason = str(error)
    except ElementTree.ParseError as error:
        reason = f"{instance.place} is no XML: {error}"
    if instance.process is not None:
        settings |= wanted(SETTINGS, _given(instance.process))
    version = None
    with suppress(OSError):
        for jar in (instance.place.parent.parent / "lib").glob("orientdb-core-*.jar"):
            if match := re.fullmatch(r"orientdb-core-(\d[\w.-]*)\.jar", jar.name):
                version = match[1]
    return from_files("orientdb", instance, settings, SETTINGS, reason, version)
