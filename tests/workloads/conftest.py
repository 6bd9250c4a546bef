from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.databases.postgresql.onhost.server import find_binaries
from ztune.errors import ZtuneError


@pytest.fixture(scope="session")
def needs_postgres() -> None:
    try:
        find_binaries()
    except ZtuneError as error:
        pytest.skip(f"no PostgreSQL here: {error}")


@pytest.fixture(scope="session")
def open_parent() -> Iterator[Path]:
    """A directory that every user may pass through; pytest's own are closed to a database's user."""
    path = Path(tempfile.mkdtemp(prefix="wl-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def parent(open_parent: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=open_parent))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
