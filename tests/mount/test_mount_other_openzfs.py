"""Mounts with other versions of OpenZFS, where ``ztune setup openzfs`` brought them.

All tests of files with one of them: ``ZTUNE_TESTED_MOUNT=FILE pytest tests/mount``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mount_commands
import pytest
from click.testing import CliRunner
from mount_ground import why_not

from ztune import native
from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.native import openzfs
from ztune.onhost.host.mounted import MountOptions
from ztune.places import mount_points, mount_program
from ztune.places.mount import MountPlace

VERSIONS = sorted(openzfs.SUITES)


@pytest.fixture
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the version of ``request.param``, whose mount is there, with a state directory of the test's
    own that shares the versions.
    """
    reason = why_not()
    library = openzfs.library(request.param)
    built = None if library is None else native.MOUNT.against(library).built()
    if not reason and (library is None or built is None):
        reason = f"no mount with OpenZFS {request.param}: `ztune setup openzfs --version {request.param}`"
    if reason:
        pytest.skip(reason)
    assert library is not None and built is not None
    monkeypatch.setattr(openzfs, "library", lambda wanted: library if wanted == library.version else None)
    monkeypatch.setattr(mount_program, "check", lambda wanted=None: built if wanted else native.MOUNT.find())
    # A socket's path is short.
    with tempfile.TemporaryDirectory() as home:
        monkeypatch.setenv("ZTUNE_HOME", home)
        yield library.version


def run(*words: str) -> str:
    done = CliRunner().invoke(ztune, list(words), standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout


@pytest.mark.parametrize("other", VERSIONS, indirect=True)
def test_what_is_written_stays_and_an_older_one_is_refused(other: str, tmp_path: Path) -> None:
    place = tmp_path / "m"
    words = ["mount", "sqlite", str(place), "--disks", "instant"]
    try:
        made = json.loads(run(*words, "--openzfs", other, "--json"))
        assert made["openzfs"] == other and not made["imported"]
        file = Path(made["mounts"][0]["directory"]) / "file"
        file.write_bytes(b"a row" * 100_000)
        run("umount", str(place))
        point = mount_points.find(place)
        assert point is not None and point.openzfs == other
        again = json.loads(run(*words, "--json"))  # by itself with the version that made it
        assert again["openzfs"] == other and again["imported"]
        assert file.read_bytes() == b"a row" * 100_000
        run("umount", str(place))
        mount_points.changed(point, MountOptions(), "99.1")
        with pytest.raises(InputError, match=r"made with OpenZFS 99\.1, which the older .* can't import"):
            run(*words)
    finally:
        mount_commands.end_all(tmp_path)


@pytest.mark.parametrize("other", VERSIONS, indirect=True)
def test_a_measured_run_says_which_it_had(other: str) -> None:
    with MountPlace(openzfs=other) as up:
        assert up.about_host()["openzfs"] == {"library": other}
