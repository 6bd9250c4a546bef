"""``http``: documents of a small web service of ours, asked for by Apache JMeter, also with WS-Security.

The service stands for whatever reads files to answer requests. It is the recorded process, and the role
``source`` holds its documents; JMeter, its client, is not recorded.
"""

from __future__ import annotations

import json
import pkgutil
import secrets
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ztune.databases.http.onhost import jmeter
from ztune.databases.http.onhost import service as http_service
from ztune.databases.http.onhost.documents import Documents, name_of
from ztune.databases.postgresql.onhost import pgbench
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import process
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.onhost.jobs.conversation import Conversation, text_of
from ztune.onhost.jobs.job import Check, JobBase, ProgressFn, WorkloadResult, no_progress
from ztune.units import parse_size

_PLAN = "http_plan.jmx"
_REQUEST_SECONDS = 60.0
"""How long JMeter waits for an answer."""
_DAY = 86_400.0


class HttpLoad(JobBase):
    """JMeter against a web service that reads its documents from ``source``."""

    name: ClassVar[str] = "http"
    ROLES: ClassVar[tuple[str, ...]] = ("source",)

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
        self._python = ""
        self._account: Account | None = None
        self._jmeter: Path | None = None
        self._service: Conversation | None = None

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
            self._python = self._find_python()
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

    def _find_python(self) -> str:
        account = Account.for_database("nobody")
        for path, _ in software.pythons("print('here')", account, patience=self.patience):
            return path
        tried = ", ".join(software.python_candidates())
        raise MissingError(f"there is no Python 3 that user {account.name!r} can run; tried: {tried}")

    def prepare(self, workdir: WorkDir, given: Mapping[str, Path] | None = None) -> None:
        """Make or take the directories; put programs and plan where their user can read them."""
        self.check()
        self.workdir = workdir
        self._account = account = Account.for_database("nobody")
        self._paths["source"] = places.take("source", self.place("source", given), workdir, account)
        home = workdir.sub("run", owner=account.owner)
        places.must_be_reachable((home, self._paths["source"]), workdir, account, patience=self.patience)
        self._jmeter = jmeter.install(workdir, account, self.name)
        plan = str(self.params["plan_text"]).encode() or pkgutil.get_data(__package__, _PLAN)
        assert plan is not None
        self._lend("service.py", text_of(http_service).encode())
        self._lend("plan.jmx", plan)

    def _lend(self, name: str, content: bytes) -> Path:
        """Write a file into ``run``, for the account alone: there may be a password in it."""
        assert self._account is not None
        path = self.home / name
        places.lend(path, content, self._account)
        return path

    @property
    def home(self) -> Path:
        """Where service and JMeter stand: for logs, lists and the result file."""
        if self.workdir is None:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return self.workdir.path / "run"

    @property
    def source(self) -> Path:
        """The directory of the documents."""
        return self.role_paths()["source"]

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the documents."""
        step = "write the documents"
        self.documents.write(self.source, lambda done: progress(step, done))
        assert self._account is not None
        places.hand_over(self.source, self._account)
        progress(step, 1.0)

    def adopt(self, given: Mapping[str, Path]) -> None:
        """Take over documents that were copied into ``given``."""
        self.must_be_in_place(given)
        if not self.documents.found(self.source):
            raise ZtuneError(f"{self.source}: these are not the documents of this workload; load it anew")
        assert self._account is not None
        places.hand_over(self.source, self._account)

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the service, and write the list of what is to be asked for."""
        progress("start the web service", 0.0)
        self.stop()
        assert self._account is not None
        self._service = Conversation(
            [self._python, "-I", "-B", self.home / "service.py"],
            what="the web service",
            account=self._account,
            home=self.home,
            log=self.home / "service.log",
            patience=self.patience,
        )
        wanted = {
            "root": str(self.source),
            "port": int(self.params["port"]),
            "user": str(self.params["user"]),
            "password": self._password,
            "secure": self.secure,
        }
        port = self._service.ask("serve", json.dumps(wanted), seconds=60)["port"]
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

    def pids(self) -> list[int]:
        """Return the pid of the service: it reads the documents."""
        return self._service.pids() if self._service is not None else []

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes the documents have."""
        return {"source": parse_size(self.params["size"])}

    def _counts(self) -> dict[str, Any]:
        if self._service is None:
            raise ZtuneError(f"{self.name}: start comes before this step")
        return self._service.ask("counts", "{}", seconds=60)

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Have JMeter ask for the documents. ``verify`` proves that it got them.

        Raises:
            ZtuneError: a request failed, or the service or JMeter died.
        """
        step, asked = "run the requests", int(self.params["requests"])
        before = self._counts()
        if before["answered"]:
            raise ZtuneError(f"{self.name}: the service was asked already; start comes before this step")
        assert self._java is not None and self._jmeter is not None and self._account is not None
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
            account=self._account,
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
            latency_ms=pgbench.latency_summary([float(ms) for ms in found.latencies_ms]),
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

    def stop(self) -> None:
        """End the service.

        Raises:
            ZtuneError: it did not end in order.
        """
        service, self._service = self._service, None
        if service is not None:
            service.stop()

    def kill(self) -> None:
        """End the service at once."""
        service, self._service = self._service, None
        if service is not None:
            service.program.kill()

    def page_sizes(self) -> dict[str, int]:
        """Return nothing: documents have no pages."""
        return {}
