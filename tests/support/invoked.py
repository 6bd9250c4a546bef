"""The command in the process of a test, as its console script runs it."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from ztune.cli.main import main


def invoke(*args: str) -> tuple[int, str, str]:
    """Run ``ztune`` with ``args``; return exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", ["ztune", *args]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as done:
            code = int(done.code or 0)
    return code, out.getvalue(), err.getvalue()
