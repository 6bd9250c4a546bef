"""The package away from the source tree: the wheel is built, installed elsewhere, and does its work there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ztune.packages import os_family

ROOT = Path(__file__).parents[2]


@dataclass
class Installed:
    interpreter: Path
    program: Path
    folder: Path
    env: dict[str, str]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run ``ztune``."""
        return self.python(str(self.program), *argv)

    def python(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run its Python."""
        done = subprocess.run(
            [str(self.interpreter), *argv],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done


def pip(*argv: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip(f"pip reaches no package index: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr


def quick_compiler(folder: Path) -> Path:
    """Return a compiler that leaves out what takes two thirds of its time: it optimises nothing.

    What is tested is that all that a build takes came along. `make build` has the same Makefiles and sources,
    and what it makes is what the other tests run.
    """
    program = folder / "cc"
    program.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0 -g0\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module", params=["alone", pytest.param("environment", marks=pytest.mark.long)])
def installed(request: pytest.FixtureRequest) -> Iterator[Installed]:
    """The wheel, in a folder of its own beside this environment's packages; or in an empty environment."""
    # Below /var/tmp: a mount point that others may reach.
    folder = Path(tempfile.mkdtemp(prefix="ztune-wheel-", dir="/var/tmp"))
    try:
        pip("wheel", "--no-deps", "-w", folder, ROOT)
        [wheel] = folder.glob("ztune-*.whl")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ZTUNE_", "PYTHON"))}
        env["ZTUNE_HOME"] = str(folder / "state")
        env["CC"] = str(quick_compiler(folder))
        if request.param == "alone":
            # What nothing here loads need not be compiled.
            pip("install", "--no-deps", "--no-compile", "--target", folder / "lib", wheel)
            # Before the source tree, which this environment has installed.
            env["PYTHONPATH"] = str(folder / "lib")
            python, program = Path(sys.executable), folder / "lib/bin/ztune"
        else:
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
            pip("--python", folder / "venv/bin/python", "install", wheel)
            python, program = folder / "venv/bin/python", folder / "venv/bin/ztune"
        yield Installed(python, program, folder, env)
    finally:
        shutil.rmtree(folder)


def test_it_is_not_the_source_tree(installed: Installed) -> None:
    done = installed.python("-c", "import ztune; print(ztune.__file__)")
    assert done.stdout.startswith(str(installed.folder))


def test_profiles_studies_and_the_trial_program_are_there(installed: Installed) -> None:
    studies = {row["name"] for row in json.loads(installed.run("list", "layouts", "--json").stdout)}
    assert studies == {path.stem for path in ROOT.joinpath("studies").glob("*.toml")}
    profiles = {row["name"] for row in json.loads(installed.run("list", "profiles", "--json").stdout)}
    assert profiles >= {"hdd-7200", "ssd-sata", "nvme"}
    built = installed.python("-c", "from ztune.places import bundle; print(bundle.build())").stdout.strip()
    hello = subprocess.run([sys.executable, "-I", built, "hello"], capture_output=True, text=True, check=True)
    assert json.loads(hello.stdout)


def test_records_and_screens(installed: Installed) -> None:
    work = installed.folder / "work"
    work.mkdir()
    data = "dd if=/dev/urandom of=work/a.db bs=8k count=500 conv=fsync"
    installed.run("record", "--recorder", "strace", "--out", "t.trace", "--", "sh", "-c", data)
    if shutil.which("pkg-config") is None or os_family() != "debian":
        pytest.skip("what the engine is built with is not here")
    first = installed.run("screen", "t.trace", "--budget", "2", "--json")
    assert "building ztune-engine" in first.stderr
    assert len(json.loads(first.stdout)["layouts"]) == 2
    # Built once; the second time it is there.
    assert "building" not in installed.run("screen", "t.trace", "--budget", "1", "--json").stderr
    findings = {row["check"]: row for row in json.loads(installed.run("doctor", "--json").stdout)["checks"]}
    engine = findings["replay engine"]
    assert engine["state"] == "ok" and engine["details"]["path"].startswith(str(installed.folder / "state"))


def test_observes(installed: Installed) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    with subprocess.Popen(["sleep", "60"]) as sleep:
        try:
            done = installed.run("observe", "--pid", str(sleep.pid), "--seconds", "0.5", "--json")
        finally:
            sleep.kill()
    assert json.loads(done.stdout)["observation"]


def test_mounts(installed: Installed) -> None:
    if not Path("/dev/fuse").exists() or os.geteuid():
        pytest.skip("needs /dev/fuse and root")
    place = installed.folder / "m"
    place.mkdir()
    installed.run("mount", "sqlite", str(place), "--disks", "instant")
    try:
        (place / "data" / "x").write_text("x")
    finally:
        installed.run("umount", str(place), "--destroy")
    assert not (place / "data" / "x").exists()
