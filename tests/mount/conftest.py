"""What the tests of mounts share: the stand-in program, a mounted file system, and a directory of its
own on it for each test.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mount_ground import Ground, Mounted, given, why_not


@pytest.fixture(scope="session")
def ground() -> Iterator[Ground]:
    """Two datasets, mounted once for all tests that do not end the program themselves."""
    found = given()
    if found is None:
        reason = why_not()
        if reason:
            pytest.skip(reason)
        found = Mounted()
    yield found
    found.close()


@pytest.fixture(scope="session")
def needs_users() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may act as other users")


def _fresh(below: Path, request: pytest.FixtureRequest) -> Path:
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:40].strip("-")
    path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=below))
    path.chmod(0o755)
    return path


@pytest.fixture
def place(ground: Ground, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory on the dataset with small records."""
    path = _fresh(ground.small, request)
    yield path
    ground.must_live()
    shutil.rmtree(path)
    # A name that is gone for the kernel but not for the file system would come up again here.
    assert path.name not in os.listdir(ground.small)


@pytest.fixture
def other(ground: Ground, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory on the dataset with large records."""
    path = _fresh(ground.large, request)
    yield path
    ground.must_live()
    shutil.rmtree(path)


@pytest.fixture(params=["small", "large"])
def each(ground: Ground, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory, once on each dataset."""
    path = _fresh(ground.small if request.param == "small" else ground.large, request)
    yield path
    ground.must_live()
    shutil.rmtree(path)


@pytest.fixture
def own_mount() -> Iterator[Callable[..., Mounted]]:
    """Makes mounts that a test may end as it likes."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made: list[Mounted] = []

    def make(spec_: dict[str, Any] | None = None, **more: Any) -> Mounted:
        made.append(Mounted(spec_, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()
