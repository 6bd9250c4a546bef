"""bench/growth.py: what it makes is whole or not there, also where it is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import environment

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_half_of_a_recording(tmp_path: Path, number: signal.Signals) -> None:
    traces = tmp_path / "traces"
    command = [sys.executable, str(BENCH / "growth.py"), "1G", "2G", "--calls", "100", "--seconds", "1000000"]
    process = subprocess.Popen(command, env=environment(ZTUNE_HOME=str(tmp_path)), start_new_session=True)
    try:
        while not list(traces.glob("*/events.spool")) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait() == 130
    finally:
        process.kill()
        process.wait()
    assert list(traces.iterdir()) == []
