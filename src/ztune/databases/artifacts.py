"""Software that no system package brings: fetched by Maven or pip into ztune's cache, each file pinned.

Which repository, mirror or proxy is asked is Maven's or pip's own configuration. Nothing is written outside
ztune's cache: Maven's local repository lies there too, and is removed when it was read. Nothing that was
fetched is run or installed: ``unpacking`` checks it and keeps what is needed.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from ztune.errors import MissingError
from ztune.onhost.host.process import Account
from ztune.onhost.jobs import software

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"


@dataclass(frozen=True)
class Fetched:
    """Something that ``ztune setup`` fetches into ztune's cache: with Maven, unless a kind says otherwise."""

    name: str
    """Of the directory in ztune's cache, with the version."""

    @property
    def directory(self) -> Path:
        """Where it lies when it was fetched."""
        return software.directory() / self.name

    @property
    def present(self) -> bool:
        """Whether it was fetched."""
        return self.directory.is_dir()

    @property
    def download(self) -> Path:
        """A directory for the time of fetching; ``files`` in it is for what is fetched, and nothing else."""
        return software.directory() / f".fetch-{self.name}"

    def pinned(self) -> tuple[tuple[str, str], ...]:
        """Return what is fetched, in four parts with colons between, and the SHA-256 of each file."""
        raise NotImplementedError

    def needs(self, path: str | None) -> tuple[str, ...]:
        """Return what must be installed to fetch it, as ``ztune.packages`` calls it; ``path`` is a PATH."""
        return () if shutil.which("mvn", path=path) else ("maven",)

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that fetch it."""
        return tuple(
            ("mvn", "-B", "-q", f"{PLUGIN}:copy", f"-Dartifact={coordinates}", *self._maven_options())
            for coordinates, _ in self.pinned()
        )

    def _maven_options(self) -> tuple[str, ...]:
        return (
            *(f"-DoutputDirectory={self.download / 'files'}", "-Dmdep.useBaseVersion=true"),
            f"-Dmaven.repo.local={self.download / 'repository'}",
        )

    def files(self) -> list[tuple[Path, str, str]]:
        """Return the files that fetching leaves: path, how errors call it, and its SHA-256."""
        files = self.download / "files"
        return [(files / file_name(of), file_name(of), sha256) for of, sha256 in self.pinned()]

    def is_archive(self, file: Path) -> bool:
        """Say whether a file that was fetched is unpacked, instead of kept as it is."""
        return True

    def kept(self, member: PurePosixPath) -> PurePosixPath | None:
        """Return where a file of an archive is kept, below ``directory``; None if it is not."""
        raise NotImplementedError


@dataclass(frozen=True)
class Artifact(Fetched):
    """One archive of a Maven repository, pinned, and what is kept of it."""

    coordinates: str
    """``group:artifact:version:extension``."""
    sha256: str
    """Of the file."""
    members: tuple[str, ...] = ("*",)
    """Which files of the archive are kept, below its single top directory (shell patterns)."""
    flat: bool = True
    """Put all of them into one directory; else keep their paths."""

    def pinned(self) -> tuple[tuple[str, str], ...]:
        """Return its coordinates and SHA-256."""
        return ((self.coordinates, self.sha256),)

    def kept(self, member: PurePosixPath) -> PurePosixPath | None:
        """Return its path without the top directory, or its name."""
        inner = PurePosixPath(*member.parts[1:])
        return (PurePosixPath(inner.name) if self.flat else inner) if _is_one(inner, self.members) else None


@dataclass(frozen=True)
class Jars(Fetched):
    """Single files of a Maven repository, each pinned, kept in one directory."""

    pins: tuple[tuple[str, str], ...]
    """``group:artifact:version:extension`` and the SHA-256 of each file."""
    project: Path | None = None
    """A project file of Maven's that names just these, to fetch them by one command."""
    unpack: str = ""
    """The file among them that is a parcel of others, and is unpacked instead of kept."""
    members: tuple[str, ...] = ()
    """Which of the parcel's files are kept, of those right below its top directory (shell patterns)."""

    def pinned(self) -> tuple[tuple[str, str], ...]:
        """Return the pins."""
        return self.pins

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that fetch them: one where there is a project file."""
        if self.project is None:
            return super().fetch_commands()
        copy = ("mvn", "-B", "-q", "-f", str(self.project), f"{PLUGIN}:copy-dependencies")
        return ((*copy, *self._maven_options()),)

    def is_archive(self, file: Path) -> bool:
        """Say whether it is the parcel."""
        return file.name == self.unpack

    def kept(self, member: PurePosixPath) -> PurePosixPath | None:
        """Return its name."""
        name = PurePosixPath(member.name)
        return name if len(member.parts) == 2 and _is_one(name, self.members) else None


@dataclass(frozen=True)
class Wheel(Fetched):
    """A Python package with compiled parts, pinned for some Pythons, and what is kept of it.

    It is for another process of another Python than ztune's, so it is unpacked and not installed; what it
    depends on is not fetched.
    """

    name: str = field(init=False)
    package: str
    version: str
    sha256: Mapping[str, str]
    """Of the file, by what it is made for, as ``software.pythons`` tells it: ``cpython-311-x86_64``."""
    probe: str
    """Prints that in a Python."""
    user: str
    """The system user that it is for when ztune is root."""
    members: tuple[str, ...]
    """Which files are kept (shell patterns), with their paths."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.package}-{self.version}")

    @property
    def tag(self) -> str:
        """What it must be made for here.

        Raises:
            MissingError: that user can run no Python that it is pinned for.
        """
        seen = []
        for path, tag in software.pythons(self.probe, Account.for_database(self.user)):
            if tag in self.sha256:
                return tag
            seen.append(f"{path} is {tag}")
        raise MissingError(
            f"{self.name} is pinned for {', '.join(self.sha256)}, and there is no such Python here that a "
            f"database's user can run ({'; '.join(seen) or 'there is none at all'})"
        )

    @property
    def directory(self) -> Path:
        """Where it lies when it was fetched for a Python that is here."""
        return super().directory / self.tag

    def pinned(self) -> tuple[tuple[str, str], ...]:
        """Return package, version, what it is made for, and the SHA-256 of each file."""
        return tuple((f"{self.package}:{self.version}:{tag}:whl", sha) for tag, sha in self.sha256.items())

    def needs(self, path: str | None) -> tuple[str, ...]:
        """Return pip, if it isn't here."""
        return () if importlib.util.find_spec("pip") or shutil.which("pip3", path=path) else ("pip",)

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the command that fetches it: as a file, from which nothing is run."""
        pip = (sys.executable, "-m", "pip") if importlib.util.find_spec("pip") else ("pip3",)
        _, version, machine = self.tag.split("-")
        command = (
            *(*pip, "download", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps"),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={version}"),
            *(f"--platform=manylinux_2_28_{machine}", f"--dest={self.download / 'files'}"),
            f"{self.package}=={self.version}",
        )
        return (command,)

    def files(self) -> list[tuple[Path, str, str]]:
        """Return the wheel, whose name pip chooses."""
        files = self.download / "files"
        wheel = next(iter(sorted(files.glob("*.whl"))), files / f"{self.name}.whl")
        return [(wheel, f"{self.package} {self.version}", self.sha256[self.tag])]

    def kept(self, member: PurePosixPath) -> PurePosixPath | None:
        """Return its path."""
        return member if _is_one(member, self.members) else None


def _is_one(path: PurePosixPath, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(str(path), pattern) for pattern in patterns)


def file_name(coordinates: str) -> str:
    """Return the name that Maven gives to the copy."""
    _, artifact, version, extension = coordinates.split(":")
    return f"{artifact}-{version}.{extension}"


def pins_of(list_of: Path) -> tuple[tuple[str, str], ...]:
    """Return coordinates and SHA-256 of each line of a file, which has the SHA-256 first."""
    lines = list_of.read_text(encoding="ascii").splitlines()
    return tuple((coordinates, sha256) for sha256, coordinates in (line.split() for line in lines))
