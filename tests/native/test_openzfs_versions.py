"""Other versions of OpenZFS: which are here, and programs built against them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune import native
from ztune.errors import InputError, MissingError
from ztune.native import openzfs
from ztune.native.openzfs import Library

pytestmark = pytest.mark.usefixtures("home")


def unpacked(word: str, package: str) -> Library:
    folder = openzfs.folder(word)
    (folder / "root").mkdir(parents=True)
    (folder / "version").write_text(f"{package}\n")
    return Library(folder / "root", package)


def test_the_newest_that_is_meant_is_taken() -> None:
    assert openzfs.libraries() == [] and openzfs.library("2.4") is None
    newer, older = unpacked("2.4.10", "2.4.10-1"), unpacked("2.4", "2.4.4-1~bpo13+1")
    (openzfs.folder("2.1") / "root").mkdir(parents=True)  # one that was cut
    assert openzfs.libraries() == [older, newer]
    assert openzfs.library("2.4") == newer
    assert openzfs.library("2.4.4") == older and older.version == "2.4.4"
    assert openzfs.library("2.4.1") is None


@pytest.mark.parametrize("gone", ["read_text", "lstat"])
def test_one_that_another_ztune_removes_meanwhile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    kept, removed = unpacked("2.4", "2.4.4-1"), unpacked("2.3", "2.3.9-1")
    before = openzfs.size(removed)
    act = getattr(Path, gone)

    def meanwhile(path: Path, *words: object) -> object:
        if path.name == "version" and path.parent == removed.root.parent:
            path.unlink(missing_ok=True)
        return act(path, *words)

    monkeypatch.setattr(Path, gone, meanwhile)
    if gone == "read_text":
        assert openzfs.libraries() == [kept]
    else:
        assert openzfs.size(removed) < before


def test_what_is_no_version_is_refused() -> None:
    assert openzfs.suite("2.4.4") == openzfs.suite("2.4") == "trixie-backports"
    for word in ("2", "", "2.40", "2.4.", "2.4.4.1", "../2.4"):
        with pytest.raises(InputError, match=r"is no version to set up: Debian has 2\.1, 2\.3 and 2\.4"):
            openzfs.suite(word)


def test_each_library_has_a_build_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(tmp_path / "nothing"))  # is of this machine's own, and not asked
    older, newer = unpacked("2.3.9", "2.3.9-1"), unpacked("2.4", "2.4.4-1")
    engine = native.ENGINE.against(older)
    assert engine.built() is None
    path = engine._own()
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    assert engine.built() == path
    assert native.ENGINE.against(newer).built() is None
    # A package that was fetched anew has other structures.
    assert native.ENGINE.against(Library(older.root, "2.3.9-2")).built() is None


def test_which_one_is_taken() -> None:
    one = unpacked("2.4", "2.4.4-1~bpo13+1")
    assert openzfs.chosen("2.4", "2.3.2", "engine") == one
    assert openzfs.chosen("2.3", "2.3.2", "engine") is None
    assert openzfs.chosen("2.4", "2.4.1", "engine") is None  # this machine's own comes first
    assert openzfs.chosen("2.4.4", "2.4.1", "engine") == one
    said = r"no mount with OpenZFS 2\.1 here \(2\.4\.4\); `ztune setup openzfs --version 2\.1` brings it"
    with pytest.raises(MissingError, match=said):
        openzfs.chosen("2.1", "", "mount")
    with pytest.raises(InputError, match=r"\(here: 2\.3\.2, 2\.4\.4\), and Debian has 2\.1, 2\.3, 2\.4 only"):
        openzfs.chosen("2.2", "2.3.2", "mount")


def test_only_what_we_unpacked_is_removed(tmp_path: Path) -> None:
    one = unpacked("2.4", "2.4.4-1")
    beside = tmp_path / "theirs" / "root"
    beside.mkdir(parents=True)
    (beside.parent / "version").write_text("2.4.4-1")
    link = openzfs.folder("2.1")
    link.symlink_to(beside.parent)
    for wrong in (Library(beside, "2.4.4-1"), Library(link / "root", "2.4.4-1")):
        with pytest.raises(InputError, match="it was left alone"):
            openzfs.remove(wrong)
    assert (beside.parent / "version").exists()
    openzfs.remove(one)
    assert not one.root.parent.exists()
    assert openzfs.order("2.10.1-1") > openzfs.order("2.4.4") > openzfs.order("2.4")
