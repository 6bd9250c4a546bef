"""The commands that install something on this platform, and that run ztune as root: nothing is run here."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from ztune import shipped
from ztune.errors import InputError

OTHER_POLARS = f"{shlex.quote(sys.executable)} -m pip install 'polars[rtcompat]'"
"""The command that brings the build of Polars for processors without AVX2."""

# By what a person would call the thing; keys are the families of `os_family`. What only one database needs
# stands in its folder (database.toml).
_PACKAGES: dict[str, dict[str, str]] = {
    "java": {
        "debian": "openjdk-17-jdk-headless",
        "fedora": "java-17-openjdk-devel",
        "suse": "java-17-openjdk-devel",
        "arch": "jdk17-openjdk",
        "alpine": "openjdk17-jdk",
        "freebsd": "openjdk17",
    },
    "maven": {"": "maven"},
    "pip": {"": "python3-pip", "arch": "python-pip", "alpine": "py3-pip", "freebsd": "py311-pip"},
    "wordnet": {"": "wordnet", "debian": "wordnet-base"},
    "fio": {"": "fio"},
    "strace": {"": "strace"},
    "bpftool": {"": "bpftool", "arch": "bpf"},
    "clang": {"": "clang llvm"},
    "zfs": {"debian": "zfsutils-linux"},
    "cc": {"": "gcc", "debian": "gcc libc6-dev"},
    "make": {"": "make"},
    "fuse": {"": "fuse3", "freebsd": "fusefs-libs3"},
    "libfuse": {
        "debian": "libfuse3-dev libjemalloc-dev fuse3",
        "fedora": "fuse3-devel jemalloc-devel fuse3",
        "suse": "fuse3-devel jemalloc-devel fuse3",
        "arch": "fuse3 jemalloc",
        "alpine": "fuse3-dev jemalloc-dev fuse3",
        "freebsd": "fusefs-libs3",
    },
    "qemu": {
        "debian": "qemu-system-x86",
        "fedora": "qemu-system-x86-core",
        "suse": "qemu-x86",
        "arch": "qemu-system-x86",
        "alpine": "qemu-system-x86_64",
    },
    "uml": {"debian": "flex bison bc"},
}
_COMMANDS = {
    "debian": "apt-get install",
    "fedora": "dnf install",
    "suse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
    "freebsd": "pkg install",
}
# The same, without questions, and without taking anything away that is installed.
_UNATTENDED = {
    "debian": "apt-get install -q -y --no-install-recommends --no-remove",
    "fedora": "dnf install -y --setopt=install_weak_deps=False",
    "suse": "zypper --non-interactive install --no-recommends",
    "arch": "pacman -S --noconfirm --needed",
    "alpine": "apk add",
    "freebsd": "pkg install -y",
}


def os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """Return the fields of os-release(5), or nothing where there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {key: value.strip().strip("\"'") for key, _, value in pairs}


def os_family(release: dict[str, str] | None = None) -> str:
    """Return ``debian``, ``fedora``, ``suse``, ``arch``, ``alpine``, ``freebsd``, or ``""`` for none of
    them.
    """
    if platform.system() == "FreeBSD":
        return "freebsd"
    found = os_release() if release is None else release
    names = [found.get("ID", ""), *found.get("ID_LIKE", "").split()]
    for name in names:
        family = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse"}.get(
            name, name
        )
        if family in _COMMANDS:
            return family
    return ""


SUDO_FINDS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where sudo looks for programs: the `secure_path` of Debian's sudoers. The caller's PATH does not count."""


def sudo_ztune(program: str | None = None) -> str:
    """Return the beginning of a command that runs ztune as root: with the path of ``program``, default this
    one, where sudo would not find it by name.
    """
    path = Path(sys.argv[0] if program is None else program)
    if path.name != "ztune" or str(path.parent) in {".", *SUDO_FINDS}:
        return "sudo ztune …"
    return f"sudo {shlex.quote(str(path))} …"


def install_command(thing: str, family: str | None = None) -> str:
    """Return the command that installs ``thing``, such as ``apt-get install postgresql``: on ``family``, by
    default here, where it begins with sudo for a user who is not root.
    """
    sudo = "sudo " if family is None and os.geteuid() else ""
    family = os_family() if family is None else family
    packages = " ".join(packages_of(thing, family))
    command = _COMMANDS.get(family)
    return f"{sudo}{command} {packages}" if command else f"install {packages} with your package manager"


def known() -> dict[str, Mapping[str, str]]:
    """Return thing → family → names of packages: of tools, and of what the databases' folders declare."""
    return {**shipped.packages(), **_PACKAGES}


def packages_of(thing: str, family: str | None = None) -> list[str]:
    """Return the names of the packages that bring ``thing`` here. Raises InputError for one not known."""
    family = os_family() if family is None else family
    names = known().get(thing)
    if names is None:
        raise InputError(f"{thing!r} is none of the packages that ztune knows: {', '.join(known())}")
    return (names.get(family) or names.get("") or names["debian"]).split()


def unattended_install(packages: list[str], family: str | None = None) -> list[str]:
    """Return the command that installs ``packages`` and asks nothing; none where ztune knows no package
    manager.
    """
    command = _UNATTENDED.get(os_family() if family is None else family)
    return [*command.split(), *packages] if command else []
