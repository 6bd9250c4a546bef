"""What the tests of mounts share: the stand-in program, and a net below it: nothing stays mounted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.trial import mounted

STAND_IN = Path(__file__).parent / "stand_in_mount.py"


def fuse_problem() -> str | None:
    if os.geteuid() != 0:
        return "the stand-in mounts by the system call itself, which takes root"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no FUSE here"
    return None


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the stand-in program; what a test leaves mounted below its directory is unmounted."""
    reason = fuse_problem()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("ZTUNE_MOUNT", str(STAND_IN))
    yield STAND_IN
    for mount in reversed(mounted.all_ours()):
        if tmp_path in mount.point.parents:
            mounted.detach(mount.point)
