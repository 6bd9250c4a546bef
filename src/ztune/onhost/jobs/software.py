"""Where ``ztune setup`` puts what no system package brings: a cache of ztune's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ztune.errors import MissingError
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.packages import install_command

ENVIRONMENT = "ZTUNE_SOFTWARE"
"""Environment variable: the directory, where it isn't in ztune's own cache."""
_JDK_DIRECTORIES = ("/usr/lib/jvm/default-java", "/usr/lib/jvm/java-17-openjdk-amd64", "/usr/lib/jvm/java-17")


def directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where fetched software lies: ``$ZTUNE_SOFTWARE``, else ``software`` in ztune's cache.

    By the rule of ``ztune.paths``, which isn't there where a trial runs.
    """
    own, home, xdg = (environ.get(name) for name in (ENVIRONMENT, "ZTUNE_HOME", "XDG_STATE_HOME"))
    if own:
        return Path(own).absolute()
    state = Path(home) if home else Path(xdg) / "ztune" if xdg else Path.home() / ".local/state/ztune"
    return state.absolute() / "cache" / "software"


def require(name: str, what: str, workload: str) -> Path:
    """Return the directory of the software ``name``, such as ``orientdb-3.2.25``.

    Args:
        name: of the directory.
        what: how messages call it.
        workload: what ``ztune setup`` is to be asked for, with the parameters that matter.

    Raises:
        MissingError: it was not fetched; the sentence names the command that does it.
    """
    found = directory() / name
    if not found.is_dir():
        raise MissingError(f"{what} was not found in {found.parent}; fetch it with `ztune setup {workload}`")
    return found


def program(name: str, what: str, package: str, folders: Sequence[str] = ()) -> Path:
    """Return where the program ``name`` lies: on the PATH or in ``folders``.

    Raises:
        MissingError: nowhere; the sentence calls it ``what`` and names the command that installs ``package``.
    """
    found = shutil.which(name, path=os.pathsep.join([*os.get_exec_path(), *folders]))
    if found is None:
        raise MissingError(f"{what} was not found; install it with `{install_command(package)}`")
    return Path(found)


def said_by(argv: Sequence[str | Path], *, patience: float = 1.0, **how: Any) -> str:
    """Return what a program says on standard output; ``how`` goes to ``subprocess``.

    Raises:
        MissingError: it does not run.
    """
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "cwd": "/", **how}
    try:
        done = subprocess.run(argv, text=True, errors="replace", timeout=60 * patience, **settings)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"{argv[0]} does not run: {error}") from None
    return str(done.stdout)


def version_of(argv: Sequence[str | Path], pattern: str, *, patience: float = 1.0, **how: Any) -> str:
    """Return the version that a program says it has: the group in ``pattern``.

    Raises:
        MissingError: it does not run, or names none.
    """
    said = said_by(argv, patience=patience, stderr=subprocess.STDOUT, **how)
    match = re.search(pattern, said)
    if match is None:
        raise MissingError(f"{' '.join(map(str, argv))} said {said.strip()[-200:]!r}, which names no version")
    return match[1]


def pythons(code: str, account: Account, *, patience: float = 1.0) -> Iterator[tuple[str, str]]:
    """Yield each Python that ``account`` can run, and what ``code`` prints in it, where it prints anything.

    ztune's own may lie in a directory that is closed to the database's user.
    """
    for path in python_candidates():
        try:
            done = subprocess.run(
                [path, "-I", "-c", code],
                capture_output=True,
                text=True,
                cwd="/",
                timeout=30 * patience,
                **account.popen_args,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0 and done.stdout.strip():
            yield path, done.stdout.strip()


def python(
    account: Account, code: str = "print('here')", *, has: str = "", patience: float = 1.0
) -> tuple[str, str]:
    """Return the first of ``pythons``, and what ``code`` prints in it.

    Raises:
        MissingError: there is none; ``has`` says what it lacks, such as " with the module sqlite3".
    """
    for found in pythons(code, account, patience=patience):
        return found
    tried = ", ".join(python_candidates())
    raise MissingError(f"there is no Python 3{has} that user {account.name!r} can run; tried: {tried}")


def python_candidates() -> list[str]:
    """Return the Pythons that ``pythons`` tries."""
    base = str(getattr(sys, "_base_executable", "") or sys.executable)
    found = [base, *(f"{folder}/python3" for folder in os.get_exec_path()), "/usr/bin/python3"]
    return list(dict.fromkeys(os.path.realpath(path) for path in found if os.access(path, os.X_OK)))


def java(least: int = 17, environ: Mapping[str, str] = os.environ) -> tuple[Path, str]:
    """Return a Java of at least version ``least`` that can run a source file, and its version.

    ``$JAVA_HOME`` first, then the PATH, then where Debian puts it.

    Raises:
        MissingError: there is none; the sentence names the command that brings it.
    """
    homes = [Path(environ["JAVA_HOME"])] if environ.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        homes.append(Path(on_path).resolve().parents[1])
    homes += [Path(path) for path in _JDK_DIRECTORIES]
    seen: list[str] = []
    for home in dict.fromkeys(homes):
        # Without the compiler's module a source file can't be run.
        if not (os.access(home / "bin" / "java", os.X_OK) and os.access(home / "bin" / "javac", os.X_OK)):
            continue
        version = _java_version(home)
        number = re.match(r"(\d+)", version)
        if number and int(number[1]) >= least:
            return home / "bin" / "java", version
        seen.append(f"{home} is {version or 'of no version that it tells'}")
    hint = f" ({'; '.join(seen)})" if seen else ""
    raise MissingError(
        f"a Java development kit of version {least} or later was not found{hint}; "
        f"install it with `{install_command('java')}`"
    )


def _java_version(home: Path) -> str:
    # The file saves the second that starting a machine takes; not every build has it.
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    if match:
        return match[1]
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r'version "([^"]+)"', done.stderr)
    return match[1] if match else ""


def lend(
    files: list[Path], name: str, workdir: WorkDir, account: Account, *, top: Path | None = None
) -> Path:
    """Return a directory of the work directory with ``files`` in it, where the account can read them: side by
    side, or as they lie below ``top``.

    ztune's cache may lie in a home that is closed to the database's user. Links where the file system is the
    same, copies elsewhere.
    """
    folder = workdir.sub(name, mode=0o755)
    for path in files:
        target = folder / (path.name if top is None else path.relative_to(top))
        for parent in reversed(target.relative_to(folder).parents[:-1]):
            (folder / parent).mkdir(exist_ok=True)
            (folder / parent).chmod(0o755)
        readable = bool(path.stat().st_mode & 0o004) or not account.switch
        try:
            if not readable:
                raise OSError
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)
            target.chmod(0o644)
    return folder
