"""A version of OpenZFS that another ztune works with stays, and what is built against it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from children import environment
from invoked import invoke

from ztune import native
from ztune.errors import MissingError
from ztune.native import openzfs
from ztune.native.openzfs import Library

pytestmark = pytest.mark.usefixtures("home")

WORKS = """\
import sys
from ztune import native
from ztune.native import openzfs
print(native.ENGINE.against(openzfs.libraries()[0]).find(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def library() -> Library:
    folder = openzfs.folder("2.4")
    (folder / "root").mkdir(parents=True)
    (folder / "version").write_text("2.4.4-1\n")
    return openzfs.libraries()[0]


@pytest.fixture
def engine(library: Library) -> Path:
    path = native.ENGINE.against(library)._own()
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


@contextmanager
def another(script: str) -> Iterator[str]:
    """Yield the first line of another process, which ends with the body."""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("")


def test_what_another_ztune_works_with_is_left_alone(library: Library, engine: Path) -> None:
    clean = ("clean", "--openzfs", "--yes")
    with another(WORKS) as found:
        assert found == str(engine)
        code, out, err = invoke(*clean)
        assert (code, err) == (1, "")
        assert out.endswith("(left alone: another ztune works with it)\n") and not out.startswith("removed")
        assert engine.exists() and library.root.exists()
        assert "another ztune works with it" in invoke(*clean[:2])[1]
    code, out, _ = invoke(*clean)
    assert code == 0 and out.startswith("removed") and not engine.exists() and not library.root.exists()


def test_what_another_ztune_removed_just_now_is_not_there(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openzfs, "libraries", lambda: [library])
    shutil.rmtree(library.root.parent)
    assert invoke("clean", "--openzfs", "--yes") == (0, "no other version of OpenZFS is unpacked\n", "")


def test_what_another_ztune_unpacks_is_left_alone(library: Library, engine: Path) -> None:
    # As scripts/openzfs.sh does it.
    unpacks = f"exec 9>{library.root.parent}.lock; flock 9; echo locked; read -r _ || :"
    with another(f"import os; os.execvp('bash', ['bash', '-c', {unpacks!r}])") as said:
        assert said == "locked"
        code, out, _ = invoke("clean", "--openzfs", "--yes")
        assert code == 1 and "another ztune works with it" in out
        assert engine.exists() and library.root.exists()


def test_what_was_removed_meanwhile_is_one_sentence(library: Library, engine: Path) -> None:
    assert native.ENGINE.against(library).find() == engine
    assert invoke("clean", "--openzfs", "--yes")[0] == 0
    said = r"removed .* meanwhile; `ztune setup openzfs --version 2\.4\.4` brings it again"
    with pytest.raises(MissingError, match=said):
        native.ENGINE.against(library).find()
    assert not engine.parents[2].exists()
