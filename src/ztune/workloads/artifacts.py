"""Software that comes from a Maven repository: fetched with ``mvn``, checked, unpacked into ztune's cache.

Which repository, mirror or proxy is asked is Maven's own configuration. Nothing is written outside ztune's
cache: Maven's local repository lies there too, and is removed when it was read.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from ztune.errors import InputError, ZtuneError
from ztune.trial.jobs import software

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"


class Fetched(Protocol):
    """What ``ztune setup`` fetches into one directory of ztune's cache."""

    @property
    def name(self) -> str:
        """Of the directory, with the version."""
        ...

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """``group:artifact:version:extension`` and the SHA-256 of each file of the repository."""
        ...

    @property
    def directory(self) -> Path:
        """Where it lies when it was fetched."""
        ...

    @property
    def present(self) -> bool:
        """Whether it was fetched."""
        ...

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that fetch it."""
        ...

    def install(self) -> None:
        """Check what was fetched, put it where it belongs, and remove the rest."""
        ...


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a Maven repository, pinned, and what is kept of it."""

    name: str
    """Of the directory in ztune's cache, with the version."""
    coordinates: str
    """``group:artifact:version:extension``."""
    sha256: str
    """Of the file."""
    members: tuple[str, ...] = ("*",)
    """Which files of the archive are kept, below its single top directory (shell patterns)."""
    flat: bool = True
    """Put all of them into one directory; else keep their paths."""

    @property
    def directory(self) -> Path:
        """Where it lies when it was fetched."""
        return software.directory() / self.name

    @property
    def present(self) -> bool:
        """Whether it was fetched."""
        return self.directory.is_dir()

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """Its coordinates and SHA-256."""
        return ((self.coordinates, self.sha256),)

    @property
    def file_name(self) -> str:
        """The name that Maven gives to the copy."""
        return _file_name(self.coordinates)

    @property
    def _download(self) -> Path:
        return _download_of(self.name)

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the command that fetches it."""
        return (_fetch_command(self.coordinates, self._download),)

    def install(self) -> None:
        """Check what was fetched, unpack it, and remove the rest.

        Raises:
            ZtuneError: it isn't there, or isn't the file that was pinned; nothing of it stays.
        """
        try:
            archive = _checked(self.coordinates, self.sha256, self._download)
            part = self._download / "unpacked"
            part.mkdir()
            self._unpack(archive, part)
            part.chmod(0o755)
            # In one step, so that half of it is never taken for the whole.
            part.replace(self.directory)
        finally:
            shutil.rmtree(self._download, ignore_errors=True)

    def _unpack(self, archive: Path, into: Path) -> None:
        count = 0
        with _members(archive) as members:
            for path, content in members:
                inner = PurePosixPath(*PurePosixPath(path).parts[1:])
                if ".." in inner.parts or inner.is_absolute():
                    raise ZtuneError(f"{self.coordinates}: it holds a file {path!r} that would lie outside")
                if not any(fnmatch.fnmatchcase(str(inner), pattern) for pattern in self.members):
                    continue
                target = into / (inner.name if self.flat else inner)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    shutil.copyfileobj(content, out)
                target.chmod(0o644)
                count += 1
        if not count:
            raise ZtuneError(f"{self.coordinates}: none of its files is one that is needed")


@dataclass(frozen=True, slots=True)
class Jars:
    """Single files of a Maven repository, each pinned, kept as they are in one directory."""

    name: str
    """Of the directory in ztune's cache, with the version."""
    pins: tuple[tuple[str, str], ...]
    """``group:artifact:version:extension`` and the SHA-256 of each file."""

    @property
    def directory(self) -> Path:
        """Where they lie when they were fetched."""
        return software.directory() / self.name

    @property
    def present(self) -> bool:
        """Whether they were fetched."""
        return self.directory.is_dir()

    @property
    def _download(self) -> Path:
        return _download_of(self.name)

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that fetch them, one each."""
        return tuple(_fetch_command(coordinates, self._download) for coordinates, _ in self.pins)

    def install(self) -> None:
        """Check what was fetched, keep it, and remove the rest.

        Raises:
            ZtuneError: one isn't there, or isn't the file that was pinned; nothing of them stays.
        """
        try:
            part = self._download / "kept"
            part.mkdir(parents=True)
            for coordinates, sha256 in self.pins:
                path = _checked(coordinates, sha256, self._download)
                path.chmod(0o644)
                path.replace(part / path.name)
            part.chmod(0o755)
            # In one step, so that half of them is never taken for the whole.
            part.replace(self.directory)
        finally:
            shutil.rmtree(self._download, ignore_errors=True)


def _file_name(coordinates: str) -> str:
    _, artifact, version, extension = coordinates.split(":")
    return f"{artifact}-{version}.{extension}"


def _download_of(name: str) -> Path:
    return software.directory() / f".fetch-{name}"


def _fetch_command(coordinates: str, into: Path) -> tuple[str, ...]:
    return (
        *("mvn", "-B", "-q", f"{_PLUGIN}:copy", f"-Dartifact={coordinates}"),
        *(f"-DoutputDirectory={into}", "-Dmdep.useBaseVersion=true"),
        f"-Dmaven.repo.local={into / 'repository'}",
    )


def _checked(coordinates: str, sha256: str, folder: Path) -> Path:
    """Return the file that was fetched into ``folder``. Raises ZtuneError if it isn't the one pinned."""
    path = folder / _file_name(coordinates)
    try:
        with path.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ZtuneError(f"{coordinates}: mvn left no {path}: {error.strerror}") from None
    if got != sha256:
        raise ZtuneError(
            f"{coordinates}: its SHA-256 is {got} but should be {sha256}; "
            "it is not what ztune was tried with, and was removed"
        )
    return path


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Give the path and content of every regular file of a tar or zip."""
    if archive.name.endswith(".zip"):
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
