"""Deriving our apt source from what the machine has. Hosts here are of the reserved domain `example`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "apt-source.sh"
WANTED = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian
Suites: bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
DEB822 = """\
# Comment before
Types: deb
# http://snapshot.example/archive
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
ONE_LINE = """\
# deb cdrom:[Debian 12]/ bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb [arch=amd64 signed-by=/k/debian.gpg] http://mirror.example/debian bookworm main # note
deb-src http://src.example/debian bookworm main
deb http://security.example/debian-security bookworm-security main
deb http://mirror.example/debian bookworm-updates main
"""


def derive(tmp_path: Path, *args: str, **files: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sources.list.d").mkdir(exist_ok=True)
    for name, text in files.items():
        path = tmp_path / "sources.list" if name == "sources_list" else tmp_path / "sources.list.d" / name
        if "__" in name:
            path = tmp_path / "sources.list.d" / name.replace("__", ".")
        path.write_text(text)
    return subprocess.run(["sh", SCRIPT, tmp_path, *args], capture_output=True, text=True, check=False)


BOOKWORM = ("bookworm", "contrib", "bookworm-backports")


def test_deb822(tmp_path: Path) -> None:
    done = derive(tmp_path, *BOOKWORM, debian__sources=DEB822)
    assert (done.returncode, done.stdout, done.stderr) == (0, WANTED, "")


def test_our_own_file_does_not_count(tmp_path: Path) -> None:
    assert derive(tmp_path, *BOOKWORM, debian__sources=DEB822, ztune__sources=WANTED).stdout == WANTED


def test_one_line_format(tmp_path: Path) -> None:
    done = derive(tmp_path, *BOOKWORM, sources_list=ONE_LINE)
    want = WANTED.replace("/usr/share/keyrings/debian-archive-keyring.gpg", "/k/debian.gpg")
    assert done.stdout == want.replace("Signed-By", "Architectures: amd64\nSigned-By")


def test_one_line_without_options_names_no_keyring(tmp_path: Path) -> None:
    done = derive(
        tmp_path, *BOOKWORM, main__list="deb\thttp://mirror.example/debian/  bookworm   main contrib\n"
    )
    assert done.stdout == (
        "Types: deb\nURIs: http://mirror.example/debian/\n"
        "Suites: bookworm-backports\nComponents: main contrib\n"
    )


def test_nothing_to_add(tmp_path: Path) -> None:
    text = DEB822.replace("Components: main", "Components: main contrib")
    assert derive(tmp_path, "bookworm", "contrib", debian__sources=text).stdout == ""
    backports = "deb http://mirror.example/debian bookworm-backports main contrib\n"
    done = derive(tmp_path, *BOOKWORM, debian__sources=text, back__list=backports)
    assert (done.returncode, done.stdout) == (0, "")


def test_debian_13_needs_contrib_only(tmp_path: Path) -> None:
    done = derive(tmp_path, "trixie", "contrib", debian__sources=DEB822.replace("bookworm", "trixie"))
    assert done.stdout == WANTED.partition("\n\n")[0].replace("bookworm", "trixie") + "\n"


def test_ubuntu(tmp_path: Path) -> None:
    text = (
        "Types: deb\nURIs: http://archive.example/ubuntu/\nSuites: noble noble-updates noble-backports\n"
        "Components: main restricted\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"
    )
    done = derive(tmp_path, "noble", "universe", ubuntu__sources=text)
    assert "Suites: noble noble-updates\nComponents: universe\n" in done.stdout
    assert (
        derive(tmp_path, "noble", "universe", ubuntu__sources=text.replace("restricted", "universe")).stdout
        == ""
    )


def test_disabled_and_foreign_sources_are_passed_over(tmp_path: Path) -> None:
    disabled = (
        "Enabled: no\n" + DEB822.partition("\n\n")[0].partition("\n")[2].replace("mirror", "disabled") + "\n"
    )
    foreign = "Types: deb\nURIs: http://vendor.example/apt\nSuites: stable\nComponents: main\n"
    source = "Types: deb-src\nURIs: http://src.example/debian\nSuites: bookworm\nComponents: main\n"
    done = derive(
        tmp_path, *BOOKWORM, a__sources=disabled, b__sources=foreign, c__sources=source, d__sources=DEB822
    )
    assert done.stdout == WANTED


def test_a_key_that_stands_in_the_file_is_kept(tmp_path: Path) -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY-----\n .\n mQINBFwy\n -----END PGP PUBLIC KEY-----\n"
    text = f"Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents:\n main\n{key}"
    done = derive(tmp_path, "trixie", "contrib", debian__sources=text)
    assert done.stdout == (
        f"Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: contrib\n{key}"
    )


@pytest.mark.parametrize("text", ["", "deb http://mirror.example/debian trixie main\n", "rubbish\n: :\n"])
def test_no_source_of_the_release(tmp_path: Path, text: str) -> None:
    done = derive(tmp_path, *BOOKWORM, sources_list=text, odd__sources=text)
    assert done.returncode == 3 and done.stdout == ""
    assert "no source for 'bookworm main'" in done.stderr


def test_usage(tmp_path: Path) -> None:
    assert derive(tmp_path).returncode == 2
