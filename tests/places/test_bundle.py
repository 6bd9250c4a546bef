"""The trial program as one file: what is in it, and that any python3 runs it."""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from ztune.errors import InputError
from ztune.places import bundle

pytestmark = pytest.mark.usefixtures("home")


def test_it_runs_without_ztune_and_without_packages(tmp_path: Path) -> None:
    program = bundle.build()
    # -I and -S: no site-packages, no PYTHONPATH, not even the working directory.
    done = subprocess.run(
        [sys.executable, "-I", "-S", program, "hello"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["python"].startswith("3.")
    bad = subprocess.run(
        [sys.executable, "-I", "-S", program, "what"], capture_output=True, text=True, timeout=120
    )
    assert bad.returncode == 2 and bad.stderr.startswith("ztune-trial: ")


@pytest.mark.parametrize("how", ["writable", "linked", "a link", "somebody else's"])
def test_one_that_others_could_have_written_is_made_anew(tmp_path: Path, how: str) -> None:
    program = bundle.build()
    whole = program.read_bytes()
    evil = tmp_path / "evil"
    evil.write_text("evil")
    if how == "linked":
        os.link(program, tmp_path / "link")
    elif how == "a link":
        program.unlink()
        program.symlink_to(evil)
    elif how == "writable":
        program.write_bytes(b"evil")
        program.chmod(0o777)
    elif os.geteuid() == 0:
        program.write_bytes(b"evil")
        os.chown(program, 65534, 65534)
    assert bundle.build() == program and program.read_bytes() == whole
    found = program.lstat()
    assert (found.st_uid, found.st_nlink, found.st_mode & 0o022) == (os.geteuid(), 1, 0)
    assert evil.read_text() == "evil"


def test_every_module_of_it_imports_alone() -> None:
    program = bundle.build()
    with zipfile.ZipFile(program) as archive:
        names = [
            n
            for n in archive.namelist()
            if n.startswith("ztune/trial/") and n.endswith(".py") and not n.endswith("__main__.py")
        ]
    modules = [n.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for n in names]
    code = f"import sys; sys.path.insert(0, {str(program)!r})\nimport importlib\n" + "".join(
        f"importlib.import_module({m!r})\n" for m in modules
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_same_sources_give_the_same_bytes(home: Path) -> None:
    first = bundle.build()
    data = first.read_bytes()
    first.unlink()
    again = bundle.build()
    assert again == first and again.read_bytes() == data
    with zipfile.ZipFile(first) as archive:
        names = set(archive.namelist())
    assert {"__main__.py", "ztune/onhost/main.py", "ztune/errors.py", "ztune/units.py"} <= names
    assert not any(n.startswith(("ztune/cli", "ztune/store", "ztune/study")) for n in names)


def test_a_host_with_another_python_takes_the_sources(tmp_path: Path) -> None:
    program, other = bundle.build(), tmp_path / "other.pyz"
    with zipfile.ZipFile(program) as ours, zipfile.ZipFile(other, "w") as theirs:
        for name in ours.namelist():
            content = ours.read(name)
            theirs.writestr(name, b"\0\0\0\0" + content[4:] if name.endswith(".pyc") else content)
    for path, ending in ((program, "main.pyc"), (other, "main.py")):
        code = (
            f"import sys; sys.path.insert(0, {str(path)!r}); import ztune.onhost.main as m; print(m.__file__)"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip().endswith(f"/ztune/onhost/{ending}"), done.stderr


def test_code_that_has_no_bytecode_of_the_format_goes_as_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> bytes:
        raise ValueError("unmarshallable object")

    bundle._bytecode.cache_clear()
    monkeypatch.setattr(marshal, "dumps", refuse)
    bundle._write(tmp_path / "program.pyz", {"ztune/a.py": b"x = [1, 2][0:1]"})
    bundle._bytecode.cache_clear()
    with zipfile.ZipFile(tmp_path / "program.pyz") as archive:
        assert archive.namelist() == ["ztune/a.py"]


def test_modules_of_a_third_party_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "acme_ztune"
    (package / "jobs").mkdir(parents=True)
    (package / "__init__.py").write_text("import numpy_that_is_not_there\n")
    (package / "jobs" / "__init__.py").write_text("")
    (package / "jobs" / "own.py").write_text("NAME = 'own'\n")
    (tmp_path / "acme_ztune" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    program = bundle.build(["acme_ztune.jobs.own"])
    assert program != bundle.build()
    code = (
        f"import sys; sys.path.insert(0, {str(program)!r}); from acme_ztune.jobs.own import NAME; print(NAME)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "own", done.stderr
    with pytest.raises(InputError, match="can't be sent"):
        bundle.build(["acme_ztune.nothing"])


def test_other_versions_keep_theirs_while_they_may_need_it(home: Path) -> None:
    mine = bundle.build()
    others = [mine.with_name(f"ztune-trial-{n:016x}.pyz") for n in range(8)]
    for other in others:
        other.write_bytes(b"")
    month_ago = time.time() - 31 * 86_400
    os.utime(others[0], (month_ago, month_ago))
    os.utime(mine, (month_ago, month_ago))
    assert bundle.build() == mine  # in use again, as old as it is
    assert mine.is_file() and not others[0].exists() and all(other.exists() for other in others[1:])
