"""What ``ztune mount`` put where: one record for each directory, so that a later command finds it again."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ztune import paths
from ztune.errors import InputError, Refused, ZtuneError
from ztune.onhost.fields import from_json, to_json
from ztune.onhost.host import mounted, own_directory
from ztune.onhost.host.mounted import Mount, MountOptions
from ztune.onhost.host.own_directory import NotOursError
from ztune.onhost.properties import MOUNTED, PROPERTIES
from ztune.onhost.trial.mount_store import MountStore
from ztune.onhost.tunables import TUNABLES
from ztune.study import Layout, parse_layout

RECORD = "record.json"
_FORMAT = "ztune-mount-point"
_VERSION = 1
_ENDS_S = 10.0
"""A program that was killed lets go of its files and its socket within this."""


@dataclass(frozen=True)
class MountPoint:
    """One directory with the mounts of one layout below it."""

    directory: Path
    """Where the datasets' directories are; absolute, without symbolic links."""
    store: Path
    token: str
    places: dict[str, Path]
    """Dataset → directory."""
    study: str
    layout: Layout
    spec: dict[str, Any]
    """What OpenZFS was told: another one does not fit the store."""
    options: dict[str, Any]
    """Of the last mount."""
    made: bool
    """Whether ``directory`` was made by us."""
    openzfs: str = ""
    """Version that the pools were made with; empty before, and in records of an older ztune."""
    unfinished: bool = False
    """Whether the store may be half made, or not be there: nothing was ever mounted from it."""

    @property
    def pasted(self) -> str:
        """``directory`` as a shell takes it."""
        return shlex.quote(str(self.directory))

    @property
    def kept(self) -> MountStore:
        """The store, to be checked and removed."""
        return MountStore(self.store, self.token)

    @property
    def disks(self) -> Path:
        """The store's folder that the program works in."""
        return self.kept.disks

    def mount(self) -> Mount | None:
        """Return the mount if its program runs. Raises MountError."""
        end = time.monotonic() + _ENDS_S
        while mounted.serving(self.disks) is not None:
            try:
                return Mount.attach(self.disks, self.places)
            except mounted.MountError:
                # One that ends just now has let go of its files before its socket.
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        return None

    def dead(self) -> list[Path]:
        """Return where dead mounts of ours lie."""
        found = []
        for dataset, place in self.places.items():
            top = mounted.on_top(place)
            own = top is not None and mounted.ours(top) and top.source == mounted.SOURCE + dataset
            if own and mounted.dead(place):
                found.append(place)
        return found

    def write(self) -> None:
        """Keep it, whole or not at all."""
        folder = folder_of(self.directory)
        partial = folder / f"{RECORD}.partial"
        raw = {"format": _FORMAT, "version": _VERSION, **to_json(self)}
        partial.write_text(json.dumps(raw, indent=1, ensure_ascii=False), encoding="utf-8")
        partial.rename(folder / RECORD)

    def discard(self) -> None:
        """Delete the store, and then the record of it. Raises Refused: then both stay."""
        if self.unfinished:
            # What can't be told for ours was there before, and has nothing of a mount in it.
            with contextlib.suppress(Refused):
                self.kept.remove_unfinished()
        else:
            self.kept.remove()
        folder = folder_of(self.directory)
        for name in (RECORD, f"{RECORD}.partial"):
            (folder / name).unlink(missing_ok=True)

    def remove_places(self) -> None:
        """Remove the directories that were made for the mounts, if they are empty and nothing is mounted.

        Those on the way to which somebody else may have put a link since stay.
        """
        for place in (*self.places.values(), *([self.directory] if self.made else [])):
            with contextlib.suppress(OSError, NotOursError), own_directory.parent_of(place) as parent:
                if parent is not None:
                    os.rmdir(place.name, dir_fd=parent.fd)


def changed(point: MountPoint, options: MountOptions, openzfs: str) -> MountPoint:
    """Return ``point`` with the options of a new mount, and what its pools were made with; keep it.

    Its store is whole: from here on it may come to hold what somebody wants back.
    """
    point = replace(point, options=to_json(options), openzfs=openzfs, unfinished=False)
    point.write()
    return point


def folder_of(directory: Path) -> Path:
    """Return the folder of what is kept of ``directory``; not made."""
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    # The name is for people who look there; short, for the store's socket has little room.
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", directory.name)[:12].strip("-")
    return paths.mounts() / "-".join(filter(None, (name, digest)))


def find(directory: Path) -> MountPoint | None:
    """Return what is known of ``directory``, None if nothing is. Raises InputError if that can't be read."""
    return _read(folder_of(directory) / RECORD)


def every() -> tuple[list[MountPoint], list[str]]:
    """Return all that is known, by directory, and a sentence for each record that can't be read."""
    found, damaged = [], []
    for path in sorted(paths.mounts().glob(f"*/{RECORD}")):
        try:
            point = _read(path)
        except InputError as error:
            damaged.append(str(error))
        else:
            found += [] if point is None else [point]
    return sorted(found, key=lambda point: point.directory), damaged


def above(directory: Path) -> MountPoint | None:
    """Return the point that has ``directory`` as one of its places, if there is one."""
    return next((point for point in every()[0] if directory in point.places.values()), None)


def _read(path: Path) -> MountPoint | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("format") != _FORMAT or raw.pop("version") != _VERSION:
            raise ValueError
        return from_json(MountPoint, {**raw, "layout": parse_layout(raw["layout"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path} is damaged, or from another version of ztune, so what lies beside it is left alone; "
            f"unmount what it was for and remove it by hand"
        ) from None


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Within the body no other ztune mounts or unmounts at ``directory``. Raises ZtuneError at once."""
    folder = folder_of(directory)
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            file = (folder / "busy").open("w")
        except FileNotFoundError:
            continue  # the one before has just tidied it away
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == (folder / "busy").stat().st_ino:
                break
        except FileNotFoundError:
            pass
        except OSError:
            file.close()
            raise ZtuneError(f"{directory}: another ztune is mounting or unmounting it") from None
        file.close()
    with file:
        try:
            yield
        finally:
            if [entry.name for entry in folder.iterdir()] == ["busy"]:
                (folder / "busy").unlink()
                folder.rmdir()


def names(datasets: Sequence[str]) -> dict[str, str]:
    """Return dataset → the name of its directory: its path below the pool, with "-" for "/".

    With the pool's name in front where two would be the same.
    """
    short = {name: (name.partition("/")[2] or name).replace("/", "-") for name in datasets}
    often = Counter(short.values())
    out = {name: text if often[text] == 1 else name.replace("/", "-") for name, text in short.items()}
    taken: set[str] = set()
    for name, text in out.items():
        # "tank/a-b" and "tank/a/b": rare enough for a number.
        number = 2
        while out[name] in taken:
            out[name] = f"{text}-{number}"
            number += 1
        taken.add(out[name])
    return out


def check_layout(layout: Layout) -> None:
    """Raise InputError if ``layout`` can't be mounted."""
    for pool in layout.used_pools():
        if pool.filesystem != "zfs":
            raise InputError(
                f'layout "{layout.name}" has {pool.filesystem} in place of pool {pool.name}: a mount is '
                f"OpenZFS and nothing else; `ztune run --on lab` measures both"
            )
    for dataset in layout.datasets:
        if dataset.volume is not None:
            raise InputError(
                f'layout "{layout.name}" has {dataset.name} as a volume with {dataset.filesystem}: a mount '
                f"has file systems only; `ztune run --on lab` measures volumes"
            )
        if dataset.properties.get("encryption", "off") != "off":
            raise InputError(
                f'layout "{layout.name}" encrypts {dataset.name}: a mount has no encryption; '
                "`ztune run --on lab` does"
            )


def unheeded(layout: Layout) -> list[str]:
    """Return a note for each property that the layout sets and a mount does not have."""
    return [
        f"{name}={value} of {dataset.name} is not heeded: a mount does not have it"
        for dataset in layout.datasets
        for name, value in dataset.properties.items()
        if name not in MOUNTED and value != PROPERTIES[name].default
    ] + [
        f"{name}={value} is not heeded: a mount does not have it"
        for name, value in layout.tunables.items()
        if not TUNABLES[name].replayed and value != TUNABLES[name].default
    ]
