"""What a command does not use it does not load: starting would take a second and more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ztune.cli.docs import all_commands

HEAVY = (
    "numpy", "polars", "pyarrow", "scipy", "sklearn", "jinja2", "psutil", "prometheus_client", "distributed",
)  # fmt: skip
SIMPLE = (
    "list layouts",
    "list workloads sqlite",
    "list advice",
    "runs",
    "show last",
    "mount --list",
    "clean",
)
REFUSED = (
    "screen", "screen nothing", "record", "record --pid 1 --every 1h", "run nothing",
    "trace show nothing", "trace check nothing", "observe --from nothing",
)  # fmt: skip
CODE = """
import sys
from click.testing import CliRunner
from ztune.cli.main import ztune
for line in sys.stdin.read().splitlines():
    before = set(sys.modules)
    CliRunner().invoke(ztune, line.split())
    if found := set(sys.argv[1:]) & set(sys.modules) - before:
        print(f"ztune {line}:", *sorted(found))
"""


def test_help_refusals_and_simple_commands_load_no_large_library(tmp_path: Path) -> None:
    helped = [" ".join([*full.split()[1:], "--help"]) for full, _, _ in all_commands()]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *HEAVY], input="\n".join([*helped, *SIMPLE, *REFUSED]), cwd=tmp_path,
        env={**os.environ, "ZTUNE_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
