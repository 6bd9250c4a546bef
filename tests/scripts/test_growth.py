"""bench/growth.py: what it makes is whole or not there, also where it is ended; where it goes on."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def measured(
    monkeypatch: pytest.MonkeyPatch, code: int | None, number: signal.Signals | None = None
) -> tuple[str | int | None, int]:
    """Measure two sizes by a command that ends with ``code``, or by a signal to the script; return what the
    script ends with, and how many commands it began."""
    monkeypatch.syspath_prepend(str(BENCH))
    growth, group, started = (importlib.import_module(name) for name in ("growth", "memory_group", "started"))
    begun = []

    def run(command: list[str], **options: Any) -> Any:
        begun.append(command)
        if number is not None:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        return group.Took(code, 1.0, 1.0, 1, 1, 0)

    monkeypatch.setattr(growth, "run", run)
    monkeypatch.setattr(sys, "argv", ["bench/growth.py", "1G", "2G", "--calls", "100", "--seconds", "1"])
    with pytest.raises(SystemExit) as ended:
        started.script(growth.main)
    return ended.value.code, len(begun)


def test_a_refused_screening_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "bench/growth.py: `ztune screen` refused 1G, with exit code 2 (above)"
    assert measured(monkeypatch, 2) == (said, 1)
    assert not (home / "growth.json").exists()


def test_a_signal_while_it_measures_ends_the_script(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, None, signal.SIGTERM) == (130, 1)
    (kept,) = json.loads((home / "growth.json").read_text()).values()
    assert kept["code"] is None and kept["done"] == 0
