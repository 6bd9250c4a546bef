from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import engine_build as build
import pytest
from made import make


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """The engine and its sanitized parsers, or a clear reason to skip."""
    if shutil.which("make") is None or shutil.which("pkg-config") is None:
        pytest.skip("no make or pkg-config")
    if subprocess.run(["pkg-config", "--exists", "libzfs", "jansson"], check=False).returncode != 0:
        pytest.skip("the headers of OpenZFS or jansson are not installed")
    make(build.ROOT / "engine", "all", "plain-check")


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.content(tmp_path_factory.mktemp("content") / "noise.bin")


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.content(tmp_path_factory.mktemp("content") / "half.bin", "half")
