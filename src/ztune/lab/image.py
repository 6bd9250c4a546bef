"""What ``ztune lab build`` made: images of guests, and where they are."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ztune import paths
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import shared_files

FORMAT = 1


@dataclass(frozen=True)
class Image:
    """A kernel with OpenZFS and the tools that go with it."""

    name: str
    kernel: str
    """Release, such as ``6.1.0-56-amd64``."""
    openzfs: str
    """Version of the module, such as ``2.3.2-2~bpo12+2``."""
    recipe: str
    """Hash of what runs first in the guest: saved states of another recipe are not resumed."""
    format: int = FORMAT
    user_mode: bool = False
    """Whether its kernel is an ordinary program (UML), with OpenZFS built in."""
    made_with: str = ""
    """Hash of how a kernel in user mode was built; empty for others."""
    sums: dict[str, str] = field(default_factory=dict, compare=False)
    """SHA-256 of the files that a guest boots from."""

    @property
    def folder(self) -> Path:
        """Where everything of it is."""
        return images() / self.name

    @property
    def vmlinuz(self) -> Path:
        """The kernel."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The initial ramdisk: the agent and the modules."""
        return self.folder / "initrd"

    @property
    def tools(self) -> Path:
        """The layer with the tools of OpenZFS, as it appears in the guest."""
        return self.folder / "tools"

    def save(self) -> None:
        """Write the description; the image counts as built from here on."""
        self.sums.update({path.name: _sum(path) for path in (self.vmlinuz, self.initrd)})
        path = self.folder / "image.json"
        with shared_files.replacing(path) as partial:
            partial.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def check(self) -> None:
        """Raise ZtuneError if its files are not those that were built."""
        for path in (self.vmlinuz, self.initrd):
            if self.sums.get(path.name) not in (None, _sum(path)):
                raise ZtuneError(f"the lab's image is damaged ({path} has changed); {self._again()}")
        for tool in ("zpool", "zfs"):
            if not any((self.tools / "usr" / part / tool).is_file() for part in ("sbin", "bin")):
                raise ZtuneError(
                    f"the lab's image is damaged ({self.tools} holds no {tool}); {self._again()}"
                )

    def size(self) -> int:
        """Return the bytes that it takes on disk, saved states included."""
        total = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):  # a state that is just being replaced
                total += path.lstat().st_blocks * 512
        return total

    def _again(self) -> str:
        # Nothing compiled of a kernel in user mode is kept, but the module of another kernel is.
        how_long = "in ten to twenty minutes" if self.user_mode else "within a minute"
        return f"{_command(self.openzfs, self.user_mode)} makes it anew, {how_long}"


def _command(openzfs: str | None, user_mode: bool) -> str:
    """Return the command that builds an image, in backquotes."""
    words = [*(["--user-mode"] if user_mode else []), *(["--openzfs", openzfs] if openzfs else [])]
    return f"`{' '.join(['ztune lab build', *words])}`"


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def images() -> Path:
    """Return the folder of the images."""
    path = paths.lab() / "images"
    path.mkdir(exist_ok=True)
    return path


def built() -> list[Image]:
    """Return the images that are there, newest OpenZFS first."""
    found = []
    for path in images().glob("*/image.json"):
        try:
            image = Image(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # of another version of ztune, or half removed
        if image.format == FORMAT and image.vmlinuz.is_file() and image.initrd.is_file():
            found.append(image)
    return sorted(found, key=lambda image: (order(image.openzfs), order(image.kernel)), reverse=True)


def order(version: str) -> tuple[int, ...]:
    """Return what sorts versions by their numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def matches(version: str, wanted: str) -> bool:
    """Whether ``version`` is ``wanted`` or begins with it at a full number: 2.3.2-1 is 2.3, 2.31 is not."""
    return version == wanted or re.match(re.escape(wanted) + r"(?![0-9])", version) is not None


def find(openzfs: str | None = None, *, user_mode: bool = False) -> Image:
    """Return the newest image whose OpenZFS is ``openzfs`` or begins with it.

    ``user_mode``: one whose kernel runs in user mode.

    Raises MissingError when none is built, InputError when others are.
    """
    have = [image for image in built() if image.user_mode == user_mode]
    if not have:
        raise MissingError(
            f"the lab is not built here; {_command(None, user_mode)} does it once (ten to twenty minutes)"
        )
    for image in have:
        if openzfs is None or matches(image.openzfs, openzfs):
            return image
    raise InputError(
        f"the lab has OpenZFS {', '.join(image.openzfs for image in have)}, not {openzfs}; "
        f"{_command(openzfs, user_mode)} adds it"
    )
