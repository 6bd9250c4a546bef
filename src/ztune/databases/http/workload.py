"""``http``: what can be asked of it. ``ztune.databases.http.onhost.load`` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.artifacts import Fetched, Jars, pins_of
from ztune.databases.http.onhost import jmeter
from ztune.databases.http.onhost import load as http_load
from ztune.databases.memory import DatabaseSize
from ztune.databases.workload import Size, arc_param, param, read_text
from ztune.onhost.jobs.job import Job

_PROJECT = Path(__file__).with_name("jmeter.pom.xml")
JMETER = Jars(
    name=jmeter.SOFTWARE,
    pins=pins_of(_PROJECT, Path(__file__).with_name("jmeter.sha256")),
    project=_PROJECT,
    # Its settings, which it reads from files of their own.
    unpack=f"ApacheJMeter_config-{jmeter.VERSION}.jar",
    members=("*.properties", "hc.parameters", "log4j2.xml"),
)


class HttpParameters(base.Parameters):
    """The parameters of ``http``."""

    size: DatabaseSize = param(
        "uncached",
        unit="bytes",
        meaning="All documents together: `cached` (half of `arc`), `uncached` (six times `arc`), any "
        "multiple such as `2.5x`, or a size such as `256M`.",
    )
    arc: Size = arc_param()
    document_size: Size = param(
        "32K",
        ge=256,
        le=64 << 20,
        unit="bytes",
        meaning="Size of the document in the middle; the smallest has a quarter of it, the largest four "
        "times as much, and all between are as likely on a scale of doublings.",
        validate_default=True,
    )
    requests: int = param(
        3000,
        ge=1,
        le=100_000_000,
        meaning=(
            "How many requests, of all threads together: "
            "the same work is recorded on a fast and on a slow machine."
        ),
    )
    threads: int = param(8, ge=1, le=1000, unit="threads", meaning="JMeter's threads; each has a connection.")
    rate: float = param(
        100.0,
        ge=0,
        unit="requests/s",
        meaning="Requests that become due per second, in all. 0: each thread sends the next when it has the "
        "answer to the last.",
    )
    security: Literal["none", "wsse"] = param(
        "none",
        meaning="`wsse`: each request carries a WS-Security UsernameToken with PasswordDigest, and a "
        "Timestamp; the service refuses those that are wrong, too old or used before.",
    )
    user: str = param(
        "ztune",
        pattern=r"^[A-Za-z0-9._@-]{1,64}$",
        meaning="The user that the service knows, with `security=wsse`: letters, digits and `._@-`.",
    )
    password: str = param(
        "",
        max_length=200,
        meaning="That user's password. Empty: a random one for each run. One that you name is kept with the "
        "results, so never a real one.",
    )
    plan: str = param(
        "",
        meaning=(
            "Path of your own JMeter plan (`.jmx`), run against the same service instead of ztune's own plan."
        ),
    )
    plan_text: str = param(
        "", meaning="The plan itself instead of its path: this is how it is kept with results."
    )
    port: int = param(
        0, ge=0, le=65535, meaning="Port of the loopback that the service listens on. 0: any that is free."
    )
    seed: int = param(1, ge=0, le=2**30 - 1, meaning="Decides the documents and which are asked for.")

    @model_validator(mode="after")
    def _each_has_work(self) -> HttpParameters:
        if self.requests < self.threads:
            raise ValueError(f"{self.requests} requests are too few for {self.threads} threads")
        return self


class HttpLoad(base.JobWorkload):
    """JMeter against a web service of our own that reads documents."""

    name: ClassVar[str] = "http"
    summary: ClassVar[str] = "JMeter asks a small web service for documents, with WS-Security or without"
    Parameters: ClassVar[type[base.Parameters]] = HttpParameters
    job_class: ClassVar[type[Job]] = http_load.HttpLoad
    durability: ClassVar[base.Declared] = base.KNOWN
    needs: ClassVar[tuple[str, ...]] = ("java",)
    artifacts: ClassVar[tuple[Fetched, ...]] = (JMETER,)

    def resolved(self) -> dict[str, Any]:
        """Return the parameters with the plan read in: it may not be where the job runs."""
        found = super().resolved()
        if found["plan"] and not found["plan_text"]:
            found["plan_text"] = read_text(Path(found["plan"]), "JMeter plan")
        return found
