"""``sqlite``: transactions on an SQLite database, in WAL or rollback-journal mode.

SQLite keeps its log beside the database, under the database's name with ``-wal`` or ``-journal`` behind it,
and follows no link there. So data and log can be told apart in a trace, by their names, but can't be placed
on different datasets: a layout that does is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ztune.databases.sqlite.onhost import client as sqlite_client
from ztune.errors import InputError, ZtuneError
from ztune.onhost import latency
from ztune.onhost.jobs import filler, software
from ztune.onhost.jobs.conversation import ClientJob
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.settings import check as check_settings
from ztune.units import is_power_of_two, parse_size

DATABASE = "ledger.db"
BYTES_PER_ROW = 104
"""Of the table: measured with 4 KiB pages; within 3 % from 1 KiB to 64 KiB."""

# PRAGMAs that a layout may set, and what SQLite's manual (pragma.html) allows. Whatever isn't here is either
# no matter of I/O or the job's own.
SETTINGS: dict[str, tuple[str, ...]] = {
    "page_size": ("512", "1024", "2048", "4096", "8192", "16384", "32768", "65536"),
    "journal_mode": ("wal", "delete", "truncate", "persist"),
    "synchronous": ("off", "normal", "full", "extra"),
    "cache_size": (),
    "mmap_size": (),
    "wal_autocheckpoint": (),
    "journal_size_limit": (),
    "cache_spill": ("on", "off"),
    "auto_vacuum": ("none", "full", "incremental"),
    "fullfsync": ("on", "off"),
    "checkpoint_fullfsync": ("on", "off"),
}
_OWNED = {
    "locking_mode": "several clients work on the database",
    "temp_store": "this load makes no temporary files",
}
_NUMBERS = {"synchronous": ("off", "normal", "full", "extra"), "auto_vacuum": ("none", "full", "incremental")}


class Sqlite(ClientJob):
    """Transactions on an SQLite database, by a Python program of its own."""

    name: ClassVar[str] = "sqlite"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal")
    PROGRAM: ClassVar[ModuleType] = sqlite_client
    CALLED: ClassVar[str] = "the SQLite client"

    def _set_up(self) -> None:
        super()._set_up()
        self.rows = max(1000, parse_size(self.params["size"]) // BYTES_PER_ROW)
        self._version = ""
        self._before: dict[str, Any] = {}
        self._done = {"inserted": 0, "added": 0}

    def settings(self) -> dict[str, str]:
        """Return the PRAGMAs that the connections set: the parameters, overridden by the layout's
        settings.
        """
        params = self.params
        return {
            "page_size": str(parse_size(params["page_size"])),
            "journal_mode": str(params["journal_mode"]),
            "synchronous": str(params["synchronous"]),
            # Negative: KiB, whatever the page size.
            "cache_size": str(-(parse_size(params["cache"]) // 1024)),
            "mmap_size": str(parse_size(params["mmap_size"])),
            "wal_autocheckpoint": str(params["wal_autocheckpoint"]),
            **{name: value.lower() for name, value in self.database.items()},
        }

    @property
    def page_size(self) -> int:
        """Bytes in a page."""
        return int(self.settings()["page_size"])

    def check_settings(self) -> None:
        """Refuse settings that aren't the database's or not the layout's."""
        check_settings("sqlite", self.database, SETTINGS, _OWNED)

    def check(self) -> str:
        """Return SQLite's version, as the Python that will be used has it.

        Raises:
            MissingError: there is no Python with SQLite that the database's user can run.
            InputError: a setting in ``database`` is unknown here or not the layout's to set.
        """
        if not self._version:
            self.check_settings()
            page = self.page_size
            if not is_power_of_two(page) or not 512 <= page <= 65536:
                raise InputError(f"sqlite: page_size {page} is no power of two from 512 to 65536")
            code, has = "import sqlite3; print(sqlite3.sqlite_version)", " with the module sqlite3"
            self.python, self._version = software.python(self.account, code, has=has, patience=self.patience)
        return f"SQLite {self._version}"

    def take(self, places: Mapping[str, Path] | None) -> dict[str, Path]:
        """Return the directory of both roles.

        Raises:
            InputError: data and wal are on different file systems.
        """
        return self.take_one(
            places,
            "sqlite: the layout gives data and wal datasets of their own, but SQLite keeps its log "
            "beside its database; give one dataset both roles",
        )

    @property
    def _database(self) -> Path:
        return super().role_paths()["data"] / DATABASE

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Make and fill the database."""
        step = "fill the database"
        settings = self.settings()
        try:
            found = self.connect().do(
                "load",
                {
                    "path": str(self._database),
                    "page_size": self.page_size,
                    "rows": self.rows,
                    "seed": int(self.params["seed"]),
                    "phrases": list(filler.PHRASES),
                    "pragmas": {name: settings[name] for name in ("auto_vacuum",) if name in settings},
                },
                seconds=60 + self.rows / 5000,
                on_progress=lambda done: progress(step, done),
            )
        except BaseException:
            # It is still at work: it would not hear that it is to close.
            self.kill()
            raise
        self.stop()
        if found["rows"] != self.rows:
            raise ZtuneError(
                f"sqlite: there should be {self.rows} rows after the fill but there are {found['rows']}"
            )
        progress(step, 1.0)

    def take_over(self) -> None:
        """Look at a database that was copied."""
        if not self._database.is_file():
            raise ZtuneError(f"{self._database}: there is no database to take over; load it anew")

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the client, open the database with the settings asked for, and warm it with the load."""
        settings = self.settings()
        # The page size is the file's, once it is made.
        later = {name: value for name, value in settings.items() if name not in ("page_size", "auto_vacuum")}
        found = self.connect().do(
            "open",
            {
                "path": str(self._database),
                "pragmas": later,
                "seed": int(self.params["seed"]),
                "phrases": list(filler.PHRASES),
                "busy_ms": round(60_000 * self.patience),
                "settings": list(settings),
            },
        )
        self._must_be_set(found["settings"])
        if found["rows"] != self.rows:
            raise ZtuneError(f"sqlite: the database has {found['rows']} rows, not {self.rows}; load it anew")
        self._before = found
        warmup = int(self.params["warmup"]) * self.dilation
        if warmup:
            self._work(warmup, int(self.params["seed"]) + 1, 0.0, "warm up", progress, log=False)

    def _must_be_set(self, found: Mapping[str, str]) -> None:
        for name, wanted in self.settings().items():
            got = found[name]
            if name in _NUMBERS and got.isdigit():
                got = _NUMBERS[name][int(got)]
            boolean = {"on": "1", "off": "0"}.get(wanted, wanted) if name not in _NUMBERS else wanted
            # A spill may be given as a number of pages; on is whatever SQLite makes of it.
            if name != "cache_spill" and got not in (wanted, boolean):
                raise InputError(
                    f"sqlite: {name} is {got} although {wanted} was asked for; this SQLite refuses it"
                )

    def env(self) -> dict[str, str]:
        """Return where SQLite's temporary files go."""
        return {"SQLITE_TMPDIR": str(self.home)}

    def _work(
        self, seconds: float, seed: int, rate: float, step: str, progress: ProgressFn, *, log: bool
    ) -> dict[str, Any]:
        found = self.client.do(
            "run",
            {
                "seconds": seconds,
                "rate": rate,
                **{name: int(self.params[name]) for name in ("clients", "reads", "updates", "inserts")},
                "seed": seed,
                "log": log,
            },
            seconds=seconds / self.patience + 120,
            on_progress=lambda done: progress(step, done),
        )
        for name in self._done:
            self._done[name] += found[name]
        progress(step, 1.0)
        return found

    def expected_bytes(self) -> dict[str, int]:
        """Return the size of the filled table; log and new rows come on top."""
        return {"data": self.rows * BYTES_PER_ROW, "wal": 8 << 20}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it."""
        seconds = max(1.0, int(self.params["seconds"]) * self.dilation)
        rate = float(self.params["rate"]) / self.dilation
        found = self._work(seconds, int(self.params["seed"]), rate, "run the load", progress, log=True)
        if found["transactions"] == 0:
            raise ZtuneError(f"sqlite: no transaction was done in {seconds:.0f} s; allow it more time")
        closing: dict[str, Any] = {}
        wal = self.settings()["journal_mode"] == "wal"
        if wal and self.params["final_checkpoint"]:
            closing = self.client.do("checkpoint", seconds=600)
            if closing["busy"]:
                raise ZtuneError("sqlite: the last checkpoint did not come to its end")
        files = {path.name: path.stat().st_size for path in self._paths["data"].iterdir()}
        return WorkloadResult(
            seconds=found["seconds"],
            operations=found["transactions"],
            unit="transaction",
            latency_ms=latency.summary(found["times_us"], 1000),
            offered_per_second=rate,
            details={
                "tps": found["transactions"] / found["seconds"] * self.dilation,
                "rows_read": found["seen"],
                "rows_inserted": found["inserted"],
                "closing_seconds": round(closing.get("seconds", 0.0) / self.dilation, 3),
                "database_bytes": files.get(DATABASE, 0),
                "log_bytes": sum(size for name, size in files.items() if name.endswith(("-wal", "-journal"))),
                "settings": self._before["settings"],
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        Rows added are as many as the transactions inserted, the balances add up to what was added, no row was
        lost, and SQLite finds the file sound.

        Raises:
            ZtuneError: a check does not hold.
        """
        found = self.client.do("verify", seconds=60 + self.rows / 5000)
        both = int(self.params["updates"]) and int(self.params["inserts"])
        inserted = found["history"] - self._before["history"]
        checks = (
            Check("rows of account", self.rows, found["rows"]),
            Check("rows added to history", self._done["inserted"], inserted),
            Check("sum of account.balance", self._done["added"], found["balance"]),
            Check("sum of history.delta", self._done["added"] if both else found["deltas"], found["deltas"]),
            Check("rows read per transaction", int(self.params["reads"]) * result.operations,
                  result.details["rows_read"]),
            Check("integrity_check", "ok", found["integrity"]),
        )  # fmt: skip
        return replace(result, checks=checks).require_ok(self.name)

    def stop(self) -> None:
        """Close the database, which brings the log into it, and end the client."""
        self._before = {}
        self._done = {"inserted": 0, "added": 0}
        super().stop()

    def role_paths(self) -> dict[str, Path]:
        """Return the database's directory, and the log's file in it."""
        ending = "-wal" if self.settings()["journal_mode"] == "wal" else "-journal"
        return {"data": self._database.parent, "wal": self._database.with_name(DATABASE + ending)}

    def unrecorded_paths(self) -> tuple[Path, ...]:
        """Return the WAL's index: memory that the connections share, never synced, made anew after a
        crash.
        """
        return (self._database.with_name(DATABASE + "-shm"),)

    def page_sizes(self) -> dict[str, int]:
        """Return the page size of the database; the log's frames are pages with a header each."""
        return {"data": self.page_size}
