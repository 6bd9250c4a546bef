from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def parent() -> Iterator[Path]:
    """A directory that every user may pass through; pytest's own are closed to a database's user."""
    path = Path(tempfile.mkdtemp(prefix="crash-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
