"""``http``: documents of a small web service of ours, asked for by Apache JMeter, also with WS-Security.

The service stands for whatever reads files to answer requests. It is the recorded process, and the role
``source`` holds its documents; JMeter, its client, is not recorded.
"""

from __future__ import annotations

import pkgutil
import secrets
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ztune.databases.http.onhost import jmeter
from ztune.databases.http.onhost import service as http_service
from ztune.databases.http.onhost.documents import Documents, name_of
from ztune.errors import InputError, ZtuneError
from ztune.onhost import latency
from ztune.onhost.host import process
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.onhost.jobs.conversation import ClientJob
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.units import parse_size

_PLAN = "http_plan.jmx"
_REQUEST_SECONDS = 60.0
"""How long JMeter waits for an answer."""
_DAY = 86_400.0


class HttpLoad(ClientJob):
    """JMeter against a web service that reads its documents from ``source``."""

    name: ClassVar[str] = "http"
    ROLES: ClassVar[tuple[str, ...]] = ("source",)
    PROGRAM: ClassVar[ModuleType] = http_service
    CALLED: ClassVar[str] = "the web service"

    def _set_up(self) -> None:
        super()._set_up()
        self.documents = Documents(
            parse_size(self.params["size"]),
            parse_size(self.params["document_size"]),
            int(self.params["seed"]),
        )
        self.secure = self.params["security"] == "wsse"
        # One that nobody could know, unless a plan of one's own must.
        self._password = str(self.params["password"]) or secrets.token_urlsafe(16)
        self._java: tuple[Path, str] | None = None
        self._jmeter = Path()

    def check_settings(self) -> None:
        """Refuse settings that there are not."""
        if self.database:
            raise InputError(
                f"http has no database whose settings a layout could choose ({', '.join(self.database)})"
            )

    def check(self) -> str:
        """Return the versions of JMeter and Java.

        Raises:
            MissingError: one of them isn't here; the text names the command that brings it.
            InputError: the layout has settings of a database, and there is none; or the plan is none.
        """
        self.check_settings()
        if self._java is None:
            self._must_be_a_plan()
            found = software.java()
            software.require(jmeter.SOFTWARE, f"JMeter {jmeter.VERSION}", self.name)
            self.python, _ = software.python(self.account, patience=self.patience)
            self._java = found
        return f"JMeter {jmeter.VERSION}, Java {self._java[1]}"

    def _must_be_a_plan(self) -> None:
        text = str(self.params["plan_text"])
        if not text:
            return
        try:
            tag = ET.fromstring(text.encode()).tag
        except ET.ParseError as error:
            tag = f"not XML ({error})"
        if tag != "jmeterTestPlan":
            raise InputError(f"{self.params['plan'] or 'plan_text'}: it is no JMeter plan but {tag}")

    def lay_out(self) -> None:
        """Put programs and plan where their user can read them."""
        super().lay_out()
        assert self.workdir is not None
        self._jmeter = jmeter.install(self.workdir, self.account, self.name)
        plan = str(self.params["plan_text"]).encode() or pkgutil.get_data(__package__, _PLAN)
        assert plan is not None
        self._lend("plan.jmx", plan)

    def _lend(self, name: str, content: bytes) -> None:
        """Write a file into ``home``, for the account alone: there may be a password in it."""
        places.lend(self.home / name, content, self.account)

    @property
    def source(self) -> Path:
        """The directory of the documents."""
        return self.role_paths()["source"]

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the documents."""
        step = "write the documents"
        self.documents.write(self.source, lambda done: progress(step, done))
        places.hand_over(self.source, self.account)
        progress(step, 1.0)

    def take_over(self) -> None:
        """Look at documents that were copied."""
        if not self.documents.found(self.source):
            raise ZtuneError(f"{self.source}: these are not the documents of this workload; load it anew")

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the service, and write the list of what is to be asked for."""
        progress("start the web service", 0.0)
        self.stop()
        wanted = {
            "root": str(self.source),
            "port": int(self.params["port"]),
            "user": str(self.params["user"]),
            "password": self._password,
            "secure": self.secure,
        }
        port = self.connect().do("serve", wanted, seconds=60)["port"]
        asked = [
            f"{name_of(number)},{self.documents.mark(number)}\n"
            for number in self.documents.asked(int(self.params["requests"]))
        ]
        self._lend("list.csv", "".join(asked).encode())
        self._lend("run.properties", jmeter.properties(self.properties(port)).encode())
        progress("start the web service", 1.0)

    def properties(self, port: int) -> dict[str, str | int | float]:
        """Return what the plan is told."""
        return {
            "ztune.host": http_service.HOST,
            "ztune.port": port,
            "ztune.list": str(self.home / "list.csv"),
            "ztune.requests": int(self.params["requests"]),
            "ztune.threads": int(self.params["threads"]),
            "ztune.rate": float(self.params["rate"]) / self.dilation,
            "ztune.timeout": round(1000 * _REQUEST_SECONDS * max(self.patience, self.dilation)),
            "ztune.security": "wsse" if self.secure else "none",
            "ztune.user": str(self.params["user"]),
            "ztune.password": self._password,
        }

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes the documents have."""
        return {"source": parse_size(self.params["size"])}

    def _counts(self) -> dict[str, Any]:
        return self.client.do("counts", seconds=60)

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Have JMeter ask for the documents. ``verify`` proves that it got them.

        Raises:
            ZtuneError: a request failed, or the service or JMeter died.
        """
        step, asked = "run the requests", int(self.params["requests"])
        before = self._counts()
        if before["answered"]:
            raise ZtuneError(f"{self.name}: the service was asked already; start comes before this step")
        assert self._java is not None
        results = self.home / "results.jtl"
        results.unlink(missing_ok=True)

        def watch() -> None:
            # It says too if the service has died.
            progress(step, min(0.99, self._counts()["answered"] / asked))

        rate = float(self.params["rate"]) / self.dilation
        process.run(
            jmeter.command(
                self._java[0],
                self._jmeter,
                plan=self.home / "plan.jmx",
                results=results,
                properties=self.home / "run.properties",
                at=self.home,
            ),
            what="JMeter",
            account=self.account,
            cwd=self.home,
            # One without a rate, or of one's own, takes as long as it does; a day is a limit all the same.
            seconds=(10 * asked / rate if rate and not self.params["plan_text"] else _DAY)
            + 600 * self.patience,
            watch=watch,
        )
        counts, found = self._counts(), jmeter.read(results)
        if found.failed or counts["refused"]:
            why = "; ".join(f"{number} times {reason}" for reason, number in counts["refused"].items())
            raise ZtuneError(
                f"{self.name}: {found.failed} of {found.count} requests failed, the first with "
                f"{found.first_failure or 'nothing that JMeter noted'}; "
                f"the service refused {why or 'none'}"
            )
        if not found.count:
            said = process.last_lines(self.home / "jmeter.log")
            raise ZtuneError(f"{self.name}: JMeter made no request; its log ends: {said}")
        progress(step, 1.0)
        answered = counts["answered"]
        return WorkloadResult(
            seconds=found.seconds,
            operations=found.count,
            unit="request",
            latency_ms=latency.summary(found.latencies_ms),
            # A plan of one's own has its own pace.
            offered_per_second=None if self.params["plan_text"] else rate,
            details={
                "answered": answered,
                "verified": counts["verified"],
                "bytes": counts["bytes"],
                "read_ms_mean": round(1000 * counts["read_seconds"] / answered / self.dilation, 4)
                if answered
                else 0.0,
                "documents": self.documents.count,
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks.

        JMeter's own file has as many requests as were asked for, none failed, and the service counted as many
        answers, each verified where there is security, and the bytes of the very documents in the list. With
        a plan of one's own nothing is known of what it asks for: JMeter and the service must agree.

        Raises:
            ZtuneError: a check does not hold.
        """
        counts = self._counts()
        checks = [
            Check("requests that the service answered", result.operations, counts["answered"]),
            Check("requests that the service refused", 0, sum(counts["refused"].values())),
        ]
        if self.secure:
            checks.append(
                Check("requests whose security the service verified", result.operations, counts["verified"])
            )
        if not self.params["plan_text"]:
            asked = int(self.params["requests"])
            size = sum(self.documents.size(number) for number in self.documents.asked(asked))
            checks.insert(0, Check("requests in JMeter's file", asked, result.operations))
            checks.append(Check("bytes of documents", size, counts["bytes"]))
        return replace(result, checks=tuple(checks)).require_ok(self.name)
