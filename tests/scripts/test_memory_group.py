"""bench/memory_group.py: what runs in a control group ends with the script that started it."""

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
RUNS = """\
import sys
from memory_group import NoGroupError, run
try:
    print(run([sys.executable, "-c", sys.argv[1]]).code)
except NoGroupError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_was_started(tmp_path: Path, number: signal.Signals) -> None:
    begun = tmp_path / "begun"
    command = f"""
import os, pathlib, time
pathlib.Path({str(tmp_path / "half")!r}).write_text(str(os.getpid()))
os.rename({str(tmp_path / "half")!r}, {str(begun)!r})
time.sleep(600)
"""
    path = os.pathsep.join([str(BENCH), environment()["PYTHONPATH"]])
    # A file, since a pipe ends with the last process that has it, which is the one that may be left.
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", RUNS, command],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    while not begun.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate()
    err = (tmp_path / "said").read_text()
    if process.returncode == 3:
        pytest.skip(err.strip())
    child = int(begun.read_text())
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    else:
        pytest.fail(f"process {child} was left: {err}")
    assert (process.returncode, out) == (0, "None\n"), err
