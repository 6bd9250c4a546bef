"""A program that a Maven repository has in parts only: many jars, each pinned, fetched by one ``mvn``."""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ztune.errors import ZtuneError
from ztune.trial.jobs import software
from ztune.workloads.artifacts import PLUGIN, maven


@dataclass(frozen=True, slots=True)
class JarList:
    """Jars of a Maven repository, kept in one directory: a ``Fetched``."""

    name: str
    """Of the directory in ztune's cache, with the version."""
    project: Path
    """A project file of Maven's that names each, and excludes what would follow from it."""
    sums: Path
    """Their SHA-256, in lines as ``sha256sum`` writes them."""
    unpack: str = ""
    """The jar among them that is a parcel of files, and is unpacked instead of kept."""
    members: tuple[str, ...] = ()
    """Which of its files are kept, of those right below its top directory (shell patterns)."""

    @property
    def directory(self) -> Path:
        """Where they lie when they were fetched."""
        return software.directory() / self.name

    @property
    def present(self) -> bool:
        """Whether they were fetched."""
        return self.directory.is_dir()

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """``group:artifact:version:extension`` and the SHA-256 of each.

        Raises:
            KeyError: project and sums don't agree, which a test sees to.
        """
        lines = self.sums.read_text(encoding="ascii").splitlines()
        sums = {name: digest for digest, name in (line.split() for line in lines)}
        found = []
        for one in ET.parse(self.project).iterfind("dependencies/dependency"):
            group, artifact, version = (one.findtext(tag) for tag in ("groupId", "artifactId", "version"))
            found.append((f"{group}:{artifact}:{version}:jar", sums.pop(f"{artifact}-{version}.jar")))
        if sums:
            raise KeyError(f"{self.project.name} has no {next(iter(sums))}")
        return tuple(found)

    @property
    def _download(self) -> Path:
        return software.directory() / f".fetch-{self.name}"

    def needs(self, path: str | None) -> tuple[str, ...]:
        """Return Maven, if it isn't here."""
        return maven(path)

    def fetch_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the command that fetches them."""
        command = (
            *("mvn", "-B", "-q", "-f", str(self.project), f"{PLUGIN}:copy-dependencies"),
            *(f"-DoutputDirectory={self._download / 'jars'}", "-Dmdep.useBaseVersion=true"),
            f"-Dmaven.repo.local={self._download / 'repository'}",
        )
        return (command,)

    def install(self) -> None:
        """Check what was fetched, and put it into ztune's cache.

        Raises:
            ZtuneError: one isn't there, isn't the file that was pinned, or is none of them; nothing stays.
        """
        try:
            part = self._download / "jars"
            wanted = {_file_name(coordinates): digest for coordinates, digest in self.pins}
            for name, digest in wanted.items():
                _must_be(part / name, digest)
            strange = sorted({path.name for path in part.iterdir()} - set(wanted))
            if strange:
                raise ZtuneError(f"{self.name}: mvn left {strange[0]} too, which is not pinned")
            if self.unpack:
                self._unpack(part / self.unpack, part)
                (part / self.unpack).unlink()
            for path in part.iterdir():
                path.chmod(0o644)
            part.chmod(0o755)
            # In one step, so that half of it is never taken for the whole.
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


def _file_name(coordinates: str) -> str:
    _, artifact, version, extension = coordinates.split(":")
    return f"{artifact}-{version}.{extension}"


def _must_be(path: Path, sha256: str) -> None:
    try:
        with path.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ZtuneError(f"{path.name}: mvn left no {path}: {error.strerror}") from None
    if got != sha256:
        raise ZtuneError(
            f"{path.name}: its SHA-256 is {got} but should be {sha256}; "
            "it is not what ztune was tried with, and was removed"
        )
