"""``http``: what can be asked of it. ``ztune.databases.http.onhost.load`` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.artifacts import Jars, pins_of
from ztune.databases.http.onhost import jmeter
from ztune.databases.http.onhost import load as http_load
from ztune.databases.memory import DatabaseSize
from ztune.databases.workload import Seed, Size, arc_param, param

JMETER = Jars(
    name=jmeter.SOFTWARE,
    pins=pins_of(Path(__file__).with_name("jmeter.sha256")),
    project=Path(__file__).with_name("jmeter.pom.xml"),
    # Its settings, which it reads from files of their own.
    unpack=f"ApacheJMeter_config-{jmeter.VERSION}.jar",
    members=("*.properties", "hc.parameters", "log4j2.xml"),
)


class HttpParameters(base.Parameters):
    """The parameters of ``http``."""

    size: DatabaseSize = "uncached"
    """All documents together."""
    arc: Size = arc_param()
    document_size: Size = param("32K", ge=256, le=64 << 20)
    """Size of the document in the middle; the smallest has a quarter of it, the largest four times as much,
    and all between are as likely on a scale of doublings."""
    requests: int = param(3000, ge=1, le=100_000_000)
    """How many requests, of all threads together: the same work is recorded on a fast and on a slow
    machine."""
    threads: int = param(8, ge=1, le=1000, unit="threads")
    """JMeter's threads; each has a connection."""
    rate: float = param(100.0, ge=0, unit="requests/s")
    """Requests that become due per second, in all. 0: each thread sends the next when it has the answer to
    the last."""
    security: Literal["none", "wsse"] = "none"
    """`wsse`: each request carries a WS-Security UsernameToken with PasswordDigest, and a Timestamp; the
    service refuses those that are wrong, too old or used before."""
    user: str = param("ztune", pattern=r"^[A-Za-z0-9._@-]{1,64}$")
    """The user that the service knows, with `security=wsse`: letters, digits and `._@-`."""
    password: str = param("", max_length=200)
    """That user's password. Empty: a random one for each run. One that you name is kept with the results, so
    never a real one."""
    plan: str = ""
    """Path of your own JMeter plan (`.jmx`), run against the same service instead of ztune's own plan."""
    plan_text: str = ""
    """The plan itself instead of its path: this is how it is kept with results."""
    port: int = param(0, ge=0, le=65535)
    """Port of the loopback that the service listens on. 0: any that is free."""
    seed: Seed = 1
    """Decides the documents and which are asked for."""

    @model_validator(mode="after")
    def _each_has_work(self) -> HttpParameters:
        if self.requests < self.threads:
            raise ValueError(f"{self.requests} requests are too few for {self.threads} threads")
        return self


class HttpLoad(base.JobWorkload):
    """JMeter against a web service of our own that reads documents."""

    name = "http"
    summary = "JMeter asks a small web service for documents, with WS-Security or without"
    Parameters = HttpParameters
    job_class = http_load.HttpLoad
    read_in = ("plan", "JMeter plan")
    durability = base.KNOWN
    needs = ("java",)
    artifacts = (JMETER,)
