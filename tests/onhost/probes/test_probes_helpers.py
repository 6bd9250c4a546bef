"""The programs that probes start: none of them outlives its trial, however that ends."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from ztune.onhost import probes
from ztune.onhost.probes import bpf, calls, perf
from ztune.onhost.probes.context import Context
from ztune.onhost.probes.probe import HELPERS

SLOW = "#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n"
READY = "#!/bin/sh\necho $$ > {pid}\n{says}\nexec sleep 600\n"
DEAF = READY.replace("/sh\n", "/sh\ntrap '' INT\n")
FAILS = READY.replace("exec sleep 600", "sleep 0.2; exit 7")
SAYS = """for w in a b; do echo '{"type": "printf", "data": "ready_'$w'"}'; done"""
HOLDS = """
import sys, time
from pathlib import Path
from ztune.onhost.probes import bpf
from ztune.onhost.probes.context import Context
where = Path(sys.argv[1])
context = Context("r-1", "r-1-1", 1, where, {}, (), (), {}, command=None)
script = bpf.Script(context, "")
print("attached", flush=True)
time.sleep(600)
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> Path:
    """Put a program that does as ``name`` where it is found first; return where it notes its number."""
    (folder / "bin").mkdir()
    path, pid = folder / "bin" / name, folder / "pid"
    path.write_text(text.replace("{pid}", str(pid)).replace("{says}", SAYS))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    return pid


def runs(pid: Path) -> bool:
    try:
        return "Z" not in Path(f"/proc/{int(pid.read_text())}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


BEGUN: dict[str, Callable[[Context], object]] = {
    "bpftrace": lambda context: bpf.Script(context, ""),
    "perf": lambda context: perf.PerfRecording(context, [os.getpid()], 1.0),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", BEGUN)
def test_one_that_is_interrupted_while_it_attaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pid = stand_in(monkeypatch, tmp_path, name, SLOW)
    context = Context("r-1", "r-1-1", 1, tmp_path, {}, (), (), {}, command=lambda _argv, *, timeout=0: "")
    timer = threading.Timer(1.0, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        BEGUN[name](dataclasses.replace(context, patience=10.0))
    assert pid.exists() and not runs(pid) and not HELPERS


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "said"),
    [(SLOW, "did not attach"), (DEAF, "did not end within 1 s"), (FAILS, "bpftrace failed: exit code 7")],
    ids=["begin", "end", "fails"],
)
def test_one_that_hangs_or_fails_is_waited_for_minutes_at_the_most_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    pid = stand_in(monkeypatch, tmp_path, "bpftrace", text)
    monkeypatch.setattr(bpf, "ATTACH_S", 0.2)
    monkeypatch.setattr(bpf, "END_S", 0.2)
    monkeypatch.setattr(calls.SizesProbe, "available", classmethod(lambda _cls, _context: None))
    told: list[str] = []
    context = Context("r-1", "r-1-1", 1, tmp_path, {}, (), (), {}, command=lambda _argv, *, timeout=0: "")
    context = dataclasses.replace(context, patience=1000.0, warn=told.append, log=told.append)
    off = dict.fromkeys(probes.PROBES, False)
    running = probes.start(context, off | {"sizes": True})
    if text is FAILS:
        until(lambda: not runs(pid), "its end", 10)
    assert running.stop() == {}
    assert told[0] == "probe sizes begins" and said in told[-1]
    assert (told[1] == "probe sizes finds its result") is (text is not SLOW)
    assert not runs(pid) and not HELPERS


@pytest.mark.timeout(60)
def test_one_that_is_not_heard_of_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = READY.replace("{says}", f"mkdir {tmp_path}/tried && exec sleep 600\n{{says}}")
    pid = stand_in(monkeypatch, tmp_path, "bpftrace", once)
    monkeypatch.setattr(bpf, "ATTACH_S", 1.0)
    context = Context("r-1", "r-1-1", 1, tmp_path, {}, (), (), {}, command=lambda _argv, *, timeout=0: "")
    script = bpf.Script(context, "")
    assert (tmp_path / "tried").is_dir() and runs(pid) and {script.process.pid} == HELPERS
    script.kill()
    assert not runs(pid) and not HELPERS


@pytest.mark.timeout(60)
def test_one_whose_trial_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = stand_in(monkeypatch, tmp_path, "bpftrace", READY)
    with subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdout=subprocess.PIPE) as trial:
        assert trial.stdout is not None and trial.stdout.readline() == b"attached\n"
        assert runs(pid)
        trial.kill()
    try:
        until(lambda: not runs(pid), "the end of bpftrace", 10)
    finally:
        if runs(pid):
            os.kill(int(pid.read_text()), signal.SIGKILL)
