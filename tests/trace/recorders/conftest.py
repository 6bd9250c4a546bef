"""Which recorders can be tested here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import need


@pytest.fixture(params=["ebpf", "strace"])
def recorder(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    need(name)
    return name


@pytest.fixture
def ebpf() -> str:
    need("ebpf")
    return "ebpf"


@pytest.fixture
def strace() -> str:
    need("strace")
    return "strace"


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "work"
    folder.mkdir()
    yield folder
