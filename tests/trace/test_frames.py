"""Where a processor can't run the build of Polars there is, one sentence says so, and recording goes on."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = "Missing required CPU features"


@pytest.fixture
def without_avx2(tmp_path: Path) -> dict[str, str]:
    """An environment whose Polars warns as the real one does on such a processor, and would crash next."""
    package = tmp_path / "stand-in" / "polars"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"import os, warnings\nwarnings.warn('''{SAYS}.\n\nThe following''', RuntimeWarning)\nos.abort()\n"
    )
    return {**os.environ, "PYTHONPATH": f"{package.parent}:{os.environ.get('PYTHONPATH', '')}"}


def ztune(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from ztune.cli.main import main; main()"]
    return subprocess.run([*program, *words], env=env, capture_output=True, text=True, check=False)


def test_polars_says_it_in_these_words() -> None:
    from polars import _cpu_check

    assert SAYS in inspect.getsource(_cpu_check.check_cpu_flags)


def test_a_recording_is_kept_and_reading_it_says_what_to_install(
    without_avx2: dict[str, str], tmp_path: Path
) -> None:
    trace, work = tmp_path / "a.trace", tmp_path / "work"
    work.mkdir()
    job = ["dd", "if=/dev/zero", f"of={work}/file", "bs=8k", "count=4", "conv=fsync", "status=none"]
    done = ztune(without_avx2, "record", "--out", str(trace), "--path", str(work), "--", *job)
    assert done.returncode == 0 and trace.exists(), done.stderr
    assert "no roles are told from what the files do" in done.stderr and "polars[rtcompat]" in done.stderr
    assert ztune(without_avx2, "trace", "check", str(trace)).returncode == 0
    shown = ztune(without_avx2, "trace", "show", str(trace))
    assert shown.returncode == 3 and shown.stderr.count("\n") == 1, shown.stderr
    assert "AVX2" in shown.stderr and "pip install 'polars[rtcompat]'" in shown.stderr


def test_doctor_says_it(without_avx2: dict[str, str]) -> None:
    told = ztune(without_avx2, "doctor").stdout
    assert "reading traces" in told and "polars[rtcompat]" in told
