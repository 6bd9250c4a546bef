"""What a power cut may lose under a layout, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ztune.databases.declared import ANY, KNOWN, Declared
from ztune.onhost.layout import Dataset, Pool
from ztune.onhost.words import DurabilityClass
from ztune.units import parse_size

# Nothing on these must survive a power cut: databases empty their temporary files at the start, and a source
# is only read.
_EXPENDABLE = {"temp", "source"}
# These must agree with each other after a power cut: the log describes changes to the rest.
_COUPLED = {"data", "index", "wal"}
_Answer = tuple[DurabilityClass, str]


def _safe(*values: str) -> dict[str, _Answer]:
    """Return the answers of values with which the database waits for its log."""
    return dict.fromkeys(values, (DurabilityClass.NOTHING, ""))


def _loses(klass: DurabilityClass, name: str, values: Iterable[str], why: str) -> dict[str, _Answer]:
    return {value: (klass, f"{name if value == ANY else f'{name}={value}'}: {why}") for value in values}


_CORRUPT, _LAST = DurabilityClass.CORRUPT, DurabilityClass.LAST_SECONDS
# PostgreSQL's manual, Setting Parameters: what a Boolean may be called.
_NO, _YES = ("off", "false", "no", "0"), ("on", "true", "yes", "1")
_NO_WAIT = "the database does not wait for its log before it changes data"
# Database settings that decide durability: name → (value → class, sentence). A value that is not here is not
# known.
_DATABASE: dict[str, dict[str, _Answer]] = {
    "fsync": {**_safe(*_YES), **_loses(_CORRUPT, "fsync", _NO, _NO_WAIT)},
    # PostgreSQL's manual, Write Ahead Log: `local` and the two of standbys wait for the disk here.
    "synchronous_commit": {
        **_safe(*_YES, "local", "remote_write", "remote_apply"),
        **_loses(_LAST, "synchronous_commit", _NO, "commits are acknowledged before they are on disk"),
    },
    "wal_sync_method": _safe("fdatasync", "fsync", "open_datasync", "open_sync"),
    # SQLite's manual, pragma.html#pragma_synchronous.
    "synchronous": {
        **_safe("full", "extra", "2", "3"),
        **_loses(_CORRUPT, "synchronous", ("off", "0"), _NO_WAIT),
        **_loses(
            _LAST, "synchronous", ("normal", "1"),
            "in WAL mode commits are acknowledged before they are on disk",
        ),
    },
    # SQLite's manual, pragma.html#pragma_journal_mode.
    "journal_mode": {
        **_safe("wal", "delete", "truncate", "persist"),
        **_loses(_CORRUPT, "journal_mode", ("memory", "off"), "no journal survives a power cut"),
    },
    # WiredTiger's wiredtiger_open, log: without it a database is what its last checkpoint was.
    "log.enabled": {
        **_safe("true"),
        **_loses(_LAST, "log.enabled", ("false",), "a power cut loses what came after the last checkpoint"),
    },
    # RocksDB's WriteOptions::sync; the workload mongo-restore has a setting of that name too.
    "sync": {
        **_safe("true", "on", "1"),
        **_loses(_LAST, "sync", ("false", "off", "0"), "the database does not wait for its log"),
    },
    # RocksDB's DBOptions::manual_wal_flush: the log stays in the process until FlushWAL is called.
    "manual_wal_flush": {
        **_safe("false", "off", "0"),
        **_loses(
            _LAST, "manual_wal_flush", ("true", "on", "1"), "the log stays in memory until it is asked for"
        ),
    },
    # MariaDB's manual, InnoDB System Variables: without fsync after writing the data files.
    "innodb_flush_method": {
        **_safe("fsync", "o_dsync", "o_direct", "normal", "unbuffered", "async_unbuffered"),
        **_loses(
            _CORRUPT, "innodb_flush_method", ("nosync", "littlesync", "o_direct_no_fsync"),
            "the log is overwritten before the data files are synced",
        ),
    },
    # MariaDB's manual, Replication and Binary Log System Variables; Heuristic Recovery with the Transaction
    # Coordinator Log.
    "sync_binlog": {
        **_safe("1"),
        **_loses(
            _LAST, "sync_binlog", (ANY,),
            "not every commit syncs the binary log, and recovery rolls back what that lacks",
        ),
    },
    # OrientDB's OGlobalConfiguration. Its commits wait for no sync, whatever the interval: 3,000 had 32.
    "storage.wal.commitTimeout": _loses(
        _LAST, "storage.wal.commitTimeout", (ANY,),
        "OrientDB acknowledges before its log is synced, in the background",
    ),
    "storage.callFsync": {
        **_safe("true"),
        **_loses(
            _CORRUPT, "storage.callFsync", ("false",),
            "the log is discarded before the data files are synced",
        ),
    },
    "innodb_flush_log_at_trx_commit": {
        **_safe("1", "3"),
        **_loses(
            _LAST, "innodb_flush_log_at_trx_commit", ("0", "2"), "the log is flushed once a second"
        ),
    },
}  # fmt: skip
# Settings that make no difference to what a power cut loses, by database. What is neither here nor above is
# not known. Sources: PostgreSQL's manual, Server Configuration; MariaDB's, InnoDB System Variables; SQLite's
# pragma.html; RocksDB's options.h and advanced_options.h; WiredTiger's wiredtiger_open and
# WT_SESSION::create; OrientDB's OGlobalConfiguration; 389 Directory Server's and OpenDJ's references.
_NEUTRAL: dict[str, str] = {
    "any": "page_size",
    "postgresql": """
        archive_command archive_mode archive_timeout autovacuum autovacuum_naptime autovacuum_max_workers
        autovacuum_vacuum_cost_delay autovacuum_vacuum_cost_limit backend_flush_after bgwriter_delay
        bgwriter_flush_after bgwriter_lru_maxpages bgwriter_lru_multiplier checkpoint_completion_target
        checkpoint_flush_after checkpoint_timeout checkpoint_warning commit_delay commit_siblings
        default_statistics_target effective_cache_size effective_io_concurrency huge_pages jit
        log_checkpoints maintenance_io_concurrency maintenance_work_mem max_connections
        max_parallel_maintenance_workers max_parallel_workers max_parallel_workers_per_gather max_wal_senders
        max_wal_size max_worker_processes min_wal_size random_page_cost seq_page_cost shared_buffers
        temp_buffers track_io_timing wal_buffers wal_compression wal_init_zero wal_keep_size wal_level
        wal_log_hints wal_recycle wal_segment_size wal_skip_threshold wal_writer_delay
        wal_writer_flush_after work_mem
        """,
    "mariadb": """
        binlog_cache_size binlog_format innodb_adaptive_flushing innodb_adaptive_hash_index
        innodb_buffer_pool_dump_at_shutdown innodb_buffer_pool_load_at_startup innodb_buffer_pool_size
        innodb_compression_algorithm innodb_compression_default innodb_compression_level
        innodb_file_per_table innodb_flush_neighbors innodb_io_capacity innodb_io_capacity_max
        innodb_log_buffer_size innodb_log_file_size innodb_log_files_in_group innodb_log_write_ahead_size
        innodb_lru_scan_depth innodb_max_dirty_pages_pct innodb_max_dirty_pages_pct_lwm innodb_page_cleaners
        innodb_page_size innodb_purge_threads innodb_random_read_ahead innodb_read_ahead_threshold
        innodb_read_io_threads innodb_use_native_aio innodb_write_io_threads max_binlog_size max_connections
        table_open_cache thread_cache_size
        """,
    "sqlite": """
        auto_vacuum cache_size cache_spill checkpoint_fullfsync fullfsync journal_size_limit locking_mode
        mmap_size temp_store wal_autocheckpoint
        """,
    "rocksdb": """
        allow_concurrent_memtable_write blob_compression_type blob_file_size block_size bloom_bits
        bytes_per_sync cache_size compaction_style
        compaction_readahead_size compression_level compression_type enable_blob_files
        level0_file_num_compaction_trigger level0_slowdown_writes_trigger level0_stop_writes_trigger
        max_background_jobs max_bytes_for_level_base max_bytes_for_level_multiplier max_total_wal_size
        max_write_buffer_number min_blob_size min_level_to_compress min_write_buffer_number_to_merge
        enable_pipelined_write mmap_read mmap_write recycle_log_file_num subcompactions target_file_size_base
        unordered_write use_direct_io_for_flush_and_compaction use_direct_reads use_fsync wal_bytes_per_sync
        wal_compression writable_file_max_buffer_size write_buffer_size
        """,
    "wiredtiger": """
        allocation_size block_compressor cache_size checkpoint.wait internal_page_max leaf_page_max
        log.compressor log.file_max log.prealloc memory_page_max
        """,
    "orientdb": """
        storage.compressionMethod storage.diskCache.bufferSize storage.diskCache.checksumMode
        storage.diskCache.pageSize storage.diskCache.walSizeToStartFlush storage.diskCache.walSizeToStopFlush
        storage.diskCache.writeCacheFlushInactivityInterval storage.diskCache.writeCachePageFlushInterval
        storage.diskCache.writeCachePageTTL storage.diskCache.writeCachePart
        storage.makeFullCheckpointAfterClusterCreate storage.wal.allowDirectIO storage.wal.bufferSize
        storage.wal.cacheSize storage.wal.fuzzyCheckpointInterval storage.wal.keepSingleSegment
        storage.wal.maxSegmentSize storage.wal.maxSize storage.wal.minSegSize storage.wal.segmentsInterval
        """,
    "directory servers": """
        compact-encoding db-log-file-max entries-compressed nsslapd-cachememsize nsslapd-db-index-page-size
        nsslapd-db-page-size nsslapd-import-cachesize
        """,
}
_NEUTRAL_NAMES = frozenset(name for names in _NEUTRAL.values() for name in names.split())
# SQLite's manual, pragma.html#pragma_synchronous: only EXTRA syncs the directory after the journal's removal.
# `ztune crashtest sqlite -p journal_mode=delete` loses the last commit in every second cut.
_JOURNAL = {"journal_mode": ("delete",), "synchronous": ("full", "2")}
_JOURNAL_BACK = (
    DurabilityClass.LAST_SECONDS,
    (
        "journal_mode=delete with synchronous=full: the journal's removal is not synced, "
        "and one that a power cut brings back undoes the last commit"
    ),
)
# What the size of a page is called.
_PAGE = ("innodb_page_size", "page_size")
_PAGE_KIB = "storage.diskCache.pageSize"
# Database settings that give up the protection against torn pages, and the page size where none is set.
_TORN = {
    "full_page_writes": 8192,
    "innodb_doublewrite": 16384,
    "doublewrite": 16384,
    "storage.useDoubleWriteLog": 65536,
}
# What stands in a judgement for the database as a whole.
_THE_DATABASE = "the database"


class Judged(Protocol):
    """What of a layout decides what a power cut loses."""

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools."""

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets."""

    @property
    def tunables(self) -> Mapping[str, int]:
        """Module parameters, by name."""

    @property
    def database(self) -> Mapping[str, str]:
        """Settings of the database."""

    @property
    def declared(self) -> Declared | None:
        """What those who know the database say of it."""

    def pool(self, name: str) -> Pool:
        """Return the pool called ``name``."""

    def used_pools(self) -> tuple[Pool, ...]:
        """Return the pools that at least one role lives on."""

    def dataset_of(self, role: str) -> Dataset | None:
        """Return the dataset that ``role`` lives on."""


@dataclass(frozen=True)
class Judgement:
    """What a power cut may lose, and the sentences behind it; notes that do not change the class come last.

    ``proven``: the worst class that what is known brings, such as ZFS's own settings. ``unknown``: what
    nobody has declared, as ``name=value``.
    """

    proven: DurabilityClass
    unknown: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def klass(self) -> DurabilityClass:
        """The durability class."""
        if self.unknown and self.proven is not DurabilityClass.CORRUPT:  # nothing is worse
            return DurabilityClass.NOT_KNOWN
        return self.proven

    def no_weaker(self, than: Judgement) -> bool:
        """Say whether a power cut is known to lose no more than under ``than``.

        What is not known is no weaker than the very same.
        """
        return self.unknown == than.unknown and self.proven.rank <= than.proven.rank


@dataclass(frozen=True)
class Bar:
    """Which layouts compete: those of no worse class than ``worst`` in which the same is ``unknown``.

    So a layout of a database that nobody has declared is compared with its like and with nothing else.
    """

    worst: DurabilityClass
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, allowed: DurabilityClass, base: Judged | None) -> Bar:
        """Return the bar of an objective; ``base`` is what the user lives with today, so it is admitted."""
        if base is None:
            return cls(allowed)
        judged = judge(base)
        return cls(max(allowed, judged.proven, key=lambda c: c.rank), judged.unknown)

    def admits(self, layout: Judged) -> bool:
        """Say whether ``layout`` competes."""
        judged = judge(layout)
        return judged.unknown == self.unknown and judged.proven.rank <= self.worst.rank


def judge(layout: Judged) -> Judgement:
    """Return the durability class of ``layout``, the worst that any setting brings, and why."""
    found: list[tuple[DurabilityClass, str]] = []
    notes: list[str] = []
    seconds = layout.tunables.get("zfs_txg_timeout", 5)
    zfs = any(p.filesystem == "zfs" for p in layout.used_pools())
    found += _sync(layout, seconds)
    for dataset in layout.datasets:
        if dataset.properties["checksum"] == "off":
            found.append(
                (DurabilityClass.CORRUPT, f"checksum=off on {dataset.name}: damaged data is returned unseen")
            )
    if zfs and layout.tunables.get("zfs_nocacheflush") == 1:
        found.append(
            (
                DurabilityClass.CORRUPT,
                "zfs_nocacheflush=1: without a protected write cache a power cut corrupts the pool",
            )
        )
    if zfs and layout.tunables.get("zil_nocacheflush") == 1:
        found.append(
            (
                DurabilityClass.LAST_SECONDS,
                "zil_nocacheflush=1: without a protected write cache a power cut loses log records",
            )
        )
    found += _database(layout, notes)
    unknown = _declared(layout, found)
    _logbias(layout, notes)
    if zfs and seconds > 5:
        notes.append(
            f"zfs_txg_timeout={seconds}: what was written but never synced may be lost up to "
            f"{seconds} s back instead of 5"
        )
    for pool in layout.used_pools():
        if pool.filesystem != "zfs":
            # ext4: data=ordered and barriers are its defaults (ext4(5)); XFS has always had both.
            notes.append(
                f"pool {pool.name} is {pool.filesystem}: fsync waits for the disk as on ZFS, but data has no "
                "checksums, so damage is returned unseen"
            )
        logs = [v for v in pool.vdevs if v.class_ == "log"]
        if any(v.kind == "stripe" for v in logs):
            notes.append(
                f"the log device of pool {pool.name} is not mirrored: its failure together with a "
                "power cut loses the "
                f"last {seconds} s of acknowledged commits"
            )
        if any(v.class_ == "special" and v.kind == "stripe" for v in pool.vdevs) and any(
            v.class_ == "data" and v.kind != "stripe" for v in pool.vdevs
        ):
            notes.append(
                f"the special vdev of pool {pool.name} has no redundancy: its failure loses the whole pool"
            )
    proven = max((c for c, _ in found), key=lambda c: c.rank, default=DurabilityClass.NOTHING)
    found.sort(key=lambda item: -item[0].rank)
    return Judgement(proven, tuple(unknown), (*unknown.values(), *(text for _, text in found), *notes))


def weakening(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of a database's ``settings`` that weaken durability, and what is needed to judge them."""
    found = {
        n: v for n, v in settings.items() if (a := _answer(n, v)) and a[0] is not DurabilityClass.NOTHING
    }
    torn = {n: v for n, v in settings.items() if n in _TORN and v.lower() in _NO}
    pages = {n: v for n, v in settings.items() if torn and n in (*_PAGE, _PAGE_KIB)}
    journal = {n: v for n, v in settings.items() if n in _JOURNAL} if _journal_comes_back(settings) else {}
    return {**found, **torn, **pages, **journal}


def _journal_comes_back(settings: Mapping[str, str]) -> bool:
    given = {"synchronous": "full", **settings}
    return all(given.get(name, "").lower() in values for name, values in _JOURNAL.items())


def _answer(name: str, value: str) -> tuple[DurabilityClass, str] | None:
    answers = _DATABASE.get(name, {})
    return answers.get(value.lower(), answers.get(ANY))


def _sync(layout: Judged, seconds: int) -> list[tuple[DurabilityClass, str]]:
    """Judge sync=disabled.

    A pool comes back at one transaction group. Where every dataset that must agree is unsynced and on one
    pool, that is a consistent moment some seconds ago. Where only some are, the synced ones come back newer
    than the others: data pages ahead of their log, or a log whose older part was recycled because the data
    was thought safe.
    """
    disabled = [
        d for d in layout.datasets if d.properties["sync"] == "disabled" and not set(d.roles) <= _EXPENDABLE
    ]
    if not disabled:
        return []
    coupled = [d for d in layout.datasets if set(d.roles) & _COUPLED]
    off: list[Dataset] = [d for d in coupled if d in disabled]
    names = ", ".join(d.name for d in disabled)
    if off and (len(off) < len(coupled) or len({d.pool for d in coupled}) > 1):
        return [
            (
                DurabilityClass.CORRUPT,
                f"sync=disabled on {names}: data and log come back from a power cut at different moments",
            )
        ]
    return [
        (
            DurabilityClass.LAST_SECONDS,
            (
                f"sync=disabled on {names}: a power cut loses what was acknowledged in about the last "
                f"{seconds} s"
            ),
        )
    ]


def _logbias(layout: Judged, notes: list[str]) -> None:
    """Note what logbias=throughput exposes to a fault of OpenZFS (tests/lab/test_lab_mount_pool.py)."""
    indirect = [
        d.name
        for d in layout.datasets
        if layout.pool(d.pool).filesystem == "zfs"
        and d.properties["logbias"] == "throughput"
        and d.properties["sync"] != "disabled"
        and not set(d.roles) <= _EXPENDABLE
    ]
    if indirect:
        notes.append(
            f"logbias=throughput on {', '.join(indirect)}: if a file is written, "
            "cut short and written again between two syncs, "
            "a power cut can take the last of it (docs/durability.md, What was found in OpenZFS)"
        )


def _declared(layout: Judged, found: list[_Answer]) -> dict[str, str]:
    """Judge the database's settings by what is declared; return what is not, each with its sentence."""
    declared = layout.declared or KNOWN
    unknown: dict[str, str] = {}
    default = declared.default
    if default is None and not declared.known:
        unknown[_THE_DATABASE] = (
            "nobody has declared what a power cut loses of this database ([durability], default)"
        )
    elif default is not None and default is not DurabilityClass.NOTHING:
        found.append((default, f"the database as it is set: declared to be {default}"))
    # What a default of ours says is of settings that are not touched, not of the workload's own.
    spoken_of = declared.own if default is not None or not declared.known else {}
    for name, value in _settings(layout).items():
        klass = declared.answer(name, value)
        if klass is not None:
            if klass is not DurabilityClass.NOTHING:
                found.append((klass, f"{name}={value}: declared to be {klass}"))
        elif (
            name not in declared.neutral
            and spoken_of.get(name) != value
            and not (declared.known and _is_known(name, value))
        ):
            unknown[f"{name}={value}"] = (
                f"{name}={value}: nobody has declared what a power cut loses with it ([durability])"
            )
    return unknown


def _settings(layout: Judged) -> dict[str, str]:
    """Return the database's settings: those it has anyway, overridden by the layout's."""
    return {**(layout.declared.own if layout.declared is not None else {}), **layout.database}


def _is_known(name: str, value: str) -> bool:
    """Say whether ztune knows what a database's setting means for durability."""
    return (
        name in _NEUTRAL_NAMES
        or _answer(name, value) is not None
        or (name in _TORN and value.lower() in (*_NO, *_YES))
    )


def _database(layout: Judged, notes: list[str]) -> list[tuple[DurabilityClass, str]]:
    if layout.declared is not None and not layout.declared.known:
        return []  # another database may mean something else by the same name
    settings = _settings(layout)
    said = [_answer(name, settings[name]) for name in _DATABASE if name in settings]
    found = [answer for answer in said if answer is not None and answer[0] is not DurabilityClass.NOTHING]
    if _journal_comes_back(settings):
        found.append(_JOURNAL_BACK)
    data = layout.dataset_of("data")
    for name, page in _TORN.items():
        if settings.get(name, "").lower() not in _NO:
            continue
        size = parse_size(next((settings[n] for n in _PAGE if n in settings), page))
        if _PAGE_KIB in settings:
            size = int(settings[_PAGE_KIB]) << 10
        recordsize = parse_size(data.properties["recordsize"]) if data is not None else 0
        other = data and (data.filesystem or layout.pool(data.pool).filesystem)
        if other and other != "zfs":
            # They write pages of the page cache in place, in any order; on a volume too, since a page of the
            # database may reach it in two transaction groups.
            found.append(
                (
                    DurabilityClass.CORRUPT,
                    f"{name}=off on {other}, which writes in place and not a page at once: torn pages",
                )
            )
        elif recordsize < size:
            found.append(
                (
                    DurabilityClass.CORRUPT,
                    f"{name}=off with recordsize {recordsize} below the page size {size}: torn pages",
                )
            )
        else:
            notes.append(
                f"{name}=off is safe here only because ZFS writes a record of at least one page at once; "
                "copies made elsewhere than on ZFS are not protected"
            )
    return found
