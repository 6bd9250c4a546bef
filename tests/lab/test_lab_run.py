"""``ztune run`` in the lab, as a user types it: killed in the middle, resumed, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztune import paths
from ztune.lab import image

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(1500)]
ZTUNE = str(Path(sys.executable).with_name("ztune"))
# 16K against the base of 128K: pages of 8 KiB at random, most of them not in the ARC.
WORDS = [
    *("run", "fio", "--blocks", "1", "--layouts", "data.recordsize=16K", "--dilation", "2", "--json"),
    *("--caches", "cold"),
    *("-p", "size=96M", "-p", "numjobs=1", "-p", "rate_iops=60", "-p", "rwmixread=50", "-p", "seconds=10"),
]


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.long, id="qemu"), pytest.param(True, id="uml")])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of its own, with the images of a kind that are built here."""
    found = [one for one in image.built() if one.user_mode == request.param]
    if not found or (request.param and os.geteuid() != 0):
        pytest.skip("no such guest is built here: `ztune lab build`, `ztune lab build --user-mode`")
    lab = tmp_path / "cache" / "lab"
    (lab / "images").mkdir(parents=True)
    for one in found:
        (lab / "images" / one.name).symlink_to(one.folder)
    tried = paths.lab() / "accel.json"
    if tried.is_file():
        (lab / tried.name).symlink_to(tried)
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    return tmp_path


def running(home: Path) -> list[str]:
    """Guests and disks that were started for this state directory."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                program = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
                environ = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = f"ZTUNE_HOME={home}".encode() in environ
            if ours and Path(program).name.startswith(("qemu-", "ztune-disk", "vmlinuz")):
                found.append(f"{folder.name} {program}")
    return found


def test_killed_and_resumed(home: Path) -> None:
    with (home / "log").open("w") as log:
        first = subprocess.Popen([ZTUNE, *WORDS], stdout=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + 900
        # In the second trial, when the first is stored.
        while "trial 2," not in (home / "log").read_text():
            assert first.poll() is None, (home / "log").read_text()
            assert time.monotonic() < deadline, (home / "log").read_text()
            time.sleep(0.5)
        assert running(home)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    listed = json.loads(
        subprocess.run([ZTUNE, "runs", "--json"], capture_output=True, text=True, check=True).stdout
    )
    run = listed[-1] if isinstance(listed, list) else listed["runs"][-1]
    done = subprocess.run(
        [ZTUNE, "run", "--resume", run["id"], "--json"], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(
        subprocess.run(
            [ZTUNE, "show", run["id"], "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    in_user_mode = found["target"]["accel"] == "uml"
    assert any("user mode" in warning for warning in found["warnings"]) == in_user_mode
    trials = {t["layout_name"]: t for t in found["trials"]}
    assert {t["status"] for t in found["trials"]} == {"ok"} and len(trials) == 2
    assert sum(len(t["attempts"]) for t in found["trials"]) == 1
    measure = {name: t["result"]["measure"] for name, t in trials.items()}
    small, base = measure["data.recordsize=16K"], measure["base"]
    # A record is read and written whole: 128K moves far more for each page of 8K.
    assert base["physical"]["read_bytes"] > 3 * small["physical"]["read_bytes"]
    for result in (small, base):
        assert result["logical"]["write_bytes"] == pytest.approx(8192 * 300, rel=0.15)
        assert result["seconds"] == pytest.approx(10, rel=0.5)  # in the disk's time, not this machine's
        (disk,) = result["by_vdev"]
        # The disk's own count, by which it worked at its dilation of 2; the kernel's is another.
        assert 0 < disk["busy_ms"] <= 2e3 * result["seconds"] * 1.05
        assert disk["kernel_busy_ms"] > 0 and disk["kernel_busy_ms"] != disk["busy_ms"]
    deadline = time.monotonic() + 60
    while running(home) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert running(home) == []
    assert not [p for p in (home / "scratch").iterdir() if p.name.startswith("lab-")]
