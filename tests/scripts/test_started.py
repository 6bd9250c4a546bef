"""bench/started.py: what a script of bench/ has started ends with it, in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import environment

BENCH = Path(__file__).parents[2] / "bench"
# A child that takes a moment to remove what it made, as a trial does: longer than subprocess.run() waits.
CHILD = """\
import os, pathlib, signal, sys, time
def ended(number, frame):
    time.sleep(1)
    pathlib.Path("removed").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, ended)
signal.signal(signal.SIGINT, ended)
pathlib.Path("half").write_text(str(os.getpid()))
os.rename("half", "begun")
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_a_script_started(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "ztune"  # scripts look for it beside Python
    program.write_text(f"#!{sys.executable}\n{CHILD}")
    program.chmod(0o755)
    code = f"""
import runpy, sys
sys.executable = {str(tmp_path / "python")!r}
sys.argv = ["aa.py", "--"]
runpy.run_path({str(BENCH / "aa.py")!r}, run_name="__main__")
"""
    path = os.pathsep.join([str(BENCH), environment()["PYTHONPATH"]])
    with (tmp_path / "said").open("w") as said:  # a pipe would end with the last who has it
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stderr=said,
            cwd=tmp_path,
            env=environment(ZTUNE_HOME=str(tmp_path / "home"), PYTHONPATH=path),
        )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    ended = process.wait()
    try:
        os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)
    except ProcessLookupError:
        pass
    else:
        pytest.fail("the child was left")
    text = (tmp_path / "said").read_text()
    assert (tmp_path / "removed").exists() and ended == 130 and "Traceback" not in text, text
