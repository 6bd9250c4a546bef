"""``valkey``: what can be asked of it. ``ztune.databases.valkey.onhost.key_value`` does it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from ztune.databases import workload as base
from ztune.databases.valkey.onhost import key_value
from ztune.databases.valkey.onhost.client import LEAST_VALUE
from ztune.databases.valkey.onhost.server import check_settings
from ztune.databases.workload import Size, param
from ztune.errors import InputError
from ztune.onhost.jobs.job import Job


class ValkeyParameters(base.Parameters):
    """The parameters of ``valkey``."""

    server: Literal["any", "valkey", "redis"] = param(
        "any", meaning="Whose programs: `any` takes Valkey where it is here, else Redis."
    )
    keys: int = param(
        50_000, ge=1000, le=10**9, unit="keys", meaning="How many keys. All of them fit in memory."
    )
    value_size: Size = param(
        1000,
        ge=LEAST_VALUE,
        le=1 << 20,
        unit="bytes",
        meaning="Size of a value. YCSB's records have 1000 bytes.",
        validate_default=True,
    )
    compressible: float = param(
        0.5,
        gt=0,
        le=1,
        meaning="To which share of its size lz4 shrinks values in records of 128 KiB, from 0.25: 0.5 is "
        "2:1, as with real ones. 1 is noise, which no data is.",
    )
    read_share: int = param(
        50,
        ge=0,
        le=99,
        unit="%",
        meaning="Share of GET, which reads no file; the rest is SET. 50 is YCSB's workload A.",
    )
    rate: float = param(
        50.0,
        ge=0,
        unit="operations/s",
        meaning="Operations that become due per second, in all: a pace that a 7200 rpm disk keeps. 0: each "
        "client starts the next when the last is done.",
    )
    seconds: int = param(60, ge=1, le=86_400, unit="s", meaning="How long the recorded load lasts.")
    clients: int = param(4, ge=1, le=256, unit="clients", meaning="Clients that work at the same time.")
    pipeline: int = param(
        1,
        ge=1,
        le=1000,
        unit="operations",
        meaning="Operations that a client sends at once: `-P` of `valkey-benchmark`.",
    )
    appendonly: bool = param(
        True,
        meaning="Keep an append-only file. The server's own default is off: then only snapshots last.",
    )
    appendfsync: Literal["always", "everysec", "no"] = param(
        "always",
        meaning="When the append-only file is synced: `always` before each answer; `everysec`, the server's "
        "own default, once a second; `no` when the system does it.",
    )
    rewrite: bool = param(
        True,
        meaning="Have the server write its append-only file anew at half of the time, as it does by itself "
        "whenever that has doubled.",
    )
    save: str = param(
        "",
        meaning="When a snapshot is written: pairs of seconds and changes such as `3600 1 300 100 60 10000`, "
        "the server's own default. Empty: never.",
    )
    seed: int = param(1, ge=0, le=2**30 - 1, meaning="Decides the values and the random keys.")

    @field_validator("save")
    @classmethod
    def _are_pairs(cls, value: str) -> str:
        try:
            check_settings({"save": value})
        except InputError:
            raise ValueError(
                "it takes pairs of seconds and changes, such as '3600 1 60 10000', or nothing"
            ) from None
        return value

    @model_validator(mode="after")
    def _each_has_keys(self) -> ValkeyParameters:
        if self.keys < self.clients:
            raise ValueError(f"{self.keys} keys are too few for {self.clients} clients")
        return self


class Valkey(base.JobWorkload):
    """Reads and writes of random keys in Valkey or Redis, with an append-only file."""

    name: ClassVar[str] = "valkey"
    summary: ClassVar[str] = "Valkey or Redis with its append-only file: SET and GET of random keys"
    Parameters: ClassVar[type[base.Parameters]] = ValkeyParameters
    job_class: ClassVar[type[Job]] = key_value.Valkey
    needs: ClassVar[tuple[str, ...]] = ("valkey",)
    durability: ClassVar[base.Declared] = base.KNOWN
    roles_together: ClassVar[dict[str, str]] = {
        "wal": (
            "the server moves each new base of its append-only file there by a rename, "
            "so both have one dataset"
        )
    }

    def declared(self) -> base.Declared:
        """Return what is declared, with how many operations one sync acknowledges."""
        together = self.params.clients * self.params.pipeline
        return replace(self.durability, together=together)
