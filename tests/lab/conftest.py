"""Guests for tests. Nothing is built here: without an image (``make lab``) tests are skipped and say so."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from typing import IO, Any

import pytest
from guests import Resume

from ztune import paths
from ztune.errors import ZtuneError
from ztune.lab import Guest, image
from ztune.lab.image import Image
from ztune.lab.qemu import version


class _Turns:
    """One test process at a time has guests; within it there may be several."""

    def __init__(self) -> None:
        self._count = 0
        self._file: IO[str] | None = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        if self._count == 0:
            self._file = (paths.lab() / "tests.lock").open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0 and self._file is not None:
                self._file.close()


@pytest.fixture(scope="session")
def lab_image() -> Image:
    """The newest image of a guest that is built here."""
    try:
        version()
        return image.find()
    except ZtuneError as error:
        pytest.skip(f"no lab here: {error}")


@pytest.fixture(scope="session")
def resume(lab_image: Image) -> Resume:
    """A function with the arguments of ``Guest.resume``; use what it returns in a ``with`` statement."""
    turns = _Turns()

    @contextlib.contextmanager
    def resumed(openzfs: str | None = None, **options: Any) -> Iterator[Guest]:
        with turns.taken(), Guest.resume(openzfs, **options) as guest:
            yield guest

    return resumed


@pytest.fixture(scope="module")
def guest(resume: Resume) -> Iterator[Guest]:
    """A guest for all tests of a module."""
    with resume() as made:
        yield made
