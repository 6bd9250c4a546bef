"""What was fetched is checked, and what is needed of it kept: all of it, or nothing."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from ztune.databases.artifacts import Fetched
from ztune.errors import InputError, ZtuneError


def install(one: Fetched) -> None:
    """Check what was fetched for ``one``, keep what is needed of it in its directory, and remove the rest.

    Raises:
        ZtuneError: a file isn't there, isn't the one that was pinned, or is none of them; nothing stays.
    """
    target = one.directory
    try:
        files = one.files()
        for path, what, sha256 in files:
            _must_be(path, what, sha256)
        for strange in sorted(set((one.download / "files").iterdir()) - {path for path, _, _ in files}):
            raise ZtuneError(f"{one.name}: fetching left {strange.name} too, which is not pinned")
        part = one.download / "kept"
        part.mkdir()
        for path, what, _ in files:
            if one.is_archive(path):
                _unpack(path, part, what, one)
            else:
                path.chmod(0o644)
                path.replace(part / path.name)
        part.chmod(0o755)
        target.parent.mkdir(exist_ok=True)
        # In one step, so that half of it is never taken for the whole.
        part.replace(target)
    finally:
        shutil.rmtree(one.download, ignore_errors=True)


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


def _unpack(archive: Path, into: Path, what: str, one: Fetched) -> None:
    count = 0
    with _members(archive) as members:
        for path, content in members:
            member = PurePosixPath(path)
            if ".." in member.parts or member.is_absolute():
                raise ZtuneError(f"{what}: it holds a file {path!r} that would lie outside")
            inner = one.kept(member)
            if inner is None:
                continue
            target = into / inner
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
    if archive.suffix in (".zip", ".whl", ".jar"):
        with zipfile.ZipFile(archive) as packed:
            yield ((one.filename, packed.open(one)) for one in packed.infolist() if not one.is_dir())
        return
    try:
        with tarfile.open(archive) as tar:
            yield ((one.name, content) for one in tar if one.isreg() and (content := tar.extractfile(one)))
    except tarfile.TarError as error:
        raise InputError(f"{archive}: can't be unpacked: {error}") from None
