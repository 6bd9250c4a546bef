"""A disk that is full to the last byte: trials on it end in order, and are cleaned up after."""

from __future__ import annotations

from pathlib import Path

import needs
import private_disk
import pytest

pytestmark = pytest.mark.skipif(
    bool(private_disk.lacking() or needs.mount()), reason=private_disk.lacking() or needs.mount()
)

KILLED = """
from mounted_trial import Host, at, run_watched
import signal, trial_support

host = Host(DISK)
# Slow enough that the disk is full before it is done.
spec = host.spec(**{{"job.params": {{"load": 100 << 20, "records": 2000, "pause": 0.1}}}})
ran = run_watched(spec, at({step!r}, lambda pid: os.kill(pid, signal.SIGKILL)))
assert ran.rc == -signal.SIGKILL
assert list(host.state.glob("*/*/*/journal.jsonl"))
fill()
done = trial_support.clean(host.state)
assert done.rc == 0, done.errors + done.stderr
empty()
host.require_untouched()
print("clean")
"""

FULL = """
from mounted_trial import Host, at, run_watched

host = Host(DISK)
# Slow enough that the disk is full before it is done.
spec = host.spec(**{{"job.params": {{"load": 100 << 20, "records": 2000, "pause": 0.1}}}})
ran = run_watched(spec, at({step!r}, lambda pid: fill()))
assert ran.status == "failed", ran
print(ran.errors)
empty()
host.require_untouched()
"""


@pytest.mark.parametrize("step", ["load", "measure"])
def test_clean_up_needs_no_room(step: str, tmp_path: Path) -> None:
    assert private_disk.run(tmp_path, KILLED.format(step=step), "400m") == "clean\n"


@pytest.mark.parametrize("step", ["load", "measure"])
def test_a_trial_whose_disk_fills_up_says_so_and_leaves_nothing(step: str, tmp_path: Path) -> None:
    said = private_disk.run(tmp_path, FULL.format(step=step), "400m")
    assert "No space left on device" in said or "are left below" in said, said
