"""The trial program as one file: a zipapp that any host with python3 runs.

What goes in follows from the imports: ``ztune.trial`` and whatever it imports of ``ztune``, nothing else. The
same sources always give the same bytes, and the file's name holds their hash, so that it is copied once.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import hashlib
import importlib.util
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import ztune
from ztune.errors import InputError
from ztune.store import paths
from ztune.trial import own_directory

_MAIN = "import sys\n\nfrom ztune.trial.main import main\n\nsys.exit(main())\n"
_SHEBANG = b"#!/usr/bin/env python3\n"
_MEMORY = "/dev/shm"
_KEPT_S = 30 * 86_400.0
"""How long a bundle stays in the cache that no run has begun with: a run's own must outlast it."""
# Modules of the package that the trial program may hold: others need more than the standard library.
_ALLOWED = ("ztune.trial", "ztune.errors", "ztune.units", "ztune.packages")


def build(modules: Sequence[str] = ()) -> Path:
    """Return the trial program, made if it is not in the cache.

    ``modules``: further modules to put in, for jobs of third parties; they may import the standard library
    and each other. Raises InputError for a module that can't be found or is no Python source.
    """
    files = {**_own(), **_others(modules), "__main__.py": _MAIN.encode()}
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


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Write the archive, whole or not at all. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.unlink(missing_ok=True)
        partial.write_bytes(_SHEBANG)
        with zipfile.ZipFile(partial, "a", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, files[name])
        partial.chmod(0o755)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _in_memory(name: str, files: Mapping[str, bytes], error: OSError | InputError) -> Path:
    """Return the archive in a directory in memory, gone when this process ends: the cache's disk is full.

    What cleans a full disk up must not need room on it.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="ztune-trial-", dir=_MEMORY))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _write(folder / name, files)
    except OSError:
        why = str(error) if isinstance(error, InputError) else error.strerror
        raise InputError(f"the trial program can't be written in the state directory: {why}") from None
    return folder / name


def _is_own(path: Path) -> bool:
    try:
        own_directory.require_file(path, path.lstat())
    except (OSError, own_directory.NotOursError):
        return False
    return True


def _own() -> dict[str, bytes]:
    """Return name in the archive → source of ``ztune.trial`` and what it imports of ``ztune``."""
    root = Path(ztune.__file__).resolve().parent
    files = {"ztune/__init__.py": (root / "__init__.py").read_bytes()}
    # What a job compiles or reads where it runs goes along as it is.
    for path in sorted(one for kind in ("*.java", "*.jmx") for one in (root / "trial").rglob(kind)):
        files[f"ztune/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    waiting = sorted((root / "trial").rglob("*.py"))
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        source = path.read_bytes()
        files[f"ztune/{path.relative_to(root).as_posix()}"] = source
        for name in _imports(source):
            if name == "ztune" or not name.startswith("ztune."):
                continue
            allowed = any(name == a or name.startswith(a + ".") for a in _ALLOWED)
            if not allowed:
                raise InputError(f"{path} imports {name}, which the trial program cannot hold")
            found = root.joinpath(*name.split(".")[1:])
            waiting += [p for p in (found.with_suffix(".py"), found / "__init__.py") if p.is_file()]
    return files


def _imports(source: bytes) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    # `from ztune.trial import x` may name a module or something in one; only what exists is taken.
    return {name for name in found if name.split(".")[0] == "ztune" and _is_module(name)}


def _is_module(name: str) -> bool:
    root = Path(ztune.__file__).resolve().parent.joinpath(*name.split(".")[1:])
    return root.with_suffix(".py").is_file() or (root / "__init__.py").is_file()


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
