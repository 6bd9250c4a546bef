from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.errors import MissingError
from ztune.trial.jobs.postgres import find_binaries


@pytest.fixture
def parent() -> Iterator[Path]:
    """A directory that every user may pass through; pytest's own are closed to a database's user."""
    path = Path(tempfile.mkdtemp(prefix="crash-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def needs_postgres() -> None:
    try:
        find_binaries()
    except MissingError as error:
        pytest.skip(f"no PostgreSQL here: {error}")
