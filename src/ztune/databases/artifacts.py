"""Software that no system package brings: fetched by Maven or pip, checked, unpacked into ztune's cache.

Which repository, mirror or proxy is asked is Maven's or pip's own configuration. Nothing is written outside
ztune's cache: Maven's local repository lies there too, and is removed when it was read. Nothing that was
fetched is run or installed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.util
import shutil
import sys
import tarfile
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.jobs import software

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"


class Fetched(Protocol):
    """Something that ``ztune setup`` fetches into ztune's cache."""

    @property
    def name(self) -> str:
        """Of it, with the version."""
        ...

    @property
    def directory(self) -> Path:
        """Where it lies when it was fetched."""
        ...

    @property
    def present(self) -> bool:
        """Whether it was fetched."""
        ...

    def needs(self, path: str | None) -> tuple[str, ...]:
        """Return what must be installed to fetch it, as ``ztune.packages`` calls it; ``path`` is a PATH."""
        ...

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """What is fetched, in four parts with colons between, and the SHA-256 of each file."""
        ...

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that fetch it."""
        ...

    def install(self) -> None:
        """Check what was fetched, unpack it, and remove the rest; raises ZtuneError, and leaves nothing."""
        ...


@dataclass(frozen=True, slots=True)
class _FromMaven:
    """What is fetched with Maven into one directory."""

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
    def _download(self) -> Path:
        return software.directory() / f".fetch-{self.name}"

    def needs(self, path: str | None) -> tuple[str, ...]:
        """Return Maven, if it isn't here."""
        return () if shutil.which("mvn", path=path) else ("maven",)


@dataclass(frozen=True, slots=True)
class Artifact(_FromMaven):
    """One file of a Maven repository, pinned, and what is kept of it: a ``Fetched``."""

    coordinates: str
    """``group:artifact:version:extension``."""
    sha256: str
    """Of the file."""
    members: tuple[str, ...] = ("*",)
    """Which files of the archive are kept, below its single top directory (shell patterns)."""
    flat: bool = True
    """Put all of them into one directory; else keep their paths."""

    @property
    def file_name(self) -> str:
        """The name that Maven gives to the copy."""
        return _file_name(self.coordinates)

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """Its coordinates and SHA-256."""
        return ((self.coordinates, self.sha256),)

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the command that fetches it."""
        return (_copy_command(self.coordinates, self._download, self._download / "repository"),)

    def install(self) -> None:
        """Check what was fetched, unpack it, and remove the rest.

        Raises:
            ZtuneError: it isn't there, or isn't the file that was pinned; nothing of it stays.
        """
        archive = self._download / self.file_name
        _keep(archive, self.directory, self.coordinates, self.sha256, self.members, top=1, flat=self.flat)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python package with compiled parts, pinned for some Pythons, and what is kept of it.

    It is for another process of another Python than ztune's, so it is unpacked and not installed; what it
    depends on is not fetched.
    """

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

    @property
    def name(self) -> str:
        """Of the directory in ztune's cache."""
        return f"{self.package}-{self.version}"

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
        """Where it lies when it was fetched."""
        return software.directory() / self.name / self.tag

    @property
    def present(self) -> bool:
        """Whether it was fetched for a Python that is here."""
        return self.directory.is_dir()

    @property
    def _download(self) -> Path:
        return software.directory() / f".fetch-{self.name}"

    def needs(self, path: str | None) -> tuple[str, ...]:
        """Return pip, if it isn't here."""
        return () if importlib.util.find_spec("pip") or shutil.which("pip3", path=path) else ("pip",)

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """Package, version, what it is made for, and the SHA-256 of each file."""
        return tuple((f"{self.package}:{self.version}:{tag}:whl", sha) for tag, sha in self.sha256.items())

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the command that fetches it: as a file, from which nothing is run."""
        pip = (sys.executable, "-m", "pip") if importlib.util.find_spec("pip") else ("pip3",)
        _, version, machine = self.tag.split("-")
        command = (
            *(*pip, "download", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps"),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={version}"),
            *(f"--platform=manylinux_2_28_{machine}", f"--dest={self._download}"),
            f"{self.package}=={self.version}",
        )
        return (command,)

    def install(self) -> None:
        """Check what was fetched, unpack it, and remove the rest.

        Raises:
            ZtuneError: it isn't there, or isn't the file that was pinned; nothing of it stays.
        """
        found = sorted(self._download.glob("*.whl"))
        archive = found[0] if found else self._download / f"{self.name}.whl"
        target = self.directory
        target.parent.mkdir(exist_ok=True)
        _keep(archive, target, f"{self.package} {self.version}", self.sha256[target.name], self.members)


@dataclass(frozen=True, slots=True)
class Jars(_FromMaven):
    """Single files of a Maven repository, each pinned, kept in one directory: a ``Fetched``."""

    pins: tuple[tuple[str, str], ...]
    """``group:artifact:version:extension`` and the SHA-256 of each file."""
    project: Path | None = None
    """A project file of Maven's that names just these, to fetch them by one command."""
    unpack: str = ""
    """The file among them that is a parcel of others, and is unpacked instead of kept."""
    members: tuple[str, ...] = ()
    """Which of the parcel's files are kept, of those right below its top directory (shell patterns)."""

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that fetch them."""
        into, repository = self._download / "jars", self._download / "repository"
        if self.project is None:
            return tuple(_copy_command(coordinates, into, repository) for coordinates, _ in self.pins)
        command = (
            *("mvn", "-B", "-q", "-f", str(self.project), f"{PLUGIN}:copy-dependencies"),
            *(f"-DoutputDirectory={into}", "-Dmdep.useBaseVersion=true", f"-Dmaven.repo.local={repository}"),
        )
        return (command,)

    def install(self) -> None:
        """Check what was fetched, keep it, and remove the rest.

        Raises:
            ZtuneError: one isn't there, isn't the file that was pinned, or is none of them; nothing stays.
        """
        try:
            part = self._download / "jars"
            wanted = {_file_name(coordinates): sha256 for coordinates, sha256 in self.pins}
            for name, sha256 in wanted.items():
                _must_be(part / name, name, sha256)
            strange = sorted({path.name for path in part.iterdir()} - set(wanted))
            if strange:
                raise ZtuneError(f"{self.name}: mvn left {strange[0]} too, which is not pinned")
            if self.unpack:
                self._unpack(part / self.unpack, part)
                (part / self.unpack).unlink()
            for path in part.iterdir():
                path.chmod(0o644)
            part.chmod(0o755)
            # In one step, so that half of them is never taken for the whole.
            part.replace(self.directory)
        finally:
            shutil.rmtree(self._download, ignore_errors=True)

    def _unpack(self, parcel: Path, into: Path) -> None:
        with zipfile.ZipFile(parcel) as packed:
            for one in packed.infolist():
                path = PurePosixPath(one.filename)
                kept = any(fnmatch.fnmatchcase(path.name, pattern) for pattern in self.members)
                # By its last part alone, so it can't lie outside.
                if kept and len(path.parts) == 2 and not one.is_dir():
                    (into / path.name).write_bytes(packed.read(one))


def pins_of(project: Path, sums: Path) -> tuple[tuple[str, str], ...]:
    """Return coordinates and SHA-256 of each jar that a project file of Maven's names.

    Args:
        project: the project file.
        sums: lines as ``sha256sum`` writes them.

    Raises:
        KeyError: they don't agree, which a test sees to.
    """
    lines = sums.read_text(encoding="ascii").splitlines()
    by_name = {name: digest for digest, name in (line.split() for line in lines)}
    found = []
    for one in ET.parse(project).iterfind("dependencies/dependency"):
        group, artifact, version = (one.findtext(tag) for tag in ("groupId", "artifactId", "version"))
        found.append((f"{group}:{artifact}:{version}:jar", by_name.pop(f"{artifact}-{version}.jar")))
    if by_name:
        raise KeyError(f"{project.name} has no {next(iter(by_name))}")
    return tuple(found)


def _copy_command(coordinates: str, into: Path, repository: Path) -> tuple[str, ...]:
    return (
        *("mvn", "-B", "-q", f"{PLUGIN}:copy", f"-Dartifact={coordinates}"),
        *(f"-DoutputDirectory={into}", "-Dmdep.useBaseVersion=true", f"-Dmaven.repo.local={repository}"),
    )


def _file_name(coordinates: str) -> str:
    """Return the name that Maven gives to the copy."""
    _, artifact, version, extension = coordinates.split(":")
    return f"{artifact}-{version}.{extension}"


def _must_be(path: Path, what: str, sha256: str) -> None:
    """Raise ZtuneError, in which it is called ``what``, if the file isn't the one pinned."""
    try:
        with path.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ZtuneError(f"{what}: fetching left no {path}: {error.strerror}") from None
    if got != sha256:
        raise ZtuneError(
            f"{what}: its SHA-256 is {got} but should be {sha256}; "
            "it is not what ztune was tried with, and was removed"
        )


def _keep(
    archive: Path,
    target: Path,
    what: str,
    sha256: str,
    members: tuple[str, ...],
    *,
    top: int = 0,
    flat: bool = False,
) -> None:
    """Check ``archive``, unpack it into ``target``, and remove the directory that it is in.

    Args:
        archive: what was fetched, in a directory of its own.
        target: a directory that isn't there yet.
        what: how errors call it.
        sha256: what it must be.
        members: which of its files are kept (shell patterns).
        top: how many parts of each path are left out, from the beginning.
        flat: put all files into ``target`` itself.

    Raises:
        ZtuneError: it isn't there, or another file; nothing of it stays.
    """
    download = archive.parent
    try:
        _must_be(archive, what, sha256)
        part = download / "unpacked"
        part.mkdir()
        _unpack(archive, part, what, members, top, flat)
        part.chmod(0o755)
        # In one step, so that half of it is never taken for the whole.
        part.replace(target)
    finally:
        shutil.rmtree(download, ignore_errors=True)


def _unpack(archive: Path, into: Path, what: str, patterns: tuple[str, ...], top: int, flat: bool) -> None:
    count = 0
    with _members(archive) as members:
        for path, content in members:
            inner = PurePosixPath(*PurePosixPath(path).parts[top:])
            if ".." in inner.parts or inner.is_absolute():
                raise ZtuneError(f"{what}: it holds a file {path!r} that would lie outside")
            if not any(fnmatch.fnmatchcase(str(inner), pattern) for pattern in patterns):
                continue
            target = into / (inner.name if flat else inner)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(content, out)
            target.chmod(0o644)
            count += 1
    if not count:
        raise ZtuneError(f"{what}: none of its files is one that is needed")


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Give the path and content of every regular file of a tar or zip."""
    if archive.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(archive) as packed:
            yield ((one.filename, packed.open(one)) for one in packed.infolist() if not one.is_dir())
        return
    try:
        with tarfile.open(archive) as tar:
            yield _regular(tar)
    except tarfile.TarError as error:
        raise InputError(f"{archive}: can't be unpacked: {error}") from None


def _regular(tar: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for one in tar:
        content = tar.extractfile(one) if one.isreg() else None
        if content is not None:
            yield one.name, content
