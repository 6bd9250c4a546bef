"""Building the image: which kernel and OpenZFS, what may be missing, what is said of a failed build."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ztune import paths, temporary
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.lab import build, build_user_mode, image, qemu, recipe
from ztune.lab.image import Image
from ztune.onhost.host import shared_files

KERNEL = "6.1.0-56-amd64"
ZFS = {"2.3.2-2~bpo12+2": "2.3", "2.1.11-1+deb12u1": "2.1"}


class FakeApt:
    """Package lists."""

    def __init__(self, **without: bool) -> None:
        self.without = without

    def versions(self, package: str) -> list[str]:
        if package in self.without:
            return []
        return list(ZFS) if package == "zfs-dkms" else ["6.12.9-1~bpo12+1", "6.1.170-3"]

    def names(self, pattern: str) -> list[str]:
        return [
            f"linux-image-{KERNEL}",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.12.9+bpo-amd64-dbg",
        ]

    def depends(self, package: str, version: str = "") -> list[tuple[str, str]]:
        return (
            [(f"linux-image-{KERNEL}", "")]
            if (package, version) == ("linux-image-amd64", "6.1.170-3")
            else []
        )


def choose(openzfs: str | None = None, kernel: str | None = None, **without: bool) -> tuple[str, str]:
    return build._choose(FakeApt(**without), openzfs, kernel)  # type: ignore[arg-type]


def test_the_releases_kernel_with_the_newest_openzfs() -> None:
    assert choose() == (KERNEL, "2.3.2-2~bpo12+2")
    assert choose("2.1") == (KERNEL, "2.1.11-1+deb12u1")
    assert choose(kernel="6.1") == (KERNEL, "2.3.2-2~bpo12+2")


def test_what_apt_does_not_offer_is_named_with_what_it_does() -> None:
    with pytest.raises(
        InputError, match=r"apt offers OpenZFS 2\.3\.2-2~bpo12\+2, 2\.1\.11-1\+deb12u1 here, not 2\.4"
    ):
        choose("2.4")
    with pytest.raises(InputError, match=r"no generic kernel 5\.10 here"):
        choose(kernel="5.10")
    with pytest.raises(MissingError, match="zfs-dkms"):
        choose(None, None, **{"zfs-dkms": True})


def test_a_kernel_without_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    apt = FakeApt(**{f"linux-headers-{KERNEL}": True})
    made = Image(f"{KERNEL}_2.3", KERNEL, "2.3", "r")
    with pytest.raises(MissingError, match=f"kernel {KERNEL} has no package linux-headers-{KERNEL}"):
        build._module(apt, made, tmp_path, tmp_path, lambda _: None)  # type: ignore[arg-type]


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    monkeypatch.setattr(qemu, "program", lambda: "qemu")
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(MissingError, match=r"has 1\.0 GiB free, a build takes 3 GiB; set ZTUNE_HOME"):
        build.build()


def test_no_compiler_and_no_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match=r"needs QEMU .*make lab"):
        build.build()
    (tmp_path / "qemu-system-x86_64").write_text("#!/bin/sh\n")
    (tmp_path / "qemu-system-x86_64").chmod(0o755)
    with pytest.raises(MissingError, match="the OpenZFS module and needs `cc`"):
        build.build()


LOG = """checking whether the compiler works... yes
checking for error handling in headers... yes
  CC [M]  module/zfs/arc.o
cc1: all warnings being treated as -Werror=...
module/zfs/arc.c:12:10: fatal error: linux/missing.h: No such file or directory
   12 | #include <linux/missing.h>
      |          ^~~~~~~~~~~~~~~~~
compilation terminated.
make[3]: *** [scripts/Makefile.build:250: module/zfs/arc.o] Error 1
  CC [M]  module/zfs/dbuf.o
"""


def failing(tmp_path: Path, text: str, code: int = 2) -> str:
    log = tmp_path / "log"
    with log.open("w") as out, pytest.raises(ZtuneError) as error:
        script = f"import sys; sys.stdout.write({text!r}); sys.exit({code})"
        build.Steps(out, log, lambda _: None).run([sys.executable, "-c", script], tmp_path, "compiling it")
    return "\n".join([str(error.value), *error.value.__notes__])


def test_a_failed_build_shows_the_lines_that_matter(tmp_path: Path) -> None:
    said = failing(tmp_path, LOG).splitlines()
    assert said[0] == f"compiling it failed; what matters of {tmp_path / 'log'}:"
    assert said[1].endswith("linux/missing.h: No such file or directory")
    assert any("*** [scripts/Makefile.build:250" in line for line in said)
    assert not any("checking" in line or "Werror" in line for line in said)
    # Without an error that we know, the end.
    said = failing(tmp_path, "\n".join(f"line {n}" for n in range(40))).splitlines()
    assert said[1:] == [f"line {n}" for n in range(25, 40)]
    assert len(failing(tmp_path, "x.c: error: bad\n" * 500).splitlines()) <= 16


def test_a_build_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUILD_S", -1.0)
    log = tmp_path / "log"
    with log.open("w") as out, pytest.raises(ZtuneError, match="compiling it took more than"):
        build.Steps(out, log, lambda _: None).run(["sleep", "1000"], tmp_path, "compiling it")


def make(version: str, openzfs: str, tmp_path: Path, *, user_mode: bool = False) -> Image:
    made = Image(f"{version}_{openzfs}", version, openzfs, "recipe", user_mode=user_mode)
    (made.tools / "usr" / "sbin").mkdir(parents=True)
    for path in (made.vmlinuz, made.initrd, *(made.tools / "usr" / "sbin" / n for n in ("zfs", "zpool"))):
        path.write_text(path.name)
    made.save()
    return made


def test_images_are_found_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    with pytest.raises(MissingError, match="`ztune lab build` does it once"):
        image.find()
    for openzfs in ("2.1.11-1", "2.10.1-1", "2.3.2-2"):
        make(KERNEL, openzfs, tmp_path)
    assert image.find().openzfs == "2.10.1-1"
    assert image.find("2.1").openzfs == "2.1.11-1"
    assert image.find("2.3.2").openzfs == "2.3.2-2"
    with pytest.raises(
        InputError, match=r"has OpenZFS 2\.10\.1-1, 2\.3\.2-2, 2\.1\.11-1, not 2\.2;.*--openzfs 2\.2"
    ):
        image.find("2.2")
    # Half an image is none.
    image.find("2.3").initrd.unlink()
    with pytest.raises(InputError):
        image.find("2.3")
    (image.find("2.1").folder / "image.json").write_text("{")
    assert [found.openzfs for found in image.built()] == ["2.10.1-1"]


def test_a_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    make(KERNEL, "2.3.2-2", tmp_path)
    found = image.find()
    found.check()
    found.initrd.write_text("other")
    with pytest.raises(
        ZtuneError, match=r"damaged \(.*initrd has changed\); `ztune lab build --openzfs 2\.3\.2-2`"
    ):
        found.check()


def test_of_a_guest_in_user_mode_messages_have_its_command(tmp_path: Path, home: Path) -> None:
    with pytest.raises(MissingError, match="`ztune lab build --user-mode` does it once"):
        image.find(user_mode=True)
    (made := make("6.1.1-um", "2.3.2-2", tmp_path, user_mode=True)).vmlinuz.write_text("other")
    with pytest.raises(ZtuneError, match=r"`ztune lab build --user-mode --openzfs 2\.3\.2-2` makes it anew"):
        made.check()
    with pytest.raises(InputError, match=r"`ztune lab build --user-mode --openzfs 2\.2` adds it"):
        image.find("2.2", user_mode=True)


def test_what_killed_builds_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    lab = paths.lab()
    (lab / "build-abc" / "root").mkdir(parents=True)
    (lab / "modules" / "kept").mkdir(parents=True)
    killed = lab / "build-def"
    (killed / "root").mkdir(parents=True)
    shared_files.lock_of(killed).touch()
    assert killed in temporary.left_here()  # `ztune clean` names it
    with build._lock():
        build._sweep()
    assert sorted(path.name for path in lab.iterdir()) == ["lock", "modules"]


def module(path: Path, depends: str = "", version: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF code\0depends=" + depends.encode() + b"\0version=" + version.encode() + b"\0")


def test_modules_come_after_what_they_need(tmp_path: Path) -> None:
    tree, own = tmp_path / "tree", tmp_path / "own"
    needs = {"overlay": "", "9p": "9pnet", "9pnet_virtio": "9pnet", "9pnet": "", "zfs": "spl", "spl": ""}
    for name in (*recipe.MODULES, "9pnet", "spl"):
        module(tree / "kernel" / f"{name}.ko", needs.get(name, ""), "old")
    module(own / "zfs.ko", "spl", "new")
    (tree / "kernel" / "ext4.ko").unlink()
    names = list(chosen := recipe.collect([own, tree], {"ext4"}))
    assert names.index("9pnet") < names.index("9p") and names.index("spl") < names.index("zfs")
    assert "ext4" not in names  # built in
    assert recipe.modinfo(chosen["zfs"], "version") == ["new"]
    (tree / "kernel" / "overlay.ko").unlink()
    with pytest.raises(ZtuneError, match="no module overlay"):
        recipe.collect([own, tree], {"ext4"})


def test_ready_made_modules_spare_the_compiler(tmp_path: Path) -> None:
    module(tmp_path / "kernel" / "zfs.ko", version="2.2.2-0ubuntu9")
    assert build._ready_made(tmp_path, "2.2.2-0ubuntu9.1") == tmp_path
    assert build._ready_made(tmp_path, "2.3.2-1") is None


def test_tools_hide_no_link_of_the_host(tmp_path: Path) -> None:
    unpacked, layer = tmp_path / "unpacked", tmp_path / "layer"
    for name in ("sbin/zpool", "lib/x86_64-linux-gnu/libzpool.so.5", "lib/systemd/system/zfs.service"):
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_text("x")
    build.layer(unpacked, layer)
    files = sorted(str(path.relative_to(layer)) for path in layer.rglob("*") if path.is_file())
    assert files == ["usr/lib/x86_64-linux-gnu/libzpool.so.5", "usr/sbin/zpool"]


def test_a_damaged_image_is_not_taken_for_built(tmp_path: Path, home: Path) -> None:
    said: list[str] = []
    absent = Image("other_2.3.2-1", "other", "2.3.2-1", "recipe", user_mode=True)
    assert build.there(absent, said.append) is None and not said
    image = make("6.1.1-um", "2.3.2-1", tmp_path)
    assert build.there(image, said.append) is not None and said.pop().endswith("already built")
    image.vmlinuz.write_text("another")
    assert build.there(image, said.append) is None and said.pop().endswith("damaged, made anew")


def test_an_openzfs_that_can_not_be_put_into_a_kernel_is_refused_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    (tmp_path / "packed" / "zfs-2.1.11").mkdir(parents=True)
    (tmp_path / "packed" / "linux-source-6.1.tar.xz").write_text("never opened")
    why = r"OpenZFS 2\.1\.11-1 has no guest in user mode: .*; `ztune lab build --openzfs 2\.1\.11-1` builds"
    with pytest.raises(InputError, match=why):
        build_user_mode._sources(tmp_path / "packed", tmp_path, "2.1.11-1")


def test_a_kernel_that_was_built_another_way_is_made_anew(tmp_path: Path, home: Path) -> None:
    said: list[str] = []
    made = make("6.1.1-um", "2.3.2-1", tmp_path, user_mode=True)
    wanted = replace(made, made_with=build_user_mode.identity())
    assert build.there(wanted, said.append) is None and "built another way" in said.pop()
    wanted.save()
    assert build.there(wanted, said.append) is not None and said.pop().endswith("already built")
