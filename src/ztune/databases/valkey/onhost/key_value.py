"""``valkey``: reads and writes of random keys in a Valkey or Redis with an append-only file."""

from __future__ import annotations

import inspect
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ztune.databases.postgresql.onhost.pgbench import latency_summary
from ztune.databases.rocksdb.onhost import client as values
from ztune.databases.rocksdb.onhost.random_keys import fresh_share
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
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import client_program, filler, software
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.conversation import Client
from ztune.onhost.jobs.job import Check, JobBase, ProgressFn, WorkloadResult, no_progress
from ztune.units import parse_size

_BESIDE = 40
"""Bytes that a key and its frame add to a value, in the snapshot and in the log."""
_COMMANDS = {"set": "writes", "get": "reads"}


def one_directory(data: Path | None, wal: Path | None) -> None:
    """Refuse directories of data and log that are on different file systems.

    Raises:
        InputError: they are.
    """
    if data is not None and wal is not None and data.stat().st_dev != wal.stat().st_dev:
        raise InputError(
            "valkey: the layout gives data and wal datasets of their own, but the server moves each new base "
            "of its append-only file there by a rename, which can't leave a dataset; "
            "give one dataset both roles"
        )


class Valkey(JobBase):
    """Reads and writes of random keys in a server of our own."""

    name: ClassVar[str] = "valkey"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "wal")

    def _set_up(self) -> None:
        super()._set_up()
        self.value_size = parse_size(self.params["value_size"])
        self.keys = int(self.params["keys"])
        self._binaries: Binaries | None = None
        self._python = ""
        self._client: Client | None = None
        self._server: ValkeyServer | None = None
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

    def account(self) -> Account:
        """Return who the server runs as."""
        return Account.for_database(self.binaries.name)

    def check(self) -> str:
        """Return the version, such as ``Valkey 8.0.1``.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
            InputError: a setting in ``database`` is not the server's, or not the layout's to set.
        """
        check_settings(self.settings())
        if not self._python:
            found = next(software.pythons("print(1)", self.account(), patience=self.patience), None)
            if found is None:
                raise MissingError(f"there is no Python 3 that user {self.account().name!r} can run")
            self._python = found[0]
        return self.binaries.title

    @property
    def server(self) -> ValkeyServer:
        """The server, from ``prepare`` on."""
        if self._server is None:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return self._server

    def prepare(self, workdir: WorkDir, given: Mapping[str, Path] | None = None) -> None:
        """Make the directories.

        Raises:
            InputError: data and wal are on different file systems.
        """
        self.check()
        self.workdir = workdir
        account = self.account()
        data, wal = (self.place(role, given) for role in self.ROLES)
        for role, path in (("data", data), ("wal", wal)):
            if path is not None:
                places.must_be_empty(role, path)
        one_directory(data, wal)
        self._paths = {"data": places.take("data", data, workdir, account)}
        self._server = ValkeyServer(
            self.binaries, workdir, account, self._paths["data"], patience=self.patience
        )
        home = self._server.home
        places.must_be_reachable((home, self._paths["data"]), workdir, account, patience=self.patience)
        places.lend(home / "client.py", inspect.getsource(valkey_client), account)
        for module in (values, client_program):
            _lend_module(module, home)

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

    def adopt(self, given: Mapping[str, Path]) -> None:
        """Take over files that were copied into ``given``."""
        self.must_be_in_place(given)
        data = self.server.data
        for name in (SNAPSHOT, MANIFEST):
            if not (data / name).is_file():
                raise ZtuneError(f"{data}: there is no {name} to take over; load it anew")
        places.hand_over(data, self.server.account)

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
        home = self.server.home
        self._client = client = Client(
            # The directory of the program is where it finds the others.
            [self._python, "-E", "-s", "-B", home / "client.py"],
            what="the client",
            account=self.server.account,
            home=home,
            log=home / "client.log",
            patience=self.patience,
        )
        client.do("open", self._about())
        return client

    def _about(self) -> dict[str, Any]:
        return {
            "path": str(self.server.socket),
            "wait": 600.0 * self.patience,
            "keys": self.keys,
            "values": {
                "size": self.value_size,
                "fresh": fresh_share(float(self.params["compressible"])),
                "phrases": list(filler.PHRASES),
                "seed": int(self.params["seed"]),
            },
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
        return [self.server.pid] if self._server is not None and self._server.running else []

    def expected_bytes(self) -> dict[str, int]:
        """Return the size of the snapshot, and of the log: an old base, a new one, all that is written."""
        params = self.params
        each = self.value_size + _BESIDE
        store = self.keys * each
        writes = float(params["rate"]) * int(params["seconds"]) * (100 - int(params["read_share"])) / 100
        return {"data": store, "wal": 2 * store + round(writes * each)}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the load. ``verify`` proves it. A rewrite of the log that it has begun belongs to it."""
        client, server, params = self._client, self.server, self.params
        if client is None or not server.running:
            raise ZtuneError(f"{self.name}: start comes before this step")
        seconds, rate = (
            max(1.0, int(params["seconds"]) * self.dilation),
            float(params["rate"]) / self.dilation,
        )
        found = client.do(
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
        about = self._at_rest()
        progress("run the load", 1.0)
        operations = found["reads"] + found["writes"]
        if not operations:
            raise ZtuneError(f"{self.name}: no operation was done in {seconds:.0f} s; allow it more time")
        by_kind = {kind: [us / 1000.0 for us in micros] for kind, micros in found["times_us"].items()}
        return WorkloadResult(
            seconds=found["seconds"],
            operations=operations,
            unit="operation",
            offered_per_second=rate,
            latency_ms=latency_summary(sorted(ms for times in by_kind.values() for ms in times)),
            details={
                "reads": found["reads"],
                "writes": found["writes"],
                "aof_bytes": int(about.get("aof_current_size", 0)),
                "aof_base_bytes": int(about.get("aof_base_size", 0)),
                "aof_rewrites": int(about.get("aof_rewrites", 0)),
                "aof_delayed_fsyncs": int(about.get("aof_delayed_fsync", 0)),
                "snapshots": int(about.get("rdb_saves", 0)),
                "closing_seconds": round((time.monotonic() - ended) / self.dilation, 3),
                "latency_ms_by_kind": {
                    kind: {name: ms / self.dilation for name, ms in latency_summary(times).items()}
                    for kind, times in by_kind.items()
                    if times
                },
                "settings": self.settings(),
            },
        ).undilated(self.dilation)

    def _at_rest(self) -> dict[str, str]:
        """Wait until no child writes files any more; return what the server says of them."""
        while True:
            found = self.server.info("persistence")
            if not any(found.get(f"{what}_in_progress") == "1" for what in ("aof_rewrite", "rdb_bgsave")):
                return found
            time.sleep(0.05)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        The server counted as many reads and writes as the clients did, holds every key, and the values of
        2,000 keys that were written and of 2,000 others; its own program finds the append-only file valid,
        and the log was written anew if it was to be.

        Raises:
            ZtuneError: a check does not hold.
        """
        if self._client is None:
            raise ZtuneError(f"{self.name}: start comes before this step")
        counted = self._counts()
        details = result.details
        checks = [
            Check(f"{name}, as the server counted them", details[name], counted[name] - self._before[name])
            for name in _COMMANDS.values()
        ]
        found = self._client.do("verify", {"seed": int(self.params["seed"])})
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

    def stop(self) -> None:
        """End the client and shut the server down.

        Raises:
            ZtuneError: one of them did not end in order.
        """
        client, self._client = self._client, None
        try:
            if client is not None:
                client.stop()
        finally:
            if self._server is not None:
                self._server.stop()

    def kill(self) -> None:
        """End everything at once."""
        client, self._client = self._client, None
        if client is not None:
            client.program.kill()
        if self._server is not None:
            self._server.kill()

    def role_paths(self) -> dict[str, Path]:
        """Return the directory, and that of the append-only file in it."""
        data = super().role_paths()["data"]
        return {"data": data, "wal": data / AOF_DIRECTORY}

    def page_sizes(self) -> dict[str, int]:
        """Return nothing: all its files are written from one end to the other."""
        return {}


def _lend_module(module: ModuleType, top: Path) -> None:
    """Write a module's text where a program in ``top`` finds it; whoever gets there can read it."""
    path = top.joinpath(*module.__name__.split(".")).with_suffix(".py")
    for folder in reversed(path.relative_to(top).parents[:-1]):
        (top / folder).mkdir(exist_ok=True)
        (top / folder).chmod(0o755)
    places.write(path, inspect.getsource(module), mode=0o644)
    path.chmod(0o644)
