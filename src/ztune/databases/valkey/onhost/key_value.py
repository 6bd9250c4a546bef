"""``valkey``: reads and writes of random keys in a Valkey or Redis with an append-only file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ztune.databases.valkey.onhost import client as valkey_client
from ztune.databases.valkey.onhost.server import (
    AOF_DIRECTORY,
    MANIFEST,
    SNAPSHOT,
    Binaries,
    ValkeyServer,
    check_settings,
    find_binaries,
    normal,
)
from ztune.errors import ZtuneError
from ztune.onhost import latency
from ztune.onhost.jobs import filler, software
from ztune.onhost.jobs.conversation import Client, ClientJob
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.server import ServerJob
from ztune.units import parse_size

_BESIDE = 40
"""Bytes that a key and its frame add to a value, in the snapshot and in the log."""
_COMMANDS = {"set": "writes", "get": "reads"}


ONE_DATASET = (
    "valkey: the layout gives data and wal datasets of their own, but the server moves each new base of its "
    "append-only file there by a rename, which can't leave a dataset; give one dataset both roles"
)


class Valkey(ServerJob[ValkeyServer], ClientJob):
    """Reads and writes of random keys in a server of our own."""

    name: ClassVar[str] = "valkey"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal")
    PROGRAM: ClassVar[ModuleType] = valkey_client
    CALLED: ClassVar[str] = "the client"

    def _set_up(self) -> None:
        super()._set_up()
        self.value_size = parse_size(self.params["value_size"])
        self.keys = int(self.params["keys"])
        self._binaries: Binaries | None = None
        self._before: dict[str, int] = {}

    def settings(self) -> dict[str, str]:
        """Return the server's settings: the parameters, overridden by the layout's."""
        return {
            "appendonly": "yes" if self.params["appendonly"] else "no",
            "appendfsync": str(self.params["appendfsync"]),
            "save": str(self.params["save"]),
            # Only when it is told to: by itself a short load would meet it or not, as its size has it.
            "auto-aof-rewrite-percentage": "0",
            **normal(self.database),
        }

    @property
    def logged(self) -> bool:
        """Whether there is an append-only file."""
        return self.settings()["appendonly"] == "yes"

    @property
    def binaries(self) -> Binaries:
        """The programs, from ``check`` on."""
        if self._binaries is None:
            self._binaries = find_binaries(str(self.params["server"]), patience=self.patience)
        return self._binaries

    def check(self) -> str:
        """Return the version, such as ``Valkey 8.0.1``.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
            InputError: a setting in ``database`` is not the server's, or not the layout's to set.
        """
        check_settings(self.settings())
        if not self.python:
            self.user = self.binaries.name
            self.python, _ = software.python(self.account, patience=self.patience)
        return self.binaries.title

    def take(self, places: Mapping[str, Path] | None) -> dict[str, Path]:
        """Return the directory of both roles.

        Raises:
            InputError: data and wal are on different file systems.
        """
        return self.take_one(places, ONE_DATASET)

    def lay_out(self) -> None:
        """Put the client where its user can read it; note where the server is to be."""
        super().lay_out()
        assert self.workdir is not None
        self._server = ValkeyServer(
            self.binaries,
            self.workdir,
            self.home,
            self.account,
            self._paths["data"],
            patience=self.patience,
        )

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write every key once.

        What is left is a snapshot and an append-only file that is all base, whatever the settings: a server
        that is set to use one of them does not read the other.
        """
        step = "fill the store"
        server = self.server
        server.configure({**self.settings(), "appendonly": "yes", "appendfsync": "no", "save": ""})
        server.start()
        try:
            client = self._open()
            client.do(
                "fill", seconds=600 + self.keys / 2000, on_progress=lambda done: progress(step, 0.9 * done)
            )
            server.write_out(log=False)
            server.write_out(log=True)
        except BaseException:
            self.kill()  # it hears nothing before it is done
            raise
        self.stop()
        progress(step, 1.0)

    def take_over(self) -> None:
        """Look at files that were copied."""
        data = self.server.data
        for name in (SNAPSHOT, MANIFEST):
            if not (data / name).is_file():
                raise ZtuneError(f"{data}: there is no {name} to take over; load it anew")

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server, which reads its files, and the client."""
        server = self.server
        if not self.logged:
            # A server without one has no such directory, which would only take room.
            shutil.rmtree(server.data / AOF_DIRECTORY, ignore_errors=True)
        server.configure(self.settings())
        server.start()
        found = self._open().do("open", self._about())
        if found["keys"] != self.keys:
            raise ZtuneError(f"valkey: the store holds {found['keys']} keys, not {self.keys}; load it anew")
        self._before = self._counts()
        progress("start the server", 1.0)

    def _open(self) -> Client:
        """Start the client."""
        client = self.connect()
        client.do("open", self._about())
        return client

    def _about(self) -> dict[str, Any]:
        return {
            "path": str(self.server.socket),
            "wait": 600.0 * self.patience,
            "keys": self.keys,
            "values": filler.values(self.params),
        }

    def _counts(self) -> dict[str, int]:
        """Return how many reads and writes the server has counted, and its keys that were not found."""
        said = self.server.info("commandstats")
        found = {}
        for command, name in _COMMANDS.items():
            fields = dict(part.split("=") for part in said.get(f"cmdstat_{command}", "calls=0").split(","))
            found[name] = int(fields["calls"])
        return found

    def pids(self) -> list[int]:
        """Return the server's pid: what rewrites its files are its children."""
        return self.server.pids()

    def expected_bytes(self) -> dict[str, int]:
        """Return the size of the snapshot, and of the log: an old base, a new one, all that is written."""
        params = self.params
        each = self.value_size + _BESIDE
        store = self.keys * each
        writes = float(params["rate"]) * int(params["seconds"]) * (100 - int(params["read_share"])) / 100
        return {"data": store, "wal": 2 * store + round(writes * each)}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it. A rewrite of the log that it has begun belongs to it."""
        params = self.params
        seconds = max(1.0, int(params["seconds"]) * self.dilation)
        rate = float(params["rate"]) / self.dilation
        found = self.client.do(
            "run",
            {
                **{name: int(params[name]) for name in ("read_share", "clients", "pipeline", "seed")},
                "seconds": seconds,
                "rate": rate,
                "rewrite": bool(params["rewrite"]) and self.logged,
            },
            seconds=seconds / self.patience + 600,
            on_progress=lambda done: progress("run the load", min(0.99, done)),
        )
        ended = time.monotonic()
        about = self.server.at_rest()
        progress("run the load", 1.0)
        operations = found["reads"] + found["writes"]
        if not operations:
            raise ZtuneError(f"{self.name}: no operation was done in {seconds:.0f} s; allow it more time")
        times = found["times_us"]
        return WorkloadResult(
            seconds=found["seconds"],
            operations=operations,
            unit="operation",
            offered_per_second=rate,
            latency_ms=latency.summary(sorted(us for each in times.values() for us in each), 1000),
            details={
                "reads": found["reads"],
                "writes": found["writes"],
                "aof_bytes": int(about.get("aof_current_size", 0)),
                "aof_base_bytes": int(about.get("aof_base_size", 0)),
                "aof_rewrites": int(about.get("aof_rewrites", 0)),
                "aof_delayed_fsyncs": int(about.get("aof_delayed_fsync", 0)),
                "snapshots": int(about.get("rdb_saves", 0)),
                "closing_seconds": round((time.monotonic() - ended) / self.dilation, 3),
                "latency_ms_by_kind": latency.by_kind(times, self.dilation),
                "settings": self.settings(),
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        The server counted as many reads and writes as the clients did, holds every key, and the values of
        2,000 keys that were written and of 2,000 others; its own program finds the append-only file valid,
        and the log was written anew if it was to be.

        Raises:
            ZtuneError: a check does not hold.
        """
        counted = self._counts()
        details = result.details
        checks = [
            Check(f"{name}, as the server counted them", details[name], counted[name] - self._before[name])
            for name in _COMMANDS.values()
        ]
        found = self.client.do("verify", {"seed": int(self.params["seed"])})
        keys = self.server.ask("DBSIZE")
        checks += [
            Check("keys in the store", self.keys, keys if isinstance(keys, int) else str(keys)),
            Check("values that are right", found["looked"], found["right"]),
        ]
        if self.logged:
            checks.append(Check("the append-only file", "valid", self.server.check_aof()))
            if self.params["rewrite"]:
                done = self.server.info("persistence")["aof_last_bgrewrite_status"]
                ok = "ok" if details["aof_rewrites"] else "none"
                checks.append(
                    Check("the append-only file was written anew", "ok", done if ok == "ok" else ok)
                )
        return replace(result, checks=tuple(checks)).require_ok(self.name)

    def role_paths(self) -> dict[str, Path]:
        """Return the directory, and that of the append-only file in it."""
        data = super().role_paths()["data"]
        return {"data": data, "wal": data / AOF_DIRECTORY}
