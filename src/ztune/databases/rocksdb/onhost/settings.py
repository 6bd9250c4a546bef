"""RocksDB's options: from the newest OPTIONS file in the database's folder.

Source: RocksDB's wiki, RocksDB Options File; names as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ztune.errors import ZtuneError
from ztune.onhost.host import noatime
from ztune.onhost.look.reading import Instance, ObservedDatabase, Process, from_files, open_files, text_of

SETTINGS: Final = (
    *("use_direct_reads", "use_direct_io_for_flush_and_compaction", "allow_mmap_reads", "allow_mmap_writes"),
    *("use_fsync", "bytes_per_sync", "wal_bytes_per_sync", "strict_bytes_per_sync", "wal_dir"),
    *("max_total_wal_size", "recycle_log_file_num", "manual_wal_flush", "wal_compression", "allow_fallocate"),
    *("compaction_readahead_size", "writable_file_max_buffer_size", "max_background_jobs"),
    *("write_buffer_size", "target_file_size_base", "compaction_style", "compression"),
    *("bottommost_compression", "compression_per_level", "enable_blob_files", "block_size"),
)
"""Those of a column family are of "default"."""


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield folders with a database that a process has open, or that were given."""
    for process in processes:
        for folder in {path.parent for path in open_files(process.pid) if path.suffix in (".sst", ".log")}:
            if _newest(folder) is not None:
                yield Instance(folder, process)
    for folder in folders:
        if (folder / "CURRENT").is_file() and _newest(folder) is not None:
            yield Instance(folder)


def _newest(folder: Path) -> Path | None:
    found = [n for n in noatime.names(folder) if n.startswith("OPTIONS-") and n[8:].isdigit()]
    return folder / max(found) if found else None


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return the options of one database. Nothing fails: what can't be read is in ``unknown``."""
    settings: dict[str, str] = {}
    version = None
    path = _newest(instance.place)
    reason = f"{path or instance.place} does not have it"
    try:
        section = ""
        for line in text_of(path or instance.place / "OPTIONS").splitlines():
            name, equals, value = (part.strip() for part in line.partition("="))
            if name.startswith("["):
                section = line.strip()
            elif equals and name == "rocksdb_version":
                version = value
            elif equals and name in SETTINGS and section.endswith(("[DBOptions]", '"default"]')):
                settings[name] = value
    except ZtuneError as error:
        reason = str(error)
    return from_files("rocksdb", instance, settings, SETTINGS, reason, version)
