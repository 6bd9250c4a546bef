"""Two engines at once within the memory of a control group, records of 1M included: whole and sampled."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import environment

pytestmark = pytest.mark.timeout(1800)  # on a machine that has much else to do

BENCH = Path(__file__).parents[2] / "bench"
STUDY = BENCH / "large_records.toml"
ROOM = 80 << 30  # bytes: two pools of 10 GB with what two layouts of records of 1M may write


# A sample takes less memory than all.
@pytest.mark.parametrize("sample", ["1/1", pytest.param("1/2", marks=pytest.mark.long)])
def test_two_engines_fit_into_a_group(home: Path, sample: str) -> None:
    fits(home, "1G", "--calls", "100", "--seconds", "5", "--within", "2G", arc="128M", sample=sample)


@pytest.mark.long
@pytest.mark.parametrize("sample", ["1/1", "1/8"])
def test_two_engines_fit_into_4_gib(home: Path, sample: str) -> None:
    """A recording of 300,000 calls on 10 GB, 20,000 a second: some 30 for each region of 1 MiB."""
    if sample == "1/1" and shutil.disk_usage(home.parent).free < ROOM:
        pytest.skip(f"pools that are written whole may take {ROOM >> 30} GiB of disk, which are not free")
    fits(home, "10G", "--seconds", "15", "--within", "4G", arc="512M", sample=sample)


def fits(home: Path, *asked: str, arc: str, sample: str) -> None:
    """Screen two layouts, two at a time; ``asked``: of bench/growth.py."""
    done = subprocess.run(
        [
            sys.executable, str(BENCH / "growth.py"), *asked,
            "--arc", arc, "--sample", sample, "--budget", "2", "--", "--jobs", "2", "--study", str(STUDY),
        ],
        capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((home / "growth.json").read_text()).values()
    assert found["code"] == 0 and found["killed"] == 0
    assert found["done"] >= 2
    assert 64 << 20 < found["kept"] <= found["peak"]
