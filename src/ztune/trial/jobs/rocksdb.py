"""``rocksdb``: RocksDB's own ``db_bench`` on a database whose log has a directory of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.packages import install_command
from ztune.trial.jobs import db_bench, places
from ztune.trial.jobs.base import Check, ProgressFn, WorkloadResult, no_progress
from ztune.trial.jobs.launcher import LaunchedJob, Launcher
from ztune.trial.jobs.process import Account, run
from ztune.trial.jobs.workdir import WorkDir
from ztune.units import parse_size

KEY_SIZE = 16
_ENTRY_OVERHEAD = 11
"""Bytes that a record has beside key and value in a table: measured with values of 400 bytes."""

MIXES = {"mixed": "readrandomwriterandom", "update": "updaterandom", "overwrite": "overwrite"}
"""Parameter ``mix`` → the benchmark of ``db_bench``."""

SETTINGS = (
    *(
        "compression_type",
        "compression_level",
        "min_level_to_compress",
        "block_size",
        "bloom_bits",
        "cache_size",
    ),
    *("use_direct_reads", "use_direct_io_for_flush_and_compaction", "mmap_read", "mmap_write"),
    *(
        "bytes_per_sync",
        "wal_bytes_per_sync",
        "wal_compression",
        "max_total_wal_size",
        "recycle_log_file_num",
    ),
    *("write_buffer_size", "max_write_buffer_number", "min_write_buffer_number_to_merge"),
    *(
        "target_file_size_base",
        "max_bytes_for_level_base",
        "max_bytes_for_level_multiplier",
        "compaction_style",
    ),
    *(
        "compaction_readahead_size",
        "max_background_jobs",
        "subcompactions",
        "level0_file_num_compaction_trigger",
    ),
    *("level0_slowdown_writes_trigger", "level0_stop_writes_trigger", "writable_file_max_buffer_size"),
    *("enable_blob_files", "min_blob_size", "blob_file_size", "blob_compression_type", "use_fsync"),
    *(
        "enable_pipelined_write",
        "allow_concurrent_memtable_write",
        "unordered_write",
        "sync",
        "manual_wal_flush",
    ),
)
"""Flags of ``db_bench`` that are settings of RocksDB with a bearing on I/O: what a layout may choose."""


class Rocksdb(LaunchedJob):
    """``db_bench`` on a RocksDB of our own: tables and log in directories of their own."""

    name: ClassVar[str] = "rocksdb"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal")

    def _set_up(self) -> None:
        super()._set_up()
        self.value_size = parse_size(self.params["value_size"])
        each = KEY_SIZE + self.value_size + _ENTRY_OVERHEAD
        # As much as RocksDB itself would say it holds: before its own compression.
        self.keys = max(1000, parse_size(self.params["size"]) // each)
        self._version = ""
        self._account: Account | None = None

    def settings(self) -> dict[str, str]:
        """Return RocksDB's settings: the parameters, overridden by the layout's."""
        params = self.params
        return {
            "compression_type": str(params["compression"]),
            "cache_size": str(parse_size(params["cache"])),
            "write_buffer_size": str(parse_size(params["write_buffer"])),
            "target_file_size_base": str(parse_size(params["write_buffer"])),
            "max_bytes_for_level_base": str(4 * parse_size(params["write_buffer"])),
            "use_direct_reads": _flag(params["direct_io"]),
            "use_direct_io_for_flush_and_compaction": _flag(params["direct_io"]),
            "sync": _flag(params["sync"]),
            **{
                name: {"on": "true", "off": "false"}.get(value, value)
                for name, value in self.database.items()
            },
        }

    def check(self) -> str:
        """Return RocksDB's version.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
            InputError: a setting in ``database`` is unknown here or has a value that it can't have.
        """
        if self._version:
            return self._version
        for name in self.database:
            if name not in SETTINGS:
                close = get_close_matches(name, SETTINGS, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"such are {', '.join(SETTINGS[:6])}"
                raise InputError(f"rocksdb has no setting {name!r} that a layout could choose; {hint}")
        program = _program("db_bench")
        _program("ldb")
        match = re.search(r"version (\d[\w.]*)", self._say([program, "--version"]))
        if match is None:
            raise MissingError(f"{program} --version names no version")
        # It reads all its flags before it looks for a database, where none can be.
        said = self._say([program, *self._flags({"benchmarks": "", "db": "/dev/null/none"})])
        if "Initializing RocksDB Options" not in said:
            lines = [line for line in said.splitlines() if line.strip()]
            first = lines[0] if lines else "(nothing)"
            raise InputError(f"RocksDB's db_bench does not take the settings: {first}")
        self._version = f"RocksDB {match[1]}"
        return self._version

    def _say(self, argv: list[str | Path]) -> str:
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", cwd="/", timeout=60 * self.patience
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise MissingError(f"{argv[0]} does not run: {error}") from None
        return done.stderr + done.stdout

    def _flags(self, more: Mapping[str, str]) -> list[str]:
        params = self.params
        flags = {
            "num": str(self.keys),
            "key_size": str(KEY_SIZE),
            "value_size": str(self.value_size),
            "compression_ratio": str(params["compressible"]),
            "seed": str(int(params["seed"]) + 1),  # 0 means: by the clock.
            **self.settings(),
            **more,
        }
        return [f"--{name}={value}" for name, value in flags.items()]

    def prepare(self, workdir: WorkDir, given: Mapping[str, Path] | None = None) -> None:
        """Make the directories."""
        self.check()
        self.workdir = workdir
        self._account = account = Account.for_database("nobody")
        self._paths = {
            role: places.take(role, self.place(role, given), workdir, account) for role in self.ROLES
        }
        home = workdir.sub("run", owner=account.owner)
        places.must_be_reachable((home, *self._paths.values()), workdir, account, patience=self.patience)

    @property
    def _home(self) -> Path:
        if self.workdir is None:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return self.workdir.path / "run"

    def _where(self) -> dict[str, str]:
        return {"db": str(self._paths["data"]), "wal_dir": str(self._paths["wal"])}

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write every key once, in random order, and let compaction come to rest."""
        step = "fill the database"
        home, account = self._home, self._account
        assert account is not None
        wanted = sum(self.expected_bytes().values())

        def watch() -> None:
            progress(step, min(0.99, places.size_of(self._paths["data"]) / wanted))

        fill = {
            "benchmarks": "filluniquerandom,flush,waitforcompaction",
            "threads": "1",
            "sync": "false",
            "disable_wal": "true",
            # Into the page cache, however the load itself is to go.
            "use_direct_io_for_flush_and_compaction": "false",
        }
        run(
            [_program("db_bench"), *self._flags({**self._where(), **fill})],
            what="db_bench (filling the database)",
            account=account,
            cwd=home,
            seconds=(600 + wanted / 500_000) * self.patience,
            watch=watch,
        )
        found = self._count()
        if found != self.keys:
            raise ZtuneError(
                f"rocksdb: there should be {self.keys} keys after the fill but there are {found}"
            )
        progress(step, 1.0)

    def adopt(self, given: Mapping[str, Path]) -> None:
        """Take over a database that was copied into ``given``."""
        assert self._account is not None
        self.must_be_in_place(given)
        if not (self._paths["data"] / "CURRENT").is_file():
            raise ZtuneError(
                f"{self._paths['data']}: there is no RocksDB database to take over; load it anew"
            )
        for path in self._paths.values():
            places.hand_over(path, self._account)
        # It names the directories where the database was before; db_bench writes a new one.
        for path in self._paths["data"].glob("OPTIONS-*"):
            path.unlink()

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the shell that waits for the word to run ``db_bench``."""
        params = self.params
        if not (self._paths["data"] / "CURRENT").is_file():
            raise ZtuneError("rocksdb: there is no database; load comes before this step")
        assert self._account is not None
        count = str(self._per_thread)
        more = {
            "benchmarks": MIXES[str(params["mix"])],
            "use_existing_db": "true",
            "threads": str(params["threads"]),
            "readwritepercent": str(params["read_share"]),
            "histogram": "true",
            "statistics": "true",
            "duration": str(self._seconds),
            "reads": count,
            "writes": count,
        }
        self._launcher = Launcher(
            "db_bench",
            self._home,
            self._account,
            log=self._home.parent / "db_bench.log",
            patience=self.patience,
        )
        self._launcher.start([_program("db_bench"), *self._flags({**self._where(), **more})])
        progress("start db_bench", 1.0)

    @property
    def _per_thread(self) -> int:
        # With a duration the count is no limit.
        return -(-int(self.params["operations"]) // int(self.params["threads"]))

    @property
    def _seconds(self) -> int:
        seconds = int(self.params["seconds"])
        return max(1, round(seconds * self.dilation)) if seconds else 0

    def pids(self) -> list[int]:
        """Return the shell below which ``db_bench`` runs."""
        return self._launcher.pids() if self._launcher is not None else []

    def expected_bytes(self) -> dict[str, int]:
        """Return about how much the tables hold when RocksDB does not compress them, and the log at most."""
        each = KEY_SIZE + self.value_size + _ENTRY_OVERHEAD
        return {"data": self.keys * each, "wal": 4 * parse_size(self.params["write_buffer"])}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it."""
        launcher = self._launcher
        if launcher is None:
            raise ZtuneError(f"{self.name}: start comes before this step")
        step, seconds = "run the load", self._seconds

        def tick(gone: float) -> None:
            progress(step, min(0.99, gone / seconds) if seconds else 0.0)

        # One that ends by its count takes as long as the disk needs; a day is a limit all the same.
        limit = (seconds or 86_400) + 600 * self.patience
        launcher.run(limit, tick)
        if launcher.exit_code() != 0:
            raise ZtuneError(f"db_bench ended with exit code {launcher.exit_code()}: {launcher.said()}")
        report = db_bench.parse(launcher.log.read_text(encoding="utf-8", errors="replace"))
        progress(step, 1.0)
        counters = report.counters

        def counted(name: str) -> int:
            return counters.get(f"rocksdb.{name}", 0)

        written = counted("number.keys.written")
        return WorkloadResult(
            seconds=report.seconds,
            operations=report.operations,
            unit="operation",
            latency_ms=db_bench.latency_summary(report.histograms),
            details={
                "benchmark": report.name,
                "keys_read": counted("number.keys.read"),
                "keys_written": written,
                "wal_bytes": counted("wal.bytes"),
                "wal_bytes_per_write": round(counted("wal.bytes") / written, 1) if written else 0.0,
                "wal_syncs": counted("wal.synced"),
                "flushed_bytes": counted("flush.write.bytes"),
                "compaction_read_bytes": counted("compact.read.bytes"),
                "compaction_written_bytes": counted("compact.write.bytes"),
                "stall_seconds": round(counted("stall.micros") / 1e6 / self.dilation, 3),
                "latency_ms_by_kind": {
                    one.kind: {
                        name: ms / self.dilation for name, ms in db_bench.latency_summary([one]).items()
                    }
                    for one in report.histograms
                },
                "settings": self.settings(),
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        RocksDB itself counted as many reads and writes as ``db_bench`` says it did, and as many as were asked
        for; each write that was to be synced was; afterwards every key is still there, as RocksDB's ``ldb``
        counts them, and its files are consistent.

        Raises:
            ZtuneError: a check does not hold.
        """
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
            asked = self._per_thread * int(self.params["threads"])
            checks.append(Check("operations asked for", asked, result.operations))
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
        assert self._account is not None
        return run(
            [_program("ldb"), f"--db={self._paths['data']}", *command],
            what="ldb",
            account=self._account,
            cwd=self._home,
            seconds=(120 + self.keys / 20_000) * self.patience,
        )

    def page_sizes(self) -> dict[str, int]:
        """Return nothing: blocks of a table have no fixed size and no fixed places."""
        return {}


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"RocksDB's {name} was not found; install it with `{install_command('rocksdb')}`")
    return Path(found)


def _flag(value: object) -> str:
    return "true" if value in (True, "true", "on") else "false"
