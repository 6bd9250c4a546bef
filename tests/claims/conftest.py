from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(home: Path) -> Path:
    """The test's own state directory, with folders for claims and publications."""
    for folder in ("claims", "published"):
        (home / "studies" / folder).mkdir(parents=True)
    return home
