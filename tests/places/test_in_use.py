"""What a replay has below the state directory stays for as long as somebody, anywhere, uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ztune import paths
from ztune.places import replay
from ztune.places.engine_run import sweep

_ENGINE = """
from ztune import paths
from ztune.onhost.host import shared_files
with shared_files.temporary(paths.scratch(), "trial-") as folder:
    folder.mkdir()
    print(folder, flush=True)
    input()
"""
_EXPORT = """
from ztune.places import replay
print(replay.export_folder(24 * "0"), flush=True)
input()
"""


@contextmanager
def _elsewhere(code: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run ``code`` in a process namespace of its own, as in a container; yield it and the path it prints."""
    own = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [*own, sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


@pytest.mark.usefixtures("home")
def test_the_folder_of_an_engine_stays_until_its_ztune_is_gone() -> None:
    with _elsewhere(_ENGINE) as (there, folder):
        sweep()
        assert folder.is_dir()
        there.kill()
        there.communicate()
        sweep()
        assert not list(paths.scratch().iterdir())


@pytest.mark.usefixtures("home")
def test_an_export_in_use_is_not_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CACHED_TRACES", 1)
    with _elsewhere(_EXPORT) as (there, theirs):
        mine = replay.export_folder("1" * 24)
        unused, newest = (paths.private(paths.cache() / f"{n * 24}-{theirs.name[25:]}") for n in "23")
        long_ago = time.time() - 2 * 86400
        for number, folder in enumerate((theirs, mine, unused, newest)):
            os.utime(folder, (long_ago, long_ago + number))
        replay._prune()
        assert [folder.is_dir() for folder in (theirs, mine, unused, newest)] == [True, True, False, True]
        there.kill()
        there.communicate()
        replay._prune()
        assert not theirs.exists() and mine.is_dir()
        assert [path.name for path in paths.cache().glob("*.lock")] == [f"{mine.name}.lock"]
