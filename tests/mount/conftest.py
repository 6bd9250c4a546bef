"""What the tests of mounts share: the stand-in program, and a net below it: nothing stays mounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mount_commands import STAND_IN, end_all, fuse_problem


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the stand-in program; what a test leaves mounted below its directory is unmounted."""
    reason = fuse_problem()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("ZTUNE_MOUNT", str(STAND_IN))
    yield STAND_IN
    end_all(tmp_path)
