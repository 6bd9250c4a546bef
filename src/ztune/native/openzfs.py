"""Versions of the OpenZFS library beside this machine's: Debian's packages, unpacked and not installed.

``scripts/openzfs.sh`` brings one, with all that it needs down to the C library.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ztune import paths
from ztune.errors import InputError, MissingError
from ztune.onhost.host import shared_files

SUITES = {"2.1": "bookworm", "2.3": "trixie", "2.4": "trixie-backports"}
"""Which suite of Debian has which version, checked 2026-11-22."""
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")


@dataclass(frozen=True)
class Library:
    """An OpenZFS library to build programs against. ``package``: the version of its package."""

    root: Path
    package: str

    @property
    def version(self) -> str:
        """The version of OpenZFS: 2.4.4."""
        return upstream(self.package)

    def is_there(self) -> bool:
        """Whether it is still unpacked."""
        return (self.root.parent / "version").is_file()


def upstream(package: str) -> str:
    """Return OpenZFS's version of a package's: "2.4.4-1~bpo13+1" → "2.4.4"."""
    return re.split(r"[^0-9.]", package, maxsplit=1)[0]


def order(version: str) -> tuple[int, ...]:
    """Return what tells which of two versions is newer: "2.4.4" → (2, 4, 4)."""
    return tuple(int(part) for part in re.findall(r"\d+", upstream(version)))


def matches(version: str, wanted: str) -> bool:
    """Whether ``version`` (2.4.4) is the one wanted, or one of that series (2.4)."""
    return f"{version}.".startswith(f"{wanted}.")


def suite(wanted: str) -> str:
    """Return the suite of Debian that has ``wanted`` (2.4, 2.4.4). Raises InputError where none has."""
    found = next((name for series, name in SUITES.items() if matches(wanted, series)), None)
    if found is None or not _VERSION.fullmatch(wanted):
        *most, last = SUITES
        raise InputError(f'"{wanted}" is no version to set up: Debian has {", ".join(most)} and {last}')
    return found


def folder(wanted: str) -> Path:
    """Return the directory that ``wanted`` is, or would be, unpacked into."""
    return paths.cache() / "openzfs" / wanted


def libraries() -> list[Library]:
    """Return what is unpacked, in order of version."""
    found = []
    for file in folder("").glob("*/version"):
        with contextlib.suppress(FileNotFoundError):  # another ztune removed it just now
            found.append(Library(file.parent / "root", file.read_text().strip()))
    return sorted(found, key=lambda one: order(one.version))


def library(wanted: str) -> Library | None:
    """Return the newest unpacked library that ``wanted`` means, or None."""
    return next((one for one in reversed(libraries()) if matches(one.version, wanted)), None)


def size(library: Library) -> int:
    """Return how many bytes ``library`` takes, links and shared files counted once; what is removed meanwhile
    is not.
    """
    seen = {}
    for top, folders, names in os.walk(library.root.parent):  # it takes no notice of folders that are gone
        for name in (*folders, *names):
            with contextlib.suppress(FileNotFoundError):
                about = Path(top, name).lstat()
                seen[about.st_ino] = about.st_blocks * 512
    return sum(seen.values())


def remove(library: Library) -> None:
    """Remove ``library``, as one whole; call it within ``native.alone``. Raises InputError where it is none
    of ours.
    """
    top = library.root.parent
    if top.parent != folder("") or top.is_symlink() or not library.is_there():
        raise InputError(f"{top} is no OpenZFS that ztune unpacked; it was left alone")
    (top / "version").unlink()  # what is cut now counts as not there
    shared_files.remove(top)


def chosen(wanted: str, own: str, what: str) -> Library | None:
    """Return the library to take for ``wanted``, a version (2.4.4) or a series (2.4): None where this
    machine's ``own`` version is that, else the newest unpacked one. ``own`` is empty where there is none.

    Raises MissingError where there is none, with the command that brings one; InputError where none can be.
    ``what``: the program, for that sentence.
    """
    if own and matches(own, wanted):
        return None
    found = library(wanted)
    if found is not None:
        return found
    known = ", ".join(dict.fromkeys([*([own] if own else []), *(one.version for one in libraries())]))
    if not any(matches(wanted, series) for series in SUITES):
        raise InputError(
            f'there is no {what} with OpenZFS "{wanted}" (here: {known or "none"}), '
            f"and Debian has {', '.join(SUITES)} only"
        )
    raise MissingError(
        f"there is no {what} with OpenZFS {wanted} here ({known or 'none'}); "
        f"`ztune setup openzfs --version {wanted}` brings it"
    )
