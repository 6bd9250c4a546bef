"""``http`` with the real JMeter and the real service, at its smallest; skipped where it isn't installed."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ztune.databases.http.onhost import load as http_load
from ztune.databases.http.onhost import service as http_service
from ztune.databases.http.onhost.load import HttpLoad as HttpJob
from ztune.databases.http.workload import HttpLoad
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import software
from ztune.onhost.jobs.job import WorkloadResult
from ztune.places import bundle

pytestmark = pytest.mark.timeout(900)

SMALL = {"size": "1M", "document_size": "8K", "requests": 60, "threads": 3, "rate": 0}
PLAN = (Path(http_load.__file__).parent / "http_plan.jmx").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def needs_jmeter() -> None:
    try:
        HttpLoad(SMALL).check()
    except MissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def started(parent: Path) -> Iterator[HttpLoad]:
    with running(HttpLoad({**SMALL, "security": "wsse"}), parent=parent) as workload:
        yield workload
    assert list(parent.iterdir()) == []


def own_plan(parent: Path, *changes: tuple[str, str]) -> str:
    text = PLAN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = parent.parent / f"{parent.name}.jmx"
    path.write_text(text, encoding="utf-8")
    return str(path)


def requests_that_were_lost_are_found(started: HttpLoad, result: WorkloadResult) -> None:
    whole = started.job._counts()
    with pytest.MonkeyPatch.context() as patch:
        for name, lost, said in (
            ("answered", 1, "that the service answered should be 60 but is 59"),
            ("verified", 60, "whose security the service verified should be 60 but is 0"),
            ("bytes", 1, "bytes of documents should be"),
        ):
            counts = {**whole, name: whole[name] - lost}
            patch.setattr(started.job, "_counts", lambda counts=counts: counts)
            with pytest.raises(ZtuneError, match=said):
                started.verify(result)


def test_each_request_is_verified_and_proved(started: HttpLoad) -> None:
    [pid] = started.pids()
    service = psutil.Process(pid)
    assert os.geteuid() != 0 or service.uids().real != 0
    before = service.io_counters().read_chars
    ran = started.run()
    requests_that_were_lost_are_found(started, ran)
    result = started.verify(ran)
    assert (result.operations, result.unit, len(result.checks)) == (60, "request", 5)
    assert all(check.ok for check in result.checks)
    assert result.details["answered"] == result.details["verified"] == 60
    # The process that is recorded is the one that reads the documents.
    assert service.io_counters().read_chars - before >= result.details["bytes"] > 60 * 2048
    assert 0 <= result.latency_ms["p50"] <= result.latency_ms["max"] and 0 < result.seconds < 60
    assert started.role_paths()["source"].is_dir() and started.page_sizes() == {}
    # Nobody else may read what could hold a password.
    run = started.job.home
    assert {path.stat().st_mode & 0o077 for path in (run / "run.properties", run / "plan.jmx")} == {0}
    with pytest.raises(ZtuneError, match="start comes before this step"):
        started.run()


def test_requests_come_at_the_rate_and_others_than_jmeter_s_are_found(parent: Path) -> None:
    with running(HttpLoad({**SMALL, "rate": 20}), parent=parent) as workload:
        result = workload.verify(workload.run())
        assert result.details["verified"] == 0 and len(result.checks) == 4
        # 59 gaps of 50 ms; on a busy machine the first may begin late, and those behind it catch up.
        assert 2 <= result.seconds < 20
        lines = (workload.job.home / "run.properties").read_text().splitlines()
        port = int(dict(line.split("=") for line in lines)["ztune.port"])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        envelope = f'<s:Envelope xmlns:s="{http_service.SOAP}"><s:Body>%s</s:Body></s:Envelope>'
        connection.request("POST", "/documents", envelope % "<GetDocument><name>0000000</name></GetDocument>")
        assert connection.getresponse().read().endswith(http_service._TAIL)
        connection.close()
        with pytest.raises(ZtuneError, match="that the service answered should be 60 but is 61"):
            workload.verify(result)


@pytest.mark.long  # as the requests above, but for who says how many there were
def test_a_list_that_ends_early_is_found(started: HttpLoad) -> None:
    path = started.job.home / "list.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    result = started.run()
    with pytest.raises(ZtuneError, match="requests in JMeter's file should be 60 but is 58"):
        started.verify(result)


def test_a_wrong_password_is_told_in_one_sentence(parent: Path) -> None:
    wrong = ("props.getProperty('ztune.password')", "'guess'")
    values = {**SMALL, "security": "wsse", "plan": own_plan(parent, wrong)}
    told = pytest.raises(
        ZtuneError,
        match=r"of \d requests failed, the first with 500 wsse:FailedAuthentication: wrong user or wrong "
        r"password digest; the service refused \d times wsse:FailedAuthentication",
    )
    with told as caught, running(HttpLoad(values), parent=parent) as workload:
        workload.run()
    assert "\n" not in str(caught.value) and list(parent.iterdir()) == []


@pytest.mark.long  # `test_http_service` asks the service itself; the test above, how a refusal is told
def test_a_nonce_that_is_used_twice_fails(parent: Path) -> None:
    same = ("random.nextBytes(bytes)", "")
    values = {**SMALL, "security": "wsse", "plan": own_plan(parent, same)}
    told = pytest.raises(ZtuneError, match="the nonce was used before")
    with told, running(HttpLoad(values), parent=parent) as workload:
        workload.run()


def test_a_document_that_ends_early_fails(parent: Path) -> None:
    told = pytest.raises(ZtuneError, match=r"1 of 1 requests failed, the first with 200 OK Test failed")
    with told, running(HttpLoad({**SMALL, "threads": 1}), parent=parent) as workload:
        for path in workload.role_paths()["source"].rglob("*.txt"):
            os.truncate(path, path.stat().st_size - 5)
        workload.run()


def test_a_plan_of_one_s_own(parent: Path) -> None:
    mine = ('<intProp name="LoopController.loops">-1', '<intProp name="LoopController.loops">4')
    plan = own_plan(parent, mine)
    values = {**SMALL, "security": "wsse", "user": "ann", "password": "p\\ä=:!#", "plan": plan}
    kept = HttpLoad(values).resolved()
    Path(plan).unlink()
    # What is kept with a result is enough to repeat it.
    workload = HttpLoad(kept)
    with running(workload, parent=parent):
        result = workload.verify(workload.run())
        assert result.operations == 12 and len(result.checks) == 3
        assert result.details["verified"] == 12


def test_a_plan_that_is_none(parent: Path) -> None:
    path = parent.parent / "none.jmx"
    for text in ("not a plan", "<jmeterTestPlan>", "<project/>"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"none.jmx: it is no JMeter plan"):
            HttpLoad({**SMALL, "plan": str(path)}).check()
    # Well-formed, but JMeter can't make anything of it.
    path.write_text("<jmeterTestPlan/>")
    told = pytest.raises(ZtuneError, match=r"JMeter ended with exit code 1: .*/jmeterTestPlan")
    with told, running(HttpLoad({**SMALL, "plan": str(path)}), parent=parent) as workload:
        workload.run()
    assert list(parent.iterdir()) == []
    with pytest.raises(InputError, match=r"JMeter plan .*none2.jmx: No such file"):
        HttpLoad({"plan": str(path.with_name("none2.jmx"))})


def test_a_service_that_dies_is_told(parent: Path) -> None:
    told = pytest.raises(ZtuneError, match=r"the web service died in 'counts' \(was ended by SIGKILL\)")
    with told, running(HttpLoad({**SMALL, "rate": 5}), parent=parent) as workload:
        [pid] = workload.pids()
        threading.Timer(4, os.kill, (pid, signal.SIGKILL)).start()
        began = time.monotonic()
        workload.run()
    assert time.monotonic() - began < 200 and list(parent.iterdir()) == []


def test_a_service_that_cannot_start_is_told(parent: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = pytest.raises(ZtuneError, match=f"can't listen on 127.0.0.1:{port}: Address already in use$")
        with told, running(HttpLoad({**SMALL, "port": port}), parent=parent):
            pass
    assert list(parent.iterdir()) == []
    told = pytest.raises(ZtuneError, match=r"the web service died in 'serve' .*its log ends: .*NameError")
    with told, running(HttpLoad(SMALL), parent=parent) as workload:
        workload.stop()
        (workload.job.home / "client.py").write_text("what is this")
        workload.start()


def test_a_copy_is_taken_over(parent: Path) -> None:
    folders = {name: parent / name for name in ("first", "second")}
    for path in folders.values():
        path.mkdir()
    params = HttpLoad(SMALL).resolved()
    first, second = HttpJob(params), HttpJob(params, dilation=2.0)
    try:
        first.prepare(WorkDir.create("http", parent=parent), {"source": folders["first"]})
        first.load()
        second.prepare(WorkDir.create("http", parent=parent), {"source": folders["second"]})
        with pytest.raises(ZtuneError, match="not the documents of this workload; load it anew"):
            second.adopt({"source": folders["second"]})
        shutil.copytree(folders["first"], folders["second"], dirs_exist_ok=True)
        second.adopt({"source": folders["second"]})
        second.start()
        result = second.verify(second.run())
        assert result.operations == 60
        second.stop()
    finally:
        first.cleanup()
        second.cleanup()


def test_what_is_missing_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no database whose settings a layout could choose"):
        HttpLoad(SMALL, database={"x": "y"}).check()
    monkeypatch.setenv(software.ENVIRONMENT, str(tmp_path))
    with pytest.raises(MissingError, match=r"JMeter 5.6.3 was not found .*`ztune setup http`"):
        HttpLoad(SMALL).check()
    monkeypatch.setattr(software, "_JDK_DIRECTORIES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingError, match="a Java development kit"):
        HttpLoad(SMALL).check()


def test_it_runs_from_the_trial_s_archive(parent: Path) -> None:
    """Where nothing of ztune's is installed: service and plan come out of the zip file."""
    archive = bundle.build()
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "from pathlib import Path\n"
        "from ztune.onhost.jobs import registry\n"
        "from ztune.onhost.host.workdir import WorkDir\n"
        f"job = registry.get('http')({HttpLoad(SMALL).resolved()!r}, {{}})\n"
        f"work = WorkDir.create('http', parent=Path({str(parent)!r}))\n"
        "job.prepare(work); job.load(); job.start()\n"
        "result = job.verify(job.run()); job.stop(); job.cleanup(); print(result.operations)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 60
