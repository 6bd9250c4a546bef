"""The directories of a job's roles: made or taken, handed over to the database's user, tried as that user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.units import format_size

_LEFT_FREE = 0.02
"""A file system with less than this share free when something failed was too small for it."""


@contextmanager
def room_for(roles: Mapping[str, Path]) -> Iterator[None]:
    """Say of what fails within that the file system of one of ``roles``, by its directory, is full, if it is:
    not every server names the reason.

    Raises:
        ZtuneError: something failed, and there is a reason; else what was raised goes on.
    """
    try:
        yield
    except (InputError, MissingError):
        raise
    except (ZtuneError, OSError) as error:
        for role, path in roles.items():
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(path)
                if usage.free < max(1 << 20, usage.total * _LEFT_FREE):
                    size = format_size(usage.total // 1024 * 1024)
                    raise ZtuneError(
                        f"role {role} is larger than the disk: {size} is full; take a larger disk or less "
                        f"data ({error})"
                    ) from error
        raise


def size_of(top: Path) -> int:
    """Return the bytes of all files below ``top``, some of which may come and go meanwhile."""
    total = 0
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


def sha256(path: Path) -> str:
    """Return the digest of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def must_be_empty(role: str, path: Path) -> None:
    """Refuse a directory that is missing or holds something.

    Raises:
        InputError: the sentence names the directory and the role.
    """
    try:
        found = any(path.iterdir())
    except OSError as error:
        raise InputError(f"{path}: no directory for the role {role}: {error.strerror}") from None
    if found:
        raise InputError(f"{path}: the directory for the role {role} is not empty")


def take(role: str, given: Path | None, workdir: WorkDir, account: Account) -> Path:
    """Return the directory of ``role``: ``given``, empty and now the account's, or a new one in ``workdir``.

    Raises:
        InputError: ``given`` isn't an empty directory, or can't be handed over.
    """
    if given is None:
        return workdir.sub(role, owner=account.owner)
    must_be_empty(role, given)
    try:
        if account.owner is not None:
            os.chown(given, *account.owner)
        given.chmod(0o700)
    except OSError as error:
        raise InputError(
            f"{given}: can't be given to the database's user {account.name!r}: {error.strerror}"
        ) from None
    return given


def must_share_a_file_system(given: Iterable[Path | None], why: str) -> None:
    """Refuse directories that are on several file systems. Raises InputError with the sentence ``why``."""
    if len({path.stat().st_dev for path in given if path is not None}) > 1:
        raise InputError(why)


def hand_over(top: Path, account: Account) -> None:
    """Give ``top`` and all below it, as it was copied there, to the account, and to nobody else."""
    # By descriptor: once something is theirs, the account may put a link in its place.
    for _, folders, files, here in os.fwalk(top, topdown=False):
        for names, mode in ((folders, 0o700), (files, 0o600)):
            for name in names:
                _mend(name, here, mode, account)
    mend(top, 0o700, account)


def mend(path: Path, mode: int | None, account: Account) -> None:
    """Set owner and, unless it is a link, mode."""
    _mend(path, None, mode, account)


def _mend(name: str | Path, folder: int | None, mode: int | None, account: Account) -> None:
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if account.owner is not None:
            os.chown(name, *account.owner, dir_fd=folder, follow_symlinks=False)
        if mode is not None and not stat.S_ISLNK(os.fstat(held).st_mode):
            Path(f"/proc/self/fd/{held}").chmod(mode)
    finally:
        os.close(held)


def write(path: Path, content: str | bytes, *, append: bool = False, mode: int = 0o600) -> None:
    """Write a file where the database's account may write too: a link that is there is not followed.

    Raises:
        NotOursError: there is something else than a file.
    """
    with create(path, append=append, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def lend(path: Path, content: str | bytes, account: Account) -> None:
    """Write a file for the account, and for nobody else. Raises NotOursError as ``write`` does."""
    write(path, content)
    mend(path, 0o600, account)


def create(path: Path, *, append: bool = False, mode: int = 0o600) -> IO[bytes]:
    """Open a file for writing, as ``write`` does."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
    return os.fdopen(own_directory.open_plain(path, flags, mode), "ab" if append else "wb")


def copy(source: Path, target: Path) -> None:
    """Copy a file of the user's to ``target``, as ``write`` does."""
    with source.open("rb") as file, create(target) as out:
        shutil.copyfileobj(file, out, 1 << 20)


def must_be_reachable(
    paths: Iterable[Path], workdir: WorkDir, account: Account, *, patience: float = 1.0
) -> None:
    """Try to write in each of ``paths`` as the account.

    As that user, not by looking at permission bits: ACLs and mount options count too.

    Raises:
        InputError: it can't; the sentence names the directory above.
    """
    test = 'for d; do cd "$d" && : > probe && rm probe || { echo "$d"; exit 1; }; done'
    places = list(paths)
    try:
        said = subprocess.run(
            ["/bin/sh", "-c", test, "sh", *map(str, places)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            timeout=60 * patience,
            **account.popen_args,
        )
        refused = said.stdout.strip() if said.returncode else ""
    except (OSError, subprocess.SubprocessError):
        refused = str(places[0])
    if refused:
        given = workdir.path not in Path(refused).parents
        above = Path(refused).parent if given else workdir.path.parent
        raise InputError(
            f"{above}: the database's user {account.name!r} can't work below it; "
            "choose a directory that every user may pass through, such as /var/tmp"
        )
