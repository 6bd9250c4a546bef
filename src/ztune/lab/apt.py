"""Packages downloaded and unpacked, not installed, with the host's own apt configuration. Works as an
ordinary user.

Where the host's package lists lack what is wanted (no contrib, no backports, no lists at all), a second apt
configuration in the lab's folder is used: the host's sources, what ``scripts/apt-source.sh`` derives from
them, and lists of its own. The host's lists are never touched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ztune import native
from ztune.errors import MissingError, ZtuneError
from ztune.packages import os_release

_TIMEOUT_S = 900.0
SCRIPT = native.SOURCES / "scripts" / "apt-source.sh"
ETC = Path("/etc/apt")


class Apt:
    """One apt configuration."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)

    def _run(self, program: str, *argv: str, cwd: Path | None = None) -> str:
        command = [program, *self._options, *argv]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                errors="replace",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **_proxies()},
            )
        except FileNotFoundError:
            raise MissingError(
                f"the lab is built from Debian packages, and there is no {program} here"
            ) from None
        except subprocess.TimeoutExpired:
            raise MissingError(f"`{program} {argv[0]}` did not end within {_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or ["it failed"]
            # No network, a mirror that is down, a package that is gone: nothing that we could mend.
            word = next((word for word in argv if not word.startswith("-") and "::" not in word), "")
            raise MissingError(
                f"the lab's packages can't be had: `{program} {word}` says: {said[0].removeprefix('E: ')}"
            )
        return done.stdout

    def versions(self, package: str) -> list[str]:
        """Return the versions of ``package`` that can be had, newest first."""
        lines = self._run("apt-cache", "madison", package).splitlines()
        fields = [line.split("|") for line in lines if not line.rstrip().endswith("Sources")]
        found = dict.fromkeys(field[1].strip() for field in fields if len(field) > 2)
        return list(found)

    def names(self, pattern: str) -> list[str]:
        """Return the names of packages that match a regular expression."""
        lines = self._run("apt-cache", "search", "--names-only", pattern).splitlines()
        return sorted(line.partition(" - ")[0] for line in lines)

    def depends(self, package: str, version: str = "") -> list[tuple[str, str]]:
        """Return what it depends on: (name, exact version or "")."""
        name = f"{package}={version}" if version else package
        for line in self._run("apt-cache", "show", "--no-all-versions", name).splitlines():
            if line.startswith("Depends:"):
                found = []
                for item in line.partition(":")[2].split(","):
                    first = item.split("|")[0].strip()
                    match = re.match(r"([a-z0-9.+-]+)(?::\w+)?(?: \(= ([^)]+)\))?", first)
                    if match:
                        found.append((match[1], match[2] or ""))
                return found
        return []

    def download(self, packages: Sequence[str], into: Path) -> list[Path]:
        """Download ``NAME`` or ``NAME=VERSION`` each; return the files."""
        into.mkdir(parents=True, exist_ok=True)
        before = set(into.glob("*.deb"))
        # As root apt would hand the download to a user of its own who may not write here.
        self._run("apt-get", "-o", "APT::Sandbox::User=root", "download", *packages, cwd=into)
        return sorted(set(into.glob("*.deb")) - before)


def _proxies() -> dict[str, str]:
    import os

    wanted = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "APT_CONFIG")
    return {name: os.environ[name] for name in wanted if name in os.environ}


def unpack(package: Path, into: Path) -> None:
    """Unpack a package's files. Raises ZtuneError."""
    into.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["dpkg-deb", "-x", package, into], check=True, capture_output=True, timeout=_TIMEOUT_S, text=True
        )
    except FileNotFoundError:
        raise MissingError("the lab is built from Debian packages, and there is no dpkg-deb here") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or ["it failed"]
        raise ZtuneError(f"{package.name} can't be unpacked: {said[-1]}") from None


def source_arguments() -> tuple[str, str, str]:
    """Return (code name, component, backports or "") of this host, as ``apt-source.sh`` takes them."""
    release = os_release()
    name = release.get("VERSION_CODENAME", "")
    families = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    if "ubuntu" in families:
        return release.get("UBUNTU_CODENAME", name), "universe", ""
    name = release.get("DEBIAN_CODENAME", name)
    return name, "contrib", "bookworm-backports" if name == "bookworm" else ""


def private(folder: Path, progress: Callable[[str], None], etc: Path = ETC) -> Apt:
    """Return an apt configuration in ``folder`` with the host's sources and what they lack; reads the lists.

    Raises ZtuneError when no source of the distribution is found or the lists can't be read.
    """
    name, component, backports = source_arguments()
    parts = folder / "sources.list.d"
    shutil.rmtree(parts, ignore_errors=True)
    for path in (parts, folder / "lists" / "partial", folder / "cache" / "archives" / "partial"):
        path.mkdir(parents=True, exist_ok=True)
    for path in [*etc.glob("sources.list.d/*.list"), *etc.glob("sources.list.d/*.sources")]:
        (parts / path.name).symlink_to(path)
    command = ["sh", str(SCRIPT), str(etc), name or "unknown", component, *([backports] if backports else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise ZtuneError(
            f"no apt source of '{name} main' was found in {etc}, "
            f"so there is nothing to derive one for {component} from"
        )
    if done.stdout.strip():
        (parts / "ztune-lab.sources").write_text(done.stdout)
    apt = Apt(
        [
            *("-o", f"Dir::Etc::sourceparts={parts}"),
            *("-o", f"Dir::Etc::sourcelist={etc / 'sources.list'}"),
            *("-o", f"Dir::State={folder}", "-o", f"Dir::State::lists={folder / 'lists'}"),
            *("-o", "Dir::State::status=/var/lib/dpkg/status", "-o", f"Dir::Cache={folder / 'cache'}"),
        ]
    )
    progress("reading package lists of its own, as this host's lack what the lab needs")
    apt._run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "update")
    return apt
