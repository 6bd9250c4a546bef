"""``ztune-trial look`` as a program: what it takes, when it ends, what it sees of a PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import children
import postgres_started
import pytest

from ztune.hosts.answer import observation
from ztune.trace.roles import RoleRules

ARGV = [sys.executable, "-m", "ztune.onhost", "look"]


def look(asked: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Ask, and keep standard input open until it answers."""
    process = subprocess.Popen(
        ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=children.environment(),
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(asked + "\n")
    process.stdin.flush()
    out, err = process.stdout.read(), process.stderr.read()
    process.stdin.close()
    return subprocess.CompletedProcess(ARGV, process.wait(seconds), out, err)


@pytest.mark.parametrize("asked", ["", '{"seconds": 1e9, "datasets": []}', "[1]"])
def test_what_it_is_not_asked_for_is_one_sentence(asked: str) -> None:
    done = look(asked)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == 'ztune-trial: look takes a line {"seconds": 0 to 3600, "datasets": [names]}\n'


def test_it_ends_with_who_asked() -> None:
    done = subprocess.run(
        ARGV, input='{"seconds": 3000, "datasets": []}\n', capture_output=True, text=True, timeout=120,
        env=children.environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1 and not done.stdout


def test_a_real_postgresql_is_found_with_its_settings_and_files(needs_postgres: None) -> None:
    with postgres_started.postgres(on_disk=True) as folder:
        began = time.monotonic()
        done = look('{"seconds": 0.2, "datasets": []}')
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        seen = observation(said)
        data = Path(folder) / "data"
        (database,) = [one for one in seen.databases if folder in one.where]
        assert database.kind == "postgresql" and database.settings["fsync"] == "off"
        assert seen.seconds is not None and 0.2 <= seen.seconds <= time.monotonic() - began
        rules = RoleRules.parse()
        roles = {rules.role(path) for path in said["files"] if path.startswith(str(data))}
        assert {"data", "wal"} <= roles
