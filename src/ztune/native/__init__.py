"""ztune's own compiled programs: found, or built here on first use.

They are tied to this machine, the engine and the mount to its very version of the OpenZFS library, so a
package brings their sources and not the programs. In a source tree the folders here are links, and
``make build`` builds. Against another version of that library (``openzfs``) they are always built in the
cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ztune import __version__, output, paths
from ztune.errors import MissingError, ZtuneError
from ztune.native.openzfs import Library
from ztune.onhost.host import shared_files
from ztune.packages import install_command

SOURCES = Path(__file__).resolve().parent
"""Folders of C sources, each with a Makefile; ``lab`` and ``scripts`` are used as they are."""
_BUILD_S = 900.0
_DIGITS = 16
"""Of the name of a build's folder in the cache."""
_UNUSED_S = 30 * 86400.0
"""A build in the cache that nobody looked for in so long is removed: it is of an older ztune or OpenZFS."""


@dataclass(frozen=True)
class NativeProgram:
    """One of ztune's programs."""

    name: str
    folder: str
    """Of its sources."""
    variable: str
    """The environment's variable that names another one to use."""
    what: str
    """With its article, for a sentence."""
    uses_openzfs: bool = False
    library: Library | None = None
    """The OpenZFS that it is built against; None for this machine's own."""

    def against(self, library: Library) -> NativeProgram:
        """Return the program that is built against ``library``."""
        return replace(self, library=library)

    @property
    def _in_source_tree(self) -> bool:
        return self.library is None and is_source_tree()

    def built(self) -> Path | None:
        """Return the program if it is there: the one that the variable names; else the one built from the
        sources at hand; else the one in PATH. With another OpenZFS it is the one built from the sources, and
        no other. Builds nothing.

        Raises MissingError where the variable names no program.
        """
        own = os.environ.get(self.variable)
        if own and self.library is None:
            if not _runs(Path(own)):
                raise MissingError(
                    f"{self.variable} names {own}, which is no program; unset it or name {self.what}"
                )
            return Path(own)
        path = self._own()
        if _runs(path):
            if not self._in_source_tree:
                with contextlib.suppress(OSError):  # the cache may be one that can't be written now
                    os.utime(path.parents[2])
            return path
        on_path = shutil.which(self.name) if self.library is None else None
        return Path(on_path) if on_path else None

    def folder_in_cache(self) -> Path:
        """Return the folder in the cache that it is, or would be, built in; others may share it."""
        return paths.cache() / "programs" / _digest(self)

    def _own(self) -> Path:
        top = SOURCES if self._in_source_tree else self.folder_in_cache()
        return top / self.folder / "build" / self.name

    def find(self) -> Path:
        """Return the program, as ``built`` does; outside of a source tree it is built first where it is not
        there, which says so on stderr.

        Nobody removes another OpenZFS that it is built against before this process ends. Raises
        MissingError where it can't be built, with the reason and what brings what is missing.
        """
        if self.library is not None:
            _keep(self.library)
        path = self.built()
        if path is not None:
            return path
        if self._in_source_tree:
            raise MissingError(
                f"{self.name} is not built; `{setup_command()}` in its source folder builds it"
            )
        path = self._own()
        openzfs = "" if self.library is None else f" with OpenZFS {self.library.version}"
        output.note(f"building {self.name}{openzfs} for this machine, once")
        _build(self, path)
        return path


ENGINE = NativeProgram("ztune-engine", "engine", "ZTUNE_ENGINE", "an engine", uses_openzfs=True)
MOUNT = NativeProgram("ztune-mount", "mount", "ZTUNE_MOUNT", "a ztune-mount", uses_openzfs=True)
DISK = NativeProgram("ztune-disk", "disk", "ZTUNE_DISK", "a ztune-disk")
RECORDER = NativeProgram("ztune-recorder", "recorder", "ZTUNE_RECORDER", "a recorder")
OBSERVER = NativeProgram("ztune-observer", "recorder", "ZTUNE_OBSERVER", "an observer")
ALL = (ENGINE, MOUNT, DISK, RECORDER, OBSERVER)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def is_source_tree() -> bool:
    """Whether this is a source tree, where ``make build`` builds, and no installed package."""
    return (SOURCES / "engine").is_symlink()


def setup_command() -> str:
    """Return the command that installs what the programs take, and builds them."""
    return "make setup" if is_source_tree() else "ztune setup programs"


def find_all() -> list[Path]:
    """Return all programs, after what they take was installed: each is built first where it is not there.

    Raises MissingError as ``find`` does.
    """
    _digest.cache_clear()  # what was installed may be another OpenZFS
    return [program.find() for program in ALL]


def _files() -> list[Path]:
    folders = {program.folder for program in ALL}
    found = (p for folder in folders for p in (SOURCES / folder).rglob("*") if "build" not in p.parts)
    return sorted(path for path in found if path.is_file())


@functools.cache
def _digest(program: NativeProgram) -> str:
    """Return the name of the folder in the cache that ``program`` is built in: a new one for other sources,
    and for another OpenZFS library, whose structures differ.
    """
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes())
    if program.library is not None:
        digest.update(f"{program.library.root}\0{program.library.package}".encode())
    elif program.uses_openzfs:
        digest.update(openzfs_here().encode())
    return digest.hexdigest()[:_DIGITS]


_kept: dict[Path, contextlib.ExitStack] = {}
"""What holds the locks of the libraries that this process works with, by lock."""


def _keep(library: Library) -> None:
    """Have nobody remove ``library`` before this process ends. Raises MissingError where somebody did."""
    lock = shared_files.lock_of(library.root)
    with contextlib.suppress(OSError):  # it is gone; or it can't be written, and stays
        if lock not in _kept:
            held = contextlib.ExitStack()
            held.enter_context(shared_files.locked(lock, shared=True))
            _kept[lock] = held
    if not library.is_there():
        raise MissingError(
            f"OpenZFS {library.version} was removed from {library.root.parent} meanwhile; "
            f"`ztune setup openzfs --version {library.version}` brings it again"
        )


@contextlib.contextmanager
def alone(library: Library) -> Iterator[None]:
    """Within the body nobody begins to work with ``library``, or to unpack it anew.

    Raises BlockingIOError where another ztune works with it, builds against it or unpacks it.
    """
    use, held = shared_files.lock_of(library.root), contextlib.ExitStack()
    _kept.pop(use, held).close()
    with held:
        # The first is the lock that scripts/openzfs.sh takes.
        for lock in (shared_files.lock_of(library.root.parent), use):
            held.enter_context(shared_files.locked(lock, wait=False))
        yield


def forget(library: Library) -> None:
    """Remove what was built against ``library``; call it within ``alone``."""
    for program in ALL:
        if program.uses_openzfs:
            shared_files.remove(program.against(library).folder_in_cache())


def openzfs_here() -> str:
    """Return the version of the package of this machine's OpenZFS headers; empty without them."""
    for command in (
        ["dpkg-query", "-W", "-f", "${Version}", "libzfslinux-dev"],
        ["pkg-config", "--modversion", "libzfs"],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    return ""


def _is_build(folder: Path) -> bool:
    """Whether ``folder`` is named as `_digest` names those of builds, and holds what `_build` puts there."""
    if not re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", folder.name) or folder.is_symlink():
        return False
    held = {path.name for path in folder.iterdir()}
    return ".lock" in held and held <= {".lock", *(program.folder for program in ALL)}


def _prune(but: Path) -> None:
    """Remove the builds beside ``but`` that were not used for long and that nobody builds in."""
    for folder in but.parent.iterdir():
        with contextlib.suppress(OSError):  # somebody builds in it, or removes it too; or it is no folder
            if folder == but or not _is_build(folder):
                continue
            if time.time() - folder.stat().st_mtime > _UNUSED_S:
                with shared_files.locked(folder / ".lock", wait=False):
                    shared_files.remove(folder)


def _build(program: NativeProgram, path: Path) -> None:
    """Build ``program`` at ``path`` in the cache; of two at a time one builds, and the other waits for it."""
    top = path.parents[2]
    paths.below(paths.below(paths.cache(), "programs"), top.name)
    _prune(top)
    with shared_files.locked(top / ".lock"):
        if _runs(path):
            return
        for file in _files():
            copy = top / file.relative_to(SOURCES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        target = f"build/{program.name}"
        make = ["make", "-s", "-j", str(os.cpu_count() or 1), "-C", str(top / program.folder), target]
        # The same in the cache as in a source tree, so that only OpenZFS tells their results apart.
        make[1:1] = [f"ZTUNE_VERSION={__version__}"]
        if program.library is not None:
            make[1:1] = [f"ZFS_ROOT={program.library.root}"]
        if program.uses_openzfs:
            make[-1:] = ["all"]  # which looks for the headers first, and says what is missing
        try:
            done = subprocess.run(make, capture_output=True, text=True, timeout=_BUILD_S, errors="replace")
        except FileNotFoundError:
            raise MissingError(
                f"{program.name} is built with make, which is not here: `{setup_command()}`, or "
                f"`{install_command('make')}`"
            ) from None
        except subprocess.TimeoutExpired:
            raise ZtuneError(f"{program.name} was not built within {_BUILD_S:.0f} s") from None
    if done.returncode or not path.is_file():
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("make")]
        why = next((line for line in said if "not found" in line or "error" in line), (said or ["?"])[-1])
        raise MissingError(
            f"{program.name} can't be built here: {why.strip()} `{setup_command()}` installs what that takes"
        )
