"""The trial program as one file: a zipapp that any host with python3 runs.

What goes in: ``ztune.onhost``, and of each database the folder ``onhost`` and its facts. They import the
standard library, each other, ``ztune.errors``, ``ztune.packages``, ``ztune.shipped`` and ``ztune.units``.
The same sources always give the same bytes, and the file's name holds their hash, so that it is copied once.
Their bytecode goes along: without it every start compiles them, which is most of what a start takes, and
seconds in a guest that is emulated. A host with another version of Python takes the sources.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import io
import marshal
import os
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import ztune
from ztune import paths, temporary
from ztune.databases.database import every
from ztune.errors import InputError
from ztune.onhost.host import own_directory, shared_files
from ztune.shipped import FACTS
from ztune.temporary import Temporary

_MAIN = "import sys\n\nfrom ztune.onhost.main import main\n\nsys.exit(main())\n"
_SHEBANG = b"#!/usr/bin/env python3\n"
_KEPT_S = 30 * 86_400.0
"""How long a bundle stays in the cache that no run has begun with: a run's own must outlast it."""


def build(modules: Sequence[str] = ()) -> Path:
    """Return the trial program, made if it is not in the cache.

    ``modules``: further modules to put in, for jobs of third parties; they may import the standard library
    and each other. Raises InputError for a module that can't be found or is no Python source.
    """
    files = {**_own(), **_facts(modules), **_others(modules), "__main__.py": _MAIN.encode()}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    name = f"ztune-trial-{digest.hexdigest()[:16]}.pyz"
    try:
        folder = paths.below(paths.cache(), "trial")
        path = folder / name
        # What lies there under a name is run: one that somebody else could have written is made anew.
        if not _is_own(path):
            _write(path, files)
        os.utime(path)
    except (OSError, InputError) as error:
        return _in_memory(name, files, error)
    for other in folder.glob("ztune-trial-*.pyz"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - other.stat().st_mtime > _KEPT_S:
                other.unlink()
    return path


def sources() -> bytes:
    """Return the trial program without bytecode, a third as large: for hosts that it is sent to each time."""
    found = io.BytesIO()
    _archive(found, {**_own(), "__main__.py": _MAIN.encode()})
    return found.getvalue()


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Write the archive, whole or not at all. Raises OSError."""
    compiled = {
        f"{name}c": code
        for name, source in files.items()
        # What is wrong with a third party's module, its job says where it runs.
        if name.startswith("ztune/") and name.endswith(".py") and (code := _bytecode(name, source))
    }
    with shared_files.replacing(path) as partial:
        with partial.open("wb") as file:
            _archive(file, {**files, **compiled})
        partial.chmod(0o755)


def _archive(file: BinaryIO, files: Mapping[str, bytes]) -> None:
    file.write(_SHEBANG)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])


@functools.cache
def _bytecode(name: str, source: bytes) -> bytes:
    """Return what a .pyc file holds, of the kind that is taken without a look at the source (PEP 552); empty
    where it can't be had.
    """
    code = compile(source, name, "exec", dont_inherit=True)
    try:
        # Later formats than 2 depend on what else refers to the code's strings: the bytes would differ.
        dumped = marshal.dumps(code, 2)
    except ValueError:
        return b""  # Python 3.14 has constant slices, which that format can't hold
    return (
        importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(source) + dumped
    )


def _in_memory(name: str, files: Mapping[str, bytes], error: OSError | InputError) -> Path:
    """Return the archive in a directory in memory, removed when this process ends, or by the next one or
    `ztune clean` where it is killed: the cache's disk is full.

    What cleans a full disk up must not need room on it.
    """
    try:
        made = Temporary.make(temporary.PROGRAM, temporary.MEMORY)
        atexit.register(made.remove)
        _write(made.path / name, files)
    except OSError:
        why = str(error) if isinstance(error, InputError) else error.strerror
        raise InputError(f"the trial program can't be written in the state directory: {why}") from None
    return made.path / name


def _is_own(path: Path) -> bool:
    try:
        own_directory.require_file(path, path.lstat())
    except (OSError, own_directory.NotOursError):
        return False
    return True


def _own() -> dict[str, bytes]:
    """Return name in the archive → content of what is ztune's own."""
    root = Path(ztune.__file__).resolve().parent
    kinds = ("*.py", "*.java", "*.jmx")  # a job compiles or reads some of it where it runs
    whole = [root / "onhost", *root.glob("databases/*/onhost")]
    found = [path for folder in whole for kind in kinds for path in folder.rglob(kind)]
    own = ("__init__.py", "databases/__init__.py", "errors.py", "packages.py", "shipped.py", "units.py")
    found += [root / name for name in own]
    found += root.glob("databases/*/__init__.py")
    found += root.glob(f"databases/*/{FACTS}")
    return {f"ztune/{path.relative_to(root).as_posix()}": path.read_bytes() for path in found}


def _facts(modules: Sequence[str]) -> dict[str, bytes]:
    """Return name in the archive → facts of the third parties' databases that ``modules`` are of."""
    return {
        f"ztune/databases/{one.name}/{FACTS}": (one.folder / FACTS).read_bytes()
        for one in every()
        if not one.own and any(name.startswith(f"{one.module}.") for name in modules)
    }


def _others(modules: Sequence[str]) -> dict[str, bytes]:
    """Return name in the archive → source of the modules of a third party, with empty packages above them."""
    files: dict[str, bytes] = {}
    for name in modules:
        if name.split(".")[0] == "ztune":
            continue
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            raise InputError(
                f"module {name} of the workload is not there as Python source, so it can't be sent"
            )
        parts = name.split(".")
        package = spec.submodule_search_locations is not None
        for i in range(1, len(parts)):
            files.setdefault("/".join(parts[:i]) + "/__init__.py", b"")
        files["/".join(parts) + ("/__init__.py" if package else ".py")] = Path(spec.origin).read_bytes()
    return files
