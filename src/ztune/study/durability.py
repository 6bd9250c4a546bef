"""What a power cut may lose under a layout, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ztune.study.words import DurabilityClass
from ztune.units import parse_size

if TYPE_CHECKING:
    from ztune.study.layout import Dataset, Layout

# Nothing on these must survive a power cut: databases empty their temporary files at the start, and a source
# is only read.
_EXPENDABLE = {"temp", "source"}
# These must agree with each other after a power cut: the log describes changes to the rest.
_COUPLED = {"data", "index", "wal"}
ANY = "*"
"""Whatever value a setting has."""
# Database settings that decide durability: name → (value → class, sentence).
_DATABASE: dict[str, dict[str, tuple[DurabilityClass, str]]] = {
    "fsync": {
        "off": (
            DurabilityClass.CORRUPT,
            "fsync=off: the database does not wait for its log before it changes data",
        ),
    },
    "synchronous_commit": {
        "off": (
            DurabilityClass.LAST_SECONDS,
            "synchronous_commit=off: commits are acknowledged before they are on disk",
        ),
    },
    # SQLite's manual, pragma.html#pragma_synchronous.
    "synchronous": {
        "off": (
            DurabilityClass.CORRUPT,
            "synchronous=off: the database does not wait for its log before it changes data",
        ),
        "normal": (
            DurabilityClass.LAST_SECONDS,
            "synchronous=normal: in WAL mode commits are acknowledged before they are on disk",
        ),
    },
    # WiredTiger's wiredtiger_open, log: without it a database is what its last checkpoint was.
    "log.enabled": {
        "false": (
            DurabilityClass.LAST_SECONDS,
            "log.enabled=false: a power cut loses what came after the last checkpoint",
        ),
    },
    # RocksDB's WriteOptions::sync; the workload mongo-restore has a setting of that name too.
    "sync": {
        answer: (
            DurabilityClass.LAST_SECONDS,
            f"sync={answer}: the database does not wait for its log",
        )
        for answer in ("false", "off", "0")
    },
    # MariaDB's manual, InnoDB System Variables: without fsync after writing the data files.
    "innodb_flush_method": {
        answer: (
            DurabilityClass.CORRUPT,
            f"innodb_flush_method={answer}: the log is overwritten before the data files are synced",
        )
        for answer in ("nosync", "littlesync", "o_direct_no_fsync")
    },
    # OrientDB's OGlobalConfiguration. Its commits wait for no sync, whatever the interval: 3,000 had 32.
    "storage.wal.commitTimeout": {
        ANY: (
            DurabilityClass.LAST_SECONDS,
            "storage.wal.commitTimeout: OrientDB acknowledges before its log is synced, in the background",
        ),
    },
    "storage.callFsync": {
        "false": (
            DurabilityClass.CORRUPT,
            "storage.callFsync=false: the log is discarded before the data files are synced",
        ),
    },
    "innodb_flush_log_at_trx_commit": {
        "0": (
            DurabilityClass.LAST_SECONDS,
            "innodb_flush_log_at_trx_commit=0: the log is flushed once a second",
        ),
        "2": (
            DurabilityClass.LAST_SECONDS,
            "innodb_flush_log_at_trx_commit=2: the log is flushed once a second",
        ),
    },
}
# SQLite's manual, pragma.html#pragma_synchronous: only EXTRA syncs the directory after the journal's removal.
# `ztune crashtest sqlite -p journal_mode=delete` loses the last commit in every second cut.
_JOURNAL = {"journal_mode": ("delete",), "synchronous": ("full", "2")}
_JOURNAL_BACK = (
    DurabilityClass.LAST_SECONDS,
    "journal_mode=delete with synchronous=full: the journal's removal is not synced, and one that a power "
    "cut brings back undoes the last commit",
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
_OFF = {"off", "0", "false"}


@dataclass(frozen=True)
class Judgement:
    """A durability class and the sentences behind it; notes that do not change the class come last."""

    klass: DurabilityClass
    reasons: tuple[str, ...]


def judge(layout: Layout) -> Judgement:
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
    klass = max((c for c, _ in found), key=lambda c: c.rank, default=DurabilityClass.NOTHING)
    found.sort(key=lambda item: -item[0].rank)
    return Judgement(klass, (*(text for _, text in found), *notes))


def weakening(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of a database's ``settings`` that weaken durability, and what is needed to judge them."""
    found = {n: v for n, v in settings.items() if _answer(n, v) is not None}
    torn = {n: v for n, v in settings.items() if n in _TORN and v.lower() in _OFF}
    pages = {n: v for n, v in settings.items() if torn and n in (*_PAGE, _PAGE_KIB)}
    journal = {n: v for n, v in settings.items() if n in _JOURNAL} if _journal_comes_back(settings) else {}
    return {**found, **torn, **pages, **journal}


def _journal_comes_back(settings: Mapping[str, str]) -> bool:
    given = {"synchronous": "full", **settings}
    return all(given.get(name, "").lower() in values for name, values in _JOURNAL.items())


def _answer(name: str, value: str) -> tuple[DurabilityClass, str] | None:
    answers = _DATABASE.get(name, {})
    return answers.get(value.lower(), answers.get(ANY))


def _sync(layout: Layout, seconds: int) -> list[tuple[DurabilityClass, str]]:
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
            f"sync=disabled on {names}: a power cut loses what was acknowledged in about the last "
            f"{seconds} s",
        )
    ]


def _logbias(layout: Layout, notes: list[str]) -> None:
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
            f"logbias=throughput on {', '.join(indirect)}: if a file is written, cut short and written again "
            "between two syncs, a power cut can take the last of it (docs/durability.md, What was found in "
            "OpenZFS)"
        )


def _database(layout: Layout, notes: list[str]) -> list[tuple[DurabilityClass, str]]:
    said = [_answer(name, layout.database[name]) for name in _DATABASE if name in layout.database]
    found = [answer for answer in said if answer is not None]
    if _journal_comes_back(layout.database):
        found.append(_JOURNAL_BACK)
    data = layout.dataset_of("data")
    for name, page in _TORN.items():
        if layout.database.get(name, "").lower() not in _OFF:
            continue
        size = parse_size(next((layout.database[n] for n in _PAGE if n in layout.database), page))
        if _PAGE_KIB in layout.database:
            size = int(layout.database[_PAGE_KIB]) << 10
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
                f"{name}=off is safe here only because ZFS writes a record of at least one page at "
                "once; copies made "
                "elsewhere than on ZFS are not protected"
            )
    return found
