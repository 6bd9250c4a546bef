"""Bringing another OpenZFS, with an apt-get that stands in for Debian's archive. Hosts are of `example`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "openzfs.sh"
SOURCE = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
APT = """\
#!/bin/bash
set -e
[ "$1" = -c ] && conf=$2
shift 3
echo "$@" >> {here}/asked
cp {here}/state/new/sources/debian.sources {here}/sources.seen
[ -z "$(cat {here}/broken 2>/dev/null)" ] || {{ cat {here}/broken >&2; exit 100; }}
case "$1" in
-s)
    echo 'NOTE: This is only a simulation!'
    echo 'Inst libzpool7linux (2.4.4-1~bpo13+1 Debian Backports:trixie-backports [amd64])'
    echo 'Inst libzfslinux-dev (2.4.4-1~bpo13+1 Debian Backports:trixie-backports [amd64]) []'
    echo 'Conf libzfslinux-dev (2.4.4-1~bpo13+1 Debian Backports:trixie-backports [amd64])'
    ;;
download) shift; for one; do touch "${{one%%=*}}.deb"; done ;;
esac
"""
# What a package has: a library in /lib, and a link to it by its full path.
DPKG = """\
#!/bin/sh
set -e
made=$(mktemp -d)
mkdir -p "$made/lib/x" "$made/usr/lib/x" "$made/usr/share/doc/x" "$made/usr/include/fuse3"
echo real > "$made/lib/x/$(basename "$2").so.7"
echo long > "$made/usr/share/doc/x/changelog"
ln -s "/lib/x/$(basename "$2").so.7" "$made/usr/lib/x/$(basename "$2").so"
tar -c -C "$made" ./lib ./usr
rm -r "$made"
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A Debian 12, and an archive that has OpenZFS 2.4.4 in trixie-backports."""
    etc, programs = tmp_path / "etc", tmp_path / "bin"
    (etc / "apt" / "sources.list.d").mkdir(parents=True)
    (etc / "apt" / "sources.list.d" / "debian.sources").write_text(SOURCE)
    (etc / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    programs.mkdir()
    for name, text in {"apt-get": APT.format(here=tmp_path), "dpkg-deb": DPKG}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


def bring(here: Path, version: str = "2.4") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{here / 'bin'}:{os.environ['PATH']}", "ETC": str(here / "etc")}
    words: list[Path | str] = [SCRIPT, here / "state" / "new", version, "trixie-backports"]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def test_packages_are_named_fetched_and_unpacked(here: Path) -> None:
    done = bring(here)
    assert done.returncode == 0, done.stderr
    assert "fetching 2 packages, to be unpacked in" in done.stdout
    assert "libzpool7linux=2.4.4-1~bpo13+1 libzfslinux-dev=2.4.4-1~bpo13+1" in done.stdout
    new = here / "state" / "new"
    assert {path.name for path in new.iterdir()} == {"root", "version"}
    assert (new / "version").read_text() == "2.4.4-1~bpo13+1\n"
    # /lib is one directory with /usr/lib, as the loader expects, and no link leads out of it.
    link = new / "root" / "usr" / "lib" / "x" / "libzpool7linux.deb.so"
    assert link.resolve() == (new / "root" / "usr" / "lib" / "x" / "libzpool7linux.deb.so.7").resolve()
    assert link.read_text() == "real\n" and not link.readlink().is_absolute()
    assert (new / "root" / "lib").is_symlink() and not (new / "root/usr/share/doc/x/changelog").exists()


def test_the_archive_is_that_of_the_machines_own_sources(here: Path) -> None:
    assert bring(here).returncode == 0
    assert (here / "sources.seen").read_text() == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie trixie-backports\n"
        "Components: main contrib\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    assert (here / "asked").read_text().splitlines()[1].startswith("-s -t trixie-backports install libzfs")


def test_a_second_time_nothing_is_asked(here: Path) -> None:
    bring(here)
    (here / "asked").unlink()
    again = bring(here)
    assert again.returncode == 0 and "OpenZFS 2.4.4-1~bpo13+1 is unpacked" in again.stdout
    assert not (here / "asked").exists()
    # One of an older ztune, which had no mount to build with it, is fetched anew.
    (here / "state" / "new" / "root" / "usr" / "include" / "fuse3").rmdir()
    assert bring(here).returncode == 0 and "libfuse3-dev" in (here / "asked").read_text()


@pytest.mark.parametrize(
    ("broken", "version", "said"),
    [
        ("", "2.4.3", "Debian's trixie-backports has OpenZFS 2.4.4 now, not 2.4.3."),
        ("W: x\nE: no network\nE: y\n", "2.4", "can't be had from Debian's trixie-backports: E: no network"),
    ],
)
def test_what_can_not_be_had_is_one_sentence(here: Path, broken: str, version: str, said: str) -> None:
    (here / "broken").write_text(broken)
    done = bring(here, version)
    assert done.returncode == 3 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (here / "state" / "new").exists()


@pytest.mark.parametrize(
    ("release", "source", "said"),
    [
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n", SOURCE, "this system (ubuntu) has no source"),
        ("ID=debian\nVERSION_CODENAME=bookworm\n", "", "has no source of Debian to derive that one from"),
    ],
)
def test_without_debians_archive_it_says_so(here: Path, release: str, source: str, said: str) -> None:
    (here / "etc" / "os-release").write_text(release)
    (here / "etc" / "apt" / "sources.list.d" / "debian.sources").write_text(source)
    done = bring(here)
    assert done.returncode == 3 and said in done.stderr.splitlines()[-1]
    assert not (here / "state" / "new").exists() and not (here / "asked").exists()
