"""``rocksdb``: reads and writes of random keys in a RocksDB whose log has a directory of its own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ztune.databases.rocksdb.onhost import client as rocksdb_client
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost import latency
from ztune.onhost.host.process import run
from ztune.onhost.jobs import filler, software
from ztune.onhost.jobs.conversation import Client, ClientJob, text_of
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.packages import install_command
from ztune.units import parse_size

KEY_SIZE = 16
_ENTRY_OVERHEAD = 11
"""Bytes that a record has beside key and value in a table: measured with values of 400 bytes."""
_LEAST_TABLE = 4 << 20
"""Bytes of a compacted table, at least. As small as the write buffer of a short load, the end of each last
record would be a good part of it, which no user's are."""

SETTINGS = tuple(
    """
    compression_type compression_level min_level_to_compress block_size bloom_bits cache_size
    use_direct_reads use_direct_io_for_flush_and_compaction mmap_read mmap_write bytes_per_sync
    wal_bytes_per_sync wal_compression max_total_wal_size recycle_log_file_num write_buffer_size
    max_write_buffer_number min_write_buffer_number_to_merge target_file_size_base
    max_bytes_for_level_base max_bytes_for_level_multiplier compaction_style compaction_readahead_size
    max_background_jobs subcompactions level0_file_num_compaction_trigger level0_slowdown_writes_trigger
    level0_stop_writes_trigger writable_file_max_buffer_size enable_blob_files min_blob_size
    blob_file_size blob_compression_type use_fsync enable_pipelined_write allow_concurrent_memtable_write
    unordered_write sync manual_wal_flush
    """.split()  # noqa: SIM905 - quoted words would fill the page
)
"""Settings of RocksDB with a bearing on I/O, as ``db_bench`` calls them: what a layout may choose."""

_COMPRESSIONS = {
    **{"none": "kNoCompression", "snappy": "kSnappyCompression", "zlib": "kZlibCompression"},
    **{"bzip2": "kBZip2Compression", "lz4": "kLZ4Compression", "lz4hc": "kLZ4HCCompression"},
    "zstd": "kZSTD",
}
_STYLES = ("kCompactionStyleLevel", "kCompactionStyleUniversal", "kCompactionStyleFIFO")
_LEVELS = 7
# Where RocksDB's own name for an option is another than db_bench's.
_RENAMED = {
    **{"compression_type": "compression", "subcompactions": "max_subcompactions"},
    **{"mmap_read": "allow_mmap_reads", "mmap_write": "allow_mmap_writes"},
}


class Rocksdb(ClientJob):
    """Reads and writes of random keys in a RocksDB of our own, by a Python program with RocksDB's library."""

    name: ClassVar[str] = "rocksdb"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal")
    PROGRAM: ClassVar[ModuleType] = rocksdb_client
    CALLED: ClassVar[str] = "the RocksDB client"

    def _set_up(self) -> None:
        super()._set_up()
        self.value_size = parse_size(self.params["value_size"])
        each = KEY_SIZE + self.value_size + _ENTRY_OVERHEAD
        # As much as RocksDB itself would say it holds: before its own compression.
        self.keys = max(1000, parse_size(self.params["size"]) // each)
        self._version = self._library = ""

    def settings(self) -> dict[str, str]:
        """Return RocksDB's settings, as ``db_bench`` calls them: the parameters, overridden by the
        layout's.
        """
        params = self.params
        return {
            "compression_type": str(params["compression"]),
            "cache_size": str(parse_size(params["cache"])),
            "write_buffer_size": str(parse_size(params["write_buffer"])),
            "target_file_size_base": str(max(_LEAST_TABLE, parse_size(params["write_buffer"]))),
            "max_bytes_for_level_base": str(4 * parse_size(params["write_buffer"])),
            "use_direct_reads": _flag(params["direct_io"]),
            "use_direct_io_for_flush_and_compaction": _flag(params["direct_io"]),
            "sync": _flag(params["sync"]),
            **{
                name: {"on": "true", "off": "false"}.get(value, value)
                for name, value in self.database.items()
            },
        }

    def options(self) -> str:
        """Return the settings as the text that RocksDB reads its options from.

        Raises:
            InputError: a setting has a value that it can't have.
        """
        settings = {name: value for name, value in self.settings().items() if name != "sync"}
        for name, value in settings.items():
            if not re.fullmatch(r"[\w.+-]+", value):
                raise InputError(f"rocksdb: {name} can't be {value!r}; it takes a number, a word, on or off")
        for name in ("compression_type", "blob_compression_type", "wal_compression"):
            if name in settings:
                settings[name] = _word(name, settings[name], _COMPRESSIONS)
        if "compaction_style" in settings:
            styles = {str(n): style for n, style in enumerate(_STYLES)}
            settings["compaction_style"] = _word("compaction_style", settings["compaction_style"], styles)
        table = {"block_cache": settings.pop("cache_size"), "block_size": settings.pop("block_size", "4096")}
        bits = settings.pop("bloom_bits", "-1")
        if not bits.startswith("-"):
            table["filter_policy"] = f"bloomfilter:{bits}:false"
        if "compression_level" in settings:
            settings["compression_opts"] = f"{{level={settings.pop('compression_level')}}}"
        if "min_level_to_compress" in settings:
            first = settings.pop("min_level_to_compress")
            levels = {str(n): n for n in range(-1, _LEVELS)}
            plain = max(0, _word("min_level_to_compress", first, levels))
            kinds = [_COMPRESSIONS["none"]] * plain + [settings["compression_type"]] * (_LEVELS - plain)
            settings["compression_per_level"] = ":".join(kinds)
        settings["block_based_table_factory"] = f"{{{_joined(table)}}}"
        return _joined({_RENAMED.get(name, name): value for name, value in settings.items()})

    def check_settings(self) -> None:
        """Refuse settings that aren't RocksDB's or not the layout's."""
        for name in self.database:
            if name not in SETTINGS:
                close = get_close_matches(name, SETTINGS, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"such are {', '.join(SETTINGS[:6])}"
                raise InputError(f"rocksdb has no setting {name!r} that a layout could choose; {hint}")

    def check(self) -> str:
        """Return RocksDB's version.

        Raises:
            MissingError: a program or the library is missing; the text names the command that brings it.
            InputError: a setting in ``database`` is unknown here or has a value that it can't have.
        """
        if self._version:
            return self._version
        self.check_settings()
        options = self.options()
        version = software.version_of([_ldb(), "--version"], r"RocksDB (\d[\w.]*)", patience=self.patience)
        self.python, self._library = self._find_library()
        self._try(options)
        self._version = f"RocksDB {version}"
        return self._version

    def _find_library(self) -> tuple[str, str]:
        """Return a Python that the account can run, and what RocksDB's library is called there."""
        code = "import ctypes.util as u; print(u.find_library('rocksdb') or '')"
        for found in software.pythons(code, self.account, patience=self.patience):
            return found
        raise MissingError(
            f"RocksDB's library (librocksdb) was not found by a Python 3 that user {self.account.name!r} can "
            f"run; install it with `{install_command('rocksdb')}`"
        )

    def _try(self, options: str) -> None:
        """Have RocksDB read ``options`` before anything is made."""
        asked = json.dumps({"library": self._library, "options": options})
        answer = software.said_by(
            [self.python, "-I", "-B", "-c", text_of(rocksdb_client)],
            patience=self.patience,
            input=f"check\t{asked}\n",
            stderr=subprocess.STDOUT,
            **self.account.popen_args,
        )
        why = answer.strip().rpartition("\n")[2]
        try:
            said = json.loads(why)
        except ValueError:
            raise MissingError(
                f"RocksDB's library {self._library} does not work with {self.python}: {why}"
            ) from None
        if "error" in said:
            raise InputError(f"RocksDB does not take the settings: {said['error'].partition(': ')[2]}")

    def _open(self, **how: Any) -> Client:
        """Start the client and have it open the database."""
        client = self.connect()
        client.do(
            "open",
            {
                "library": self._library,
                "path": str(self._paths["data"]),
                "wal": str(self._paths["wal"]),
                "options": self.options(),
                "sync": self.settings()["sync"] == "true",
                "log": True,
                "keys": self.keys,
                "values": filler.values(self.params),
                **how,
            },
        )
        return client

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write every key, some of them again, and let compaction come to rest."""
        step = "fill the database"
        wanted = sum(self.expected_bytes().values())
        # Into the page cache, however the load itself is to go.
        plain = self.options().replace(
            "use_direct_io_for_flush_and_compaction=true", "use_direct_io_for_flush_and_compaction=false"
        )
        try:
            self._open(make=True, sync=False, log=False, options=plain).do(
                "fill",
                seconds=600 + wanted / 500_000,
                on_progress=lambda done: progress(step, min(0.99, done)),
            )
        except BaseException:
            self.kill()  # it hears nothing before it is done
            raise
        self.stop()
        found = self._count()
        if found != self.keys:
            raise ZtuneError(
                f"rocksdb: there should be {self.keys} keys after the fill but there are {found}"
            )
        progress(step, 1.0)

    def take_over(self) -> None:
        """Look at a database that was copied."""
        if not (self._paths["data"] / "CURRENT").is_file():
            raise ZtuneError(
                f"{self._paths['data']}: there is no RocksDB database to take over; load it anew"
            )
        # It names the directories where the database was before; RocksDB writes a new one.
        for path in self._paths["data"].glob("OPTIONS-*"):
            path.unlink()

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the client and open the database."""
        if not (self._paths["data"] / "CURRENT").is_file():
            raise ZtuneError("rocksdb: there is no database; load comes before this step")
        found = self._open().do("look")
        if not found["whole"]:
            raise ZtuneError("rocksdb: the database holds other keys than this job's; load it anew")
        progress("open the database", 1.0)

    @property
    def _rate(self) -> float:
        """Operations that become due per second of the clock; 0: no pace."""
        return float(self.params.get("rate", 0)) / self.dilation

    @property
    def _operations(self) -> int:
        threads = int(self.params["threads"])
        return -(-int(self.params["operations"]) // threads) * threads

    @property
    def _seconds(self) -> float:
        seconds = int(self.params["seconds"])
        return max(1.0, seconds * self.dilation) if seconds else 0.0

    def expected_bytes(self) -> dict[str, int]:
        """Return about how much the tables hold when RocksDB does not compress them, and the log at most."""
        each = KEY_SIZE + self.value_size + _ENTRY_OVERHEAD
        return {"data": self.keys * each, "wal": 4 * parse_size(self.params["write_buffer"])}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it."""
        client = self.client
        params, seconds, rate = self.params, self._seconds, self._rate
        found = client.do(
            "run",
            {
                "mix": str(params["mix"]),
                "read_share": int(params["read_share"]),
                "operations": self._operations,
                "seconds": seconds,
                "rate": rate,
                "threads": int(params["threads"]),
                "seed": int(params["seed"]),
            },
            # One that ends by its count takes as long as the disk needs; a day more is a limit all the same.
            seconds=(seconds or 86_400 + (self._operations / rate if rate else 0)) / self.patience + 600,
            on_progress=lambda done: progress("run the load", min(0.99, done)),
        )
        progress("run the load", 1.0)
        counters, times = found["counters"], found["times_us"]
        every = times.pop("operation")

        def counted(name: str) -> int:
            return int(counters.get(name, 0))

        written = counted("number.keys.written")
        return WorkloadResult(
            seconds=found["seconds"],
            operations=found["operations"],
            unit="operation",
            offered_per_second=rate,
            commits=written if self.settings()["sync"] == "true" else 0,
            latency_ms=latency.summary(every, 1000),
            details={
                "mix": str(params["mix"]),
                "keys_read": counted("number.keys.read"),
                "keys_written": written,
                "wal_bytes": counted("wal.bytes"),
                "wal_bytes_per_write": round(counted("wal.bytes") / written, 1) if written else 0.0,
                "wal_syncs": counted("wal.synced"),
                "flushed_bytes": counted("flush.write.bytes"),
                "compaction_read_bytes": counted("compact.read.bytes"),
                "compaction_written_bytes": counted("compact.write.bytes"),
                "stall_seconds": round(counted("stall.micros") / 1e6 / self.dilation, 3),
                "closing_seconds": round(found["closing_seconds"] / self.dilation, 3),
                "latency_ms_by_kind": latency.by_kind(times, self.dilation),
                "settings": self.settings(),
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        RocksDB itself counted as many reads and writes as the load did, and as many as were asked for; each
        write that was to be synced was; afterwards every key is still there, as RocksDB's ``ldb`` counts
        them, and its files are consistent.

        Raises:
            ZtuneError: a check does not hold.
        """
        self.client.do("close")
        details, mix = result.details, str(self.params["mix"])
        read, written = details["keys_read"], details["keys_written"]
        done = {"mixed": read + written, "update": written, "overwrite": written}[mix]
        checks = [
            Check("operations, as RocksDB counted them", result.operations, done),
            Check("some were done", "yes", "yes" if result.operations else "no"),
            Check("keys in the database", self.keys, self._count()),
            Check("ldb checkconsistency", "OK", self._ldb("checkconsistency").strip().rpartition("\n")[2]),
        ]
        if mix == "update":
            checks.append(Check("keys read", written, read))
        if not self._seconds:
            checks.append(Check("operations asked for", self._operations, result.operations))
        if written and self.settings()["sync"] == "true":
            # Threads that write together share a sync: at least one for each group of them.
            synced = "yes" if details["wal_syncs"] * int(self.params["threads"]) >= written else "no"
            checks.append(Check("the log was synced for each group of writes", "yes", synced))
        return replace(result, checks=tuple(checks)).require_ok(self.name)

    def _count(self) -> int:
        said = self._ldb("dump", "--count_only")
        match = re.search(r"Keys in range: (\d+)", said)
        if match is None:
            raise ZtuneError(f"rocksdb: ldb counted no keys: {said.strip()[-200:]!r}")
        return int(match[1])

    def _ldb(self, *command: str) -> str:
        return run(
            [_ldb(), f"--db={self._paths['data']}", *command],
            what="ldb",
            account=self.account,
            cwd=self.home,
            seconds=(120 + self.keys / 20_000) * self.patience,
        )


def _ldb() -> Path:
    return software.program("ldb", "RocksDB's ldb", "rocksdb")


def _word(name: str, value: str, words: Mapping[str, Any]) -> Any:
    if value not in words:
        raise InputError(f"rocksdb: {name} can't be {value!r}; it is one of {', '.join(words)}")
    return words[value]


def _joined(options: Mapping[str, str]) -> str:
    return ";".join(f"{name}={value}" for name, value in options.items())


def _flag(value: object) -> str:
    return "true" if value in (True, "true", "on") else "false"
