"""Root's bytecode in a user's source tree: the user could not delete the folders that hold it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ztune

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to own what is another user's")
@pytest.mark.parametrize("owner", [NOBODY, 0])
def test_root_writes_no_bytecode_into_another_users_tree(tmp_path: Path, owner: int) -> None:
    top = tmp_path / "ztune"
    shutil.copytree(Path(ztune.__file__).parent / "onhost", top / "onhost", ignore=lambda *_: ["__pycache__"])
    shutil.copyfile(ztune.__file__, top / "__init__.py")
    for path in (top, *top.rglob("*")):
        os.chown(path, owner, owner)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    program = "import ztune.onhost.words; print(ztune.onhost.words.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(top))
    # The package's own is written before anything of it runs; the set-up has written it as the user.
    kept = [path for path in top.rglob("*.pyc") if path.parent.parent != top]
    assert bool(kept) is (owner == 0)
