"""The versions of OrientDB that ztune drives: what is ours of each program, and what a layout may set."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ztune.onhost.host.process import Account, run
from ztune.onhost.host.workdir import WorkDir

_COMPILE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Release:
    """One version of OrientDB."""

    number: str
    """In full, such as ``3.2.25``."""
    program: str
    """The class of ours that works on it."""
    settings: Mapping[str, tuple[str, ...]]
    """What a layout may set, with the values that are allowed; none: a whole number. From the version's
    ``OGlobalConfiguration``.
    """
    owned: Mapping[str, str]
    """What it may not, and why."""
    times: Mapping[str, int]
    """The settings that are times, as OrientDB has them: each becomes longer where everything is slower."""
    beside: tuple[str, ...] = ()
    """Further classes of ours: those that ``program`` extends, and those that stand before OrientDB's own of
    the same name.
    """
    lucene: str = ""
    """Of the plug-in for Lucene the directory where ``ztune setup`` puts it; none: it comes with OrientDB."""

    @property
    def software(self) -> str:
        """The name of its directory where ``ztune setup`` puts it."""
        return f"orientdb-{self.number}"

    def compression(self, method: str) -> dict[str, str]:
        """Return the setting that ``method`` stands for; none where it is "default" or nothing can be set."""
        name = "storage.compressionMethod"
        return {name: method} if method != "default" and name in self.settings else {}

    @property
    def sources(self) -> tuple[str, ...]:
        """The files beside this one that are compiled for it."""
        return tuple(f"{name}.java" for name in ("OrientTalk", self.program, *self.beside))


_LOG = "the role wal says where the log lies"
_THREE = Release(
    number="3.2.25",
    program="OrientWork",
    settings={
        "storage.diskCache.pageSize": ("4", "8", "16", "32", "64"),
        "storage.diskCache.bufferSize": (),
        "storage.diskCache.checksumMode": ("OFF", "STORE", "STOREANDTHROW", "STOREANDVERIFY",
                                           "STOREANDSWITCHREADONLYMODE"),
        "storage.diskCache.walSizeToStartFlush": (),
        "storage.diskCache.walSizeToStopFlush": (),
        "storage.diskCache.writeCachePageFlushInterval": (),
        "storage.diskCache.writeCacheFlushInactivityInterval": (),
        "storage.diskCache.writeCachePart": (),
        "storage.useDoubleWriteLog": ("true", "false"),
        "storage.callFsync": ("true", "false"),
        "storage.wal.cacheSize": (),
        "storage.wal.bufferSize": (),
        "storage.wal.commitTimeout": (),
        "storage.wal.allowDirectIO": ("true", "false"),
        "storage.wal.maxSize": (),
        "storage.wal.maxSegmentSize": (),
        "storage.wal.minSegSize": (),
        "storage.wal.segmentsInterval": (),
        "storage.wal.keepSingleSegment": ("true", "false"),
    },
    owned={
        "storage.wal.path": _LOG,
        "storage.compressionMethod": "the clusters that OrientDB 3.2 makes (version 2) are not compressed",
    },
    times={
        "storage.wal.commitTimeout": 1000,
        "storage.diskCache.writeCachePageFlushInterval": 25,
        "storage.diskCache.writeCacheFlushInactivityInterval": 60_000,
    },
)  # fmt: skip
_ONE_SETTINGS: dict[str, tuple[str, ...]] = {
    "storage.compressionMethod": ("nothing", "snappy", "gzip"),
    "storage.diskCache.bufferSize": (),
    "storage.diskCache.writeCachePart": (),
    "storage.diskCache.writeCachePageTTL": (),
    "storage.diskCache.writeCachePageFlushInterval": (),
    "storage.makeFullCheckpointAfterClusterCreate": ("true", "false"),
    "storage.wal.cacheSize": (),
    "storage.wal.commitTimeout": (),
    "storage.wal.fuzzyCheckpointInterval": (),
    "storage.wal.maxSegmentSize": (),
    "storage.wal.maxSize": (),
    "storage.wal.syncOnPageFlush": ("true", "false"),
    "tx.commit.synch": ("true", "false"),
}
_ONE_OWNED = {
    "storage.wal.path": _LOG,
    "storage.useWAL": "without a log the role wal would have no files",
    # Tried: "Index -9 out of bounds" from 16 KiB down, where the schema's own record reaches over two pages.
    "storage.diskCache.pageSize": "OrientDB 1.x fails to read records from smaller pages than its 64 KiB",
}


def _one(number: str, program: str, *beside: str, lucene: str = "") -> Release:
    times = {"storage.wal.commitTimeout": 1000, "storage.diskCache.writeCachePageFlushInterval": 100}
    return Release(number, program, _ONE_SETTINGS, _ONE_OWNED, times, ("OClassLoaderHelper", *beside), lucene)


DEFAULT = "3.2"
RELEASES: dict[str, Release] = {
    DEFAULT: _THREE,
    # Maven Central has no plug-in of 1.7.4; that of 1.7 builds its index on 1.7.4.
    "1.7.4": _one("1.7.4", "OrientWork17", "OrientWork1", lucene="orientdb-lucene-1.7"),
    "1.6.4": _one("1.6.4", "OrientWork1"),
}
"""By what the parameter ``version`` says."""


def compile_program(
    release: Release, java: Path, lib: Path, workdir: WorkDir, account: Account, *, patience: float = 1.0
) -> Path:
    """Compile our program for ``release`` and return the directory of its classes, in ``workdir``.

    Args:
        release: for which version.
        java: of a development kit, whose compiler lies beside it.
        lib: the directory of OrientDB's jars; our sources are put there too.
        workdir: where the classes go.
        account: who compiles, and can read them.
        patience: multiplies the time limit.

    Raises:
        ZtuneError: the compiler failed; the sentence ends with its last lines.
    """
    for name in release.sources:
        text = pkgutil.get_data(__package__, name)
        assert text is not None
        (lib / name).write_bytes(text)
        (lib / name).chmod(0o644)
    classes = workdir.sub("classes", owner=account.owner)
    run(
        [
            java.with_name("javac"),
            *("-nowarn", "-Xlint:none", "-proc:none", "-encoding", "UTF-8"),
            *("-cp", f"{lib}/*", "-d", classes),
            *(lib / name for name in release.sources),
        ],
        what="the Java compiler",
        account=account,
        cwd=classes,
        seconds=_COMPILE_SECONDS * patience,
    )
    return classes
